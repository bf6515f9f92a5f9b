//! What jobs took: seconds per step and per node, bytes streamed, stalls. For `GET /gantry/stats`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::{Activity, JobEvent, JobPlace, Milestone, Progress};
use graph::Identity;
use meta::DeviceId;
use residency::{ModelId, StreamStats};
use runtime::ModelStats;
use serde::Serialize;

/// Jobs that are remembered.
pub(crate) const JOBS: usize = 200;
/// Nodes that are remembered of one job: those that took longest.
const NODES: usize = 100;
/// Steps of one node that its median is taken of: the latest.
const STEPS: usize = 512;

/// What the latest jobs took.
#[derive(Debug, Default)]
pub(crate) struct Stats(Mutex<Kept>);

/// What a worker ran since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ran {
    /// Jobs that ended.
    pub(crate) jobs: u64,
    /// What they took together.
    pub(crate) seconds: f64,
}

#[derive(Debug, Default)]
struct Kept {
    ended: VecDeque<JobStats>,
    /// What each worker ran in all, by its name.
    by_worker: BTreeMap<String, Ran>,
    /// In the order in which they began.
    running: Vec<Running>,
}

/// What one job took.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct JobStats {
    prompt_id: String,
    /// Who ran it, by the device that it computes on.
    worker: Option<String>,
    seconds: f64,
    streamed_bytes: u64,
    streamed_blocks: u64,
    stalls: u64,
    stalled_seconds: f64,
    models: Vec<ModelRun>,
    nodes: Vec<NodeStats>,
}

/// What evaluations of a model took in a job.
#[derive(Clone, Debug, Serialize)]
struct ModelRun {
    id: u64,
    name: String,
    family: String,
    compute: String,
    /// How many of its weights had products of 8 bits.
    fp8_products: usize,
    steps: u64,
    /// Those that ran with losslessly coded blocks. The times are of these as soon as there are some.
    coded_steps: u64,
    predicted_seconds_per_step: f64,
    measured_seconds_per_step: f64,
    /// Decoding in the last step, and what part that is of a step.
    decoding_seconds_per_step: f64,
    decoding_share: f64,
    streamed_bytes: u64,
    /// What was decoded, counted decoded.
    decoded_bytes: u64,
    stalls: u64,
    stalled_seconds: f64,
}

impl ModelRun {
    fn of(stats: &ModelStats) -> ModelRun {
        ModelRun {
            id: stats.id.0,
            name: stats.name.clone(),
            family: stats.family.clone(),
            compute: stats.compute.to_string(),
            fp8_products: stats.fp8_products,
            steps: stats.evaluations,
            coded_steps: stats.coded_evaluations,
            predicted_seconds_per_step: stats.predicted_s,
            measured_seconds_per_step: stats.measured_s,
            decoding_seconds_per_step: stats.decoding_s,
            decoding_share: if stats.measured_s > 0.0 { stats.decoding_s / stats.measured_s } else { 0.0 },
            streamed_bytes: stats.bytes_streamed,
            decoded_bytes: stats.bytes_decoded,
            stalls: stats.stalls,
            stalled_seconds: stats.stalled.as_secs_f64(),
        }
    }
}

/// What one node took.
#[derive(Clone, Debug, Serialize)]
struct NodeStats {
    node: String,
    class: String,
    seconds: f64,
    /// Ticks that it told.
    steps: u64,
    /// Between its first and its last tick, per tick.
    seconds_per_step: Option<f64>,
    /// The median time between two ticks.
    median_seconds_per_step: Option<f64>,
    /// From its start to its first tick: what it waited for before its first step, and that step.
    first_step_seconds: Option<f64>,
}

/// A job that runs now.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunningJob {
    prompt_id: String,
    /// Who runs it, by the device that it computes on.
    pub(crate) worker: Option<String>,
    seconds: f64,
    streamed_bytes: u64,
    stalls: u64,
    stalled_seconds: f64,
    /// Models that it evaluated so far.
    models: Vec<ModelRun>,
    /// Nodes that run.
    nodes: Vec<RunningNode>,
    /// Nodes that ran before them.
    nodes_done: usize,
}

