//! `gantry bench step`: steps of a model of random weights in the size that its family was released in, with nothing, half
//! and all of it offloaded, and a cut of it against the CPU; and an autoencoder that decodes what it makes. Models of videos
//! take a size and a number of frames (`--size 832x480 --frames 33`).

mod control;
mod decoding;
mod floor;
mod stored;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use checkpoint::Checkpoint;
use device::{Device, OperationTime, Registry};
use device_cuda::CudaBackend;
use meta::{ByteSize, DeviceId};
use models::conditioning::{Array, Cond, CondShape, Conditioned, Scene};
use models::detect::{Reader, Role, detect};
use models::diffusion::{Diffusion, DiffusionFamily, DiffusionRun, Evaluation, ReleasedModel};
use placement::{AllocationText, Plan};
use residency::{Cancel, LoadOptions, Products, Residency, Session};
use runtime::PlanQuestion;
use sampling::{LatentShape, LatentSpec};
use serde::Serialize;
use tensor::{Lane, Tensor};
use testkit::{ScratchDir, random_normal};

use super::is_wanted;
use crate::bandwidth;
use crate::bench::show;
use crate::cli::{BenchArgs, ModelShape};
use crate::machine::Machine;
use crate::planning::plan_file;
use crate::profile::{self, ModelProfile};
use crate::table::Table;
use floor::Floor;
use stored::{FORMATS, NAMED_FORMATS, write_whole};
pub(super) use stored::{amplitude, write_model};

/// Steps that are measured; their median counts.
const STEPS: usize = 5;

#[derive(Serialize)]
struct Report {
    version: &'static str,
    device: String,
    device_name: String,
    /// The model whose sizes were taken.
    model: &'static str,
    /// The factor of guidance: above one, a step has two evaluations.
    cfg: f64,
    parameters: u64,
    /// Its width, for readers of squares.
    pixels: usize,
    size: StepSize,
    link_bytes_per_s: f64,
    /// Between two logical devices, if there are two.
    peer_bytes_per_s: Option<f64>,
    formats: Vec<FormatReport>,
    decoding: decoding::Decoding,
}

/// What a step computes: a picture or a video, and its text.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct StepSize {
    width: usize,
    height: usize,
    frames: usize,
    /// Tokens of the prompt.
    tokens: usize,
}

impl StepSize {
    /// A square picture.
    pub(super) fn square(pixels: usize, tokens: usize) -> StepSize {
        StepSize { width: pixels, height: pixels, frames: 1, tokens }
    }

    /// The latent of a family's models.
    fn latent(self, spec: &LatentSpec) -> LatentShape {
        let frames = spec.frames_per_value.map_or(1, |per_value| (self.frames - 1) / per_value.max(1) + 1);
        let side = |pixels: usize| pixels / spec.pixels_per_value;
        LatentShape {
            batch: 1,
            channels: spec.channels,
            frames,
            height: side(self.height),
            width: side(self.width),
        }
    }

    /// Random noise of a latent's size.
    fn noise(self, spec: &LatentSpec) -> Vec<f32> {
        let LatentShape { batch, channels, frames, height, width } = self.latent(spec);
        random_normal(1, batch * channels * frames * height * width)
    }

    /// The same on a device. Families that make pictures have latents without frames.
    fn on_device(self, spec: &LatentSpec, lane: &Lane, noise: &[f32]) -> device::Result<Tensor> {
        let LatentShape { batch, channels, frames, height, width } = self.latent(spec);
        match spec.frames_per_value {
            None => lane.tensor([batch, channels, height, width], noise),
            Some(_) => lane.tensor([batch, channels, frames, height, width], noise),
        }
    }
}

impl fmt::Display for StepSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} pixels", self.width, self.height)?;
        if self.frames > 1 {
            write!(f, ", {} frames", self.frames)?;
        }
        write!(f, ", {} tokens of text", self.tokens)
    }
}

/// The model stored in one way.
#[derive(Serialize)]
struct FormatReport {
    format: String,
    model_bytes: u64,
    /// Error of one evaluation of the cut of one block each, against the CPU in f32.
    cut_relative_error: f64,
    /// Its resident step over that of bf16, where both were measured.
    resident_over_bf16: Option<f64>,
    /// No resident step can be shorter: products and attention alone, as fast as the device does large ones.
    floor: Floor,
    /// Where a resident step's time goes, the longest first; empty unless it is asked for.
    operations: Vec<OperationRow>,
    rows: Vec<Row>,
}

/// All operations of a step of one kind and size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OperationRow {
    operation: String,
    count: usize,
    seconds: f64,
}

