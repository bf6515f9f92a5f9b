//! `gantry bench load`: how long a model file takes from the start to its first block in use, with the file in the page
//! cache and on the disk, resident and streamed, against the bandwidths that bound it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use checkpoint::Checkpoint;
use device::Device;
use meta::{ByteSize, DeviceId, DeviceKind, Moment};
use placement::AllocationText;
use residency::{Cancel, LoadOptions, Manifest, Residency};
use serde::Serialize;
use testkit::ScratchDir;

use super::{is_wanted, step};
use crate::bench::{need_rows, show};
use crate::cli::BenchArgs;
use crate::machine::Machine;
use crate::planning::device_specs;
use crate::table::Table;
use crate::{bandwidth, host};

/// Loads of each kind; their median counts.
const ROUNDS: usize = 3;
/// What is copied to measure the memory of the host.
const HOST_COPY_BYTES: usize = 512 << 20;
/// A file of which less is in memory counts as cold.
const COLD_SHARE: f64 = 0.05;
/// Blocks of each kind of the model that is written where no file is named, for what is no GPU.
const FEW_BLOCKS: usize = 1;

#[derive(Serialize)]
struct Report {
    version: &'static str,
    date: String,
    device: String,
    device_name: String,
    detail: String,
    file: String,
    model_bytes: u64,
    blocks: usize,
    /// From host memory to host memory, with all cores.
    host_copy_bytes_per_s: f64,
    /// From pinned host memory to the device; none for the CPU, which uses the mapped file.
    link_bytes_per_s: Option<f64>,
    rows: Vec<Row>,
    /// What was not measured, and why.
    left_out: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    allocation: String,
    /// Whether the file came from the page cache or from the disk.
    source: &'static str,
    /// Reading the header and knowing what is in the file.
    open_s: f64,
    /// Planning and bringing bytes to where they live.
    load_s: f64,
    /// From a session to the first block in use.
    first_lease_s: f64,
    /// The three above: from the start to the first block in use.
    total_s: f64,
    /// From the first block to the last, once, without computing.
    first_pass_s: f64,
    /// The model's bytes over all of that; none where the file is used as it is mapped.
    bytes_per_s: Option<f64>,
    /// The bytes over the slower of host copy and link: no model is on its device once before.
    bound_s: Option<f64>,
    /// Total and first pass over the bound.
    over_bound: Option<f64>,
}

pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    let device = machine.registry().get(args.device)?;
    let scratch;
    let path = match &args.file {
        Some(path) => path.clone(),
        None => {
            scratch = ScratchDir::new()?;
            let most_blocks = if device.id().kind == DeviceKind::Cuda { usize::MAX } else { FEW_BLOCKS };
            step::write_model(scratch.path(), "BF16", step::released(args)?, most_blocks)?
        }
    };
    let bench = Bench::new(machine, device, &path)?;
    let report = bench.report(args)?;
    show(args, &report, Report::to_text)
}

struct Bench<'a> {
    machine: &'a Machine,
    device: &'a Device,
    path: &'a Path,
    /// All files of the model.
    files: Vec<PathBuf>,
    model_bytes: u64,
    blocks: usize,
    host_copy: f64,
    link: Option<f64>,
}

/// The times of one load.
struct Times {
    open_s: f64,
    load_s: f64,
    first_lease_s: f64,
    first_pass_s: f64,
}

impl Times {
    fn total_s(&self) -> f64 {
        self.open_s + self.load_s + self.first_lease_s
    }
}

