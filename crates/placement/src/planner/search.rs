//! The nearest allocation that fits, for those whose own does not.

use std::collections::BTreeSet;

use meta::DeviceId;

use super::choose::any_fit;
use super::layout::Ways;
use super::offload::{automatic, donor_targets, fastest_first, host_donor};
use super::problem::Problem;
use crate::allocation::Amounts;
use crate::language::AllocationText;
use crate::request::PlanRequest;
use crate::resolve::resolve;

/// How many sizes of offload are tried at most between nothing and everything.
const MAX_TRIES: u64 = 128;

/// The nearest allocation that fits, checked by planning with it.
pub(super) fn nearest(problem: &Problem<'_>) -> Option<String> {
    let allocation = problem.request.allocation.allocation();
    let mut donors: Vec<DeviceId> = match &allocation.amounts {
        Amounts::Normal { donors, .. } => donors.clone(),
        _ => Vec::new(),
    };
    let mut asked = problem.free_bytes();
    if let Ok(Some(targets)) = resolve(&problem.request.allocation, &problem.scale()) {
        donors = targets.shares.iter().map(|(device, _)| *device).collect();
        asked = problem.model_bytes - targets.share(problem.compute()).max(problem.fixed_bytes);
    } else if let Amounts::Normal { virtual_vram_bytes, .. } = &allocation.amounts {
        asked = asked.min(*virtual_vram_bytes);
    }
    donors.extend(host_donor(problem).into_iter().chain(fastest_first(problem)));
    let mut seen = BTreeSet::from([problem.compute()]);
    donors.retain(|device| seen.insert(*device));

    let all = offloads(problem);
    let (less, more): (Vec<u64>, Vec<u64>) = all.into_iter().partition(|offload| *offload < asked);
    // What was asked, then more of it, which is what frees the compute device; then less, from the top.
    let tries = std::iter::once(asked).chain(more).chain(less.into_iter().rev());
    let tries = tries.filter_map(|offload| {
        let targets = donor_targets(problem, offload, &donors, &Ways::new());
        any_fit(problem, &targets)
    });
    // Last, whatever automatic mode finds, which keeps room to work in on other accelerators; its
    // numbers if they say enough, else its name.
    let last = std::iter::once_with(|| automatic(problem).ok()).flatten();
    let mut texts = tries.chain(last).map(|plan| plan.to_allocation().to_string()).chain(["auto".to_owned()]);
    texts.find(|text| fits(problem, text))
}

/// Whether a text gives a plan for this request.
fn fits(problem: &Problem<'_>, text: &str) -> bool {
    let Ok(allocation) = AllocationText::parse(text) else { return false };
    let request = PlanRequest { allocation, ..problem.request.clone() };
    Problem::new(&request).and_then(|problem| super::decide_in_memory(&problem)).is_ok()
}

/// Offloads up to everything that can move, in steps of the smallest block.
fn offloads(problem: &Problem<'_>) -> Vec<u64> {
    let all = problem.free_bytes();
    let step = problem.smallest_free_block().max(all / MAX_TRIES).max(1);
    let steps = (0..).map(|n: u64| n * step).take_while(|offload| *offload < all);
    steps.chain([all]).collect()
}
