//! What steps took: predicted and measured, by model.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meta::DeviceId;
use residency::{ModelId, StreamStats};

/// What passes over a model took in its last run. A step's evaluations, one or more for each conditioning, are one pass.
#[derive(Clone, Debug)]
pub struct ModelStats {
    /// The loaded model.
    pub id: ModelId,
    /// Its file's name.
    pub name: String,
    /// Its family.
    pub family: String,
    /// Where it computes.
    pub compute: DeviceId,
    /// Seconds that one pass was predicted to take.
    pub predicted_s: f64,
    /// Seconds that one took, the mean over the last run.
    pub measured_s: f64,
    /// Seconds that the last one took.
    pub last_s: f64,
    /// Passes of the last run.
    pub evaluations: u64,
    /// Bytes that were streamed to the compute device in the last run.
    pub bytes_streamed: u64,
    /// How often a block had to wait for its weights in the last run.
    pub stalls: u64,
    /// How long the host waited in them.
    pub stalled: Duration,
}

/// The table, and how fast devices turned out to be.
#[derive(Debug, Default)]
pub(super) struct StatsTable {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    models: BTreeMap<ModelId, ModelStats>,
    operations_per_s: BTreeMap<DeviceId, f64>,
}

/// Operations per second of a device of which nothing is known yet.
const NOMINAL_SPEED: f64 = 1e12;

impl StatsTable {
    pub(super) fn list(&self) -> Vec<ModelStats> {
        self.lock().models.values().cloned().collect()
    }

    /// Operations per second to predict times with.
    pub(super) fn speed(&self, device: DeviceId) -> f64 {
        self.lock().operations_per_s.get(&device).copied().unwrap_or(NOMINAL_SPEED)
    }

    /// A run begins: what is known of earlier ones goes.
    pub(super) fn begin(&self, stats: ModelStats) {
        self.lock().models.insert(stats.id, stats);
    }

    /// One pass took so long, and since the run began so much was streamed.
    pub(super) fn evaluated(&self, id: ModelId, seconds: f64, streamed: StreamStats) {
        let mut inner = self.lock();
        let Some(stats) = inner.models.get_mut(&id) else { return };
        let before = stats.evaluations as f64;
        stats.measured_s = (stats.measured_s * before + seconds) / (before + 1.0);
        stats.last_s = seconds;
        stats.evaluations += 1;
        stats.bytes_streamed = streamed.bytes;
        stats.stalls = streamed.stalls;
        stats.stalled = streamed.stalled;
    }

    /// So many operations took so long with no copies to wait for: the next plan knows.
    pub(super) fn learn(&self, device: DeviceId, operations: u64, seconds: f64) {
        if operations > 0 && seconds > 0.0 {
            self.lock().operations_per_s.insert(device, operations as f64 / seconds);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_are_averaged_and_speeds_are_learnt() {
        let table = StatsTable::default();
        let id = ModelId(1);
        table.begin(ModelStats {
            id,
            name: "a".into(),
            family: "FLUX.1".into(),
            compute: DeviceId::CPU,
            predicted_s: 2.0,
            measured_s: 0.0,
            last_s: 0.0,
            evaluations: 0,
            bytes_streamed: 0,
            stalls: 0,
            stalled: Duration::ZERO,
        });
        for seconds in [1.0, 3.0] {
            table.evaluated(id, seconds, StreamStats { bytes: 10, ..StreamStats::default() });
        }
        let stats = &table.list()[0];
        assert_eq!((stats.measured_s, stats.last_s, stats.evaluations), (2.0, 3.0, 2));
        assert_eq!(stats.bytes_streamed, 10);
        assert_eq!(table.speed(DeviceId::CPU), NOMINAL_SPEED);
        table.learn(DeviceId::CPU, 100, 2.0);
        assert_eq!(table.speed(DeviceId::CPU), 50.0);
    }
}
