//! `gantry check`: which workflow files can run here, and which node classes are missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use graph::{Catalogue, ErrorDetail, Literal, Map};
use runtime::Settings;
use serde_json::json;
use workflow::{Converted, Coverage, FileCoverage};

use super::{print, print_json};
use crate::cli::CheckArgs;
use crate::machine::Machine;
use crate::serving;
use crate::table::Table;
use crate::workflow_file;

/// How the names of model files end.
const MODEL_ENDINGS: [&str; 6] = [".safetensors", ".gguf", ".ckpt", ".pth", ".pt", ".bin"];

pub(super) fn run(machine: &Machine, args: &CheckArgs) -> Result<ExitCode> {
    let folders = serving::folders(&args.folders)?;
    let runtime = serving::runtime(machine, folders, None, Settings::default())?;
    let catalogue = nodes::catalogue(&runtime);
    let mut files = Vec::new();
    for path in &args.paths {
        collect(path, path, &mut files)?;
    }
    let named: Vec<String> = args.paths.iter().map(|path| path.display().to_string()).collect();
    anyhow::ensure!(!files.is_empty(), "there are no workflow files (*.json) in {}", named.join(", "));
    let read: Vec<_> = files.into_iter().map(|(name, path)| (name, read(&path))).collect();
    let lacking: Lacking = read
        .iter()
        .filter_map(|(name, file)| Some((name.clone(), missing_files(file.as_ref().ok()?, &catalogue))))
        .filter(|(_, missing)| !missing.is_empty())
        .collect();
    let coverage = workflow::coverage(read, &catalogue);
    if args.output.json {
        print_json(&to_json(&coverage, &lacking))?;
    } else {
        print(&to_text(&coverage, &lacking))?;
    }
    let all = coverage.covered() == coverage.total();
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What workflows name and is not there, by the workflows' names.
type Lacking = BTreeMap<String, Vec<String>>;

/// The model files that a workflow names and that are not here: choices that its loaders do not offer.
fn missing_files(file: &Literal, catalogue: &Catalogue) -> Vec<String> {
    let Ok(Converted { mut prompt, .. }) = workflow::to_prompt(file, catalogue) else { return Vec::new() };
    let named = prompt.nodes.values().filter_map(|node| node.inputs.as_ref()).flat_map(Map::values);
    let is_file =
        |text: &&str| MODEL_ENDINGS.iter().any(|ending| text.to_ascii_lowercase().ends_with(ending));
    let named: Vec<String> = named.filter_map(Literal::as_text).filter(is_file).map(str::to_owned).collect();
    let problems = match graph::validate(catalogue, &mut prompt, None) {
        Ok(accepted) => accepted.node_errors,
        Err(rejected) => rejected.node_errors,
    };
    let refused: Vec<&ErrorDetail> = problems.values().flat_map(|node| &node.errors).collect();
    let is_refused = |name: &String| {
        refused.iter().any(|error| error.kind == "value_not_in_list" && error.details.contains(name.as_str()))
    };
    let mut missing: Vec<String> = named.into_iter().filter(is_refused).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
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

fn to_text(coverage: &Coverage, lacking: &Lacking) -> String {
    let mut table = Table::new(&["family", "covered", "total", "missing classes"]);
    for family in &coverage.families {
        let missing: Vec<String> =
            family.missing.iter().map(|(class, count)| format!("{class} ({count})")).collect();
        let name = if family.family.is_empty() { "-" } else { &family.family };
        table.row(&[name, &family.covered.to_string(), &family.total.to_string(), &missing.join(", ")]);
    }
    let files = coverage.families.iter().flat_map(|family| &family.files);
    let (covered, others): (Vec<_>, Vec<_>) = files.partition(|file| file.is_covered());
    let covered: String = covered.iter().map(|file| format!("\n  {}", file.path)).collect();
    let others: String = others.iter().map(|file| format!("\n  {}: {}", file.path, why_not(file))).collect();
    let mut text =
        format!("{table}\n{} of {} workflows have all their classes", coverage.covered(), coverage.total());
    let lacking: String =
        lacking.iter().map(|(name, files)| format!("\n  {name}: {}", files.join(", "))).collect();
    let lists = [
        ("\n\nhave all their classes:", covered),
        ("\n\ndo not:", others),
        (
            "\n\nname model files that are not here (--comfy-dir says where to look, `gantry pull` gets some):",
            lacking,
        ),
    ];
    for (title, list) in lists {
        if !list.is_empty() {
            text = text + title + &list;
        }
    }
    text + "\n"
}

/// Why a workflow does not run here.
fn why_not(file: &FileCoverage) -> String {
    let missing = || file.missing.iter().map(|(class, _)| class.as_str()).collect::<Vec<_>>().join(", ");
    file.problem.clone().unwrap_or_else(|| format!("no {}", missing()))
}

fn to_json(coverage: &Coverage, lacking: &Lacking) -> serde_json::Value {
    let counted = |missing: &[(String, usize)]| -> Vec<_> {
        missing.iter().map(|(class, count)| json!({ "class": class, "count": count })).collect()
    };
    let families: Vec<_> = coverage
        .families
        .iter()
        .map(|family| {
            let files: Vec<_> = family
                .files
                .iter()
                .map(|file| {
                    json!({ "path": file.path, "missing": counted(&file.missing), "problem": file.problem,
                "missing_files": lacking.get(&file.path).cloned().unwrap_or_default() })
                })
                .collect();
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
