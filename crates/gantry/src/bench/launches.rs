//! `gantry bench launches`: what queuing an operation costs the host, on a device that computes nothing and on a real
//! one. Small models are bound by this.
//!
//! Operations are made as models make them: tensors in, leases of a loaded model, tensors out. They are queued without
//! waiting, in runs that are short enough for every queue, and small enough that no device is slower than the host.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use checkpoint::Checkpoint;
use device::op::RopeLayout;
use device::{Device, NullBackend, Registry};
use device_cuda::CudaBackend;
use meta::{DType, DeviceId, DeviceKind, Encoding, Moment, Shape};
use placement::AllocationText;
use residency::{Cancel, Lease, LoadOptions, Manifest, Residency, Session};
use serde::Serialize;
use tensor::{Activation, Lane, Mask, Tensor};
use testkit::{SafetensorsWriter, ScratchDir, encode, random_normal};

use super::is_wanted;
use crate::bench::show;
use crate::cli::BenchArgs;
use crate::machine::Machine;
use crate::planning::device_specs;
use crate::table::Table;

/// Tokens, values of each, and heads: small, because only the queuing is measured.
const TOKENS: usize = 64;
const WIDTH: usize = 256;
const HEADS: usize = 4;
/// Blocks of the model; a step passes through all of them.
const BLOCKS: usize = 16;
/// Operations of one kind that are queued between two waits. Drivers hold about a thousand before they let the host wait.
const RUN: usize = 256;
/// Runs that are measured, and those before them that are not.
const RUNS: usize = 24;
const WARM_UP: usize = 6;

#[derive(Serialize)]
struct Report {
    version: &'static str,
    date: String,
    device: String,
    device_name: String,
    detail: String,
    /// The host's processor.
    host: String,
    /// Microseconds of the driver's own launch of a kernel, the least of many: no operation is queued in less.
    driver_us: Option<f64>,
    rows: Vec<Row>,
}

/// One kind of operation on one device.
#[derive(Serialize)]
struct Row {
    device: String,
    name: &'static str,
    /// Operations that were queued and measured.
    operations: usize,
    /// Microseconds of the host for each: the median of all runs.
    issued_us: f64,
    /// Where the same is queued as one recorded graph.
    replayed_us: Option<f64>,
}

pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    let device = machine.registry().get(args.device)?;
    let null = Device::new(Arc::new(NullBackend::new(0, 64 << 30)), 64 << 30);
    let model = Model::write()?;
    let mut rows = model.measure(&Registry::new([machine.cpu().clone(), null]), DeviceId::null(0), args)?;
    // On the CPU an operation is done when it is queued: that would measure the kernels.
    if device.id().kind == DeviceKind::Cuda {
        rows.extend(model.measure(machine.registry(), device.id(), args)?);
    }
    let driver = machine.cuda(device.id()).map(CudaBackend::measure_driver_launch).transpose()?;
    let description = device.description();
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        date: Moment::utc(SystemTime::now()).date(),
        device: device.id().to_string(),
        device_name: description.name.clone(),
        detail: description.detail.clone(),
        host: machine.cpu().description().name.clone(),
        driver_us: driver.map(|seconds| seconds * 1e6),
        rows,
    };
    show(args, &report, Report::to_text)
}

impl Report {
    fn to_text(&self) -> String {
        let mut table = Table::new(&["device", "operation", "µs issued", "µs replayed"]);
        for row in &self.rows {
            let replayed = row.replayed_us.map_or("–".to_owned(), |us| format!("{us:.2}"));
            table.row(&[&row.device, row.name, &format!("{:.2}", row.issued_us), &replayed]);
        }
        let driver =
            self.driver_us.map_or(String::new(), |us| format!("; the driver's own launch takes {us:.2} µs"));
        format!("{} ({}); host {}{driver}\n\n{table}", self.device, self.device_name, self.host)
    }
}

/// A transformer of small blocks in a file.
struct Model {
    _dir: ScratchDir,
    checkpoint: Checkpoint,
}

/// The layers of a block: name, outputs and inputs.
const LAYERS: [(&str, usize, usize); 5] = [
    ("modulation", 6 * WIDTH, WIDTH),
    ("qkv", 3 * WIDTH, WIDTH),
    ("proj", WIDTH, WIDTH),
    ("up", 4 * WIDTH, WIDTH),
    ("down", WIDTH, 4 * WIDTH),
];

