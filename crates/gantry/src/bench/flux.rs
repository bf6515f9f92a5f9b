//! `gantry bench flux`: steps of a FLUX-shaped model of random weights, with nothing, half and all of it
//! offloaded, and a cut of it against the CPU; and the autoencoder that decodes what it makes.

mod decoding;
mod floor;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use checkpoint::Checkpoint;
use device::{Device, Registry};
use device_cuda::CudaBackend;
use meta::{ByteSize, DeviceId};
use models::detect::detect;
use models::diffusion::flux::{Flux, FluxInputs};
use nodes::studio::PlanQuestion;
use placement::{AllocationText, Plan};
use residency::{Cancel, LoadOptions, Residency, Session};
use serde::Serialize;
use serde_json::{Value, json};
use tensor::Lane;
use testkit::{Manifest, ScratchDir, random_normal};

use crate::bandwidth;
use crate::cli::BenchArgs;
use crate::commands::{print, print_json};
use crate::machine::Machine;
use crate::planning::plan_file;
use crate::profile::{self, ModelProfile};
use crate::table::Table;
use floor::Floor;

/// One double and one single block at FLUX's full width; the whole model repeats them.
const ONE_BLOCK_EACH: &str = include_str!("../../../testkit/data/manifests/flux_dev_d1s1.json");
/// Blocks of FLUX.1.
const FULL_DEPTH: [usize; 2] = [19, 38];
/// How the matrices are stored: as FLUX was published, and as people have it on smaller cards.
const FORMATS: [&str; 4] = ["BF16", "F8_E4M3", "Q8_0", "Q4_K"];
/// Width and height of the picture.
const PIXELS: usize = 1024;
/// Text tokens of a prompt.
const TEXT: usize = 512;
/// Steps that are measured; their median counts.
const STEPS: usize = 5;

#[derive(Serialize)]
struct Report {
    version: &'static str,
    device: String,
    device_name: String,
    parameters: u64,
    pixels: usize,
    link_bytes_per_s: f64,
    /// Between two logical devices, if there are two.
    peer_bytes_per_s: Option<f64>,
    formats: Vec<FormatReport>,
    decoding: decoding::Decoding,
}

/// The model stored in one way.
#[derive(Serialize)]
struct FormatReport {
    format: String,
    model_bytes: u64,
    /// Error of one evaluation of the cut of one block each, against the CPU in f32.
    cut_relative_error: f64,
    /// No resident step can be shorter: products and attention alone, as fast as the device does large ones.
    floor: Floor,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    /// What was asked; nothing for all of it on the device.
    allocation: String,
    offload_percent: u32,
    streamed_bytes: u64,
    load_s: f64,
    /// The first step, which still waits for what loading left to do.
    first_step_s: f64,
    step_s: f64,
    /// The floor where everything is resident; else the longer of the resident step and the streamed bytes over the link.
    bound_s: f64,
    over_bound: f64,
    predicted_s: f64,
    peak_bytes: u64,
    planned_bytes: u64,
    /// Whether the result has the same bits as the resident one.
    identical: bool,
}

pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    let device = machine.registry().get(args.device)?;
    ensure!(
        device.id() != DeviceId::CPU,
        "bench flux measures an accelerator: name one with --device cuda:0"
    );
    let link = bandwidth::measure(device, machine.cpu())?.pinned_to_device;
    let is_peer = |other: &&Device| other.id().kind == device.id().kind && other.id() != device.id();
    let peer = machine.registry().iter().find(is_peer);
    let peer = peer
        .map(|other| Ok::<_, anyhow::Error>((other.id(), bandwidth::between(other, device)?)))
        .transpose()?;
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        device: device.id().to_string(),
        device_name: device.description().name.clone(),
        parameters: 0,
        pixels: PIXELS,
        link_bytes_per_s: link,
        peer_bytes_per_s: peer.map(|(_, bytes_per_s)| bytes_per_s),
        formats: Vec::new(),
        decoding: decoding::measure(machine, device.id(), PIXELS)?,
    };
    for format in FORMATS.into_iter().filter(|format| format.contains(&args.only)) {
        let dir = ScratchDir::new()?;
        let cut = write_model(dir.path(), format, [1, 1])?;
        let cut_relative_error = cut_error(machine, device.id(), &cut, 512)?;
        std::fs::remove_file(&cut)?;
        let path = write_model(dir.path(), format, FULL_DEPTH)?;
        let bench = Bench {
            devices: machine.registry(),
            compute: device.id(),
            card: machine.cuda(device.id()),
            path: &path,
            pixels: PIXELS,
            text: TEXT,
            link,
            peer,
            profiles: args.profile.as_deref().map(|folder| (folder, format)),
        };
        let floor = Floor::of(device, machine.cpu(), &path, (PIXELS, TEXT))?;
        let rows = bench.rows(&floor)?;
        let checkpoint = Checkpoint::open(&path)?;
        report.parameters = checkpoint.entries().iter().map(|e| e.shape().count() as u64).sum();
        let model_bytes = checkpoint.tensor_bytes();
        report.formats.push(FormatReport {
            format: format.to_owned(),
            model_bytes,
            cut_relative_error,
            floor,
            rows,
        });
    }
    if args.output.json {
        print_json(&report)?;
    } else {
        print(&report.to_text())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a FLUX checkpoint of procedural weights with this many double and single blocks, the matrices of the
/// blocks stored in a format.
pub(super) fn write_model(dir: &Path, format: &str, [double, single]: [usize; 2]) -> Result<PathBuf> {
    let mut manifest: Value = serde_json::from_str(ONE_BLOCK_EACH)?;
    let tensors = manifest["tensors"].as_array().context("the manifest lists no tensors")?.clone();
    let mut all = Vec::new();
    for tensor in tensors {
        let name = tensor["name"].as_str().context("a tensor without a name")?.to_owned();
        let repeats = match name.split('.').next() {
            Some("double_blocks") => double,
            Some("single_blocks") => single,
            _ => 1,
        };
        let is_matrix = tensor["shape"].as_array().is_some_and(|shape| shape.len() == 2);
        for block in 0..repeats {
            let mut copy = tensor.clone();
            if is_matrix && name.contains("_blocks.") {
                copy["dtype"] = json!(format);
            }
            copy["name"] = json!(name.replacen("_blocks.0.", &format!("_blocks.{block}."), 1));
            all.push(copy);
        }
    }
    let is_gguf = format.starts_with('Q');
    let extension = if is_gguf { "gguf" } else { "safetensors" };
    manifest["file"] = json!(format!("flux_{double}_{single}.{extension}"));
    if is_gguf {
        manifest["kv"] = json!({ "general.architecture": "flux", "general.quantization_version": 2 });
    }
    manifest["tensors"] = Value::Array(all);
    Ok(Manifest::parse(&manifest.to_string())?.write_to(dir)?)
}

/// The seconds of a step of a model file with all of it on a device, at so many pixels and text tokens.
pub(super) fn resident_step(
    machine: &Machine,
    device: DeviceId,
    path: &Path,
    (pixels, text): (usize, usize),
) -> Result<f64> {
    let bench = Bench {
        devices: machine.registry(),
        compute: device,
        card: None,
        path,
        pixels,
        text,
        link: 1e10,
        peer: None,
        profiles: None,
    };
    Ok(bench.measure("")?.step_s)
}

/// A FLUX model in a session, and what it is given.
struct Loaded {
    flux: Flux,
    session: Session,
    residency: Residency,
}

impl Loaded {
    /// Evaluates the model once on fixed inputs; the result stays on its device.
    fn evaluate(&self, pixels: usize, text: usize) -> Result<tensor::Tensor> {
        let lane = self.session.lane()?;
        let side = pixels / 8;
        let latent = lane.tensor([1, 16, side, side], &random_normal(1, 16 * side * side))?;
        let (context, pooled) = self.text(lane, text)?;
        self.evaluate_on(&latent, &context, &pooled)
    }

    /// A prompt of so many tokens, and the same in one vector.
    fn text(&self, lane: &Lane, tokens: usize) -> Result<(tensor::Tensor, tensor::Tensor)> {
        let (width, pooled) = (self.flux.config().context_width, self.flux.config().pooled_width);
        let context = lane.tensor([1, tokens, width], &random_normal(2, tokens * width))?;
        Ok((context, lane.tensor([1, pooled], &random_normal(3, pooled))?))
    }

    fn evaluate_on(
        &self,
        latent: &tensor::Tensor,
        context: &tensor::Tensor,
        pooled: &tensor::Tensor,
    ) -> Result<tensor::Tensor> {
        let inputs = FluxInputs { guidance: Some(3.5), ..FluxInputs::new(latent, 0.8, context, pooled) };
        Ok(self.flux.forward(&self.session, &inputs)?)
    }
}

/// ‖device − CPU‖ / ‖CPU‖ of one evaluation.
fn cut_error(machine: &Machine, device: DeviceId, path: &Path, pixels: usize) -> Result<f64> {
    let evaluate = |compute: DeviceId| -> Result<Vec<f32>> {
        let bench = Bench {
            devices: machine.registry(),
            compute,
            card: None,
            path,
            pixels,
            text: TEXT,
            link: 1e10,
            peer: None,
            profiles: None,
        };
        let (_, loaded) = bench.load("")?;
        Ok(loaded.evaluate(pixels, TEXT)?.to_vec()?)
    };
    Ok(relative_error(&evaluate(device)?, &evaluate(DeviceId::CPU)?))
}

/// ‖got − want‖ / ‖want‖.
fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let difference: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
    let norm: f64 = want.iter().map(|w| square(f64::from(*w))).sum();
    (difference / norm).sqrt()
}

