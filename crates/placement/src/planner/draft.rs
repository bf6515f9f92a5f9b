//! From places to a plan: the bytes of every device, the ring, the prediction.

use meta::{ByteSize, DeviceId};

use super::layout::Place;
use super::problem::Problem;
use crate::error::PlanError;
use crate::plan::{BlockMode, BlockPlan, DeviceUse, Plan, Ring};
use crate::predictor::{BetweenSteps, Prediction, StepBlock, simulate};
use crate::resolve::Targets;

/// Places of blocks with what they come to; a plan but for the ring.
pub(super) struct Draft<'a> {
    problem: &'a Problem<'a>,
    pub(super) places: Vec<Place>,
    weights: Vec<(DeviceId, u64)>,
    /// Where blocks compute.
    works: Vec<DeviceId>,
    /// The largest streamed block; 0 if none is.
    pub(super) slot_bytes: u64,
    pub(super) streamed_bytes: u64,
    pub(super) streamed_count: usize,
    timeline: Timeline,
}

impl<'a> Draft<'a> {
    pub(super) fn new(problem: &'a Problem<'a>, places: Vec<Place>) -> Draft<'a> {
        let mut draft = Draft {
            problem,
            timeline: Timeline::new(problem, &places),
            places,
            weights: Vec::new(),
            works: vec![problem.compute()],
            slot_bytes: 0,
            streamed_bytes: 0,
            streamed_count: 0,
        };
        for (block, place) in problem.request.blocks.iter().zip(&draft.places) {
            match draft.weights.iter_mut().find(|(device, _)| *device == place.home) {
                Some((_, bytes)) => *bytes += block.bytes,
                None => draft.weights.push((place.home, block.bytes)),
            }
            if place.in_place && !draft.works.contains(&place.home) {
                draft.works.push(place.home);
            }
            if !place.in_place {
                draft.slot_bytes = draft.slot_bytes.max(block.bytes);
                draft.streamed_bytes += block.bytes;
                draft.streamed_count += 1;
            }
        }
        draft
    }

    /// The bytes that have left the compute device.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.problem.model_bytes - self.weight_bytes(self.problem.compute())
    }

    /// The most slots that make sense: a ring larger than what it streams would hold more than keeping those blocks does.
    pub(super) fn most_slots(&self) -> usize {
        match self.slot_bytes {
            0 => 0,
            slot => {
                usize::try_from(self.streamed_bytes / slot).unwrap_or(usize::MAX).min(self.streamed_count)
            }
        }
    }

    /// The fewest slots with which it runs.
    pub(super) fn fewest_slots(&self) -> usize {
        usize::from(self.slot_bytes > 0)
    }

    fn weight_bytes(&self, device: DeviceId) -> u64 {
        self.weights.iter().find(|(known, _)| *known == device).map_or(0, |(_, bytes)| *bytes)
    }

    /// What a ring of so many slots makes of a device's memory.
    pub(super) fn usage(&self, device: DeviceId, slots: usize) -> DeviceUse {
        let ring_bytes = if device == self.problem.compute() { self.slot_bytes * slots as u64 } else { 0 };
        let works = self.works.contains(&device);
        DeviceUse {
            device,
            weight_bytes: self.weight_bytes(device),
            asked_bytes: None,
            ring_bytes,
            working_bytes: if works { self.problem.request.working_bytes } else { 0 },
            disk_bytes: 0,
            available_bytes: self.problem.available(device),
        }
    }

    /// The devices other than the compute device that hold something, by id.
    fn donors(&self) -> impl Iterator<Item = DeviceId> + use<> {
        let homes = self.weights.iter().map(|(device, _)| *device);
        let mut donors: Vec<DeviceId> = homes.filter(|device| *device != self.problem.compute()).collect();
        donors.sort_unstable();
        donors.into_iter()
    }

    /// Whether every device but the compute device, and but this one, has the room.
    pub(super) fn fits_donors(&self, except: Option<DeviceId>) -> bool {
        self.donors().all(|device| Some(device) == except || check_room(&self.usage(device, 0)).is_ok())
    }

    /// Whether every device has the room.
    pub(super) fn check_rooms(&self, slots: usize) -> Result<(), PlanError> {
        check_room(&self.usage(self.problem.compute(), slots))?;
        self.donors().try_for_each(|device| check_room(&self.usage(device, 0)))
    }

    /// Bytes that travel to the compute device in a step.
    pub(super) fn arriving_bytes(&self) -> u64 {
        let travels =
            self.places.iter().zip(&self.problem.request.blocks).filter(|(place, _)| !place.in_place);
        travels.map(|(_, block)| block.bytes).sum()
    }

    pub(super) fn seconds(&self, slots: usize) -> f64 {
        self.timeline.predict(slots).seconds_per_step
    }

    /// No step can be shorter.
    pub(super) fn bound_s(&self) -> f64 {
        self.timeline.bound_s()
    }

    /// The plan with a ring of so many slots. `targets` is what the user wrote, where amounts were given.
    pub(super) fn into_plan(self, slots: usize, targets: Option<&Targets>) -> Plan {
        let problem = self.problem;
        let compute = problem.compute();
        let prediction = Prediction { known: problem.request.speeds_known, ..self.timeline.predict(slots) };
        let ring =
            (self.slot_bytes > 0).then_some(Ring { slots, slot_bytes: self.slot_bytes, room_bytes: 0 });
        let asked = |device: DeviceId| targets.map(|targets| targets.share(device));
        let in_use = |device: &DeviceId| {
            self.weights.iter().any(|(home, _)| home == device)
                || asked(*device).is_some_and(|bytes| bytes > 0)
        };
        let others = problem.devices.keys().copied().filter(|device| *device != compute).filter(in_use);
        let usage = |device| DeviceUse { asked_bytes: asked(device), ..self.usage(device, slots) };
        let devices = std::iter::once(compute).chain(others).map(usage).collect();
        let notes = self.notes(targets, ring, &prediction);
        let blocks = problem.request.blocks.iter().zip(&self.places).map(|(block, place)| BlockPlan {
            name: block.name.clone(),
            bytes: block.bytes,
            home: place.home,
            runs_on: if place.in_place { place.home } else { compute },
            mode: if place.in_place { BlockMode::Resident } else { BlockMode::Streamed },
            coded_bytes: None,
            from_disk: false,
        });
        let written = targets.iter().flat_map(|targets| &targets.shares).map(|(device, _)| *device);
        Plan {
            compute,
            order: problem.order,
            blocks: blocks.collect(),
            ring,
            reading: None,
            devices,
            prediction,
            notes,
            written: written.collect(),
        }
    }

    fn notes(&self, targets: Option<&Targets>, ring: Option<Ring>, prediction: &Prediction) -> Vec<String> {
        let mut notes = Vec::new();
        let (fixed, compute) = (self.problem.fixed_bytes, self.problem.compute());
        if targets.is_some_and(|targets| targets.share(compute) < fixed) {
            notes.push(format!("{} of small weights always stay on {compute}", ByteSize(fixed)));
        }
        let few = self.problem.request.ring.min_slots.min(self.streamed_count);
        let waits = prediction.stall_s > STALL_PART * prediction.seconds_per_step;
        if ring.is_some_and(|ring| ring.slots < few) && waits {
            notes.push(
                "the ring has fewer slots than it should: copies wait for streamed blocks to compute"
                    .to_owned(),
            );
        }
        notes
    }
}

