//! `gantry bench codec`: how fast float weights are losslessly coded and decoded by one core and by a device, and how far
//! they shrink: random ones with statistics like those of trained weights, the demo model's, and those of a file.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use checkpoint::Checkpoint;
use codec::{Coded, Format, Layout, Table, TileCoder, checksum};
use device::op::Decode;
use device::{Device, Operand};
use device_cpu::tile_coders;
use meta::{DType, Encoding, Moment};
use serde::Serialize;
use testkit::{decode, encode, random_trained};

use super::is_wanted;
use crate::bench::show;
use crate::cli::BenchArgs;
use crate::demo_model;
use crate::machine::Machine;
use crate::table::Table as TextTable;

/// Rows and columns of the random weights: larger than the caches of most processors, and a tile crosses rows.
const MATRIX: [usize; 2] = [10240, 3072];
/// Deviations of the logarithm of the rows' scales, base 2.
const SPREADS: [f32; 4] = [0.0, 0.5, 1.0, 1.5];
/// The spread of the weights that speeds are measured with; that of a published FLUX is near it.
const SPREAD: f32 = 1.0;
/// Runs of which the fastest counts: other work on the machine only makes them slower.
const RUNS: usize = 7;
/// Calls of a device that are timed together.
const CALLS: usize = 16;
/// The largest value of f8_e4m3, to which scaled files scale their tensors.
const F8_MAX: f32 = 448.0;

#[derive(Serialize)]
struct Report {
    version: &'static str,
    date: String,
    device: String,
    device_name: String,
    /// The host's processor.
    host: String,
    /// Values of the weights that speeds are measured with.
    elements: usize,
    runs: usize,
    /// One core: coding with its checksum, decoding without it.
    speeds: Vec<Speed>,
    /// The coders that models are coded and decoded with on this processor.
    encoder: &'static str,
    decoder: &'static str,
    /// All of the device, as the operation that a step queues.
    device_decodes: Vec<DeviceSpeed>,
    ratios: Vec<Ratio>,
}

/// One coder on one core, in bytes of the original.
#[derive(Serialize)]
struct Speed {
    dtype: String,
    coder: &'static str,
    encode_gb_per_s: f64,
    decode_gb_per_s: f64,
}

#[derive(Serialize)]
struct DeviceSpeed {
    dtype: String,
    gb_per_s: f64,
}

/// How far weights shrink. A tensor that does not is counted as it is.
#[derive(Serialize)]
struct Ratio {
    weights: String,
    dtype: String,
    /// How they came to be of this type.
    stored: &'static str,
    bytes: u64,
    coded_bytes: u64,
    ratio: f64,
    /// Values outside of their tile's window, of a hundred.
    escapes_percent: f64,
    raw_tiles: usize,
    tiles: usize,
}

pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    let device = machine.registry().get(args.device)?;
    let wanted = |name: &str| is_wanted(&args.only, name);
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        date: Moment::utc(SystemTime::now()).date(),
        device: device.id().to_string(),
        device_name: device.description().name.clone(),
        host: machine.cpu().description().name.clone(),
        elements: MATRIX.iter().product(),
        runs: RUNS,
        speeds: Vec::new(),
        encoder: device_cpu::encoder().name(),
        decoder: device_cpu::decoder().name(),
        device_decodes: Vec::new(),
        ratios: Vec::new(),
    };
    // A file that cannot be read is told before anything is measured.
    let file = args.file.as_deref().map(Checkpoint::open).transpose()?;
    let values = random_trained(1, MATRIX, SPREAD);
    for format in Format::ALL {
        let dtype = format.dtype();
        let stored = encode(dtype.into(), &values)?;
        if wanted("speed") {
            for coder in tile_coders() {
                report.speeds.push(speed(coder, dtype, &stored)?);
            }
        }
        if wanted("device") {
            report.device_decodes.push(device_speed(device, dtype, &stored)?);
        }
    }
    drop(values);
    if wanted("ratio") {
        report.ratios = ratios(args.file.as_deref().zip(file.as_ref()))?;
    }
    show(args, &report, Report::to_text)
}

/// The fastest of several runs, in gigabytes per second.
fn fastest(bytes: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(bytes as f64 / best / 1e9)
}

