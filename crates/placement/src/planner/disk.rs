//! Blocks that host memory has no room for: they are read from the disk at every step. That is decided only where no plan
//! without it has room, since a disk is slower than any link.

use meta::{ByteSize, DeviceId};

use super::decide_in_memory;
use super::draft;
use super::problem::Problem;
use crate::error::PlanError;
use crate::plan::{BlockMode, BlockPlan, Plan, Reading};
use crate::request::{Disk, PlanRequest};

/// The plan within the host memory that weights may take or, if there is none, one that reads from the disk.
pub(super) fn decide(problem: &Problem<'_>) -> Result<Plan, PlanError> {
    let host = problem.devices.get(&DeviceId::CPU).filter(|_| problem.compute() != DeviceId::CPU);
    let (Some(disk), Some(host)) = (&problem.request.disk, host) else { return decide_in_memory(problem) };
    let host_bytes = disk.host_bytes.min(host.available_bytes);
    let within = with_host(problem.request, host_bytes);
    match decide_in_memory(&Problem::new(&within)?) {
        Err(PlanError::NoRoom { .. }) => {}
        decided => return decided,
    }
    let on_disk = readable(disk, &problem.request.blocks.iter().map(|block| block.bytes).collect::<Vec<_>>());
    let beyond =
        with_host(problem.request, host_bytes.saturating_add(on_disk.iter().map(|(_, it)| it).sum()));
    let plan = decide_in_memory(&Problem::new(&beyond)?)?;
    read_from_disk(problem, (disk, host_bytes), plan)
}

/// The same request with so many bytes of the host for the plan.
fn with_host(request: &PlanRequest, host_bytes: u64) -> PlanRequest {
    let mut changed = request.clone();
    let host = changed.devices.iter_mut().filter(|device| device.id == DeviceId::CPU);
    host.for_each(|host| host.available_bytes = host_bytes);
    changed
}

/// Number and bytes of the blocks that can be read.
fn readable(disk: &Disk, bytes: &[u64]) -> Vec<(usize, u64)> {
    let all = bytes.iter().copied().enumerate();
    all.filter(|(index, bytes)| *bytes > 0 && disk.readable.get(*index).copied().unwrap_or(false)).collect()
}

/// The plan with as many blocks read from the disk as the host has no room for, spread over the step, so that the disk
/// reads ahead while others travel.
fn read_from_disk(
    problem: &Problem<'_>,
    (disk, host_bytes): (&Disk, u64),
    mut plan: Plan,
) -> Result<Plan, PlanError> {
    let travels = |block: &BlockPlan| block.mode == BlockMode::Streamed && block.home == DeviceId::CPU;
    let bytes: Vec<u64> =
        plan.blocks.iter().map(|block| if travels(block) { block.bytes } else { 0 }).collect();
    let candidates = readable(disk, &bytes);
    let reading = Reading::of(candidates.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0), host_bytes);
    let Some(usage) = plan.devices.iter_mut().find(|usage| usage.device == DeviceId::CPU) else {
        return Ok(plan);
    };
    let room = host_bytes.saturating_sub(reading.bytes() + usage.working_bytes);
    let wanted = usage.weight_bytes.saturating_sub(room);
    let sum = |count: usize| spread(&candidates, count).map(|(_, bytes)| bytes).sum::<u64>();
    usage.available_bytes = host_bytes;
    usage.ring_bytes = reading.bytes();
    let Some(count) = (0..=candidates.len()).find(|count| sum(*count) >= wanted) else {
        usage.disk_bytes = sum(candidates.len());
        return Err(draft::no_room(usage));
    };
    usage.disk_bytes = sum(count);
    let note = format!(
        "{} of the weights are read from the disk at every step: models may take {} of host memory, and {} are to be there",
        ByteSize(usage.disk_bytes),
        ByteSize(host_bytes),
        ByteSize(usage.weight_bytes),
    );
    for (index, _) in spread(&candidates, count) {
        plan.blocks[index].from_disk = true;
    }
    plan.notes.push(note);
    plan.reading = Some(reading);
    plan.prediction = draft::predict(problem, &plan);
    Ok(plan)
}

/// So many of the blocks, spread evenly.
fn spread(all: &[(usize, u64)], count: usize) -> impl Iterator<Item = (usize, u64)> {
    let of = all.len().max(1);
    let is_chosen = move |at: usize| (at + 1) * count / of > at * count / of;
    all.iter().enumerate().filter(move |(at, _)| is_chosen(*at)).map(|(_, block)| *block)
}
