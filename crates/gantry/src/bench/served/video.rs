//! `gantry bench video`: what offloading costs models of videos. Predicted for their released sizes on a card of 60 TFLOP/s
//! behind 8 GB/s; measured, as served over HTTP, for small ones on a simulated device whose link and speed have the same
//! ratio; two experts on a budget that holds one of them; and how fast frames are written as MP4. With `--device cuda:0` the two
//! experts have their released size, on that card and on a part of it.

mod experts;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use checkpoint::{Checkpoint, NewTensor, SafetensorsHead};
use device::{Backend, Device, Registry, SimBackend, SimSpec};
use device_cpu::CpuBackend;
use media::{FrameRate, Mp4Writer, VideoPlan};
use meta::{ByteSize, DType, DeviceId, Moment, Shape};
use models::diffusion::{DiffusionFamily, ReleasedModel};
use placement::{AllocationText, DeviceUse, Plan};
use residency::Products;
use runtime::PlanQuestion;
use serde::Serialize;
use serde_json::{Value, json};
use testkit::ScratchDir;

use super::client::{Client, Job};
use super::files::{self, MODEL, encoder_file};
use super::workflow::{LOADER, SAMPLER, SAVER};
use crate::bench::server::program::Program;
use crate::bench::{is_wanted, show};
use crate::cli::BenchArgs;
use crate::commands::tell;
use crate::machine::Machine;
use crate::planning::plan_file;
use crate::table::Table;

/// The card that is predicted for.
const CARD: SimSpec = SimSpec {
    memory: 80 << 30,
    link_bytes_per_s: 8e9,
    flops_per_s: Some(60e12),
    activation: None,
    fp8_products: false,
};
/// Memory of the host that is predicted for.
const HOST_BYTES: u64 = 128 << 30;
/// The families, with the size of the video that their released models make: width, height and frames.
const VIDEOS: [(&str, [usize; 3]); 2] = [("wan", [832, 480, 33]), ("hunyuan_video", [848, 480, 33])];
/// The size of the video that the small models make.
const SMALL: [usize; 3] = [128, 128, 17];
/// How long a step of a small model is to take, so that the host keeps up with the simulated device.
const STEP_S: f64 = 0.6;
/// Steps of a job.
const STEPS: usize = 8;
/// Jobs that are measured behind the one that loads; the quickest counts, since the machine has other work.
const JOBS: u64 = 3;
/// The allocation that keeps all blocks in the host's memory.
const ALL_OFFLOADED: &str = "sim:0,0%;cpu,100%";
/// The file of the second expert.
const SECOND: &str = "served-second.safetensors";
/// Text encoders that give every family what it takes: a pooled text, and tokens.
const ENCODERS: [&str; 2] = ["clip_l", "t5xxl"];
const CLIP: (&str, usize) = (ENCODERS[0], 768);
/// The width of tokens of a family whose small model keeps that of the released one; of the others it is 256.
const WIDE: usize = 4096;
/// A video that is written: width, height, frames.
const WRITTEN: [usize; 3] = [1280, 720, 81];

#[derive(Serialize)]
struct Report {
    version: &'static str,
    date: String,
    card: String,
    families: Vec<FamilyRow>,
    experts: Option<ExpertsRow>,
    writing: Option<WritingRow>,
}

/// One family.
#[derive(Serialize)]
struct FamilyRow {
    model: &'static str,
    video: [usize; 3],
    /// A step of the released size on the card, all of it resident and all of it in host memory.
    predicted_resident_s: f64,
    predicted_offloaded_s: f64,
    predicted_ratio: f64,
    /// Copying over computing.
    copy_share: f64,
    /// The simulated device, which has the same share.
    device: String,
    small_video: [usize; 3],
    resident: Job,
    offloaded: Job,
    ratio: f64,
    same_bits: bool,
}

