//! No global mutable state: nothing that two parts of the program could change behind each other's
//! back. Values that are set once (`OnceLock`, `LazyLock`) and scratch space that one thread has to
//! itself (`thread_local!`) are not shared state.

use super::TOOL_CRATES;
use crate::findings::Finding;
use crate::scan::{Scan, Word};
use crate::workspace::Workspace;

/// Types whose value changes behind a shared reference.
const MUTABLE: &[&str] = &["Mutex", "RwLock", "RefCell", "Cell", "UnsafeCell"];

/// A static that may change, by the file it is in and its name.
struct Exception {
    file: &'static str,
    name: &'static str,
}

/// docs/ARCHITECTURE.md names these, too.
const EXCEPTIONS: &[Exception] = &[
    // A signal handler, which mends mapped files that lose their pages, reaches nothing but statics.
    Exception { file: "crates/checkpoint/src/damage.rs", name: "PLACES" },
];

/// Finds statics that can change after they were set, outside tests and tools.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, scan) in workspace.rust_files() {
        if file.is_test_file() || file.crate_name().is_some_and(|name| TOOL_CRATES.contains(&name)) {
            continue;
        }
        for (name, line) in mutable_statics(scan) {
            if EXCEPTIONS.iter().any(|known| known.file == file.path && known.name == name) {
                continue;
            }
            let text = "global mutable state; give the value an owner and pass it";
            findings.push(Finding::error(&file.path, line + 1, text));
        }
    }
    findings
}

/// The names of statics that can change, and their lines.
fn mutable_statics(scan: &Scan) -> Vec<(String, usize)> {
    let words = scan.words();
    let thread_local = thread_local_spans(scan, &words);
    words
        .iter()
        .filter(|word| word.text == "static" && is_item(scan, word))
        .filter(|word| !thread_local.iter().any(|(open, close)| (*open..*close).contains(&word.start)))
        .filter(|word| is_mutable(scan, word))
        .map(|word| (name_of(scan, word), scan.line_at(word.start)))
        .filter(|(_, line)| !scan.is_test_line(*line))
        .collect()
}

/// The name of the static that a keyword declares.
fn name_of(scan: &Scan, keyword: &Word) -> String {
    let declaration = scan.code_between(keyword.end, scan.declared_type_end(keyword.end));
    let name = declaration.split(':').next().unwrap_or_default().trim();
    name.strip_prefix("mut ").unwrap_or(name).trim().to_owned()
}

/// `'static` is a lifetime, and `static` is followed by a name or `mut`.
fn is_item(scan: &Scan, keyword: &Word) -> bool {
    let lifetime = keyword.start > 0 && scan.code_between(keyword.start - 1, keyword.start) == "'";
    !lifetime && scan.next_word(keyword.end).is_some()
}

fn is_mutable(scan: &Scan, keyword: &Word) -> bool {
    let end = scan.declared_type_end(keyword.end);
    let declaration = scan.code_between(keyword.end, end);
    let mut names =
        declaration.split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|name| !name.is_empty());
    names.clone().next() == Some("mut")
        || names.any(|name| {
            MUTABLE.contains(&name) || (name.starts_with("Atomic") && name.len() > "Atomic".len())
        })
}

fn thread_local_spans(scan: &Scan, words: &[Word]) -> Vec<(usize, usize)> {
    let openings = words.iter().filter(|word| word.text == "thread_local");
    openings.filter_map(|word| scan.body_open(word.end).map(|open| (open, scan.closing(open)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(source: &str) -> Vec<usize> {
        let workspace = Workspace::of_files(&[("crates/device/src/registry.rs", source)]);
        check(&workspace).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn statics_that_change_are_found() {
        assert_eq!(lines("static mut COUNT: u32 = 0;\n"), [1]);
        assert_eq!(lines("pub static POOL: Mutex<Vec<u8>> = Mutex::new(Vec::new());\n"), [1]);
        assert_eq!(lines("static A: LazyLock<RwLock<u8>> = LazyLock::new(x);\n"), [1]);
        assert_eq!(lines("static NEXT: AtomicU64 = AtomicU64::new(0);\n"), [1]);
    }

    #[test]
    fn an_exception_is_one_static_of_one_file() {
        let found = |path: &str, source: &str| check(&Workspace::of_files(&[(path, source)])).len();
        let file = "crates/checkpoint/src/damage.rs";
        assert_eq!(found(file, "static PLACES: AtomicPtr<Place> = AtomicPtr::new(null_mut());\n"), 0);
        assert_eq!(found(file, "static MORE: AtomicPtr<Place> = AtomicPtr::new(null_mut());\n"), 1);
        assert_eq!(found("crates/device/src/ledger.rs", "static PLACES: AtomicPtr<u8> = x;\n"), 1);
    }

    #[test]
    fn constant_statics_are_fine() {
        assert!(lines("static NAMES: [&'static str; 2] = [\"a\", \"b\"];\n").is_empty());
        assert!(lines("static DETECTED: OnceLock<Features> = OnceLock::new();\n").is_empty());
        assert!(lines("fn f(a: &'static Mutex<u8>) {}\nstruct S { m: Mutex<u8> }\n").is_empty());
    }

    #[test]
    fn scratch_of_one_thread_and_tests_are_fine() {
        assert!(
            lines("thread_local! {\n    static SCRATCH: RefCell<Vec<f32>> = RefCell::default();\n}\n")
                .is_empty()
        );
        assert!(
            lines("#[cfg(test)]\nmod tests {\n    static LOCK: Mutex<()> = Mutex::new(());\n}\n").is_empty()
        );
    }
}
