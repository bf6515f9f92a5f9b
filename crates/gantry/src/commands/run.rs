//! `gantry run`: a workflow file, in the API's or the editor's format, run to its end.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use graph::{
    CacheMode, Executor, Literal, Map, NodeProblems, Observer, Prompt, Rejected, RunEnd, RunEvent, RunReport,
    RunRequest,
};
use nodes::studio::Settings;
use serde_json::json;
use workflow::Converted;

use super::{print, print_json, tell};
use crate::cli::RunArgs;
use crate::machine::Machine;
use crate::profile::ModelProfile;
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
    let outputs = match graph::validate(&catalogue, &mut prompt, None) {
        Ok(accepted) => {
            told_problems(accepted.node_errors.iter().map(|(id, it)| (id.as_ref(), it)))
                .iter()
                .for_each(|line| tell(&format!("left out: {line}\n")));
            accepted.outputs
        }
        Err(rejected) => bail!("{}", told_rejection(&args.workflow, &rejected)),
    };
    let extra_pnginfo = workflow.map(|workflow| Literal::Map(graph::map([("workflow", workflow)])));
    let request = RunRequest {
        prompt_id: "run".to_owned(),
        prompt: Arc::new(prompt),
        outputs,
        extra: extra_pnginfo.map(|info| graph::map([("extra_pnginfo", info)])).unwrap_or_default(),
        secrets: Map::new(),
        cancel: Arc::new(AtomicBool::new(false)),
        observer: Arc::new(Told::new()),
    };
    let report = Executor::new(Arc::clone(&catalogue), CacheMode::Classic).run(request);
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

/// One line for each thing that is wrong.
fn told_problems<'a>(problems: impl Iterator<Item = (&'a str, &'a NodeProblems)>) -> Vec<String> {
    problems
        .flat_map(|(id, node)| {
            node.errors.iter().map(move |error| {
                format!("node {id} ({}): {}: {}", node.class_type, error.message, error.details)
            })
        })
        .collect()
}

fn told_rejection(file: &Path, rejected: &Rejected) -> String {
    let mut lines = told_problems(rejected.node_errors.iter().map(|(id, it)| (id.as_ref(), it)));
    if lines.is_empty() {
        lines.push(format!("{} {}", rejected.error.message, rejected.error.details));
    }
    format!("{} cannot run\n{}", file.display(), lines.join("\n"))
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

/// Progress on a terminal: the node that runs, and how far it is.
struct Told {
    shown: bool,
    /// Whether a line is open.
    open: Mutex<bool>,
}

impl Told {
    fn new() -> Told {
        Told { shown: std::io::stderr().is_terminal(), open: Mutex::new(false) }
    }

    fn close(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *open) {
            tell("\n");
        }
    }
}

impl Observer for Told {
    fn event(&self, event: RunEvent) {
        match event {
            RunEvent::Started { identity } if self.shown => {
                self.close();
                tell(&format!("{} ({})", identity.class, identity.display));
                *self.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
            }
            RunEvent::Progress { identity, value, max, .. } if self.shown => {
                tell(&format!("\r{} ({}): {value} of {max}", identity.class, identity.display));
            }
            RunEvent::Finished { .. } if self.shown => self.close(),
            RunEvent::Blocked(failure) => {
                self.close();
                tell(&format!("node {}: {}\n", failure.identity.display, failure.message.trim_end()));
            }
            _ => {}
        }
    }
}
