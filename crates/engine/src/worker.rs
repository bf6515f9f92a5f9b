//! A worker: one thread with an executor, which runs jobs one after the other, and frees memory between those of all.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use graph::{Executor, Identity, Map, NodeFailure, Observer, RunEnd, RunReport, RunRequest};
use indexmap::IndexMap;
use residency::{FreeReport, FreeRequest, HostPressure, Retention};
use runtime::ModelStats;

use crate::HostMemory;
use crate::event::{Event, JobEvent};
use crate::message::Milestone;
use crate::record::{self, Record};
use crate::shared::{Shared, Task};
use crate::store::Claim;
use crate::turn::RunningJob;

/// Time between two looks at the host's memory while nothing runs.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct Worker {
    shared: Arc<Shared>,
    /// Its number among the workers.
    number: usize,
    /// What its nodes call it; none if it has all devices.
    name: Option<Arc<str>>,
    executor: Executor,
    /// One of the workers looks after the host's memory.
    host_memory: Option<HostMemory>,
    pressure: HostPressure,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        (number, name): (usize, Option<Arc<str>>),
        executor: Executor,
        host_memory: Option<HostMemory>,
    ) -> Worker {
        Worker { shared, number, name, executor, host_memory, pressure: HostPressure::default() }
    }

    /// Works until the engine ends.
    pub(crate) fn run(mut self) {
        let mut idle_at = None;
        loop {
            match self.shared.next_task(self.number, idle_at) {
                Task::Run(job) => {
                    self.run_job(&job);
                    idle_at = Some(Instant::now());
                }
                Task::Free(request) => {
                    self.free(request);
                    self.shared.note_freed();
                    idle_at = Some(Instant::now());
                }
                Task::Idle => {
                    self.look_after_memory();
                    self.shared.store.settle();
                    idle_at = self.host_memory.is_some().then(|| Instant::now() + LOOK_INTERVAL);
                }
                Task::Stop => break,
            }
        }
        self.shared.note_over();
    }

    fn run_job(&mut self, running: &RunningJob) {
        let (claim, job, observer) = (&running.claim, &running.claim.job, &running.observer);
        let started = Instant::now();
        observer.tell(JobEvent::Message(observer.keep(Milestone::Started)));
        let mut report = self.execute(running);
        observer.end();
        record::hide_secrets(&mut report, &job.secrets);
        if self.shared.turn().is_lost(claim) {
            return self.give_up(claim);
        }
        if matches!(report.end, RunEnd::Interrupted { .. }) && self.shared.turn().is_put_back(claim) {
            self.shared.release(claim);
            self.shared.let_go(claim);
            return;
        }
        if let RunEnd::Failed(failure) = &report.end {
            tracing::error!("job {}, node {}: {}", job.prompt_id, failure.identity.node, failure.message);
            if failure.is_out_of_memory {
                self.make_room(running);
                self.make_room_on_host();
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        match &report.end {
            RunEnd::Succeeded => {
                let steps = steps_of(&self.shared.runtime.stats_by_job(), &job.prompt_id, started);
                let on = running.place.is_one_of_several().then(|| format!(" on {}", running.place.worker));
                let on = on.unwrap_or_default();
                tracing::info!("prompt {} executed{on} in {seconds:.2} s{steps}", job.prompt_id);
            }
            RunEnd::Interrupted { .. } => {
                tracing::info!("prompt {} was interrupted after {seconds:.2} s", job.prompt_id);
            }
            RunEnd::Failed(_) => {}
        }
        let message = observer.keep(record::end(job, &report.end));
        let record = Record::new(report, observer.messages(), &running.place);
        match self.shared.store.finish(claim, &record) {
            Ok(true) => {}
            Ok(false) => return self.give_up(claim),
            Err(error) => {
                let text = format!("the record of job {} cannot be kept: {error}", job.prompt_id);
                tracing::error!("{text}");
                self.shared.sink.event(Event::Notice(text));
            }
        }
        observer.tell(JobEvent::Message(message));
        self.shared.end_running(claim);
        let last = observer.last_node().map(|identity| Arc::clone(&identity.node));
        observer.tell(JobEvent::Ended { last });
    }

    /// Another worker has the job now, and tells how it ends.
    fn give_up(&self, claim: &Claim) {
        tracing::warn!("job {} went to another worker: what was made here is dropped", claim.job.prompt_id);
        self.shared.end_running(claim);
    }

    /// Runs a job to its end. A node that panics fails its job, and not the worker.
    fn execute(&mut self, running: &RunningJob) -> RunReport {
        let job = &running.claim.job;
        let request = RunRequest {
            prompt_id: job.prompt_id.clone(),
            prompt: Arc::clone(&job.prompt),
            outputs: job.outputs.clone(),
            extra: job.extra_data.clone(),
            secrets: job.secrets.clone(),
            cancel: Arc::clone(&running.cancel),
            worker: self.name.clone(),
            observer: Arc::clone(&running.observer) as Arc<dyn Observer>,
        };
        match catch_unwind(AssertUnwindSafe(|| self.executor.run(request))) {
            Ok(report) => report,
            Err(panic) => {
                // What the executor holds may be half done.
                self.executor.restart();
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
                let last = running.observer.last_node();
                RunReport {
                    end: RunEnd::Failed(panicked(last, text)),
                    outputs: IndexMap::new(),
                    identities: IndexMap::new(),
                }
            }
        }
    }

    /// Lets go what a request asks for.
    fn free(&mut self, request: FreeRequest) {
        let Worker { shared, executor, .. } = self;
        let notice = match shared.runtime.residency.free(request, &mut || executor.reset()) {
            Ok(report) => {
                log(&report);
                (!report.kept.is_empty()).then(|| report.summary())
            }
            Err(error) => {
                tracing::error!("memory could not be freed: {error}");
                Some(format!("memory could not be freed: {error}"))
            }
        };
        if let Some(text) = notice {
            self.shared.sink.event(Event::Notice(text));
        }
    }

    /// After a device ran out of memory: models leave, all of them if nobody else works, and else the devices that the
    /// job had for itself.
    fn make_room(&mut self, running: &RunningJob) {
        if !self.shared.turn().has_others(&running.claim) {
            return self.unload_models();
        }
        let residency = &self.shared.runtime.residency;
        for device in running.place.devices.iter().flatten() {
            residency.evict_from(*device, None);
        }
        if let Err(error) = residency.devices().trim() {
            tracing::error!("caches of devices could not be emptied: {error}");
        }
    }

    /// After a device ran out of memory: every model goes that no user wants to keep. One request lets only
    /// the models go that are marked to go first, so there may have to be another.
    fn unload_models(&mut self) {
        let request = FreeRequest { unload_models: true, ..FreeRequest::default() };
        loop {
            match self.shared.runtime.residency.free(request, &mut || {}) {
                Ok(report) => {
                    log(&report);
                    if report.kept.iter().all(|note| note.retention == Retention::Keep)
                        || report.unloaded.is_empty()
                    {
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!("memory could not be freed: {error}");
                    return;
                }
            }
        }
    }

    /// After memory ran out: if pictures and the like hold most of the host's, those that are only cached go.
    fn make_room_on_host(&mut self) {
        if self.shared.runtime.host.used_share() > 0.5 {
            tracing::warn!("the host's memory is short: cached outputs of nodes are dropped");
            self.executor.reset();
        }
    }

    /// Forgets cached outputs when the host's memory is nearly full.
    fn look_after_memory(&mut self) {
        let Some(read) = &mut self.host_memory else { return };
        if !self.shared.turn().is_idle() {
            return;
        }
        let used = read();
        if self.pressure.update(used, true) {
            tracing::warn!(
                "{:.0} % of the host's memory are in use: cached outputs of nodes are dropped",
                used * 100.0
            );
            self.executor.reset();
            let residency = &self.shared.runtime.residency;
            if let Err(error) = residency.devices().trim() {
                tracing::error!("caches of devices could not be emptied: {error}");
            }
            residency.snapshots().take("host memory nearly full: executor reset", residency.devices());
        }
    }
}

/// What the models' steps took in a job since then, beside what they were predicted to take.
fn steps_of(stats: &[ModelStats], job: &str, then: Instant) -> String {
    let ran = stats.iter().filter(|model| model.began >= then && model.evaluations > 0);
    let ran = ran.filter(|model| model.job.as_deref() == Some(job));
    ran.map(|model| {
        let ModelStats { name, evaluations, measured_s, predicted_s, fp8_products, .. } = model;
        let how = if *fp8_products > 0 { " with 8-bit products" } else { "" };
        format!("; {name}: {evaluations} steps of {measured_s:.3} s (predicted {predicted_s:.3}){how}")
    })
    .collect()
}

fn log(report: &FreeReport) {
    tracing::info!("free: {}", report.summary());
    for note in &report.missing {
        tracing::error!("{} should have been kept and is gone", note.name);
    }
}

/// The failure of a job one of whose nodes panicked.
fn panicked(last: Option<Arc<Identity>>, text: &str) -> NodeFailure {
    let nobody = || {
        let id: Arc<str> = "".into();
        Arc::new(Identity {
            node: id.clone(),
            display: id.clone(),
            parent: None,
            real: id,
            class: String::new(),
        })
    };
    NodeFailure {
        identity: last.unwrap_or_else(nobody),
        kind: "Panic".to_owned(),
        message: format!("this is a fault in the program, please report it: {text}"),
        is_out_of_memory: false,
        inputs: Map::new(),
        outputs: Vec::new(),
        executed: Vec::new(),
    }
}
