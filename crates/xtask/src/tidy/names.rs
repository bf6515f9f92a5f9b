//! Files and modules are named after their subject. A name such as `utils` says nothing about what
//! belongs inside, so everything ends up there.

use crate::findings::Finding;
use crate::scan::Scan;
use crate::workspace::Workspace;

/// Names that a file, folder or module must not have.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "misc"];

/// Words that must not be part of a longer name either: `string_utils` says no more than `utils`.
const EMPTY_WORDS: &[&str] = &["util", "utils", "helper", "helpers"];

/// Finds files, folders and modules whose name says nothing.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in &workspace.paths {
        let name = path.rsplit('/').next().unwrap_or(path);
        let stem = name.split('.').next().unwrap_or(name);
        if says_nothing(stem) {
            findings.push(Finding::error(
                path,
                1,
                format!("`{name}` says nothing about its subject; rename it"),
            ));
        }
    }
    for (file, scan) in workspace.rust_files() {
        for (line, name) in inline_modules(scan).into_iter().filter(|(_, name)| says_nothing(name)) {
            let text = format!("module `{name}` says nothing about its subject; rename it");
            findings.push(Finding::error(&file.path, line + 1, text));
        }
    }
    findings
}

fn says_nothing(name: &str) -> bool {
    let name = name.to_lowercase();
    EMPTY_NAMES.contains(&name.as_str()) || name.split(['_', '-']).any(|word| EMPTY_WORDS.contains(&word))
}

/// Modules with their body in the file; those in files of their own are seen by their path.
fn inline_modules(scan: &Scan) -> Vec<(usize, String)> {
    let keywords = scan.words().into_iter().filter(|word| word.text == "mod");
    keywords
        .filter_map(|keyword| scan.next_word(keyword.end))
        .filter(|name| matches!(scan.next_code(name.end), Some((_, '{'))))
        .map(|name| (scan.line_at(name.start), name.text))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Workspace::of_files(&[(path, text)])).len()
    }

    #[test]
    fn empty_names_are_found_in_paths() {
        assert_eq!(count("crates/meta/src/utils.rs", ""), 1);
        assert_eq!(count("crates/meta/src/string_utils.rs", ""), 1);
        assert_eq!(count("crates/meta/tests/common/mod.rs", ""), 1);
        assert_eq!(count("scripts/Helpers.py", ""), 1);
    }

    #[test]
    fn empty_names_are_found_in_modules() {
        assert_eq!(count("crates/meta/src/lib.rs", "mod helpers {\n}\n"), 1);
        assert_eq!(count("crates/meta/src/lib.rs", "mod shape {\n}\n// mod utils {}\n"), 0);
    }

    #[test]
    fn names_with_a_subject_are_fine() {
        assert_eq!(count("crates/meta/src/common_prefix.rs", ""), 0);
        assert_eq!(count("crates/meta/src/utility.rs", ""), 0);
        assert_eq!(count("crates/meta/src/shape.rs", ""), 0);
    }
}