/// One coder in this thread alone.
fn speed(coder: &'static dyn TileCoder, dtype: DType, values: &[u8]) -> Result<Speed> {
    let layout = Layout::new(dtype, values.len() / dtype.bytes())?;
    let mut coded = vec![0; layout.max_coded_bytes()];
    let mut decoded = vec![0; values.len()];
    let encode_gb_per_s = fastest(values.len(), || {
        let tiles = |tile: usize| &values[layout.tile_place(tile)];
        let windows = (0..layout.tiles()).map(|tile| coder.survey(layout.format(), tiles(tile)));
        let table = Table::new(layout, windows);
        let mut sums = Vec::with_capacity(layout.tiles());
        for (tile, part) in table.parts(&mut coded)?.into_iter().enumerate() {
            table.encode_tile(coder, tile, tiles(tile), part);
            sums.push(checksum(tiles(tile)));
        }
        Ok(table.finish(&mut coded, &sums)?)
    })?;
    let read = Coded::parse(&coded)?;
    let decode_gb_per_s = fastest(values.len(), || {
        for tile in 0..layout.tiles() {
            read.decode_tile(coder, tile, &mut decoded[layout.tile_place(tile)])?;
        }
        Ok(())
    })?;
    ensure!(decoded == values, "{} gave other values than were coded", coder.name());
    Ok(Speed { dtype: dtype.to_string(), coder: coder.name(), encode_gb_per_s, decode_gb_per_s })
}

/// Bytes of bf16 weights that a device decodes per second, counted decoded.
pub(super) fn decoding_bytes_per_s(device: &Device) -> Result<f64> {
    let values = encode(DType::BF16.into(), &random_trained(1, MATRIX, SPREAD))?;
    Ok(device_speed(device, DType::BF16, &values)?.gb_per_s * 1e9)
}

/// The operation on a device, from its own memory to its own memory.
fn device_speed(device: &Device, dtype: DType, values: &[u8]) -> Result<DeviceSpeed> {
    let coder = tile_coders().pop().context("there is always a portable coder")?;
    let coded = codec::encode_with(coder, dtype, values)?;
    let stream = device.compute_stream()?;
    let count = values.len() / dtype.bytes();
    let call = Decode {
        coded: Operand::new(device.upload(&coded)?, Encoding::Plain(DType::U8), [coded.len()], 0)?,
        out: Operand::new(device.allocate(values.len())?, dtype.into(), [count], 0)?,
    };
    let out = call.out.clone();
    let call = device::OpCall::from(call);
    // Many together, so that waiting for the last of them does not count.
    let gb_per_s = fastest(CALLS * values.len(), || {
        (0..CALLS).try_for_each(|_| stream.launch(&call))?;
        Ok(stream.synchronize()?)
    })?;
    let mut decoded = vec![0; values.len()];
    stream.read(&out.span(), &mut decoded)?;
    ensure!(decoded == values, "{} gave other values than were coded", device.id());
    Ok(DeviceSpeed { dtype: dtype.to_string(), gb_per_s })
}

/// Random weights, the demo's files, and the file that was named.
fn ratios(file: Option<(&Path, &Checkpoint)>) -> Result<Vec<Ratio>> {
    let mut ratios = Vec::new();
    for spread in SPREADS {
        let values = [random_trained(2, MATRIX, spread)];
        let name = format!("random, rows scaled by 2^(±{spread})");
        ratios.extend(in_every_type(&name, &values)?);
    }
    for (_, name, bytes) in demo_model::FILES {
        let checkpoint = Checkpoint::from_static(name, bytes)?;
        ratios.extend(ratios_of(name, &checkpoint)?);
    }
    if let Some((path, checkpoint)) = file {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        ratios.extend(ratios_of(&name, checkpoint)?);
    }
    Ok(ratios)
}

/// The float weights of a file: as they are stored, if that is a type that is coded; and cast to every such type.
fn ratios_of(name: &str, checkpoint: &Checkpoint) -> Result<Vec<Ratio>> {
    let floats = |dtype: DType| dtype.is_float() && dtype != DType::F64;
    let entries: Vec<_> =
        checkpoint.entries().iter().filter(|entry| entry.encoding().dtype().is_some_and(floats)).collect();
    let mut ratios = Vec::new();
    for format in Format::ALL {
        let stored: Vec<Vec<u8>> = entries
            .iter()
            .filter(|entry| entry.encoding().dtype() == Some(format.dtype()))
            .map(|entry| checkpoint.bytes(entry).to_vec())
            .collect();
        if !stored.is_empty() {
            ratios.push(ratio(name, "as stored", format.dtype(), &stored)?);
        }
    }
    let values = entries.iter().map(|entry| Ok(decode(entry.encoding(), checkpoint.bytes(entry))?));
    let values = values.collect::<Result<Vec<Vec<f32>>>>()?;
    if !values.is_empty() {
        ratios.extend(in_every_type(name, &values)?);
    }
    Ok(ratios)
}

