//! Which streamed blocks travel losslessly coded. Where blocks live is decided before: coding shortens copies and takes
//! computing time, and its ring takes other room.

use meta::{ByteSize, DeviceKind};

use super::draft;
use super::problem::Problem;
use crate::plan::{BlockMode, BlockPlan, Plan, Ring};
use crate::request::CodingPolicy;

/// A step must be predicted to be shorter by this part before blocks are coded for it.
const WORTHWHILE: f64 = 0.01;
/// A block must keep no more of its bytes than this, unless coding is forced: what streams from a file takes memory that
/// the system has back whenever it wants, and a coded block takes memory of its own.
const MOST_KEPT: f64 = 0.8;

/// The plan with blocks coded as the request asks. So many bytes of a room to decode in are there already.
pub(super) fn code(problem: &Problem<'_>, plan: Plan, room_there: u64) -> Plan {
    let coding = &problem.request.coding;
    if coding.policy == CodingPolicy::Off || plan.ring.is_none() {
        return plan;
    }
    let Some(mut coded) = with_coded(problem, &plan, room_there) else { return plan };
    coded.prediction = draft::predict(problem, &coded);
    let shorter = coded.prediction.seconds_per_step < (1.0 - WORTHWHILE) * plan.prediction.seconds_per_step;
    let helps = match coding.policy {
        CodingPolicy::Off => false,
        CodingPolicy::Auto => shorter && coded.prediction.known && coding.decode_bytes_per_s.is_some(),
        CodingPolicy::Force => true,
    };
    match helps.then(|| lacking_on_host(problem, &coded)) {
        None => plan,
        Some(None) => coded,
        Some(Some(taken)) => {
            let mut plan = plan;
            plan.notes.push(format!(
                "streamed blocks stay as they are: coding them takes {} of host memory, and {} can be spared",
                ByteSize(taken),
                ByteSize(coding.host.map_or(0, |host| host.bytes))
            ));
            plan
        }
    }
}

/// Whether a block shrinks enough to be coded.
pub(super) fn is_worth_coding(problem: &Problem<'_>, bytes: u64, coded: u64) -> bool {
    match problem.request.coding.policy {
        CodingPolicy::Force => coded < bytes,
        CodingPolicy::Auto | CodingPolicy::Off => coded as f64 <= MOST_KEPT * bytes as f64,
    }
}

/// The bytes of host memory that the coded blocks of a plan take, if that is more than there is for them.
pub(super) fn lacking_on_host(problem: &Problem<'_>, plan: &Plan) -> Option<u64> {
    let coding = &problem.request.coding;
    let host = coding.host.filter(|_| coding.policy != CodingPolicy::Force)?;
    let takes = |block: &BlockPlan| {
        let Some(coded) = block.coded_bytes else { return 0 };
        let own = if block.mode == BlockMode::Streamed { coded } else { 0 };
        own + if host.plain_too { block.bytes } else { 0 }
    };
    let taken = plan.blocks.iter().map(takes).sum::<u64>();
    (taken > host.bytes).then_some(taken)
}

/// The plan with every block coded that can be and, unless coding is forced, is sooner decoded than the bytes that it saves
/// would be sent. None if there is none, or no room to decode in.
fn with_coded(problem: &Problem<'_>, plan: &Plan, room_there: u64) -> Option<Plan> {
    let coding = &problem.request.coding;
    let mut coded = plan.clone();
    for (index, block) in coded.blocks.iter_mut().enumerate() {
        let in_memory = block.home.kind == DeviceKind::Cpu && !block.from_disk;
        let travels = block.mode == BlockMode::Streamed && in_memory;
        let Some(bytes) = coding.coded_bytes.get(index).copied().flatten().filter(|_| travels) else {
            continue;
        };
        let saved_s = block.bytes.saturating_sub(bytes) as f64 / problem.bandwidth(block.home, plan.compute);
        let decode_s = coding.decode_bytes_per_s.map_or(0.0, |speed| block.bytes as f64 / speed);
        let worth = is_worth_coding(problem, block.bytes, bytes);
        if coding.policy == CodingPolicy::Force || (worth && saved_s > decode_s) {
            block.coded_bytes = Some(bytes);
        }
    }
    let streamed = || coded.blocks.iter().filter(|block| block.mode == BlockMode::Streamed);
    let room_bytes = streamed().filter(|block| block.coded_bytes.is_some()).map(|block| block.bytes).max()?;
    let slot_bytes = streamed().map(BlockPlan::travelling_bytes).max()?;
    let usage = coded.devices.iter_mut().find(|usage| usage.device == plan.compute)?;
    let without_ring = usage.total_bytes() - usage.ring_bytes;
    let more = |ring: Ring| ring.bytes() - room_there.min(ring.room_bytes);
    let fits = |slots: usize| {
        let ring = Ring { slots, slot_bytes, room_bytes };
        (without_ring + more(ring) <= usage.available_bytes).then_some(ring)
    };
    let planned = plan.ring?;
    // What the user was promised of the card holds: the ring takes no more than that of plain blocks, unless coding is
    // forced, which takes what room there is.
    let as_large = |slots: &usize| more(Ring { slots: *slots, slot_bytes, room_bytes }) <= planned.bytes();
    let small = (1..=planned.slots).rev().find(as_large).and_then(fits);
    let forced = || (1..=planned.slots.min(2)).rev().find_map(fits);
    let ring = small.or_else(|| if coding.policy == CodingPolicy::Force { forced() } else { None })?;
    usage.ring_bytes = ring.bytes();
    coded.ring = Some(ring);
    Some(coded)
}
