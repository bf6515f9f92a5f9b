//! Which blocks make up the bytes that each device gets.
//!
//! A device that has a number never gets more than it, and less by under one block; what that leaves
//! over goes to one device, the taker. Where the taker has a number too, what one device misses is
//! offered to the next, so that the taker is within one block as well.

use std::collections::BTreeMap;

use meta::DeviceId;

use super::problem::Problem;
use crate::allocation::Order;
use crate::error::PlanError;
use crate::resolve::Targets;

/// The accelerators on which blocks run where they live, and how their blocks lie.
pub(super) type InPlace = BTreeMap<DeviceId, Shape>;

/// How the blocks of a device that runs its own lie in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Spread like streamed blocks: more hops, but copies for other blocks hide behind them.
    Spread,
    /// One run at the end of the model: the activations hop once.
    Run,
    /// Several runs of about the same size, evenly over the model: few hops, and copies for the blocks between them
    /// need to run ahead no further than one run.
    Runs(u8),
}

/// The home of every block.
pub(super) fn homes(
    problem: &Problem<'_>,
    targets: &Targets,
    in_place: &InPlace,
) -> Result<Vec<DeviceId>, PlanError> {
    let targets = settle_pinned(problem, targets);
    let mut layout = Layout::new(problem, &targets, in_place);
    layout.check_rooms()?;
    match problem.order {
        Order::Contiguous => layout.contiguous(),
        Order::Interleaved => layout.interleaved(),
    }
    Ok(layout.homes)
}

/// What must stay on the compute device stays, whatever was written: the taker gets that much less, and
/// if that is not enough, the others.
fn settle_pinned(problem: &Problem<'_>, targets: &Targets) -> Targets {
    let mut targets = targets.clone();
    let mut missing = problem.pinned_bytes.saturating_sub(targets.share(problem.compute()));
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

struct Layout<'a> {
    problem: &'a Problem<'a>,
    targets: &'a Targets,
    in_place: &'a InPlace,
    homes: Vec<DeviceId>,
    /// The blocks that have no home yet, in order of use.
    left: Vec<usize>,
    /// What devices so far missed of their numbers.
    missed: u64,
    /// Whether the next device may have what was missed: where the taker has a number too.
    carries: bool,
    taker: DeviceId,
}

