//! `gantry bench served`: steps as people get them. The program serves a FLUX-shaped model of random weights on a port of
//! this machine, real workflows are posted over HTTP, and what the server itself measures is read: resident, offloaded,
//! with two evaluations a step, with a LoRA, cast to 8 bits, over two devices; how much the card holds for a number of
//! gigabytes to move; and how soon it answers while a model loads, is patched and leaves.

mod client;
pub(super) mod files;
mod latency;
mod rows;
pub(super) mod shared;
pub(super) mod video;
mod workflow;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use anyhow::{Result, ensure};
use meta::{ByteSize, DeviceId, DeviceKind, Moment};
use models::diffusion::{DiffusionFamily, ReleasedModel};
use serde::Serialize;
use testkit::ScratchDir;

use super::server::program::Program;
use super::{codec, is_wanted, step};
use crate::bench::{need_rows, show};
use crate::cli::{BenchArgs, ModelShape};
use crate::commands::tell;
use crate::machine::Machine;
use crate::table::Table;
use crate::{bandwidth, host};
use client::{Client, whole};
use latency::{Answers, while_doing};
use rows::{Bounds, Case, Placed, RESIDENT, Row};
use workflow::{Drawing, prompt};

/// Gigabytes that are asked to leave the card of the published model; a small one moves the same share.
const VIRTUAL_VRAM_GB: [f64; 6] = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0];
/// The bytes of the published model.
const FULL_BYTES: f64 = 23.8e9;
/// What rows are measured with that say nothing of coding: plain weights.
const PLAIN: &str = "off";
/// The memory of a device that is to hold a model coded, as a share of the plain model: above what coding leaves of it, with
/// activations and the room for decoding, and below all of it.
const KEPT_CODED_SHARE: f64 = 0.86;
/// Where files may go that the usual place for temporary files has no room for.
const SHARED_MEMORY: &str = "/dev/shm";

#[derive(Serialize)]
struct Report {
    version: &'static str,
    date: String,
    device: String,
    device_name: String,
    detail: String,
    shape: &'static str,
    /// The model whose sizes were taken.
    model: &'static str,
    model_bytes: u64,
    pixels: usize,
    text_tokens: usize,
    steps: usize,
    /// Making the files, and where they lie.
    files_s: f64,
    files_at: String,
    /// From pinned host memory; none for the CPU.
    link_bytes_per_s: Option<f64>,
    /// What the device decodes per second, counted decoded; none if no row is coded.
    decoding_bytes_per_s: Option<f64>,
    /// A resident step of the same model without a server, in the same run.
    bench_step_s: f64,
    /// From the start of the server to its first answer.
    start_s: f64,
    rows: Vec<Row>,
    virtual_vram: Vec<VirtualVram>,
    now: Vec<Answers>,
    /// What was not measured, and why.
    left_out: Vec<String>,
}

/// What the card has when so much is asked to leave it.
#[derive(Serialize)]
struct VirtualVram {
    gigabytes: f64,
    /// What `/gantry/devices` says of the compute device.
    used_bytes: u64,
    /// Less than with 0.
    saved_bytes: i64,
    placed: Placed,
}

pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    let device = machine.registry().get(args.device)?;
    let (family, released) = step::released(args)?;
    let shape = match args.shape {
        ModelShape::Full => "12b",
        ModelShape::Small => "small",
    };
    let scratch = room_for(files::bytes(released))?;
    let begun = Instant::now();
    tell(&format!("writing {} to {}\n", ByteSize(files::bytes(released)), scratch.path().display()));
    let model_bytes = files::write_all(&scratch.join("models"), released)?;
    let files_s = begun.elapsed().as_secs_f64();
    let model = scratch.join("models").join("diffusion_models").join(files::MODEL);
    let link = match device.id().kind {
        DeviceKind::Cpu => None,
        _ => Some(bandwidth::measure(device, machine.cpu())?.pinned_to_device),
    };
    let size = step::StepSize::square(released.pixels, released.tokens);
    let bench_step_s = step::resident_step(machine, device.id(), &model, size)?;
    machine.registry().trim()?;
    let description = device.description();
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        date: Moment::utc(SystemTime::now()).date(),
        device: device.id().to_string(),
        device_name: description.name.clone(),
        detail: description.detail.clone(),
        shape,
        model_bytes,
        model: released.name,
        pixels: released.pixels,
        text_tokens: released.tokens,
        steps: args.steps,
        files_s,
        files_at: parent_of(scratch.path()),
        link_bytes_per_s: link,
        decoding_bytes_per_s: None,
        bench_step_s,
        start_s: 0.0,
        rows: Vec::new(),
        virtual_vram: Vec::new(),
        now: Vec::new(),
        left_out: Vec::new(),
    };
    let bench =
        Bench { machine, compute: device.id(), family, released, base: scratch.path(), only: &args.only };
    bench.fill(&mut report)?;
    need_rows(args, !report.is_empty() || !report.left_out.is_empty())?;
    show(args, &report, Report::to_text)
}

