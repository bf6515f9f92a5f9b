//! What steps took: predicted and measured, by model; and what is learnt from it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use meta::DeviceId;
use placement::{BlockMode, DeviceProfile, MachineProfile, Plan};
use residency::{BlockProfile, CodingState, ModelId, Session, StepProfile, StreamStats};

use crate::Runtime;
use crate::measuring;
use crate::planning::Planned;

/// Steps of a run whose times are kept, the latest.
const STEPS_KEPT: usize = 1000;
/// Jobs whose last run of a model is kept, the latest: so many may run at the same time.
const JOBS_KEPT: usize = 16;

/// What the steps of a model took in its last run. A step evaluates all of its conditionings at once.
#[derive(Clone, Debug)]
pub struct ModelStats {
    /// The loaded model.
    pub id: ModelId,
    /// The job that the run is part of, if it is part of one.
    pub job: Option<Arc<str>>,
    /// Its file's name.
    pub name: String,
    /// Its family.
    pub family: String,
    /// Where it computes.
    pub compute: DeviceId,
    /// How many of its weights have products of 8 bits; 0 if all are exact.
    pub fp8_products: usize,
    /// Of which kind the steps are that the times are of: the latest.
    pub kind: StepKind,
    /// Seconds that one such step was predicted to take.
    pub predicted_s: f64,
    /// Seconds that one took, the median of those of the last run.
    pub measured_s: f64,
    /// Seconds of the last one in which the device decoded weights.
    pub decoding_s: f64,
    /// Seconds that the last one took.
    pub last_s: f64,
    /// Steps of the last run, of all kinds.
    pub evaluations: u64,
    /// Those of them that ran with coded blocks.
    pub coded_evaluations: u64,
    /// Bytes that were streamed to the compute device in the last run.
    pub bytes_streamed: u64,
    /// Bytes that were decoded on it, counted decoded.
    pub bytes_decoded: u64,
    /// How often a block had to wait for its weights in the last run.
    pub stalls: u64,
    /// How long the host waited in them.
    pub stalled: Duration,
    /// When the last run began.
    pub began: Instant,
}

impl ModelStats {
    /// A run that begins.
    pub fn new(id: ModelId, name: String, family: String, compute: DeviceId) -> ModelStats {
        ModelStats {
            id,
            job: None,
            name,
            family,
            compute,
            fp8_products: 0,
            kind: StepKind::Plain,
            predicted_s: 0.0,
            measured_s: 0.0,
            decoding_s: 0.0,
            last_s: 0.0,
            evaluations: 0,
            coded_evaluations: 0,
            bytes_streamed: 0,
            bytes_decoded: 0,
            stalls: 0,
            stalled: Duration::ZERO,
            began: Instant::now(),
        }
    }
}

/// How a step has its weights. Steps of one kind are alike, and say nothing of those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepKind {
    /// As they are.
    Plain,
    /// The same, while they are being coded beside it.
    PlainWhileCoding,
    /// Some of them losslessly coded.
    Coded,
}

impl StepKind {
    /// That of a session's latest step, or of the next if there was none.
    pub(crate) fn of(session: &Session) -> StepKind {
        match session.coding().map(|report| report.state) {
            None | Some(CodingState::Plain) => StepKind::Plain,
            Some(CodingState::Coding) => StepKind::PlainWhileCoding,
            Some(CodingState::Coded) => StepKind::Coded,
        }
    }
}

/// Seconds that steps are predicted to take before and after blocks are coded; the same if none is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PredictedSteps {
    pub(crate) plain_s: f64,
    pub(crate) coded_s: f64,
}

impl PredictedSteps {
    fn of(&self, kind: StepKind) -> f64 {
        match kind {
            StepKind::Plain | StepKind::PlainWhileCoding => self.plain_s,
            StepKind::Coded => self.coded_s,
        }
    }
}

