//! `cargo xtask bench-report`: writes docs/BENCHMARKS.md and the numbers of the README from the measurements in
//! docs/results, so that no figure in them is typed by hand. With `--check` it only says whether the pages are what they give.

mod codec;
mod coding;
mod control;
mod experts;
mod families;
mod figure;
mod from_disk;
mod launches;
mod readme;
mod served;
mod shared;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The page that is written.
const PAGE: &str = "docs/BENCHMARKS.md";
/// The page whose numbers are written.
const README: &str = "README.md";
/// The figure that is drawn.
const FIGURE: &str = "docs/pictures/bench-flux.svg";
/// Where the results are, as `gantry bench … --json` printed them.
const RESULTS: &str = "docs/results";

/// `gantry bench step`.
#[derive(Deserialize)]
struct Flux {
    version: String,
    device: String,
    device_name: String,
    parameters: u64,
    pixels: usize,
    link_bytes_per_s: f64,
    formats: Vec<Format>,
    decoding: Decoding,
}

/// FLUX's autoencoder.
#[derive(Deserialize)]
struct Decoding {
    first_s: f64,
    decode_s: f64,
    peak_bytes: u64,
    relative_error: f64,
    identical: bool,
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
    first_step_s: f64,
    step_s: f64,
    bound_s: f64,
    over_bound: f64,
    predicted_s: f64,
    peak_bytes: u64,
    planned_bytes: u64,
    identical: bool,
}

/// `gantry bench cpu`.
#[derive(Deserialize)]
struct Cpu {
    version: String,
    date: String,
    device_name: String,
    threads: usize,
    pixels: usize,
    text_tokens: usize,
    rows: Vec<CpuRow>,
}

#[derive(Deserialize)]
struct CpuRow {
    name: String,
    peer: String,
    ours: Steps,
    theirs: Option<Steps>,
    median_ratio: Option<f64>,
    growth_ratio: Option<f64>,
    relative_error: Option<f64>,
}

#[derive(Deserialize)]
struct Steps {
    median_s: f64,
    peak_bytes: Option<u64>,
}

/// `gantry bench load`.
#[derive(Deserialize)]
struct Load {
    version: String,
    date: String,
    device: String,
    device_name: String,
    model_bytes: u64,
    host_copy_bytes_per_s: f64,
    link_bytes_per_s: Option<f64>,
    rows: Vec<LoadRow>,
}

#[derive(Deserialize)]
struct LoadRow {
    name: String,
    source: String,
    total_s: f64,
    first_pass_s: f64,
    bound_s: Option<f64>,
    over_bound: Option<f64>,
}

/// `gantry bench server`.
#[derive(Deserialize)]
struct Server {
    version: String,
    date: String,
    device_name: String,
    clients: usize,
    prompts: usize,
    servers: Vec<Served>,
}

#[derive(Deserialize)]
struct Served {
    name: String,
    start_s: f64,
    idle_bytes: Option<u64>,
    post_prompt_ms: Spread,
    in_server_ms: Option<Spread>,
    prompts_per_s: f64,
    cached_node_us: f64,
}

