//! Predicts the seconds of one step by playing the pipeline: one copy stream that runs ahead in order of
//! use and over step boundaries, a ring of slots, and computing that waits for its weights.

/// What one block does in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepBlock {
    /// Seconds it computes, wherever it runs.
    pub compute_s: f64,
    /// Seconds for the activations to reach the device it runs on; 0 if they are there.
    pub hop_s: f64,
    /// Seconds to copy its weights into a slot of the ring; none if they are where it runs.
    pub copy_s: Option<f64>,
}

/// The predicted seconds of one step, once the pipeline has settled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Whether the speeds it comes from were measured; if not, its numbers are for comparing plans and not for people.
    pub known: bool,
    /// The step.
    pub seconds_per_step: f64,
    /// Computing in it.
    pub compute_s: f64,
    /// Moving activations between devices in it.
    pub hop_s: f64,
    /// Waiting for weights in it.
    pub stall_s: f64,
    /// What the copy stream is busy; most of it hides behind computing.
    pub copy_s: f64,
    /// The same, block by block.
    pub blocks: Vec<BlockTime>,
}

impl Prediction {
    /// No step can be shorter: the longer of computing (with activations moving) and copying.
    pub fn bound_s(&self) -> f64 {
        self.copy_s.max(self.compute_s + self.hop_s)
    }
}

/// The predicted seconds of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockTime {
    /// Computing.
    pub compute_s: f64,
    /// Waiting for the activations to arrive.
    pub hop_s: f64,
    /// Copying its weights.
    pub copy_s: f64,
    /// Waiting for its weights after everything else was ready.
    pub stall_s: f64,
}

/// Steps before a repeat is believed: the start of a run differs from its middle.
const SETTLING_STEPS: usize = 4;
/// Steps after which the mean of the second half is taken, for a pipeline that repeats every few steps
/// rather than every step.
const MAX_STEPS: usize = 64;

/// Plays steps until they repeat. `return_hop_s` moves the activations back to the compute device at
/// the end of a step; `slots` counts only where something is copied, and then 0 means 1.
pub fn simulate(blocks: &[StepBlock], slots: usize, return_hop_s: f64) -> Prediction {
    let mut pipeline = Pipeline::new(slots);
    let mut before = f64::NAN;
    let mut steps = 0;
    let mut counted = 0;
    let mut stalls = vec![0.0; blocks.len()];
    let mut seconds = 0.0;
    while steps < MAX_STEPS {
        let mut step_stalls = vec![0.0; blocks.len()];
        let step = pipeline.step(blocks, return_hop_s, &mut step_stalls);
        steps += 1;
        let repeats = steps > SETTLING_STEPS && (step - before).abs() <= 1e-9 * step;
        if repeats {
            (stalls, seconds, counted) = (step_stalls, step, 1);
            break;
        }
        if steps > MAX_STEPS / 2 {
            stalls.iter_mut().zip(&step_stalls).for_each(|(sum, stall)| *sum += stall);
            seconds += step;
            counted += 1;
        }
        before = step;
    }
    let counted = f64::from(counted.max(1));
    let times = blocks.iter().zip(&stalls).map(|(block, stall)| BlockTime {
        compute_s: block.compute_s,
        hop_s: block.hop_s,
        copy_s: block.copy_s.unwrap_or(0.0),
        stall_s: stall / counted,
    });
    Prediction {
        known: true,
        seconds_per_step: seconds / counted,
        compute_s: blocks.iter().map(|block| block.compute_s).sum(),
        hop_s: blocks.iter().map(|block| block.hop_s).sum::<f64>() + return_hop_s,
        stall_s: stalls.iter().sum::<f64>() / counted,
        // The sum of nothing is minus zero.
        copy_s: blocks.iter().filter_map(|block| block.copy_s).sum::<f64>() + 0.0,
        blocks: times.collect(),
    }
}

/// Where the two streams are.
struct Pipeline {
    /// When the last computing ends.
    compute_end: f64,
    /// When the last copy ends.
    copy_end: f64,
    /// When each slot is free again; copies take the slots in turn.
    free_at: Vec<f64>,
    next_slot: usize,
}

impl Pipeline {
    fn new(slots: usize) -> Pipeline {
        Pipeline { compute_end: 0.0, copy_end: 0.0, free_at: vec![0.0; slots.max(1)], next_slot: 0 }
    }