/// A node that runs.
#[derive(Clone, Debug, Serialize)]
struct RunningNode {
    node: String,
    class: String,
    seconds: f64,
    /// How far it is, of `max`; both 0 before its first tick.
    value: f64,
    max: f64,
    /// Between its first and its latest tick, per tick.
    seconds_per_step: Option<f64>,
}

#[derive(Debug)]
struct Running {
    prompt_id: Arc<str>,
    place: Option<Arc<JobPlace>>,
    since: Instant,
    before: Totals,
    open: Vec<OpenNode>,
    nodes: Vec<NodeStats>,
    /// All that ended, those too that `nodes` does not have.
    nodes_done: usize,
}

#[derive(Debug)]
struct OpenNode {
    identity: Arc<Identity>,
    since: Instant,
    first_tick: Option<Instant>,
    last_tick: Option<Instant>,
    ticks: u64,
    /// The latest times between two ticks.
    steps: VecDeque<Duration>,
    value: f64,
    max: f64,
}

impl OpenNode {
    fn tick(&mut self, progress: &Progress, at: Instant) {
        (self.value, self.max) = (progress.value, progress.max);
        self.first_tick.get_or_insert(at);
        if let Some(last) = self.last_tick {
            if self.steps.len() == STEPS {
                self.steps.pop_front();
            }
            self.steps.push_back(at.saturating_duration_since(last));
        }
        self.last_tick = Some(at);
        self.ticks += 1;
    }

    fn median_seconds_per_step(&self) -> Option<f64> {
        let mut steps: Vec<Duration> = self.steps.iter().copied().collect();
        steps.sort_unstable();
        steps.get(steps.len() / 2).map(Duration::as_secs_f64)
    }

    fn first_step_seconds(&self) -> Option<f64> {
        self.first_tick.map(|first| first.saturating_duration_since(self.since).as_secs_f64())
    }

    fn seconds_per_step(&self) -> Option<f64> {
        let (first, last) = self.first_tick.zip(self.last_tick).filter(|_| self.ticks > 1)?;
        Some(last.duration_since(first).as_secs_f64() / (self.ticks - 1) as f64)
    }
}

/// What loaded models did until now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    streams: Vec<(ModelId, DeviceId, StreamStats)>,
    runs: Vec<ModelStats>,
}

impl Totals {
    pub(crate) fn of(activity: Activity) -> Totals {
        Totals { streams: activity.streams, runs: activity.runs }
    }

    /// What was streamed since in a place. The counts of a model start anew with its copies.
    fn streamed_since(&self, before: &Totals, place: Option<&JobPlace>) -> StreamStats {
        let mut sum = StreamStats::default();
        for (id, _, now) in self.streams.iter().filter(|(_, device, _)| is_in(place, *device)) {
            let earlier = before.streams.iter().find(|(other, ..)| other == id).map(|(.., stats)| *stats);
            let earlier = earlier.filter(|stats| stats.copies <= now.copies).unwrap_or_default();
            sum.copies += now.copies - earlier.copies;
            sum.bytes += now.bytes.saturating_sub(earlier.bytes);
            sum.stalls += now.stalls.saturating_sub(earlier.stalls);
            sum.stalled += now.stalled.saturating_sub(earlier.stalled);
        }
        sum
    }

    /// The models that a job evaluated since.
    fn runs_since(&self, before: &Totals, job: &str) -> Vec<ModelRun> {
        let is_known = |run: &ModelStats| {
            before.runs.iter().any(|other| {
                other.id == run.id
                    && other.job == run.job
                    && other.evaluations == run.evaluations
                    && other.last_s.to_bits() == run.last_s.to_bits()
            })
        };
        let own = self.runs.iter().filter(|run| run.job.as_deref() == Some(job));
        let new = own.filter(|run| run.evaluations > 0 && !is_known(run));
        new.map(ModelRun::of).collect()
    }
}

impl Stats {
    /// So many of the latest jobs, oldest first.
    pub(crate) fn latest(&self, count: usize) -> Vec<JobStats> {
        let kept = self.lock();
        kept.ended.iter().skip(kept.ended.len().saturating_sub(count)).cloned().collect()
    }

