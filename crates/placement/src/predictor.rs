//! Predicts the seconds of one step by playing the pipeline: one copy stream that runs ahead in order of
//! use and over step boundaries, a ring of slots, and computing that waits for its weights. Copies may be slower while
//! something is computed, since both share the device's memory.

use std::collections::VecDeque;

/// What one block does in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepBlock {
    /// Seconds it computes, wherever it runs.
    pub compute_s: f64,
    /// Seconds for the activations to reach the device it runs on; 0 if they are there.
    pub hop_s: f64,
    /// Seconds to copy its weights into a slot of the ring while nothing is computed; none if they are where it runs.
    pub copy_s: Option<f64>,
    /// How many times as long that takes while something is computed; under 1 is as long.
    pub copy_slowdown: f64,
    /// Seconds to decode its weights where it runs, after which their slot is free again; none if they are not coded.
    pub decode_s: Option<f64>,
}

/// What a step has between its last block and the first of the next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BetweenSteps {
    /// Moving the activations back to the compute device.
    pub return_hop_s: f64,
    /// Work outside of the model: guidance, the sampler, values that come from the host and go back. Copies go on
    /// meanwhile.
    pub outside_s: f64,
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
    /// Decoding weights in it, beside which nothing is computed.
    pub decode_s: f64,
    /// Moving activations between devices in it.
    pub hop_s: f64,
    /// What it does outside of the model's blocks.
    pub outside_s: f64,
    /// Waiting for weights in it.
    pub stall_s: f64,
    /// What the copy stream is busy; most of it hides behind computing.
    pub copy_s: f64,
    /// The same, block by block.
    pub blocks: Vec<BlockTime>,
}

impl Prediction {
    /// No step can be shorter: the longer of copying and of all that the device does one after the other.
    pub fn bound_s(&self) -> f64 {
        self.copy_s.max(self.compute_s + self.decode_s + self.hop_s + self.outside_s)
    }
}

/// The predicted seconds of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockTime {
    /// Computing.
    pub compute_s: f64,
    /// Decoding its weights.
    pub decode_s: f64,
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

/// Plays steps until they repeat. `slots` counts only where something is copied, and then 0 means 1.
pub fn simulate(blocks: &[StepBlock], slots: usize, between: BetweenSteps) -> Prediction {
    let slowed = blocks.iter().any(|block| block.copy_s.is_some() && block.copy_slowdown > 1.0);
    let mut pipeline = Pipeline::new(slots, slowed);
    let mut before = f64::NAN;
    let mut steps = 0;
    let mut counted = 0;
    let mut stalls = vec![0.0; blocks.len()];
    let mut seconds = 0.0;
    while steps < MAX_STEPS {
        let mut step_stalls = vec![0.0; blocks.len()];
        let step = pipeline.step(blocks, between, &mut step_stalls);
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
        decode_s: block.decode_s.unwrap_or(0.0),
        hop_s: block.hop_s,
        copy_s: block.copy_s.unwrap_or(0.0),
        stall_s: stall / counted,
    });
    Prediction {
        known: true,
        seconds_per_step: seconds / counted,
        compute_s: blocks.iter().map(|block| block.compute_s).sum(),
        // The sum of nothing is minus zero.
        decode_s: blocks.iter().filter_map(|block| block.decode_s).sum::<f64>() + 0.0,
        hop_s: blocks.iter().map(|block| block.hop_s).sum::<f64>() + between.return_hop_s,
        outside_s: between.outside_s,
        stall_s: stalls.iter().sum::<f64>() / counted,
        copy_s: blocks.iter().filter_map(|block| block.copy_s).sum::<f64>() + 0.0,
        blocks: times.collect(),
    }
}

/// Where the two streams are.
struct Pipeline {
    /// When the last computing ends.
    compute_end: f64,
    /// When nothing was computed before that, from when and until when, as far as copies to come may have that time; kept only
    /// where some are slower beside computing.
    idle: VecDeque<(f64, f64)>,
    slowed: bool,
    /// When the last copy ends.
    copy_end: f64,
    /// When each slot is free again; copies take the slots in turn.
    free_at: Vec<f64>,
    next_slot: usize,
}

impl Pipeline {
    fn new(slots: usize, slowed: bool) -> Pipeline {
        Pipeline {
            compute_end: 0.0,
            idle: VecDeque::new(),
            slowed,
            copy_end: 0.0,
            free_at: vec![0.0; slots.max(1)],
            next_slot: 0,
        }
    }

