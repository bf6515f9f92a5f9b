//! One picture on two devices: what `gantry bench shared` measured.

use std::fmt::Write;

use anyhow::Result;
use serde::Deserialize;

use super::yes;

/// `gantry bench shared`.
#[derive(Deserialize)]
pub(super) struct Shared {
    version: String,
    date: String,
    device_name: String,
    devices: [String; 2],
    model: String,
    pixels: usize,
    steps: usize,
    rows: Vec<Row>,
    left_out: Vec<String>,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    timed: String,
    one_device_s: f64,
    two_devices_s: f64,
    ratio: f64,
    same_bits: bool,
    error_against_whole: Option<f64>,
}

/// Writes the section.
pub(super) fn section(text: &mut String, report: &Shared) -> Result<()> {
    let [first, second] = &report.devices;
    writeln!(text, "\n## Shared by two devices, {first} and {second} on {}\n", report.device_name)?;
    writeln!(
        text,
        "Gantry {}, {}; {}, {} pixels square, {} steps, over HTTP. \"Same bits\" compares with {first} alone, which does the \
         same parts one after another: two logical devices of one card share its speed, so that it is the bits that count \
         there.\n\n\
         | what | timed | one device s | both s | ratio | same bits | error against a whole batch |\n|---|---|---|---|---|---|---|",
        report.version, report.date, report.model, report.pixels, report.steps,
    )?;
    for row in &report.rows {
        let error = row.error_against_whole.map_or_else(|| "–".to_owned(), |error| format!("{error:.1e}"));
        let Row { name, timed, one_device_s, two_devices_s, ratio, same_bits, .. } = row;
        let same = yes(*same_bits);
        writeln!(
            text,
            "| {name} | {timed} | {one_device_s:.3} | {two_devices_s:.3} | {ratio:.3} | {same} | {error} |"
        )?;
    }
    report.left_out.iter().try_for_each(|line| writeln!(text, "\nLeft out: {line}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_show_what_was_measured() {
        let json = r#"{"version": "1", "date": "d", "device_name": "card", "devices": ["cuda:0", "cuda:1"], "model": "m",
            "pixels": 1024, "steps": 8, "left_out": ["x: no"], "rows": [
            {"name": "a batch", "timed": "step", "one_device_s": 2.0, "two_devices_s": 1.0, "ratio": 0.5, "same_bits": true,
             "error_against_whole": 0.001},
            {"name": "jobs", "timed": "all jobs", "one_device_s": 4.0, "two_devices_s": 3.0, "ratio": 0.75, "same_bits": false,
             "error_against_whole": null}]}"#;
        let mut text = String::new();
        section(&mut text, &serde_json::from_str(json).unwrap()).unwrap();
        assert!(text.contains("| a batch | step | 2.000 | 1.000 | 0.500 | yes | 1.0e-3 |"), "{text}");
        assert!(text.contains("| jobs | all jobs | 4.000 | 3.000 | 0.750 | **no** | – |"), "{text}");
        assert!(text.contains("Left out: x: no"), "{text}");
    }
}
