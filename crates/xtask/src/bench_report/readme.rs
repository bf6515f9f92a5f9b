//! The numbers of the README: what a step of a large model costs by where its weights are, from `gantry bench served`.

use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::served::Served;

/// Between these lines of the README stands what is written here.
const BEGIN: &str = "<!-- measured: `cargo xtask bench-report` writes this from docs/results -->\n";
const END: &str = "<!-- end of measured -->\n";
/// The rows that are shown, and what people call them.
const ROWS: [(&str, &str); 3] = [
    ("resident", "all on the card"),
    ("half offloaded", "half in host memory"),
    ("all offloaded", "all in host memory, streamed in every step"),
];

/// The README with the numbers of a measurement.
pub(super) fn page(readme: &str, report: &Served) -> Result<String> {
    let (before, rest) = readme.split_once(BEGIN).context("README.md has no line for measured numbers")?;
    let (_, after) = rest.split_once(END).context("the measured numbers of README.md have no end")?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", table(report)?))
}

fn table(report: &Served) -> Result<String> {
    let mut text = String::new();
    writeln!(
        text,
        "| a FLUX-shaped model of {:.1} GB, {} × {} pixels, {} | weights on the card | one step | of what the link and the card allow |\n\
         |---|---|---|---|",
        report.model_bytes as f64 / 1e9,
        report.pixels,
        report.pixels,
        report.device_name
    )?;
    for (name, what) in ROWS {
        let row = report.rows.iter().find(|row| row.name == name);
        let row = row.with_context(|| format!("the served steps have no row \"{name}\""))?;
        let on_card = (row.placed.resident_bytes + row.placed.ring_bytes) as f64 / 1e9;
        let share = 100.0 / row.over_bound;
        writeln!(text, "| {what} | {on_card:.1} GB | {:.3} s | {share:.1} % |", row.second.step_s)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Served {
        let row = |name: &str, resident: u64, ring: u64| {
            format!(
                r#"{{"name": "{name}", "placed": {{"mode": "m", "streamed_bytes": 0, "resident_bytes": {resident}, "ring_bytes": {ring}}},
                "first": {{"load_s": 0, "step_s": 1, "predicted_s": 1}}, "second": {{"load_s": 0, "step_s": 0.25, "predicted_s": 1}},
                "bound_s": 1, "over_bound": 1.25, "same_bits": true}}"#
            )
        };
        let rows = ROWS.map(|(name, _)| row(name, 3_000_000_000, 500_000_000)).join(",");
        let text = format!(
            r#"{{"version": "0", "date": "d", "device": "cuda:0", "device_name": "Card", "model_bytes": 24000000000,
            "pixels": 1024, "text_tokens": 1, "link_bytes_per_s": null, "bench_step_s": 1, "rows": [{rows}],
            "virtual_vram": [], "now": [], "left_out": []}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn what_stands_between_the_marks_is_replaced() {
        let readme = format!("a\n{BEGIN}old\n{END}b\n");
        let text = page(&readme, &report()).unwrap();
        assert!(text.starts_with(&format!("a\n{BEGIN}| a FLUX-shaped model of 24.0 GB")), "{text}");
        assert!(text.ends_with(&format!("{END}b\n")) && !text.contains("old"), "{text}");
        assert!(text.contains("| all on the card | 3.5 GB | 0.250 s | 80.0 % |\n"), "{text}");
        assert_eq!(page(&text, &report()).unwrap(), text);
        assert!(page("no marks", &report()).is_err());
    }
}
