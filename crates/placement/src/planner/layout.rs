//! Which blocks make up the bytes that each device gets.
//!
//! A device that has a share gets no more than it here, and less by under one block; what that leaves over goes to one
//! device, the taker. `exchange` then brings the devices nearer to what was asked.

use std::collections::BTreeMap;

use meta::DeviceId;

use super::contiguous;
use super::problem::Problem;
use crate::allocation::Order;
use crate::resolve::Targets;

/// Where a block lives, and whether it computes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) home: DeviceId,
    /// Otherwise its weights travel to the compute device.
    pub(super) in_place: bool,
}

/// The accelerators on which blocks compute where they live, and how.
pub(super) type Ways = BTreeMap<DeviceId, Way>;

/// How an accelerator that computes its own blocks is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) shape: Shape,
    /// The sixteenths of its bytes that travel to the compute device all the same: while one computes, the link is idle.
    pub(super) streamed: u8,
}

/// Into how many parts [`Way::streamed`] cuts.
pub(super) const PARTS: u8 = 16;

/// How the blocks of a device that computes its own lie in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Spread like streamed blocks: more hops, but copies for other blocks hide behind them.
    Spread,
    /// One run at the end of the model: the activations hop once and come back.
    Tail,
    /// One run at the beginning of the model.
    Head,
    /// One run wherever its bytes are nearest, of large blocks rather than small ones: those can be streamed through
    /// small slots.
    Window,
    /// Several runs of about the same size, evenly over the model: few hops, and copies for the blocks between them
    /// need to run ahead no further than one run.
    Runs(u8),
}

/// What a layout must come to.
#[derive(Clone, Copy)]
pub(super) struct Outline<'a> {
    pub(super) targets: &'a Targets,
    pub(super) ways: &'a Ways,
    /// No larger block is streamed, except where the order is contiguous.
    pub(super) slot_bytes: u64,
    /// What whole blocks may do to the share of the compute device.
    pub(super) rounding: Rounding,
    /// Over what the bytes that travel are spread.
    pub(super) pace: Pace,
}

/// Over what the bytes that travel are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Over all that the model computes: where blocks that can travel come late, the first of them come close together,
    /// and a deep ring has fetched them by then.
    Step,
    /// Over the part of the step with blocks that can travel, which needs fewer slots.
    Stretch,
}

/// What whole blocks may do to the share of the compute device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    /// It gets what is nearest.
    Nearest,
    /// It gets no more than its share, because there is no room for more.
    Down,
}

/// The place of every block.
pub(super) fn places(problem: &Problem<'_>, outline: Outline<'_>) -> Vec<Place> {
    let targets = settle_fixed(problem, outline.targets);
    let outline = Outline { targets: &targets, ..outline };
    if problem.order == Order::Contiguous {
        let computes = |home: DeviceId| home == problem.compute() || outline.ways.contains_key(&home);
        let place = |home: DeviceId| Place { home, in_place: computes(home) };
        return contiguous::homes(problem, outline).into_iter().map(place).collect();
    }
    let mut layout = Layout::new(problem, outline);
    layout.interleaved();
    layout.places
}

/// What must stay on the compute device stays, whatever was written: the taker gets that much less, and
/// if that is not enough, the others.
pub(super) fn settle_fixed(problem: &Problem<'_>, targets: &Targets) -> Targets {
    let mut targets = targets.clone();
    let mut missing = problem.fixed_bytes.saturating_sub(targets.share(problem.compute()));
    targets.add(problem.compute(), missing);
    let mut givers: Vec<DeviceId> = targets.shares.iter().map(|(device, _)| *device).collect();
    givers.sort_by_key(|device| (*device != targets.taker, *device));
    for giver in givers.into_iter().filter(|device| *device != problem.compute()) {
        let Some((_, share)) = targets.shares.iter_mut().find(|(device, _)| *device == giver) else {
            continue;
        };
        let given = missing.min(*share);
        *share -= given;
        missing -= given;
    }
    targets
}

