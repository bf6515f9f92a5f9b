//! Normal and automatic mode, and the nearest allocation that fits: how much must leave the compute device.

use std::collections::BTreeSet;

use meta::{ByteSize, DeviceId};

use super::assemble::Slots;
use super::choose::place;
use super::problem::Problem;
use crate::allocation::Amounts;
use crate::error::PlanError;
use crate::language::AllocationText;
use crate::plan::Plan;
use crate::request::PlanRequest;
use crate::resolve::{Targets, resolve};

/// How many sizes of offload are tried at most between the first and everything.
const MAX_TRIES: u64 = 128;

/// The host is used alone unless other accelerators make a step faster by this factor.
const WORTH_OTHER_ACCELERATORS: f64 = 1.02;

/// The smallest offload that leaves room for working memory and the ring.
pub(super) fn automatic(problem: &Problem<'_>) -> Result<Plan, PlanError> {
    let needed = problem.model_bytes + problem.request.working_bytes;
    let start = needed.saturating_sub(problem.available(problem.compute()));
    let host: Vec<DeviceId> = host_donor(problem).into_iter().collect();
    let alone = smallest_offload(problem, start, &host, Reserve::ToWorkIn);
    if start == 0 || problem.other_accelerators().next().is_none() {
        return alone;
    }
    let wide: Vec<DeviceId> = fastest_first(problem).into_iter().chain(host).collect();
    let wide = smallest_offload(problem, start, &wide, Reserve::ToWorkIn);
    match (alone, wide) {
        (Ok(alone), Ok(wide)) => {
            let seconds = wide.prediction.seconds_per_step * WORTH_OTHER_ACCELERATORS;
            Ok(if seconds < alone.prediction.seconds_per_step { wide } else { alone })
        }
        (Err(_), wide) => wide,
        (alone, Err(_)) => alone,
    }
}

/// Moves at least this much to the donors. The ring is our own need, not the user's: where the rest would
/// fit but for it, more is moved to make room for it, and the plan says so.
pub(super) fn normal(problem: &Problem<'_>, asked: u64, donors: &[DeviceId]) -> Result<Plan, PlanError> {
    let offload = asked.min(problem.free_bytes());
    let (weights, working) = (problem.model_bytes - offload, problem.request.working_bytes);
    let available = problem.available(problem.compute());
    if weights + working > available {
        return Err(PlanError::NoRoom {
            device: problem.compute(),
            wanted: weights + working,
            weights,
            ring: 0,
            working,
            available,
            nearest: None,
        });
    }
    let filled = smallest_offload(problem, offload, donors, Reserve::Nothing);
    // Donors that are not filled to the brim can compute, and then no ring is needed.
    let mut plan = filled
        .or_else(|error| smallest_offload(problem, offload, donors, Reserve::ToWorkIn).map_err(|_| error))?;
    if offload < asked {
        let (asked, offload) = (ByteSize(asked), ByteSize(offload));
        plan.notes.push(format!("{asked} was to be moved and only {offload} of the model can be"));
    }
    let moved = plan.model_bytes() - plan.devices[0].weight_bytes;
    let largest = problem.request.blocks.iter().map(|block| block.bytes).max().unwrap_or(0);
    if moved >= offload + largest.max(1) {
        let (moved, offload) = (ByteSize(moved), ByteSize(offload));
        plan.notes.push(format!("{moved} is moved instead of {offload}, to make room for the ring"));
    }
    Ok(plan)
}

/// The nearest allocation that fits, checked by planning with it.
pub(super) fn nearest(problem: &Problem<'_>) -> Option<String> {
    let allocation = problem.request.allocation.allocation();
    let mut donors: Vec<DeviceId> = match &allocation.amounts {
        Amounts::Normal { donors, .. } => donors.clone(),
        _ => Vec::new(),
    };
    let mut asked = problem.free_bytes();
    if let Ok(Some(targets)) = resolve(&problem.request.allocation, &problem.scale()) {
        donors = targets.shares.iter().map(|(device, _)| *device).collect();
        asked = problem.model_bytes - targets.share(problem.compute()).max(problem.pinned_bytes);
    } else if let Amounts::Normal { virtual_vram_bytes, .. } = &allocation.amounts {
        asked = asked.min(*virtual_vram_bytes);
    }
    donors.extend(host_donor(problem).into_iter().chain(fastest_first(problem)));
    let mut seen = BTreeSet::from([problem.compute()]);
    donors.retain(|device| seen.insert(*device));

    let all = offloads(problem, 0);
    let (less, more): (Vec<u64>, Vec<u64>) = all.into_iter().partition(|offload| *offload < asked);
    // What was asked, then more of it, which is what frees the compute device; then less, from the top.
    let tries = std::iter::once(asked).chain(more).chain(less.into_iter().rev());
    let tries = tries.filter_map(|offload| {
        let targets = offload_targets(problem, offload, &donors, Reserve::Nothing).ok()?;
        place(problem, &targets, Slots::One).ok()
    });
    // Last, whatever automatic mode finds, which keeps room to work in on other accelerators; its
    // numbers if they say enough, else its name.
    let last = std::iter::once_with(|| automatic(problem).ok()).flatten();
    let mut texts = tries.chain(last).map(|plan| plan.to_allocation().to_string()).chain(["auto".to_owned()]);
    texts.find(|text| fits(problem, text))
}

