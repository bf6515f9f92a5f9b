//! `gantry bench coding`: a model is coded while it is streamed. How long that takes, by how much passes over its blocks are
//! slower meanwhile and shorter afterwards, and what a start saves that finds the coded blocks in a file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use checkpoint::Checkpoint;
use device::{Backend, Device, Registry, SimBackend};
use device_cpu::CpuBackend;
use meta::{ByteSize, DeviceId, DeviceKind, Moment};
use placement::{AllocationText, CodingPolicy, Plan};
use residency::{
    Cancel, CodingState, CodingTime, LoadOptions, Manifest, ModelId, Residency, Session, SideCars,
};
use serde::Serialize;
use testkit::ScratchDir;

use super::step;
use crate::bench::show;
use crate::cli::BenchArgs;
use crate::host;
use crate::machine::Machine;
use crate::planning::device_specs;
use crate::table::Table;

/// Passes that are timed where nothing else goes on; their median counts.
const PASSES: usize = 5;
/// Blocks of each kind of the model that is written for what is no GPU.
const FEW_BLOCKS: usize = 2;
/// The device that stands for one where none is named: a link that copies take longer on than anything else.
const SIMULATED: &str = "8gb@1gbps";
/// The same for starts: a link that no disk of such a machine keeps up with, as those of GPUs are.
const SIMULATED_FOR_STARTS: &str = "8gb@16gbps";
/// A speed of decoding that lets every block be coded; what is planned is not what is measured here.
const DECODED_BYTES_PER_S: f64 = 1e12;
/// A link of which only the plan's prediction would know.
const LINK_BYTES_PER_S: f64 = 5e10;

#[derive(Serialize)]
struct Report {
    version: &'static str,
    date: String,
    device: String,
    device_name: String,
    detail: String,
    cores: usize,
    /// The coder that blocks are coded with.
    encoder: &'static str,
    model: String,
    model_bytes: u64,
    coded_bytes: u64,
    blocks: usize,
    /// A pass over all blocks without computing, with plain blocks and nothing beside it.
    plain_pass_s: f64,
    /// How long it took to open the model, which does not wait for coding.
    open_s: f64,
    /// From there until all blocks were coded.
    coding_s: f64,
    coded_bytes_per_s: f64,
    /// Passes that ended while blocks were being coded.
    passes_meanwhile: usize,
    /// The median of those; none if coding was done before the first ended.
    pass_meanwhile_s: Option<f64>,
    /// That over a plain pass.
    slower: Option<f64>,
    /// A pass with coded blocks.
    coded_pass_s: f64,
    /// What is decoded in it, counted decoded; how long that takes, and what part of it that is.
    decoded_bytes: u64,
    decoding_s: f64,
    decoding_share: f64,
    file_bytes: u64,
    loads: Vec<Load>,
    left_out: Vec<String>,
}

/// From a start to the end of the first pass.
#[derive(Serialize)]
struct Load {
    name: &'static str,
    /// Until the model is open.
    open_s: f64,
    /// Until every block has been used once.
    first_pass_s: f64,
}

pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    let scratch = ScratchDir::new()?;
    let simulated;
    let (devices, devices_for_starts, device) = match args.device.kind {
        DeviceKind::Cpu => {
            simulated = [simulated_machine(SIMULATED)?, simulated_machine(SIMULATED_FOR_STARTS)?];
            (&simulated[0], &simulated[1], DeviceId::sim(0))
        }
        _ => (machine.registry(), machine.registry(), args.device),
    };
    let path = match &args.file {
        Some(path) => path.clone(),
        None => {
            let most = if device.kind == DeviceKind::Cuda { usize::MAX } else { FEW_BLOCKS };
            step::write_model(scratch.path(), "BF16", step::released(args)?, most)?
        }
    };
    let bench =
        Bench { devices, devices_for_starts, device, path: &path, folder: scratch.path().join("coded") };
    let report = bench.report()?;
    show(args, &report, Report::to_text)
}

fn simulated_machine(spec: &str) -> Result<Registry> {
    let host = Arc::new(CpuBackend::new());
    let spec: device::SimSpec = spec.parse()?;
    let sim = SimBackend::new(0, spec, Arc::clone(&host) as Arc<dyn Backend>, host.executor());
    let cpu = Device::new(Arc::clone(&host) as Arc<dyn Backend>, host.total_memory());
    Ok(Registry::new(vec![cpu, Device::new(Arc::new(sim), spec.memory)]))
}

struct Bench<'a> {
    devices: &'a Registry,
    devices_for_starts: &'a Registry,
    device: DeviceId,
    path: &'a Path,
    /// Where coded blocks are kept.
    folder: PathBuf,
}