/// What whole blocks may do to the bytes of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunRounding {
    Down,
    Nearest,
    Up,
}

/// What one device is still to get of the blocks that are left.
#[derive(Clone, Copy)]
struct Part {
    place: Place,
    share: u64,
}

struct Layout<'a> {
    problem: &'a Problem<'a>,
    targets: &'a Targets,
    ways: &'a Ways,
    slot_bytes: u64,
    pace: Pace,
    places: Vec<Place>,
    /// The blocks that have no place yet, in order of use.
    left: Vec<usize>,
    /// What the compute device has for good so far.
    kept_bytes: u64,
}

impl<'a> Layout<'a> {
    fn new(problem: &'a Problem<'a>, outline: Outline<'a>) -> Layout<'a> {
        let count = problem.request.blocks.len();
        Layout {
            problem,
            targets: outline.targets,
            ways: outline.ways,
            slot_bytes: outline.slot_bytes,
            pace: outline.pace,
            places: vec![Place { home: problem.compute(), in_place: true }; count],
            left: (0..count).filter(|block| !problem.fixed[*block]).collect(),
            kept_bytes: problem.fixed_bytes,
        }
    }

    fn bytes(&self, block: usize) -> u64 {
        self.problem.request.blocks[block].bytes
    }

    fn left_bytes(&self) -> u64 {
        self.left.iter().map(|block| self.bytes(*block)).sum()
    }

    /// What a device may get: its share, if it has the room. The taker takes what there is, and whether it has the
    /// room is checked at the end, as for the compute device.
    fn allowance(&self, device: DeviceId) -> u64 {
        let share = self.targets.share(device);
        if device == self.targets.taker { share } else { share.min(self.problem.room(device, self.ways)) }
    }

    fn settle(&mut self, place: Place, chosen: &[usize]) {
        let mut is_chosen = vec![false; self.places.len()];
        for block in chosen {
            self.places[*block] = place;
            is_chosen[*block] = true;
        }
        self.left.retain(|block| !is_chosen[*block]);
        if place.home == self.problem.compute() {
            self.kept_bytes += chosen.iter().map(|block| self.bytes(*block)).sum::<u64>();
        }
    }

    fn interleaved(&mut self) {
        let compute = self.problem.compute();
        let taker = self.targets.taker;
        let mut donors: Vec<DeviceId> = self.targets.shares.iter().map(|(device, _)| *device).collect();
        donors.retain(|device| *device != compute && (self.targets.share(*device) > 0 || *device == taker));
        // By id, so that the order of entries matters only where the user asked that it should.
        donors.sort_unstable();
        let mut parts = self.take_runs(&donors);
        self.keep_large();

        // The taker's own part, or where it has had its run the host's, takes what is left; else the compute device.
        let takes = |device: DeviceId| parts.iter().rposition(|part| part.place.home == device);
        let had_run = taker != compute && takes(taker).is_none();
        let rest = if had_run { takes(DeviceId::CPU) } else { takes(taker) };
        let rest = rest.map(|at| parts.remove(at).place);
        match rest {
            None => self.offload_spread(&parts),
            Some(_) => self.keep_spread(),
        }
        for part in parts {
            let left = self.left_bytes();
            let target = part.share.min(left);
            let ideal = self.ideal(|_, so_far| target as f64 * (so_far as f64 / left as f64));
            let chosen = self.spread(&ideal, target);
            self.settle(part.place, &chosen);
        }
        let left = self.left.clone();
        self.settle(rest.unwrap_or(Place { home: compute, in_place: true }), &left);
    }

    /// Gives devices that compute in runs their blocks, the last device the last ones. Returns what is then still to
    /// be given out, by device.
    fn take_runs(&mut self, donors: &[DeviceId]) -> Vec<Part> {
        let mut parts = Vec::new();
        // What the devices to come may have, with the compute device; it is how far the taker's run may not reach.
        let mut waiting: u64 = self.targets.shares.iter().map(|(_, share)| share).sum();
        waiting -= self.problem.fixed_bytes.min(waiting);
        for device in donors.iter().rev().copied() {
            waiting -= self.targets.share(device).min(waiting);
            let share = self.allowance(device);
            let place = |in_place| Place { home: device, in_place };
            let Some(way) = self.ways.get(&device) else {
                parts.push(Part { place: place(false), share });
                continue;
            };
            let streamed = (share as f64 * f64::from(way.streamed) / f64::from(PARTS)) as u64;
            if way.shape == Shape::Spread {
                parts.push(Part { place: place(true), share: share - streamed });
                parts.extend((way.streamed > 0).then_some(Part { place: place(false), share: streamed }));
                continue;
            }
            let (target, rounding) = match (way.streamed > 0, device == self.targets.taker) {
                (true, _) => (share - streamed, RunRounding::Nearest),
                (false, true) => {
                    let parts: u64 = parts.iter().map(|part: &Part| part.share).sum();
                    (self.left_bytes().saturating_sub(waiting).saturating_sub(parts), RunRounding::Up)
                }
                (false, false) => (share, RunRounding::Down),
            };
            let chosen = self.run(way.shape, target, rounding);
            let got: u64 = chosen.iter().map(|block| self.bytes(*block)).sum();
            self.settle(place(true), &chosen);
            if way.streamed > 0 {
                parts.push(Part { place: place(false), share: share.saturating_sub(got) });
            }
        }
        // In place before streamed, by device: the last part of a device is the one that travels.
        parts.sort_by_key(|part| (part.place.home, !part.place.in_place));
        parts
    }

    /// The blocks of a run of this many bytes.
    fn run(&self, shape: Shape, target: u64, rounding: RunRounding) -> Vec<usize> {
        let mut filled = 0;
        let mut belongs = |block: &usize| {
            let before = filled;
            filled += self.bytes(*block);
            match rounding {
                RunRounding::Down => filled <= target,
                RunRounding::Nearest => filled - filled.min(target) <= target.saturating_sub(before),
                RunRounding::Up => before < target,
            }
        };
        match shape {
            Shape::Head => self.left.iter().copied().take_while(&mut belongs).collect(),
            Shape::Tail | Shape::Spread => self.left.iter().rev().copied().take_while(&mut belongs).collect(),
            Shape::Runs(count) => self.runs(count, target.min(self.left_bytes())),
            Shape::Window => self.window(target, rounding),
        }
    }

    /// The run whose bytes are about nearest to the target, with the fewest blocks.
    fn window(&self, target: u64, rounding: RunRounding) -> Vec<usize> {
        let close = self.problem.smallest_free_block() / 4;
        let mut best = ((u64::MAX, usize::MAX), 0..0);
        for begin in 0..self.left.len() {
            let mut bytes = 0;
            for end in begin..self.left.len() {
                let before = bytes;
                bytes += self.bytes(self.left[end]);
                let allowed = match rounding {
                    RunRounding::Down => bytes <= target,
                    RunRounding::Nearest => true,
                    RunRounding::Up => bytes >= target,
                };
                let key = (bytes.abs_diff(target).saturating_sub(close), end + 1 - begin);
                if allowed && key < best.0 {
                    best = (key, begin..end + 1);
                }
                if before >= target {
                    break;
                }
            }
        }
        self.left[best.1].to_vec()
    }

    /// Chooses blocks of at most `target` bytes in this many runs, each at the end of an equal part of what is left.
    fn runs(&self, count: u8, target: u64) -> Vec<usize> {
        let left = self.left_bytes();
        let (share, count) = (target as f64 / left as f64, f64::from(count));
        let ideal = self.ideal(|_, so_far| {
            let part = so_far as f64 / left as f64 * count;
            let into_run = (part.fract() - (1.0 - share)) / share;
            target as f64 * (part.floor() + into_run.clamp(0.0, 1.0)) / count
        });
        self.spread(&ideal, target)
    }

    /// Blocks that are too large for a slot stay on the compute device.
    fn keep_large(&mut self) {
        let large: Vec<usize> =
            self.left.iter().copied().filter(|block| self.bytes(*block) > self.slot_bytes).collect();
        self.settle(Place { home: self.problem.compute(), in_place: true }, &large);
    }

    /// Picks the blocks that stay on the compute device, so that the bytes of the others come evenly
    /// over the time that the model computes.
    fn keep_spread(&mut self) {
        let compute = self.problem.compute();
        let left = self.left_bytes();
        let target = self.targets.share(compute).saturating_sub(self.kept_bytes).min(left);
        let progress = self.progress();
        let ideal = self.ideal(|at, so_far| so_far as f64 - (left - target) as f64 * progress[at]);
        let chosen = self.spread(&ideal, target);
        self.settle(Place { home: compute, in_place: true }, &chosen);
    }

    /// Picks the blocks that leave the compute device, spread likewise, where it is the compute device
    /// that takes what is left over.
    fn offload_spread(&mut self, parts: &[Part]) {
        let target = parts.iter().map(|part| part.share).sum::<u64>().min(self.left_bytes());
        let progress = self.progress();
        let ideal = self.ideal(|at, _| target as f64 * progress[at]);
        let leaving = self.spread(&ideal, target);
        let staying: Vec<usize> = self.left.iter().copied().filter(|b| !leaving.contains(b)).collect();
        self.settle(Place { home: self.problem.compute(), in_place: true }, &staying);
    }

    /// How much of a step's computing is done after each block that is left, 0 to 1; by bytes where
    /// times are not known.
    fn progress(&self) -> Vec<f64> {
        let blocks = &self.problem.request.blocks;
        let timed = blocks.iter().any(|block| block.compute_seconds > 0.0);
        let weight = |block: usize| match timed {
            true => blocks[block].compute_seconds * self.problem.slowness(self.places[block].home),
            false => blocks[block].bytes as f64,
        };
        let mut so_far = 0.0;
        let done: Vec<f64> = (0..blocks.len())
            .map(|block| {
                so_far += weight(block);
                so_far
            })
            .collect();
        let begin = match (self.pace, self.left.first()) {
            (Pace::Stretch, Some(first)) => done[*first] - weight(*first),
            _ => 0.0,
        };
        let end = match (self.pace, self.left.last()) {
            (Pace::Stretch, Some(last)) => done[*last],
            _ => so_far,
        };
        let part = |block: &usize| if end > begin { (done[*block] - begin) / (end - begin) } else { 0.0 };
        self.left.iter().map(part).collect()
    }

    /// The bytes that should be chosen after each block that is left, from its place and the bytes so far.
    fn ideal(&self, ideal: impl Fn(usize, u64) -> f64) -> Vec<f64> {
        let mut so_far = 0;
        let place = |(at, block): (usize, &usize)| {
            so_far += self.bytes(*block);
            ideal(at, so_far)
        };
        self.left.iter().enumerate().map(place).collect()
    }

    /// Chooses blocks of at most `target` bytes, less by under one block, that follow the ideal.
    fn spread(&self, ideal: &[f64], target: u64) -> Vec<usize> {
        let mut after = self.left_bytes();
        let mut chosen_bytes = 0;
        let mut chosen = Vec::new();
        for (block, ideal) in self.left.iter().zip(ideal) {
            let bytes = self.bytes(*block);
            after -= bytes;
            let fits = chosen_bytes + bytes <= target;
            // A block that all the later ones cannot make up for is taken, however early it comes.
            let must = chosen_bytes + after < target;
            let slack = 1e-9 * target as f64;
            let due = *ideal + slack >= chosen_bytes as f64 + bytes as f64 / 2.0;
            if fits && (must || due) {
                chosen_bytes += bytes;
                chosen.push(*block);
            }
        }
        chosen
    }
}
