//! Unsafe code: only in the three crates that cannot do without, and never without the sentence
//! that says why it is sound.

use std::ops::Range;

use crate::findings::Finding;
use crate::scan::{Scan, Word};
use crate::workspace::{SourceFile, Workspace};

/// The crates that may hold `unsafe`: the file map, the promise of memory to kernels, the SIMD code, and the calls into CUDA.
const UNSAFE_CRATES: &[&str] = &["checkpoint", "device", "device-cpu", "device-cuda"];

/// How many lines of one statement may lie between its comment and the `unsafe` in it.
const STATEMENT_REACH: usize = 6;

/// Finds `unsafe` without its reason, and crates that do not forbid it.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, scan) in workspace.rust_files() {
        findings.extend(missing_forbid(file, scan));
        let words = scan.words();
        let inheriting = inheriting_bodies(scan, &words);
        for word in words.iter().filter(|word| word.text == "unsafe") {
            let Some(usage) = Usage::of(scan, word) else { continue };
            let line = scan.line_at(word.start);
            let inherited =
                usage == Usage::Function && inheriting.iter().any(|body| body.contains(&word.start));
            if !inherited && !is_explained(scan, line, usage) {
                findings.push(Finding::error(&file.path, line + 1, usage.complaint()));
            }
        }
    }
    findings
}

/// What an `unsafe` keyword introduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Usage {
    Block,
    Impl,
    Extern,
    Function,
    Trait,
}

impl Usage {
    /// `None` for a function pointer type and for an attribute such as `#[unsafe(no_mangle)]`,
    /// which promise nothing by themselves.
    fn of(scan: &Scan, keyword: &Word) -> Option<Usage> {
        if let Some((_, '{')) = scan.next_code(keyword.end) {
            return Some(Usage::Block);
        }
        let next = scan.next_word(keyword.end)?;
        match next.text.as_str() {
            "impl" => Some(Usage::Impl),
            "trait" => Some(Usage::Trait),
            "fn" => names_function(scan, &next),
            "extern" => Usage::of_extern(scan, scan.after_string(next.end)),
            _ => None,
        }
    }

    /// What follows `unsafe extern "C"`: a block of foreign items, or a function.
    fn of_extern(scan: &Scan, offset: usize) -> Option<Usage> {
        if let Some((_, '{')) = scan.next_code(offset) {
            return Some(Usage::Extern);
        }
        let keyword = scan.next_word(offset).filter(|word| word.text == "fn")?;
        names_function(scan, &keyword)
    }

    /// Whether the conditions may stand in a `# Safety` section of the documentation.
    fn takes_doc_section(self) -> bool {
        matches!(self, Usage::Function | Usage::Trait)
    }

    fn complaint(self) -> &'static str {
        match self {
            Usage::Block => "unsafe block without its reason; write `// SAFETY: …` right above it",
            Usage::Impl => "unsafe impl without its reason; write `// SAFETY: …` right above it",
            Usage::Extern => "unsafe extern block without its reason; write `// SAFETY: …` right above it",
            Usage::Function => "unsafe fn without its conditions; document them under `# Safety`",
            Usage::Trait => "unsafe trait without its conditions; document them under `# Safety`",
        }
    }
}

/// `fn name` is a function; `fn(u8)` is a type.
fn names_function(scan: &Scan, keyword: &Word) -> Option<Usage> {
    scan.next_word(keyword.end).map(|_| Usage::Function)
}

/// Where functions have conditions that are written down elsewhere: in the body of an unsafe trait,
/// whose own `# Safety` section is required; in an `impl Trait for Type`; and in a macro, whose
/// functions belong to whatever it is expanded in.
fn inheriting_bodies(scan: &Scan, words: &[Word]) -> Vec<Range<usize>> {
    let mut bodies = Vec::new();
    for (index, word) in words.iter().enumerate() {
        if !["impl", "trait", "macro_rules"].contains(&word.text.as_str()) {
            continue;
        }
        let Some(open) = scan.body_open(word.end) else { continue };
        let inherits = match word.text.as_str() {
            "impl" => names_trait(scan, &words[index + 1..], open),
            "trait" => index > 0 && words[index - 1].text == "unsafe",
            _ => true,
        };
        if inherits {
            bodies.push(open..scan.closing(open));
        }
    }
    bodies
}

/// Whether the header of an `impl` that ends at `open` has a `for` with a type. `for<'a>` binds a
/// lifetime and names none.
fn names_trait(scan: &Scan, following: &[Word], open: usize) -> bool {
    let mut header = following.iter().take_while(|word| word.start < open);
    header.any(|word| word.text == "for" && scan.next_word(word.end).is_some())
}

/// Whether a comment with the reason stands on the line or above it. Comments, attributes and the
/// earlier lines of the same statement may lie between.
fn is_explained(scan: &Scan, line: usize, usage: Usage) -> bool {
    let mut statement_lines = 0;
    for above in (0..=line).rev() {
        let (code, comment) = (scan.code_line(above), scan.comment_line(above));
        let code = code.trim();
        let is_blank = code.is_empty() && comment.trim().is_empty();
        if above < line && (is_blank || ends_statement(code)) {
            return false;
        }
        if comment.contains("SAFETY:") || (usage.takes_doc_section() && comment.contains("# Safety")) {
            return true;
        }
        if !code.is_empty() && !is_attribute(code) {
            statement_lines += 1;
        }
        if statement_lines > STATEMENT_REACH {
            return false;
        }
    }
    false
}

fn is_attribute(code: &str) -> bool {
    code.starts_with("#[") && code.ends_with(']')
}

fn ends_statement(code: &str) -> bool {
    code.ends_with([';', '{', '}', ','])
}

