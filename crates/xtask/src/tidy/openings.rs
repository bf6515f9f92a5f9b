//! Every Rust file opens by saying what it is for.

use crate::findings::Finding;
use crate::workspace::Workspace;

/// Finds Rust files whose first line is not a `//!` sentence.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    workspace
        .rust_files()
        .filter(|(file, _)| !opens_with_sentence(&file.text))
        .map(|(file, _)| {
            Finding::error(
                &file.path,
                1,
                "the file does not say what it is for; open it with a `//!` sentence",
            )
        })
        .collect()
}

fn opens_with_sentence(text: &str) -> bool {
    text.lines().next().and_then(|line| line.strip_prefix("//!")).is_some_and(|rest| !rest.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        check(&Workspace::of_files(&[("crates/meta/src/shape.rs", text)])).len()
    }

    #[test]
    fn the_first_line_is_the_sentence() {
        assert_eq!(count("//! Shapes.\nuse a::b;\n"), 0);
        assert_eq!(count("#![allow(x)]\n//! Shapes.\n"), 1);
        assert_eq!(count("// Shapes.\n"), 1);
        assert_eq!(count("//!\n"), 1);
        assert_eq!(count(""), 1);
    }

    #[test]
    fn only_rust_files_are_looked_at() {
        assert!(check(&Workspace::of_files(&[("README.md", "# Gantry\n")])).is_empty());
    }
}
