//! Memory snapshots: what was in use on every device at each phase, in a bounded series.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use device::Registry;
use meta::DeviceId;

/// Bytes in use on every device at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Counts up from 0, so that a gap shows where old ones were dropped.
    pub number: u64,
    /// When, as UTC.
    pub time: SystemTime,
    /// What had just happened, such as `free: after unload`.
    pub label: String,
    /// Bytes in use, by the ledger of each device.
    pub used: Vec<(DeviceId, u64)>,
    /// Bytes that each device's allocator holds for reuse.
    pub cached: Vec<(DeviceId, u64)>,
}

impl Snapshot {
    /// Bytes in use on a device.
    pub fn used_on(&self, device: DeviceId) -> Option<u64> {
        self.used.iter().find(|(id, _)| *id == device).map(|(_, bytes)| *bytes)
    }
}

/// The latest snapshots.
#[derive(Debug)]
pub struct SnapshotSeries {
    kept: Mutex<Kept>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Kept {
    snapshots: VecDeque<Snapshot>,
    taken: u64,
}

impl SnapshotSeries {
    /// Keeps at most `limit`.
    pub fn new(limit: usize) -> SnapshotSeries {
        SnapshotSeries { kept: Mutex::default(), limit: limit.max(1) }
    }

    /// Takes one now.
    pub fn take(&self, label: &str, devices: &Registry) -> Snapshot {
        let used = devices.iter().map(|d| (d.id(), d.ledger().report().used)).collect();
        let cached = devices.iter().map(|d| (d.id(), d.memory().map_or(0, |m| m.cached))).collect();
        let mut kept = self.lock();
        let snapshot =
            Snapshot { number: kept.taken, time: SystemTime::now(), label: label.to_owned(), used, cached };
        kept.taken += 1;
        if kept.snapshots.len() == self.limit {
            kept.snapshots.pop_front();
        }
        kept.snapshots.push_back(snapshot.clone());
        snapshot
    }

    /// The latest, oldest first.
    pub fn latest(&self) -> Vec<Snapshot> {
        self.lock().snapshots.iter().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_is_bounded_and_numbers_go_on() {
        let series = SnapshotSeries::new(3);
        let devices = Registry::default();
        for i in 0..5 {
            series.take(&format!("step {i}"), &devices);
        }
        let numbers: Vec<u64> = series.latest().iter().map(|s| s.number).collect();
        assert_eq!(numbers, [2, 3, 4]);
    }
}