impl<'a> Layout<'a> {
    fn new(problem: &'a Problem<'a>, targets: &'a Targets, in_place: &'a InPlace) -> Layout<'a> {
        let blocks = &problem.request.blocks;
        Layout {
            problem,
            targets,
            in_place,
            homes: vec![problem.compute(); blocks.len()],
            left: (0..blocks.len()).filter(|i| !blocks[*i].pinned).collect(),
            missed: 0,
            carries: targets.taker_is_numbered,
            taker: targets.taker,
        }
    }

    fn bytes(&self, block: usize) -> u64 {
        self.problem.request.blocks[block].bytes
    }

    fn left_bytes(&self) -> u64 {
        self.left.iter().map(|block| self.bytes(*block)).sum()
    }

    /// Room for weights on a device other than the compute device.
    fn room(&self, device: DeviceId) -> u64 {
        self.problem.available(device).saturating_sub(self.working(device))
    }

    fn working(&self, device: DeviceId) -> u64 {
        if self.in_place.contains_key(&device) { self.problem.request.working_bytes } else { 0 }
    }

    /// A share that no choice of blocks can fit is an error here, before rounding hides it.
    fn check_rooms(&self) -> Result<(), PlanError> {
        for (device, share) in &self.targets.shares {
            if *device != self.problem.compute() && *share > 0 && *share > self.room(*device) {
                let working = self.working(*device);
                return Err(PlanError::NoRoom {
                    device: *device,
                    wanted: *share + working,
                    weights: *share,
                    ring: 0,
                    working,
                    available: self.problem.available(*device),
                    nearest: None,
                });
            }
        }
        Ok(())
    }

    /// What devices so far missed and the next may have.
    fn carried(&self) -> u64 {
        let largest = self.problem.request.blocks.iter().map(|block| block.bytes).max().unwrap_or(0);
        if self.carries { self.missed.min(largest) } else { 0 }
    }

    /// What a device may get now: its number, with what others missed if it has the room. What others
    /// missed by more than a block, because they are full, is for the taker.
    fn allowance(&self, device: DeviceId) -> u64 {
        let share = self.targets.share(device);
        // Who was given nothing gets nothing.
        let wanted = if share == 0 { 0 } else { share + self.carried() };
        // Whether the compute device has the room depends on the ring too, and is checked at the end.
        match device == self.problem.compute() {
            true => wanted.saturating_sub(self.problem.pinned_bytes),
            false => wanted.min(self.room(device)),
        }
    }

    fn settle(&mut self, device: DeviceId, chosen: &[usize]) {
        let got: u64 = chosen.iter().map(|block| self.bytes(*block)).sum();
        for block in chosen {
            self.homes[*block] = device;
        }
        self.left.retain(|block| !chosen.contains(block));
        let pinned = if device == self.problem.compute() { self.problem.pinned_bytes } else { 0 };
        self.missed = (self.missed + self.targets.share(device)).saturating_sub(got + pinned);
    }

    /// Devices before the taker take from the front, those after it from the back.
    fn contiguous(&mut self) {
        let written: Vec<DeviceId> = self.targets.shares.iter().map(|(device, _)| *device).collect();
        let middle = written.iter().position(|device| *device == self.taker).unwrap_or(written.len());
        for device in &written[..middle] {
            let chosen = fill(self.left.iter().copied(), self.allowance(*device), |b| self.bytes(b));
            self.settle(*device, &chosen);
        }
        for device in written[middle..].iter().skip(1).rev() {
            let chosen = fill(self.left.iter().rev().copied(), self.allowance(*device), |b| self.bytes(b));
            self.settle(*device, &chosen);
        }
        self.settle_rest();
    }

    fn interleaved(&mut self) {
        let compute = self.problem.compute();
        let mut donors: Vec<DeviceId> = self.targets.shares.iter().map(|(device, _)| *device).collect();
        donors.retain(|d| *d != compute && (self.targets.share(*d) > 0 || *d == self.taker));
        // By id, so that the order of entries matters only where the user asked that it should.
        donors.sort_unstable();
        self.take_runs(&mut donors);

        if donors.is_empty() {
            self.taker = compute;
        } else if self.taker == compute {
            self.offload_spread(&donors);
        } else {
            self.keep_spread(compute);
        }
        let others = donors.into_iter().filter(|device| *device != self.taker);
        for device in others.collect::<Vec<_>>() {
            let left = self.left_bytes();
            let target = self.allowance(device).min(left);
            let share = |so_far: u64| target as f64 * (so_far as f64 / left as f64);
            let ideal = self.ideal(|_, so_far| share(so_far));
            let chosen = self.spread(&ideal, target);
            self.settle(device, &chosen);
        }
        self.settle_rest();
    }

    /// Gives devices that compute in one run their blocks from the end of the model, and takes them
    /// off the list of donors.
    fn take_runs(&mut self, donors: &mut Vec<DeviceId>) {
        let run_count = |device: &DeviceId| match self.in_place.get(device) {
            Some(Shape::Run) => Some((*device, 1)),
            Some(Shape::Runs(count)) => Some((*device, *count)),
            Some(Shape::Spread) | None => None,
        };
        let runs: Vec<(DeviceId, u8)> = donors.iter().filter_map(run_count).collect();
        let mut waiting: u64 = self.targets.shares.iter().map(|(_, share)| share).sum();
        waiting -= self.problem.pinned_bytes.min(waiting);
        for (device, count) in runs.into_iter().rev() {
            waiting -= self.targets.share(device).min(waiting);
            let is_taker = device == self.taker;
            let chosen = if count > 1 {
                let left = self.left_bytes();
                let target = if is_taker { left.saturating_sub(waiting) } else { self.allowance(device) };
                self.runs(count, target.min(left))
            } else if is_taker {
                // The taker's run begins where what is left fits the devices that are still to come.
                let mut left = self.left_bytes();
                let beyond = |block: &usize| {
                    let takes = left > waiting;
                    left = left.saturating_sub(self.bytes(*block));
                    takes
                };
                self.left.iter().rev().copied().take_while(beyond).collect()
            } else {
                fill(self.left.iter().rev().copied(), self.allowance(device), |b| self.bytes(b))
            };
            self.settle(device, &chosen);
            donors.retain(|donor| *donor != device);
            if device == self.taker {
                let host = donors.iter().copied().find(|donor| *donor == DeviceId::CPU);
                self.taker = host.unwrap_or(self.problem.compute());
                // It has taken what was missed so far, and its successor has a number.
                (self.missed, self.carries) = (0, true);
            }
        }
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

    /// Picks the blocks that stay on the compute device, so that the bytes of the others come evenly
    /// over the time that the model computes.
    fn keep_spread(&mut self, compute: DeviceId) {
        let left = self.left_bytes();
        let target = self.allowance(compute).min(left);
        let progress = self.progress();
        let ideal = self.ideal(|at, so_far| so_far as f64 - (left - target) as f64 * progress[at]);
        let chosen = self.spread(&ideal, target);
        self.settle(compute, &chosen);
    }

    /// Picks the blocks that leave the compute device, spread likewise, where it is the compute device
    /// that takes what is left over.
    fn offload_spread(&mut self, donors: &[DeviceId]) {
        let shares: u64 = donors.iter().map(|device| self.targets.share(*device)).sum();
        let target = (shares + self.carried()).min(self.left_bytes());
        let missed = self.missed;
        let progress = self.progress();
        let ideal = self.ideal(|at, _| target as f64 * progress[at]);
        let leaving = self.spread(&ideal, target);
        let staying: Vec<usize> = self.left.iter().copied().filter(|b| !leaving.contains(b)).collect();
        self.settle(self.problem.compute(), &staying);
        self.missed = missed;
    }

    fn settle_rest(&mut self) {
        let rest = self.left.clone();
        self.settle(self.taker, &rest);
    }

    /// How much of a step's computing is done after each block that is left, 0 to 1; by bytes where
    /// times are not known.
    fn progress(&self) -> Vec<f64> {
        let blocks = &self.problem.request.blocks;
        let timed = blocks.iter().any(|block| block.compute_seconds > 0.0);
        let weight = |i: usize| if timed { blocks[i].compute_seconds } else { blocks[i].bytes as f64 };
        let mut so_far = 0.0;
        let done: Vec<f64> = (0..blocks.len())
            .map(|i| {
                so_far += weight(i);
                so_far
            })
            .collect();
        self.left.iter().map(|block| if so_far > 0.0 { done[*block] / so_far } else { 0.0 }).collect()
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

/// The first blocks that fit together.
fn fill(blocks: impl Iterator<Item = usize>, allowance: u64, bytes: impl Fn(usize) -> u64) -> Vec<usize> {
    let mut filled = 0;
    let fits = |block: &usize| {
        filled += bytes(*block);
        filled <= allowance
    };
    blocks.take_while(fits).collect()
}
