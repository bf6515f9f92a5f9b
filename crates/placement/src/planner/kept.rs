//! Blocks that stay on the compute device losslessly coded and are decoded just before they are used: a card on which
//! seven tenths of a model have room holds all of it. Which of the others stay as they are and which travel is decided by the
//! same planner, for a model whose coded blocks are smaller, stay, and take longer.

use meta::DeviceId;

use super::problem::Problem;
use super::{coding, disk, draft};
use crate::allocation::Amounts;
use crate::error::PlanError;
use crate::plan::{Plan, Ring};
use crate::request::{CodingPolicy, PlanRequest};

/// How many shares of the blocks that can be kept coded are tried, beside the fewest with which nothing travels.
const SHARES: usize = 12;
/// A step must be predicted to be shorter by this part before blocks are kept coded for it.
const WORTHWHILE: f64 = 0.01;

/// A block that can be kept coded.
struct Codable {
    index: usize,
    bytes: u64,
    coded: u64,
}

/// The plan that was decided, or a faster one in which blocks are kept coded. Where the user gave amounts, devices hold the
/// bytes that he wrote, so none is.
pub(super) fn mix(problem: &Problem<'_>, decided: Result<Plan, PlanError>) -> Result<Plan, PlanError> {
    let coding = &problem.request.coding;
    let is_automatic = matches!(problem.request.allocation.allocation().amounts, Amounts::Automatic);
    if coding.policy == CodingPolicy::Off || !is_automatic || problem.compute() == DeviceId::CPU {
        return decided;
    }
    let codable = codable(problem);
    if coding.policy == CodingPolicy::Force {
        return with_kept(problem, &codable, codable.len()).map_or(decided, Ok);
    }
    let known = problem.request.speeds_known && coding.decode_bytes_per_s.is_some();
    let limit = match &decided {
        Ok(plan) if plan.ring.is_none() => return decided,
        Ok(plan) => plan.prediction.seconds_per_step * (1.0 - WORTHWHILE),
        Err(PlanError::NoRoom { .. }) => f64::INFINITY,
        Err(_) => return decided,
    };
    if !known {
        return decided;
    }
    let mut best: Option<Plan> = None;
    for count in counts(problem, &codable) {
        let Some(plan) = with_kept(problem, &codable, count) else { continue };
        let seconds = plan.prediction.seconds_per_step;
        let known = best.as_ref().map_or(limit, |best| best.prediction.seconds_per_step);
        if seconds < known && coding::lacking_on_host(problem, &plan).is_none() {
            best = Some(plan);
        }
    }
    best.map_or(decided, Ok)
}

/// The blocks that may move and shrink.
fn codable(problem: &Problem<'_>) -> Vec<Codable> {
    let sizes = &problem.request.coding.coded_bytes;
    let blocks = problem.request.blocks.iter().zip(&problem.fixed).enumerate();
    let free = blocks.filter(|(_, (_, fixed))| !**fixed);
    let shrinks = free.filter_map(|(index, (block, _))| {
        let coded = sizes.get(index).copied().flatten()?;
        let shrinks = coding::is_worth_coding(problem, block.bytes, coded);
        shrinks.then_some(Codable { index, bytes: block.bytes, coded })
    });
    shrinks.collect()
}

/// So many of the blocks, spread evenly.
fn chosen(codable: &[Codable], count: usize) -> impl Iterator<Item = &Codable> {
    let all = codable.len().max(1);
    let is_chosen = move |(at, _): &(usize, &Codable)| (at + 1) * count / all > at * count / all;
    codable.iter().enumerate().filter(is_chosen).map(|(_, block)| block)
}

/// How many blocks it is worth trying to keep coded, ascending.
fn counts(problem: &Problem<'_>, codable: &[Codable]) -> Vec<usize> {
    let room = problem.available(problem.compute()).saturating_sub(problem.request.working_bytes);
    let fits = |count: &usize| {
        let saved: u64 = chosen(codable, *count).map(|block| block.bytes - block.coded).sum();
        let decoded = chosen(codable, *count).map(|block| block.bytes).max().unwrap_or(0);
        problem.model_bytes - saved + decoded <= room
    };
    let mut counts: Vec<usize> = (1..=SHARES).map(|share| share * codable.len() / SHARES).collect();
    counts.extend((1..=codable.len()).find(fits));
    counts.retain(|count| *count > 0);
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// The plan with so many blocks kept coded, if there is one.
fn with_kept(problem: &Problem<'_>, codable: &[Codable], count: usize) -> Option<Plan> {
    let room_bytes = chosen(codable, count).map(|block| block.bytes).max()?;
    let request = smaller(problem.request, codable, count, room_bytes)?;
    let inner = Problem::new(&request).ok()?;
    let mut plan = coding::code(&inner, disk::decide(&inner).ok()?, room_bytes);
    for block in chosen(codable, count) {
        let planned = &mut plan.blocks[block.index];
        (planned.bytes, planned.coded_bytes) = (block.bytes, Some(block.coded));
    }
    // What travels coded is decoded in the same room.
    let ring = plan.ring.unwrap_or(Ring { slots: 0, slot_bytes: 0, room_bytes: 0 });
    let ring = Ring { room_bytes: ring.room_bytes.max(room_bytes), ..ring };
    let usage = plan.devices.iter_mut().find(|usage| usage.device == request.compute)?;
    usage.available_bytes = problem.available(request.compute);
    usage.ring_bytes = ring.bytes();
    plan.ring = Some(ring);
    plan.prediction = draft::predict(problem, &plan);
    Some(plan)
}

/// The same request for a model of which so many blocks are coded and stay, with room to decode the largest in.
fn smaller(request: &PlanRequest, codable: &[Codable], count: usize, room_bytes: u64) -> Option<PlanRequest> {
    let mut smaller = request.clone();
    let decode_s = |bytes: u64| request.coding.decode_bytes_per_s.map_or(0.0, |speed| bytes as f64 / speed);
    for block in chosen(codable, count) {
        let spec = &mut smaller.blocks[block.index];
        (spec.bytes, spec.pinned) = (block.coded, true);
        spec.compute_seconds += decode_s(block.bytes);
        smaller.coding.coded_bytes[block.index] = None;
    }
    let device = smaller.devices.iter_mut().find(|device| device.id == request.compute)?;
    device.available_bytes = device.available_bytes.checked_sub(room_bytes)?;
    Some(smaller)
}
