//! Two experts of the released size on a device that holds both, and on one that is too small for either: a card opened as
//! several, or a simulated device with less memory.

use anyhow::{Context, Result, ensure};
use checkpoint::Checkpoint;
use device::SimSpec;
use meta::{ByteSize, DeviceKind};
use models::diffusion::ReleasedModel;
use placement::DeviceUse;
use residency::Products;
use runtime::PlanQuestion;
use std::sync::Arc;
use std::time::Instant;

use super::{ExpertsRow, SECOND, SMALL, STEPS, VIDEOS, quickest, two_experts, with_known_words};
use crate::bench::served::client::Client;
use crate::bench::served::files::{self, MODEL};
use crate::bench::served::room_for;
use crate::bench::server::program::Program;
use crate::cli::{BenchArgs, ModelShape};
use crate::commands::tell;
use crate::machine::Machine;
use crate::planning::plan_file;

/// The memory of the smaller device for experts of the released size: half of one, and what it computes in.
const BUDGET_BYTES: u64 = 16_000_000_000;
/// What is taken off the memory for one small expert, of its bytes: as much as the budget lacks for a large one.
const LACKING: (u64, u64) = (9, 20);
/// The most devices that a card is opened as.
const MOST_PARTS: u64 = 16;

pub(super) fn on_device(machine: &Machine, args: &BenchArgs) -> Result<ExpertsRow> {
    let device = machine.registry().get(args.device)?;
    let (key, released_video) = VIDEOS[0];
    let families = models::diffusion::FAMILIES.iter();
    let family =
        families.clone().find(|family| family.key == key).with_context(|| format!("there is no {key}"))?;
    let (model, video) = match args.shape {
        ModelShape::Full => (with_known_words(&family.released), released_video),
        ModelShape::Small => (with_known_words(&family.small), SMALL),
    };
    let model_bytes = files::model_bytes(&model);
    let scratch = room_for(files::bytes(&model) + model_bytes)?;
    let begun = Instant::now();
    tell(&format!("writing two of {} to {}\n", ByteSize(model_bytes), scratch.path().display()));
    let models = scratch.join("models");
    files::write_encoders(&models, &model)?;
    let folder = models.join("diffusion_models");
    std::fs::create_dir_all(&folder)?;
    for name in [MODEL, SECOND] {
        files::write_released(&folder.join(name), &model)?;
    }
    tell(&format!("written in {:.1} s\n", begun.elapsed().as_secs_f64()));
    let whole = device.ledger().report().budget;
    let one = one_expert(machine, args, &folder.join(MODEL), (&model, video))?;
    ensure!(
        whole > one + model_bytes,
        "{} has {}, and both experts need {}: measure a larger device, or --shape small",
        device.id(),
        ByteSize(whole),
        ByteSize(one + model_bytes)
    );
    let wanted = match args.shape {
        ModelShape::Full => BUDGET_BYTES,
        ModelShape::Small => one.saturating_sub(model_bytes * LACKING.0 / LACKING.1),
    };
    let (flags, budget) = part_of(machine, args, (whole, wanted))?;
    let measure = |flags: Vec<String>| {
        tell(&format!("two experts: {}\n", flags.join(" ")));
        let server = Program::serving(scratch.path(), flags)?.start()?;
        let client = Client::new(&server, scratch.path());
        quickest(&client, |seed| two_experts(video, model.cfg, seed), |job| job.seconds)
    };
    let both = measure(arguments(args, machine.all_simulated()))?;
    let less = measure(flags)?;
    Ok(ExpertsRow {
        device: device.id().to_string(),
        device_name: device.description().name.clone(),
        model: model.name,
        model_bytes,
        video,
        cfg: model.cfg,
        steps: STEPS,
        memory_bytes: [whole, budget],
        both_s: both.seconds,
        one_s: less.seconds,
        ratio: less.seconds / both.seconds,
        same_bits: less.latent == both.latent,
    })
}

/// The bytes that one expert and what it computes in take on the device.
fn one_expert(
    machine: &Machine,
    args: &BenchArgs,
    path: &std::path::Path,
    (model, [width, height, frames]): (&ReleasedModel, [usize; 3]),
) -> Result<u64> {
    let file = Arc::new(Checkpoint::open(path)?);
    let question = PlanQuestion {
        size: (width, height),
        frames,
        cfg: model.cfg > 1.0,
        text: Some(model.tokens),
        ..PlanQuestion::default()
    };
    let plan = plan_file((machine.registry(), args.device), &file, Products::Exact, &question)?;
    Ok(plan.device(args.device).map_or(0, DeviceUse::total_bytes))
}

/// What a server is started with for a part of the device, and how large that is.
fn part_of(machine: &Machine, args: &BenchArgs, (whole, wanted): (u64, u64)) -> Result<(Vec<String>, u64)> {
    let ordinal = usize::from(args.device.ordinal);
    match args.device.kind {
        DeviceKind::Sim => {
            let mut simulated = machine.all_simulated().to_vec();
            simulated.get_mut(ordinal).context("the device was not simulated here")?.memory = wanted;
            Ok((arguments(args, &simulated), wanted))
        }
        DeviceKind::Cuda => {
            let parts = whole.div_ceil(wanted).clamp(2, MOST_PARTS);
            let mut flags = arguments(args, machine.all_simulated());
            flags.extend(["--logical-gpus".to_owned(), format!("{}={parts}", args.device)]);
            Ok((flags, whole / parts))
        }
        _ => anyhow::bail!("{} cannot be made smaller", args.device),
    }
}

/// What every server is started with. Plain weights: what coding does has rows of its own.
fn arguments(args: &BenchArgs, simulated: &[SimSpec]) -> Vec<String> {
    let mut flags = ["--compute", &args.device.to_string(), "--coded", "off"].map(str::to_owned).to_vec();
    if args.device.kind != DeviceKind::Cuda {
        flags.push("--cpu".to_owned());
    }
    for spec in simulated {
        flags.extend(["--sim-device".to_owned(), spec.to_string()]);
    }
    flags
}