    /// Plays one step and returns its length. Copies and computing are both in order of use, so each
    /// block's times follow from those before it.
    fn step(&mut self, blocks: &[StepBlock], between: BetweenSteps, stalls: &mut [f64]) -> f64 {
        let start = self.compute_end;
        for (block, stall) in blocks.iter().zip(stalls) {
            let ready = self.compute_end + block.hop_s;
            self.rest(ready);
            let decode_s = block.decode_s.unwrap_or(0.0);
            let Some(copy_s) = block.copy_s else {
                self.compute_end = ready + decode_s + block.compute_s;
                continue;
            };
            let slot = self.next_slot;
            let begin = self.copy_end.max(self.free_at[slot]);
            self.copy_end = self.end_of_copy(begin, copy_s, block.copy_slowdown);
            *stall = (self.copy_end - ready).max(0.0);
            self.rest(ready + *stall);
            let decoded = ready + *stall + decode_s;
            self.compute_end = decoded + block.compute_s;
            // A block that is decoded computes elsewhere, and its slot is filled again meanwhile.
            self.free_at[slot] = if block.decode_s.is_some() { decoded } else { self.compute_end };
            self.next_slot = (slot + 1) % self.free_at.len();
        }
        self.rest(self.compute_end + between.return_hop_s + between.outside_s);
        self.compute_end - start
    }

    /// Nothing is computed until then.
    fn rest(&mut self, until: f64) {
        if self.slowed && until > self.compute_end {
            self.idle.push_back((self.compute_end, until));
        }
        self.compute_end = until;
    }

