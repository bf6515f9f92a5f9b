//! `gantry bench disk`: a model of one and a half times the host memory that may be used, streamed from the disk, against
//! what plain sequential direct reads give on that disk in the same run, and what it takes of host memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use checkpoint::{Checkpoint, DIRECT_ALIGN};
use device::Device;
use meta::{ByteSize, DeviceId, Encoding, Moment, Shape};
use placement::{AllocationText, BlockPlan, Disk, Plan};
use residency::{Cancel, LoadOptions, Manifest, Residency, Session, WeightSpec};
use serde::Serialize;
use testkit::{SafetensorsWriter, ScratchDir};

use crate::bandwidth;
use crate::bench::show;
use crate::cli::BenchArgs;
use crate::host;
use crate::machine::Machine;
use crate::planning::device_specs;
use crate::table::Table;

/// Rows and columns of a block's matrix in bf16: 32 MiB.
const MATRIX: [usize; 2] = [4096, 4096];
/// Blocks of a model are about so many, so that a small one has small blocks.
const BLOCKS: u64 = 24;
/// Steps that are measured; their median counts.
const STEPS: usize = 5;
/// What a plain read asks for.
const PIECE: usize = 8 << 20;
/// More than this is not written.
const MOST_BYTES: u64 = 64 << 30;
/// Threads of the plain reads, in turns; the fastest counts.
const READERS: [usize; 3] = [1, 2, 4];

#[derive(Serialize)]
struct Report {
    version: &'static str,
    date: String,
    device: String,
    device_name: String,
    detail: String,
    /// The host memory that may be used.
    host_limit_bytes: u64,
    model_bytes: u64,
    blocks: usize,
    link_bytes_per_s: f64,
    /// Plain sequential direct reads of what is read in a step, each after a step: by threads the bytes per second.
    sequential: Vec<Sequential>,
    /// What the disk was measured with before, for the plan.
    planned_bytes_per_s: f64,
    /// Of them the fastest.
    sequential_bytes_per_s: f64,
    /// Whether those were direct; some file systems refuse them.
    direct: bool,
    /// Read from the disk in every step; the rest stays in host memory.
    disk_bytes: u64,
    buffer_bytes: u64,
    steps_s: Vec<f64>,
    step_s: f64,
    predicted_s: f64,
    /// Bytes from the disk over the seconds of a step.
    disk_bytes_per_s: f64,
    /// That over the fastest sequential read.
    over_sequential: f64,
    predicted_over_measured: f64,
    /// Whether a block that was read has the bytes of the file.
    identical: bool,
    /// What the host's ledger counted while steps ran.
    ledger_bytes: u64,
    /// What the device counted; a simulated one has it in the memory of this process.
    device_bytes: u64,
    /// What this process had in memory after the steps: its own, and of files.
    private_bytes: Option<u64>,
    file_bytes: Option<u64>,
    /// Which share of the file the system keeps in memory after the steps.
    cached_share: Option<f64>,
}

#[derive(Serialize)]
struct Sequential {
    threads: usize,
    bytes_per_s: f64,
}

pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    let device = machine.registry().get(args.device)?;
    ensure!(
        device.id() != DeviceId::CPU,
        "bench disk: name an accelerator, such as --sim-device 1gb@20gbps --device sim:0; the CPU uses the mapped file"
    );
    let limit = machine.cpu().ledger().report().budget;
    let wanted = limit / 2 * 3;
    let scratch = ScratchDir::new()?;
    let free = host::free_space(scratch.path()).unwrap_or(u64::MAX);
    ensure!(
        wanted <= MOST_BYTES.min(free),
        "bench disk writes a model of one and a half times the host memory, {}, and {} has room for {}: say less, such as \
         --host-memory 1gb, or name another folder with TMPDIR",
        ByteSize(wanted),
        scratch.path().display(),
        ByteSize(MOST_BYTES.min(free)),
    );
    let path = scratch.path().join("bench.safetensors");
    write_model(&path, wanted)?;
    let report = measure(machine, device, &path, limit)?;
    show(args, &report, Report::to_text)
}