impl From<OperationTime> for OperationRow {
    fn from(time: OperationTime) -> OperationRow {
        let OperationTime { operation, count, seconds } = time;
        OperationRow { operation, count, seconds }
    }
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
    /// Whether products with weights of fp8 were of 8 bits.
    fp8_products: bool,
    /// Where they were: how far the result of the step is from that with exact products.
    error_of_products: Option<f64>,
    /// Whether the result has the same bits as the resident one of the same products.
    identical: bool,
}

pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    let device = machine.registry().get(args.device)?;
    ensure!(
        device.id() != DeviceId::CPU,
        "bench step measures an accelerator: name one with --device cuda:0"
    );
    if args.control {
        return control::run(machine, device, args);
    }
    let formats = formats(&args.only)?;
    let (family, released) = released(args)?;
    let measuring = Measuring {
        machine,
        device,
        shapes: (family, released),
        size: size_of(args, released),
        link: bandwidth::measure(device, machine.cpu())?.pinned_to_device,
        peer: peer_of(machine, device)?,
        args,
    };
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        device: device.id().to_string(),
        device_name: device.description().name.clone(),
        model: released.name,
        cfg: released.cfg,
        parameters: (released.tensors)(usize::MAX).iter().map(|(_, shape)| shape.count() as u64).sum(),
        pixels: measuring.size.width,
        size: measuring.size,
        link_bytes_per_s: measuring.link,
        peer_bytes_per_s: measuring.peer.map(|(_, bytes_per_s)| bytes_per_s),
        formats: Vec::new(),
        decoding: decoding::measure(machine, device.id(), released.pixels)?,
    };
    for format in formats {
        report.formats.push(measuring.format(format)?);
    }
    report.compare_with_bf16();
    show(args, &report, Report::to_text)
}

/// The formats that were asked for.
fn formats(only: &str) -> Result<Vec<&'static str>> {
    let named = NAMED_FORMATS.into_iter().filter(|_| !only.is_empty());
    let formats: Vec<&str> =
        FORMATS.into_iter().chain(named).filter(|format| is_wanted(only, format)).collect();
    let known = [&FORMATS[..], &NAMED_FORMATS].concat().join(", ");
    ensure!(!formats.is_empty(), "--only {only}: no format has that in its name; there are {known}");
    Ok(formats)
}

/// What is measured of every format.
struct Measuring<'a> {
    machine: &'a Machine,
    device: &'a Device,
    shapes: (&'static DiffusionFamily, &'static ReleasedModel),
    size: StepSize,
    link: f64,
    peer: Option<(DeviceId, f64)>,
    args: &'a BenchArgs,
}

impl Measuring<'_> {
    fn format(&self, format: &str) -> Result<FormatReport> {
        let Measuring { machine, device, shapes, size, args, .. } = self;
        let dir = ScratchDir::new()?;
        let cut = write_model(dir.path(), format, *shapes, 1)?;
        let cut_relative_error =
            cut_error(machine, device.id(), &cut, StepSize::square(512, shapes.1.tokens))?;
        std::fs::remove_file(&cut)?;
        let path = write_whole(dir.path(), format, *shapes)?;
        let bench = Bench {
            devices: machine.registry(),
            compute: device.id(),
            card: machine.cuda(device.id()),
            path: &path,
            size: *size,
            evaluations: evaluations(shapes.1),
            link: self.link,
            peer: self.peer,
            products: Products::Exact,
            profiles: args.profile.as_deref().map(|folder| (folder, format)),
        };
        let floor = Floor::of(device, machine.cpu(), &path, &bench)?;
        let operations = if args.operations { bench.operations(device, machine.cpu())? } else { Vec::new() };
        let rows = bench.rows(&floor)?;
        Ok(FormatReport {
            format: format.to_owned(),
            model_bytes: Checkpoint::open(&path)?.tensor_bytes(),
            cut_relative_error,
            resident_over_bf16: None,
            floor,
            operations,
            rows,
        })
    }
}

/// Another device of the same kind, if there is one, and how fast it sends.
fn peer_of(machine: &Machine, device: &Device) -> Result<Option<(DeviceId, f64)>> {
    let is_peer = |other: &&Device| other.id().kind == device.id().kind && other.id() != device.id();
    let peer = machine.registry().iter().find(is_peer);
    peer.map(|other| Ok((other.id(), bandwidth::between(other, device)?))).transpose()
}

