//! Lossless coding of weights: how fast, and how far they shrink.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Deserialize;

/// `gantry bench codec`.
#[derive(Deserialize)]
pub(super) struct Codec {
    version: String,
    date: String,
    device: String,
    device_name: String,
    host: String,
    elements: u64,
    runs: usize,
    speeds: Vec<Speed>,
    device_decodes: Vec<DeviceSpeed>,
    ratios: Vec<Ratio>,
}

#[derive(Deserialize)]
struct Speed {
    dtype: String,
    coder: String,
    encode_gb_per_s: f64,
    decode_gb_per_s: f64,
}

#[derive(Deserialize)]
struct DeviceSpeed {
    dtype: String,
    gb_per_s: f64,
}

#[derive(Deserialize)]
struct Ratio {
    weights: String,
    dtype: String,
    stored: String,
    bytes: u64,
    ratio: f64,
    escapes_percent: f64,
    raw_tiles: usize,
    tiles: usize,
}

pub(super) fn section(text: &mut String, report: &Codec) -> Result<()> {
    let Codec { version, date, device, device_name, host, elements, runs, .. } = report;
    writeln!(text, "\n## Lossless coding of weights, {host}\n")?;
    writeln!(
        text,
        "Gantry {version}, {date}. One core, {:.0} million values whose rows differ in scale, the fastest of {runs} runs;\n\
         GB of the original. Coding includes the checksum, decoding does not.\n",
        *elements as f64 / 1e6
    )?;
    writeln!(text, "| type | coder | encode GB/s | decode GB/s |\n|---|---|---|---|")?;
    for Speed { dtype, coder, encode_gb_per_s, decode_gb_per_s } in &report.speeds {
        writeln!(text, "| {dtype} | {coder} | {encode_gb_per_s:.2} | {decode_gb_per_s:.2} |")?;
    }
    writeln!(text, "\nDecoding by all of {device} ({device_name}):\n\n| type | GB/s |\n|---|---|")?;
    for DeviceSpeed { dtype, gb_per_s } in &report.device_decodes {
        writeln!(text, "| {dtype} | {gb_per_s:.1} |")?;
    }
    writeln!(
        text,
        "\n| weights | type | | MB | coded / original | escapes | raw tiles |\n|---|---|---|---|---|---|---|"
    )?;
    for row in &report.ratios {
        let Ratio { weights, dtype, stored, bytes, ratio, escapes_percent, raw_tiles, tiles } = row;
        let megabytes = *bytes as f64 / 1e6;
        writeln!(
            text,
            "| {weights} | {dtype} | {stored} | {megabytes:.1} | {ratio:.4} | {escapes_percent:.2} % | {raw_tiles} of {tiles} |"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_show_what_was_measured() {
        let json = r#"{"version": "1", "date": "d", "device": "cpu", "device_name": "chip", "host": "chip", "elements": 2000000, "runs": 3,
            "speeds": [{"dtype": "bf16", "coder": "avx2", "encode_gb_per_s": 3.125, "decode_gb_per_s": 8.0}],
            "device_decodes": [{"dtype": "bf16", "gb_per_s": 12.34}],
            "ratios": [{"weights": "w", "dtype": "bf16", "stored": "cast", "bytes": 2500000, "ratio": 0.70612,
                        "escapes_percent": 2.371, "raw_tiles": 1, "tiles": 9}]}"#;
        let mut text = String::new();
        section(&mut text, &serde_json::from_str(json).unwrap()).unwrap();
        assert!(text.contains("One core, 2 million values"), "{text}");
        assert!(text.contains("| bf16 | avx2 | 3.12 | 8.00 |"), "{text}");
        assert!(text.contains("| bf16 | 12.3 |"), "{text}");
        assert!(text.contains("| w | bf16 | cast | 2.5 | 0.7061 | 2.37 % | 1 of 9 |"), "{text}");
    }
}
