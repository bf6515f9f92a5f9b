//! `gantry check`: which workflow files can run here, and which node classes are missing.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use graph::Literal;
use nodes::Folders;
use nodes::studio::Settings;
use serde_json::json;
use workflow::Coverage;

use super::{print, print_json};
use crate::cli::CheckArgs;
use crate::machine::Machine;
use crate::serving;
use crate::table::Table;
use crate::workflow_file;

pub(super) fn run(machine: &Machine, args: &CheckArgs) -> Result<ExitCode> {
    let studio = serving::studio(machine, Folders::default(), None, Settings::default())?;
    let catalogue = nodes::catalogue(&studio);
    let mut files = Vec::new();
    for path in &args.paths {
        collect(path, path, &mut files)?;
    }
    let named: Vec<String> = args.paths.iter().map(|path| path.display().to_string()).collect();
    anyhow::ensure!(!files.is_empty(), "there are no workflow files (*.json) in {}", named.join(", "));
    let read = files.into_iter().map(|(name, path)| (name, read(&path)));
    let coverage = workflow::coverage(read, &catalogue);
    if args.output.json {
        print_json(&to_json(&coverage))?;
    } else {
        print(&to_text(&coverage))?;
    }
    let all = coverage.covered() == coverage.total();
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The JSON files at or below a path, with their names below it, in order.
fn collect(root: &Path, path: &Path, files: &mut Vec<(String, PathBuf)>) -> Result<()> {
    if !path.is_dir() {
        let name = path.strip_prefix(root).ok().filter(|name| !name.as_os_str().is_empty()).unwrap_or(path);
        files.push((name.to_string_lossy().replace('\\', "/"), path.to_owned()));
        return Ok(());
    }
    let entries = std::fs::read_dir(path).with_context(|| format!("reading {}", path.display()))?;
    let mut entries: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    entries.sort();
    let wanted = |entry: &PathBuf| entry.is_dir() || entry.extension().is_some_and(|end| end == "json");
    entries.iter().filter(|entry| wanted(entry)).try_for_each(|entry| collect(root, entry, files))
}

fn read(path: &Path) -> Result<Literal, String> {
    // The file's name stands before the reason already.
    workflow_file::read(path).map_err(|error| {
        let told = crate::told(&error);
        told.trim_start_matches("gantry:")
            .trim()
            .trim_start_matches(&format!("{} ", path.display()))
            .to_owned()
    })
}

fn to_text(coverage: &Coverage) -> String {
    let mut table = Table::new(&["family", "covered", "total", "missing classes"]);
    for family in &coverage.families {
        let missing: Vec<String> =
            family.missing.iter().map(|(class, count)| format!("{class} ({count})")).collect();
        let name = if family.family.is_empty() { "-" } else { &family.family };
        table.row(&[name, &family.covered.to_string(), &family.total.to_string(), &missing.join(", ")]);
    }
    let problems = coverage
        .families
        .iter()
        .flat_map(|family| &family.files)
        .filter_map(|file| file.problem.as_ref().map(|problem| format!("{}: {problem}\n", file.path)));
    let problems: String = problems.collect();
    format!(
        "{table}\n{} of {} workflows have all their classes\n{problems}",
        coverage.covered(),
        coverage.total()
    )
}

fn to_json(coverage: &Coverage) -> serde_json::Value {
    let counted = |missing: &[(String, usize)]| -> Vec<_> {
        missing.iter().map(|(class, count)| json!({ "class": class, "count": count })).collect()
    };
    let families: Vec<_> = coverage
        .families
        .iter()
        .map(|family| {
            let files: Vec<_> = family.files.iter().map(|file| {
            json!({ "path": file.path, "missing": counted(&file.missing), "problem": file.problem })
        }).collect();
            json!({
                "family": family.family,
                "covered": family.covered,
                "total": family.total,
                "missing": counted(&family.missing),
                "files": files,
            })
        })
        .collect();
    json!({ "covered": coverage.covered(), "total": coverage.total(), "families": families })
}