/// The table of all models that ran.
#[derive(Debug, Default)]
pub(crate) struct StatsTable {
    /// By model the last run of each of the latest jobs, the latest at the end.
    models: Mutex<BTreeMap<ModelId, VecDeque<Run>>>,
    /// Bytes that were loaded and the seconds that it took; what is longer ago counts less.
    loads: Mutex<(f64, f64)>,
}

/// What remains of earlier loads when another one counts.
const EARLIER_LOADS: f64 = 0.7;

#[derive(Debug)]
struct Run {
    stats: ModelStats,
    predicted: PredictedSteps,
    /// The kind of the latest step, or of the first.
    kind: StepKind,
    /// Whether the latest step was of one kind from beginning to end.
    is_settled: bool,
    /// The latest steps of each kind. The one in which coded blocks take the place of plain ones is of none.
    seconds: BTreeMap<StepKind, Vec<f64>>,
}

impl Run {
    fn step(&mut self, kind: StepKind, seconds: f64) {
        self.is_settled = kind == self.kind;
        self.kind = kind;
        if self.is_settled {
            let steps = self.seconds.entry(kind).or_default();
            if steps.len() == STEPS_KEPT {
                steps.remove(0);
            }
            steps.push(seconds);
        }
        // The latest kind of which there is a step; before there is one of any, that which was no whole one.
        let shown = self.seconds.iter().next_back();
        let (kind, measured_s) = shown.map_or((kind, seconds), |(kind, steps)| (*kind, median(steps)));
        (self.stats.kind, self.stats.measured_s) = (kind, measured_s);
        self.stats.predicted_s = self.predicted.of(kind);
        self.stats.last_s = seconds;
        self.stats.evaluations += 1;
        self.stats.coded_evaluations += u64::from(self.kind == StepKind::Coded);
    }
}

/// The steps of a run that ended.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LastSteps {
    /// Of which kind the last was. Work that is no step is of a kind, too.
    kind: StepKind,
    /// The median of that kind; none if there was none, or if the last was no whole one.
    median_s: Option<f64>,
}

impl StatsTable {
    /// The copies of a model were made.
    pub(crate) fn loaded(&self, bytes: u64, seconds: f64) {
        let mut loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        *loads = (EARLIER_LOADS * loads.0 + bytes as f64, EARLIER_LOADS * loads.1 + seconds);
    }

    /// Bytes of models that are loaded in a second; none before the first.
    pub(crate) fn load_bytes_per_s(&self) -> Option<f64> {
        let (bytes, seconds) = *self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        (bytes > 0.0 && seconds > 0.0).then(|| bytes / seconds)
    }

    pub(crate) fn list(&self) -> Vec<ModelStats> {
        self.lock().values().filter_map(VecDeque::back).map(|run| run.stats.clone()).collect()
    }

    pub(crate) fn list_by_job(&self) -> Vec<ModelStats> {
        self.lock().values().flatten().map(|run| run.stats.clone()).collect()
    }

    /// A run begins: what is known of earlier ones of its job goes.
    pub(crate) fn begin(&self, stats: ModelStats, predicted: PredictedSteps, kind: StepKind) {
        let stats = ModelStats { predicted_s: predicted.of(kind), kind, ..stats };
        let mut models = self.lock();
        let runs = models.entry(stats.id).or_default();
        runs.retain(|run| run.stats.job != stats.job);
        if runs.len() == JOBS_KEPT {
            runs.pop_front();
        }
        runs.push_back(Run { predicted, kind, is_settled: true, seconds: BTreeMap::new(), stats });
    }

    /// One step took so long, after which steps are of this kind, and since the run began so much was streamed.
    pub(crate) fn evaluated(
        &self,
        (id, job): (ModelId, Option<&Arc<str>>),
        kind: StepKind,
        seconds: f64,
        streamed: StreamStats,
    ) {
        let mut models = self.lock();
        let runs = models.get_mut(&id).into_iter().flatten();
        let Some(run) = runs.rev().find(|run| run.stats.job.as_ref() == job) else { return };
        run.step(kind, seconds);
        run.stats.bytes_streamed = streamed.bytes;
        run.stats.bytes_decoded = streamed.decoded_bytes;
        run.stats.stalls = streamed.stalls;
        run.stats.stalled = streamed.stalled;
    }