    /// When a copy ends that begins not before all copies so far have ended.
    fn end_of_copy(&mut self, begin: f64, copy_s: f64, slowdown: f64) -> f64 {
        if slowdown <= 1.0 {
            return begin + copy_s;
        }
        while self.idle.front().is_some_and(|(_, end)| *end <= begin) {
            self.idle.pop_front();
        }
        let (mut now, mut left_s) = (begin, copy_s);
        // After all computing that is known, what computes next waits for this copy.
        for (from, until) in self.idle.iter().copied().chain([(self.compute_end, f64::INFINITY)]) {
            let beside_s = (from - now).max(0.0);
            if left_s * slowdown <= beside_s {
                return now + left_s * slowdown;
            }
            left_s -= beside_s / slowdown;
            now = now.max(from);
            if left_s <= until - now {
                return now + left_s;
            }
            left_s -= until - now;
            now = until;
        }
        now + left_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESIDENT: StepBlock =
        StepBlock { compute_s: 1.0, hop_s: 0.0, copy_s: None, copy_slowdown: 1.0, decode_s: None };
    const NOTHING: BetweenSteps = BetweenSteps { return_hop_s: 0.0, outside_s: 0.0 };

    fn streamed(copy_s: f64) -> StepBlock {
        StepBlock { copy_s: Some(copy_s), ..RESIDENT }
    }

    #[track_caller]
    fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 1e-6 * want, "{got} is not {want}");
    }

    #[test]
    fn resident_blocks_take_their_computing() {
        let prediction = simulate(&[RESIDENT; 20], 2, NOTHING);
        close(prediction.seconds_per_step, 20.0);
        assert_eq!(prediction.stall_s, 0.0);
    }

    #[test]
    fn equal_streamed_blocks_take_the_longer_of_copying_and_computing() {
        for copy_s in [0.1, 0.5, 0.9, 1.0, 1.1, 2.0, 7.0] {
            for slots in [2, 3, 5] {
                let prediction = simulate(&[streamed(copy_s); 20], slots, NOTHING);
                close(prediction.seconds_per_step, 20.0 * copy_s.max(1.0));
                close(prediction.seconds_per_step, 20.0 + prediction.stall_s);
            }
        }
    }

    #[test]
    fn a_single_slot_cannot_overlap_a_copy_with_its_own_block() {
        close(simulate(&[streamed(1.0); 20], 1, NOTHING).seconds_per_step, 40.0);
        close(simulate(&[streamed(1.0), RESIDENT], 1, NOTHING).seconds_per_step, 2.0);
    }

    #[test]
    fn a_contiguous_tail_cannot_hide_what_interleaving_hides() {
        let tail: Vec<StepBlock> = (0..20).map(|i| if i < 10 { RESIDENT } else { streamed(2.0) }).collect();
        let spread: Vec<StepBlock> =
            (0..20).map(|i| if i % 2 == 0 { RESIDENT } else { streamed(2.0) }).collect();
        close(simulate(&spread, 2, NOTHING).seconds_per_step, 20.0);
        // Two copies are there when the tail begins at 10, and then the copy stream has no slot until
        // the first of them has computed, at 11. The other eight copies take 16 s from there, and the
        // last of them computes for 1 s.
        let tail = simulate(&tail, 2, NOTHING);
        close(tail.seconds_per_step, 11.0 + 8.0 * 2.0 + 1.0);
        assert!(tail.stall_s > 5.0);
    }

    #[test]
    fn hops_are_paid_once_each() {
        let away = StepBlock { hop_s: 0.25, ..RESIDENT };
        let prediction =
            simulate(&[RESIDENT, away, RESIDENT], 2, BetweenSteps { return_hop_s: 0.5, ..NOTHING });
        close(prediction.seconds_per_step, 3.75);
        close(prediction.hop_s, 0.75);
    }

    #[test]
    fn no_blocks_take_no_time() {
        assert_eq!(simulate(&[], 2, NOTHING).seconds_per_step, 0.0);
    }

    #[test]
    fn a_step_is_its_computing_its_hops_and_its_stalls() {
        let blocks: Vec<StepBlock> = (0..17u32)
            .map(|i| StepBlock {
                compute_s: 0.3 + f64::from(i * 7 % 5),
                hop_s: 0.1 * f64::from(i % 3),
                copy_s: (i % 3 != 1).then_some(0.2 + f64::from(i * 5 % 7)),
                copy_slowdown: 1.0 + 0.1 * f64::from(i % 2),
                decode_s: (i % 4 == 2).then_some(0.15),
            })
            .collect();
        for slots in 1..6 {
            let p = simulate(&blocks, slots, BetweenSteps { return_hop_s: 0.2, outside_s: 0.7 });
            close(p.seconds_per_step, p.compute_s + p.decode_s + p.hop_s + p.outside_s + p.stall_s);
            assert!(p.seconds_per_step >= p.bound_s() * (1.0 - 1e-9));
            close(p.blocks.iter().map(|b| b.stall_s).sum::<f64>(), p.stall_s);
        }
    }

    #[test]
    fn what_is_outside_of_the_blocks_hides_beside_copies() {
        let between = BetweenSteps { return_hop_s: 0.0, outside_s: 5.0 };
        // The link is what a step waits for: 40 s of copies beside 20 s of computing and 5 s of other things.
        close(simulate(&[streamed(2.0); 20], 8, between).seconds_per_step, 40.0);
        // It is not, and everything is one after the other.
        close(simulate(&[streamed(0.5); 20], 8, between).seconds_per_step, 25.0);
        close(simulate(&[RESIDENT; 20], 2, between).seconds_per_step, 25.0);
        // With a single slot only the next step's first block can come meanwhile.
        let one = simulate(&[streamed(2.0); 20], 1, between);
        close(one.seconds_per_step, 20.0 + 5.0 + 19.0 * 2.0);
    }

    #[test]
    fn copies_are_slower_beside_computing_only() {
        let slowed = |copy_s: f64| StepBlock { copy_slowdown: 1.25, ..streamed(copy_s) };
        for slots in [2, 3, 5] {
            // Copies that would hide by themselves do not when the device is busy all the time: a copy of 0.9 s is 0.8 s of it
            // done after a second of computing, and the rest of it is alone.
            close(simulate(&[slowed(0.9); 20], slots, NOTHING).seconds_per_step, 20.0 * (1.0 + 0.1));
            close(simulate(&[slowed(0.8); 20], slots, NOTHING).seconds_per_step, 20.0);
            close(simulate(&[slowed(3.0); 20], slots, NOTHING).seconds_per_step, 20.0 * (1.0 + 2.2));
        }
        // Nothing computes while the one slot is filled.
        close(simulate(&[slowed(0.9); 20], 1, NOTHING).seconds_per_step, 20.0 * 1.9);
        // What is outside of the blocks leaves the device to the copies.
        let between = BetweenSteps { return_hop_s: 0.0, outside_s: 10.0 };
        let with = simulate(&[slowed(1.5); 20], 30, between);
        close(with.seconds_per_step, 30.0_f64.max(20.0 * 1.5 + 20.0 * 0.2));
        // Beside resident blocks there is time enough.
        let spread: Vec<StepBlock> =
            (0..20).map(|i| if i % 2 == 0 { RESIDENT } else { slowed(1.6) }).collect();
        close(simulate(&spread, 3, NOTHING).seconds_per_step, 20.0);
    }

    #[test]
    fn the_slot_of_a_decoded_block_is_filled_while_it_computes() {
        let coded = StepBlock { decode_s: Some(0.25), ..streamed(1.0) };
        let one = simulate(&[coded; 20], 1, NOTHING);
        close(one.seconds_per_step, 20.0 * 1.25);
        close(one.decode_s, 5.0);
        let kept = StepBlock { decode_s: Some(0.25), ..RESIDENT };
        let all = simulate(&[kept; 20], 0, NOTHING);
        close(all.seconds_per_step, 25.0);
        close(all.blocks[3].decode_s, 0.25);
    }
}
