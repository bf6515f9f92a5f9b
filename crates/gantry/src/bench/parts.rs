//! `gantry bench parts`: what a picture or a video takes beside its steps: text encoders of the sizes of T5-XXL and
//! Qwen2.5-VL 7B, autoencoders of pictures and of videos, one block of each kind of a diffusion model, and an upscaler; with
//! the most memory that each took beside what was planned.

mod upscaler;
mod video;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use checkpoint::Checkpoint;
use device::{OperationTimes, Registry};
use device_cuda::CudaBackend;
use meta::{ByteSize, DeviceId};
use models::Module;
use models::detect::{Role, detect};
use models::text::{EncodeOptions, PromptOptions, Symbol, TextModel, Token, Tokens};
use models::vae::{Autoencoder, kl::Kl};
use placement::AllocationText;
use residency::{Cancel, LoadOptions, Products, Residency, Session};
use runtime::PlanQuestion;
use serde::Serialize;
use tensor::{Lane, Tensor};
use testkit::{Manifest, ScratchDir, random_normal};

use super::served::files;
use super::{is_wanted, step};
use crate::bandwidth;
use crate::bench::{need_rows, show};
use crate::cli::BenchArgs;
use crate::commands::tell;
use crate::machine::Machine;
use crate::planning::plan_file;
use crate::table::Table;

/// An autoencoder of the size that most of today's families have.
const AUTOENCODER: &str = include_str!("../../../testkit/data/manifests/flux_ae.json");
/// A token that every vocabulary has, and none fills up with.
const WORD: u32 = 100;
/// Times that count; their median does.
const TIMES: usize = 7;
/// Width and height of pictures.
const SIDES: [usize; 3] = [512, 768, 1024];
/// Tokens of texts.
const LENGTHS: [usize; 3] = [128, 256, 512];

#[derive(Serialize)]
struct Report {
    version: &'static str,
    device: String,
    device_name: String,
    /// Who enlarges pictures beside us.
    peer: Option<String>,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    part: &'static str,
    /// Pixels along one side, tokens, or frames of a video.
    size: usize,
    /// What streams from host memory each time; with it, the time over the longer of its copying and the same part resident.
    streamed_bytes: u64,
    over_bound: Option<f64>,
    /// The first time, which may have to look for kernels.
    first_s: f64,
    /// The median of those after it.
    seconds: f64,
    /// The most that the device's memory held, and what the plan said.
    peak_bytes: u64,
    planned_bytes: u64,
    /// Where the time goes, the longest first; empty unless it is asked for.
    operations: Vec<step::OperationRow>,
    /// The same by the peer, in turns with ours.
    peer: Option<Peer>,
}

/// What the peer took.
#[derive(Serialize)]
struct Peer {
    seconds: f64,
    /// Our time over the peer's.
    ratio: f64,
    /// How far our result is from the peer's.
    relative_error: f64,
}

/// The median of times.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    let device = machine.registry().get(args.device)?;
    let timed = args.operations.then(|| device.timed());
    let times = timed.as_ref().map(|(_, times)| times.clone());
    let devices = match timed {
        Some((timed, _)) => Registry::new([machine.cpu().clone(), timed]),
        None => machine.registry().clone(),
    };
    let bench = Bench { machine, devices, times, compute: device.id(), only: &args.only };
    let mut rows = Vec::new();
    bench.autoencoder(&mut rows)?;
    bench.blocks(&mut rows, args)?;
    bench.text(&mut rows)?;
    bench.language(&mut rows)?;
    bench.video(&mut rows)?;
    let peer = bench.upscaler(&mut rows, args)?;
    need_rows(args, !rows.is_empty())?;
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        device: device.id().to_string(),
        device_name: device.description().name.clone(),
        peer,
        rows,
    };
    show(args, &report, Report::to_text)
}

struct Bench<'a> {
    machine: &'a Machine,
    devices: Registry,
    /// What operations took, if that is asked for.
    times: Option<OperationTimes>,
    compute: DeviceId,
    only: &'a str,
}