/// Two experts, half of the steps each.
#[derive(Serialize)]
struct ExpertsRow {
    device: String,
    device_name: String,
    /// The model whose size each has, and its bytes.
    model: &'static str,
    model_bytes: u64,
    video: [usize; 3],
    cfg: f64,
    steps: usize,
    /// The memory of the devices: for both, and for one or less.
    memory_bytes: [u64; 2],
    both_s: f64,
    one_s: f64,
    ratio: f64,
    same_bits: bool,
}

/// Frames as MP4.
#[derive(Serialize)]
struct WritingRow {
    video: [usize; 3],
    seconds: f64,
    frames_per_s: f64,
    bytes: u64,
}

pub(in crate::bench) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        date: Moment::utc(SystemTime::now()).date(),
        card: CARD.to_string(),
        families: Vec::new(),
        experts: None,
        writing: None,
    };
    let is_on_device = args.device != DeviceId::CPU;
    let is_named = |name: &str| is_wanted(&args.only, name) && !is_on_device;
    if is_on_device {
        ensure!(is_wanted(&args.only, "experts"), "--device: only the row experts is measured on a device");
        report.experts = Some(experts::on_device(machine, args)?);
    }
    if is_named("writing") {
        report.writing = Some(writing()?);
    }
    for (key, video) in VIDEOS.into_iter().filter(|(key, _)| is_named(key) || is_named("experts")) {
        let family = models::diffusion::FAMILIES.iter().find(|family| family.key == key);
        let family = family.with_context(|| format!("there is no family {key}"))?;
        let bench = Bench::new(family, video)?;
        if is_named(key) {
            report.families.push(bench.family()?);
        }
        if is_named("experts") && key == VIDEOS[0].0 {
            report.experts = Some(bench.experts()?);
        }
    }
    show(args, &report, Report::to_text)
}

/// A family on a simulated device.
struct Bench {
    released: &'static ReleasedModel,
    small: ReleasedModel,
    video: [usize; 3],
    /// The plans of the released size: resident and offloaded.
    large: [Plan; 2],
    /// The folder that servers work in.
    scratch: ScratchDir,
    /// What the small model takes on its device when it is resident.
    resident_bytes: u64,
    spec: SimSpec,
}

impl Bench {
    fn new(family: &'static DiffusionFamily, video: [usize; 3]) -> Result<Bench> {
        tell(&format!("{}: predicting\n", family.key));
        let scratch = ScratchDir::new()?;
        let large = {
            let path = scratch.path().join("released.safetensors");
            write_without_values(&path, &family.released)?;
            let plans = plans(&path, CARD, (&family.released, video))?;
            std::fs::remove_file(&path)?;
            plans
        };
        let small = with_known_words(&family.small);
        let models = scratch.path().join("models");
        files::write_all(&models, &small)?;
        let folder = models.join("diffusion_models");
        disk::write(&folder.join(SECOND), &std::fs::read(folder.join(MODEL))?)?;
        let trial = SimSpec {
            memory: 1 << 30,
            link_bytes_per_s: 1e9,
            flops_per_s: Some(10e9),
            activation: None,
            fp8_products: false,
        };
        let [resident, offloaded] = plans(&folder.join(MODEL), trial, (&small, SMALL))?;
        let compute = |plan: &Plan| plan.prediction.compute_s;
        let share = copy_share(&large);
        let flops_per_s = 10e9 * compute(&resident) / STEP_S;
        let link_bytes_per_s = offloaded.streamed_bytes() as f64 / (share * STEP_S);
        let spec = SimSpec { link_bytes_per_s, flops_per_s: Some(flops_per_s), ..trial };
        let resident_bytes = resident.device(DeviceId::sim(0)).map_or(0, DeviceUse::total_bytes);
        Ok(Bench { released: &family.released, small, video, large, scratch, resident_bytes, spec })
    }

