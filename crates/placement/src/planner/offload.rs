//! Normal and automatic mode: how much must leave the compute device, and which blocks that is.
//!
//! Both are one question: weights and ring together shall take so much less of the compute device than the model alone.
//! The candidates are layouts by how much is moved, how large a slot may be, and how other accelerators are used, each with
//! rings of any number of slots. They are listed and ranked without regard to how much shall be saved, and the best of
//! those that save it is taken. So who asks for more never saves less.

use meta::{ByteSize, DeviceId};

use super::choose::{self, Manner};
use super::draft::{Draft, no_room};
use super::layout::{self, Pace, Rounding, Ways};
use super::problem::Problem;
use crate::error::PlanError;
use crate::plan::{DeviceUse, Plan};
use crate::resolve::Targets;

/// How many amounts are looked at at most between nothing and everything.
const MAX_AMOUNTS: u64 = 128;
/// Steps whose lengths are within this factor are equally long: fewer moved bytes and fewer slots decide.
const AS_LONG: f64 = 1.005;
/// The host is used alone unless other accelerators make a step faster by this factor.
const WORTH_OTHER_ACCELERATORS: f64 = 1.02;

/// The smallest offload that leaves room for working memory and the ring.
pub(super) fn automatic(problem: &Problem<'_>) -> Result<Plan, PlanError> {
    let compute = problem.compute();
    let needed = problem.model_bytes + problem.request.working_bytes;
    let saves = needed.saturating_sub(problem.available(compute));
    let host: Vec<DeviceId> = host_donor(problem).into_iter().collect();
    let alone = Offload::new(problem, &host);
    if saves == 0 {
        return Ok(alone.nothing().into_plan(0, None));
    }
    let wide: Vec<DeviceId> = fastest_first(problem).into_iter().chain(host.iter().copied()).collect();
    let wide = Offload::new(problem, &wide);
    let others = wide.donors.len() > host.len();
    let found = alone.best(saves);
    let found_wide = if others { wide.best(saves) } else { None };
    match (found, found_wide) {
        (Some(alone), Some(wide)) => {
            let is_worth = wide.seconds * WORTH_OTHER_ACCELERATORS < alone.seconds;
            Ok((if is_worth { wide } else { alone }).into_plan())
        }
        (Some(found), None) | (None, Some(found)) => Ok(found.into_plan()),
        (None, None) => Err(shortage(saves, &[alone, wide])),
    }
}

/// Takes at least this much off the compute device: weights and ring together hold so much less of it than the model
/// alone would. Where that is more than can be saved, what saves most, and the plan says so.
pub(super) fn normal(problem: &Problem<'_>, asked: u64, donors: &[DeviceId]) -> Result<Plan, PlanError> {
    let offload = Offload::new(problem, donors);
    let is_possible = offload.most_if_roomy(asked) >= asked;
    let compute = problem.compute();
    let alone = offload.nothing().usage(compute, 0);
    let (saves, usage) = match is_possible {
        // What the ring takes of what is left is not known yet, and does not matter.
        true => (asked, DeviceUse { weight_bytes: problem.model_bytes - asked, ..alone }),
        false => offload.saves_most(None).unwrap_or((0, alone)),
    };
    if usage.total_bytes() > usage.available_bytes {
        return Err(no_room(&usage));
    }
    let mut plan = match saves {
        0 => offload.nothing().into_plan(0, None),
        _ => match offload.best(saves) {
            Some(found) => found.into_plan(),
            None => return Err(shortage(saves, &[offload])),
        },
    };
    if !is_possible {
        plan.notes.push(most_note(problem, asked, saves, &plan));
    } else if plan.ring.is_some() {
        let moved = plan.model_bytes() - plan.devices[0].weight_bytes;
        plan.notes.push(format!(
            "{} is moved, so that {compute} holds {} less with the ring and all",
            ByteSize(moved),
            ByteSize(saved_bytes(&plan)),
        ));
    }
    Ok(plan)
}

/// What a plan takes off the compute device, the ring counted.
fn saved_bytes(plan: &Plan) -> u64 {
    plan.model_bytes() - plan.devices[0].weight_bytes - plan.devices[0].ring_bytes
}

