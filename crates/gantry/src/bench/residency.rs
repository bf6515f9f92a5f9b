//! `gantry bench residency`: whether streaming reaches the bound of its link, whether the predictor knows
//! it before, and whether memory is really back after a free.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use checkpoint::Checkpoint;
use device::{Backend, Device, Registry, SimBackend, SimSpec};
use device_cpu::CpuBackend;
use meta::{ByteSize, DeviceId, DeviceKind, Encoding, Shape};
use placement::{AllocationText, Plan};
use residency::{Cancel, FreeRequest, LoadOptions, Manifest, Residency, Session};
use serde::Serialize;
use tensor::{Activation, Tensor};
use testkit::{SafetensorsWriter, ScratchDir, encode, random_normal};

use crate::bandwidth;
use crate::bench::show;
use crate::cli::BenchArgs;
use crate::machine::Machine;
use crate::planning::device_specs;
use crate::table::Table;

/// Steps that are measured; their median counts.
const STEPS: usize = 11;
/// Loads and frees.
const CYCLES: usize = 50;

#[derive(Serialize)]
struct Report {
    version: &'static str,
    device: String,
    device_name: String,
    link_bytes_per_s: f64,
    streaming: Vec<StreamingRow>,
    memory: Option<MemoryRow>,
}

/// One offload.
#[derive(Serialize)]
struct StreamingRow {
    offload_percent: u32,
    streamed_bytes: u64,
    compute_s: f64,
    copy_s: f64,
    predicted_s: f64,
    measured_s: f64,
    /// Measured over the longer of computing and copying.
    over_bound: f64,
    /// Predicted over measured.
    predicted_over_measured: f64,
    /// Whether the result has the same bits as with nothing offloaded.
    identical: bool,
}

/// Memory of this process over many loads, runs and frees.
#[derive(Serialize)]
struct MemoryRow {
    cycles: usize,
    model_bytes: u64,
    fresh_rss_bytes: u64,
    first_free_rss_bytes: u64,
    last_free_rss_bytes: u64,
    loaded_rss_bytes: u64,
    /// Growth from the first free to the last, over the memory in use while loaded.
    growth_percent: f64,
    /// What the last free left above a fresh start, over the model's size.
    left_percent: f64,
}

/// On the CPU a simulated device is made for the purpose; a GPU is measured as it is.
pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    let device = machine.registry().get(args.device)?;
    let report = match device.id().kind {
        DeviceKind::Cuda => on_device(machine, device)?,
        _ => simulated()?,
    };
    show(args, &report, Report::to_text)
}

/// Blocks of about 150 MB, as a large model has them, on a real link.
fn on_device(machine: &Machine, device: &Device) -> Result<Report> {
    let model = Model::write(20, 3072, 12288, 4608)?;
    let link = bandwidth::measure(device, machine.cpu())?.pinned_to_device;
    let bench =
        Streaming { model: &model, devices: machine.registry(), compute: device.id(), link, rate: None };
    bench.report(device, None)
}

/// A metered device, where computing a block takes three quarters of the time of copying it.
fn simulated() -> Result<Report> {
    let model = Model::write(20, 512, 2048, 16)?;
    let link = 0.4e9;
    let rate = model.block_flops() as f64 / (0.75 * model.block_bytes() / link);
    let devices = machine_of(SimSpec {
        memory: 1 << 30,
        link_bytes_per_s: link,
        flops_per_s: Some(rate),
        activation: None,
        fp8_products: false,
    });
    let device = devices.get(DeviceId::sim(0))?;
    let bench = Streaming { model: &model, devices: &devices, compute: device.id(), link, rate: Some(rate) };
    bench.report(device, Some(memory()?))
}

/// A model of equal blocks: two matrices each.
struct Model {
    _dir: ScratchDir,
    path: PathBuf,
    blocks: usize,
    width: usize,
    inner: usize,
    rows: usize,
}

impl Model {
    fn write(blocks: usize, width: usize, inner: usize, rows: usize) -> Result<Model> {
        let dir = ScratchDir::new()?;
        let path = dir.path().join("bench.safetensors");
        let values: Vec<f32> = random_normal(3, width * inner).iter().map(|v| v * 0.01).collect();
        let bytes = encode(Encoding::BF16, &values)?;
        let mut writer = SafetensorsWriter::new();
        for i in 0..blocks {
            let shapes = [("up", Shape::from([inner, width])), ("down", Shape::from([width, inner]))];
            for (layer, shape) in shapes {
                writer =
                    writer.tensor(format!("blocks.{i}.{layer}.weight"), Encoding::BF16, shape, &bytes[..]);
            }
        }
        writer.write(&path)?;
        Ok(Model { _dir: dir, path, blocks, width, inner, rows })
    }