impl Model {
    fn write() -> Result<Model> {
        let dir = ScratchDir::new()?;
        let path = dir.path().join("launches.safetensors");
        let mut writer = SafetensorsWriter::new();
        let values = |count: usize| {
            let values: Vec<f32> = random_normal(7, count).iter().map(|v| v * 0.01).collect();
            encode(Encoding::BF16, &values)
        };
        for block in 0..BLOCKS {
            for (layer, outputs, inputs) in LAYERS {
                let name = format!("blocks.{block}.{layer}");
                let (weight, bias) = (values(outputs * inputs)?, values(outputs)?);
                let shape = Shape::from([outputs, inputs]);
                writer = writer.tensor(format!("{name}.weight"), Encoding::BF16, shape, weight);
                writer = writer.tensor(format!("{name}.bias"), Encoding::BF16, Shape::from([outputs]), bias);
            }
            let name = format!("blocks.{block}.head_norm.scale");
            let size = WIDTH / HEADS;
            writer = writer.tensor(name, Encoding::BF16, Shape::from([size]), values(size)?);
        }
        writer.write(&path)?;
        let checkpoint = Checkpoint::open(&path)?;
        Ok(Model { _dir: dir, checkpoint })
    }

    /// The rows of one device.
    fn measure(&self, devices: &Registry, id: DeviceId, args: &BenchArgs) -> Result<Vec<Row>> {
        let manifest = Manifest::by_names(&self.checkpoint, "launches")?;
        // Nothing is streamed, so that the speed of the link does not matter.
        let specs = device_specs(devices, 1e9);
        let mut request = Residency::plan_request(&manifest, id, specs);
        request.allocation = AllocationText::parse("")?;
        let plan = placement::plan(&request)?;
        let residency = Residency::new(devices.clone());
        let dtype = Some(DType::BF16).filter(|dtype| {
            devices.get(id).is_ok_and(|device| device.description().activations.contains(dtype))
        });
        let model = residency.load(manifest, plan, LoadOptions { dtype, ..LoadOptions::default() })?;
        let session = residency.open(model, &Cancel::NEVER)?;
        let bench = Bench::new(&session)?;
        let kinds = Kind::ALL.into_iter().filter(|kind| is_wanted(&args.only, kind.name()));
        kinds.map(|kind| bench.row(kind).with_context(|| format!("{} on {id}", kind.name()))).collect()
    }
}

/// What operations work on.
struct Bench<'a> {
    session: &'a Session,
    lane: &'a Lane,
    /// `[1, tokens, width]`.
    x: Tensor,
    /// `[1, width]`.
    vector: Tensor,
    /// `[1, tokens, heads, size]`.
    heads: Tensor,
    /// Angles of the heads, `[1, tokens, size / 2]`.
    angles: [Tensor; 2],
}

/// What is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Linear,
    ModulatedNorm,
    Attention,
    Copy,
    Elementwise,
    /// Blocks of a transformer as models write them, leases and all.
    Mix,
}

impl Kind {
    const ALL: [Kind; 6] =
        [Kind::Linear, Kind::ModulatedNorm, Kind::Attention, Kind::Copy, Kind::Elementwise, Kind::Mix];

    fn name(self) -> &'static str {
        match self {
            Kind::Linear => "linear",
            Kind::ModulatedNorm => "modulated norm",
            Kind::Attention => "attention",
            Kind::Copy => "copy",
            Kind::Elementwise => "elementwise",
            Kind::Mix => "mix",
        }
    }

    /// Operations that one run queues.
    fn operations(self) -> usize {
        if self == Kind::Mix { BLOCKS * OPERATIONS_OF_A_BLOCK } else { RUN }
    }
}