/// Values cast to every type that is coded; to 8 bits also scaled, tensor by tensor, as files with scales have them.
fn in_every_type(name: &str, tensors: &[Vec<f32>]) -> Result<Vec<Ratio>> {
    let cast = |dtype: DType, scaled: bool| {
        let cast = |values: &Vec<f32>| {
            let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            let factor = if scaled && largest > 0.0 { F8_MAX / largest } else { 1.0 };
            Ok(encode(dtype.into(), &values.iter().map(|value| value * factor).collect::<Vec<_>>())?)
        };
        tensors.iter().map(cast).collect::<Result<Vec<Vec<u8>>>>()
    };
    let mut ratios = Vec::new();
    for format in Format::ALL {
        ratios.push(ratio(name, "cast", format.dtype(), &cast(format.dtype(), false)?)?);
    }
    ratios.push(ratio(name, "scaled and cast", DType::F8E4M3, &cast(DType::F8E4M3, true)?)?);
    Ok(ratios)
}

fn ratio(name: &str, stored: &'static str, dtype: DType, tensors: &[Vec<u8>]) -> Result<Ratio> {
    let coder = tile_coders().pop().context("there is always a portable coder")?;
    let (mut bytes, mut coded_bytes, mut escapes, mut raw_tiles, mut tiles) = (0, 0, 0u64, 0, 0);
    let mut elements = 0;
    for values in tensors {
        let layout = Layout::new(dtype, values.len() / dtype.bytes())?;
        let places = (0..layout.tiles()).map(|tile| &values[layout.tile_place(tile)]);
        let windows: Vec<_> = places.map(|values| coder.survey(layout.format(), values)).collect();
        escapes += windows.iter().map(|window| u64::from(window.escapes)).sum::<u64>();
        let table = Table::new(layout, windows);
        let coded = codec::encode_with(coder, dtype, values)?;
        let mut decoded = vec![0; values.len()];
        Coded::parse(&coded)?.decode(&mut decoded)?;
        ensure!(decoded == *values, "{name} came back with other bits");
        elements += layout.elements();
        bytes += values.len() as u64;
        coded_bytes += coded.len().min(values.len()) as u64;
        raw_tiles += table.raw_tiles();
        tiles += layout.tiles();
    }
    Ok(Ratio {
        weights: name.to_owned(),
        dtype: dtype.to_string(),
        stored,
        bytes,
        coded_bytes,
        ratio: coded_bytes as f64 / bytes.max(1) as f64,
        escapes_percent: 100.0 * escapes as f64 / elements.max(1) as f64,
        raw_tiles,
        tiles,
    })
}

impl Report {
    fn to_text(&self) -> String {
        let mut speeds = TextTable::new(&["type", "coder", "encode GB/s", "decode GB/s"]);
        for row in &self.speeds {
            let [encode, decode] = [row.encode_gb_per_s, row.decode_gb_per_s].map(|gb| format!("{gb:.2}"));
            speeds.row(&[&row.dtype, row.coder, &encode, &decode]);
        }
        let mut devices = TextTable::new(&["type", "decode GB/s"]);
        for row in &self.device_decodes {
            devices.row(&[&row.dtype, &format!("{:.1}", row.gb_per_s)]);
        }
        let mut ratios = TextTable::new(&["weights", "type", "", "MB", "ratio", "escapes", "raw tiles"]);
        for row in &self.ratios {
            ratios.row(&[
                &row.weights,
                &row.dtype,
                row.stored,
                &format!("{:.1}", row.bytes as f64 / 1e6),
                &format!("{:.4}", row.ratio),
                &format!("{:.2} %", row.escapes_percent),
                &format!("{} of {}", row.raw_tiles, row.tiles),
            ]);
        }
        format!(
            "One core of {}, {} million values, the fastest of {} runs; models are coded by {} and decoded by {}:\n\n{speeds}\nAll of {} ({}):\n\n{devices}\n{ratios}",
            self.host,
            self.elements / 1_000_000,
            self.runs,
            self.encoder,
            self.decoder,
            self.device,
            self.device_name
        )
    }
}
