//! Scaled dot-product attention in memory linear in the number of keys.
//!
//! The queries of a head are cut into tasks; a task takes the keys tile by tile and keeps, for each
//! query, the largest score so far, the sum of exponentials and the weighted sum of values relative to it
//! (the "online softmax"). Tasks depend only on the shapes and each takes its keys in order, so results
//! do not depend on the number of threads.

mod panel;
mod problem;
mod task;
mod turn;
mod vector;

use std::sync::atomic::{AtomicUsize, Ordering};

use device::op::{self, AttentionMask};
use device::{Operand, Result};

use crate::access::Access;
use crate::stop::Tasks;
use problem::{Mask, OutputRows, Problem, Rows};
use vector::Portable;

/// Runs attention. A query that sees no key, because of a causal mask with more queries than keys or a
/// mask of minus infinity, gets zeros.
pub(crate) fn attention(call: &op::Attention, access: &Access<'_>) -> Result<()> {
    let (q, k) = (&call.q, &call.k);
    let repeated = match &call.mask {
        AttentionMask::Additive(mask) => Some(mask.broadcast([q.dim(0), q.dim(2), q.dim(1), k.dim(1)])?),
        AttentionMask::None | AttentionMask::Causal => None,
    };
    let mask = match (&repeated, &call.mask) {
        (Some(mask), _) => {
            let strides = [0, 1, 2, 3].map(|axis| mask.strides()[axis]);
            Mask::Additive { numbers: access.values(mask)?, strides }
        }
        (None, AttentionMask::Causal) => Mask::Causal,
        (None, _) => Mask::None,
    };
    let strides = |operand: &Operand| [0, 1, 2].map(|axis| operand.strides()[axis]);
    let problem = Problem {
        q: Rows { numbers: access.values(q)?, strides: strides(q) },
        k: Rows { numbers: access.values(k)?, strides: strides(k) },
        v: Rows { numbers: access.values(&call.v)?, strides: strides(&call.v) },
        out: OutputRows::new(access.output(&call.out)?, strides(&call.out)),
        mask,
        scale: call.scale,
        soft_cap: call.soft_cap,
        batch: q.dim(0),
        queries: q.dim(1),
        keys: k.dim(1),
        heads: q.dim(2),
        groups: k.dim(2),
        size: q.dim(3),
    };
    solve(&problem, InstructionSet::widest());
    Ok(())
}

/// The instruction sets that there are kernels for.
#[derive(Clone, Copy, Debug)]
enum InstructionSet {
    /// What every processor of the architecture has.
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl InstructionSet {
    /// All that the processor has, the widest first.
    fn available() -> Vec<InstructionSet> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2 && is_x86_feature_detected!("avx512f") {
                found.push(InstructionSet::Avx512);
            }
            if avx2 {
                found.push(InstructionSet::Avx2);
            }
        }
        found.push(InstructionSet::Baseline);
        found
    }

    fn widest() -> InstructionSet {
        InstructionSet::available()[0]
    }
}

/// Works on the tasks of a problem with all threads. The processor must have the instruction set.
fn solve(problem: &Problem<'_>, set: InstructionSet) {
    let tasks = problem.task_count();
    let taken = AtomicUsize::new(0);
    let job = Tasks::of_this_job();
    let next = || Some(taken.fetch_add(1, Ordering::Relaxed)).filter(|task| *task < tasks);
    let next = Next { next: &next, job: &job };
    rayon::scope(|scope| {
        for _ in 1..rayon::current_num_threads().min(tasks) {
            scope.spawn(|_| work(problem, set, &next));
        }
        work(problem, set, &next);
    });
}

/// Gives out the tasks of a problem, and says whether they are still wanted.
struct Next<'a> {
    next: &'a (dyn Fn() -> Option<usize> + Sync),
    job: &'a Tasks,
}

impl Next<'_> {
    fn task(&self) -> Option<usize> {
        if self.is_cancelled() { None } else { (self.next)() }
    }

    /// A task of many keys takes seconds, so it asks after every tile of them.
    fn is_cancelled(&self) -> bool {
        self.job.is_cancelled()
    }
}

fn work(problem: &Problem<'_>, set: InstructionSet, next: &Next<'_>) {
    match set {
        // SAFETY: the baseline needs nothing; each task is given out once.
        InstructionSet::Baseline => unsafe { task::work::<Portable, 4, 2>(problem, next) },
        // SAFETY: the processor has the instruction set; each task is given out once.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => unsafe { work_avx2(problem, next) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => unsafe { work_avx512(problem, next) },
    }
}

/// # Safety
/// Each task is given out once.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn work_avx2(problem: &Problem<'_>, next: &Next<'_>) {
    // Eight sums keep both multipliers busy, and with more the sixteen registers do not suffice.
    // SAFETY: the function has the instruction set, and the caller vouches for the tasks.
    unsafe { task::work::<vector::Avx2, 4, 2>(problem, next) }
}

/// # Safety
/// Each task is given out once.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f")]
unsafe fn work_avx512(problem: &Problem<'_>, next: &Next<'_>) {
    // SAFETY: the function has the instruction set, and the caller vouches for the tasks.
    unsafe { task::work::<vector::Avx512, 8, 2>(problem, next) }
}

#[cfg(test)]
mod tests;