/// Waiting for less than this part of a step is not waiting.
const STALL_PART: f64 = 0.005;

/// The error if a device has not got the room.
fn check_room(usage: &DeviceUse) -> Result<(), PlanError> {
    if usage.total_bytes() <= usage.available_bytes { Ok(()) } else { Err(no_room(usage)) }
}

/// What a device lacks, as an error.
pub(super) fn no_room(usage: &DeviceUse) -> PlanError {
    PlanError::NoRoom {
        device: usage.device,
        wanted: usage.total_bytes(),
        weights: usage.weight_bytes,
        ring: usage.ring_bytes,
        working: usage.working_bytes,
        available: usage.available_bytes,
        nearest: None,
    }
}

/// The seconds of a step under a plan of the same blocks.
pub(super) fn predict(problem: &Problem<'_>, plan: &Plan) -> Prediction {
    let place = |block: &BlockPlan| Place { home: block.home, in_place: block.mode == BlockMode::Resident };
    let places: Vec<Place> = plan.blocks.iter().map(place).collect();
    let mut timeline = Timeline::new(problem, &places);
    let decode_bytes_per_s = problem.request.coding.decode_bytes_per_s.unwrap_or(f64::INFINITY);
    for (step, block) in timeline.blocks.iter_mut().zip(&plan.blocks) {
        let Some(coded) = block.coded_bytes else { continue };
        step.decode_s = Some(block.bytes as f64 / decode_bytes_per_s);
        if let Some(copy_s) = &mut step.copy_s {
            *copy_s *= coded as f64 / block.bytes.max(1) as f64;
        }
    }
    timeline.read(problem, plan);
    let slots = plan.ring.map_or(1, |ring| ring.slots);
    Prediction { known: problem.request.speeds_known, ..timeline.predict(slots) }
}

