//! Paths of the machine somebody worked on have no meaning for anyone else and do not belong in the
//! repository.

use crate::findings::Finding;
use crate::workspace::Workspace;

/// How such paths begin. Each is written in two parts so that this file is not a finding itself.
const BEGINNINGS: &[(&str, &str)] =
    &[("/wo", "rk/"), ("/ro", "ot/"), ("/tmp/", "target"), ("../", "shared/")];

/// Finds text that looks like a path on somebody's machine.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    let beginnings: Vec<String> = BEGINNINGS.iter().map(|(head, tail)| format!("{head}{tail}")).collect();
    let mut findings = Vec::new();
    for file in &workspace.files {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(found) = beginnings.iter().find(|beginning| names_path(line, beginning)) {
                let text = format!(
                    "`{found}` looks like a path on one machine; write a path in the repository, or take it as an argument"
                );
                findings.push(Finding::error(&file.path, index + 1, text));
            }
        }
    }
    findings
}

/// Whether a path that begins so occurs in the line. In the middle of a longer path or address
/// (`https://host/root/`, `$HOME/root/`) it means something else.
fn names_path(line: &str, beginning: &str) -> bool {
    line.match_indices(beginning).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-/}~$*".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        check(&Workspace::of_files(&[("docs/NOTES.md", text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for (head, tail) in BEGINNINGS {
            assert_eq!(lines(&format!("fine\nsee `{head}{tail}x/y`\n")), [2]);
            assert_eq!(lines(&format!("{head}{tail}\n")), [1]);
        }
    }

    #[test]
    fn longer_paths_that_contain_one_are_not() {
        for (head, tail) in BEGINNINGS {
            assert!(
                lines(&format!("https://example.org{head}{tail}x and ${{HOME}}{head}{tail}x\n")).is_empty()
            );
        }
        assert!(lines("the root of the work; /tmp/x; work/root/\n").is_empty());
    }
}
