//! The ways to use other accelerators: stream from them, compute where the weights live, or some of both.

use std::collections::BTreeSet;

use meta::DeviceId;

use super::draft::Draft;
use super::exchange;
use super::layout::{self, Outline, PARTS, Pace, Place, Rounding, Shape, Way, Ways};
use super::problem::Problem;
use crate::allocation::Order;
use crate::error::PlanError;
use crate::plan::Plan;
use crate::request::RemotePolicy;
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

/// Of plans that differ by less than this factor, the one with the bytes nearer to what was asked is better.
const AS_FAST: f64 = 1.002;

/// A layout whose step cannot be shorter than this many times the best is not looked at further.
const HOPELESS: f64 = 1.1;

/// How many runs of blocks are tried on an accelerator that computes its own.
const RUN_COUNTS: &[u8] = &[2, 3, 4, 6, 8, 12];

/// The parts of an accelerator's bytes of which it is tried that they travel although it computes the others.
const STREAMED_PARTS: &[u8] = &[PARTS / 4, PARTS / 2, 3 * PARTS / 4];

/// How many sizes of slots are tried at most, where blocks have many sizes.
const MAX_SLOT_SIZES: usize = 6;

/// How many sizes of slots are tried beside that of the largest block, where amounts are given.
const MAX_SMALLER_SLOTS: usize = 2;

/// Up to so many accelerators every choice of those that compute their own is tried.
const FEW_ACCELERATORS: usize = 4;

/// The ways that are tried for these accelerators, whatever the amounts. `streams` says that the host's blocks travel
/// too.
pub(super) fn ways(policy: RemotePolicy, remotes: &[DeviceId], streams: bool) -> Vec<Ways> {
    let mut all = Vec::new();
    if policy != RemotePolicy::InPlace || remotes.is_empty() {
        all.push(Ways::new());
    }
    if policy == RemotePolicy::Stream || remotes.is_empty() {
        return all;
    }
    let same = |shape: Shape, streamed: u8| -> Ways {
        remotes.iter().map(|device| (*device, Way { shape, streamed })).collect()
    };
    all.extend([Shape::Tail, Shape::Head, Shape::Window, Shape::Spread].map(|shape| same(shape, 0)));
    // Where something is streamed too, one long run leaves the link idle once the ring is full.
    let counts = if streams { RUN_COUNTS } else { &[] };
    all.extend(counts.iter().map(|count| same(Shape::Runs(*count), 0)));
    if policy == RemotePolicy::InPlace {
        return all;
    }
    for part in STREAMED_PARTS {
        all.extend([Shape::Tail, Shape::Runs(4), Shape::Spread].map(|shape| same(shape, *part)));
    }
    // Some compute and the others lend their memory.
    if (2..=FEW_ACCELERATORS).contains(&remotes.len()) {
        let tail = Way { shape: Shape::Tail, streamed: 0 };
        for mask in 1..(1usize << remotes.len()) - 1 {
            let chosen = remotes.iter().enumerate().filter(|(at, _)| mask & (1 << at) != 0);
            all.push(chosen.map(|(_, device)| (*device, tail)).collect());
        }
    }
    all
}

/// The fastest plan for these bytes per device, or why there is none.
pub(super) fn place(
    problem: &Problem<'_>,
    targets: &Targets,
    slots: Slots,
    rounding: Rounding,
) -> Result<Plan, PlanError> {
    // The taker can get a block although its share is nothing.
    let remote = |device: &DeviceId| targets.share(*device) > 0 || *device == targets.taker;
    let remotes: Vec<DeviceId> = problem.other_accelerators().filter(remote).collect();
    let streams = targets.share(DeviceId::CPU) > 0 || targets.taker == DeviceId::CPU;
    let mut choice = Choice { problem, targets, slots, rounding, tried: Vec::new(), error: None };
    let sizes = choice.smaller_slots(streams || remotes.is_empty());
    let mut all = ways(problem.remote, &remotes, streams);
    // Where even two blocks less would not fit, one is enough to say so.
    if too_large(problem, targets) {
        all.truncate(1);
    }
    for ways in all {
        let manner = |slot_bytes, pace| Manner { ways: ways.clone(), slot_bytes, pace };
        choice.try_out(manner(u64::MAX, Pace::Step));
        for slot_bytes in &sizes {
            choice.try_out(manner(*slot_bytes, Pace::Step));
            choice.try_out(manner(*slot_bytes, Pace::Stretch));
        }
    }
    if problem.remote == RemotePolicy::Auto {
        choice.improve(&remotes);
    }
    let error = choice.error.take();
    match (choice.best(), error) {
        (Some(best), _) => Ok(Draft::new(problem, best.places.clone()).into_plan(best.slots, Some(targets))),
        (None, error) => {
            Err(error.expect("every policy tries something, and what is not a plan is an error"))
        }
    }
}

/// How a layout is made for given amounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manner {
    pub(super) ways: Ways,
    /// No larger block is streamed.
    pub(super) slot_bytes: u64,
    pub(super) pace: Pace,
}

