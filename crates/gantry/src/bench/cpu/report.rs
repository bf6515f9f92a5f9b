//! What `gantry bench cpu` reports.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};
use meta::{ByteSize, Moment};
use serde::Serialize;
use serde_json::{Value, json};

use super::side::Side;
use super::{PIXELS, TEXT};
use crate::machine::Machine;
use crate::table::Table;

/// All cases, and where and when they were measured.
#[derive(Serialize)]
pub(super) struct Report {
    version: &'static str,
    date: String,
    device: String,
    device_name: String,
    detail: String,
    threads: usize,
    pixels: usize,
    text_tokens: usize,
    rows: Vec<Row>,
}

/// One case.
#[derive(Serialize)]
pub(super) struct Row {
    name: String,
    ours: Summary,
    /// What the peer is, or why there is none.
    peer: String,
    theirs: Option<Summary>,
    /// Our time over the peer's.
    median_ratio: Option<f64>,
    min_ratio: Option<f64>,
    /// Our growth of memory over the peer's.
    growth_ratio: Option<f64>,
    /// ‖ours − theirs‖ / ‖theirs‖.
    pub(super) relative_error: Option<f64>,
}

/// Steps of one side.
#[derive(Serialize)]
struct Summary {
    steps: usize,
    median_s: f64,
    min_s: f64,
    /// The least processor time of a step, all threads together.
    cpu_min_s: Option<f64>,
    /// The most memory that the process had in the machine during its steps, weights included.
    peak_bytes: Option<u64>,
    /// How much more that is than before them.
    growth_bytes: Option<u64>,
}

/// What one side has answered so far.
#[derive(Default)]
pub(super) struct Measured {
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
    before_bytes: Option<u64>,
    peak_bytes: Option<u64>,
}

impl Measured {
    /// Takes the answer to `warm`.
    pub(super) fn start(&mut self, answer: &Value) {
        self.before_bytes = answer["resident_bytes"].as_u64();
    }

    /// Takes the answer to `step`.
    pub(super) fn step(&mut self, answer: &Value) -> Result<()> {
        self.seconds.push(answer["seconds"].as_f64().context("the answer has no time")?);
        self.cpu_seconds.extend(answer["cpu_seconds"].as_f64());
        Ok(())
    }

    /// Asks for the peak and the output of the last step.
    pub(super) fn finish(&mut self, side: &mut Side, path: &Path) -> Result<Vec<f32>> {
        self.peak_bytes = side.ask(&json!({"do": "finish", "output": path}))?["peak_bytes"].as_u64();
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        let (values, _) = bytes.as_chunks::<4>();
        Ok(values.iter().map(|value| f32::from_le_bytes(*value)).collect())
    }

    fn summary(mut self) -> Summary {
        self.seconds.sort_by(f64::total_cmp);
        let least = |values: &[f64]| values.iter().copied().min_by(f64::total_cmp);
        Summary {
            steps: self.seconds.len(),
            median_s: self.seconds.get(self.seconds.len() / 2).copied().unwrap_or(f64::NAN),
            min_s: self.seconds.first().copied().unwrap_or(f64::NAN),
            cpu_min_s: least(&self.cpu_seconds),
            peak_bytes: self.before_bytes.and(self.peak_bytes),
            growth_bytes: self
                .peak_bytes
                .zip(self.before_bytes)
                .map(|(peak, before)| peak.saturating_sub(before)),
        }
    }
}

impl Row {
    pub(super) fn new(name: &str, ours: Measured, peer: Option<String>, missing: Option<String>) -> Row {
        Row {
            name: name.to_owned(),
            ours: ours.summary(),
            peer: peer.unwrap_or_else(|| format!("none: {}", missing.unwrap_or_default())),
            theirs: None,
            median_ratio: None,
            min_ratio: None,
            growth_ratio: None,
            relative_error: None,
        }
    }

