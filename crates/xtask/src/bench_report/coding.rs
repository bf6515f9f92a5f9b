//! Coding a model while it is streamed, and damaged coded weights.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use serde::Deserialize;

/// `gantry bench coding`.
#[derive(Deserialize)]
pub(super) struct Coding {
    version: String,
    date: String,
    device_name: String,
    cores: usize,
    /// Not told by earlier versions.
    #[serde(default)]
    encoder: Option<String>,
    model_bytes: u64,
    coded_bytes: u64,
    plain_pass_s: f64,
    coding_s: f64,
    slower: Option<f64>,
    coded_pass_s: f64,
    #[serde(default)]
    decoded_bytes: Option<u64>,
    #[serde(default)]
    decoding_share: Option<f64>,
}

/// What the campaign of damaged coded weights wrote.
#[derive(Deserialize)]
pub(super) struct Damage {
    version: String,
    date: String,
    host: String,
    coders: Vec<String>,
    inputs: u64,
    seconds: f64,
    decoded: u64,
    refused: BTreeMap<String, u64>,
}

pub(super) fn section(text: &mut String, reports: &[Coding]) -> Result<()> {
    writeln!(text, "\n## Coding beside streaming\n")?;
    writeln!(
        text,
        "A pass streams every block once and computes nothing. Coding goes on beside passes, with processors that nothing else \
         wants.\n"
    )?;
    writeln!(
        text,
        "| where | version | cores, coder | model GB | coded GB | until all is coded s | GB/s | a pass meanwhile | plain pass ms | \
         coded pass ms | decoded GB | decoding |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    let unknown = || "–".to_owned();
    for report in reports {
        let Coding { version, date, device_name, cores, encoder, .. } = report;
        let gb = |bytes: u64| bytes as f64 / 1e9;
        writeln!(
            text,
            "| {device_name} | {version}, {date} | {cores}, {} | {:.2} | {:.2} | {:.2} | {:.2} | {} | {:.1} | {:.1} | {} | {} |",
            encoder.as_deref().unwrap_or("–"),
            gb(report.model_bytes),
            gb(report.coded_bytes),
            report.coding_s,
            gb(report.model_bytes) / report.coding_s,
            report.slower.map_or_else(unknown, |slower| format!("{slower:.3} of a plain one")),
            report.plain_pass_s * 1e3,
            report.coded_pass_s * 1e3,
            report.decoded_bytes.map_or_else(unknown, |bytes| format!("{:.2}", gb(bytes))),
            report.decoding_share.map_or_else(unknown, |share| format!("{:.1} %", 100.0 * share)),
        )?;
    }
    Ok(())
}

pub(super) fn damage(text: &mut String, report: &Damage) -> Result<()> {
    let Damage { version, date, host, coders, inputs, seconds, decoded, refused } = report;
    let listed: Vec<String> = refused.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    writeln!(
        text,
        "\nDamaged coded weights, Gantry {version}, {date}, {host}: {inputs} inputs in {seconds:.0} s by {}, which agreed on all; \
         {decoded} decoded, the others were refused ({}).",
        coders.join(", "),
        listed.join(", ")
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_earlier_versions_did_not_measure_is_left_open() {
        let known = r#"{"version": "1", "date": "d", "device_name": "Card", "cores": 2, "encoder": "avx2",
            "model_bytes": 2000000000, "coded_bytes": 1400000000, "plain_pass_s": 0.5, "coding_s": 0.5, "slower": 1.02,
            "coded_pass_s": 0.4, "decoded_bytes": 2000000000, "decoding_share": 0.125}"#;
        let known: Coding = serde_json::from_str(known).unwrap();
        let text = r#"{"version": "0", "date": "d", "device_name": "Old", "cores": 16, "model_bytes": 1, "coded_bytes": 1,
            "plain_pass_s": 1, "coding_s": 1, "slower": null, "coded_pass_s": 1}"#;
        let mut page = String::new();
        section(&mut page, &[known, serde_json::from_str(text).unwrap()]).unwrap();
        assert!(page.contains("| 2, avx2 | 2.00 | 1.40 | 0.50 | 4.00 | 1.020 of a plain one |"), "{page}");
        assert!(page.contains("| 2.00 | 12.5 % |") && page.contains("| – | – |"), "{page}");
    }
}
