//! Every instruction set of this machine against plain attention in f64.

use testkit::{Random, assert_close, random_normal};

use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Masking {
    None,
    Causal,
    /// A number per head, query and key, some of them minus infinity.
    Full,
    /// A number per batch and key, the same for all heads and queries.
    PerKey,
    /// A number per query, the same for all keys: it changes nothing.
    PerQuery,
}

/// A random problem: q, k and v are columns of one fused tensor, with `spare` unused columns.
struct Case {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    groups: usize,
    size: usize,
    masking: Masking,
    spare: usize,
    amplitude: f32,
}

impl Case {
    fn new(queries: usize, keys: usize, size: usize) -> Case {
        let (masking, amplitude) = (Masking::None, 1.0);
        Case { batch: 1, queries, keys, heads: 2, groups: 2, size, masking, spare: 0, amplitude }
    }

    fn mask_strides(&self) -> [usize; 4] {
        match self.masking {
            Masking::PerKey => [self.keys, 0, 0, 1],
            Masking::PerQuery => [0, 0, 1, 0],
            _ => [0, self.queries * self.keys, self.keys, 1],
        }
    }

    fn data(&self) -> Data {
        let positions = self.queries.max(self.keys);
        let columns = (self.heads + 2 * self.groups) * self.size + self.spare;
        let mut fused = random_normal(self.size as u64, self.batch * positions * columns);
        fused.iter_mut().for_each(|value| *value *= self.amplitude);
        let mut random = Random::new(9);
        let mask = (0..(self.batch + self.heads) * self.keys * self.queries)
            .map(|_| if random.below(4) == 0 { f32::NEG_INFINITY } else { random.normal() })
            .map(|value| if self.masking == Masking::PerQuery { value.max(-3.0) } else { value })
            .collect();
        let strides = [positions * columns, columns, self.size];
        Data { fused, mask, strides }
    }

    /// The problem over `data`, writing to `out`, which is as wide as the fused tensor.
    fn problem<'a>(&self, data: &'a Data, out: &mut [f32]) -> Problem<'a> {
        let strides = data.strides;
        let rows = |column: usize| Rows { numbers: &data.fused[column * self.size..], strides };
        Problem {
            q: rows(0),
            k: rows(self.heads),
            v: rows(self.heads + self.groups),
            out: OutputRows::new(out, strides),
            mask: match self.masking {
                Masking::None => Mask::None,
                Masking::Causal => Mask::Causal,
                _ => Mask::Additive { numbers: &data.mask, strides: self.mask_strides() },
            },
            scale: 1.0 / (self.size as f32).sqrt(),
            soft_cap: None,
            batch: self.batch,
            queries: self.queries,
            keys: self.keys,
            heads: self.heads,
            groups: self.groups,
            size: self.size,
        }
    }

    /// What was added to the score of a query and key.
    fn mask_number(&self, data: &Data, index: [usize; 4]) -> f64 {
        let [_, _, query, key] = index;
        match self.masking {
            Masking::None => 0.0,
            Masking::Causal if key + self.queries > query + self.keys => f64::NEG_INFINITY,
            Masking::Causal => 0.0,
            _ => {
                let at: usize = self.mask_strides().iter().zip(index).map(|(stride, i)| stride * i).sum();
                f64::from(data.mask[at])
            }
        }
    }

    /// Plain attention in f64, where unwritten places stay 0.
    fn reference(&self, data: &Data) -> Vec<f32> {
        let mut out = vec![0.0; data.fused.len()];
        let problem = self.problem(data, &mut []);
        for index in 0..self.batch * self.heads * self.queries {
            let (batch, head, query) =
                (index / self.heads / self.queries, index / self.queries % self.heads, index % self.queries);
            let group = head / (self.heads / self.groups);
            let q = problem.q.row(batch, query, head, self.size);
            let mut scores: Vec<f64> = (0..self.keys)
                .map(|key| {
                    let k = problem.k.row(batch, key, group, self.size);
                    let dot: f64 = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    dot * f64::from(problem.scale) + self.mask_number(data, [batch, head, query, key])
                })
                .collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if largest == f64::NEG_INFINITY {
                continue;
            }
            scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
            let sum: f64 = scores.iter().sum();
            let start = batch * data.strides[0] + query * data.strides[1] + head * self.size;
            for i in 0..self.size {
                let value = |key| f64::from(problem.v.row(batch, key, group, self.size)[i]);
                let total: f64 = scores.iter().enumerate().map(|(key, weight)| weight * value(key)).sum();
                out[start + i] = (total / sum) as f32;
            }
        }
        out
    }

    fn solve(&self, data: &Data, set: InstructionSet) -> Vec<f32> {
        let mut out = vec![0.0; data.fused.len()];
        solve(&self.problem(data, &mut out), set);
        out
    }

    fn check(&self, tolerance: f64) {
        let data = self.data();
        let want = self.reference(&data);
        for set in InstructionSet::available() {
            let Case { batch, queries, keys, heads, groups, size, masking, .. } = self;
            let name = format!("{set:?} {batch}x{queries}x{keys} {heads}/{groups} of {size}, {masking:?}");
            assert_close(&name, &self.solve(&data, set), &want, tolerance);
        }
    }
}