/// A model that is open.
struct Opened {
    residency: Residency,
    id: ModelId,
    session: Session,
    blocks: usize,
    open_s: f64,
}

/// What went on while blocks were coded.
struct Meanwhile {
    coding_s: f64,
    passes: Vec<f64>,
}

impl Bench<'_> {
    fn report(&self) -> Result<Report> {
        let (plain_pass_s, model_bytes) = {
            let plain = self.open(self.devices, CodingPolicy::Off, false)?;
            (plain.quiet_pass_s()?, plain.session.manifest().bytes())
        };
        let opened = self.open(self.devices, CodingPolicy::Force, true)?;
        let Meanwhile { coding_s, passes } = opened.passes_while_coding()?;
        let coded_pass_s = opened.quiet_pass_s()?;
        let (coded_bytes, decoded_bytes) =
            (opened.session.plan().streamed_bytes(), opened.session.plan().decoded_bytes());
        let decoding_s = opened.decoding_s();
        let pass_meanwhile_s = median(&passes);
        let (open_s, blocks) = (opened.open_s, opened.blocks);
        let file = opened.until_kept()?;
        drop(opened);
        let (loads, left_out) = self.loads(&file)?;
        let device = self.devices.get(self.device)?;
        let description = device.description();
        Ok(Report {
            version: env!("CARGO_PKG_VERSION"),
            date: Moment::utc(SystemTime::now()).date(),
            device: self.device.to_string(),
            device_name: description.name.clone(),
            detail: description.detail.clone(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            encoder: device_cpu::encoder().name(),
            model: self.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            model_bytes,
            coded_bytes,
            blocks,
            plain_pass_s,
            open_s,
            coding_s,
            coded_bytes_per_s: model_bytes as f64 / coding_s,
            passes_meanwhile: passes.len(),
            pass_meanwhile_s,
            slower: pass_meanwhile_s.map(|seconds| seconds / plain_pass_s),
            coded_pass_s,
            decoded_bytes,
            decoding_s,
            decoding_share: decoding_s / coded_pass_s,
            file_bytes: file.metadata()?.len(),
            loads,
            left_out,
        })
    }

    fn plan(&self, residency: &Residency, manifest: &Manifest, policy: CodingPolicy) -> Result<Plan> {
        let specs = device_specs(residency.devices(), LINK_BYTES_PER_S);
        let mut request = Residency::plan_request(manifest, self.device, specs);
        request.allocation = AllocationText::parse(&format!("{},0%;cpu,100%", self.device))?;
        request.coding.policy = policy;
        if policy != CodingPolicy::Off {
            request.coding.coded_bytes = residency.coded_bytes_known(manifest);
            request.coding.decode_bytes_per_s = Some(DECODED_BYTES_PER_S);
        }
        Ok(placement::plan(&request)?)
    }

    fn open(&self, devices: &Registry, policy: CodingPolicy, keep: bool) -> Result<Opened> {
        let start = Instant::now();
        let checkpoint = Checkpoint::open(self.path).context("--file")?;
        let manifest = Manifest::by_names(&checkpoint, "bench")?;
        let blocks = manifest.blocks().len();
        let residency = Residency::new(devices.clone());
        let residency = if keep {
            residency.keeping_coded(SideCars::new(self.folder.clone(), u64::MAX))
        } else {
            residency
        };
        let plan = self.plan(&residency, &manifest, policy)?;
        let options = LoadOptions { coding: CodingTime::Beside, ..LoadOptions::default() };
        let id = residency.load(manifest, plan, options)?;
        let session = residency.open(id, &Cancel::default())?;
        Ok(Opened { residency, id, session, blocks, open_s: start.elapsed().as_secs_f64() })
    }

    /// Starts with plain blocks and with those that are kept, from the page cache and from the disk.
    fn loads(&self, coded: &File) -> Result<(Vec<Load>, Vec<String>)> {
        let model = File::open(self.path)?;
        let (mut loads, mut left_out) = (Vec::new(), Vec::new());
        for (name, policy, from_disk) in [
            ("plain, from the page cache", CodingPolicy::Off, false),
            ("coded, from the page cache", CodingPolicy::Force, false),
            ("plain, from the disk", CodingPolicy::Off, true),
            ("coded, from the disk", CodingPolicy::Force, true),
        ] {
            if from_disk {
                let share = [&model, coded].map(forgotten_share);
                if share.iter().any(|share| share.is_none_or(|share| share > 0.05)) {
                    left_out.push(format!("{name}: the page cache does not forget the files"));
                    continue;
                }
            }
            let opened = self.open(self.devices_for_starts, policy, policy != CodingPolicy::Off)?;
            let report = opened.residency.coding(opened.id);
            ensure!(
                policy == CodingPolicy::Off || report.is_some_and(|report| report.is_read),
                "{name}: the kept blocks were not found: {:?}",
                opened.residency.side_cars().map(SideCars::take_notes)
            );
            let (open_s, first_pass_s) = (opened.open_s, opened.pass_s()?);
            loads.push(Load { name, open_s, first_pass_s });
        }
        Ok((loads, left_out))
    }
}

