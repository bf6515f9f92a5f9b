//! `gantry run`: a workflow file, in the API's or the editor's format, run to its end.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use graph::{Catalogue, Literal, Map, Prompt, RunEnd, RunReport};
use runtime::Settings;
use serde_json::json;
use workflow::Converted;

use super::{note, print, print_json, tell};
use crate::cli::RunArgs;
use crate::machine::Machine;
use crate::profile::ModelProfile;
use crate::running::{self, Job, Progress};
use crate::{environment, profile, serving, workflow_file};

/// What Ctrl-C means for a workflow.
const IF_INTERRUPTED: &str = "what nodes had saved stays, the rest was not made";

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
    let runtime = serving::runtime(machine, folders, args.compute, settings)?;
    let catalogue = Arc::new(nodes::catalogue(&runtime));
    let Converted { mut prompt, workflow, warnings } = {
        let file = workflow_file::read(&args.workflow)?;
        workflow::to_prompt(&file, &catalogue).with_context(|| format!("{}", args.workflow.display()))?
    };
    for warning in &warnings {
        tell(&format!("{warning}\n"));
    }
    for setting in &args.set {
        set(&mut prompt, &catalogue, setting)?;
    }
    if args.convert {
        print_json(&prompt.to_literal())?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = args.workflow.display().to_string();
    let job = Job { name, prompt, workflow, progress: Progress::of_nodes(), if_interrupted: IF_INTERRUPTED };
    let report = running::run(&catalogue, job)?;
    if let Some(path) = &args.profile {
        let profiles = ModelProfile::of_loaded(&runtime.residency);
        profile::write(path, &profiles)?;
        profiles.iter().for_each(|profile| tell(&profile.to_text()));
    }
    finish(&report, &runtime.folders, start, args.report.json)
}

/// Sets an input by `NODE.INPUT=VALUE`; the value is JSON if it can be read as such, else text.
fn set(prompt: &mut Prompt, catalogue: &Catalogue, setting: &str) -> Result<()> {
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
    check_input(prompt, catalogue, (node, input)).with_context(|| format!("--set {setting}"))?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Literal::Text(value.to_owned()));
    if let Some(node) = prompt.nodes.get_mut(node) {
        node.inputs.get_or_insert_with(Map::new).insert(input.to_owned(), value);
    }
    Ok(())
}

/// An input that its node's class does not have would be left out without a word. Inputs that a choice brings are below
/// its name.
fn check_input(prompt: &Prompt, catalogue: &Catalogue, (node, input): (&str, &str)) -> Result<()> {
    let class = prompt.nodes.get(node).and_then(|node| node.class_type.as_deref());
    // A class that is not there is told when the prompt is proved.
    let Some(class) = class.and_then(|class| catalogue.get(class)) else { return Ok(()) };
    let schema = class.schema();
    let is_below =
        |name: &str| input.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    if schema.inputs.iter().any(|known| is_below(&known.name)) {
        return Ok(());
    }
    let names: Vec<&str> = schema.inputs.iter().map(|known| known.name.as_str()).collect();
    bail!("node {node} ({}) has no input \"{input}\"; it has {}", schema.class, names.join(", "))
}

/// Tells what was saved, or what went wrong.
fn finish(report: &RunReport, folders: &runtime::Folders, start: Instant, as_json: bool) -> Result<ExitCode> {
    match &report.end {
        RunEnd::Succeeded => {}
        RunEnd::Failed(failure) => bail!(
            "node {} ({}) failed: {}",
            failure.identity.display,
            failure.identity.class,
            failure.message.trim_end()
        ),
        RunEnd::Interrupted { .. } => return Err(running::Interrupted.into()),
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
    note(&format!("done in {:.1} s\n", start.elapsed().as_secs_f64()));
    Ok(ExitCode::SUCCESS)
}