/// A folder that has room for so much: where temporary files belong, or in shared memory.
fn room_for(bytes: u64) -> Result<ScratchDir> {
    let has_room = |folder: &Path| host::free_space(folder).is_none_or(|free| free > bytes + bytes / 16);
    let scratch = ScratchDir::new()?;
    if has_room(scratch.path()) {
        return Ok(scratch);
    }
    let shared = Path::new(SHARED_MEMORY);
    ensure!(
        shared.is_dir() && has_room(shared),
        "{} of model files are written, and neither {} nor {SHARED_MEMORY} has room for them; name a larger folder \
         with TMPDIR, or measure --shape small",
        ByteSize(bytes),
        parent_of(scratch.path()),
    );
    Ok(ScratchDir::within(shared)?)
}

fn parent_of(folder: &Path) -> String {
    folder.parent().map_or_else(String::new, |parent| parent.display().to_string())
}

struct Bench<'a> {
    machine: &'a Machine,
    compute: DeviceId,
    family: &'static DiffusionFamily,
    released: &'static ReleasedModel,
    /// The folder that the server works in.
    base: &'a Path,
    only: &'a str,
}

impl Bench<'_> {
    fn shapes(&self) -> (&'static DiffusionFamily, &'static ReleasedModel) {
        (self.family, self.released)
    }

    fn fill(&self, report: &mut Report) -> Result<()> {
        let mut cases = rows::one_device(self.compute);
        let pair = pair_of(self.machine, self.compute);
        let split = pair.map_or_else(Vec::new, |(pair, _)| rows::two_devices(pair));
        let coded = self.coded();
        let wanted: Vec<Case> =
            self.wanted(cases.iter().chain(&split).chain(coded.iter().map(|(case, _)| case)));
        let is_wanted = |case: &&Case| wanted.iter().any(|wanted| wanted.name == case.name);
        let server = Program::serving(self.base, self.arguments(None, PLAIN))?.start()?;
        report.start_s = server.start_s;
        let client = Client::new(&server, self.base);
        for case in cases.iter().filter(is_wanted) {
            self.measure(&client, case, report);
        }
        if self.compute != DeviceId::CPU {
            self.virtual_vram(&client, report);
        }
        self.now(&client, report);
        drop(server);
        if let Some((_, flags)) = pair.filter(|_| split.iter().any(|case| is_wanted(&case))) {
            let server = Program::serving(self.base, self.arguments(flags, PLAIN))?.start()?;
            let client = Client::new(&server, self.base);
            for case in split.iter().filter(is_wanted) {
                self.measure(&client, case, report);
            }
        }
        for (case, devices) in coded.iter().filter(|(case, _)| is_wanted(&case)) {
            let server = Program::serving(self.base, self.coding_arguments(*devices))?.start()?;
            self.measure(&Client::new(&server, self.base), case, report);
        }
        cases.extend(split);
        let codes = coded.iter().any(|(case, _)| is_wanted(&case));
        report.decoding_bytes_per_s = if codes { self.decoding() } else { None };
        cases.extend(coded.into_iter().map(|(case, _)| case));
        let bounds = Bounds {
            bench_step_s: report.bench_step_s,
            link: report.link_bytes_per_s,
            decoding: report.decoding_bytes_per_s,
        };
        rows::compare(&mut report.rows, &cases, bounds);
        Ok(())
    }

    /// The cases that are asked for, and those that they are compared with.
    fn wanted<'a>(&self, cases: impl Iterator<Item = &'a Case> + Clone) -> Vec<Case> {
        let is_named = |case: &&Case| case.cfgs.iter().any(|cfg| is_wanted(self.only, &case.row_name(*cfg)));
        let named: Vec<&Case> = cases.clone().filter(is_named).collect();
        let is_reference =
            |case: &Case| named.iter().any(|named| named.reference == case.name || case.name == RESIDENT);
        cases.filter(|case| is_named(case) || is_reference(case)).cloned().collect()
    }

    fn measure(&self, client: &Client<'_>, case: &Case, report: &mut Report) {
        tell(&format!("{}\n", case.name));
        match rows::measure(client, self.compute, case, (self.shapes(), report.steps)) {
            Ok(rows) => report.rows.extend(rows),
            Err(error) => report.left_out.push(format!("{}: {error:#}", case.name)),
        }
    }

    /// What is measured with coded weights, and as how many devices the card is opened for it.
    fn coded(&self) -> Vec<(Case, usize)> {
        if self.compute.kind != DeviceKind::Cuda {
            return Vec::new();
        }
        let mut cases: Vec<(Case, usize)> =
            rows::coded(self.compute).into_iter().map(|case| (case, 1)).collect();
        // One of so many parts of the card has room for the coded model, and none for the plain one.
        let total =
            self.machine.registry().get(self.compute).map_or(0, |device| device.ledger().report().budget);
        let parts = total as f64 / (KEPT_CODED_SHARE * files::model_bytes(self.released) as f64);
        if parts >= 2.0 {
            cases.push((rows::kept_coded(), parts as usize));
        }
        cases
    }

    fn coding_arguments(&self, devices: usize) -> Vec<String> {
        // Behind a fast link the planner would rather stream what has no room.
        let mut arguments = self.arguments(None, if devices > 1 { "force" } else { "auto" });
        if devices > 1 {
            arguments.extend(["--logical-gpus".to_owned(), format!("{}={devices}", self.compute)]);
        }
        arguments
    }

    /// How fast the device decodes a large weight.
    fn decoding(&self) -> Option<f64> {
        let device = self.machine.registry().get(self.compute).ok()?;
        codec::decoding_bytes_per_s(device).ok()
    }

    /// What the program is started with.
    fn arguments(&self, pair: Option<PairFlags>, coded: &str) -> Vec<String> {
        let compute = ["--compute".to_owned(), self.compute.to_string()];
        compute.into_iter().chain(self.device_arguments(pair, coded)).collect()
    }

    /// The same without where it computes.
    fn device_arguments(&self, pair: Option<PairFlags>, coded: &str) -> Vec<String> {
        let mut arguments = ["--coded", coded].map(str::to_owned).to_vec();
        let simulated = self.machine.all_simulated().iter().map(ToString::to_string);
        let copies = if pair == Some(PairFlags::Simulate) { 2 } else { 1 };
        for spec in simulated.flat_map(|spec| std::iter::repeat_n(spec, copies)) {
            arguments.extend(["--sim-device".to_owned(), spec]);
        }
        if self.compute.kind != DeviceKind::Cuda {
            arguments.push("--cpu".to_owned());
        }
        for split in self.machine.logical() {
            arguments.extend(["--logical-gpus".to_owned(), split.to_string()]);
        }
        if pair == Some(PairFlags::Split) {
            arguments.extend(["--logical-gpus".to_owned(), format!("{}=2", self.compute)]);
        }
        arguments
    }

    /// How much the card holds for every number of gigabytes that is asked to leave it.
    fn virtual_vram(&self, client: &Client<'_>, report: &mut Report) {
        let share = if report.shape == "12b" { 1.0 } else { report.model_bytes as f64 / FULL_BYTES };
        for gigabytes in VIRTUAL_VRAM_GB {
            let name = format!("virtual_vram_gb {gigabytes}");
            if !is_wanted(self.only, &name) {
                continue;
            }
            tell(&format!("{name}\n"));
            match self.card_with(client, gigabytes * share) {
                Ok((used_bytes, placed)) => {
                    let without = report.virtual_vram.first().map_or(used_bytes, |first| first.used_bytes);
                    let saved_bytes = without.cast_signed() - used_bytes.cast_signed();
                    let row = VirtualVram { gigabytes: gigabytes * share, used_bytes, saved_bytes, placed };
                    report.virtual_vram.push(row);
                }
                Err(error) => report.left_out.push(format!("{name}: {error:#}")),
            }
        }
    }

    fn card_with(&self, client: &Client<'_>, gigabytes: f64) -> Result<(u64, Placed)> {
        client.free_all()?;
        let compute = self.compute.to_string();
        client.run(&prompt(
            &Drawing { virtual_vram_gb: gigabytes, ..self.one_step(&compute) },
            self.shapes(),
        ))?;
        let used = whole(&client.device(&compute)?["used_bytes"]);
        Ok((used, Placed::read(&client.model()?)))
    }

    /// A job that loads the model and computes once with it.
    fn one_step<'a>(&self, compute: &'a str) -> Drawing<'a> {
        Drawing {
            compute,
            allocation: "",
            virtual_vram_gb: 0.0,
            weight_dtype: "default",
            lora: false,
            cfg: 1.0,
            steps: 1,
            seed: 1,
        }
    }

    /// How soon the server answers while a model loads, is patched and leaves.
    fn now(&self, client: &Client<'_>, report: &mut Report) {
        if !is_wanted(self.only, "/gantry/now") {
            return;
        }
        tell("/gantry/now\n");
        if let Err(error) = self.answers(client, &mut report.now) {
            report.left_out.push(format!("/gantry/now: {error:#}"));
        }
    }

    fn answers(&self, client: &Client<'_>, answers: &mut Vec<Answers>) -> Result<()> {
        client.free_all()?;
        let compute = self.compute.to_string();
        let address = &client.server.address;
        let plain = prompt(&self.one_step(&compute), self.shapes());
        let patched = prompt(&Drawing { lora: true, ..self.one_step(&compute) }, self.shapes());
        answers.push(while_doing("a model loads and computes", address, || client.run(&plain))?.0);
        answers.push(while_doing("it is patched and computes", address, || client.run(&patched))?.0);
        answers.push(while_doing("it leaves", address, || client.free_all())?.0);
        Ok(())
    }
}

