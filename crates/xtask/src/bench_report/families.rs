//! `gantry bench step` of every family, and `gantry bench parts`: what their released sizes take on a card, and where the
//! time of a step goes.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::yes;

/// How many kinds of operations of a step are shown.
const LONGEST: usize = 8;

/// `gantry bench step --family … --operations`.
#[derive(Deserialize)]
struct Step {
    version: String,
    device: String,
    device_name: String,
    model: String,
    cfg: f64,
    size: Size,
    link_bytes_per_s: f64,
    formats: Vec<Format>,
}

#[derive(Deserialize)]
struct Size {
    width: usize,
    height: usize,
    frames: usize,
}

#[derive(Deserialize)]
struct Format {
    format: String,
    #[serde(default)]
    resident_over_bf16: Option<f64>,
    #[serde(default)]
    operations: Vec<Operation>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Operation {
    operation: String,
    count: usize,
    seconds: f64,
}

#[derive(Deserialize)]
struct Row {
    offload_percent: u32,
    step_s: f64,
    bound_s: f64,
    over_bound: f64,
    peak_bytes: u64,
    planned_bytes: u64,
    #[serde(default)]
    fp8_products: bool,
    identical: bool,
}

/// `gantry bench parts`.
#[derive(Deserialize)]
pub(super) struct Parts {
    version: String,
    device: String,
    device_name: String,
    /// Who is beside us where a row has a peer.
    #[serde(default)]
    peer: Option<String>,
    rows: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    part: String,
    size: usize,
    #[serde(default)]
    over_bound: Option<f64>,
    first_s: f64,
    seconds: f64,
    peak_bytes: u64,
    planned_bytes: u64,
    #[serde(default)]
    peer: Option<Peer>,
}

#[derive(Deserialize)]
struct Peer {
    seconds: f64,
    ratio: f64,
    relative_error: f64,
}

/// Writes the sections of all files `step-*-h200.json` of a folder.
pub(super) fn section(text: &mut String, results: &Path) -> Result<()> {
    let steps: Vec<Step> = read_all(results, "step-")?;
    let Some(first) = steps.first() else { return Ok(()) };
    writeln!(text, "\n## Steps of released sizes, {} on {}\n", first.device, first.device_name)?;
    writeln!(
        text,
        "Gantry {}; random weights, batch 1, both conditionings where cfg is above 1; link {:.1} GB/s. Bounds as above; \
         convolutions are no part of the floor of a resident step.\n",
        first.version,
        first.link_bytes_per_s / 1e9
    )?;
    text.push_str(
        "| model | stored as | size | cfg | in host memory | step ms | bound ms | over bound | peak GB | peak over plan | same bits |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for step in &steps {
        let Size { width, height, frames } = step.size;
        let frames = if frames > 1 { format!(" × {frames}") } else { String::new() };
        for (format, row) in
            step.formats.iter().flat_map(|it| it.rows.iter().map(move |row| (&it.format, row)))
        {
            writeln!(
                text,
                "| {} | {format}{} | {width} × {height}{frames} | {} | {} % | {:.1} | {:.1} | {:.3} | {:.1} | {:.3} | {} |",
                step.model,
                if row.fp8_products { ", 8-bit products" } else { "" },
                step.cfg,
                row.offload_percent,
                row.step_s * 1e3,
                row.bound_s * 1e3,
                row.over_bound,
                row.peak_bytes as f64 / 1e9,
                row.peak_bytes as f64 / row.planned_bytes as f64,
                yes(row.identical),
            )?;
        }
    }
    over_bf16(text, &steps)?;
    operations(text, &steps)
}

/// How much longer resident steps of other formats take than those of bf16, where that was measured in the same run.
fn over_bf16(text: &mut String, steps: &[Step]) -> Result<()> {
    for step in steps {
        let over = step.formats.iter().filter_map(|it| Some((&it.format, it.resident_over_bf16?)));
        let over: Vec<String> = over.map(|(format, over)| format!("{format} {over:.3}")).collect();
        if !over.is_empty() {
            writeln!(text, "\n{}, resident steps over that of bf16: {}.", step.model, over.join(", "))?;
        }
    }
    Ok(())
}

/// Where the time of resident steps goes.
fn operations(text: &mut String, steps: &[Step]) -> Result<()> {
    text.push_str(
        "\nWhere a resident step's time goes: its operations by kind and size, the longest first, timed one by one.\n\n\
         | model | operation | count | ms |\n|---|---|---|---|\n",
    );
    for step in steps {
        for operation in step.formats.iter().flat_map(|it| it.operations.iter().take(LONGEST)) {
            writeln!(
                text,
                "| {} | {} | {} | {:.2} |",
                step.model,
                operation.operation,
                operation.count,
                operation.seconds * 1e3
            )?;
        }
    }
    Ok(())
}

/// Writes the section of parts.
pub(super) fn parts(text: &mut String, report: &Parts) -> Result<()> {
    writeln!(text, "\n## Parts, {} on {}\n", report.device, report.device_name)?;
    writeln!(
        text,
        "Gantry {}; random weights: autoencoders of the sizes of FLUX.1's and of Wan 2.1's (832 × 480, which decodes so many \
         frames), one block of each kind of FLUX.1, text encoders of the sizes of T5-XXL and Qwen2.5-VL 7B. Sizes are pixels \
         along a side, frames, or tokens.\n",
        report.version
    )?;
    text.push_str(
        "| part | size | ms | the first ms | over bound | peak GB | peak over plan |\n|---|---|---|---|---|---|---|\n",
    );
    for row in &report.rows {
        writeln!(
            text,
            "| {} | {} | {:.1} | {:.1} | {} | {:.2} | {:.3} |",
            row.part,
            row.size,
            row.seconds * 1e3,
            row.first_s * 1e3,
            row.over_bound.map_or("–".to_owned(), |over| format!("{over:.3}")),
            row.peak_bytes as f64 / 1e9,
            row.peak_bytes as f64 / row.planned_bytes as f64,
        )?;
    }
    beside(text, report)
}

/// What was measured beside a peer, in turns.
fn beside(text: &mut String, report: &Parts) -> Result<()> {
    let rows: Vec<(&Part, &Peer)> =
        report.rows.iter().filter_map(|row| Some((row, row.peer.as_ref()?))).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let peer = report.peer.as_deref().unwrap_or("none");
    writeln!(
        text,
        "\nAn upscaler of the size of RealESRGAN x4plus enlarges a picture in tiles, in turns with the same network, type and \
         tiles in the peer, {peer}. Less than 1 is better than the peer.\n\n\
         | part | size | ms | peer ms | time | relative error |\n|---|---|---|---|---|---|"
    )?;
    for (row, Peer { seconds, ratio, relative_error }) in rows {
        writeln!(
            text,
            "| {} | {} | {:.1} | {:.1} | {ratio:.3} | {relative_error:.1e} |",
            row.part,
            row.size,
            row.seconds * 1e3,
            seconds * 1e3,
        )?;
    }
    Ok(())
}

/// The results of one kind on the card, in the order of their names.
pub(super) fn read_all<T: DeserializeOwned>(results: &Path, kind: &str) -> Result<Vec<T>> {
    let is_step = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(kind) && name.ends_with("-h200.json")
    };
    let files = fs::read_dir(results).with_context(|| results.display().to_string())?;
    let mut files: Vec<PathBuf> = files.filter_map(|file| Some(file.ok()?.path())).filter(is_step).collect();
    files.sort();
    let read = |path: &PathBuf| {
        let json = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&json).with_context(|| path.display().to_string())
    };
    files.iter().map(read).collect()
}