/// Blocks whose values tell which block they are of, on the disk and not in memory.
fn write_model(path: &Path, bytes: u64) -> Result<()> {
    let rows = (bytes / BLOCKS / (2 * MATRIX[1] as u64)).clamp(8, MATRIX[0] as u64) as usize;
    let block_bytes = rows * MATRIX[1] * 2;
    let blocks = usize::try_from(bytes.div_ceil(block_bytes as u64))?;
    let pattern: Vec<u8> = (0..block_bytes as u32 + 251 * blocks as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut writer = SafetensorsWriter::new();
    for block in 0..blocks {
        let values = &pattern[251 * block..251 * block + block_bytes];
        let shape = Shape::from([rows, MATRIX[1]]);
        writer = writer.tensor(format!("blocks.{block}.weight"), Encoding::BF16, shape, values);
    }
    writer.write(path)?;
    let file = File::open(path)?;
    file.sync_all()?;
    host::forget_pages(&file, 0, file.metadata()?.len());
    Ok(())
}

fn measure(machine: &Machine, device: &Device, path: &Path, limit: u64) -> Result<Report> {
    let link = bandwidth::measure(device, machine.cpu())?.pinned_to_device;
    // What that took is not what streaming takes.
    machine.registry().trim()?;
    let manifest = Manifest::by_names(&Checkpoint::open(path)?, "bench")?;
    let before = Residency::disk_bytes_per_s(&manifest).context("the model's file is on no disk")?;
    let (model_bytes, blocks) = (manifest.bytes(), manifest.blocks().len());
    let plan = plan(machine, device, &manifest, (link, before), limit)?;
    let residency = Residency::new(machine.registry().clone());
    let weights = manifest.weights().to_vec();
    let id = residency.load(manifest, plan.clone(), LoadOptions::default())?;
    let session = residency.open(id, &Cancel::default())?;
    let stream = session.lane()?.stream();
    let ranges = pieces(plan.blocks.iter().zip(&weights).filter(|(block, _)| block.from_disk), path)?;
    let (steps, sequential) = measured_steps(&session, path, &ranges)?;
    let read =
        plan.blocks.iter().position(|block| block.from_disk).context("nothing is read from the disk")?;
    let lease = session.lease(read)?;
    let weight = lease.weight(&weights[read].name)?;
    let mut bytes = vec![0; weights[read].bytes.len()];
    stream.read(&weight.operand().span(), &mut bytes)?;
    let identical = bytes == weights[read].bytes.as_ref();
    let ledger_bytes = machine.cpu().ledger().report().used;
    let device_bytes = device.ledger().report().used;
    let memory = host::process_memory(std::process::id());
    let file = File::open(path)?;
    let cached_share = host::cached_share(&file, 0, file.metadata()?.len());
    drop(weight);
    drop(lease);
    drop(session);
    residency.unload(id)?;
    let sequential_bytes_per_s = sequential.iter().map(|read| read.bytes_per_s).fold(0.0, f64::max);
    let mut sorted = steps.clone();
    sorted.sort_by(f64::total_cmp);
    let step_s = sorted[STEPS / 2];
    let disk_bytes_per_s = plan.disk_bytes() as f64 / step_s;
    let description = device.description();
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        date: Moment::utc(SystemTime::now()).date(),
        device: device.id().to_string(),
        device_name: description.name.clone(),
        detail: description.detail.clone(),
        host_limit_bytes: limit,
        model_bytes,
        blocks,
        link_bytes_per_s: link,
        sequential,
        sequential_bytes_per_s,
        planned_bytes_per_s: before,
        direct: host::open_direct(path).is_some(),
        disk_bytes: plan.disk_bytes(),
        buffer_bytes: plan.reading.map_or(0, |reading| reading.bytes()),
        steps_s: steps,
        step_s,
        predicted_s: plan.prediction.seconds_per_step,
        disk_bytes_per_s,
        over_sequential: disk_bytes_per_s / sequential_bytes_per_s,
        predicted_over_measured: plan.prediction.seconds_per_step / step_s,
        identical,
        ledger_bytes,
        device_bytes,
        private_bytes: memory.map(|memory| memory.private_bytes),
        file_bytes: memory.map(|memory| memory.file_bytes),
        cached_share,
    })
}

/// Steps in which every block is leased, and a plain read of what was read from the disk after each of them.
fn measured_steps(
    session: &Session,
    path: &Path,
    ranges: &[Range<u64>],
) -> Result<(Vec<f64>, Vec<Sequential>)> {
    let stream = session.lane()?.stream();
    let (mut steps, mut sequential) = (Vec::new(), Vec::new());
    // The first step finds nothing read ahead, and warms what keeps files outside of this machine.
    for turn in 0..=STEPS {
        let start = Instant::now();
        for block in 0..session.manifest().blocks().len() {
            drop(session.lease(block)?);
        }
        stream.synchronize()?;
        steps.push(start.elapsed().as_secs_f64());
        sequential.push(read_plainly(path, ranges, READERS[turn % READERS.len()])?);
    }
    steps.remove(0);
    Ok((steps, sequential))
}

