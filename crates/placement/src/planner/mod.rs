//! The planner: from a request to a plan, in four rooms.
//!
//! 1. `problem` checks the request and gives it one order, so that the order of the device list cannot
//!    matter.
//! 2. The amounts become bytes per device: `resolve` for what the user wrote, `offload` for normal and
//!    automatic mode, whose bytes depend on the room there is.
//! 3. `layout` picks which blocks make up those bytes, in runs with `contiguous`; `exchange` brings them nearer to what
//!    was asked.
//! 4. `draft` counts every device and predicts; `choose` repeats 3 and 4 for the ways to use other
//!    accelerators, picks the ring and keeps the fastest. `search` finds what fits where the user's amounts do not.
//!    `disk` does all of that again for more than the host has room for, where nothing else does. `coding` then says which
//!    of the streamed blocks travel coded, and `kept` whether blocks that stay are kept so.

mod choose;
mod coding;
mod contiguous;
mod disk;
mod draft;
mod exchange;
mod kept;
mod layout;
mod offload;
mod problem;
mod search;

use crate::allocation::Amounts;
use crate::error::PlanError;
use crate::plan::Plan;
use crate::predictor::Prediction;
use crate::request::PlanRequest;
use crate::resolve::{check_devices, resolve};
use choose::Slots;
use layout::Rounding;
use problem::Problem;

/// Decides where every block of a model goes.
///
/// The plan depends on nothing but the request, and not on the order of its device list. It fits, or the
/// error says which device lacks how much and which allocation would fit.
pub fn plan(request: &PlanRequest) -> Result<Plan, PlanError> {
    let problem = Problem::new(request)?;
    check_devices(&request.allocation, &problem.scale())?;
    let decided = disk::decide(&problem).map(|plan| coding::code(&problem, plan, 0));
    match kept::mix(&problem, decided) {
        Err(PlanError::NoRoom { device, wanted, weights, ring, working, available, nearest: None }) => {
            let nearest = search::nearest(&problem);
            Err(PlanError::NoRoom { device, wanted, weights, ring, working, available, nearest })
        }
        result => result,
    }
}

/// The seconds of a step under a plan that is in force, for a request of the same blocks that may have other times.
///
/// # Errors
/// The request is not one for this plan, or not one at all.
pub fn predict(request: &PlanRequest, plan: &Plan) -> Result<Prediction, PlanError> {
    let problem = Problem::new(request)?;
    Ok(draft::predict(&problem, plan))
}

/// The plan without the disk, and without the search for what would fit instead. The allocation's devices have been
/// checked.
fn decide_in_memory(problem: &Problem<'_>) -> Result<Plan, PlanError> {
    match &problem.request.allocation.allocation().amounts {
        Amounts::Automatic => offload::automatic(problem),
        Amounts::Normal { virtual_vram_bytes, donors } => {
            offload::normal(problem, *virtual_vram_bytes, donors)
        }
        Amounts::Bytes(_) | Amounts::Percent(_) | Amounts::Fraction(_) => {
            let targets = resolve(&problem.request.allocation, &problem.scale())?;
            let targets = targets.expect("only normal and automatic mode resolve to no targets");
            let trimmed = problem.trim_note();
            let place = |slots, rounding| choose::place(problem, &targets, slots, rounding);
            let mut plan = place(Slots::Enough, Rounding::Nearest)
                .or_else(|_| place(Slots::Enough, Rounding::Down))
                .or_else(|_| place(Slots::One, Rounding::Nearest))
                .or_else(|_| place(Slots::One, Rounding::Down))?;
            plan.notes.extend(trimmed);
            Ok(plan)
        }
    }
}
