//! From homes to a plan: where each block runs, the ring, the bytes of every device, the prediction.

use meta::DeviceId;

use super::layout::{self, InPlace};
use super::problem::Problem;
use crate::error::PlanError;
use crate::plan::{BlockMode, BlockPlan, DeviceUse, Plan, Ring};
use crate::predictor::{Prediction, StepBlock, simulate};
use crate::resolve::Targets;

/// How few slots the ring may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slots {
    /// As many as the request says.
    Enough,
    /// One: the last resort, where a slower plan is better than none.
    One,
}

/// A ring with more slots must be faster than one with fewer by this factor to be worth its bytes.
const WORTH_A_SLOT: f64 = 1.005;

/// Lays the blocks out and makes a plan of it, if it fits.
pub(super) fn assemble(
    problem: &Problem<'_>,
    targets: &Targets,
    in_place: &InPlace,
    slots: Slots,
) -> Result<Plan, PlanError> {
    let homes = layout::homes(problem, targets, in_place)?;
    let blocks: Vec<BlockPlan> = problem
        .request
        .blocks
        .iter()
        .zip(homes)
        .map(|(block, home)| {
            let stays = home == problem.compute() || in_place.contains_key(&home);
            let runs_on = if stays { home } else { problem.compute() };
            let mode = if stays { BlockMode::Resident } else { BlockMode::Streamed };
            BlockPlan { name: block.name.clone(), bytes: block.bytes, home, runs_on, mode }
        })
        .collect();
    let mut devices = device_uses(problem, &blocks);
    let timeline = Timeline::new(problem, &blocks);
    let (ring, prediction) = choose_ring(problem, &blocks, &devices[0], slots, &timeline)?;
    devices[0].ring_bytes = ring.map_or(0, |ring| ring.bytes());
    for usage in &devices {
        check_room(usage)?;
    }
    let notes = notes(problem, targets, &blocks, ring);
    let written = targets.shares.iter().map(|(device, _)| *device).collect();
    let (compute, order) = (problem.compute(), problem.order);
    Ok(Plan { compute, order, blocks, ring, devices, prediction, notes, written })
}

/// Every device in use, the compute device first, without the ring.
fn device_uses(problem: &Problem<'_>, blocks: &[BlockPlan]) -> Vec<DeviceUse> {
    let usage = |device: DeviceId| {
        let works = device == problem.compute() || blocks.iter().any(|block| block.runs_on == device);
        DeviceUse {
            device,
            weight_bytes: blocks.iter().filter(|b| b.home == device).map(|b| b.bytes).sum(),
            ring_bytes: 0,
            working_bytes: if works { problem.request.working_bytes } else { 0 },
            available_bytes: problem.available(device),
        }
    };
    let in_use = |device: &DeviceId| blocks.iter().any(|block| block.home == *device);
    let others = problem.devices.keys().copied().filter(|device| *device != problem.compute()).filter(in_use);
    std::iter::once(problem.compute()).chain(others).map(usage).collect()
}

/// The smallest ring from the usual one up that is about as fast as the largest one that fits.
fn choose_ring(
    problem: &Problem<'_>,
    blocks: &[BlockPlan],
    compute: &DeviceUse,
    slots: Slots,
    timeline: &Timeline,
) -> Result<(Option<Ring>, Prediction), PlanError> {
    let streamed = || blocks.iter().filter(|block| block.mode == BlockMode::Streamed);
    let slot_bytes = streamed().map(|block| block.bytes).max().unwrap_or(0);
    if slot_bytes == 0 {
        return Ok((None, timeline.predict(1)));
    }
    // A ring larger than what it streams would hold more than keeping those blocks does.
    let streamed_bytes: u64 = streamed().map(|block| block.bytes).sum();
    let useful = usize::try_from(streamed_bytes / slot_bytes).unwrap_or(usize::MAX).min(streamed().count());
    let limits = problem.request.ring;
    // A deep ring takes bytes in which blocks could stay, so it holds at most half of what it streams.
    let deepest = limits.max_slots.min((useful / 2).max(limits.usual_slots));
    let fewest = match slots {
        Slots::Enough => limits.min_slots.clamp(1, useful),
        Slots::One => 1,
    };
    let room = compute.available_bytes.saturating_sub(compute.total_bytes()) / slot_bytes;
    let most = useful.min(deepest.max(fewest)).min(usize::try_from(room).unwrap_or(usize::MAX));
    if most < fewest {
        check_room(&DeviceUse { ring_bytes: slot_bytes * fewest as u64, ..*compute })?;
    }
    let mut best = (most, timeline.predict(most));
    for slots in limits.usual_slots.clamp(fewest, most)..most {
        let prediction = timeline.predict(slots);
        if prediction.seconds_per_step <= best.1.seconds_per_step * WORTH_A_SLOT {
            best = (slots, prediction);
            break;
        }
    }
    Ok((Some(Ring { slots: best.0, slot_bytes }), best.1))
}

fn check_room(usage: &DeviceUse) -> Result<(), PlanError> {
    if usage.total_bytes() <= usage.available_bytes {
        return Ok(());
    }
    Err(PlanError::NoRoom {
        device: usage.device,
        wanted: usage.total_bytes(),
        weights: usage.weight_bytes,
        ring: usage.ring_bytes,
        working: usage.working_bytes,
        available: usage.available_bytes,
        nearest: None,
    })
}

/// What the blocks of a plan do in a step.
struct Timeline {
    blocks: Vec<StepBlock>,
    return_hop_s: f64,
    known: bool,
}

impl Timeline {
    fn new(problem: &Problem<'_>, blocks: &[BlockPlan]) -> Timeline {
        let hop = |from: DeviceId, to: DeviceId| match from == to {
            true => 0.0,
            false => problem.request.activation_bytes as f64 / problem.bandwidth(from, to),
        };
        let mut activations_on = problem.compute();
        let steps = problem.request.blocks.iter().zip(blocks).map(|(spec, block)| {
            let hop_s = hop(activations_on, block.runs_on);
            activations_on = block.runs_on;
            let copies = block.mode == BlockMode::Streamed;
            StepBlock {
                compute_s: spec.compute_seconds * problem.slowness(block.runs_on),
                hop_s,
                copy_s: copies.then(|| block.bytes as f64 / problem.bandwidth(block.home, block.runs_on)),
            }
        });
        let steps = steps.collect();
        let return_hop_s = hop(activations_on, problem.compute());
        Timeline { blocks: steps, return_hop_s, known: problem.request.speeds_known }
    }

    fn predict(&self, slots: usize) -> Prediction {
        Prediction { known: self.known, ..simulate(&self.blocks, slots, self.return_hop_s) }
    }
}

fn notes(problem: &Problem<'_>, targets: &Targets, blocks: &[BlockPlan], ring: Option<Ring>) -> Vec<String> {
    let mut notes = Vec::new();
    if targets.share(problem.compute()) < problem.pinned_bytes {
        let (bytes, device) = (meta::ByteSize(problem.pinned_bytes), problem.compute());
        notes.push(format!("{bytes} of small weights always stay on {device}"));
    }
    let streamed = blocks.iter().filter(|block| block.mode == BlockMode::Streamed).count();
    if ring.is_some_and(|ring| ring.slots < problem.request.ring.min_slots.min(streamed)) {
        notes.push(
            "the ring has fewer slots than it should: copies wait for streamed blocks to compute".to_owned(),
        );
    }
    notes
}