fn missing_forbid(file: &SourceFile, scan: &Scan) -> Option<Finding> {
    let name = file.crate_name()?;
    let in_source = file.path.strip_prefix(&format!("crates/{name}/src/"))?;
    let is_root = in_source == "lib.rs" || in_source == "main.rs" || in_source.starts_with("bin/");
    if !is_root || UNSAFE_CRATES.contains(&name) {
        return None;
    }
    let forbids = (0..scan.line_count()).any(|line| {
        let code: String = scan.code_line(line).split_whitespace().collect();
        code.starts_with("#![forbid(unsafe_code")
    });
    (!forbids).then(|| {
        Finding::error(
            &file.path,
            1,
            format!("`{name}` does not forbid unsafe code; add `#![forbid(unsafe_code)]`"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(source: &str) -> Vec<usize> {
        let workspace = Workspace::of_files(&[("crates/device-cpu/src/simd.rs", source)]);
        check(&workspace).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_block_needs_its_sentence() {
        assert_eq!(lines("fn f() {\n    unsafe { g() }\n}\n"), [2]);
        assert_eq!(lines("fn f() {\n    // It is fine.\n    unsafe { g() }\n}\n"), [3]);
        assert!(lines("fn f() {\n    // SAFETY: g has no conditions.\n    unsafe { g() }\n}\n").is_empty());
    }

    #[test]
    fn the_sentence_may_be_long_and_the_statement_broken() {
        let source = "fn f() {\n    // SAFETY: the slice\n    // is long enough.\n    #[allow(x)]\n    let a: Vec<u8> =\n        unsafe { g() };\n}\n";
        assert!(lines(source).is_empty());
    }

    #[test]
    fn one_sentence_does_not_cover_the_next_statement() {
        assert_eq!(lines("// SAFETY: a.\nlet a = unsafe { g() };\nlet b = unsafe { g() };\n"), [3]);
        assert_eq!(lines("f(); // SAFETY: a.\nlet a = unsafe { g() };\n"), [2]);
        assert_eq!(lines("// SAFETY: a.\n\nlet a = unsafe { g() };\n"), [3]);
        assert_eq!(lines("// SAFETY: a.\nunsafe impl Send for A {}\nunsafe impl Sync for A {}\n"), [3]);
    }

    #[test]
    fn a_word_in_a_literal_is_no_sentence() {
        assert_eq!(lines("let a = (\"SAFETY: no\", unsafe { g() });\n"), [1]);
        assert!(lines("let a = \"unsafe { }\"; // unsafe { }\n").is_empty());
    }

    #[test]
    fn functions_and_traits_document_their_conditions() {
        assert_eq!(lines("/// Adds.\nunsafe fn add() {}\n"), [2]);
        assert!(
            lines("/// Adds.\n///\n/// # Safety\n/// AVX2.\n#[inline]\npub unsafe fn add() {}\n").is_empty()
        );
        assert!(lines("// SAFETY: the caller checked.\nunsafe fn add() {}\n").is_empty());
        assert_eq!(lines("pub unsafe trait Plain {}\n"), [1]);
        assert_eq!(lines("/// # Safety\n/// No.\nlet a = unsafe { g() };\n"), [3]);
    }

    #[test]
    fn functions_of_a_trait_inherit_its_conditions() {
        let function = "    unsafe fn f() {}\n}\n";
        assert!(lines(&format!("/// # Safety\n/// AVX2.\npub unsafe trait A {{\n{function}")).is_empty());
        assert!(lines(&format!("macro_rules! functions {{\n{function}")).is_empty());
        assert_eq!(lines(&format!("pub trait A {{\n{function}")), [2]);
        assert!(lines(&format!("// SAFETY: a.\nunsafe impl<T> A for B<T> {{\n{function}")).is_empty());
        assert_eq!(lines(&format!("impl<T> B<T> {{\n{function}")), [2]);
        assert_eq!(lines(&format!("impl<F> B<F> where F: for<'a> Fn(&'a u8) {{\n{function}")), [2]);
    }

    #[test]
    fn extern_blocks_and_functions_are_seen() {
        assert_eq!(lines("unsafe extern \"C\" {\n    fn f();\n}\n"), [1]);
        assert_eq!(lines("pub unsafe extern \"C\" fn f() {}\n"), [1]);
        assert_eq!(lines("pub unsafe extern fn f() {}\nunsafe extern {}\n"), [1, 2]);
        assert!(lines("// SAFETY: the header says so.\nunsafe extern \"C\" {\n    fn f();\n}\n").is_empty());
    }

    #[test]
    fn types_and_attributes_promise_nothing() {
        assert!(lines("type F = unsafe extern \"C\" fn(i32) -> i32;\ntype G = unsafe fn(u8);\n").is_empty());
        assert!(lines("#[unsafe(no_mangle)]\nfn f() {}\n").is_empty());
    }

    #[test]
    fn other_crates_forbid_unsafe_code() {
        let check_root = |path: &str, text: &str| check(&Workspace::of_files(&[(path, text)])).len();
        assert_eq!(check_root("crates/meta/src/lib.rs", "//! A.\n"), 1);
        assert_eq!(check_root("crates/meta/src/lib.rs", "//! A.\n// #![forbid(unsafe_code)]\n"), 1);
        assert_eq!(check_root("crates/meta/src/lib.rs", "//! A.\n#![forbid(unsafe_code)]\n"), 0);
        assert_eq!(check_root("crates/gantry/src/main.rs", "//! A.\n"), 1);
        assert_eq!(check_root("crates/meta/src/shape.rs", "//! A.\n"), 0);
        assert_eq!(check_root("crates/device-cuda/src/lib.rs", "//! A.\n"), 0);
    }
}