    /// What a worker ran since the start.
    pub(crate) fn ran_by(&self, worker: &str) -> Ran {
        self.lock().by_worker.get(worker).copied().unwrap_or_default()
    }

    /// The jobs that run, in the order in which they began. `totals` are those of now.
    pub(crate) fn running(&self, now: Instant, totals: &Totals) -> Vec<RunningJob> {
        self.lock().running.iter().map(|running| running.shown(now, totals)).collect()
    }

    /// Notes an event of a job, when it was, and where the job runs.
    pub(crate) fn record(
        &self,
        at: Instant,
        (prompt_id, place): (&Arc<str>, Option<&Arc<JobPlace>>),
        event: &JobEvent,
        totals: Option<&Totals>,
    ) {
        let mut kept = self.lock();
        if let JobEvent::Message(message) = event
            && message.milestone == Milestone::Started
        {
            let before = totals.cloned().unwrap_or_default();
            let prompt_id = Arc::clone(prompt_id);
            kept.running.retain(|running| running.prompt_id != prompt_id);
            kept.running.push(Running {
                prompt_id,
                place: place.cloned(),
                since: at,
                before,
                open: Vec::new(),
                nodes: Vec::new(),
                nodes_done: 0,
            });
        }
        let Some(found) = kept.running.iter().position(|running| running.prompt_id == *prompt_id) else {
            return;
        };
        let running = &mut kept.running[found];
        match event {
            JobEvent::Started(identity) => running.open(identity, at),
            JobEvent::Progress(progress) => running.tick(progress, at),
            JobEvent::Finished(identity) => running.close(identity, at),
            JobEvent::Ended { .. } => {
                let ended = kept.running.remove(found).end(at, totals);
                if let Some(worker) = &ended.worker {
                    let ran = kept.by_worker.entry(worker.clone()).or_default();
                    (ran.jobs, ran.seconds) = (ran.jobs + 1, ran.seconds + ended.seconds);
                }
                if kept.ended.len() == JOBS {
                    kept.ended.pop_front();
                }
                kept.ended.push_back(ended);
            }
            JobEvent::Message(_) | JobEvent::Text(..) | JobEvent::Executed(..) | JobEvent::Blocked(_) => {}
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn open(&mut self, identity: &Arc<Identity>, at: Instant) {
        self.close(identity, at);
        let identity = Arc::clone(identity);
        let (first_tick, last_tick) = (None, None);
        self.open.push(OpenNode {
            identity,
            since: at,
            first_tick,
            last_tick,
            ticks: 0,
            steps: VecDeque::new(),
            value: 0.0,
            max: 0.0,
        });
    }

    fn tick(&mut self, progress: &Progress, at: Instant) {
        let ticking = self.open.iter_mut().find(|node| node.identity.node == progress.identity.node);
        if let Some(node) = ticking {
            node.tick(progress, at);
        }
    }

    fn close(&mut self, identity: &Arc<Identity>, at: Instant) {
        let Some(place) = self.open.iter().position(|node| node.identity.node == identity.node) else {
            return;
        };
        let node = self.open.swap_remove(place);
        self.nodes_done += 1;
        self.nodes.push(NodeStats {
            node: node.identity.node.to_string(),
            class: node.identity.class.clone(),
            seconds: at.duration_since(node.since).as_secs_f64(),
            steps: node.ticks,
            seconds_per_step: node.seconds_per_step(),
            median_seconds_per_step: node.median_seconds_per_step(),
            first_step_seconds: node.first_step_seconds(),
        });
        if self.nodes.len() >= 2 * NODES {
            self.keep_longest();
        }
    }

    fn keep_longest(&mut self) {
        self.nodes.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        self.nodes.truncate(NODES);
    }

    /// Who runs it.
    fn worker(&self) -> Option<String> {
        self.place.as_ref().map(|place| place.worker.to_string())
    }

    fn shown(&self, now: Instant, totals: &Totals) -> RunningJob {
        let place = self.place.as_deref();
        let streamed = totals.streamed_since(&self.before, place);
        let node = |node: &OpenNode| RunningNode {
            node: node.identity.node.to_string(),
            class: node.identity.class.clone(),
            seconds: now.saturating_duration_since(node.since).as_secs_f64(),
            value: node.value,
            max: node.max,
            seconds_per_step: node.seconds_per_step(),
        };
        RunningJob {
            prompt_id: self.prompt_id.to_string(),
            worker: self.worker(),
            seconds: now.saturating_duration_since(self.since).as_secs_f64(),
            streamed_bytes: streamed.bytes,
            stalls: streamed.stalls,
            stalled_seconds: streamed.stalled.as_secs_f64(),
            models: totals.runs_since(&self.before, &self.prompt_id),
            nodes: self.open.iter().map(node).collect(),
            nodes_done: self.nodes_done,
        }
    }

    fn end(mut self, at: Instant, totals: Option<&Totals>) -> JobStats {
        self.keep_longest();
        let totals = totals.cloned().unwrap_or_default();
        let place = self.place.as_deref();
        let streamed = totals.streamed_since(&self.before, place);
        JobStats {
            prompt_id: self.prompt_id.to_string(),
            worker: self.worker(),
            seconds: at.duration_since(self.since).as_secs_f64(),
            streamed_bytes: streamed.bytes,
            streamed_blocks: streamed.copies,
            stalls: streamed.stalls,
            stalled_seconds: streamed.stalled.as_secs_f64(),
            models: totals.runs_since(&self.before, &self.prompt_id),
            nodes: self.nodes,
        }
    }
}

/// Whether what was streamed to a device may belong to a job in a place. What several jobs do on the host at the same time, or
/// on a device that they have in turns, cannot be told apart.
fn is_in(place: Option<&JobPlace>, device: DeviceId) -> bool {
    place.is_none_or(|place| place.may_use(device))
}

#[cfg(test)]
mod tests {
    use engine::Message;

    use super::*;

    fn identity() -> Arc<Identity> {
        let node: graph::NodeId = "3".into();
        Arc::new(Identity {
            node: node.clone(),
            display: node.clone(),
            parent: None,
            real: node,
            class: "KSampler".to_owned(),
        })
    }

    fn totals(copies: u64, bytes: u64) -> Totals {
        Totals {
            streams: vec![(
                ModelId(1),
                DeviceId::sim(0),
                StreamStats { copies, bytes, ..StreamStats::default() },
            )],
            runs: Vec::new(),
        }
    }

    #[test]
    fn a_job_is_measured_from_its_events() {
        let (stats, start, id) = (Stats::default(), Instant::now(), Arc::<str>::from("p"));
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let message = Message { at_ms: 0, milestone: Milestone::Started };
        stats.record(at(0), (&id, None), &JobEvent::Message(message), Some(&totals(4, 100)));
        stats.record(at(1), (&id, None), &JobEvent::Started(identity()), None);
        for second in [2, 4, 8, 11] {
            let tick =
                Progress { identity: identity(), value: 1.0, max: 3.0, picture: None, is_plain: false };
            stats.record(at(second), (&id, None), &JobEvent::Progress(tick), None);
        }
        let now = serde_json::to_value(&stats.running(at(11), &totals(5, 120))[0]).unwrap();
        assert_eq!(
            (&now["seconds"], &now["streamed_bytes"], &now["nodes_done"]),
            (&11.0.into(), &20.into(), &0.into())
        );
        let node = &now["nodes"][0];
        assert_eq!(
            (&node["value"], &node["max"], &node["seconds"]),
            (&1.0.into(), &3.0.into(), &10.0.into())
        );
        assert_eq!(node["seconds_per_step"], 3.0);
        stats.record(at(12), (&id, None), &JobEvent::Finished(identity()), None);
        stats.record(at(13), (&id, None), &JobEvent::Ended { last: None }, Some(&totals(6, 150)));
        assert!(stats.running(at(14), &Totals::default()).is_empty());
        assert!(stats.latest(0).is_empty());
        let shown = serde_json::to_value(stats.latest(JOBS)).unwrap();
        assert_eq!(shown[0]["seconds"], 13.0);
        assert_eq!(shown[0]["streamed_bytes"], 50);
        assert_eq!(shown[0]["streamed_blocks"], 2);
        let node = &shown[0]["nodes"][0];
        assert_eq!((&node["seconds"], &node["seconds_per_step"]), (&11.0.into(), &3.0.into()));
        // Steps of 2, 4 and 3 seconds after a first one of 1.
        assert_eq!(
            (&node["median_seconds_per_step"], &node["first_step_seconds"]),
            (&3.0.into(), &1.0.into())
        );
        assert_eq!(shown[0]["nodes"][0]["class"], "KSampler");
    }

    #[test]
    fn only_models_that_were_evaluated_are_of_a_job() {
        let (own, other): (Arc<str>, Arc<str>) = ("own".into(), "other".into());
        let run = |id: u64, evaluations: u64| ModelStats {
            job: Some(Arc::clone(&own)),
            predicted_s: 1.0,
            measured_s: 2.0,
            decoding_s: 0.5,
            last_s: 2.0,
            evaluations,
            coded_evaluations: evaluations / 2,
            bytes_streamed: 5,
            bytes_decoded: 7,
            stalls: 1,
            stalled: Duration::from_millis(500),
            ..ModelStats::new(ModelId(id), "m".to_owned(), "flux".to_owned(), DeviceId::CPU)
        };
        let before = Totals { runs: vec![run(1, 4), run(2, 4)], ..Totals::default() };
        // Another job has the model in turns with this one.
        let others = ModelStats { job: Some(other), ..run(2, 9) };
        let runs = vec![run(1, 4), run(2, 8), others, run(3, 0)];
        let after = Totals { runs, ..Totals::default() };
        let shown = serde_json::to_value(after.runs_since(&before, "own")).unwrap();
        assert_eq!(shown.as_array().unwrap().len(), 1);
        assert_eq!(shown[0]["id"], 2);
        assert_eq!(shown[0]["steps"], 8);
        assert_eq!(shown[0]["stalled_seconds"], 0.5);
        assert_eq!((&shown[0]["coded_steps"], &shown[0]["decoded_bytes"]), (&4.into(), &7.into()));
        assert_eq!(shown[0]["decoding_share"], 0.25);
    }

    #[test]
    fn jobs_that_run_at_the_same_time_are_measured_each_on_its_devices() {
        let (stats, start) = (Stats::default(), Instant::now());
        let ids = [Arc::<str>::from("a"), Arc::<str>::from("b")];
        let place = |ordinal| {
            let worker = DeviceId::sim(ordinal);
            Arc::new(JobPlace { worker, devices: Some([worker].into()) })
        };
        let message = Message { at_ms: 0, milestone: Milestone::Started };
        for (ordinal, id) in ids.iter().enumerate() {
            let place = place(ordinal as u16);
            let began = JobEvent::Message(message.clone());
            stats.record(start, (id, Some(&place)), &began, Some(&totals(0, 0)));
        }
        let shown = serde_json::to_value(stats.running(start, &totals(3, 70))).unwrap();
        let told = |job: usize| (shown[job]["worker"].clone(), shown[job]["streamed_bytes"].clone());
        assert_eq!(told(0), ("sim:0".into(), 70.into()));
        assert_eq!(told(1), ("sim:1".into(), 0.into()), "the model computes on the other's device");
        let ended = JobEvent::Ended { last: None };
        stats.record(start, (&ids[0], Some(&place(0))), &ended, Some(&totals(3, 80)));
        assert_eq!(stats.running(start, &Totals::default()).len(), 1);
        assert_eq!((stats.ran_by("sim:0").jobs, stats.ran_by("sim:1").jobs), (1, 0));
        let shown = serde_json::to_value(stats.latest(JOBS)).unwrap();
        assert_eq!((&shown[0]["prompt_id"], &shown[0]["streamed_bytes"]), (&"a".into(), &80.into()));
    }

    #[test]
    fn counts_of_a_model_that_was_staged_again_start_anew() {
        assert_eq!(totals(2, 30).streamed_since(&totals(6, 100), None).bytes, 30);
        assert_eq!(totals(2, 30).streamed_since(&Totals::default(), None).bytes, 30);
    }
}