/// Whether a text gives a plan for this request.
fn fits(problem: &Problem<'_>, text: &str) -> bool {
    let Ok(allocation) = AllocationText::parse(text) else { return false };
    let request = PlanRequest { allocation, ..problem.request.clone() };
    Problem::new(&request).and_then(|problem| super::decide(&problem)).is_ok()
}

/// Whether donors keep room to work in, so that blocks can be computed where they live.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reserve {
    Nothing,
    ToWorkIn,
}

/// The plan with the smallest offload, from this one up, that fits; with one slot only if no other does.
fn smallest_offload(
    problem: &Problem<'_>,
    start: u64,
    donors: &[DeviceId],
    reserve: Reserve,
) -> Result<Plan, PlanError> {
    let mut first_error = None;
    for slots in [Slots::Enough, Slots::One] {
        for offload in offloads(problem, start) {
            let plan = offload_targets(problem, offload, donors, reserve)
                .and_then(|targets| place(problem, &targets, slots));
            match plan {
                Ok(plan) => return Ok(plan),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
    }
    Err(first_error.expect("at least one offload is tried"))
}

/// Offloads from this one up to everything that can move, in steps of the smallest block.
fn offloads(problem: &Problem<'_>, start: u64) -> Vec<u64> {
    let all = problem.free_bytes();
    let start = start.min(all);
    let step = problem.smallest_free_block().max((all - start) / MAX_TRIES).max(1);
    let steps = (0..).map(|n: u64| start + n * step).take_while(|offload| *offload < all);
    steps.chain([all]).collect()
}

/// Fills the donors in their order with this much.
fn offload_targets(
    problem: &Problem<'_>,
    offload: u64,
    donors: &[DeviceId],
    reserve: Reserve,
) -> Result<Targets, PlanError> {
    let room = |device: DeviceId| {
        let keeps = reserve == Reserve::ToWorkIn && device != DeviceId::CPU;
        problem.available(device).saturating_sub(if keeps { problem.request.working_bytes } else { 0 })
    };
    let compute = problem.compute();
    let mut shares = vec![(compute, problem.model_bytes - offload)];
    let mut left = offload;
    for donor in donors {
        let share = left.min(room(*donor));
        left -= share;
        shares.push((*donor, share));
    }
    let (last, share) = shares[shares.len() - 1];
    if left > 0 {
        return Err(PlanError::NoRoom {
            device: last,
            wanted: share + left,
            weights: share + left,
            ring: 0,
            working: 0,
            available: room(last),
            nearest: None,
        });
    }
    // Whole blocks can come to more than was asked: the first donor with room for that takes it.
    let largest = problem.request.blocks.iter().map(|block| block.bytes).max().unwrap_or(0);
    let mut needed = offload.saturating_add(largest);
    let roomy = donors.iter().copied().find(|donor| {
        let here = room(*donor);
        let enough = here >= needed;
        needed = needed.saturating_sub(here);
        enough
    });
    Ok(Targets { shares, taker: roomy.unwrap_or(last), taker_is_numbered: false })
}

/// The host, unless it is the compute device.
fn host_donor(problem: &Problem<'_>) -> Option<DeviceId> {
    let is_donor = problem.compute() != DeviceId::CPU && problem.devices.contains_key(&DeviceId::CPU);
    is_donor.then_some(DeviceId::CPU)
}

/// The other accelerators, the one with the fastest way to the compute device first.
fn fastest_first(problem: &Problem<'_>) -> Vec<DeviceId> {
    let mut others: Vec<DeviceId> = problem.other_accelerators().collect();
    let speed = |device: DeviceId| problem.bandwidth(device, problem.compute());
    others.sort_by(|a, b| speed(*b).total_cmp(&speed(*a)).then(a.cmp(b)));
    others
}