/// Lets the system forget a file; the share that it still has.
fn forgotten_share(file: &File) -> Option<f64> {
    let bytes = file.metadata().ok()?.len();
    file.sync_all().ok()?;
    host::forget_pages(file, 0, bytes);
    host::cached_share(file, 0, bytes)
}

impl Opened {
    /// Seconds of a pass over all blocks.
    fn pass_s(&self) -> Result<f64> {
        let start = Instant::now();
        for block in 0..self.blocks {
            drop(self.session.lease(block)?);
        }
        self.session.lane()?.stream().synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Seconds of a pass where nothing else goes on.
    fn quiet_pass_s(&self) -> Result<f64> {
        self.pass_s()?;
        let passes = (0..PASSES).map(|_| self.pass_s()).collect::<Result<Vec<f64>>>()?;
        median(&passes).context("no pass was timed")
    }

    /// Seconds of the latest whole pass in which its device decoded.
    fn decoding_s(&self) -> f64 {
        let pass = self.residency.profile(self.id);
        pass.map_or(0.0, |pass| pass.blocks.iter().map(|block| block.decode).sum())
    }

    /// Passes until the blocks are coded and taken.
    fn passes_while_coding(&self) -> Result<Meanwhile> {
        let mut passes = Vec::new();
        loop {
            let seconds = self.pass_s()?;
            let report = self.residency.coding(self.id).context("the plan codes no blocks of this model")?;
            match report.state {
                CodingState::Coding if report.done < report.blocks => passes.push(seconds),
                CodingState::Coding => {}
                CodingState::Coded => return Ok(Meanwhile { coding_s: report.seconds, passes }),
                CodingState::Plain => anyhow::bail!("coding failed: {}", report.reason.unwrap_or_default()),
            }
        }
    }

    /// Waits until the blocks are kept in a file.
    fn until_kept(&self) -> Result<File> {
        let cars = self.residency.side_cars().context("nothing is kept")?;
        loop {
            let notes = cars.take_notes();
            ensure!(notes.is_empty(), "{}", notes.join("; "));
            let noted = std::fs::read_dir(cars.folder()).is_ok_and(|all| {
                all.flatten().any(|entry| entry.path().extension().is_some_and(|ending| ending == "source"))
            });
            if let Some(car) = cars.list()?.first().filter(|_| noted) {
                return Ok(File::open(&car.path)?);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

impl Report {
    fn to_text(&self) -> String {
        let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
        let mut table = Table::new(&["what", "measured"]);
        let mut row = |what: &str, measured: String| table.row(&[what, &measured]);
        row("opening the model", ms(self.open_s));
        row("a pass, plain", ms(self.plain_pass_s));
        let rate = format!("{:.2} s, {:.2} GB/s", self.coding_s, self.coded_bytes_per_s / 1e9);
        row(&format!("until all blocks are coded, by {}", self.encoder), rate);
        let meanwhile = match self.pass_meanwhile_s.zip(self.slower) {
            Some((seconds, slower)) => {
                format!("{}, {slower:.3} of a plain one, of {}", ms(seconds), self.passes_meanwhile)
            }
            None => "coding was done before the first ended".to_owned(),
        };
        row("a pass meanwhile", meanwhile);
        row("a pass, coded", ms(self.coded_pass_s));
        let decoded = ByteSize(self.decoded_bytes);
        let share = 100.0 * self.decoding_share;
        row("decoding in it", format!("{}, {share:.1} % of it, of {decoded}", ms(self.decoding_s)));
        for load in &self.loads {
            let whole = ms(load.open_s + load.first_pass_s);
            row(
                &format!("start, {}", load.name),
                format!("open after {}, passed after {whole}", ms(load.open_s)),
            );
        }
        let (model, coded) = (ByteSize(self.model_bytes), ByteSize(self.coded_bytes));
        let mut text = format!(
            "{} ({}), {} cores\n{} of {model}, coded in {coded}, kept in {}\n{table}",
            self.device_name,
            self.detail,
            self.cores,
            self.model,
            ByteSize(self.file_bytes)
        );
        self.left_out.iter().for_each(|why| text += &format!("left out: {why}\n"));
        text
    }
}