    /// Adds the peer's figures.
    pub(super) fn compare(&mut self, theirs: Measured, relative_error: f64) {
        let theirs = theirs.summary();
        self.median_ratio = Some(self.ours.median_s / theirs.median_s);
        self.min_ratio = Some(self.ours.min_s / theirs.min_s);
        let growth = self.ours.growth_bytes.zip(theirs.growth_bytes);
        self.growth_ratio = growth.map(|(ours, theirs)| ours as f64 / theirs as f64);
        self.relative_error = Some(relative_error);
        self.theirs = Some(theirs);
    }
}

impl Report {
    pub(super) fn new(machine: &Machine, threads: usize) -> Report {
        let description = machine.cpu().description();
        Report {
            version: env!("CARGO_PKG_VERSION"),
            date: Moment::utc(SystemTime::now()).date(),
            device: description.id.to_string(),
            device_name: description.name.clone(),
            detail: description.detail.clone(),
            threads,
            pixels: PIXELS,
            text_tokens: TEXT,
            rows: Vec::new(),
        }
    }

    pub(super) fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(super) fn to_text(&self) -> String {
        let mut table =
            Table::new(&["step", "side", "median s", "min s", "cpu s", "peak", "growth", "error"]);
        for row in &self.rows {
            let error = row.relative_error.map_or(String::new(), |error| format!("{error:.1e}"));
            row.ours.add_to(&mut table, &row.name, "ours", "");
            if let Some(theirs) = &row.theirs {
                theirs.add_to(&mut table, "", "PyTorch", &error);
            }
            let ratio = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.3}"));
            let (median, min) = (ratio(row.median_ratio), ratio(row.min_ratio));
            table.row(&["", "ours / peer", &median, &min, "", "", &ratio(row.growth_ratio), ""]);
        }
        let peer = self.rows.first().map_or("none", |row| &row.peer);
        format!(
            "{} ({}, {}), {}, {} threads, {} pixels square where a step names no other size, FLUX with {} text \
             tokens; peer: {peer}\n\n{table}",
            self.device,
            self.device_name,
            self.detail,
            self.date,
            self.threads,
            self.pixels,
            self.text_tokens,
        )
    }
}

impl Summary {
    fn add_to(&self, table: &mut Table, name: &str, side: &str, error: &str) {
        let bytes = |value: Option<u64>| value.map_or("-".into(), |value| ByteSize(value).to_string());
        table.row(&[
            name,
            side,
            &format!("{:.3}", self.median_s),
            &format!("{:.3}", self.min_s),
            &self.cpu_min_s.map_or("-".into(), |seconds| format!("{seconds:.2}")),
            &bytes(self.peak_bytes),
            &bytes(self.growth_bytes),
            error,
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_summed_up_and_compared() {
        let measured = |seconds: &[f64], before: u64, peak: u64| {
            let mut measured = Measured::default();
            measured.start(&json!({"resident_bytes": before}));
            for seconds in seconds {
                measured.step(&json!({"seconds": seconds, "cpu_seconds": seconds * 2.0})).unwrap();
            }
            measured.peak_bytes = Some(peak);
            measured
        };
        let mut row = Row::new("a", measured(&[3.0, 1.0, 2.0], 10, 60), Some("b".into()), None);
        assert_eq!((row.ours.median_s, row.ours.min_s, row.ours.cpu_min_s), (2.0, 1.0, Some(2.0)));
        row.compare(measured(&[4.0, 4.0, 5.0], 100, 200), 1e-6);
        assert_eq!((row.median_ratio, row.min_ratio, row.growth_ratio), (Some(0.5), Some(0.25), Some(0.5)));
    }

    #[test]
    fn memory_that_is_not_told_is_not_guessed() {
        let mut measured = Measured::default();
        measured.start(&json!({"resident_bytes": null}));
        measured.step(&json!({"seconds": 1.0, "cpu_seconds": null})).unwrap();
        measured.peak_bytes = Some(5);
        let summary = measured.summary();
        assert_eq!((summary.peak_bytes, summary.growth_bytes, summary.cpu_min_s), (None, None, None));
        assert!(Measured::default().step(&json!({"seconds": "soon"})).is_err());
    }
}
