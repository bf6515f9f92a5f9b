//! One run of blocks per device, in the order in which the devices are written.

use meta::DeviceId;

use super::layout::{Outline, Rounding};
use super::problem::Problem;

/// The homes of the blocks such that the bytes of the devices are as near to their shares as runs of whole blocks allow.
pub(super) fn homes(problem: &Problem<'_>, outline: Outline<'_>) -> Vec<DeviceId> {
    let blocks = &problem.request.blocks;
    let free: Vec<usize> = (0..blocks.len()).filter(|block| !problem.fixed[*block]).collect();
    let runs = Runs::new(problem, outline, &free);
    let mut homes = vec![problem.compute(); blocks.len()];
    for (device, run) in runs.nearest() {
        free[run].iter().for_each(|block| homes[*block] = device);
    }
    homes
}

/// One device's part in the cutting of the blocks into runs.
struct Taker {
    device: DeviceId,
    share: f64,
    /// What it has already, wherever the cuts are.
    has: f64,
    most: f64,
}

struct Runs {
    takers: Vec<Taker>,
    /// The bytes before each block, and in the end all.
    before: Vec<f64>,
}

impl Runs {
    fn new(problem: &Problem<'_>, outline: Outline<'_>, free: &[usize]) -> Runs {
        let targets = outline.targets;
        let taker = |device: DeviceId, share: u64| {
            let has = if device == problem.compute() { problem.fixed_bytes } else { 0 };
            let most = match (device == problem.compute(), outline.rounding) {
                // Whether the taker has the room is checked at the end, and so it is for the compute device.
                _ if device == targets.taker => None,
                (true, Rounding::Nearest) => None,
                (true, Rounding::Down) => Some(share.saturating_sub(has)),
                (false, _) => Some(problem.room(device, outline.ways)),
            };
            let most = most.map_or(f64::INFINITY, |most| most as f64);
            Taker { device, share: share as f64, has: has as f64, most }
        };
        let given = targets.shares.iter().filter(|(device, share)| *share > 0 || *device == targets.taker);
        let mut before = vec![0.0];
        for block in free {
            before.push(before[before.len() - 1] + problem.request.blocks[*block].bytes as f64);
        }
        Runs { takers: given.map(|(device, share)| taker(*device, *share)).collect(), before }
    }

    /// The runs with the smallest sum of differences. Costs are sums over devices, so the best cutting of the first
    /// blocks among the first devices is part of the best cutting of all. Of equal ones, the earlier devices have more.
    fn nearest(&self) -> Vec<(DeviceId, std::ops::Range<usize>)> {
        let count = self.before.len() - 1;
        // By how many blocks are given out: the cost, and where the run of each device begins.
        let mut best: Vec<Option<f64>> = vec![None; count + 1];
        best[0] = Some(0.0);
        let mut begins: Vec<Vec<usize>> = Vec::new();
        for taker in &self.takers {
            let mut next: Vec<Option<(f64, usize)>> = vec![None; count + 1];
            for (begin, cost) in best.iter().enumerate().filter_map(|(at, cost)| cost.map(|cost| (at, cost)))
            {
                for (end, entry) in next.iter_mut().enumerate().skip(begin) {
                    let bytes = self.before[end] - self.before[begin];
                    if bytes > taker.most {
                        break;
                    }
                    let cost = cost + (taker.has + bytes - taker.share).abs();
                    if entry.is_none_or(|(known, _)| cost <= known) {
                        *entry = Some((cost, begin));
                    }
                }
            }
            begins.push(next.iter().map(|entry| entry.map_or(0, |(_, begin)| begin)).collect());
            best = next.into_iter().map(|entry| entry.map(|(cost, _)| cost)).collect();
        }
        let mut end = count;
        let mut runs = Vec::new();
        for (taker, begins) in self.takers.iter().zip(&begins).rev() {
            let begin = begins[end];
            runs.push((taker.device, begin..end));
            end = begin;
        }
        runs
    }
}
