//! The run loop: what is cached is not run again, what is ready runs, what expands is run in its place.

mod cache;
mod calls;
mod crew;
mod gate;
mod key;
mod live;
mod run;
mod runner;
mod schedule;
mod supply;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::catalogue::Catalogue;
use crate::event::{Observer, RunReport};
use crate::literal::Map;
use crate::prompt::Prompt;
use crate::value::NodeId;
use cache::Place;
use live::Classes;
use run::{Lasting, Run};
use runner::Runner;

/// How long outputs of nodes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CacheMode {
    /// Until a prompt comes that does not have them.
    #[default]
    Classic,
    /// The outputs of this many nodes, least recently used first to go.
    Lru(usize),
    /// Not at all.
    None,
}

/// A prompt to run.
pub struct RunRequest {
    /// The job's id.
    pub prompt_id: String,
    /// The prompt, validated.
    pub prompt: Arc<Prompt>,
    /// The output nodes to run.
    pub outputs: Vec<NodeId>,
    /// `extra_data` as it was sent, less its secrets.
    pub extra: Map,
    /// What was set aside: tokens and keys.
    pub secrets: Map,
    /// Set when the job is to end.
    pub cancel: Arc<AtomicBool>,
    /// Who runs it, in the words that its nodes understand; none where there is one only.
    pub worker: Option<Arc<str>>,
    /// Who is told.
    pub observer: Arc<dyn Observer>,
}

/// Runs prompts, one after the other, and keeps outputs between them.
pub struct Executor {
    catalogue: Arc<Catalogue>,
    cache: Place,
    runner: Runner,
}

impl Executor {
    /// An executor with nothing cached.
    #[must_use]
    pub fn new(catalogue: Arc<Catalogue>, mode: CacheMode) -> Executor {
        Executor { catalogue, cache: Place::new(mode), runner: Runner::default() }
    }

    /// Another executor that runs prompts at the same time. What either keeps, both have, and what a prompt that runs has
    /// stays.
    #[must_use]
    pub fn beside(&self) -> Executor {
        let catalogue = Arc::clone(&self.catalogue);
        Executor { catalogue, cache: self.cache.beside(), runner: Runner::default() }
    }

    /// Runs a prompt to its end.
    pub fn run(&mut self, mut request: RunRequest) -> RunReport {
        let outputs = std::mem::take(&mut request.outputs);
        let classes = Classes::new(Arc::clone(&self.catalogue));
        let lasting = Lasting { cache: &self.cache, runner: &mut self.runner };
        Run::new(request, classes, lasting).finish(&outputs)
    }

    /// Forgets all outputs, those of executors beside it, too.
    pub fn reset(&mut self) {
        self.cache.clear();
    }

    /// Begins anew after a run that did not come to its end: with another thread, and with nothing kept.
    pub fn restart(&mut self) {
        self.cache.end();
        self.cache.clear();
        self.runner = Runner::default();
    }
}
