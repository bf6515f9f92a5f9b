//! `gantry bench disk`: a model of one and a half times the host memory that may be used, streamed from the disk, against
//! what plain sequential direct reads give on that disk in the same run, and what it takes of host memory.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use checkpoint::{Checkpoint, DIRECT_ALIGN};
use device::Device;
use meta::{ByteSize, DeviceId, Encoding, Moment, Shape};
use placement::{AllocationText, Disk, Plan};
use residency::{Cancel, LoadOptions, Manifest, Residency};
use serde::Serialize;
use testkit::{SafetensorsWriter, ScratchDir};

use crate::bandwidth;
use crate::cli::BenchArgs;
use crate::commands::{print, print_json};
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
    /// Plain sequential direct reads of the whole file, before and after: by threads the bytes per second.
    sequential: Vec<Sequential>,
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
    if args.output.json {
        print_json(&report)?;
    } else {
        print(&report.to_text())?;
    }
    Ok(ExitCode::SUCCESS)
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
    let (mut sequential, direct) = read_plainly(path)?;
    let before = fastest(&sequential);
    let manifest = Manifest::by_names(&Checkpoint::open(path)?, "bench")?;
    let (model_bytes, blocks) = (manifest.bytes(), manifest.blocks().len());
    let plan = plan(machine, device, &manifest, (link, before), limit)?;
    let residency = Residency::new(machine.registry().clone());
    let weights = manifest.weights().to_vec();
    let id = residency.load(manifest, plan.clone(), LoadOptions::default())?;
    let session = residency.open(id, &Cancel::default())?;
    let stream = session.lane()?.stream();
    let mut steps = Vec::new();
    // The first step finds nothing read ahead.
    for _ in 0..=STEPS {
        let start = Instant::now();
        for block in 0..blocks {
            drop(session.lease(block)?);
        }
        stream.synchronize()?;
        steps.push(start.elapsed().as_secs_f64());
    }
    steps.remove(0);
    let read =
        plan.blocks.iter().position(|block| block.from_disk).context("nothing is read from the disk")?;
    let lease = session.lease(read)?;
    let weight = lease.weight(&weights[read].name)?;
    let mut bytes = vec![0; weights[read].bytes.len()];
    stream.read(&weight.operand().span(), &mut bytes)?;
    let identical = bytes == weights[read].bytes.as_ref();
    let ledger_bytes = machine.cpu().ledger().report().used;
    let memory = host::process_memory(std::process::id());
    let file = File::open(path)?;
    let cached_share = host::cached_share(&file, 0, file.metadata()?.len());
    drop(weight);
    drop(lease);
    drop(session);
    residency.unload(id)?;
    sequential.extend(read_plainly(path)?.0);
    let sequential_bytes_per_s = fastest(&sequential);
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
        direct,
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
        private_bytes: memory.map(|memory| memory.private_bytes),
        file_bytes: memory.map(|memory| memory.file_bytes),
        cached_share,
    })
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

fn fastest(all: &[Sequential]) -> f64 {
    all.iter().map(|read| read.bytes_per_s).fold(0.0, f64::max)
}

/// Reads the whole file from front to back, past the page cache if the file system can; whether it can.
fn read_plainly(path: &Path) -> Result<(Vec<Sequential>, bool)> {
    let bytes = std::fs::metadata(path)?.len();
    let direct = host::open_direct(path).is_some();
    let mut all = Vec::new();
    for threads in READERS {
        let (next, start) = (Mutex::new(0), Instant::now());
        let read = std::thread::scope(|scope| {
            let read = || read_pieces(path, bytes, &next);
            let readers: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
            readers.into_iter().map(|reader| reader.join().expect("a reader does not panic")).sum()
        });
        let read: Result<u64> = read;
        let read = read.with_context(|| format!("reading {}", path.display()))?;
        ensure!(read == bytes, "{} bytes of {bytes} were read", read);
        all.push(Sequential { threads, bytes_per_s: read as f64 / start.elapsed().as_secs_f64() });
    }
    Ok((all, direct))
}

/// Reads the next piece again and again; how many bytes that were.
fn read_pieces(path: &Path, bytes: u64, next: &Mutex<u64>) -> Result<u64> {
    use std::io::Seek;
    let mut file = host::open_direct(path).map_or_else(|| File::open(path), Ok)?;
    let mut room = vec![0; PIECE + DIRECT_ALIGN];
    let begin = room.as_ptr().addr().next_multiple_of(DIRECT_ALIGN) - room.as_ptr().addr();
    let mut read = 0;
    loop {
        let place = {
            let mut next = next.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let here = *next;
            *next += PIECE as u64;
            here
        };
        if place >= bytes {
            return Ok(read);
        }
        file.seek(std::io::SeekFrom::Start(place))?;
        let mut here = 0;
        while here < PIECE {
            match file.read(&mut room[begin + here..begin + PIECE])? {
                0 => break,
                count => here += count,
            }
            // The end of the file is no whole page.
            if !here.is_multiple_of(DIRECT_ALIGN) {
                break;
            }
        }
        read += here as u64;
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
            ("memory of the process", process),
            ("of the file in the page cache", cached),
        ] {
            table.row(&[name, &value]);
        }
        format!("{} ({}), link {}\n\n{table}", self.device, self.device_name, rate(self.link_bytes_per_s))
    }
}