/// The family that was asked for, and its released model, or the small one.
pub(super) fn released(args: &BenchArgs) -> Result<(&'static DiffusionFamily, &'static ReleasedModel)> {
    let families = models::diffusion::FAMILIES;
    let family = match &args.family {
        None => families.first(),
        Some(key) => families.iter().find(|family| family.key == key.as_str()),
    };
    let known: Vec<&str> = families.iter().map(|family| family.key).collect();
    let family =
        family.with_context(|| format!("--family: there is no such one; there are {}", known.join(", ")))?;
    let released = match args.shape {
        ModelShape::Full => &family.released,
        ModelShape::Small => &family.small,
    };
    Ok((family, released))
}

/// What was asked for; the size in which the family's models are usually measured where nothing was.
fn size_of(args: &BenchArgs, released: &ReleasedModel) -> StepSize {
    let usual = StepSize::square(released.pixels, released.tokens);
    let (width, height) = args.size.map_or((usual.width, usual.height), |size| (size.width, size.height));
    StepSize { width, height, frames: args.frames, ..usual }
}

/// Evaluations of a step.
fn evaluations(released: &ReleasedModel) -> usize {
    if released.cfg == 1.0 { 1 } else { 2 }
}

/// The seconds of a step of a model file with all of it on a device.
pub(super) fn resident_step(machine: &Machine, device: DeviceId, path: &Path, size: StepSize) -> Result<f64> {
    Ok(Bench::plain(machine, device, path, size).measure("")?.step_s)
}

/// One block of each kind, measured.
pub(super) struct OneOfEach {
    pub(super) first_s: f64,
    pub(super) seconds: f64,
    pub(super) peak_bytes: u64,
    pub(super) planned_bytes: u64,
}

/// A step of a model file with all of it on a device.
pub(super) fn one_of_each(
    machine: &Machine,
    device: DeviceId,
    path: &Path,
    size: StepSize,
) -> Result<OneOfEach> {
    let bench = Bench { card: machine.cuda(device), ..Bench::plain(machine, device, path, size) };
    let Measured { plan, first_step_s, step_s, peak_bytes, .. } = bench.measure("")?;
    let planned_bytes = plan.device(device).map_or(0, placement::DeviceUse::total_bytes);
    Ok(OneOfEach { first_s: first_step_s, seconds: step_s, peak_bytes, planned_bytes })
}

/// The diffusion model of a file.
pub(super) fn read_model(checkpoint: &Checkpoint) -> Result<Box<dyn Diffusion>> {
    let detected = detect(checkpoint);
    let part = detected.part(Role::Diffusion, "a diffusion model")?;
    match part.reader {
        Some(Reader::Diffusion(family)) => Ok((family.read)(checkpoint, part)?),
        _ => bail!("{part} cannot be measured yet"),
    }
}

/// A model in a session.
struct Loaded {
    model: Box<dyn Diffusion>,
    session: Session,
    residency: Residency,
}

impl Loaded {
    /// A run of so many evaluations per step over one picture or video, conditioned on random texts.
    fn start(&self, size: StepSize, evaluations: usize) -> Result<Box<dyn DiffusionRun + '_>> {
        let conds: Vec<Cond> =
            (0..evaluations).map(|which| random_cond(&*self.model, size.tokens, which)).collect();
        let conditioned: Vec<Conditioned<'_>> = conds.iter().map(Conditioned::whole).collect();
        let shape = size.latent(self.model.latent());
        Ok(self.model.start(&self.session, &conditioned, &Scene::empty(shape))?)
    }

    /// Random noise of a latent's size.
    fn noise(&self, size: StepSize) -> Vec<f32> {
        size.noise(self.model.latent())
    }

    /// The same on the device.
    fn latent(&self, size: StepSize, noise: &[f32]) -> Result<Tensor> {
        Ok(size.on_device(self.model.latent(), self.session.lane()?, noise)?)
    }

    /// One step on fixed inputs: what every evaluation gives, which stays on its device.
    fn step(&self, run: &dyn DiffusionRun, latent: &Tensor, evaluations: usize) -> Result<Vec<Tensor>> {
        let time = self.model.sampling().timestep(0.8);
        let all: Vec<Evaluation<'_>> =
            (0..evaluations).map(|cond| Evaluation::new(cond, latent, time)).collect();
        Ok(run.forward(&all)?)
    }

    /// A run of one step.
    fn evaluate(&self, size: StepSize, evaluations: usize) -> Result<Vec<Tensor>> {
        let run = self.start(size, evaluations)?;
        self.step(&*run, &self.latent(size, &self.noise(size))?, evaluations)
    }
}