impl<'a> Bench<'a> {
    fn new(session: &'a Session) -> Result<Bench<'a>> {
        let lane = session.lane()?;
        let size = WIDTH / HEADS;
        let angles = lane.tensor_f32([1, TOKENS, size / 2], &random_normal(4, TOKENS * size / 2))?;
        Ok(Bench {
            session,
            lane,
            x: lane.tensor([1, TOKENS, WIDTH], &random_normal(1, TOKENS * WIDTH))?,
            vector: lane.tensor([1, WIDTH], &random_normal(2, WIDTH))?,
            heads: lane.tensor([1, TOKENS, HEADS, size], &random_normal(3, TOKENS * WIDTH))?,
            angles: [angles.clone(), angles],
        })
    }

    fn row(&self, kind: Kind) -> Result<Row> {
        let issued_us = self.median_us(kind, || self.issue(kind))?;
        // Leases put marks into the stream, which cannot be recorded, so all of them are taken before.
        let leases = (0..BLOCKS).map(|block| self.session.lease(block)).collect::<Result<Vec<_>, _>>()?;
        let graph = self.lane.stream().capture(|| self.queue(kind, &leases))?;
        let replayed_us = graph.map(|graph| self.median_us(kind, || Ok(graph.launch()?))).transpose()?;
        Ok(Row {
            device: self.lane.stream().device().to_string(),
            name: kind.name(),
            operations: RUNS * kind.operations(),
            issued_us,
            replayed_us,
        })
    }

    /// Microseconds of the host for each operation of a run that `queue` queues.
    fn median_us(&self, kind: Kind, mut queue: impl FnMut() -> Result<()>) -> Result<f64> {
        let stream = self.lane.stream();
        let mut times = Vec::with_capacity(RUNS);
        for run in 0..WARM_UP + RUNS {
            stream.synchronize()?;
            let start = Instant::now();
            queue()?;
            let seconds = start.elapsed().as_secs_f64();
            if run >= WARM_UP {
                times.push(seconds);
            }
        }
        stream.synchronize()?;
        times.sort_by(f64::total_cmp);
        Ok(times[RUNS / 2] / kind.operations() as f64 * 1e6)
    }

    /// Queues one run as models do.
    fn issue(&self, kind: Kind) -> Result<()> {
        if kind != Kind::Mix {
            let lease = self.session.lease(0)?;
            return (0..RUN).try_for_each(|_| self.once(kind, &lease));
        }
        let mut x = self.x.clone();
        for block in 0..BLOCKS {
            let lease = self.session.lease(block)?;
            x = self.block(&lease, block, &lease.bring(&x)?)?;
        }
        Ok(())
    }

    /// Queues the operations of one run, with leases of all blocks.
    fn queue(&self, kind: Kind, leases: &[Lease<'_>]) -> Result<()> {
        if kind != Kind::Mix {
            return (0..RUN).try_for_each(|_| self.once(kind, &leases[0]));
        }
        let mut x = self.x.clone();
        for (block, lease) in leases.iter().enumerate() {
            x = self.block(lease, block, &x)?;
        }
        Ok(())
    }

    /// Queues one operation of a kind.
    fn once(&self, kind: Kind, lease: &Lease<'_>) -> Result<()> {
        match kind {
            Kind::Linear => lease.linear("blocks.0.proj", &self.x)?,
            Kind::ModulatedNorm => self.x.modulated_norm(&self.vector, &self.vector, 1e-6)?,
            Kind::Attention => self.heads.attention(&self.heads, &self.heads, &Mask::None, 0.125)?,
            Kind::Copy => self.heads.transpose(1, 2)?.contiguous()?,
            Kind::Elementwise => self.x.add(&self.x)?,
            Kind::Mix => self.block(lease, 0, &self.x)?,
        };
        Ok(())
    }

    fn block(&self, lease: &Lease<'_>, block: usize, x: &Tensor) -> Result<Tensor> {
        let name = |layer: &str| format!("blocks.{block}.{layer}");
        let size = WIDTH / HEADS;
        let change = lease.linear(&name("modulation"), &self.vector.activate(Activation::Silu)?)?;
        let change = change.reshape([1, 1, 6 * WIDTH])?.chunk(2, 6)?;
        let normed = x.modulated_norm(&change[0], &change[1], 1e-6)?;
        let qkv = lease.linear(&name("qkv"), &normed)?.reshape([1, TOKENS, 3, HEADS, size])?;
        let part = |index: usize| qkv.slice(2, index, 1)?.reshape([1, TOKENS, HEADS, size]);
        let scale = lease.weight(&name("head_norm.scale"))?;
        let turned = |heads: Tensor| -> Result<Tensor> {
            let out = self.lane.empty([1, TOKENS, HEADS, size])?;
            let [cos, sin] = &self.angles;
            heads.normed_rope_into(&scale, 1e-6, [cos, sin], RopeLayout::Interleaved, &out)?;
            Ok(out)
        };
        let (q, k) = (turned(part(0)?)?, turned(part(1)?)?);
        let attended = q.attention(&k, &part(2)?, &Mask::None, 0.125)?.reshape([1, TOKENS, WIDTH])?;
        let x = x.gated_add(&change[2], &lease.linear(&name("proj"), &attended)?)?;
        let normed = x.modulated_norm(&change[3], &change[4], 1e-6)?;
        let inner = lease.linear_then(&name("up"), &normed, Some(Activation::GeluTanh))?;
        Ok(x.gated_add(&change[5], &lease.linear(&name("down"), &inner)?)?)
    }
}

/// The operations that [`Bench::block`] queues.
const OPERATIONS_OF_A_BLOCK: usize = 13;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_as_many_operations_as_are_counted() {
        let null = Arc::new(NullBackend::new(0, 1 << 30));
        let device = Device::new(Arc::clone(&null) as Arc<dyn device::Backend>, 1 << 30);
        let cpu = Machine::for_tests().cpu().clone();
        let devices = Registry::new([cpu, device]);
        let model = Model::write().unwrap();
        let manifest = Manifest::by_names(&model.checkpoint, "launches").unwrap();
        let request = Residency::plan_request(&manifest, DeviceId::null(0), device_specs(&devices, 1e9));
        let residency = Residency::new(devices);
        let id =
            residency.load(manifest, placement::plan(&request).unwrap(), LoadOptions::default()).unwrap();
        let session = residency.open(id, &Cancel::NEVER).unwrap();
        let bench = Bench::new(&session).unwrap();
        for kind in Kind::ALL {
            let before = null.launches();
            bench.issue(kind).unwrap();
            assert_eq!(null.launches() - before, kind.operations() as u64, "{}", kind.name());
            let row = bench.row(kind).unwrap();
            assert!(
                row.issued_us > 0.0 && row.replayed_us.is_some_and(|us| us < row.issued_us),
                "{}",
                row.name
            );
        }
    }
}
