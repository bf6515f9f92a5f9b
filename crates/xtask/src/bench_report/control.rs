//! Steps with a control network: what `gantry bench step --control` measured.

use std::fmt::Write;

use anyhow::Result;
use serde::Deserialize;

/// `gantry bench step --control`.
#[derive(Deserialize)]
pub(super) struct Control {
    version: String,
    device: String,
    device_name: String,
    model: String,
    network_bytes: u64,
    cfg: f64,
    size: Size,
    without: Kind,
    with: Kind,
    ratio: f64,
}

#[derive(Deserialize)]
struct Size {
    width: usize,
    height: usize,
}

#[derive(Deserialize)]
struct Kind {
    step_s: f64,
}

/// Writes the section, if there is anything to say.
pub(super) fn section(text: &mut String, reports: &[Control]) -> Result<()> {
    let Some(first) = reports.first() else { return Ok(()) };
    writeln!(text, "\n## Steps with a ControlNet, {} on {}\n", first.device, first.device_name)?;
    writeln!(
        text,
        "Gantry {}; random weights, all of both on the device, steps with and without in turns.\n\n\
         | model | ControlNet GB | size | cfg | step ms | with a ControlNet ms | over without |\n|---|---|---|---|---|---|---|",
        first.version
    )?;
    for Control { model, network_bytes, cfg, size, without, with, ratio, .. } in reports {
        writeln!(
            text,
            "| {model} | {:.2} | {} × {} | {cfg} | {:.1} | {:.1} | {ratio:.3} |",
            *network_bytes as f64 / 1e9,
            size.width,
            size.height,
            without.step_s * 1e3,
            with.step_s * 1e3,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_show_what_was_measured() {
        let json = r#"[{"version": "1", "device": "cuda:0", "device_name": "card", "model": "m", "network_bytes": 2500000000,
            "cfg": 7.0, "size": {"width": 1024, "height": 1024}, "without": {"first_step_s": 1.0, "step_s": 0.1},
            "with": {"first_step_s": 1.0, "step_s": 0.14}, "ratio": 1.4}]"#;
        let mut text = String::new();
        section(&mut text, &serde_json::from_str::<Vec<Control>>(json).unwrap()).unwrap();
        assert!(text.contains("| m | 2.50 | 1024 × 1024 | 7 | 100.0 | 140.0 | 1.400 |"), "{text}");
        let mut nothing = String::new();
        section(&mut nothing, &[]).unwrap();
        assert!(nothing.is_empty());
    }
}