/// A conditioning of random values, of the sizes that a model takes.
fn random_cond(model: &dyn Diffusion, tokens: usize, which: usize) -> Cond {
    let blank = model.blank(&CondShape { tokens, ..CondShape::default() });
    let random = |array: &Array, seed: usize| {
        let values = random_normal(seed as u64, array.values.len());
        Arc::new(Array { shape: array.shape.clone(), values })
    };
    Cond {
        text: random(&blank.text, 2 + 10 * which),
        pooled: blank.pooled.as_deref().map(|pooled| random(pooled, 3 + 10 * which)),
        ..blank
    }
}

/// ‖device − CPU‖ / ‖CPU‖ of one evaluation.
fn cut_error(machine: &Machine, device: DeviceId, path: &Path, size: StepSize) -> Result<f64> {
    let evaluate = |compute: DeviceId| -> Result<Vec<f32>> {
        let (_, loaded) = Bench::plain(machine, compute, path, size).load("")?;
        values_of(&loaded.evaluate(size, 1)?)
    };
    Ok(relative_error(&evaluate(device)?, &evaluate(DeviceId::CPU)?))
}

/// The values of all evaluations.
fn values_of(outputs: &[Tensor]) -> Result<Vec<f32>> {
    let all = outputs.iter().map(Tensor::to_vec).collect::<device::Result<Vec<_>>>()?;
    Ok(all.concat())
}

/// ‖got − want‖ / ‖want‖.
pub(super) fn relative_error(got: &[f32], want: &[f32]) -> f64 {
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
    size: StepSize,
    /// Evaluations of a step.
    evaluations: usize,
    link: f64,
    /// Another device of the same kind, such as the second of two logical ones on one card, and the bytes per second
    /// that come from there.
    peer: Option<(DeviceId, f64)>,
    /// Which products are of 8 bits.
    products: Products,
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
    /// How many weights had products of 8 bits.
    fp8_products: usize,
    output: Vec<f32>,
}

impl<'a> Bench<'a> {
    /// A step with one evaluation, of which nothing is known but the time.
    fn plain(machine: &'a Machine, compute: DeviceId, path: &'a Path, size: StepSize) -> Bench<'a> {
        Bench {
            devices: machine.registry(),
            compute,
            card: None,
            path,
            size,
            evaluations: 1,
            link: 1e10,
            peer: None,
            products: Products::Exact,
            profiles: None,
        }
    }

    fn load(&self, text: &str) -> Result<(Plan, Loaded)> {
        let checkpoint = Arc::new(Checkpoint::open(self.path)?);
        let model = read_model(&checkpoint)?;
        let manifest = model.manifest(&checkpoint)?.with_products(self.products);
        let lane = Lane::choose(self.devices.get(self.compute)?, model.activations())?;
        let question = PlanQuestion {
            allocation: AllocationText::parse(text)?,
            size: (self.size.width, self.size.height),
            frames: self.size.frames,
            text: Some(self.size.tokens),
            cfg: self.evaluations > 1,
            ..PlanQuestion::default()
        };
        let plan = plan_file((self.devices, self.compute), &checkpoint, self.products, &question)?;
        let residency = Residency::new(self.devices.clone());
        let options = LoadOptions { dtype: Some(lane.dtype()), ..LoadOptions::default() };
        let id = residency.load(manifest, plan.clone(), options)?;
        let session = residency.open(id, &Cancel::default())?;
        Ok((plan, Loaded { model, session, residency }))
    }

    /// What every operation of a resident step takes, by marks around each.
    fn operations(&self, device: &Device, host: &Device) -> Result<Vec<OperationRow>> {
        let (timed, times) = device.timed();
        let devices = Registry::new([host.clone(), timed]);
        let (_, loaded) = Bench { devices: &devices, ..*self }.load("")?;
        let run = loaded.start(self.size, self.evaluations)?;
        let latent = loaded.latent(self.size, &loaded.noise(self.size))?;
        // The first two steps look for kernels and fill the pool.
        for _ in 0..2 {
            values_of(&loaded.step(&*run, &latent, self.evaluations)?)?;
        }
        times.take()?;
        values_of(&loaded.step(&*run, &latent, self.evaluations)?)?;
        Ok(times.take()?.into_iter().map(OperationRow::from).collect())
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
        rows.extend(self.rows_of_8_bits(&resident, floor)?);
        Ok(rows)
    }

    /// The same with products of 8 bits, where the device has some for this model: resident and streamed.
    fn rows_of_8_bits(&self, exact: &Measured, floor: &Floor) -> Result<Vec<Row>> {
        if self.products == Products::EightBits || floor.fp8_seconds.is_none() {
            return Ok(Vec::new());
        }
        let profiles = self.profiles.map(|(folder, _)| (folder, "8-bit-products"));
        let bench = Bench { products: Products::EightBits, profiles, ..*self };
        let resident = bench.measure("")?;
        if resident.fp8_products == 0 {
            return Ok(Vec::new());
        }
        let text = format!("{},0%;cpu,100%", self.compute);
        let streamed = bench.measure(&text)?;
        let rows = [(("", 0), &resident), ((text.as_str(), 100), &streamed)];
        Ok(rows
            .into_iter()
            .map(|(what, measured)| {
                let error = relative_error(&measured.output, &exact.output);
                Row { error_of_products: Some(error), ..bench.row(what, measured, &resident, floor) }
            })
            .collect())
    }

    fn measure(&self, text: &str) -> Result<Measured> {
        let start = Instant::now();
        let (plan, loaded) = self.load(text)?;
        let load_s = start.elapsed().as_secs_f64();
        let ledger = self.devices.get(self.compute)?.ledger();
        ledger.take_peak();
        self.card.map(CudaBackend::take_peak_bytes);
        let start = Instant::now();
        let run = loaded.start(self.size, self.evaluations)?;
        let noise = loaded.noise(self.size);
        let latent = loaded.latent(self.size, &noise)?;
        let output = values_of(&loaded.step(&*run, &latent, self.evaluations)?)?;
        let first_step_s = start.elapsed().as_secs_f64();
        let mut times = Vec::new();
        for _ in 0..STEPS {
            // A sampler brings the latent and reads the answer in every step.
            let start = Instant::now();
            let latent = loaded.latent(self.size, &noise)?;
            values_of(&loaded.step(&*run, &latent, self.evaluations)?)?;
            times.push(start.elapsed().as_secs_f64());
        }
        drop(run);
        times.sort_by(f64::total_cmp);
        self.keep_profile(text, &loaded)?;
        Ok(Measured {
            plan,
            load_s,
            first_step_s,
            step_s: times[STEPS / 2],
            peak_bytes: self.card.map_or(ledger.report().peak, CudaBackend::take_peak_bytes),
            fp8_products: loaded.session.manifest().fp8_products().0,
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
            true if measured.fp8_products > 0 => floor.fp8_seconds.unwrap_or(floor.seconds),
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
            fp8_products: measured.fp8_products > 0,
            error_of_products: None,
            identical: measured.output == resident.output,
        }
    }
}

