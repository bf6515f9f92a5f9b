//! What `run`, `draw` and `demo` share: a prompt, run to its end, and told while it runs.

use std::io::IsTerminal;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, bail};
use graph::{
    CacheMode, Catalogue, Executor, Literal, Map, NodeId, NodeProblems, Observer, Prompt, Rejected, RunEvent,
    RunReport, RunRequest,
};

use crate::commands::tell;
use crate::serving;

/// A prompt that is to run.
pub(crate) struct Job {
    /// What it is called when it cannot run.
    pub(crate) name: String,
    pub(crate) prompt: Prompt,
    /// The editor's file that it came from, which saved pictures carry.
    pub(crate) workflow: Option<Literal>,
    pub(crate) progress: Progress,
}

/// Runs a prompt to its end. What is wrong with a part of it is told, and the rest runs; the report says whether a
/// node failed.
pub(crate) fn run(catalogue: &Arc<Catalogue>, job: Job) -> Result<RunReport> {
    serving::tell_warnings();
    let Job { name, mut prompt, workflow, progress } = job;
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
    let progress = Arc::new(progress);
    let request = RunRequest {
        prompt_id: "run".to_owned(),
        prompt: Arc::new(prompt),
        outputs,
        extra: extra_pnginfo.map(|info| graph::map([("extra_pnginfo", info)])).unwrap_or_default(),
        secrets: Map::new(),
        cancel: Arc::new(AtomicBool::new(false)),
        observer: Arc::clone(&progress) as Arc<dyn Observer>,
    };
    let report = Executor::new(Arc::clone(catalogue), CacheMode::Classic).run(request);
    progress.end_line();
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
        lines.push(format!("{} {}", rejected.error.message, rejected.error.details));
    }
    format!("{name} cannot run\n{}", lines.join("\n"))
}

/// Progress, on a terminal only.
pub(crate) struct Progress {
    shown: bool,
    what: Shown,
    start: Instant,
    /// Whether a line is open.
    open: Mutex<bool>,
}

/// What progress shows.
enum Shown {
    /// The node that runs, and how far it is.
    Nodes,
    /// The steps of one node.
    StepsOf(NodeId),
}

impl Progress {
    /// Every node as it runs.
    pub(crate) fn of_nodes() -> Progress {
        Progress::new(Shown::Nodes)
    }

    /// Only the steps of a sampler.
    pub(crate) fn of_steps(sampler: NodeId) -> Progress {
        Progress::new(Shown::StepsOf(sampler))
    }

    fn new(what: Shown) -> Progress {
        let shown = std::io::stderr().is_terminal();
        Progress { shown, what, start: Instant::now(), open: Mutex::new(false) }
    }

    fn set_open(&self, now: bool) -> bool {
        std::mem::replace(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner), now)
    }

    fn end_line(&self) {
        if self.set_open(false) {
            tell("\n");
        }
    }

    fn line(&self, text: &str) {
        self.set_open(true);
        tell(text);
    }
}

impl Observer for Progress {
    fn event(&self, event: RunEvent) {
        if let RunEvent::Blocked(failure) = &event {
            self.end_line();
            tell(&format!("node {}: {}\n", failure.identity.display, failure.message.trim_end()));
        }
        if !self.shown {
            return;
        }
        match (&self.what, event) {
            (Shown::Nodes, RunEvent::Started { identity }) => {
                self.end_line();
                self.line(&format!("{} ({})", identity.class, identity.display));
            }
            (Shown::Nodes, RunEvent::Progress { identity, value, max, .. }) => {
                self.line(&format!("\r{} ({}): {value} of {max}", identity.class, identity.display));
            }
            (Shown::StepsOf(sampler), RunEvent::Progress { identity, value, max, .. })
                if identity.node == *sampler =>
            {
                let seconds = self.start.elapsed().as_secs_f64();
                self.line(&format!("\rstep {value} of {max}, {seconds:.1} s"));
            }
            (_, RunEvent::Finished { .. }) => self.end_line(),
            _ => {}
        }
    }
}
