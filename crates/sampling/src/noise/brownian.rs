//! Noise from one Brownian path: equal for equal levels, however the steps between them are cut.
//!
//! The path is a binary tree over the noise levels, as in torchsde 0.2.6: each half of an interval gets a
//! Brownian bridge's increment, whose randomness is seeded by the run's seed and the node's place in the
//! tree. Times are rounded to six decimals, so the tree is finite.

use device::noise::NormalGenerator;

use super::{NoiseSource, seed_sequence};
use crate::Latent;

const POOL_SIZE: usize = 24;

/// A Brownian path over an interval of noise levels.
pub struct BrownianTree {
    seed: u64,
    shape: Vec<usize>,
    start: f64,
    end: f64,
    whole: Vec<f32>,
}

/// One node: an interval, its place in the tree and the path's increment over it.
struct Interval {
    start: f64,
    end: f64,
    key: u64,
    depth: u64,
    increment: Vec<f32>,
}

impl BrownianTree {
    /// The path for this seed over the levels `sigma_min` to `sigma_max`.
    pub fn new(seed: u64, shape: &[usize], sigma_min: f32, sigma_max: f32) -> BrownianTree {
        let (low, high) = (f64::from(sigma_min.min(sigma_max)), f64::from(sigma_min.max(sigma_max)));
        let word = seed_sequence::words(seed, &[], POOL_SIZE, 1)[0];
        let scale = (high - low).sqrt() as f32;
        let mut whole = normals(word, shape.iter().product());
        whole.iter_mut().for_each(|v| *v *= scale);
        BrownianTree { seed, shape: shape.to_vec(), start: round(low), end: round(high), whole }
    }

    /// The path's increment from one level to a higher one, unscaled.
    fn increment(&self, from: f64, to: f64) -> Vec<f32> {
        let (from, to) = (round(from.clamp(self.start, self.end)), round(to.clamp(self.start, self.end)));
        let mut sum = None;
        if from < to {
            let root = Interval {
                start: self.start,
                end: self.end,
                key: 0,
                depth: 0,
                increment: self.whole.clone(),
            };
            self.collect(root, from, to, &mut sum);
        }
        sum.unwrap_or_else(|| vec![0.0; self.whole.len()])
    }

    /// Adds the increments of the nodes that make up `from..to`, from left to right.
    fn collect(&self, node: Interval, from: f64, to: f64, sum: &mut Option<Vec<f32>>) {
        if from == node.start && to == node.end {
            match sum {
                None => *sum = Some(node.increment),
                Some(sum) => sum.iter_mut().zip(&node.increment).for_each(|(s, v)| *s += v),
            }
            return;
        }
        let middle = round(0.5 * (node.end + node.start));
        let left = self.left_increment(&node, middle);
        if from < middle {
            let child = Interval {
                start: node.start,
                end: middle,
                key: node.key * 2,
                depth: node.depth + 1,
                increment: left.clone(),
            };
            self.collect(child, from, to.min(middle), sum);
        }
        if to > middle {
            let increment = node.increment.iter().zip(&left).map(|(whole, left)| whole - left).collect();
            let child = Interval {
                start: middle,
                end: node.end,
                key: node.key * 2 + 1,
                depth: node.depth + 1,
                increment,
            };
            self.collect(child, from.max(middle), to, sum);
        }
    }

    /// The increment over the left part of a node, given that over the whole of it.
    fn left_increment(&self, node: &Interval, middle: f64) -> Vec<f32> {
        let per_length = 1.0 / (node.end - node.start);
        let (left, right) = (middle - node.start, node.end - middle);
        let deviation = (left * right * per_length).sqrt() as f32;
        let (left, per_length) = (left as f32, per_length as f32);
        let word = seed_sequence::words(self.seed, &[node.key, node.depth], POOL_SIZE, 1)[0];
        let mut out = normals(word, node.increment.len());
        for (v, whole) in out.iter_mut().zip(&node.increment) {
            *v = left * whole * per_length + deviation * *v;
        }
        out
    }
}

impl NoiseSource for BrownianTree {
    fn draw(&mut self, sigma: f32, sigma_next: f32) -> Latent {
        let (low, high, sign) =
            if sigma < sigma_next { (sigma, sigma_next, 1.0) } else { (sigma_next, sigma, -1.0) };
        let length = (sigma_next - sigma).abs().sqrt();
        let mut noise = Latent::zeros(&self.shape);
        let increment = self.increment(f64::from(low), f64::from(high));
        noise.values_mut().iter_mut().zip(increment).for_each(|(out, v)| *out = v * sign / length);
        noise
    }
}

fn normals(seed: u32, count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    NormalGenerator::new(u64::from(seed)).fill(&mut values);
    values
}

/// To six decimals, correctly rounded, as the decimal text of a number is.
fn round(time: f64) -> f64 {
    format!("{time:.6}").parse().unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_add_up_to_the_whole() {
        let mut tree = BrownianTree::new(7, &[1, 4, 3, 3], 0.1, 10.0);
        let (whole, first, second) = (tree.draw(10.0, 0.1), tree.draw(10.0, 3.3), tree.draw(3.3, 0.1));
        for i in 0..whole.values().len() {
            let sum = first.values()[i] * 6.7f32.sqrt() + second.values()[i] * 3.2f32.sqrt();
            assert!((sum - whole.values()[i] * 9.9f32.sqrt()).abs() < 1e-5);
        }
    }
}
