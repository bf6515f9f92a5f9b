//! One run of a prompt: a node is taken, run or found in the cache, and what waited for it becomes ready.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indexmap::{IndexMap, IndexSet};

use crate::class::{Failure, JobContext, Outcome, Outputs};
use crate::event::{Identity, NodeFailure, Observer, RunEnd, RunEvent, RunReport};
use crate::executor::RunRequest;
use crate::executor::cache::{Entry, Place};
use crate::executor::calls::{Gathered, Planned, links_of, merge_outputs, merge_ui};
use crate::executor::crew::{Crew, CrewCall, Returned};
use crate::executor::gate::Gate;
use crate::executor::live::{Classes, LiveGraph, LiveNode};
use crate::executor::runner::Runner;
use crate::executor::schedule::Schedule;
use crate::executor::supply::Supply;
use crate::guard::guarded;
use crate::literal::Map;
use crate::value::{Link, NodeId, Value};

/// A prompt that runs.
pub(super) struct Run<'a> {
    pub(super) cache: &'a Place,
    runner: &'a mut Runner,
    pub(super) graph: Arc<LiveGraph>,
    pub(super) job: Arc<JobContext>,
    pub(super) schedule: Schedule,
    pub(super) supply: Supply,
    gate: Arc<Gate>,
    classes: Classes,
    crew: Crew,
    /// What nodes gave whose expansions have not ended.
    expanding: HashMap<usize, Expanding>,
    /// The lazy inputs that nodes asked for.
    asked: HashMap<usize, HashSet<String>>,
    outputs: IndexMap<NodeId, Map>,
    identities: IndexMap<NodeId, Arc<Identity>>,
    executed: IndexSet<NodeId>,
}

struct Expanding {
    calls: Vec<Outputs>,
    ui: Option<Map>,
}

/// What outlasts a run.
pub(super) struct Lasting<'a> {
    pub(super) cache: &'a Place,
    pub(super) runner: &'a mut Runner,
}

/// Why a run ends before its time.
pub(super) enum Stop {
    Failed(Box<NodeFailure>),
    Interrupted(Arc<Identity>),
}

