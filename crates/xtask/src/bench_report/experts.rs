//! Two experts of a video model where less than one fits: what `gantry bench video --device` measured.

use std::fmt::Write;

use anyhow::Result;
use serde::Deserialize;

use super::yes;

/// `gantry bench video`.
#[derive(Deserialize)]
pub(super) struct Video {
    version: String,
    date: String,
    experts: Option<Experts>,
}

#[derive(Deserialize)]
struct Experts {
    device: String,
    device_name: String,
    model: String,
    model_bytes: u64,
    video: [usize; 3],
    cfg: f64,
    steps: usize,
    memory_bytes: [u64; 2],
    both_s: f64,
    one_s: f64,
    ratio: f64,
    same_bits: bool,
}

/// Writes the section, if there is anything to say.
pub(super) fn section(text: &mut String, report: &Video) -> Result<()> {
    let Some(experts) = &report.experts else { return Ok(()) };
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let [width, height, frames] = experts.video;
    writeln!(text, "\n## Two experts, {} on {}\n", experts.device, experts.device_name)?;
    writeln!(
        text,
        "Gantry {}, {}; two files of the size of {} ({:.1} GB each, random weights), half of {} steps each, {width} × {height} × \
         {frames}, cfg {}, over HTTP: the whole job, on all of the card and on a part of it.\n\n\
         | memory GB | job s | over both resident | same bits |\n|---|---|---|---|",
        report.version,
        report.date,
        experts.model,
        gb(experts.model_bytes),
        experts.steps,
        experts.cfg,
    )?;
    let [whole, part] = experts.memory_bytes.map(gb);
    writeln!(text, "| {whole:.1} | {:.2} | 1 | – |", experts.both_s)?;
    let (one_s, ratio) = (experts.one_s, experts.ratio);
    writeln!(text, "| {part:.1} | {one_s:.2} | {ratio:.4} | {} |", yes(experts.same_bits))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_show_what_was_measured() {
        let json = r#"{"version": "1", "date": "d", "families": [], "writing": null, "experts": {"device": "cuda:0",
            "device_name": "card", "model": "m", "model_bytes": 28600000000, "video": [832, 480, 33], "cfg": 5.0, "steps": 8,
            "memory_bytes": [150000000000, 15000000000], "both_s": 20.0, "one_s": 20.5, "ratio": 1.025, "same_bits": true}}"#;
        let mut text = String::new();
        section(&mut text, &serde_json::from_str(json).unwrap()).unwrap();
        assert!(text.contains("| 150.0 | 20.00 | 1 | – |\n| 15.0 | 20.50 | 1.0250 | yes |"), "{text}");
        assert!(text.contains("28.6 GB each"), "{text}");
    }
}
