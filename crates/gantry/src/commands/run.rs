//! `gantry run`: a workflow file, in the API's or the editor's format, run to its end.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use graph::{Literal, Map, Prompt, RunEnd, RunReport};
use nodes::studio::Settings;
use serde_json::json;
use workflow::Converted;

use super::{print, print_json, tell};
use crate::cli::RunArgs;
use crate::machine::Machine;
use crate::profile::ModelProfile;
use crate::running::{self, Job, Progress};
use crate::{environment, profile, serving, workflow_file};

pub(super) fn run(machine: &Machine, args: &RunArgs) -> Result<ExitCode> {
    let start = Instant::now();
    let mut folders = args.folders.clone();
    if let Some(output) = &args.output {
        folders.output_directory = Some(output.clone());
    }
    let folders = serving::folders(&folders)?;
    let settings = Settings {
        no_metadata: args.disable_metadata,
        profile_file: environment::profile_file(),
        ..Settings::default()
    };
    let studio = serving::studio(machine, folders, args.compute, settings)?;
    let catalogue = Arc::new(nodes::catalogue(&studio));
    let Converted { mut prompt, workflow, warnings } = {
        let file = workflow_file::read(&args.workflow)?;
        workflow::to_prompt(&file, &catalogue).with_context(|| format!("{}", args.workflow.display()))?
    };
    for warning in &warnings {
        tell(&format!("{warning}\n"));
    }
    for setting in &args.set {
        set(&mut prompt, setting)?;
    }
    if args.convert {
        print_json(&prompt.to_literal())?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = args.workflow.display().to_string();
    let report = running::run(&catalogue, Job { name, prompt, workflow, progress: Progress::of_nodes() })?;
    if let Some(path) = &args.profile {
        let profiles = ModelProfile::of_loaded(&studio.residency);
        profile::write(path, &profiles)?;
        profiles.iter().for_each(|profile| tell(&profile.to_text()));
    }
    finish(&report, &studio.folders, start, args.report.json)
}

/// Sets an input by `NODE.INPUT=VALUE`; the value is JSON if it can be read as such, else text.
fn set(prompt: &mut Prompt, setting: &str) -> Result<()> {
    let Some((place, value)) = setting.split_once('=') else {
        bail!("--set {setting}: write NODE.INPUT=VALUE, such as 3.seed=7");
    };
    // An input may have dots, and so may a node's id: the longest id that is there counts.
    let splits =
        place.char_indices().filter(|(_, c)| *c == '.').map(|(at, _)| (&place[..at], &place[at + 1..]));
    let known: Vec<_> = splits.filter(|(node, _)| prompt.nodes.contains_key(*node)).collect();
    let Some((node, input)) = known.last().copied() else {
        let ids: Vec<&str> = prompt.nodes.keys().map(AsRef::as_ref).collect();
        bail!("--set {setting}: there is no such node; there are {}", ids.join(", "));
    };
    let value = serde_json::from_str(value).unwrap_or_else(|_| Literal::Text(value.to_owned()));
    if let Some(node) = prompt.nodes.get_mut(node) {
        node.inputs.get_or_insert_with(Map::new).insert(input.to_owned(), value);
    }
    Ok(())
}

/// Tells what was saved, or what went wrong.
fn finish(report: &RunReport, folders: &nodes::Folders, start: Instant, as_json: bool) -> Result<ExitCode> {
    match &report.end {
        RunEnd::Succeeded => {}
        RunEnd::Failed(failure) => bail!(
            "node {} ({}) failed: {}",
            failure.identity.display,
            failure.identity.class,
            failure.message.trim_end()
        ),
        RunEnd::Interrupted { .. } => bail!("interrupted"),
    }
    if as_json {
        let outputs: serde_json::Map<_, _> = report
            .outputs
            .iter()
            .map(|(node, ui)| Ok((node.to_string(), serde_json::to_value(ui)?)))
            .collect::<Result<_>>()?;
        print_json(&json!({ "seconds": start.elapsed().as_secs_f64(), "outputs": outputs }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for file in report.outputs.values().flat_map(Map::values).filter_map(Literal::as_list).flatten() {
        let text = |key: &str| file.get(key).and_then(Literal::as_text);
        if let (Some(name), Some("output")) = (text("filename"), text("type")) {
            let path = folders.output.join(text("subfolder").unwrap_or_default()).join(name);
            print(&format!("{}\n", path.display()))?;
        }
    }
    tell(&format!("done in {:.1} s\n", start.elapsed().as_secs_f64()));
    Ok(ExitCode::SUCCESS)
}