fn most_note(problem: &Problem<'_>, asked: u64, most: u64, plan: &Plan) -> String {
    let mut why = Vec::new();
    if problem.fixed_bytes > 0 {
        why.push(format!("{} always stays", ByteSize(problem.fixed_bytes)));
    }
    if let Some(ring) = plan.ring {
        why.push(format!("the ring takes {}", ByteSize(ring.bytes())));
    }
    let (asked, most, model) = (ByteSize(asked), ByteSize(most), ByteSize(problem.model_bytes));
    let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join(", ")) };
    format!("{asked} was to be saved on {}, and {most} is the most that can be of {model}{why}", plan.compute)
}

/// The host, unless it is the compute device.
pub(super) fn host_donor(problem: &Problem<'_>) -> Option<DeviceId> {
    let is_donor = problem.compute() != DeviceId::CPU && problem.devices.contains_key(&DeviceId::CPU);
    is_donor.then_some(DeviceId::CPU)
}

/// The other accelerators, the one with the fastest way to the compute device first.
pub(super) fn fastest_first(problem: &Problem<'_>) -> Vec<DeviceId> {
    let mut others: Vec<DeviceId> = problem.other_accelerators().collect();
    let speed = |device: DeviceId| problem.bandwidth(device, problem.compute());
    others.sort_by(|a, b| speed(*b).total_cmp(&speed(*a)).then(a.cmp(b)));
    others
}

/// The first device that lacks something, with the smallest amount that would do. It is the compute device if all the
/// room in the world on the last donor would not help, and else that donor.
fn shortage(saves: u64, offloads: &[Offload<'_>]) -> PlanError {
    let donor = offloads.iter().filter_map(|offload| offload.donor_need(saves));
    if let Some(usage) = donor.min_by_key(DeviceUse::total_bytes) {
        return no_room(&usage);
    }
    let problem = offloads[0].problem;
    let most = offloads.iter().filter_map(|offload| offload.saves_most(None)).max_by_key(|(saved, _)| *saved);
    let nothing = || offloads[0].nothing().usage(problem.compute(), 0);
    no_room(&most.map_or_else(nothing, |(_, usage)| usage))
}

/// A layout and a ring that save enough.
struct Found<'a> {
    draft: Draft<'a>,
    slots: usize,
    seconds: f64,
}

impl Found<'_> {
    fn into_plan(self) -> Plan {
        self.draft.into_plan(self.slots, None)
    }
}

/// One question to a list of donors.
struct Offload<'a> {
    problem: &'a Problem<'a>,
    donors: Vec<DeviceId>,
    /// How layouts are made, whatever is to be saved.
    manners: Vec<Manner>,
}