/// Everything is streamed: what the host may have in memory, and the rest from the disk.
fn plan(
    machine: &Machine,
    device: &Device,
    manifest: &Manifest,
    (link, disk): (f64, f64),
    limit: u64,
) -> Result<Plan> {
    let specs = device_specs(machine.registry(), link);
    let mut request = Residency::plan_request(manifest, device.id(), specs);
    request.allocation = AllocationText::parse(&format!("{},0%;cpu,100%", device.id()))?;
    request.disk = Some(Disk {
        host_bytes: (limit as f64 * runtime::HOST_SHARE) as u64,
        bytes_per_s: disk,
        readable: Residency::readable(manifest),
    });
    Ok(placement::plan(&request)?)
}

/// The places of blocks in the file, as whole pages and in pieces, from front to back.
fn pieces<'a>(
    blocks: impl Iterator<Item = (&'a BlockPlan, &'a WeightSpec)>,
    path: &Path,
) -> Result<Vec<Range<u64>>> {
    let bytes = std::fs::metadata(path)?.len();
    let mut all = Vec::new();
    for (_, weight) in blocks {
        let pages = weight.bytes.whole_pages().place();
        let (start, end) = (pages.start as u64, (pages.end as u64).min(bytes));
        let cuts = (start..end).step_by(PIECE);
        all.extend(cuts.map(|start| start..end.min(start + PIECE as u64)));
    }
    Ok(all)
}

/// Reads pieces of the file from front to back, past the page cache if the file system can.
fn read_plainly(path: &Path, pieces: &[Range<u64>], threads: usize) -> Result<Sequential> {
    let (next, start) = (Mutex::new(pieces.iter()), Instant::now());
    let read: Result<u64> = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(|| read_pieces(path, &next))).collect();
        readers.into_iter().map(|reader| reader.join().expect("a reader does not panic")).sum()
    });
    let read = read.with_context(|| format!("reading {}", path.display()))?;
    Ok(Sequential { threads, bytes_per_s: read as f64 / start.elapsed().as_secs_f64() })
}

/// Reads the next piece again and again; how many bytes that were.
fn read_pieces(path: &Path, next: &Mutex<std::slice::Iter<'_, Range<u64>>>) -> Result<u64> {
    let mut file = host::open_direct(path).map_or_else(|| File::open(path), Ok)?;
    let mut room = vec![0; PIECE + DIRECT_ALIGN];
    let begin = room.as_ptr().addr().next_multiple_of(DIRECT_ALIGN) - room.as_ptr().addr();
    let mut read = 0;
    loop {
        let piece = next.lock().unwrap_or_else(PoisonError::into_inner).next().cloned();
        let Some(piece) = piece else { return Ok(read) };
        file.seek(SeekFrom::Start(piece.start))?;
        let (mut here, bytes) = (0, (piece.end - piece.start) as usize);
        while here < bytes {
            let end = begin + bytes.next_multiple_of(DIRECT_ALIGN);
            let count = file.read(&mut room[begin + here..end])?;
            ensure!(count > 0, "the file ends at {}", piece.start + here as u64);
            here += count;
        }
        read += bytes as u64;
    }
}

impl Report {
    fn to_text(&self) -> String {
        let rate = |rate: f64| format!("{:.2} GB/s", rate / 1e9);
        let mut table = Table::new(&["streaming from the disk", ""]);
        let cached =
            self.cached_share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0));
        let process = match (self.private_bytes, self.file_bytes) {
            (Some(private), Some(file)) => format!("{} and {} of files", ByteSize(private), ByteSize(file)),
            _ => "-".to_owned(),
        };
        let kind = if self.direct { "direct" } else { "plain" };
        for (name, value) in [
            ("host memory that may be used", ByteSize(self.host_limit_bytes).to_string()),
            ("model", format!("{} in {} blocks", ByteSize(self.model_bytes), self.blocks)),
            ("read from the disk in every step", ByteSize(self.disk_bytes).to_string()),
            ("step", format!("{:.1} ms", self.step_s * 1e3)),
            ("predicted", format!("{:.1} ms", self.predicted_s * 1e3)),
            ("disk", rate(self.disk_bytes_per_s)),
            ("sequential reads", format!("{}, {kind}", rate(self.sequential_bytes_per_s))),
            ("disk over sequential reads", format!("{:.3}", self.over_sequential)),
            ("same bits", if self.identical { "yes" } else { "NO" }.to_owned()),
            ("host memory by the ledger", ByteSize(self.ledger_bytes).to_string()),
            ("memory of the device", ByteSize(self.device_bytes).to_string()),
            ("memory of the process", process),
            ("of the file in the page cache", cached),
        ] {
            table.row(&[name, &value]);
        }
        format!("{} ({}), link {}\n\n{table}", self.device, self.device_name, rate(self.link_bytes_per_s))
    }
}