impl Manner {
    pub(super) fn outline<'a>(&'a self, targets: &'a Targets, rounding: Rounding) -> Outline<'a> {
        Outline { targets, ways: &self.ways, slot_bytes: self.slot_bytes, rounding, pace: self.pace }
    }
}

/// One way to use the accelerators, and what comes of it.
struct Candidate {
    manner: Manner,
    places: Vec<Place>,
    slots: usize,
    /// Of a step, with what arriving bytes take of the memory that computing uses.
    seconds: f64,
    /// From what was asked.
    difference: u64,
}

struct Choice<'a> {
    problem: &'a Problem<'a>,
    targets: &'a Targets,
    slots: Slots,
    rounding: Rounding,
    tried: Vec<Candidate>,
    /// The first one.
    error: Option<PlanError>,
}

impl Choice<'_> {
    fn try_out(&mut self, manner: Manner) {
        if self.tried.iter().any(|candidate| candidate.manner == manner) {
            return;
        }
        match self.candidate(manner) {
            Ok(candidate) => self.tried.extend(candidate),
            Err(error) => self.error = self.error.take().or(Some(error)),
        }
    }

    /// The fastest of those whose bytes are about as near to what was asked as any. Otherwise giving the host less than
    /// it was to have would win, because then less is to be copied.
    fn best(&self) -> Option<&Candidate> {
        let nearest = self.tried.iter().map(|candidate| candidate.difference).min()?;
        let slack = self.problem.smallest_free_block().max(self.problem.largest_free_block() / 4);
        let near =
            self.tried.iter().filter(|candidate| candidate.difference <= nearest.saturating_add(slack));
        let seconds = near.clone().map(|candidate| candidate.seconds).fold(f64::INFINITY, f64::min);
        near.filter(|candidate| candidate.seconds <= seconds * AS_FAST)
            .min_by_key(|candidate| candidate.difference)
    }

    /// What comes of it; nothing if it is so slow that the exchange of some blocks cannot make it the best.
    fn candidate(&self, manner: Manner) -> Result<Option<Candidate>, PlanError> {
        let problem = self.problem;
        let outline = manner.outline(self.targets, self.rounding);
        check_shares(problem, &layout::settle_fixed(problem, self.targets), &manner.ways)?;
        let mut places = layout::places(problem, outline);
        if problem.order == Order::Interleaved {
            let best = self.best().map_or(f64::INFINITY, |best| best.seconds);
            if Draft::new(problem, places.clone()).bound_s() > best * HOPELESS {
                return Ok(None);
            }
            exchange::exchange(problem, outline, &mut places);
        }
        let difference = exchange::difference(problem, outline, &places);
        let draft = Draft::new(problem, places);
        let (slots, seconds) = choose_ring(problem, &draft, self.slots)?;
        draft.check_rooms(slots)?;
        let seconds = seconds + draft.arriving_bytes() as f64 * problem.request.arrival_s_per_byte;
        Ok(Some(Candidate { places: draft.places, manner, slots, seconds, difference }))
    }

    /// Changes how one accelerator at a time is used from the best so far, with smaller and smaller parts of its bytes.
    fn improve(&mut self, remotes: &[DeviceId]) {
        let mut step = PARTS / 4;
        while step > 0 {
            for device in remotes {
                let Some(best) = self.best() else { return };
                let manner = best.manner.clone();
                for ways in neighbours(&manner.ways, *device, step) {
                    self.try_out(Manner { ways, ..manner });
                }
            }
            step /= 2;
        }
    }

    /// Sizes of slots for which some blocks are too large: small slots can be more, and then the ring runs ahead
    /// further.
    fn smaller_slots(&self, streams: bool) -> Vec<u64> {
        let largest = self.problem.largest_free_block();
        let sizes: Vec<u64> =
            slot_sizes(self.problem).into_iter().filter(|size| streams && *size < largest).collect();
        let every = sizes.len().div_ceil(MAX_SMALLER_SLOTS).max(1);
        sizes.into_iter().rev().step_by(every).collect()
    }
}

/// The same ways with another one for this device: other shapes, and somewhat more or less of its bytes that travel.
fn neighbours(ways: &Ways, device: DeviceId, step: u8) -> Vec<Ways> {
    let known = ways.get(&device).copied();
    let streamed = known.map_or(PARTS, |way| way.streamed);
    let shapes = match known {
        Some(way) if step < PARTS / 4 => vec![way.shape],
        _ => vec![Shape::Tail, Shape::Head, Shape::Window, Shape::Runs(2), Shape::Runs(4), Shape::Spread],
    };
    let mut all = Vec::new();
    for shape in shapes {
        for streamed in [streamed.saturating_sub(step), streamed, streamed + step] {
            let way = Way { shape, streamed: streamed.min(PARTS - 1) };
            all.push(ways.iter().map(|(id, way)| (*id, *way)).chain([(device, way)]).collect());
        }
    }
    let mut lent = ways.clone();
    lent.remove(&device);
    all.push(lent);
    all
}

