//! Steps as people get them: what `gantry bench served` measured.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Deserialize;

use super::yes;

/// `gantry bench served`.
#[derive(Deserialize)]
pub(super) struct Served {
    version: String,
    date: String,
    device: String,
    pub(super) device_name: String,
    pub(super) model_bytes: u64,
    pub(super) pixels: usize,
    text_tokens: usize,
    link_bytes_per_s: Option<f64>,
    #[serde(default)]
    decoding_bytes_per_s: Option<f64>,
    bench_step_s: f64,
    pub(super) rows: Vec<Row>,
    virtual_vram: Vec<VirtualVram>,
    now: Vec<Answers>,
    left_out: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) placed: Placed,
    first: Job,
    pub(super) second: Job,
    bound_s: f64,
    pub(super) over_bound: f64,
    /// In the first and in the second job, of steps of one kind.
    #[serde(default)]
    predicted_over_measured: [Option<f64>; 2],
    same_bits: Option<bool>,
}

#[derive(Deserialize)]
pub(super) struct Placed {
    mode: String,
    streamed_bytes: u64,
    #[serde(default)]
    decoded_bytes: u64,
    pub(super) resident_bytes: u64,
    pub(super) ring_bytes: u64,
}

#[derive(Deserialize)]
pub(super) struct Job {
    load_s: f64,
    pub(super) step_s: f64,
    predicted_s: f64,
    /// What part of a step the device decoded, as it measured it.
    #[serde(default)]
    decoding_share: Option<f64>,
}

#[derive(Deserialize)]
struct VirtualVram {
    gigabytes: f64,
    used_bytes: u64,
    saved_bytes: i64,
}

#[derive(Deserialize)]
struct Answers {
    name: String,
    questions: u64,
    ms: Spread,
}

#[derive(Deserialize)]
struct Spread {
    p50: f64,
    p99: f64,
}

/// Writes the section.
pub(super) fn section(text: &mut String, report: &Served) -> Result<()> {
    writeln!(text, "\n## As served, {} on {}\n", report.device, report.device_name)?;
    let link = report.link_bytes_per_s.map_or(0.0, |link| link / 1e9);
    writeln!(
        text,
        "Gantry {}, {}; a FLUX-shaped model of {:.1} GB of random weights, {} pixels square, {} text tokens, over HTTP; link \
         {link:.1} GB/s. The same step without a server took {:.1} ms in the same run. Steps are medians; predicted is what \
         the server said before, as a share of what it measured; decoding is its part of the second job's step.\n",
        report.version,
        report.date,
        report.model_bytes as f64 / 1e9,
        report.pixels,
        report.text_tokens,
        report.bench_step_s * 1e3,
    )?;
    text.push_str(
        "| what | placed | streamed GB | decoded GB | decoding | load s | first job: step ms, predicted | second job: step ms, predicted | bound ms | over bound | same bits |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in &report.rows {
        let [first, second] = row.predicted_over_measured;
        let job = |job: &Job, predicted: Option<f64>| {
            format!("{:.1}, {:.2}", job.step_s * 1e3, predicted.unwrap_or(job.predicted_s / job.step_s))
        };
        let decoded = row.placed.decoded_bytes as f64;
        // Where it was not measured in the step, it is what the decoder takes by itself.
        let by_speed = || report.decoding_bytes_per_s.map(|speed| decoded / speed / row.second.step_s);
        let share = row.second.decoding_share.or_else(by_speed).filter(|_| decoded > 0.0);
        let decoding = share.map_or_else(|| "–".to_owned(), |share| format!("{:.1} %", 100.0 * share));
        writeln!(
            text,
            "| {} | {} | {:.1} | {:.1} | {decoding} | {:.2} | {} | {} | {:.1} | {:.3} | {} |",
            row.name,
            row.placed.mode,
            row.placed.streamed_bytes as f64 / 1e9,
            decoded / 1e9,
            row.first.load_s,
            job(&row.first, first),
            job(&row.second, second),
            row.bound_s * 1e3,
            row.over_bound,
            row.same_bits.map_or("–", yes),
        )?;
    }
    text.push_str("\n| virtual_vram_gb | on the card GB | less than with 0 |\n|---|---|---|\n");
    let gib = |bytes: f64| bytes / f64::from(1u32 << 30);
    for row in &report.virtual_vram {
        let (used, saved) = (gib(row.used_bytes as f64), gib(row.saved_bytes as f64));
        writeln!(text, "| {} | {used:.2} | {saved:.2} |", row.gigabytes)?;
    }
    text.push_str("\n| while | questions to /gantry/now | p50 ms | p99 ms |\n|---|---|---|---|\n");
    for row in &report.now {
        writeln!(text, "| {} | {} | {:.1} | {:.1} |", row.name, row.questions, row.ms.p50, row.ms.p99)?;
    }
    report.left_out.iter().try_for_each(|line| writeln!(text, "\nLeft out: {line}"))?;
    Ok(())
}