/// What the blocks of a plan do in a step.
struct Timeline {
    blocks: Vec<StepBlock>,
    between: BetweenSteps,
}

impl Timeline {
    fn new(problem: &Problem<'_>, places: &[Place]) -> Timeline {
        let hop = |from: DeviceId, to: DeviceId| match from == to {
            true => 0.0,
            false => problem.request.activation_bytes as f64 / problem.bandwidth(from, to),
        };
        let mut activations_on = problem.compute();
        // Blocks have few homes, and each is looked up once.
        let mut speeds: Vec<(DeviceId, f64, f64)> = Vec::new();
        let steps = problem.request.blocks.iter().zip(places).map(|(block, place)| {
            let known = speeds.iter().find(|(home, ..)| *home == place.home).copied();
            let (_, slowness, bytes_per_s) = known.unwrap_or_else(|| {
                let home = place.home;
                let new = (home, problem.slowness(home), problem.bandwidth(home, problem.compute()));
                speeds.push(new);
                new
            });
            let runs_on = if place.in_place { place.home } else { problem.compute() };
            let hop_s = hop(activations_on, runs_on);
            activations_on = runs_on;
            StepBlock {
                compute_s: block.compute_seconds * if place.in_place { slowness } else { 1.0 },
                hop_s,
                copy_s: (!place.in_place).then_some(block.bytes as f64 / bytes_per_s),
                copy_slowdown: problem.request.copy_slowdown,
                decode_s: None,
            }
        });
        let blocks: Vec<StepBlock> = steps.collect();
        let outside = problem.request.outside;
        let streams = blocks.iter().any(|block| block.copy_s.is_some());
        let between = BetweenSteps {
            return_hop_s: hop(activations_on, problem.compute()),
            outside_s: if streams { outside.streaming_s } else { outside.resident_s },
        };
        Timeline { blocks, between }
    }

    /// Lets the copies of blocks that come from the disk take as long as the disk. While the link carries other blocks, it
    /// reads ahead.
    fn read(&mut self, problem: &Problem<'_>, plan: &Plan) {
        let disk_bytes: u64 =
            plan.blocks.iter().filter(|block| block.from_disk).map(|block| block.bytes).sum();
        let Some(disk) = problem.request.disk.as_ref().filter(|_| disk_bytes > 0) else { return };
        let blocks = || plan.blocks.iter().zip(&self.blocks);
        let others_s: f64 =
            blocks().filter(|(block, _)| !block.from_disk).filter_map(|(_, step)| step.copy_s).sum();
        let reading_s = (disk_bytes as f64 / disk.bytes_per_s - others_s).max(0.0);
        for (block, step) in plan.blocks.iter().zip(&mut self.blocks).filter(|(block, _)| block.from_disk) {
            let read_s = reading_s * block.bytes as f64 / disk_bytes as f64;
            step.copy_s = step.copy_s.map(|copy_s| copy_s.max(read_s));
        }
    }

    fn predict(&self, slots: usize) -> Prediction {
        simulate(&self.blocks, slots, self.between)
    }

    fn bound_s(&self) -> f64 {
        let copies: f64 = self.blocks.iter().filter_map(|block| block.copy_s).sum();
        let computing: f64 = self.blocks.iter().map(|block| block.compute_s + block.hop_s).sum();
        copies.max(computing + self.between.return_hop_s + self.between.outside_s)
    }
}
