//! A model that is larger than host memory may be, streamed from the disk.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Deserialize;

use super::yes;

/// Steps that read so much faster than sequential reads have something other than the disk to thank.
const FASTER_THAN_THE_DISK: f64 = 1.2;

/// `gantry bench disk`.
#[derive(Deserialize)]
pub(super) struct Disk {
    version: String,
    date: String,
    device: String,
    device_name: String,
    host_limit_bytes: u64,
    model_bytes: u64,
    sequential_bytes_per_s: f64,
    direct: bool,
    disk_bytes: u64,
    step_s: f64,
    disk_bytes_per_s: f64,
    over_sequential: f64,
    predicted_over_measured: f64,
    identical: bool,
    ledger_bytes: u64,
    private_bytes: Option<u64>,
    file_bytes: Option<u64>,
}

pub(super) fn section(text: &mut String, report: &Disk) -> Result<()> {
    let gb = |bytes: u64| bytes as f64 / 1e9;
    writeln!(text, "\n## Streaming from the disk, {} on {}\n", report.device, report.device_name)?;
    let kind = if report.direct { "direct" } else { "plain" };
    writeln!(
        text,
        "Gantry {}, {}; a model of {:.2} GB where {:.2} GB of host memory may be used; sequential {kind} reads of its file in \
         the same run {:.2} GB/s.\n",
        report.version,
        report.date,
        gb(report.model_bytes),
        gb(report.host_limit_bytes),
        report.sequential_bytes_per_s / 1e9,
    )?;
    text.push_str(
        "| read per step GB | step ms | disk GB/s | over sequential | predicted | ledger GB | process GB | same bits |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let process = report.private_bytes.zip(report.file_bytes).map(|(own, file)| gb(own + file));
    writeln!(
        text,
        "| {:.2} | {:.1} | {:.2} | {:.3} | {:.3} | {:.2} | {} | {} |",
        gb(report.disk_bytes),
        report.step_s * 1e3,
        report.disk_bytes_per_s / 1e9,
        report.over_sequential,
        report.predicted_over_measured,
        gb(report.ledger_bytes),
        process.map_or_else(|| "–".to_owned(), |process| format!("{process:.2}")),
        yes(report.identical),
    )?;
    if report.over_sequential > FASTER_THAN_THE_DISK {
        text.push_str(
            "\nSteps read faster than the file is read in order: the storage below this machine keeps what is read again in \
             every step. A disk that does not is at most as fast in steps as in sequential reads.\n",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The section of a run whose disk reads 2 GB/s in order, and so many times that in steps.
    fn of(over_sequential: f64) -> String {
        let json = serde_json::json!({
            "version": "1", "date": "d", "device": "sim:0", "device_name": "x", "host_limit_bytes": 1_000_000_000,
            "model_bytes": 1_500_000_000, "sequential_bytes_per_s": 2e9, "direct": true, "disk_bytes": 800_000_000,
            "step_s": 0.4 / over_sequential, "disk_bytes_per_s": 2e9 * over_sequential,
            "over_sequential": over_sequential, "predicted_over_measured": 0.9, "identical": true,
            "ledger_bytes": 100_000_000, "private_bytes": null, "file_bytes": null,
        });
        let mut text = String::new();
        section(&mut text, &serde_json::from_value(json).unwrap()).unwrap();
        text
    }

    #[test]
    fn a_slow_disk_shows() {
        let text = of(0.8);
        assert!(text.contains("| 0.80 | 500.0 | 1.60 | 0.800 | 0.900 | 0.10 | – | yes |"), "{text}");
        assert!(text.contains("direct reads of its file in the same run 2.00 GB/s"), "{text}");
        assert!(!text.contains("keeps what is read again"), "{text}");
    }

    #[test]
    fn steps_that_no_disk_explains_are_told_as_such() {
        let text = of(2.0);
        assert!(text.contains("keeps what is read again"), "{text}");
    }
}