impl<'a> Offload<'a> {
    fn new(problem: &'a Problem<'a>, donors: &[DeviceId]) -> Offload<'a> {
        let mut offload = Offload { problem, donors: donors.to_vec(), manners: Vec::new() };
        let Some(last) = donors.last() else { return offload };
        let remotes: Vec<DeviceId> =
            donors.iter().copied().filter(|device| *device != DeviceId::CPU).collect();
        for ways in choose::ways(problem.remote, &remotes, *last == DeviceId::CPU) {
            let sizes = if ways.is_empty() { choose::slot_sizes(problem) } else { vec![u64::MAX] };
            for slot_bytes in sizes {
                let paces = choose::paces(problem, slot_bytes).iter();
                let manner = |pace: &Pace| Manner { ways: ways.clone(), slot_bytes, pace: *pace };
                offload.manners.extend(paces.map(manner));
            }
        }
        offload
    }

    /// Everything on the compute device.
    fn nothing(&self) -> Draft<'a> {
        let place = layout::Place { home: self.problem.compute(), in_place: true };
        Draft::new(self.problem, vec![place; self.problem.request.blocks.len()])
    }

    /// Amounts to move, the same whatever is to be saved.
    fn amounts(&self, manner: &Manner) -> impl DoubleEndedIterator<Item = u64> + use<> {
        let fits = |bytes: &u64| !manner.ways.is_empty() || *bytes <= manner.slot_bytes;
        let all: u64 = self.problem.free_blocks().map(|block| block.bytes).filter(fits).sum();
        let step = self.problem.smallest_free_block().max(all.div_ceil(MAX_AMOUNTS)).max(1);
        (1..=all.div_ceil(step)).map(move |n| (n * step).min(all))
    }

    fn draft(&self, manner: &Manner, amount: u64) -> Draft<'a> {
        let targets = donor_targets(self.problem, amount, &self.donors, &manner.ways);
        let outline = manner.outline(&targets, Rounding::Nearest);
        Draft::new(self.problem, layout::places(self.problem, outline))
    }

    /// What to lay out in order to save this much but not needlessly more, the smallest amounts first. What is left out
    /// depends on the model alone: in a window of fixed width above what is to be saved, nothing is.
    fn near(&self, saves: u64) -> Vec<(u64, usize)> {
        let largest = self.problem.largest_free_block();
        let slots = self.problem.request.ring.max_slots as u64 + 2;
        let mut near = Vec::new();
        for (at, manner) in self.manners.iter().enumerate() {
            let least = saves.saturating_sub(2 * largest);
            let rings = manner.slot_bytes.min(largest).saturating_mul(slots);
            let most = saves.saturating_add(self.window()).saturating_add(rings);
            near.extend(self.amounts(manner).filter(|it| (least..=most).contains(it)).map(|it| (it, at)));
        }
        near.sort_unstable();
        near
    }

    /// Layouts that save more than this above what is to be saved are not looked at.
    fn window(&self) -> u64 {
        let step = self.problem.smallest_free_block().max(self.problem.free_bytes() / MAX_AMOUNTS);
        2 * (self.problem.largest_free_block() + step)
    }

    /// The best that saves this much and fits the donors.
    fn best(&self, saves: u64) -> Option<Found<'a>> {
        let clock = Clock::new(self.problem, &self.donors);
        let mut best: Option<(Rank, Found<'a>)> = None;
        for (amount, at) in self.near(saves) {
            let manner = &self.manners[at];
            let known = best.as_ref().map(|(rank, _)| *rank);
            let is_worse = |least: Rank| known.is_some_and(|known| least >= known);
            // Whole blocks can come to less than the amount, but not by more than one, or one in every place.
            let fewest = amount.saturating_sub(2 * self.problem.largest_free_block());
            if is_worse(Rank { length: clock.least(manner, fewest), moved: fewest, ring: 0, manner: at }) {
                continue;
            }
            let draft = self.draft(manner, amount);
            let moved = draft.moved_bytes();
            let least = clock.length(draft.bound_s());
            if is_worse(Rank { length: least, moved, ring: 0, manner: at }) || !draft.fits_donors(None) {
                continue;
            }
            let mut chosen: Option<(Rank, usize, f64)> = None;
            for slots in self.slots(&draft, saves) {
                let seconds = draft.seconds(slots.max(1));
                let (length, ring) = (clock.length(seconds), draft.slot_bytes * slots as u64);
                let rank = Rank { length, moved, ring, manner: at };
                if chosen.is_none_or(|(known, ..)| rank < known) {
                    chosen = Some((rank, slots, seconds));
                }
                if length <= least {
                    break;
                }
            }
            if let Some((rank, slots, seconds)) = chosen.filter(|(rank, ..)| !is_worse(*rank)) {
                best = Some((rank, Found { draft, slots, seconds }));
            }
        }
        best.map(|(_, found)| found)
    }

    /// The numbers of slots with which a layout saves this much, and not more than the window above it.
    fn slots(&self, draft: &Draft<'_>, saves: u64) -> impl Iterator<Item = usize> + use<> {
        let most = draft.most_slots().min(self.problem.request.ring.max_slots.max(1));
        let fewest = draft.fewest_slots();
        let (slot, moved, end) = (draft.slot_bytes, draft.moved_bytes(), saves.saturating_add(self.window()));
        (fewest..=most.max(fewest)).filter(move |slots| {
            moved.checked_sub(slot * *slots as u64).is_some_and(|saved| (saves..end).contains(&saved))
        })
    }

    /// The most that can be saved if the last donor has room for everything; `asked` or more is enough to know.
    fn most_if_roomy(&self, asked: u64) -> u64 {
        let all = |manner: &Manner| self.amounts(manner).next_back().map(|all| self.draft(manner, all));
        let most = self.manners.iter().filter_map(|manner| saved(&all(manner)?)).max().unwrap_or(0);
        if most >= asked {
            return most;
        }
        self.saves_most(self.donors.last().copied()).map_or(0, |(saved, _)| saved)
    }

    /// The most that can be saved, if this donor has all the room in the world, and what is then on the compute device.
    fn saves_most(&self, roomy: Option<DeviceId>) -> Option<(u64, DeviceUse)> {
        let mut best: Option<(u64, DeviceUse)> = None;
        for manner in &self.manners {
            for amount in self.amounts(manner).rev() {
                // Whole blocks come to more than the amount by less than one, or one in every place.
                let bound = amount + 2 * self.problem.largest_free_block();
                if best.is_some_and(|(known, _)| known >= bound) {
                    break;
                }
                let draft = self.draft(manner, amount);
                let Some(saved) = saved(&draft).filter(|_| draft.fits_donors(roomy)) else { continue };
                if best.is_none_or(|(known, _)| saved > known) {
                    best = Some((saved, draft.usage(self.problem.compute(), draft.fewest_slots())));
                }
            }
        }
        best
    }

    /// The least that the last donor must have for this much to be saved; none if no room on it is enough.
    fn donor_need(&self, saves: u64) -> Option<DeviceUse> {
        let last = *self.donors.last()?;
        let near = self.near(saves).into_iter();
        let drafts = near.map(|(amount, at)| self.draft(&self.manners[at], amount));
        let fitting = drafts.filter(|draft| draft.fits_donors(Some(last)));
        let enough = fitting.filter(|draft| self.slots(draft, saves).next().is_some());
        enough.map(|draft| draft.usage(last, 0)).min_by_key(DeviceUse::total_bytes)
    }
}