    fn family(&self) -> Result<FamilyRow> {
        tell(&format!("{}: {}\n", self.released.name, self.spec));
        let server = Program::serving(self.scratch.path(), arguments(self.spec))?.start()?;
        let client = Client::new(&server, self.scratch.path());
        let cfg = self.released.cfg;
        let quickest = |allocation: &str| {
            client.free_all()?;
            quickest(&client, |seed| one_model(allocation, cfg, seed), |job| job.step_s)
        };
        let resident = quickest("")?;
        let offloaded = quickest(ALL_OFFLOADED)?;
        let step = |plan: &Plan| plan.prediction.seconds_per_step;
        let [large, streamed] = &self.large;
        Ok(FamilyRow {
            model: self.released.name,
            video: self.video,
            predicted_resident_s: step(large),
            predicted_offloaded_s: step(streamed),
            predicted_ratio: step(streamed) / step(large),
            copy_share: copy_share(&self.large),
            device: self.spec.to_string(),
            small_video: SMALL,
            ratio: offloaded.step_s / resident.step_s,
            same_bits: offloaded.latent == resident.latent,
            resident,
            offloaded,
        })
    }

    fn experts(&self) -> Result<ExpertsRow> {
        // One of them fits with what it computes in, and not half of the other.
        let memory_bytes = [3 * self.resident_bytes, self.resident_bytes + self.resident_bytes / 4];
        let measure = |memory: u64| {
            let spec = SimSpec { memory, ..self.spec };
            tell(&format!("two experts: {spec}\n"));
            let server = Program::serving(self.scratch.path(), arguments(spec))?.start()?;
            let client = Client::new(&server, self.scratch.path());
            quickest(&client, |seed| two_experts(SMALL, self.released.cfg, seed), |job| job.seconds)
        };
        let (both, one) = (measure(memory_bytes[0])?, measure(memory_bytes[1])?);
        Ok(ExpertsRow {
            device: "simulated".to_owned(),
            device_name: self.spec.to_string(),
            model: self.small.name,
            model_bytes: files::model_bytes(&self.small),
            video: SMALL,
            cfg: self.released.cfg,
            steps: STEPS,
            memory_bytes,
            both_s: both.seconds,
            one_s: one.seconds,
            ratio: one.seconds / both.seconds,
            same_bits: one.latent == both.latent,
        })
    }
}

/// A model with encoders whose words are known here.
fn with_known_words(released: &ReleasedModel) -> ReleasedModel {
    let text_width = released.encoders.last().map_or(0, |(_, width)| *width);
    let encoders: &[(&str, usize)] =
        if text_width == WIDE { &[CLIP, (ENCODERS[1], WIDE)] } else { &[CLIP, (ENCODERS[1], 256)] };
    ReleasedModel { encoders, ..*released }
}

/// Runs a job that loads and more behind it, all but the first of which are measured: the quickest, and the bits of the last.
fn quickest(
    client: &Client<'_>,
    prompt: impl Fn(u64) -> Value,
    seconds: impl Fn(&Job) -> f64,
) -> Result<Job> {
    client.run(&prompt(0))?;
    let mut jobs = (1..=JOBS).map(|seed| client.run(&prompt(seed))).collect::<Result<Vec<Job>>>()?;
    let latent = jobs.last_mut().map(|job| std::mem::take(&mut job.latent));
    let best = jobs.into_iter().min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    let best = best.context("no job was measured")?;
    Ok(Job { latent: latent.unwrap_or_default(), ..best })
}

/// The seconds of copying a released model over those of computing a step.
fn copy_share([resident, offloaded]: &[Plan; 2]) -> f64 {
    offloaded.streamed_bytes() as f64 / CARD.link_bytes_per_s / resident.prediction.compute_s
}

fn arguments(spec: SimSpec) -> Vec<String> {
    ["--cpu", "--compute", "sim:0", "--sim-device", &spec.to_string()].map(str::to_owned).to_vec()
}

/// Writes a file that has a model's tensors and no values: the system keeps no bytes for them.
fn write_without_values(path: &Path, released: &ReleasedModel) -> Result<()> {
    let described = |(name, shape): (String, Shape)| NewTensor { name, dtype: DType::BF16, shape };
    let tensors: Vec<NewTensor> = (released.tensors)(usize::MAX).into_iter().map(described).collect();
    let head = SafetensorsHead::new(path, &[], &tensors)?;
    let draft = disk::Draft::beside(path)?;
    let mut file = draft.file();
    file.write_all(head.bytes())?;
    file.set_len(head.file_bytes())?;
    Ok(draft.replace(path)?)
}