    /// The last step spent so long decoding.
    fn decoded(&self, id: ModelId, seconds: f64) {
        if let Some(run) = self.lock().get_mut(&id).and_then(VecDeque::back_mut) {
            run.stats.decoding_s = seconds;
        }
    }

    /// The steps of a model's last run, if it has made one.
    fn last_steps(&self, id: ModelId) -> Option<LastSteps> {
        let models = self.lock();
        let run = models.get(&id)?.back()?;
        let steps = run.seconds.get(&run.kind).filter(|_| run.is_settled);
        Some(LastSteps { kind: run.kind, median_s: steps.map(|steps| median(steps)) })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ModelId, VecDeque<Run>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runtime {
    /// Lets the times of a run that ended refine what is known of the machine, whatever was resident or streamed.
    pub(crate) fn learn_from(&self, id: ModelId, planned: &Planned) {
        let (Some(mut step), Some(last)) = (self.residency.profile(id), self.stats.last_steps(id)) else {
            return;
        };
        // The last step is the one that is known block by block. Where it took longer than the median of its kind, its blocks
        // are taken to have taken longer all alike.
        if let Some(whole_s) = last.median_s.filter(|whole_s| *whole_s < step.seconds) {
            let share = whole_s / step.seconds;
            for block in &mut step.blocks {
                block.compute *= share;
                block.decode *= share;
            }
            step.seconds = whole_s;
        }
        self.stats.decoded(id, step.blocks.iter().map(|block| block.decode).sum());
        // While blocks were coded, steps ran as they were before.
        let before = planned.plan.before_coding().filter(|_| last.kind != StepKind::Coded);
        let plan = before.as_ref().unwrap_or(&planned.plan);
        let identities: BTreeMap<DeviceId, String> =
            self.devices.iter().map(|device| (device.id(), measuring::identity(device))).collect();
        self.profile.learn(|profile| {
            let identity = identities.get(&plan.compute);
            let learnt =
                profile.device(plan.compute).is_some_and(|known| known.has_learnt(&planned.workload));
            // Coding takes processors and memory from the steps beside it: they say something only where nothing else does.
            if last.kind == StepKind::PlainWhileCoding && learnt {
                return;
            }
            for (device, identity) in &identities {
                learn_computing(profile, (*device, identity), (planned, plan), &step);
            }
            let is_metered = self.devices.get(plan.compute).is_ok_and(|device| device.said().is_some());
            // What is on its way to stay shares the links with what passes.
            if !step.moving_in {
                learn_copies(profile, (plan, is_metered), &step, &identities);
            }
            let Some(identity) = identity else { return };
            let compute = profile.device_mut(plan.compute, identity);
            learn_decoding(compute, plan, &step);
            if let Some(whole_s) = last.median_s {
                let outside_s = (whole_s - step.seconds).max(0.0);
                compute.learn_outside(&planned.workload, plan.streamed_bytes() > 0, outside_s);
            }
        });
    }
}

/// How fast the device decoded in a step.
fn learn_decoding(profile: &mut DeviceProfile, plan: &Plan, step: &StepProfile) {
    let decoded = step.blocks.iter().filter(|block| block.decode > 0.0);
    let bytes = decoded.filter_map(|block| plan.blocks.get(block.block)).map(|block| block.bytes).sum();
    profile.learn_decoding(bytes, step.blocks.iter().map(|block| block.decode).sum());
}

/// What a device's blocks took beside what they were predicted to take. A block that had to wait for activations of
/// another device says less, and counts only where there is no other.
fn learn_computing(
    profile: &mut MachineProfile,
    (device, identity): (DeviceId, &str),
    (planned, plan): (&Planned, &Plan),
    step: &StepProfile,
) {
    let Some(footprint) = planned.footprints.get(&device) else { return };
    let mut before = plan.compute;
    let mut here: Vec<(bool, &BlockProfile)> = Vec::new();
    for block in &step.blocks {
        if block.device == device {
            here.push((before == device, block));
        }
        before = block.device;
    }
    let settled = here.iter().any(|(settled, _)| *settled);
    let counted = || here.iter().filter(|(is_settled, _)| *is_settled || !settled).map(|(_, block)| block);
    let measured_s: f64 = counted().map(|block| block.compute).sum();
    let predicted_s: f64 = counted().filter_map(|block| footprint.block_seconds.get(block.block)).sum();
    profile.device_mut(device, identity).learn(&planned.workload, predicted_s, measured_s);
}

/// Where copies are this much of a step, the link is what it waits for.
const LINK_BOUND: f64 = 0.97;
/// Where computing is this much of a step and the link is not what it waits for, copies have the device beside computing.
const COMPUTING: f64 = 0.9;

/// What the copies of streamed blocks say of the links they came over. Copies beside computing share the device's memory
/// with it, and are slower for that: where the link is what the step waits for, they tell its speed, and where the device
/// computes nearly all the time, how slow it is then. The link of a simulated device is metered, and as fast in either case.
fn learn_copies(
    profile: &mut MachineProfile,
    (plan, is_metered): (&Plan, bool),
    step: &StepProfile,
    identities: &BTreeMap<DeviceId, String>,
) {
    let mut by_home: BTreeMap<DeviceId, (u64, f64)> = BTreeMap::new();
    for block in &step.blocks {
        let Some(planned) = plan.blocks.get(block.block) else { continue };
        // What the disk gives says nothing of the link.
        if planned.from_disk {
            continue;
        }
        if let (Some(copy), BlockMode::Streamed) = (&block.copy, planned.mode) {
            let sum = by_home.entry(planned.home).or_default();
            *sum = (sum.0 + copy.bytes, sum.1 + copy.seconds);
        }
    }
    let compute = plan.compute;
    let busy_s: f64 = by_home.values().map(|(_, seconds)| seconds).sum();
    let is_bound = busy_s >= LINK_BOUND * step.seconds;
    let here = step.blocks.iter().filter(|block| block.device == compute);
    let computing_s: f64 = here.map(|block| block.compute + block.decode).sum();
    let computing = if step.seconds > 0.0 { (computing_s / step.seconds).min(1.0) } else { 0.0 };
    for (home, (bytes, seconds)) in by_home {
        if home != DeviceId::CPU {
            let is_faster = profile.peer(home, compute).is_none_or(|known| bytes as f64 > known * seconds);
            if is_bound || is_faster {
                profile.learn_peer(home, compute, bytes, seconds);
            }
            continue;
        }
        let Some(identity) = identities.get(&compute) else { continue };
        let device = profile.device_mut(compute, identity);
        if computing >= COMPUTING && !is_bound && !is_metered {
            device.learn_busy_link(bytes, seconds);
        }
        // What these copies would have taken alone: for that part of the step they were slower.
        let alone_s = seconds * (1.0 - computing * (1.0 - 1.0 / device.copy_slowdown()));
        let known = device.link_bytes_per_s.filter(|known| *known > 0.0);
        let is_faster = known.is_none_or(|known| bytes as f64 > known * seconds);
        if is_bound {
            device.learn_link(bytes, alone_s);
        } else if is_faster {
            device.learn_link(bytes, seconds);
        }
    }
}

fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        even if even % 2 == 0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_loads_count_more_than_early_ones() {
        let table = StatsTable::default();
        assert_eq!(table.load_bytes_per_s(), None);
        table.loaded(100, 1.0);
        assert_eq!(table.load_bytes_per_s(), Some(100.0));
        for _ in 0..20 {
            table.loaded(1000, 1.0);
        }
        assert!(table.load_bytes_per_s().is_some_and(|rate| rate > 990.0));
    }

    /// A step of ten blocks in host memory, each computing and copied for so long, and what is learnt of it.
    fn learnt_of(profile: &mut MachineProfile, [compute, copy]: [f64; 2], is_metered: bool) {
        let device = DeviceId::sim(0);
        let spec = |id| placement::DeviceSpec {
            id,
            total_bytes: 1 << 40,
            available_bytes: 1 << 40,
            link_bytes_per_s: 1e9,
            compute_factor: 1.0,
            reaches: Vec::new(),
        };
        let block = |index: usize| placement::BlockSpec {
            name: format!("blocks.{index}"),
            bytes: 100_000_000,
            compute_seconds: compute,
            pinned: false,
        };
        let request = placement::PlanRequest {
            allocation: placement::AllocationText::parse("sim:0,0%;cpu,100%").unwrap(),
            ..placement::PlanRequest::new(
                (0..10).map(block).collect(),
                vec![spec(DeviceId::CPU), spec(device)],
                device,
            )
        };
        let plan = placement::plan(&request).unwrap();
        let each = compute.max(copy);
        let blocks = (0..10).map(|block| BlockProfile {
            block,
            device,
            begin: block as f64 * each,
            stall: each - compute,
            decode: 0.0,
            compute,
            copy: Some(residency::CopyProfile {
                begin: (block as f64 - 1.0) * each,
                seconds: copy,
                bytes: 100_000_000,
            }),
            handed_bytes: 0,
        });
        let step = StepProfile { seconds: 10.0 * each, blocks: blocks.collect(), moving_in: false };
        learn_copies(profile, (&plan, is_metered), &step, &BTreeMap::from([(device, "card".to_owned())]));
    }

    #[test]
    fn copies_beside_computing_tell_how_slow_the_link_is_then_and_others_how_fast_it_is() {
        let mut profile = MachineProfile::default();
        profile.device_mut(DeviceId::sim(0), "card").link_bytes_per_s = Some(1e9);
        let near =
            |got: f64, wanted: f64| assert!((got / wanted - 1.0).abs() < 0.01, "{got} is not {wanted}");
        let card = |profile: &MachineProfile| profile.devices["sim:0"].clone();
        // The device computes all the time, and what would take 0.1 s takes 0.125.
        learnt_of(&mut profile, [0.2, 0.125], true);
        assert_eq!(card(&profile).busy_link_bytes_per_s, None, "a metered link is not slower");
        learnt_of(&mut profile, [0.2, 0.125], false);
        near(card(&profile).copy_slowdown(), 1.25);
        near(profile.link(DeviceId::sim(0)).unwrap(), 1e9);
        // The link is what the step waits for: half of it beside computing.
        for _ in 0..20 {
            learnt_of(&mut profile, [0.055, 0.11], false);
        }
        near(profile.link(DeviceId::sim(0)).unwrap(), 2.0 * (1e9 / 1.1 - 0.4e9));
        near(card(&profile).busy_link_bytes_per_s.unwrap(), 0.8e9);
        // Nothing is learnt of what is slower than it can be for reasons of its own.
        let before = profile.clone();
        learnt_of(&mut profile, [0.2, 0.125], true);
        assert_eq!(profile, before);
    }

    fn run(table: &StatsTable, kind: StepKind) -> ModelId {
        run_of(table, kind, None)
    }

    fn run_of(table: &StatsTable, kind: StepKind, job: Option<Arc<str>>) -> ModelId {
        let id = ModelId(1);
        let stats = ModelStats { job, ..ModelStats::new(id, "a".into(), "b".into(), DeviceId::CPU) };
        table.begin(stats, PredictedSteps { plain_s: 0.5, coded_s: 0.25 }, kind);
        id
    }

    #[test]
    fn the_median_step_counts_and_a_new_run_forgets_the_last() {
        let table = StatsTable::default();
        let id = run(&table, StepKind::Plain);
        let step = |seconds, streamed| table.evaluated((id, None), StepKind::Plain, seconds, streamed);
        assert_eq!(table.last_steps(id), Some(LastSteps { kind: StepKind::Plain, median_s: None }));
        assert_eq!(table.last_steps(ModelId(2)), None);
        for seconds in [9.0, 1.0, 3.0] {
            step(seconds, StreamStats::default());
        }
        let stats = &table.list()[0];
        assert_eq!((stats.measured_s, stats.last_s, stats.evaluations), (3.0, 3.0, 3));
        assert_eq!((stats.predicted_s, stats.coded_evaluations), (0.5, 0));
        run(&table, StepKind::Plain);
        step(2.0, StreamStats { bytes: 7, ..StreamStats::default() });
        let last = LastSteps { kind: StepKind::Plain, median_s: Some(2.0) };
        assert_eq!(table.last_steps(id), Some(last));
        assert_eq!(table.list()[0].bytes_streamed, 7);
    }

    #[test]
    fn jobs_that_have_a_model_in_turns_have_their_own_steps() {
        let table = StatsTable::default();
        let jobs: [Arc<str>; 2] = ["a".into(), "b".into()];
        let id = run(&table, StepKind::Plain);
        table.evaluated((id, None), StepKind::Plain, 2.0, StreamStats::default());
        for job in &jobs {
            run_of(&table, StepKind::Plain, Some(Arc::clone(job)));
        }
        for (job, seconds) in [(0, 5.0), (1, 6.0), (0, 5.0)] {
            table.evaluated((id, Some(&jobs[job])), StepKind::Plain, seconds, StreamStats::default());
        }
        let counts: Vec<u64> = table.list_by_job().iter().map(|stats| stats.evaluations).collect();
        assert_eq!(counts, [1, 2, 1]);
        assert_eq!((table.list().len(), table.list()[0].measured_s), (1, 6.0));
        for job in 0..40 {
            run_of(&table, StepKind::Plain, Some(job.to_string().into()));
        }
        assert_eq!(table.list_by_job().len(), JOBS_KEPT);
    }

    #[test]
    fn steps_before_and_after_coding_are_not_mixed() {
        let table = StatsTable::default();
        let id = run(&table, StepKind::PlainWhileCoding);
        let step = |kind, seconds| table.evaluated((id, None), kind, seconds, StreamStats::default());
        let shown = || {
            let stats = &table.list()[0];
            (stats.kind, stats.predicted_s, stats.measured_s)
        };
        for seconds in [4.0, 5.0, 6.0, 4.0, 5.0] {
            step(StepKind::PlainWhileCoding, seconds);
        }
        assert_eq!(shown(), (StepKind::PlainWhileCoding, 0.5, 5.0));
        // The step in which blocks are exchanged is like no other.
        step(StepKind::Coded, 9.0);
        assert_eq!(shown(), (StepKind::PlainWhileCoding, 0.5, 5.0));
        assert_eq!(table.last_steps(id), Some(LastSteps { kind: StepKind::Coded, median_s: None }));
        for seconds in [2.0, 1.0, 3.0] {
            step(StepKind::Coded, seconds);
        }
        assert_eq!(shown(), (StepKind::Coded, 0.25, 2.0));
        assert_eq!(table.last_steps(id), Some(LastSteps { kind: StepKind::Coded, median_s: Some(2.0) }));
        assert_eq!((table.list()[0].evaluations, table.list()[0].coded_evaluations), (9, 4));
        // A run of a single step that is of no kind is still shown.
        run(&table, StepKind::PlainWhileCoding);
        step(StepKind::Coded, 7.0);
        assert_eq!(shown(), (StepKind::Coded, 0.25, 7.0));
    }
}