struct Bench<'a> {
    devices: &'a Registry,
    compute: DeviceId,
    /// Knows more about memory than the ledger does.
    card: Option<&'a CudaBackend>,
    path: &'a Path,
    pixels: usize,
    /// Tokens of the prompt.
    text: usize,
    link: f64,
    /// Another device of the same kind, such as the second of two logical ones on one card, and the bytes per second
    /// that come from there.
    peer: Option<(DeviceId, f64)>,
    /// Where profiles go, and how the name of their files begins.
    profiles: Option<(&'a Path, &'a str)>,
}

/// One allocation, measured.
struct Measured {
    plan: Plan,
    load_s: f64,
    first_step_s: f64,
    step_s: f64,
    peak_bytes: u64,
    output: Vec<f32>,
}

impl Bench<'_> {
    fn load(&self, text: &str) -> Result<(Plan, Loaded)> {
        let checkpoint = Arc::new(Checkpoint::open(self.path)?);
        let flux = Flux::read(&checkpoint, &detect(&checkpoint))?;
        let manifest = flux.manifest(&checkpoint)?;
        let lane = Lane::choose(self.devices.get(self.compute)?, flux.activations())?;
        let question = PlanQuestion {
            allocation: AllocationText::parse(text)?,
            size: (self.pixels, self.pixels),
            text: Some(self.text),
            ..PlanQuestion::default()
        };
        let plan = plan_file(self.devices, self.compute, &checkpoint, &question)?;
        let residency = Residency::new(self.devices.clone());
        let options = LoadOptions { dtype: Some(lane.dtype()), ..LoadOptions::default() };
        let id = residency.load(manifest, plan.clone(), options)?;
        let session = residency.open(id, &Cancel::default())?;
        Ok((plan, Loaded { flux, session, residency }))
    }

    /// Nothing, half and all of the model offloaded.
    fn rows(&self, floor: &Floor) -> Result<Vec<Row>> {
        let resident = self.measure("")?;
        let mut rows = vec![self.row(("", 0), &resident, &resident, floor)];
        for percent in [50, 100] {
            let text = format!("{},{}%;cpu,{percent}%", self.compute, 100 - percent);
            let measured = self.measure(&text)?;
            rows.push(self.row((&text, percent), &measured, &resident, floor));
        }
        if let Some((second, _)) = self.peer {
            let first = self.compute;
            let half = format!("{first},50%;{second},50%");
            let thirds = format!("{first},34%;{second},33%;cpu,33%");
            for (text, percent) in [(half, 0), (thirds, 33)] {
                let measured = self.measure(&text)?;
                rows.push(self.row((&text, percent), &measured, &resident, floor));
            }
        }
        Ok(rows)
    }

    fn measure(&self, text: &str) -> Result<Measured> {
        let start = Instant::now();
        let (plan, loaded) = self.load(text)?;
        let load_s = start.elapsed().as_secs_f64();
        let ledger = self.devices.get(self.compute)?.ledger();
        ledger.take_peak();
        self.card.map(CudaBackend::take_peak_bytes);
        let start = Instant::now();
        let output = loaded.evaluate(self.pixels, self.text)?.to_vec()?;
        let first_step_s = start.elapsed().as_secs_f64();
        let lane = loaded.session.lane()?;
        let side = self.pixels / 8;
        let noise = random_normal(1, 16 * side * side);
        let (context, pooled) = loaded.text(lane, self.text)?;
        let mut times = Vec::new();
        for _ in 0..STEPS {
            // A sampler brings the latent and reads the answer in every step.
            let start = Instant::now();
            let latent = lane.tensor([1, 16, side, side], &noise)?;
            loaded.evaluate_on(&latent, &context, &pooled)?.to_vec()?;
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        self.keep_profile(text, &loaded)?;
        Ok(Measured {
            plan,
            load_s,
            first_step_s,
            step_s: times[STEPS / 2],
            peak_bytes: self.card.map_or(ledger.report().peak, CudaBackend::take_peak_bytes),
            output,
        })
    }

    /// Writes where the time of the last step went, if that is wanted.
    fn keep_profile(&self, text: &str, loaded: &Loaded) -> Result<()> {
        let Some((folder, format)) = self.profiles else { return Ok(()) };
        std::fs::create_dir_all(folder)?;
        let placed =
            if text.is_empty() { "resident".to_owned() } else { text.replace([':', ',', ';', '%'], "_") };
        let profiles = ModelProfile::of_loaded(&loaded.residency);
        profile::write(&folder.join(format!("{format}-{placed}.json")), &profiles)?;
        let table: String = profiles.iter().map(ModelProfile::to_text).collect();
        Ok(disk::write(&folder.join(format!("{format}-{placed}.txt")), table.as_bytes())?)
    }

    fn row(
        &self,
        (allocation, offload_percent): (&str, u32),
        measured: &Measured,
        resident: &Measured,
        floor: &Floor,
    ) -> Row {
        let streamed_bytes = measured.plan.streamed_bytes();
        let is_resident = std::ptr::eq(measured, resident);
        let bound_s = match is_resident {
            true => floor.seconds,
            false => resident.step_s.max(streamed_bytes as f64 / self.link),
        };
        Row {
            allocation: allocation.to_owned(),
            offload_percent,
            streamed_bytes,
            load_s: measured.load_s,
            first_step_s: measured.first_step_s,
            step_s: measured.step_s,
            bound_s,
            over_bound: measured.step_s / bound_s,
            predicted_s: measured.plan.prediction.seconds_per_step,
            peak_bytes: measured.peak_bytes,
            planned_bytes: measured.plan.device(self.compute).map_or(0, placement::DeviceUse::total_bytes),
            identical: measured.output == resident.output,
        }
    }
}

