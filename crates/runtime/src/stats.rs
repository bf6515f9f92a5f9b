//! What steps took: predicted and measured, by model; and what is learnt from it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use meta::DeviceId;
use placement::{BlockMode, MachineProfile, Plan};
use residency::{BlockProfile, ModelId, StepProfile, StreamStats};

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
    /// Seconds that one step was predicted to take.
    pub predicted_s: f64,
    /// Seconds that one took, the median of the last run.
    pub measured_s: f64,
    /// Seconds that the last one took.
    pub last_s: f64,
    /// Steps of the last run.
    pub evaluations: u64,
    /// Bytes that were streamed to the compute device in the last run.
    pub bytes_streamed: u64,
    /// How often a block had to wait for its weights in the last run.
    pub stalls: u64,
    /// How long the host waited in them.
    pub stalled: Duration,
    /// When the last run began.
    pub began: Instant,
}

impl ModelStats {
    /// A run that begins under a plan.
    pub(crate) fn new(id: ModelId, name: String, family: String, plan: &Plan) -> ModelStats {
        ModelStats {
            id,
            job: None,
            name,
            family,
            compute: plan.compute,
            fp8_products: 0,
            predicted_s: plan.prediction.seconds_per_step,
            measured_s: 0.0,
            last_s: 0.0,
            evaluations: 0,
            bytes_streamed: 0,
            stalls: 0,
            stalled: Duration::ZERO,
            began: Instant::now(),
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
    /// The latest steps.
    seconds: Vec<f64>,
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
    pub(crate) fn begin(&self, stats: ModelStats) {
        let mut models = self.lock();
        let runs = models.entry(stats.id).or_default();
        runs.retain(|run| run.stats.job != stats.job);
        if runs.len() == JOBS_KEPT {
            runs.pop_front();
        }
        runs.push_back(Run { stats, seconds: Vec::new() });
    }

    /// One step took so long, and since the run began so much was streamed.
    pub(crate) fn evaluated(
        &self,
        (id, job): (ModelId, Option<&Arc<str>>),
        seconds: f64,
        streamed: StreamStats,
    ) {
        let mut models = self.lock();
        let runs = models.get_mut(&id).into_iter().flatten();
        let Some(run) = runs.rev().find(|run| run.stats.job.as_ref() == job) else { return };
        if run.seconds.len() == STEPS_KEPT {
            run.seconds.remove(0);
        }
        run.seconds.push(seconds);
        run.stats.measured_s = median(&run.seconds);
        run.stats.last_s = seconds;
        run.stats.evaluations += 1;
        run.stats.bytes_streamed = streamed.bytes;
        run.stats.stalls = streamed.stalls;
        run.stats.stalled = streamed.stalled;
    }

    /// The median step of a model's last run, if it has made one.
    pub(crate) fn measured_s(&self, id: ModelId) -> Option<f64> {
        let models = self.lock();
        let last = models.get(&id)?.back()?;
        (!last.seconds.is_empty()).then_some(last.stats.measured_s)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ModelId, VecDeque<Run>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runtime {
    /// Lets the times of a run that ended refine what is known of the machine, whatever was resident or streamed.
    pub(crate) fn learn_from(&self, id: ModelId, planned: &Planned) {
        let Some(mut step) = self.residency.profile(id) else { return };
        let whole_s = self.stats.measured_s(id);
        // The last step is the one that is known block by block. Where it took longer than the median, its blocks are
        // taken to have taken longer all alike.
        if let Some(whole_s) = whole_s.filter(|whole_s| *whole_s < step.seconds) {
            let share = whole_s / step.seconds;
            step.blocks.iter_mut().for_each(|block| block.compute *= share);
            step.seconds = whole_s;
        }
        let identities: BTreeMap<DeviceId, String> =
            self.devices.iter().map(|device| (device.id(), measuring::identity(device))).collect();
        self.profile.learn(|profile| {
            for (device, identity) in &identities {
                learn_computing(profile, (*device, identity), planned, &step);
            }
            learn_copies(profile, planned, &step, &identities);
            let identity = identities.get(&planned.plan.compute);
            if let (Some(whole_s), Some(identity)) = (whole_s, identity) {
                let outside_s = (whole_s - step.seconds).max(0.0);
                profile
                    .device_mut(planned.plan.compute, identity)
                    .learn_outside(&planned.workload, outside_s);
            }
        });
    }
}

/// What a device's blocks took beside what they were predicted to take. A block that had to wait for activations of
/// another device says less, and counts only where there is no other.
fn learn_computing(
    profile: &mut MachineProfile,
    (device, identity): (DeviceId, &str),
    planned: &Planned,
    step: &StepProfile,
) {
    let Some(footprint) = planned.footprints.get(&device) else { return };
    let mut before = planned.plan.compute;
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

/// What the copies of streamed blocks say of the links they came over. Copies beside computing share the device's memory
/// with it, and are slower for that: only where the link is what the step waits for do they tell its speed.
fn learn_copies(
    profile: &mut MachineProfile,
    planned: &Planned,
    step: &StepProfile,
    identities: &BTreeMap<DeviceId, String>,
) {
    let mut by_home: BTreeMap<DeviceId, (u64, f64)> = BTreeMap::new();
    for block in &step.blocks {
        let Some(plan) = planned.plan.blocks.get(block.block) else { continue };
        // What the disk gives says nothing of the link.
        if plan.from_disk {
            continue;
        }
        if let (Some(copy), BlockMode::Streamed) = (&block.copy, plan.mode) {
            let sum = by_home.entry(plan.home).or_default();
            *sum = (sum.0 + copy.bytes, sum.1 + copy.seconds);
        }
    }
    let compute = planned.plan.compute;
    let busy_s: f64 = by_home.values().map(|(_, seconds)| seconds).sum();
    let is_bound = busy_s >= LINK_BOUND * step.seconds;
    for (home, (bytes, seconds)) in by_home {
        let known = if home == DeviceId::CPU { profile.link(compute) } else { profile.peer(home, compute) };
        let is_faster = known.is_none_or(|known| bytes as f64 > known * seconds);
        if !is_bound && !is_faster {
            continue;
        }
        if home == DeviceId::CPU {
            if let Some(identity) = identities.get(&compute) {
                profile.device_mut(compute, identity).learn_link(bytes, seconds);
            }
        } else {
            profile.learn_peer(home, compute, bytes, seconds);
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

    #[test]
    fn the_median_step_counts_and_a_new_run_forgets_the_last() {
        let table = StatsTable::default();
        let id = ModelId(1);
        let begin = || ModelStats {
            id,
            job: None,
            name: "a".into(),
            family: "b".into(),
            compute: DeviceId::CPU,
            fp8_products: 0,
            predicted_s: 0.5,
            measured_s: 0.0,
            last_s: 0.0,
            evaluations: 0,
            bytes_streamed: 0,
            stalls: 0,
            stalled: Duration::ZERO,
            began: Instant::now(),
        };
        table.begin(begin());
        assert_eq!(table.measured_s(id), None);
        for seconds in [9.0, 1.0, 3.0] {
            table.evaluated((id, None), seconds, StreamStats::default());
        }
        let stats = &table.list()[0];
        assert_eq!((stats.measured_s, stats.last_s, stats.evaluations), (3.0, 3.0, 3));
        table.begin(begin());
        table.evaluated((id, None), 2.0, StreamStats { bytes: 7, ..StreamStats::default() });
        assert_eq!(table.measured_s(id), Some(2.0));
        assert_eq!(table.list()[0].bytes_streamed, 7);
        // Two jobs that have the model in turns have their own.
        let jobs: [Arc<str>; 2] = ["a".into(), "b".into()];
        jobs.iter().for_each(|job| table.begin(ModelStats { job: Some(Arc::clone(job)), ..begin() }));
        for (job, seconds) in [(0, 5.0), (1, 6.0), (0, 5.0)] {
            table.evaluated((id, Some(&jobs[job])), seconds, StreamStats::default());
        }
        let counts: Vec<u64> = table.list_by_job().iter().map(|stats| stats.evaluations).collect();
        assert_eq!(counts, [1, 2, 1]);
        assert_eq!((table.list().len(), table.list()[0].measured_s), (1, 6.0));
        for job in 0..40 {
            table.begin(ModelStats { job: Some(job.to_string().into()), ..begin() });
        }
        assert_eq!(table.list_by_job().len(), JOBS_KEPT);
    }
}