struct Data {
    fused: Vec<f32>,
    mask: Vec<f32>,
    /// Of batch, position and head.
    strides: [usize; 3],
}

const TOLERANCE: f64 = 1e-5;

#[test]
fn head_sizes() {
    for size in [1, 2, 7, 8, 13, 40, 64, 80, 96, 128, 160, 255, 256] {
        Case::new(45, 150, size).check(TOLERANCE);
    }
}

#[test]
fn numbers_of_queries_and_keys() {
    for queries in [1, 2, 15, 16, 17, 33, 64, 100, 300] {
        for keys in [1, 2, 7, 8, 77, 127, 128, 129, 257] {
            Case { heads: 1, groups: 1, spare: 3, ..Case::new(queries, keys, 24) }.check(TOLERANCE);
        }
    }
}

#[test]
fn masks_batches_and_grouped_heads() {
    for masking in [Masking::None, Masking::Causal, Masking::Full, Masking::PerKey, Masking::PerQuery] {
        for (queries, keys) in [(70, 70), (5, 200), (200, 5), (1, 9), (130, 300)] {
            for (batch, heads, groups) in [(1, 3, 3), (2, 6, 2), (3, 4, 1)] {
                Case { batch, heads, groups, masking, spare: 5, ..Case::new(queries, keys, 20) }
                    .check(TOLERANCE);
            }
        }
    }
}

/// Scores of ±20000 neither overflow nor lose the key that wins.
#[test]
fn large_scores() {
    for masking in [Masking::None, Masking::Causal, Masking::Full] {
        Case { masking, amplitude: 100.0, ..Case::new(40, 300, 64) }.check(1e-2);
    }
    Case { amplitude: 1e-20, ..Case::new(40, 300, 64) }.check(TOLERANCE);
}

#[test]
fn queries_that_see_nothing_get_zeros() {
    let case = Case { masking: Masking::Full, ..Case::new(40, 300, 16) };
    let mut data = case.data();
    // Query 3 of head 1 sees nothing, query 4 only the last key.
    let rows = &mut data.mask[case.queries * case.keys..];
    rows[3 * case.keys..5 * case.keys].fill(f32::NEG_INFINITY);
    rows[5 * case.keys - 1] = -2.5;
    for set in InstructionSet::available() {
        let out = case.solve(&data, set);
        let row = |query: usize| &out[query * data.strides[1] + case.size..][..case.size];
        assert_eq!(row(3), [0.0; 16], "{set:?}");
        assert_eq!(row(4), case.problem(&data, &mut []).v.row(0, 299, 1, 16), "{set:?}");
        assert_close("others", &out, &case.reference(&data), TOLERANCE);
    }
    // With more queries than keys, the first ones see nothing.
    let case = Case { masking: Masking::Causal, ..Case::new(50, 20, 8) };
    let data = case.data();
    for set in InstructionSet::available() {
        let out = case.solve(&data, set);
        let row = |query: usize| &out[query * data.strides[1]..][..case.size];
        assert!((0..30).all(|query| row(query) == [0.0; 8]), "{set:?}");
        assert_eq!(row(30), case.problem(&data, &mut []).v.row(0, 0, 0, 8), "{set:?}");
    }
}

/// The lowest finite number in a mask is a number, not minus infinity: if all keys have it, all count.
#[test]
fn the_lowest_number_is_not_minus_infinity() {
    let case = Case { masking: Masking::PerQuery, ..Case::new(8, 40, 16) };
    let mut data = case.data();
    data.mask.fill(f32::MIN);
    data.fused.iter_mut().for_each(|value| *value *= 1e-3);
    for set in InstructionSet::available() {
        let out = case.solve(&data, set);
        let problem = case.problem(&data, &mut []);
        let mean: f32 = (0..40).map(|key| problem.v.row(0, key, 0, 16)[0]).sum::<f32>() / 40.0;
        assert!((out[0] - mean).abs() < 1e-6, "{set:?}: {} {mean}", out[0]);
    }
}

#[test]
fn a_nan_reaches_the_queries_that_see_it() {
    let case = Case { masking: Masking::Causal, heads: 1, groups: 1, ..Case::new(40, 40, 16) };
    let mut data = case.data();
    let column = 16;
    data.fused[20 * data.strides[1] + column] = f32::NAN;
    for set in InstructionSet::available() {
        let out = case.solve(&data, set);
        for query in 0..40 {
            let row = &out[query * data.strides[1]..][..16];
            assert!(row.iter().all(|value| value.is_nan() == (query >= 20)), "{set:?} query {query}");
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for (masking, queries) in [(Masking::None, 700), (Masking::Causal, 300), (Masking::Full, 300)] {
        let case = Case { batch: 2, heads: 3, groups: 3, masking, ..Case::new(queries, 300, 40) };
        let data = case.data();
        for set in InstructionSet::available() {
            let solve = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let out = pool.install(|| case.solve(&data, set));
                out.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
            };
            let one = solve(1);
            for threads in [2, 3, 8] {
                assert!(one == solve(threads), "{set:?} with {threads} threads");
            }
        }
    }
}
