//! `cargo xtask bench-report`: writes docs/BENCHMARKS.md from the measurements in docs/results, so that no figure in it
//! is typed by hand. With `--check` it only says whether the page is what they give.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The page that is written.
const PAGE: &str = "docs/BENCHMARKS.md";
/// Where the results are, as `gantry bench … --json` printed them.
const RESULTS: &str = "docs/results";

/// `gantry bench flux`.
#[derive(Deserialize)]
struct Flux {
    version: String,
    device: String,
    device_name: String,
    parameters: u64,
    pixels: usize,
    link_bytes_per_s: f64,
    formats: Vec<Format>,
}

#[derive(Deserialize)]
struct Format {
    format: String,
    model_bytes: u64,
    cut_relative_error: f64,
    rows: Vec<FluxRow>,
}

#[derive(Deserialize)]
struct FluxRow {
    allocation: String,
    streamed_bytes: u64,
    load_s: f64,
    step_s: f64,
    bound_s: f64,
    over_bound: f64,
    predicted_s: f64,
    peak_bytes: u64,
    planned_bytes: u64,
    identical: bool,
}

/// `gantry bench ops`.
#[derive(Deserialize)]
struct Ops {
    version: String,
    device: String,
    device_name: String,
    peer: Option<String>,
    rows: Vec<OpsRow>,
}

#[derive(Deserialize)]
struct OpsRow {
    name: String,
    dtype: String,
    seconds: f64,
    gflops: f64,
    ratio: Option<f64>,
}

/// `gantry bench residency`.
#[derive(Deserialize)]
struct Residency {
    version: String,
    device: String,
    device_name: String,
    link_bytes_per_s: f64,
    streaming: Vec<Streaming>,
    memory: Option<Memory>,
}

#[derive(Deserialize)]
struct Streaming {
    offload_percent: u32,
    measured_s: f64,
    over_bound: f64,
    predicted_over_measured: f64,
    identical: bool,
}

#[derive(Deserialize)]
struct Memory {
    cycles: usize,
    model_bytes: u64,
    growth_percent: f64,
    left_percent: f64,
}

/// Writes the page, or with `--check` compares it.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = page(&root.join(RESULTS))?;
    match arguments {
        [] => {
            fs::write(root.join(PAGE), page).with_context(|| format!("writing {PAGE}"))?;
            println!("{PAGE} written");
            Ok(ExitCode::SUCCESS)
        }
        [only] if only == "--check" => {
            if fs::read_to_string(root.join(PAGE)).is_ok_and(|text| text == page) {
                return Ok(ExitCode::SUCCESS);
            }
            eprintln!("{PAGE} is not what {RESULTS} gives; run `cargo xtask bench-report`");
            Ok(ExitCode::FAILURE)
        }
        _ => bail!("usage: cargo xtask bench-report [--check]"),
    }
}

fn page(results: &Path) -> Result<String> {
    let mut text = String::from(
        "# Benchmarks\n\n\
         Written by `cargo xtask bench-report` from the files in `docs/results`, which `gantry bench … --json` printed\n\
         on the machines named below. Do not edit it.\n\n\
         The bound of a step is the longer of the resident step and the streamed bytes over the measured link.\n\
         Predicted and peak are shares of measured and planned. \"Same bits\" compares with the resident result.\n",
    );
    for name in ["flux-h200", "flux-split-h200"] {
        flux(&mut text, &read(results, name)?)?;
    }
    for name in ["residency-h200", "residency-sim"] {
        residency(&mut text, &read(results, name)?)?;
    }
    for name in ["ops-h200", "ops-cpu"] {
        ops(&mut text, &read(results, name)?)?;
    }
    Ok(text)
}

fn read<T: DeserializeOwned>(results: &Path, name: &str) -> Result<T> {
    let file = results.join(format!("{name}.json"));
    let json = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    serde_json::from_str(&json).with_context(|| file.display().to_string())
}