/// The compute device and another of its kind, and what has to be said for it to be there.
fn pair_of(machine: &Machine, compute: DeviceId) -> Option<([DeviceId; 2], Option<PairFlags>)> {
    let DeviceId { kind, ordinal } = compute;
    let others = machine.registry().iter().map(device::Device::id);
    if let Some(other) = others.into_iter().find(|id| id.kind == kind && *id != compute) {
        return Some(([compute, other], None));
    }
    let next = DeviceId { kind, ordinal: ordinal.checked_add(1)? };
    match kind {
        DeviceKind::Cuda => Some(([compute, next], Some(PairFlags::Split))),
        DeviceKind::Sim => Some(([compute, next], Some(PairFlags::Simulate))),
        _ => None,
    }
}

/// What has to be said for a second device to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairFlags {
    /// The card is opened as two.
    Split,
    /// Every simulated device is there twice.
    Simulate,
}

impl Report {
    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.virtual_vram.is_empty() && self.now.is_empty()
    }

    fn to_text(&self) -> String {
        let left_out: String = self.left_out.iter().map(|line| format!("left out: {line}\n")).collect();
        let link =
            self.link_bytes_per_s.map_or(String::new(), |link| format!(", link {:.1} GB/s", link / 1e9));
        format!(
            "{} ({}), a model of the size of {}, {} ({}), {} pixels square, {} text tokens{link}\n\
             without a server {:.1} ms; the server answers after {:.0} ms; files written in {:.1} s\n\n\
             {}\n{}\n{}\n{left_out}",
            self.device,
            self.device_name,
            self.model,
            ByteSize(self.model_bytes),
            self.shape,
            self.pixels,
            self.text_tokens,
            self.bench_step_s * 1e3,
            self.start_s * 1e3,
            self.files_s,
            self.row_table(),
            self.card_table(),
            self.now_table(),
        )
    }

    fn row_table(&self) -> Table {
        let head = [
            "served",
            "load s",
            "first ms",
            "predicted",
            "second ms",
            "predicted",
            "bound ms",
            "over bound",
            "streamed",
            "mode",
            "device",
            "host before",
            "host after",
            "same bits",
            "8-bit error",
        ];
        let mut table = Table::new(&head);
        let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let ratio = |value: Option<f64>| or_dash(value.map(|value| format!("{value:.3}")));
        let own = |memory: &client::HostMemory| {
            or_dash(memory.process.map(|process| ByteSize(process.private_bytes).to_string()))
        };
        for row in &self.rows {
            table.row(&[
                &row.name,
                &format!("{:.2}", row.first.load_s),
                &ms(row.first.step_s),
                &ratio(row.predicted_over_measured[0]),
                &ms(row.second.step_s),
                &ratio(row.predicted_over_measured[1]),
                &or_dash(row.bound_s.map(ms)),
                &ratio(row.over_bound),
                &ByteSize(row.placed.streamed_bytes).to_string(),
                row.placed.mode,
                &ByteSize(row.device_used_bytes).to_string(),
                &own(&row.host_before),
                &own(&row.host_after),
                match row.same_bits {
                    None => "-",
                    Some(true) => "yes",
                    Some(false) => "NO",
                },
                &or_dash(row.error_of_products.map(|error| format!("{error:.1e}"))),
            ]);
        }
        table
    }

    fn card_table(&self) -> Table {
        let mut table = Table::new(&["virtual_vram_gb", "on the card", "saved", "streamed", "ring"]);
        for row in &self.virtual_vram {
            let saved = ByteSize(row.saved_bytes.unsigned_abs()).to_string();
            table.row(&[
                &format!("{:.4}", row.gigabytes),
                &ByteSize(row.used_bytes).to_string(),
                &if row.saved_bytes < 0 { format!("-{saved}") } else { saved },
                &ByteSize(row.placed.streamed_bytes).to_string(),
                &ByteSize(row.placed.ring_bytes).to_string(),
            ]);
        }
        table
    }

    fn now_table(&self) -> Table {
        let mut table = Table::new(&["/gantry/now while", "questions", "p50 ms", "p99 ms", "max ms"]);
        for row in &self.now {
            let ms = |value: f64| format!("{value:.2}");
            table.row(&[
                &row.name,
                &row.questions.to_string(),
                &ms(row.ms.p50),
                &ms(row.ms.p99),
                &ms(row.ms.max),
            ]);
        }
        table
    }
}