impl<'a> Bench<'a> {
    fn new(machine: &'a Machine, device: &'a Device, path: &'a Path) -> Result<Bench<'a>> {
        let checkpoint = Checkpoint::open(path).context("--file")?;
        let manifest = Manifest::by_names(&checkpoint, "bench")?;
        let link = match device.id().kind {
            DeviceKind::Cpu => None,
            _ => Some(bandwidth::measure(device, machine.cpu())?.pinned_to_device),
        };
        Ok(Bench {
            machine,
            device,
            path,
            files: checkpoint.files().map(|(path, _)| path.to_owned()).collect(),
            model_bytes: manifest.bytes(),
            blocks: manifest.blocks().len(),
            host_copy: host_copy_rate(machine)?,
            link,
        })
    }

    fn report(&self, args: &BenchArgs) -> Result<Report> {
        let id = self.device.id();
        let mut kinds = vec![("resident", String::new())];
        if id != DeviceId::CPU {
            kinds.push(("streamed", format!("{id},0%;cpu,100%")));
        }
        let (mut rows, mut left_out) = (Vec::new(), Vec::new());
        for (kind, allocation) in &kinds {
            for is_cold in [false, true] {
                let source = if is_cold { "disk" } else { "page cache" };
                let name = format!("{kind}, from the {source}");
                if !is_wanted(&args.only, &name) {
                    continue;
                }
                match self.measure(allocation, is_cold)? {
                    Ok(times) => rows.push(self.row(name, allocation, source, &times)),
                    Err(why) => left_out.push(format!("{name}: {why}")),
                }
            }
        }
        need_rows(args, !rows.is_empty() || !left_out.is_empty())?;
        let description = self.device.description();
        Ok(Report {
            version: env!("CARGO_PKG_VERSION"),
            date: Moment::utc(SystemTime::now()).date(),
            device: id.to_string(),
            device_name: description.name.clone(),
            detail: description.detail.clone(),
            file: self.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            model_bytes: self.model_bytes,
            blocks: self.blocks,
            host_copy_bytes_per_s: self.host_copy,
            link_bytes_per_s: self.link,
            rows,
            left_out,
        })
    }

    /// The median load of several, or why it cannot be measured so.
    fn measure(&self, allocation: &str, is_cold: bool) -> Result<Result<Times, String>> {
        let mut loads = Vec::new();
        for _ in 0..ROUNDS {
            if is_cold {
                if let Some(why) = self.make_cold()? {
                    return Ok(Err(why));
                }
            } else {
                self.make_warm()?;
            }
            loads.push(self.load(allocation)?);
        }
        loads.sort_by(|a, b| a.total_s().total_cmp(&b.total_s()));
        Ok(Ok(loads.swap_remove(ROUNDS / 2)))
    }

    /// Reads the files once, so that the system has them in memory.
    fn make_warm(&self) -> Result<()> {
        let mut piece = vec![0; 8 << 20];
        for path in &self.files {
            let mut file = File::open(path).with_context(|| path.display().to_string())?;
            while file.read(&mut piece)? > 0 {}
        }
        Ok(())
    }

    /// Lets the system forget the files; why that cannot be, if it cannot.
    fn make_cold(&self) -> Result<Option<String>> {
        for path in &self.files {
            let file = File::open(path).with_context(|| path.display().to_string())?;
            let bytes = file.metadata()?.len();
            // What was just written is not on the disk yet and cannot be forgotten.
            file.sync_all()?;
            host::forget_pages(&file, 0, bytes);
            match host::cached_share(&file, 0, bytes) {
                Some(share) if share <= COLD_SHARE => {}
                Some(share) => {
                    return Ok(Some(format!("{:.0} % of the file stay in the page cache", share * 100.0)));
                }
                None => return Ok(Some("this system does not tell what is in its page cache".to_owned())),
            }
        }
        Ok(None)
    }

    fn load(&self, allocation: &str) -> Result<Times> {
        let (devices, compute) = (self.machine.registry(), self.device.id());
        let start = Instant::now();
        let checkpoint = Checkpoint::open(self.path)?;
        let manifest = Manifest::by_names(&checkpoint, "bench")?;
        let opened = start.elapsed().as_secs_f64();
        let specs = device_specs(devices, self.link.unwrap_or(1e10));
        let mut request = Residency::plan_request(&manifest, compute, specs);
        request.allocation = AllocationText::parse(allocation)?;
        let plan = placement::plan(&request)?;
        let residency = Residency::new(devices.clone());
        let id = residency.load(manifest, plan, LoadOptions::default())?;
        let loaded = start.elapsed().as_secs_f64();
        let session = residency.open(id, &Cancel::default())?;
        let stream = session.lane()?.stream();
        drop(session.lease(0)?);
        stream.synchronize()?;
        let leased = start.elapsed().as_secs_f64();
        for block in 1..self.blocks {
            drop(session.lease(block)?);
        }
        stream.synchronize()?;
        Ok(Times {
            open_s: opened,
            load_s: loaded - opened,
            first_lease_s: leased - loaded,
            first_pass_s: start.elapsed().as_secs_f64() - leased,
        })
    }

    fn row(&self, name: String, allocation: &str, source: &'static str, times: &Times) -> Row {
        let bytes = self.model_bytes as f64;
        // Only after the first pass has every byte been on the device, streamed or not.
        let whole_s = times.total_s() + times.first_pass_s;
        let is_moved = self.device.id() != DeviceId::CPU;
        // The disk has a bound of its own, which is not known here.
        let link = self.link.filter(|_| source == "page cache");
        let bound_s = link.map(|link| bytes / link.min(self.host_copy));
        Row {
            name,
            allocation: allocation.to_owned(),
            source,
            open_s: times.open_s,
            load_s: times.load_s,
            first_lease_s: times.first_lease_s,
            total_s: times.total_s(),
            first_pass_s: times.first_pass_s,
            bytes_per_s: is_moved.then(|| bytes / whole_s),
            bound_s,
            over_bound: bound_s.map(|bound| whole_s / bound),
        }
    }
}

/// Bytes per second of a copy within host memory, all cores at once; the best of three.
fn host_copy_rate(machine: &Machine) -> Result<f64> {
    let room = machine.cpu().memory()?.free / 8;
    let bytes = HOST_COPY_BYTES.min(usize::try_from(room).unwrap_or(HOST_COPY_BYTES)).max(1 << 20);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let piece = bytes.div_ceil(threads);
    let from = vec![1_u8; bytes];
    let mut to = vec![2_u8; bytes];
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for (to, from) in to.chunks_mut(piece).zip(from.chunks(piece)) {
                scope.spawn(move || to.copy_from_slice(from));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    ensure!(to == from, "a copy in memory differs from what was copied");
    Ok(bytes as f64 / best)
}

impl Report {
    fn to_text(&self) -> String {
        let head = [
            "load",
            "open ms",
            "load ms",
            "first lease ms",
            "total ms",
            "pass ms",
            "GB/s",
            "bound ms",
            "over bound",
        ];
        let mut table = Table::new(&head);
        let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        for row in &self.rows {
            table.row(&[
                &row.name,
                &ms(row.open_s),
                &ms(row.load_s),
                &ms(row.first_lease_s),
                &ms(row.total_s),
                &ms(row.first_pass_s),
                &or_dash(row.bytes_per_s.map(|rate| format!("{:.2}", rate / 1e9))),
                &or_dash(row.bound_s.map(ms)),
                &or_dash(row.over_bound.map(|over| format!("{over:.3}"))),
            ]);
        }
        let link = self.link_bytes_per_s.map_or_else(
            || "the mapped file is used as it is".to_owned(),
            |link| format!("link {:.1} GB/s", link / 1e9),
        );
        let left_out: String = self.left_out.iter().map(|line| format!("left out: {line}\n")).collect();
        format!(
            "{} ({}), {} of {} in {} blocks; host copy {:.1} GB/s, {link}\n\n{table}{left_out}",
            self.device,
            self.device_name,
            self.file,
            ByteSize(self.model_bytes),
            self.blocks,
            self.host_copy_bytes_per_s / 1e9,
        )
    }
}