/// The sizes of slots to try. With slots no larger than the smaller blocks the ring is small, and with larger ones more
/// blocks can stream. The one with which most can be saved is always there.
pub(super) fn slot_sizes(problem: &Problem<'_>) -> Vec<u64> {
    if problem.order == Order::Contiguous {
        return vec![u64::MAX];
    }
    let mut blocks: Vec<u64> = problem.free_blocks().map(|block| block.bytes).collect();
    blocks.sort_unstable();
    let mut before = 0;
    // By size of the slots, what everything that fits them comes to beside one slot.
    let mut sizes: Vec<(u64, u64)> = Vec::new();
    for bytes in blocks {
        match sizes.last_mut() {
            Some(last) if last.0 == bytes => last.1 = before,
            _ => sizes.push((bytes, before)),
        }
        before += bytes;
    }
    let most = sizes.iter().copied().max_by_key(|(_, saved)| *saved).map(|(bytes, _)| bytes);
    let (count, tried) = (sizes.len(), sizes.len().min(MAX_SLOT_SIZES));
    let spread = (1..=tried).map(|n| sizes[n * count / tried - 1].0);
    spread.chain(most).collect::<BTreeSet<u64>>().into_iter().collect()
}

/// What the bytes that travel can be spread over: where every block can travel, it is the same.
pub(super) fn paces(problem: &Problem<'_>, slot_bytes: u64) -> &'static [Pace] {
    let all = slot_bytes >= problem.largest_free_block();
    if all { &[Pace::Step] } else { &[Pace::Step, Pace::Stretch] }
}

/// Some plan for these bytes per device that fits, with as small a ring as can be, whether it is fast or not.
pub(super) fn any_fit(problem: &Problem<'_>, targets: &Targets) -> Option<Plan> {
    let remotes: Vec<DeviceId> =
        problem.other_accelerators().filter(|device| targets.share(*device) > 0).collect();
    let settled = layout::settle_fixed(problem, targets);
    ways(problem.remote, &remotes, true).into_iter().find_map(|ways| {
        check_shares(problem, &settled, &ways).ok()?;
        let manner = Manner { ways, slot_bytes: u64::MAX, pace: Pace::Step };
        let draft = Draft::new(problem, layout::places(problem, manner.outline(targets, Rounding::Down)));
        let slots = draft.fewest_slots();
        draft.check_rooms(slots).ok()?;
        Some(draft.into_plan(slots, Some(targets)))
    })
}

/// Whether the share of the compute device is more than whole blocks could make up for.
fn too_large(problem: &Problem<'_>, targets: &Targets) -> bool {
    let share = targets.share(problem.compute()).max(problem.fixed_bytes);
    let least = (share + problem.request.working_bytes).saturating_sub(2 * problem.largest_free_block());
    least > problem.available(problem.compute())
}

/// A share that no choice of blocks can fit is an error here, before rounding hides it.
fn check_shares(problem: &Problem<'_>, targets: &Targets, ways: &Ways) -> Result<(), PlanError> {
    for (device, share) in &targets.shares {
        let room = problem.room(*device, ways);
        if *device != problem.compute() && *share > 0 && *share > room {
            let available = problem.available(*device);
            let working = if ways.contains_key(device) { problem.request.working_bytes } else { 0 };
            return Err(PlanError::NoRoom {
                device: *device,
                wanted: *share + working,
                weights: *share,
                ring: 0,
                working,
                available,
                nearest: None,
            });
        }
    }
    Ok(())
}

/// The slots of the smallest ring from the usual one up that is about as fast as the largest one that fits, and the
/// seconds of a step with it.
fn choose_ring(problem: &Problem<'_>, draft: &Draft<'_>, slots: Slots) -> Result<(usize, f64), PlanError> {
    let useful = draft.most_slots();
    if useful == 0 {
        return Ok((0, draft.seconds(1)));
    }
    let limits = problem.request.ring;
    // A deep ring takes bytes in which blocks could stay, so it holds at most half of what it streams.
    let deepest = limits.max_slots.min((useful / 2).max(limits.usual_slots));
    let fewest = match slots {
        Slots::Enough => limits.min_slots.clamp(1, useful),
        Slots::One => 1,
    };
    let compute = draft.usage(problem.compute(), 0);
    let room = compute.available_bytes.saturating_sub(compute.total_bytes()) / draft.slot_bytes;
    let most = useful.min(deepest.max(fewest)).min(usize::try_from(room).unwrap_or(usize::MAX));
    if most < fewest {
        draft.check_rooms(fewest)?;
    }
    let mut best = (most, draft.seconds(most));
    for slots in limits.usual_slots.clamp(fewest, most)..most {
        let seconds = draft.seconds(slots);
        if seconds <= best.1 * WORTH_A_SLOT {
            best = (slots, seconds);
            break;
        }
    }
    Ok(best)
}