impl<'a> Run<'a> {
    pub(super) fn new(request: RunRequest, mut classes: Classes, lasting: Lasting<'a>) -> Run<'a> {
        let Lasting { cache, runner } = lasting;
        let graph = Arc::new(LiveGraph::of(&request.prompt, &mut classes));
        let gate = Arc::new(Gate::new(request.observer));
        let job = Arc::new(JobContext {
            prompt_id: request.prompt_id,
            prompt: request.prompt,
            extra: request.extra,
            secrets: request.secrets,
            cancel: request.cancel,
            worker: request.worker,
            ended: AtomicBool::new(false),
            observer: Arc::clone(&gate) as Arc<dyn Observer>,
            graph: Arc::clone(&graph) as _,
        });
        Run {
            cache,
            runner,
            graph,
            job,
            schedule: Schedule::default(),
            supply: Supply::default(),
            gate,
            classes,
            crew: Crew::default(),
            expanding: HashMap::new(),
            asked: HashMap::new(),
            outputs: IndexMap::new(),
            identities: IndexMap::new(),
            executed: IndexSet::new(),
        }
    }

    /// Runs these outputs and what they need.
    pub(super) fn finish(mut self, outputs: &[NodeId]) -> RunReport {
        let end = match self.run_all(outputs) {
            Ok(()) => RunEnd::Succeeded,
            Err(Stop::Failed(failure)) => RunEnd::Failed(*failure),
            Err(Stop::Interrupted(identity)) => {
                RunEnd::Interrupted { identity, executed: self.executed.iter().cloned().collect() }
            }
        };
        // Threads may still run; they stop at their next check, and nobody hears of them.
        self.job.ended.store(true, Ordering::Relaxed);
        self.gate.shut();
        self.cache.end();
        RunReport { end, outputs: self.outputs, identities: self.identities }
    }

    fn run_all(&mut self, outputs: &[NodeId]) -> Result<(), Stop> {
        self.begin();
        for output in outputs {
            if let Some(place) = self.graph.place(output) {
                self.add(place)?;
            }
        }
        while !self.schedule.is_empty() {
            if let Some(returned) = self.crew.returned() {
                self.welcome(returned)?;
            } else if let Some(place) = self.schedule.take() {
                self.step(place)?;
            } else if let Some(identity) = self.crew.someone().cloned() {
                let Some(returned) = self.crew.wait(&self.job.cancel) else {
                    return Err(Stop::Interrupted(identity));
                };
                self.welcome(returned)?;
            } else {
                return Err(self.cycle());
            }
        }
        Ok(())
    }

    /// Gives all nodes their keys, drops what is kept in vain, and tells what is known.
    fn begin(&mut self) {
        self.make_keys(0..self.graph.len());
        self.cache.begin(&self.job.prompt, self.supply.keys());
        let cached = (0..self.graph.len()).filter(|&place| self.kept(place).is_some());
        let nodes = cached.map(|place| Arc::clone(&self.graph.at(place).identity.node)).collect();
        self.tell(RunEvent::Cached { nodes });
    }

    pub(super) fn tell(&self, event: RunEvent) {
        self.gate.event(event);
    }

    fn step(&mut self, place: usize) -> Result<(), Stop> {
        let node = self.graph.at(place);
        if let Some(expanding) = self.expanding.remove(&place) {
            self.resolve(place, &node, expanding);
            return Ok(());
        }
        if let Some(entry) = self.kept(place) {
            self.reuse(place, &node, entry);
            return Ok(());
        }
        let identity = Arc::clone(&node.identity);
        self.tell(RunEvent::Started { identity });
        let gathered = self.gather(&node, self.asked.get(&place));
        let result = match self.ask(place, &node, &gathered) {
            Ok(true) => {
                self.schedule.put_back(place);
                return Ok(());
            }
            Ok(false) if node.info.class.is_concurrent() => return self.send_away(place, &node, gathered),
            Ok(false) => self.call(&node, &gathered),
            Err(failure) => Err(failure),
        };
        self.conclude(place, &node, &gathered, result)
    }

    /// Uses what is known already.
    fn reuse(&mut self, place: usize, node: &LiveNode, entry: Arc<Entry>) {
        if let Some(ui) = &entry.ui {
            self.show(&node.identity, ui);
        }
        self.tell(RunEvent::Executed { identity: Arc::clone(&node.identity), ui: entry.ui.clone() });
        self.tell(RunEvent::Finished { identity: Arc::clone(&node.identity) });
        self.complete(place, entry);
    }

    fn show(&mut self, identity: &Arc<Identity>, ui: &Map) {
        self.outputs.insert(Arc::clone(&identity.node), ui.clone());
        self.identities.insert(Arc::clone(&identity.node), Arc::clone(identity));
    }

    /// Lets a node say which lazy inputs it needs. Whether it must wait for some.
    fn ask(&mut self, place: usize, node: &LiveNode, gathered: &Gathered) -> Result<bool, Failure> {
        if !node.info.is_lazy() || gathered.unknown.is_empty() {
            return Ok(false);
        }
        let mut wanted: IndexSet<String> = IndexSet::new();
        for planned in gathered.calls(&node.identity, &self.job, node.info.schema.takes_lists) {
            if let Planned::Call(call) = planned {
                call.check()?;
                wanted.extend(guarded(|| node.info.class.needs(&call))?);
            }
        }
        let mut must_wait = false;
        for name in wanted {
            let is_given = gathered.values.contains_key(&name) || gathered.raw_links.contains_key(&name);
            if is_given || !self.asked.entry(place).or_default().insert(name.clone()) {
                continue;
            }
            self.link_strongly(place, node, &name)?;
            must_wait = true;
        }
        Ok(must_wait)
    }

    fn call(&mut self, node: &LiveNode, gathered: &Gathered) -> Result<Vec<Outcome>, Failure> {
        let mut outcomes = Vec::new();
        for planned in gathered.calls(&node.identity, &self.job, node.info.schema.takes_lists) {
            match planned {
                Planned::Call(call) => {
                    call.check()?;
                    outcomes.push(self.runner.run(&node.info.class, call)?);
                }
                Planned::Blocked(message) => outcomes.push(self.blocked(node, message)),
            }
        }
        Ok(outcomes)
    }

    fn send_away(&mut self, place: usize, node: &LiveNode, gathered: Gathered) -> Result<(), Stop> {
        let planned = gathered.calls(&node.identity, &self.job, node.info.schema.takes_lists);
        let calls: Vec<CrewCall> = planned
            .map(|planned| match planned {
                Planned::Call(call) => CrewCall::Make(call),
                Planned::Blocked(message) => CrewCall::Done(self.blocked(node, message)),
            })
            .collect();
        let inputs = gathered.described();
        match self.crew.send(place, &node.info.class, gathered, calls) {
            Ok(None) => Ok(()),
            Ok(Some(returned)) => self.welcome(returned),
            Err(failure) => Err(self.failed(&node.identity, failure, inputs)),
        }
    }

    fn welcome(&mut self, returned: Returned) -> Result<(), Stop> {
        let node = self.graph.at(returned.node);
        self.conclude(returned.node, &node, &returned.gathered, returned.result)
    }

    /// A call that is not made: its outputs are blocked, too. The user is told only once.
    fn blocked(&self, node: &LiveNode, message: Option<Arc<str>>) -> Outcome {
        if let Some(message) = message {
            self.tell(RunEvent::Blocked(NodeFailure {
                identity: Arc::clone(&node.identity),
                kind: "ExecutionBlocked".to_owned(),
                message: format!("Execution Blocked: {message}"),
                is_out_of_memory: false,
                inputs: Map::new(),
                outputs: Vec::new(),
                executed: self.executed.iter().cloned().collect(),
            }));
        }
        Outcome { outputs: Outputs::Blocked(None), ..Outcome::default() }
    }

    /// All calls of a node ended: it is done, or it has expanded and waits.
    fn conclude(
        &mut self,
        place: usize,
        node: &LiveNode,
        gathered: &Gathered,
        result: Result<Vec<Outcome>, Failure>,
    ) -> Result<(), Stop> {
        let fail = |run: &Self, failure| run.failed(&node.identity, failure, gathered.described());
        let mut outcomes = result.map_err(|failure| fail(self, failure))?;
        let ui = merge_ui(&mut outcomes);
        if let Some(ui) = &ui {
            self.show(&node.identity, ui);
            self.tell(RunEvent::Executed { identity: Arc::clone(&node.identity), ui: Some(ui.clone()) });
        }
        let is_expanding = outcomes.iter().any(|outcome| outcome.expansion.is_some());
        let mut calls = Vec::with_capacity(outcomes.len());
        let mut places = Vec::new();
        for outcome in outcomes {
            if let Some(expansion) = outcome.expansion {
                let added = self.graph.expand(&node.identity, &expansion, &mut self.classes);
                places.extend(added.map_err(|failure| fail(self, failure))?);
            }
            calls.push(outcome.outputs);
        }
        let expanding = Expanding { calls, ui };
        if !is_expanding && links_of(&expanding.calls).next().is_none() {
            self.resolve(place, node, expanding);
            return Ok(());
        }
        self.make_keys(places.iter().copied());
        let keys: Vec<_> = places.iter().filter_map(|&place| self.supply.key(place)).collect();
        self.cache.expanded(&node.identity, keys.into_iter());
        for child in places {
            if self.graph.at(child).info.schema.is_output {
                self.add(child)?;
            }
        }
        for link in links_of(&expanding.calls) {
            self.wait_for(place, link).map_err(|failure| fail(self, failure))?;
        }
        self.expanding.insert(place, expanding);
        self.schedule.put_back(place);
        Ok(())
    }

    /// A node is done: what its calls gave is put together, kept and handed on.
    fn resolve(&mut self, place: usize, node: &LiveNode, expanding: Expanding) {
        let Expanding { calls, ui } = expanding;
        let linked = |link: &Link| -> Vec<Value> {
            let entry = self.graph.place(&link.node).and_then(|source| self.known(source));
            entry.and_then(|entry| entry.outputs.get(link.slot).cloned()).unwrap_or_default()
        };
        let outputs = merge_outputs(calls, node.info.schema.outputs.len(), linked);
        let entry = Arc::new(Entry { outputs, ui });
        if let Some(key) = self.supply.key(place) {
            let real = self.graph.place(&node.identity.real).map(|place| self.graph.at(place));
            let class = real.map_or_else(String::new, |real| real.identity.class.clone());
            self.cache.set(key, Arc::clone(&entry), &node.identity, class);
        }
        self.tell(RunEvent::Finished { identity: Arc::clone(&node.identity) });
        self.executed.insert(Arc::clone(&node.identity.node));
        self.complete(place, entry);
    }

    pub(super) fn failed(&self, identity: &Arc<Identity>, failure: Failure, inputs: Map) -> Stop {
        let (kind, message, is_out_of_memory) = match failure {
            Failure::Interrupted => return Stop::Interrupted(Arc::clone(identity)),
            Failure::OutOfMemory(message) => ("OOMError".to_owned(), message, true),
            Failure::Error { kind, message } => (kind, message, false),
        };
        let kept = if self.cache.is_on() { Some(&self.job.prompt.nodes) } else { None };
        Stop::Failed(Box::new(NodeFailure {
            identity: Arc::clone(identity),
            kind,
            message,
            is_out_of_memory,
            inputs,
            outputs: kept.into_iter().flat_map(|nodes| nodes.keys().cloned()).collect(),
            executed: self.executed.iter().cloned().collect(),
        }))
    }

    /// Nothing is ready and nobody is away: nodes wait for each other. The first that was expanded is to
    /// blame, because validation found the cycles of the user's own nodes.
    fn cycle(&self) -> Stop {
        let ring: Vec<Arc<LiveNode>> =
            self.schedule.ring().into_iter().map(|place| self.graph.at(place)).collect();
        let expanded = ring.iter().find(|node| node.identity.display != node.identity.node);
        let Some(node) = expanded.or(ring.first()) else {
            // Not reached: what waits, waits for something that is pending.
            let identity = Arc::clone(&self.graph.at(0).identity);
            return self.failed(&identity, Failure::error("RuntimeError", "no node is ready"), Map::new());
        };
        let shown = self.graph.place(&node.identity.display).map(|place| self.graph.at(place));
        let identity = &shown.as_ref().unwrap_or(node).identity;
        let names: Vec<&str> = ring.iter().take(16).map(|node| &*node.identity.node).collect();
        let text = format!("nodes wait for each other's outputs: {}", names.join(", "));
        self.failed(identity, Failure::error("graph.DependencyCycleError", text), Map::new())
    }
}