impl Bench<'_> {
    fn wants(&self, part: &str) -> bool {
        is_wanted(self.only, part)
    }

    fn autoencoder(&self, rows: &mut Vec<Row>) -> Result<()> {
        let dir = ScratchDir::new()?;
        if !self.wants("decode") && !self.wants("encode") {
            return Ok(());
        }
        let path = Manifest::parse(AUTOENCODER)?.write_to(dir.path())?;
        let file = Arc::new(Checkpoint::open(&path)?);
        let kl = Kl::read(&file, &detect(&file))?;
        for side in SIDES {
            let question = PlanQuestion { size: (side, side), ..PlanQuestion::default() };
            let opened = Opened::new(&self.devices, self.compute, &file, &kl, &question)?;
            let lane = opened.session.lane()?;
            let values = side / kl.pixels_per_value();
            let latent = lane.tensor([1, 16, values, values], &random_normal(1, 16 * values * values))?;
            if self.wants("decode") {
                rows.push(self.timed("decode", side, &opened, || Ok(kl.decode(&opened.session, &latent)?))?);
            }
            let picture = lane.tensor([1, side, side, 3], &vec![0.5; side * side * 3])?;
            if self.wants("encode") {
                rows.push(self.timed("encode", side, &opened, || Ok(kl.encode(&opened.session, &picture)?))?);
            }
        }
        Ok(())
    }

    /// A diffusion model with one block of each kind.
    fn blocks(&self, rows: &mut Vec<Row>, args: &BenchArgs) -> Result<()> {
        if !self.wants("blocks") {
            return Ok(());
        }
        let dir = ScratchDir::new()?;
        let shapes = step::released(args)?;
        let path = step::write_model(dir.path(), "BF16", shapes, 1)?;
        for side in SIDES {
            let measured = step::one_of_each(
                self.machine,
                self.compute,
                &path,
                step::StepSize::square(side, shapes.1.tokens),
            )?;
            let step::OneOfEach { first_s, seconds, peak_bytes, planned_bytes } = measured;
            rows.push(Row {
                part: "blocks",
                size: side,
                streamed_bytes: 0,
                over_bound: None,
                first_s,
                seconds,
                peak_bytes,
                planned_bytes,
                operations: Vec::new(),
                peer: None,
            });
        }
        Ok(())
    }

    /// A text encoder of T5-XXL's size.
    fn text(&self, rows: &mut Vec<Row>) -> Result<()> {
        if !self.wants("text") {
            return Ok(());
        }
        let dir = ScratchDir::new()?;
        let path = dir.path().join("text.safetensors");
        tell("writing a text encoder of T5-XXL's size\n");
        files::write_t5_xxl(&path)?;
        let encoder = Encoder::read(&path)?;
        for length in LENGTHS {
            rows.push(self.encoded("text", length, &encoder, &AllocationText::automatic())?);
        }
        Ok(())
    }

    /// A language model of the size of Qwen2.5-VL 7B, on the device and in host memory.
    fn language(&self, rows: &mut Vec<Row>) -> Result<()> {
        if !self.wants("language model") {
            return Ok(());
        }
        let dir = ScratchDir::new()?;
        let path = dir.path().join("language.safetensors");
        tell("writing a language model of the size of Qwen2.5-VL 7B\n");
        files::write_qwen25_7b(&path)?;
        let encoder = Encoder::read(&path)?;
        for length in LENGTHS {
            rows.push(self.encoded("language model", length, &encoder, &AllocationText::automatic())?);
        }
        let resident_s = rows.last().map_or(0.0, |row| row.seconds);
        let link = bandwidth::measure(self.machine.registry().get(self.compute)?, self.machine.cpu())?;
        let offloaded = AllocationText::parse(&format!("{},0%;cpu,100%", self.compute))?;
        let row = self.encoded("language model, offloaded", LENGTHS[2], &encoder, &offloaded)?;
        let bound_s = resident_s.max(row.streamed_bytes as f64 / link.pinned_to_device);
        rows.push(Row { over_bound: Some(row.seconds / bound_s), ..row });
        Ok(())
    }

    /// A text of so many tokens.
    fn encoded(
        &self,
        part: &'static str,
        length: usize,
        encoder: &Encoder,
        allocation: &AllocationText,
    ) -> Result<Row> {
        let Encoder { file, model } = encoder;
        let question = PlanQuestion {
            part: Some(Role::Text),
            text: Some(length),
            allocation: allocation.clone(),
            ..PlanQuestion::default()
        };
        let opened = Opened::new(&self.devices, self.compute, file, &*model.encoder, &question)?;
        let frame = model.tokenizer.tokenize("", PromptOptions::default(), 0).frame;
        let chunk = vec![Token { symbol: Symbol::Id(WORD), weight: 1.0 }; length];
        let tokens = Tokens { chunks: vec![chunk], missing: Vec::new(), frame };
        self.timed(part, length, &opened, || {
            Ok(model.encoder.encode(&opened.session, &tokens, EncodeOptions::default())?.cond)
        })
    }

    /// What the operations of a part take, if that is asked for.
    fn operations(&self, once: &dyn Fn() -> Result<f64>) -> Result<Vec<step::OperationRow>> {
        let Some(times) = &self.times else { return Ok(Vec::new()) };
        times.take()?;
        once()?;
        Ok(times.take()?.into_iter().map(step::OperationRow::from).collect())
    }

    fn timed(
        &self,
        part: &'static str,
        size: usize,
        opened: &Opened,
        work: impl Fn() -> Result<Tensor>,
    ) -> Result<Row> {
        let (card, ledger) = (self.machine.cuda(self.compute), self.devices.get(self.compute)?.ledger());
        ledger.take_peak();
        card.map(CudaBackend::take_peak_bytes);
        let once = || -> Result<f64> {
            let start = Instant::now();
            let result = work()?;
            result.lane().stream().synchronize()?;
            Ok(start.elapsed().as_secs_f64())
        };
        let first_s = once()?;
        // What is read back is turned into 32 bits on the device first, which the plan counts.
        work()?.to_vec()?;
        let operations = self.operations(&once)?;
        let times = (0..TIMES).map(|_| once()).collect::<Result<Vec<f64>>>()?;
        Ok(Row {
            part,
            size,
            streamed_bytes: opened.streamed_bytes,
            over_bound: None,
            first_s,
            seconds: median(times),
            peak_bytes: card.map_or(ledger.report().peak, CudaBackend::take_peak_bytes),
            planned_bytes: opened.planned_bytes,
            operations,
            peer: None,
        })
    }
}

