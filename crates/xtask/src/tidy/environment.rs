//! Only the binary reads the environment and the command line; every other crate is told what it
//! needs.

use super::{BINARY_CRATE, TOOL_CRATES};
use crate::findings::Finding;
use crate::scan::Scan;
use crate::workspace::{SourceFile, Workspace};

/// The functions of `std::env` that read or change what the process was started with.
const FUNCTIONS: &[&str] =
    &["var", "vars", "var_os", "vars_os", "set_var", "remove_var", "args", "args_os", "home_dir", "temp_dir"];

/// Finds uses of the environment outside the binary, the tools, build scripts and tests.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    workspace
        .rust_files()
        .filter(|(file, _)| !may_read(file))
        .flat_map(|(file, scan)| {
            uses(scan).into_iter().map(move |(line, function)| complaint(file, line, &function))
        })
        .collect()
}

fn may_read(file: &SourceFile) -> bool {
    let owner = file.crate_name().unwrap_or_default();
    owner == BINARY_CRATE
        || TOOL_CRATES.contains(&owner)
        || file.is_test_file()
        || file.path.ends_with("/build.rs")
}

fn complaint(file: &SourceFile, line: usize, function: &str) -> Finding {
    let text = format!("`env::{function}` outside the binary; take the value as configuration instead");
    Finding::error(&file.path, line + 1, text)
}

/// The lines (counted from 0) outside test items that name a function of `env`, called or imported.
fn uses(scan: &Scan) -> Vec<(usize, String)> {
    let mut uses = Vec::new();
    for word in scan.words().iter().filter(|word| word.text == "env") {
        let Some(path) = after_colons(scan, word.end) else { continue };
        let end = match scan.next_code(path) {
            Some((open, '{')) => scan.closing(open),
            _ => scan.next_word(path).map_or(path, |function| function.end),
        };
        let line = scan.line_at(word.start);
        if scan.is_test_line(line) {
            continue;
        }
        let named = scan.code_between(path, end);
        let function =
            named.split(|c: char| c != '_' && !c.is_alphanumeric()).find(|name| FUNCTIONS.contains(name));
        uses.extend(function.map(|function| (line, function.to_owned())));
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
    fn libraries_do_not_read_the_environment() {
        let library = "crates/device-cuda/src/load.rs";
        assert_eq!(lines(library, "let a = std::env::var(\"CUDA_PATH\");\n"), [1]);
        assert_eq!(lines(library, "use std::env;\nlet a = env::var_os(\"A\");\n"), [2]);
        assert_eq!(lines(library, "use std::env::var;\n"), [1]);
        assert_eq!(lines(library, "use std::env::{consts, temp_dir};\n"), [1]);
    }

    #[test]
    fn other_words_are_left_alone() {
        let library = "crates/device-cuda/src/load.rs";
        assert!(lines(library, "use std::env::consts::DLL_PREFIX;\n").is_empty());
        assert!(lines(library, "let a = env!(\"CARGO_PKG_VERSION\"); // env::var\n").is_empty());
        assert!(lines(library, "let text = \"env::var\"; let env: Variant = x;\n").is_empty());
        assert!(lines(library, "env::variant();\n").is_empty());
    }

    #[test]
    fn the_binary_tools_and_tests_may() {
        let source = "let a = std::env::var(\"A\");\n";
        assert!(lines("crates/gantry/src/main.rs", source).is_empty());
        assert!(lines("crates/testkit/src/scratch.rs", source).is_empty());
        assert!(lines("crates/device-cuda/tests/compile_kernels.rs", source).is_empty());
        assert!(
            lines("crates/device/src/a.rs", &format!("#[cfg(test)]\nmod tests {{\n{source}}}\n")).is_empty()
        );
    }
}