impl Report {
    fn to_text(&self) -> String {
        let head = [
            "stored as",
            "allocation",
            "streamed",
            "load s",
            "first step s",
            "step ms",
            "bound ms",
            "over bound",
            "predicted ms",
            "peak",
            "planned",
            "same bits",
        ];
        let mut table = Table::new(&head);
        for (format, row) in
            self.formats.iter().flat_map(|it| it.rows.iter().map(move |row| (&it.format, row)))
        {
            let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
            table.row(&[
                format,
                if row.allocation.is_empty() { "all of it here" } else { &row.allocation },
                &ByteSize(row.streamed_bytes).to_string(),
                &format!("{:.2}", row.load_s),
                &format!("{:.2}", row.first_step_s),
                &ms(row.step_s),
                &ms(row.bound_s),
                &format!("{:.3}", row.over_bound),
                &ms(row.predicted_s),
                &ByteSize(row.peak_bytes).to_string(),
                &ByteSize(row.planned_bytes).to_string(),
                if row.identical { "yes" } else { "NO" },
            ]);
        }
        let errors: Vec<String> =
            self.formats.iter().map(|it| format!("{} {:.1e}", it.format, it.cut_relative_error)).collect();
        format!(
            "{} ({}), FLUX of {:.1} billion parameters, {} pixels square, link {:.1} GB/s\n\
             one block each against the CPU, relative error: {}\n\n{table}\n\
             decoding a picture: {:.1} ms, the first {:.1} ms, relative error {:.1e}\n",
            self.device,
            self.device_name,
            self.parameters as f64 / 1e9,
            self.pixels,
            self.link_bytes_per_s / 1e9,
            errors.join(", "),
            self.decoding.decode_s * 1e3,
            self.decoding.first_s * 1e3,
            self.decoding.relative_error,
        )
    }
}