/// The plans of a file on a device: all of it resident, all of it in host memory.
fn plans(
    path: &Path,
    spec: SimSpec,
    (released, [width, height, frames]): (&ReleasedModel, [usize; 3]),
) -> Result<[Plan; 2]> {
    let host = Arc::new(CpuBackend::new());
    let cpu = Device::new(Arc::clone(&host) as Arc<dyn Backend>, HOST_BYTES);
    let executor = host.executor();
    let sim = SimBackend::new(0, spec, host as Arc<dyn Backend>, executor);
    let devices = Registry::new([cpu, Device::new(Arc::new(sim), spec.memory)]);
    let file = Arc::new(Checkpoint::open(path)?);
    let plan = |allocation: &str| {
        let question = PlanQuestion {
            allocation: AllocationText::parse(allocation)?,
            size: (width, height),
            frames,
            cfg: released.cfg > 1.0,
            text: Some(released.tokens),
            elsewhere: true,
            ..PlanQuestion::default()
        };
        plan_file((&devices, DeviceId::sim(0)), &file, Products::Exact, &question)
    };
    Ok([plan("")?, plan(ALL_OFFLOADED)?])
}

/// What both workflows have: texts, an empty video, and the latent saved.
fn frame_of_workflow([width, height, frames]: [usize; 3]) -> Value {
    let text =
        |text: &str| json!({ "class_type": "CLIPTextEncode", "inputs": { "text": text, "clip": ["2", 0] } });
    json!({
        "2": { "class_type": "DualCLIPLoader", "inputs": {
            "clip_name1": encoder_file(ENCODERS[0]), "clip_name2": encoder_file(ENCODERS[1]), "type": "flux",
            "device": "cpu" } },
        "4": text("a red fox in the snow"),
        "5": text("blurred, dark"),
        "6": { "class_type": "EmptyHunyuanLatentVideo", "inputs": {
            "width": width, "height": height, "length": frames, "batch_size": 1 } },
        SAVER: { "class_type": "SaveLatent", "inputs": {
            "samples": [SAMPLER, 0], "filename_prefix": "video" } },
    })
}

/// A video of one model.
fn one_model(allocation: &str, cfg: f64, seed: u64) -> Value {
    let mut prompt = frame_of_workflow(SMALL);
    prompt[LOADER] = json!({ "class_type": "UNETLoaderDisTorch2MultiGPU", "inputs": {
        "unet_name": MODEL, "weight_dtype": "default", "compute_device": "sim:0", "virtual_vram_gb": 0.0,
        "donor_device": "cpu", "expert_mode_allocations": allocation, "eject_models": false,
        "keep_loaded": true } });
    prompt[SAMPLER] = json!({ "class_type": "KSampler", "inputs": {
        "model": [LOADER, 0], "positive": ["4", 0], "negative": ["5", 0], "latent_image": ["6", 0],
        "seed": seed, "steps": STEPS, "cfg": cfg, "sampler_name": "euler", "scheduler": "simple",
        "denoise": 1.0 } });
    prompt
}

/// A video that one model begins and another ends, as the published workflow has it.
fn two_experts(video: [usize; 3], cfg: f64, seed: u64) -> Value {
    let mut prompt = frame_of_workflow(video);
    let loader = |file: &str| {
        json!({ "class_type": "UNETLoader", "inputs": {
            "unet_name": file, "weight_dtype": "default" } })
    };
    let half = STEPS / 2;
    let sampler = |model: &str, latent: &str, [start, end]: [usize; 2]| {
        let is_first = start == 0;
        let said = |is_it: bool| if is_it { "enable" } else { "disable" };
        json!({ "class_type": "KSamplerAdvanced", "inputs": {
            "model": [model, 0], "add_noise": said(is_first), "noise_seed": seed, "steps": STEPS, "cfg": cfg,
            "sampler_name": "euler", "scheduler": "simple", "positive": ["4", 0], "negative": ["5", 0],
            "latent_image": [latent, 0], "start_at_step": start, "end_at_step": end,
            "return_with_leftover_noise": said(is_first) } })
    };
    prompt[LOADER] = loader(MODEL);
    prompt["second"] = loader(SECOND);
    prompt["first half"] = sampler(LOADER, "6", [0, half]);
    prompt[SAMPLER] = sampler("second", "first half", [half, STEPS]);
    prompt
}