/// A network in a session, as the program's own planner placed it.
pub(super) struct Opened {
    pub(super) session: Session,
    pub(super) planned_bytes: u64,
    streamed_bytes: u64,
}

impl Opened {
    pub(super) fn new(
        devices: &Registry,
        compute: DeviceId,
        file: &Arc<Checkpoint>,
        network: &dyn Module,
        question: &PlanQuestion,
    ) -> Result<Opened> {
        let manifest = network.manifest(file)?;
        let lane = Lane::choose(devices.get(compute)?, network.activations())?;
        let plan = plan_file((devices, compute), file, Products::Exact, question)?;
        let planned_bytes = plan.device(compute).map_or(0, placement::DeviceUse::total_bytes);
        let streamed_bytes = plan.streamed_bytes();
        let residency = Residency::new(devices.clone());
        let options = LoadOptions { dtype: Some(lane.dtype()), ..LoadOptions::default() };
        let id = residency.load(manifest, plan, options)?;
        Ok(Opened { session: residency.open(id, &Cancel::default())?, planned_bytes, streamed_bytes })
    }
}

/// A text encoder that was read from a file.
struct Encoder {
    file: Arc<Checkpoint>,
    model: TextModel,
}

impl Encoder {
    fn read(path: &Path) -> Result<Encoder> {
        let file = Arc::new(Checkpoint::open(path)?);
        let model = TextModel::read_all(&file, &detect(&file))?.into_iter().next();
        Ok(Encoder { model: model.context("the file has no text encoder")?, file })
    }
}

impl Report {
    fn to_text(&self) -> String {
        let mut table = Table::new(&[
            "part",
            "size",
            "first ms",
            "ms",
            "peak",
            "planned",
            "peak over plan",
            "over bound",
            "peer ms",
            "ours / peer",
            "relative error",
        ]);
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        for row in &self.rows {
            table.row(&[
                row.part,
                &row.size.to_string(),
                &format!("{:.1}", row.first_s * 1e3),
                &format!("{:.2}", row.seconds * 1e3),
                &ByteSize(row.peak_bytes).to_string(),
                &ByteSize(row.planned_bytes).to_string(),
                &format!("{:.3}", row.peak_bytes as f64 / row.planned_bytes.max(1) as f64),
                &or_dash(row.over_bound.map(|over| format!("{over:.3}"))),
                &or_dash(row.peer.as_ref().map(|peer| format!("{:.2}", peer.seconds * 1e3))),
                &or_dash(row.peer.as_ref().map(|peer| format!("{:.3}", peer.ratio))),
                &or_dash(row.peer.as_ref().map(|peer| format!("{:.1e}", peer.relative_error))),
            ]);
        }
        let peer = self.peer.as_ref().map_or_else(String::new, |peer| format!("; peer: {peer}"));
        format!("{} ({}){peer}\n\n{table}", self.device, self.device_name)
    }
}
