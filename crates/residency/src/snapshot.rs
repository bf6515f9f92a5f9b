//! Memory snapshots: what was in use on every device at each phase, in a bounded series.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

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

    /// One line of JSON: number, time, label, and bytes used and cached by device.
    pub fn to_json_line(&self) -> String {
        let devices = |list: &[(DeviceId, u64)]| {
            list.iter().map(|(id, bytes)| format!("\"{id}\":{bytes}")).collect::<Vec<_>>().join(",")
        };
        format!(
            "{{\"number\":{},\"time\":\"{}\",\"label\":{},\"used\":{{{}}},\"cached\":{{{}}}}}",
            self.number,
            utc(self.time),
            quoted(&self.label),
            devices(&self.used),
            devices(&self.cached),
        )
    }
}

/// The latest snapshots, and optionally a file that gets every one of them.
#[derive(Debug)]
pub struct SnapshotSeries {
    kept: Mutex<Kept>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Kept {
    snapshots: VecDeque<Snapshot>,
    taken: u64,
    file: Option<File>,
}

impl SnapshotSeries {
    /// Keeps at most `limit`.
    pub fn new(limit: usize) -> SnapshotSeries {
        SnapshotSeries { kept: Mutex::default(), limit: limit.max(1) }
    }

    /// Appends every later snapshot to a file, as lines of JSON.
    pub fn write_to(&self, path: &Path) -> std::io::Result<()> {
        self.lock().file = Some(OpenOptions::new().create(true).append(true).open(path)?);
        Ok(())
    }

    /// Takes one now. A file that cannot be written any more is given up: counting memory goes on.
    pub fn take(&self, label: &str, devices: &Registry) -> Snapshot {
        let used = devices.iter().map(|d| (d.id(), d.ledger().report().used)).collect();
        let cached = devices.iter().map(|d| (d.id(), d.memory().map_or(0, |m| m.cached))).collect();
        let mut kept = self.lock();
        let snapshot =
            Snapshot { number: kept.taken, time: SystemTime::now(), label: label.to_owned(), used, cached };
        kept.taken += 1;
        if let Some(file) = &mut kept.file
            && writeln!(file, "{}", snapshot.to_json_line()).is_err()
        {
            kept.file = None;
        }
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

/// `2026-11-15T16:40:00.123Z`.
fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = ((since.as_secs() / 86_400) as i64, since.as_secs() % 86_400);
    // Civil date from a day count: the year starts in March, so the leap day is its last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{:03}Z", since.subsec_millis())
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_utc() {
        let at = |seconds: u64| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_826_599), "2000-02-29T12:16:39.000Z");
        assert_eq!(at(1_794_761_999), "2026-11-15T16:59:59.000Z");
    }

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

    #[test]
    fn a_line_is_json() {
        let line = Snapshot {
            number: 7,
            time: UNIX_EPOCH,
            label: "a \"b\"\n".into(),
            used: vec![(DeviceId::CPU, 5), (DeviceId::sim(0), 9)],
            cached: Vec::new(),
        }
        .to_json_line();
        let expected = "{\"number\":7,\"time\":\"1970-01-01T00:00:00.000Z\",\"label\":\"a \\\"b\\\"\\u000a\",\
                        \"used\":{\"cpu\":5,\"sim:0\":9},\"cached\":{}}";
        assert_eq!(line, expected);
    }
}