#[derive(Deserialize)]
struct Spread {
    p50: f64,
    p99: f64,
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
    let results = root.join(RESULTS);
    let readme_text = fs::read_to_string(root.join(README)).with_context(|| format!("reading {README}"))?;
    let written = [
        (PAGE, page(&results)?),
        (FIGURE, figure::draw(&read(&results, "flux-h200")?)?),
        (README, readme::page(&readme_text, &read(&results, "served-h200")?)?),
    ];
    match arguments {
        [] => {
            for (path, text) in written {
                disk::write(&root.join(path), text.as_bytes()).with_context(|| format!("writing {path}"))?;
                println!("{path} written");
            }
            Ok(ExitCode::SUCCESS)
        }
        [only] if only == "--check" => {
            let is_same = |(path, text): &(&str, String)| {
                fs::read_to_string(root.join(path)).is_ok_and(|it| it == *text)
            };
            let Some((path, _)) = written.iter().find(|written| !is_same(written)) else {
                return Ok(ExitCode::SUCCESS);
            };
            eprintln!("{path} is not what {RESULTS} gives; run `cargo xtask bench-report`");
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
         The bound of a resident step is the floor: its matrix products and attention alone, as fast as the card does large\n\
         ones in the same run. The bound of any other is the longer of the resident step and the streamed bytes over the\n\
         measured link.\n\
         Predicted and peak are shares of measured and planned. \"Same bits\" compares with the resident result.\n",
    );
    served::section(&mut text, &read(results, "served-h200")?)?;
    for name in ["flux-h200", "flux-split-h200"] {
        flux(&mut text, &read(results, name)?)?;
    }
    families::section(&mut text, results)?;
    families::parts(&mut text, &read(results, "parts-h200")?)?;
    load(&mut text, &read(results, "load-h200")?)?;
    if results.join("disk-2-cores.json").is_file() {
        from_disk::section(&mut text, &read(results, "disk-2-cores")?)?;
    }
    cpu(&mut text, &read(results, "steps-cpu")?)?;
    server(&mut text, &read(results, "server-2-cores")?)?;
    for name in ["residency-h200", "residency-sim"] {
        residency(&mut text, &read(results, name)?)?;
    }
    for name in ["ops-h200", "ops-cpu"] {
        ops(&mut text, &read(results, name)?)?;
    }
    codec::section(&mut text, &read(results, "codec-2-cores")?)?;
    // Of what follows only what was measured so far is shown.
    let there = |name: &&str| results.join(format!("{name}.json")).is_file();
    let coding: Vec<&str> = ["coding-h200", "coding-2-cores"].into_iter().filter(there).collect();
    let coding = coding.into_iter().map(|name| read(results, name)).collect::<Result<Vec<_>>>()?;
    coding::section(&mut text, &coding)?;
    if there(&"fuzz-coded-2-cores") {
        coding::damage(&mut text, &read(results, "fuzz-coded-2-cores")?)?;
    }
    control::section(&mut text, &families::read_all(results, "control-")?)?;
    if there(&"video-h200") {
        experts::section(&mut text, &read(results, "video-h200")?)?;
    }
    if there(&"shared-h200") {
        shared::section(&mut text, &read(results, "shared-h200")?)?;
    }
    if results.join("launches-h200.json").is_file() {
        launches::section(&mut text, &read(results, "launches-h200")?)?;
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
        "| stored as | allocation | streamed GB | load s | first step s | step ms | bound ms | over bound | predicted | peak | same bits |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for format in &report.formats {
        for row in &format.rows {
            let allocation = if row.allocation.is_empty() { "all on the device" } else { &row.allocation };
            writeln!(
                text,
                "| {} | {allocation} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} | {:.3} | {:.3} | {:.3} | {} |",
                format.format,
                row.streamed_bytes as f64 / 1e9,
                row.load_s,
                row.first_step_s,
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
    let Decoding { first_s, decode_s, peak_bytes, relative_error, identical } = report.decoding;
    writeln!(
        text,
        "\nThe autoencoder decodes a picture in {:.1} ms (the first in {:.1} ms), with {:.2} GB in use; relative error \
         of a small one against the CPU {relative_error:.1e}; the same bits every time: {}.",
        decode_s * 1e3,
        first_s * 1e3,
        peak_bytes as f64 / 1e9,
        yes(identical),
    )?;
    Ok(())
}

fn load(text: &mut String, report: &Load) -> Result<()> {
    writeln!(text, "\n## Loading, {} on {}\n", report.device, report.device_name)?;
    let link =
        report.link_bytes_per_s.map_or_else(String::new, |link| format!(", link {:.1} GB/s", link / 1e9));
    writeln!(
        text,
        "Gantry {}, {}; a file of {:.1} GB; host copy {:.1} GB/s{link}. The first pass brings every block into use once, \
         without computing; the bound is the bytes over the slower of the two.\n",
        report.version,
        report.date,
        report.model_bytes as f64 / 1e9,
        report.host_copy_bytes_per_s / 1e9
    )?;
    text.push_str(
        "| placed | from | to the first block s | first pass s | bound s | both over bound |\n|---|---|---|---|---|---|\n",
    );
    let shown =
        |value: Option<f64>, digits: usize| value.map_or_else(|| "–".to_owned(), |v| format!("{v:.digits$}"));
    for row in &report.rows {
        let (bound, over) = (shown(row.bound_s, 3), shown(row.over_bound, 2));
        let (total, pass) = (row.total_s, row.first_pass_s);
        writeln!(text, "| {} | {} | {total:.3} | {pass:.3} | {bound} | {over} |", row.name, row.source)?;
    }
    Ok(())
}

fn cpu(text: &mut String, report: &Cpu) -> Result<()> {
    writeln!(text, "\n## Whole steps on the CPU, {}\n", report.device_name)?;
    let peer = report.rows.iter().find(|row| row.theirs.is_some()).map_or("none", |row| &row.peer);
    writeln!(
        text,
        "Gantry {}, {}; {} threads, {} pixels square where a case names no other size, FLUX with {} text tokens; peer: \
         {peer}, in turns with ours in the same run. Less than 1 is better than the peer.\n",
        report.version, report.date, report.threads, report.pixels, report.text_tokens
    )?;
    text.push_str(
        "| case | ours s | peer s | time | our peak GB | peer's peak GB | memory on top of the weights | relative error |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let shown = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |v| format!("{v:.2}"));
    for row in &report.rows {
        let peak = |steps: &Steps| steps.peak_bytes.map(|bytes| bytes as f64 / 1e9);
        writeln!(
            text,
            "| {} | {:.2} | {} | {} | {} | {} | {} | {} |",
            row.name,
            row.ours.median_s,
            shown(row.theirs.as_ref().map(|steps| steps.median_s)),
            shown(row.median_ratio),
            shown(peak(&row.ours)),
            shown(row.theirs.as_ref().and_then(peak)),
            shown(row.growth_ratio),
            row.relative_error.map_or_else(|| "–".to_owned(), |error| format!("{error:.1e}")),
        )?;
    }
    Ok(())
}

fn server(text: &mut String, report: &Server) -> Result<()> {
    writeln!(text, "\n## Server, {}\n", report.device_name)?;
    writeln!(
        text,
        "Gantry {}, {}; {} clients, {} prompts.\n",
        report.version, report.date, report.clients, report.prompts
    )?;
    text.push_str(
        "| server | start ms | idle MB | POST /prompt p50, p99 ms | in the server p50, p99 ms | prompts/s | known node µs |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for it in &report.servers {
        let idle = it.idle_bytes.map_or_else(|| "–".to_owned(), |bytes| format!("{:.0}", bytes as f64 / 1e6));
        let spread = |spread: &Spread| format!("{:.2}, {:.2}", spread.p50, spread.p99);
        writeln!(
            text,
            "| {} | {:.0} | {idle} | {} | {} | {:.0} | {:.1} |",
            it.name,
            it.start_s * 1e3,
            spread(&it.post_prompt_ms),
            it.in_server_ms.as_ref().map_or_else(|| "–".to_owned(), spread),
            it.prompts_per_s,
            it.cached_node_us
        )?;
    }
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
