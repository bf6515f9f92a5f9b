//! Long files and long functions are reported. They do not fail the run: clippy does that for
//! functions, and a file is split when there is a subject to split it by.

use crate::findings::Finding;
use crate::scan::{Scan, Word};
use crate::workspace::Workspace;

/// The most lines a file should have, its tests not counted.
const FILE_LINES: usize = 800;

/// The most lines of code the body of a function should have, counted as clippy counts them.
const FUNCTION_LINES: usize = 70;

/// The lint that a function switches off, with a reason, when it is better left long.
const LINT: &str = "clippy::too_many_lines";

/// Reports files and functions over the limits.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, scan) in workspace.rust_files() {
        let lines = if file.is_test_file() { 0 } else { scan.non_test_line_count() };
        if lines > FILE_LINES {
            let text =
                format!("{lines} lines outside tests, more than {FILE_LINES}; split the file by subject");
            findings.push(Finding::warning(&file.path, 1, text));
        }
        for function in functions(scan).iter().filter(|function| function.lines > FUNCTION_LINES) {
            if !is_expected(scan, function.line) {
                let text = format!(
                    "function `{}` has {} lines, more than {FUNCTION_LINES}; split it, or say why not with `#[expect({LINT}, reason = \"…\")]`",
                    function.name, function.lines
                );
                findings.push(Finding::warning(&file.path, function.line + 1, text));
            }
        }
    }
    findings
}

struct Function {
    name: String,
    /// The line of its `fn`, counted from 0.
    line: usize,
    /// Lines of its body that hold code.
    lines: usize,
}

fn functions(scan: &Scan) -> Vec<Function> {
    scan.words().iter().filter(|word| word.text == "fn").filter_map(|word| function(scan, word)).collect()
}

/// The function that starts at a `fn`; a function pointer type or a declaration has no body.
fn function(scan: &Scan, keyword: &Word) -> Option<Function> {
    let name = scan.next_word(keyword.end)?;
    let open = scan.body_open(name.end)?;
    let body = scan.code_between(open + 1, scan.closing(open));
    let lines = body.lines().filter(|line| !line.trim().is_empty()).count();
    Some(Function { name: name.text, line: scan.line_at(keyword.start), lines })
}

/// Whether an attribute of the function names the lint.
fn is_expected(scan: &Scan, line: usize) -> bool {
    let above = (0..line).rev().map(|above| scan.code_line(above));
    above.take_while(|code| !code.trim_end().ends_with([';', '{', '}'])).any(|code| code.contains(LINT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(source: &str) -> Vec<Finding> {
        check(&Workspace::of_files(&[("crates/meta/src/shape.rs", source)]))
    }

    fn long_function(lines: usize) -> String {
        format!("fn long(\n    a: [u8; 4],\n) {{\n    // Why.\n\n{}}}\n", "    step();\n".repeat(lines))
    }

    #[test]
    fn long_functions_are_reported_and_do_not_fail() {
        assert!(findings(&long_function(FUNCTION_LINES)).is_empty());
        let found = findings(&format!("fn short() {{}}\n{}", long_function(FUNCTION_LINES + 1)));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].severity), (2, crate::findings::Severity::Warning));
        assert!(found[0].text.contains("`long` has 71 lines"), "{}", found[0].text);
    }

    #[test]
    fn an_expected_length_is_accepted_for_its_function_only() {
        let expect = "#[expect(\n    clippy::too_many_lines,\n    reason = \"a table\"\n)]\n/// Doc.\n";
        let long = long_function(FUNCTION_LINES + 1);
        assert!(findings(&format!("{expect}{long}")).is_empty());
        assert_eq!(findings(&format!("{expect}fn short() {{}}\n{long}")).len(), 1);
    }

    #[test]
    fn declarations_and_types_have_no_body() {
        let source =
            format!("trait T {{\n    fn a(&self);\n}}\ntype F = fn(u8);\n{}", "// text\n".repeat(100));
        assert!(findings(&source).is_empty());
    }

    #[test]
    fn long_files_are_reported_without_their_tests() {
        let code = "//! A.\n".repeat(FILE_LINES);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "// test\n".repeat(100));
        assert!(findings(&format!("{code}{tests}")).is_empty());
        assert_eq!(findings(&format!("{code}const A: u8 = 1;\n{tests}")).len(), 1);
    }
}