    fn manifest(&self) -> Result<Manifest> {
        Ok(Manifest::by_names(&Checkpoint::open(&self.path)?, "bench")?)
    }

    fn block_bytes(&self) -> f64 {
        (2 * 2 * self.width * self.inner) as f64
    }

    fn block_flops(&self) -> u64 {
        (4 * self.rows * self.width * self.inner) as u64
    }

    /// The input, where the first block computes.
    fn input(&self, session: &Session) -> Result<Tensor> {
        let values = random_normal(5, self.rows * self.width);
        Ok(session.lane()?.tensor([self.rows, self.width], &values)?)
    }

    /// One step, queued.
    fn step(&self, session: &Session, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for i in 0..self.blocks {
            let block = session.lease(i)?;
            x = block.bring(&x)?;
            let inner = block.linear_then(&format!("blocks.{i}.up"), &x, Some(Activation::Silu))?;
            x = x.add(&block.linear(&format!("blocks.{i}.down"), &inner)?)?;
        }
        Ok(x)
    }
}

/// The CPU and one simulated device.
fn machine_of(spec: SimSpec) -> Registry {
    let host = Arc::new(CpuBackend::new());
    let cpu = Device::new(Arc::clone(&host) as Arc<dyn Backend>, host.total_memory());
    let executor = host.executor();
    let sim = SimBackend::new(0, spec, host as Arc<dyn Backend>, executor);
    Registry::new([cpu, Device::new(Arc::new(sim), spec.memory)])
}

/// A model streamed to a device over a link of known speed.
struct Streaming<'a> {
    model: &'a Model,
    devices: &'a Registry,
    compute: DeviceId,
    link: f64,
    /// Operations per second, if they are known without measuring.
    rate: Option<f64>,
}

impl Streaming<'_> {
    fn report(&self, device: &Device, memory: Option<MemoryRow>) -> Result<Report> {
        let (resident_s, expected) = self.measure("", self.rate.unwrap_or(1e12))?.1;
        let flops = self.model.block_flops() as f64 * self.model.blocks as f64;
        let rate = self.rate.unwrap_or(flops / resident_s);
        let mut streaming = Vec::new();
        for percent in [25, 50, 75, 100] {
            let text = format!("{},{}%;cpu,{percent}%", self.compute, 100 - percent);
            let (plan, (measured_s, output)) = self.measure(&text, rate)?;
            let (compute_s, copy_s) = (plan.prediction.compute_s, plan.streamed_bytes() as f64 / self.link);
            streaming.push(StreamingRow {
                offload_percent: percent,
                streamed_bytes: plan.streamed_bytes(),
                compute_s,
                copy_s,
                predicted_s: plan.prediction.seconds_per_step,
                measured_s,
                over_bound: measured_s / compute_s.max(copy_s),
                predicted_over_measured: plan.prediction.seconds_per_step / measured_s,
                identical: output == expected,
            });
        }
        Ok(Report {
            version: env!("CARGO_PKG_VERSION"),
            device: device.id().to_string(),
            device_name: device.description().name.clone(),
            link_bytes_per_s: self.link,
            streaming,
            memory,
        })
    }

    /// The plan, the median step and the output under an allocation.
    fn measure(&self, text: &str, rate: f64) -> Result<(Plan, (f64, Vec<f32>))> {
        let residency = Residency::new(self.devices.clone());
        let manifest = self.model.manifest()?;
        let block_s = self.model.block_flops() as f64 / rate;
        let plan = plan(&manifest, self.devices, self.compute, (self.link, block_s), text)?;
        let id = residency.load(manifest, plan.clone(), LoadOptions::default())?;
        let session = residency.open(id, &Cancel::default())?;
        let x = self.model.input(&session)?;
        let output = self.model.step(&session, &x)?.to_vec()?;
        let mut times = Vec::new();
        for _ in 0..STEPS {
            let start = Instant::now();
            self.model.step(&session, &x)?;
            session.lane()?.stream().synchronize()?;
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        Ok((plan, (times[STEPS / 2], output)))
    }
}

