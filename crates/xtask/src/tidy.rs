//! `cargo xtask tidy`: the project's rules that a program can hold. Each check is a function from
//! the workspace to findings, in a file named after its subject.

mod dependencies;
mod docs;
mod edges;
mod environment;
mod families;
mod invariants;
mod leaks;
mod manifest;
mod names;
mod openings;
mod sizes;
mod statics;
mod unsafety;
mod whole_files;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::findings::{Finding, Severity};
use crate::workspace::Workspace;

/// Crates that serve the development of the others and are no part of the product.
const TOOL_CRATES: &[&str] = &["testkit", "golden", "xtask"];

/// The crate of the binary.
const BINARY_CRATE: &str = "gantry";

/// All checks.
const CHECKS: &[fn(&Workspace) -> Vec<Finding>] = &[
    edges::check,
    dependencies::check,
    docs::check,
    unsafety::check,
    openings::check,
    environment::check,
    families::check,
    invariants::check,
    statics::check,
    names::check,
    leaks::check,
    whole_files::check,
    sizes::check,
];

/// Runs every check on the workspace of the current folder and prints what they find. The exit
/// code says whether any finding is an error.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode> {
    if let Some(argument) = arguments.first() {
        bail!("`tidy` takes no arguments, but got `{argument}`");
    }
    let workspace = Workspace::load()?;
    let findings = check_all(&workspace);
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    let warnings = findings.len() - errors;
    println!("tidy: {} files, {errors} errors, {warnings} warnings", workspace.files.len());
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_all(workspace: &Workspace) -> Vec<Finding> {
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(|check| check(workspace)).collect();
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_of_all_checks_come_in_order_of_place() {
        let workspace = Workspace::of_files(&[
            ("crates/b/src/lib.rs", "fn undocumented() {}\n"),
            ("crates/a/src/helpers.rs", "//! Words.\n"),
        ]);
        let findings = check_all(&workspace);
        let paths: Vec<&str> = findings.iter().map(|finding| finding.path.as_str()).collect();
        assert!(paths.is_sorted(), "{paths:?}");
        assert!(paths.contains(&"crates/a/src/helpers.rs") && paths.contains(&"crates/b/src/lib.rs"));
    }

    #[test]
    fn tidy_refuses_arguments() {
        assert!(run(&["--fix".to_owned()]).is_err());
    }
}