impl FormatReport {
    /// Seconds of a step with all of it on the device and exact products.
    fn resident_s(&self) -> Option<f64> {
        let resident = self.rows.iter().find(|row| row.allocation.is_empty() && !row.fp8_products);
        resident.map(|row| row.step_s)
    }
}

impl Report {
    fn compare_with_bf16(&mut self) {
        let plain = self.formats.iter().find(|it| it.format == FORMATS[0]).and_then(FormatReport::resident_s);
        for it in self.formats.iter_mut().filter(|it| it.format != FORMATS[0]) {
            it.resident_over_bf16 = it.resident_s().zip(plain).map(|(own, plain)| own / plain);
        }
    }

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
            "8-bit error",
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
                &row.error_of_products.map_or("-".to_owned(), |error| format!("{error:.1e}")),
                if row.identical { "yes" } else { "NO" },
            ]);
        }
        let errors: Vec<String> =
            self.formats.iter().map(|it| format!("{} {:.1e}", it.format, it.cut_relative_error)).collect();
        let over = self.formats.iter().filter_map(|it| Some((&it.format, it.resident_over_bf16?)));
        let over: Vec<String> = over.map(|(format, over)| format!("{format} {over:.3}")).collect();
        let over = match over.is_empty() {
            true => String::new(),
            false => format!("resident steps over those of bf16: {}\n", over.join(", ")),
        };
        let mut parts = Table::new(&["operation", "count", "ms"]);
        for row in self.formats.iter().flat_map(|it| &it.operations) {
            parts.row(&[&row.operation, &row.count.to_string(), &format!("{:.3}", row.seconds * 1e3)]);
        }
        let has_parts = self.formats.iter().any(|it| !it.operations.is_empty());
        let parts = if has_parts { format!("\n{parts}") } else { String::new() };
        format!(
            "{} ({}), a model of the size of {} ({:.1} billion parameters), cfg {}, {}, link {:.1} GB/s\n\
             one block each against the CPU, relative error: {}\n\n{table}\n{over}\
             decoding a picture: {:.1} ms, the first {:.1} ms, relative error {:.1e}\n{parts}",
            self.device,
            self.device_name,
            self.model,
            self.parameters as f64 / 1e9,
            self.cfg,
            self.size,
            self.link_bytes_per_s / 1e9,
            errors.join(", "),
            self.decoding.decode_s * 1e3,
            self.decoding.first_s * 1e3,
            self.decoding.relative_error,
        )
    }
}