fn flux(text: &mut String, report: &Flux) -> Result<()> {
    writeln!(text, "\n## FLUX-shaped model, {} on {}\n", report.device, report.device_name)?;
    writeln!(
        text,
        "Gantry {}; {:.1} billion random weights, {} pixels square, batch 1; link {:.1} GB/s.\n",
        report.version,
        report.parameters as f64 / 1e9,
        report.pixels,
        report.link_bytes_per_s / 1e9
    )?;
    text.push_str(
        "| stored as | allocation | streamed GB | load s | step ms | bound ms | over bound | predicted | peak | same bits |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for format in &report.formats {
        for row in &format.rows {
            let allocation = if row.allocation.is_empty() { "all on the device" } else { &row.allocation };
            writeln!(
                text,
                "| {} | {allocation} | {:.2} | {:.2} | {:.1} | {:.1} | {:.3} | {:.3} | {:.3} | {} |",
                format.format,
                row.streamed_bytes as f64 / 1e9,
                row.load_s,
                row.step_s * 1e3,
                row.bound_s * 1e3,
                row.over_bound,
                row.predicted_s / row.step_s,
                row.peak_bytes as f64 / row.planned_bytes as f64,
                yes(row.identical),
            )?;
        }
    }
    text.push_str("\nOne double and one single block of it against the CPU in f32, relative error: ");
    let errors: Vec<String> = report
        .formats
        .iter()
        .map(|it| {
            format!(
                "{} {:.1e} ({:.1} GB whole)",
                it.format,
                it.cut_relative_error,
                it.model_bytes as f64 / 1e9
            )
        })
        .collect();
    writeln!(text, "{}.", errors.join(", "))?;
    Ok(())
}

fn residency(text: &mut String, report: &Residency) -> Result<()> {
    writeln!(text, "\n## Streaming, {} on {}\n", report.device, report.device_name)?;
    writeln!(text, "Gantry {}; link {:.1} GB/s.\n", report.version, report.link_bytes_per_s / 1e9)?;
    text.push_str("| offloaded | step ms | over bound | predicted | same bits |\n|---|---|---|---|---|\n");
    for row in &report.streaming {
        writeln!(
            text,
            "| {} % | {:.1} | {:.3} | {:.3} | {} |",
            row.offload_percent,
            row.measured_s * 1e3,
            row.over_bound,
            row.predicted_over_measured,
            yes(row.identical)
        )?;
    }
    if let Some(memory) = &report.memory {
        writeln!(
            text,
            "\n{} loads and frees of a model of {:.1} GB: resident memory grew by {:.2} % of it, and {:.2} % stayed.",
            memory.cycles,
            memory.model_bytes as f64 / 1e9,
            memory.growth_percent,
            memory.left_percent
        )?;
    }
    Ok(())
}

fn ops(text: &mut String, report: &Ops) -> Result<()> {
    writeln!(text, "\n## Operations, {} on {}\n", report.device, report.device_name)?;
    let peer = report.peer.as_deref().unwrap_or("none");
    writeln!(text, "Gantry {}; peer: {peer}. More than 1 is faster than the peer.\n", report.version)?;
    text.push_str("| shape | type | ms | GFLOP/s | of the peer |\n|---|---|---|---|---|\n");
    for row in &report.rows {
        let ratio = row.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
        let (ms, gflops) = (row.seconds * 1e3, row.gflops);
        writeln!(text, "| {} | {} | {ms:.3} | {gflops:.0} | {ratio} |", row.name, row.dtype)?;
    }
    Ok(())
}

fn yes(flag: bool) -> &'static str {
    if flag { "yes" } else { "**no**" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_differs_shows() {
        let json = r#"{ "version": "1", "device": "sim:0", "device_name": "x", "link_bytes_per_s": 2e9,
            "streaming": [{ "offload_percent": 50, "measured_s": 0.5, "over_bound": 1.25,
                "predicted_over_measured": 0.9, "identical": false }], "memory": null }"#;
        let mut text = String::new();
        residency(&mut text, &serde_json::from_str(json).unwrap()).unwrap();
        assert!(text.contains("| 50 % | 500.0 | 1.250 | 0.900 | **no** |"), "{text}");
        assert!(text.contains("link 2.0 GB/s"), "{text}");
    }
}