/// A plan for a link of so many bytes per second and blocks of so many seconds.
fn plan(
    manifest: &Manifest,
    devices: &Registry,
    compute: DeviceId,
    (link, block_s): (f64, f64),
    text: &str,
) -> Result<Plan> {
    let specs = device_specs(devices, link);
    let mut request = Residency::plan_request(manifest, compute, specs);
    request.blocks.iter_mut().for_each(|block| block.compute_seconds = block_s);
    request.allocation = AllocationText::parse(text)?;
    Ok(placement::plan(&request)?)
}

/// Loads, runs and frees a model of a gigabyte, half of it streamed.
fn memory() -> Result<MemoryRow> {
    let model = Model::write(16, 2048, 8192, 1)?;
    let spec = SimSpec {
        memory: 4 << 30,
        link_bytes_per_s: 50e9,
        flops_per_s: None,
        activation: None,
        fp8_products: false,
    };
    let residency = Residency::new(machine_of(spec));
    let fresh = resident_bytes()?;
    let (mut first, mut last, mut loaded, mut bytes) = (0, 0, 0, 0);
    for cycle in 0..CYCLES {
        let manifest = model.manifest()?;
        bytes = manifest.bytes();
        let times = (50e9, model.block_flops() as f64 / 1e11);
        let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), times, "sim:0,50%;cpu,50%")?;
        let id = residency.load(manifest, plan, LoadOptions::default())?;
        let session = residency.open(id, &Cancel::default())?;
        model.step(&session, &model.input(&session)?)?.to_vec()?;
        drop(session);
        loaded = loaded.max(resident_bytes()?);
        residency.free(FreeRequest { free_memory: true, ..FreeRequest::default() }, &mut || ())?;
        last = resident_bytes()?;
        if cycle == 0 {
            first = last;
        }
    }
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    Ok(MemoryRow {
        cycles: CYCLES,
        model_bytes: bytes,
        fresh_rss_bytes: fresh,
        first_free_rss_bytes: first,
        last_free_rss_bytes: last,
        loaded_rss_bytes: loaded,
        growth_percent: percent(last.saturating_sub(first), loaded),
        left_percent: percent(last.saturating_sub(fresh), bytes),
    })
}

/// Memory of this process that is in the machine's memory now.
fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")
        .context("this system does not tell a process's memory")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("the system tells no resident memory")?;
    let kilobytes: u64 =
        line.trim().trim_end_matches(" kB").trim().parse().context("the resident memory is no number")?;
    Ok(kilobytes * 1024)
}

impl Report {
    fn to_text(&self) -> String {
        let mut table = Table::new(&[
            "offload",
            "streamed",
            "compute ms",
            "copy ms",
            "predicted ms",
            "measured ms",
            "over bound",
            "predicted / measured",
            "same bits",
        ]);
        for row in &self.streaming {
            let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
            table.row(&[
                &format!("{} %", row.offload_percent),
                &ByteSize(row.streamed_bytes).to_string(),
                &ms(row.compute_s),
                &ms(row.copy_s),
                &ms(row.predicted_s),
                &ms(row.measured_s),
                &format!("{:.3}", row.over_bound),
                &format!("{:.3}", row.predicted_over_measured),
                if row.identical { "yes" } else { "NO" },
            ]);
        }
        let link = self.link_bytes_per_s / 1e9;
        let memory = self.memory.as_ref().map_or(String::new(), MemoryRow::to_text);
        format!("streaming to {} ({}) at {link:.1} GB/s\n\n{table}{memory}", self.device, self.device_name)
    }
}

impl MemoryRow {
    fn to_text(&self) -> String {
        let mut table = Table::new(&["resident memory", "size"]);
        for (name, bytes) in [
            ("fresh", self.fresh_rss_bytes),
            ("while loaded", self.loaded_rss_bytes),
            ("after the first free", self.first_free_rss_bytes),
            ("after the last free", self.last_free_rss_bytes),
        ] {
            table.row(&[name, &ByteSize(bytes).to_string()]);
        }
        format!(
            "\n{} loads, runs and frees of a model of {}\n\n{table}\n\
             growth {:.2} % of what was loaded; {:.2} % of the model left above a fresh start\n",
            self.cycles,
            ByteSize(self.model_bytes),
            self.growth_percent,
            self.left_percent,
        )
    }
}
