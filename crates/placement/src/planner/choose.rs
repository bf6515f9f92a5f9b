//! Streams from another accelerator, or computes where the weights live: whichever is predicted faster.

use meta::DeviceId;

use super::assemble::{Slots, assemble};
use super::layout::{InPlace, Shape};
use super::problem::Problem;
use crate::error::PlanError;
use crate::plan::Plan;
use crate::request::RemotePolicy;
use crate::resolve::Targets;

/// How many runs of blocks are tried on an accelerator that computes its own.
const RUN_COUNTS: &[u8] = &[2, 3, 4, 6, 8, 12];

/// The fastest plan for these bytes per device, or why there is none.
pub(super) fn place(problem: &Problem<'_>, targets: &Targets, slots: Slots) -> Result<Plan, PlanError> {
    // The taker can get a block although its share is nothing.
    let remote = |device: &DeviceId| targets.share(*device) > 0 || *device == targets.taker;
    let remotes: Vec<DeviceId> = problem.other_accelerators().filter(remote).collect();
    let mut choice = Choice { problem, targets, slots, best: None };
    let all = |shape: Shape| remotes.iter().map(|device| (*device, shape)).collect::<InPlace>();
    if problem.request.remote != RemotePolicy::InPlace || remotes.is_empty() {
        choice.try_out(&InPlace::new());
    }
    if problem.request.remote != RemotePolicy::Stream && !remotes.is_empty() {
        choice.try_out(&all(Shape::Run));
        // Where something is streamed too, one long run leaves the link idle once the ring is full.
        let streams = targets.share(DeviceId::CPU) > 0 || targets.taker == DeviceId::CPU;
        let counts = if streams { RUN_COUNTS } else { &[] };
        counts.iter().for_each(|count| choice.try_out(&all(Shape::Runs(*count))));
        choice.try_out(&all(Shape::Spread));
    }
    if problem.request.remote == RemotePolicy::Auto && remotes.len() > 1 {
        choice.improve(&remotes);
    }
    let (_, result) = choice.best.expect("every policy tries something");
    result
}

struct Choice<'a> {
    problem: &'a Problem<'a>,
    targets: &'a Targets,
    slots: Slots,
    best: Option<(InPlace, Result<Plan, PlanError>)>,
}

impl Choice<'_> {
    /// Keeps a way to use the accelerators if it is the first that fits or clearly the fastest so far.
    fn try_out(&mut self, in_place: &InPlace) {
        let result = assemble(self.problem, self.targets, in_place, self.slots);
        let better = match (&self.best, &result) {
            (None, _) | (Some((_, Err(_))), Ok(_)) => true,
            (Some((_, Ok(best))), Ok(plan)) => {
                plan.prediction.seconds_per_step < best.prediction.seconds_per_step * (1.0 - 1e-6)
            }
            (Some(_), Err(_)) => false,
        };
        if better {
            self.best = Some((in_place.clone(), result));
        }
    }

    /// Changes one accelerator at a time from the best so far.
    fn improve(&mut self, remotes: &[DeviceId]) {
        for device in remotes {
            for shape in [None, Some(Shape::Run), Some(Shape::Spread)] {
                let Some((mut in_place, _)) = self.best.clone() else { return };
                in_place.remove(device);
                in_place.extend(shape.map(|shape| (*device, shape)));
                self.try_out(&in_place);
            }
        }
    }
}