    /// Plays one step and returns its length. Copies and computing are both in order of use, so each
    /// block's times follow from those before it.
    fn step(&mut self, blocks: &[StepBlock], return_hop_s: f64, stalls: &mut [f64]) -> f64 {
        let start = self.compute_end;
        for (block, stall) in blocks.iter().zip(stalls) {
            let ready = self.compute_end + block.hop_s;
            let Some(copy_s) = block.copy_s else {
                self.compute_end = ready + block.compute_s;
                continue;
            };
            let slot = self.next_slot;
            self.copy_end = self.copy_end.max(self.free_at[slot]) + copy_s;
            *stall = (self.copy_end - ready).max(0.0);
            self.compute_end = ready + *stall + block.compute_s;
            self.free_at[slot] = self.compute_end;
            self.next_slot = (slot + 1) % self.free_at.len();
        }
        self.compute_end += return_hop_s;
        self.compute_end - start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESIDENT: StepBlock = StepBlock { compute_s: 1.0, hop_s: 0.0, copy_s: None };

    fn streamed(copy_s: f64) -> StepBlock {
        StepBlock { copy_s: Some(copy_s), ..RESIDENT }
    }

    #[track_caller]
    fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 1e-6 * want, "{got} is not {want}");
    }

    #[test]
    fn resident_blocks_take_their_computing() {
        let prediction = simulate(&[RESIDENT; 20], 2, 0.0);
        close(prediction.seconds_per_step, 20.0);
        assert_eq!(prediction.stall_s, 0.0);
    }

    #[test]
    fn equal_streamed_blocks_take_the_longer_of_copying_and_computing() {
        for copy_s in [0.1, 0.5, 0.9, 1.0, 1.1, 2.0, 7.0] {
            for slots in [2, 3, 5] {
                let prediction = simulate(&[streamed(copy_s); 20], slots, 0.0);
                close(prediction.seconds_per_step, 20.0 * copy_s.max(1.0));
                close(prediction.seconds_per_step, 20.0 + prediction.stall_s);
            }
        }
    }

    #[test]
    fn a_single_slot_cannot_overlap_a_copy_with_its_own_block() {
        close(simulate(&[streamed(1.0); 20], 1, 0.0).seconds_per_step, 40.0);
        close(simulate(&[streamed(1.0), RESIDENT], 1, 0.0).seconds_per_step, 2.0);
    }

    #[test]
    fn a_contiguous_tail_cannot_hide_what_interleaving_hides() {
        let tail: Vec<StepBlock> = (0..20).map(|i| if i < 10 { RESIDENT } else { streamed(2.0) }).collect();
        let spread: Vec<StepBlock> =
            (0..20).map(|i| if i % 2 == 0 { RESIDENT } else { streamed(2.0) }).collect();
        close(simulate(&spread, 2, 0.0).seconds_per_step, 20.0);
        // Two copies are there when the tail begins at 10, and then the copy stream has no slot until
        // the first of them has computed, at 11. The other eight copies take 16 s from there, and the
        // last of them computes for 1 s.
        let tail = simulate(&tail, 2, 0.0);
        close(tail.seconds_per_step, 11.0 + 8.0 * 2.0 + 1.0);
        assert!(tail.stall_s > 5.0);
    }

    #[test]
    fn hops_are_paid_once_each() {
        let away = StepBlock { hop_s: 0.25, ..RESIDENT };
        let prediction = simulate(&[RESIDENT, away, RESIDENT], 2, 0.5);
        close(prediction.seconds_per_step, 3.75);
        close(prediction.hop_s, 0.75);
    }

    #[test]
    fn no_blocks_take_no_time() {
        assert_eq!(simulate(&[], 2, 0.0).seconds_per_step, 0.0);
    }

    #[test]
    fn a_step_is_its_computing_its_hops_and_its_stalls() {
        let blocks: Vec<StepBlock> = (0..17u32)
            .map(|i| StepBlock {
                compute_s: 0.3 + f64::from(i * 7 % 5),
                hop_s: 0.1 * f64::from(i % 3),
                copy_s: (i % 3 != 1).then_some(0.2 + f64::from(i * 5 % 7)),
            })
            .collect();
        for slots in 1..6 {
            let p = simulate(&blocks, slots, 0.2);
            close(p.seconds_per_step, p.compute_s + p.hop_s + p.stall_s);
            assert!(p.seconds_per_step >= p.bound_s() * (1.0 - 1e-9));
            close(p.blocks.iter().map(|b| b.stall_s).sum::<f64>(), p.stall_s);
        }
    }
}