/// How good a candidate is, the least the best: about how long a step is, what is moved, what the ring takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    length: i64,
    moved: u64,
    ring: u64,
    manner: usize,
}

/// Measures steps so that those that are about equally long are equal. It depends on nothing that is compared.
struct Clock {
    /// The step with everything on the compute device.
    resident_s: f64,
    /// How long the fastest device computes for one second of the compute device.
    fastest: f64,
    /// Of the fastest way to the compute device.
    bytes_per_s: f64,
}

impl Clock {
    fn new(problem: &Problem<'_>, donors: &[DeviceId]) -> Clock {
        let speeds = donors.iter().map(|donor| problem.bandwidth(*donor, problem.compute()));
        let slowness = donors.iter().map(|donor| problem.slowness(*donor));
        Clock {
            resident_s: problem.request.blocks.iter().map(|block| block.compute_seconds).sum(),
            fastest: slowness.fold(1.0, f64::min),
            bytes_per_s: speeds.fold(0.0, f64::max),
        }
    }

    fn length(&self, seconds: f64) -> i64 {
        let reference_s = if self.resident_s > 0.0 { self.resident_s } else { 1.0 };
        // The sum of the same times in another order differs in its last digits.
        ((seconds / reference_s).ln() / AS_LONG.ln() + 1e-6).floor() as i64
    }

    /// No step is shorter in which at least so much is moved.
    fn least(&self, manner: &Manner, moved: u64) -> i64 {
        match manner.ways.is_empty() {
            true => self.length(self.resident_s.max(moved as f64 / self.bytes_per_s)),
            false => self.length(self.resident_s * self.fastest),
        }
    }
}

/// What a layout saves with one slot, if it streams at all; none if that is larger than what is moved.
fn saved(draft: &Draft<'_>) -> Option<u64> {
    draft.moved_bytes().checked_sub(draft.slot_bytes)
}

/// Fills the donors in their order with this much. The last one gets what is left, whether it has the room or not.
pub(super) fn donor_targets(problem: &Problem<'_>, amount: u64, donors: &[DeviceId], ways: &Ways) -> Targets {
    let mut shares = vec![(problem.compute(), problem.model_bytes - amount)];
    let mut left = amount;
    for (at, donor) in donors.iter().copied().enumerate() {
        let is_last = at + 1 == donors.len();
        let share = if is_last { left } else { left.min(problem.room(donor, ways)) };
        left -= share;
        shares.push((donor, share));
    }
    // Whole blocks can come to more than the amount: the first donor with room for that takes it.
    let mut needed = amount.saturating_add(problem.largest_free_block());
    let roomy = donors.iter().copied().find(|donor| {
        let here = problem.room(*donor, ways);
        let enough = here >= needed;
        needed = needed.saturating_sub(here);
        enough
    });
    let last = donors.last().copied().unwrap_or(problem.compute());
    Targets { shares, taker: roomy.unwrap_or(last) }
}
