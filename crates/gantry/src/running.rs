//! What `run`, `draw` and `demo` share: a prompt, run to its end, and told while it runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Result, bail};
use graph::{
    CacheMode, Catalogue, Executor, Literal, Map, NodeId, NodeProblems, Observer, Prompt, Rejected, RunEvent,
    RunReport, RunRequest,
};

use crate::bars::{Bars, NodeBar};
use crate::commands::{note, tell};
use crate::serving;

/// The exit status of a program that Ctrl-C ended, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;
/// How long nodes have to stop when Ctrl-C came.
const GRACE: Duration = Duration::from_millis(1500);

/// Ctrl-C came, and what it means was told.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Ends the process soon after Ctrl-C, with a word on what becomes of the work.
pub(crate) fn on_interrupt(means: &'static str, cancel: impl FnOnce() + Send + 'static) {
    server::when_asked_to_stop(move || {
        cancel();
        note(&format!("\ninterrupted: {means}\n"));
        std::thread::sleep(GRACE);
        std::process::exit(i32::from(INTERRUPTED));
    });
}

/// A prompt that is to run.
pub(crate) struct Job {
    /// What it is called when it cannot run.
    pub(crate) name: String,
    pub(crate) prompt: Prompt,
    /// The editor's file that it came from, which saved pictures carry.
    pub(crate) workflow: Option<Literal>,
    pub(crate) progress: Progress,
    /// What it means for the work when Ctrl-C ends it.
    pub(crate) if_interrupted: &'static str,
}

/// Runs a prompt to its end. What is wrong with a part of it is told, and the rest runs; the report says whether a
/// node failed.
pub(crate) fn run(catalogue: &Arc<Catalogue>, job: Job) -> Result<RunReport> {
    serving::tell_warnings();
    let Job { name, mut prompt, workflow, progress, if_interrupted } = job;
    let outputs = match graph::validate(catalogue, &mut prompt, None) {
        Ok(accepted) => {
            told_problems(accepted.node_errors.iter().map(|(id, it)| (id.as_ref(), it)))
                .iter()
                .for_each(|line| tell(&format!("left out: {line}\n")));
            accepted.outputs
        }
        Err(rejected) => bail!("{}", told_rejection(&name, &rejected)),
    };
    let extra_pnginfo = workflow.map(|workflow| Literal::Map(graph::map([("workflow", workflow)])));
    progress.name_nodes(catalogue, &prompt);
    let progress = Arc::new(progress);
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancel);
    on_interrupt(if_interrupted, move || flag.store(true, Ordering::SeqCst));
    let request = RunRequest {
        prompt_id: "run".to_owned(),
        prompt: Arc::new(prompt),
        outputs,
        extra: extra_pnginfo.map(|info| graph::map([("extra_pnginfo", info)])).unwrap_or_default(),
        secrets: Map::new(),
        cancel,
        worker: None,
        observer: Arc::clone(&progress) as Arc<dyn Observer>,
    };
    let report = Executor::new(Arc::clone(catalogue), CacheMode::Classic).run(request);
    progress.bar().end();
    Ok(report)
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

fn told_rejection(name: &str, rejected: &Rejected) -> String {
    let mut lines = told_problems(rejected.node_errors.iter().map(|(id, it)| (id.as_ref(), it)));
    if lines.is_empty() {
        let (message, details) = (&rejected.error.message, rejected.error.details.trim());
        lines.push(if details.is_empty() { message.clone() } else { format!("{message} ({details})") });
    }
    format!("{name} cannot run\n{}", lines.join("\n"))
}

/// How far a prompt is, on a terminal only.
pub(crate) struct Progress {
    what: Shown,
    bar: OnceLock<NodeBar>,
}

/// What progress shows.
enum Shown {
    /// Every node that says how far it is.
    Nodes,
    /// The steps of one node.
    StepsOf(NodeId),
}

impl Progress {
    /// Every node as it runs.
    pub(crate) fn of_nodes() -> Progress {
        Progress { what: Shown::Nodes, bar: OnceLock::new() }
    }

    /// Only the steps of a sampler.
    pub(crate) fn of_steps(sampler: NodeId) -> Progress {
        Progress { what: Shown::StepsOf(sampler), bar: OnceLock::new() }
    }

    /// Nodes are called what a prompt calls them.
    fn name_nodes(&self, catalogue: &Catalogue, prompt: &Prompt) {
        self.bar.get_or_init(|| NodeBar::new(Bars::default(), catalogue, Some(prompt)));
    }

    fn bar(&self) -> &NodeBar {
        self.bar.get_or_init(|| NodeBar::new(Bars::default(), &Catalogue::default(), None))
    }
}

impl Observer for Progress {
    fn event(&self, event: RunEvent) {
        match event {
            RunEvent::Blocked(failure) => {
                let text = format!("node {}: {}\n", failure.identity.display, failure.message.trim_end());
                self.bar().between(|| tell(&text));
            }
            RunEvent::Progress { identity, value, max, .. } => {
                if matches!(&self.what, Shown::StepsOf(sampler) if identity.node != *sampler) {
                    return;
                }
                self.bar().at(&identity, value, max);
            }
            RunEvent::Finished { .. } => self.bar().end(),
            _ => {}
        }
    }
}
