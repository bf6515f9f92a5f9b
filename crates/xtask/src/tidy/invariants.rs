//! The invariants that are held by what crates may name: no bytes before the ledger, no weight read back, one crate for
//! file formats, none for models, one for the wire. Each is a table of names and texts with the crates they are for, and
//! the few places that have them for a reason.

mod mark;
mod rules;

use super::TOOL_CRATES;
use crate::findings::Finding;
use crate::scan::Scan;
use crate::workspace::{SourceFile, Workspace};
use rules::{Place, RULES, Rule};

/// Where the table of places stands.
const TABLE: &str = "crates/xtask/src/tidy/invariants/rules.rs";

/// Finds what breaks an invariant, and places that are excused without need.
pub(crate) fn check(workspace: &Workspace) -> Vec<Finding> {
    RULES.iter().flat_map(|rule| check_rule(workspace, rule)).collect()
}

fn check_rule(workspace: &Workspace, rule: &Rule) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut needed = vec![false; rule.places.len()];
    for (file, scan) in workspace.rust_files().filter(|(file, _)| is_held(rule, file)) {
        for (line, what) in broken(rule, scan) {
            let place = rule.places.iter().position(|place| place.covers(&file.path));
            match place {
                Some(place) => needed[place] = true,
                None => findings.push(complaint(rule, file, line, &what)),
            }
        }
    }
    // A workspace that is made of snippets has none of the places.
    let is_whole = workspace.file(TABLE).is_some();
    let idle = rule.places.iter().zip(needed).filter(|(_, needed)| is_whole && !needed);
    findings.extend(idle.map(|(place, _)| idle_place(rule, place)));
    findings
}

/// Whether the rule is for a file: product code of its crates.
fn is_held(rule: &Rule, file: &SourceFile) -> bool {
    let owner = file.crate_name().unwrap_or_default();
    !owner.is_empty() && !TOOL_CRATES.contains(&owner) && !file.is_test_file() && rule.crates.has(owner)
}

/// The lines (counted from 0) outside tests that have one of the marks, and which, in order.
fn broken(rule: &Rule, scan: &Scan) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = rule
        .marks
        .iter()
        .flat_map(|mark| mark.places(scan).into_iter().map(move |at| (at, mark)))
        .map(|(at, mark)| (scan.line_at(at), mark.to_string()))
        .filter(|(line, _)| !scan.is_test_line(*line))
        .collect();
    found.sort();
    found.dedup();
    found
}

fn complaint(rule: &Rule, file: &SourceFile, line: usize, what: &str) -> Finding {
    let text = format!("{what} breaks the invariant \"{}\"; {}", rule.invariant, rule.instead);
    Finding::error(&file.path, line + 1, text)
}

fn idle_place(rule: &Rule, place: &Place) -> Finding {
    let text = format!(
        "{} keeps the invariant \"{}\" now; take it out of the places that are excused (\"{}\")",
        place.path, rule.invariant, place.why
    );
    Finding::error(TABLE, 1, text)
}

#[cfg(test)]
mod tests;