/// Writes a video three times; the quickest counts.
fn writing() -> Result<WritingRow> {
    let [width, height, frames] = WRITTEN;
    let scratch = ScratchDir::new()?;
    let mut best: Option<(f64, u64)> = None;
    for _ in 0..JOBS {
        let draft = disk::Draft::new(scratch.path())?;
        let plan = VideoPlan {
            width,
            height,
            rate: FrameRate::of(25.0)?,
            quality: 20.0,
            sound: None,
            texts: Vec::new(),
        };
        let mut seconds = 0.0;
        let mut writer = Mp4Writer::new(draft.file(), plan)?;
        for number in 0..frames {
            let frame = moving(number, [width, height]);
            let begun = Instant::now();
            writer.frame(&frame)?;
            seconds += begun.elapsed().as_secs_f64();
        }
        let begun = Instant::now();
        writer.finish()?;
        seconds += begun.elapsed().as_secs_f64();
        let bytes = draft.file().metadata()?.len();
        if best.is_none_or(|(quickest, _)| seconds < quickest) {
            best = Some((seconds, bytes));
        }
    }
    let (seconds, bytes) = best.context("nothing was written")?;
    Ok(WritingRow { video: WRITTEN, seconds, frames_per_s: frames as f64 / seconds, bytes })
}

/// A frame of waves that move, with some grain, as a camera's pictures have it.
fn moving(number: usize, [width, height]: [usize; 2]) -> Vec<u8> {
    let mut grain = 0x9E37_79B9_u32.wrapping_mul(number as u32 + 1);
    let mut frame = Vec::with_capacity(width * height * 3);
    let wave = |at: usize, length: f32| (at as f32 / length).sin() * 50.0;
    let columns: Vec<f32> = (0..width).map(|x| 128.0 + wave(x + 4 * number, 60.0)).collect();
    for y in 0..height {
        let row = wave(y + 2 * number, 45.0);
        for column in &columns {
            grain = grain.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = column + row + (grain >> 29) as f32;
            frame.extend([value, value * 0.8, 255.0 - value].map(|channel| channel as u8));
        }
    }
    frame
}

impl Report {
    fn to_text(&self) -> String {
        let mut table = Table::new(&["what", "resident s", "offloaded s", "ratio", "same bits"]);
        let yes = |is_same: bool| if is_same { "yes" } else { "NO" };
        let mut row = |name: &str, [resident, offloaded]: [f64; 2], bits: &str| {
            let ratio = format!("{:.4}", offloaded / resident);
            table.row(&[name, &format!("{resident:.3}"), &format!("{offloaded:.3}"), &ratio, bits]);
        };
        for family in &self.families {
            let predicted = [family.predicted_resident_s, family.predicted_offloaded_s];
            row(&format!("{}, predicted", family.model), predicted, "");
            let measured = [family.resident.step_s, family.offloaded.step_s];
            row(&format!("{}, simulated", family.model), measured, yes(family.same_bits));
        }
        if let Some(experts) = &self.experts {
            let [both, one] = experts.memory_bytes.map(|bytes| ByteSize(bytes).to_string());
            let name = format!("{}: two experts, {one} beside {both}", experts.device);
            row(&name, [experts.both_s, experts.one_s], yes(experts.same_bits));
        }
        let writing = self.writing.as_ref().map_or_else(String::new, |writing| {
            let [width, height, frames] = writing.video;
            format!("\n{frames} frames of {width}x{height} as MP4: {:.1} a second\n", writing.frames_per_s)
        });
        format!("{table}{writing}")
    }
}
