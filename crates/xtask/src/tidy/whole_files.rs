//! A file appears under its name only when it is whole: what is written goes through the crate `disk`.

use crate::findings::Finding;
use crate::scan::Scan;
use crate::workspace::{SourceFile, Workspace};

/// The crate that writes files for all others.
const WRITER: &str = "disk";

/// Functions that put a file under its name before it has its bytes: the type or module, and its function.
const DIRECT: &[(&str, &str)] =
    &[("fs", "write"), ("fs", "copy"), ("File", "create"), ("File", "create_new")];

/// Finds files that are written directly, outside of tests.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    workspace
        .rust_files()
        .filter(|(file, _)| !may_write(file))
        .flat_map(|(file, scan)| uses(scan).into_iter().map(move |found| complaint(file, &found)))
        .collect()
}

fn may_write(file: &SourceFile) -> bool {
    file.crate_name() == Some(WRITER) || file.is_test_file() || file.path.ends_with("/build.rs")
}

/// A line (counted from 0) and the function that it names.
type Use = (usize, String);

fn complaint(file: &SourceFile, (line, function): &Use) -> Finding {
    let text = format!(
        "`{function}` puts a file under its name before it is whole; use `disk::write` or a `disk::Draft`"
    );
    Finding::error(&file.path, line + 1, text)
}

fn uses(scan: &Scan) -> Vec<Use> {
    let mut uses = Vec::new();
    for word in scan.words() {
        let Some(path) = after_colons(scan, word.end) else { continue };
        let line = scan.line_at(word.start);
        for (owner, function) in DIRECT.iter().filter(|(owner, _)| word.text == *owner) {
            let end = match scan.next_code(path) {
                Some((open, '{')) => scan.closing(open),
                _ => scan.next_word(path).map_or(path, |function| function.end),
            };
            let named = scan.code_between(path, end);
            let mut names = named.split(|c: char| c != '_' && !c.is_alphanumeric());
            if names.any(|name| name == *function) && !scan.is_test_line(line) {
                uses.push((line, format!("{owner}::{function}")));
            }
        }
    }
    uses
}

/// The offset after the `::` that follows `offset`.
fn after_colons(scan: &Scan, offset: usize) -> Option<usize> {
    let (first, _) = scan.next_code(offset).filter(|(_, c)| *c == ':')?;
    let (second, _) = scan.next_code(first + 1).filter(|(at, c)| *c == ':' && *at == first + 1)?;
    Some(second + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Workspace::of_files(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn files_are_not_written_under_their_names() {
        let library = "crates/nodes/src/saving.rs";
        assert_eq!(lines(library, "fs::write(path, bytes)?;\n"), [1]);
        assert_eq!(lines(library, "use std::fs;\nlet a = std::fs::File::create(path)?;\n"), [2]);
        assert_eq!(lines(library, "let a = File::create_new(path)?;\n"), [1]);
        assert_eq!(lines(library, "use std::fs::{read, write};\n"), [1]);
    }

    #[test]
    fn reading_logs_and_tests_are_left_alone() {
        let library = "crates/gantry/src/a.rs";
        assert!(lines(library, "fs::read(path)?; // fs::write\nFile::open(path)?;\n").is_empty());
        assert!(lines(library, "File::options().append(true).open(path)?;\nfs::write_all();\n").is_empty());
        assert!(lines(library, "disk::write(path, b\"fs::write\")?;\n").is_empty());
        assert!(lines(library, "#[cfg(test)]\nmod tests {\nfs::write(a, b);\n}\n").is_empty());
        assert!(lines("crates/gantry/tests/a.rs", "fs::write(a, b);\n").is_empty());
        assert!(lines("crates/disk/src/lib.rs", "File::create(a);\n").is_empty());
    }
}
