//! The choice of the next token from a language model's logits: the likeliest, or one that is drawn.

use std::cmp::Ordering;
use std::collections::HashSet;

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenSampling {
    /// Divides the logits; smaller ones make the likely likelier.
    pub temperature: f32,
    /// Only so many of the likeliest tokens; 0 for all.
    pub top_k: usize,
    /// Only the likeliest tokens that have this probability together.
    pub top_p: f32,
    /// Only tokens with at least this part of the likeliest one's probability.
    pub min_p: f32,
    /// Divides positive logits of tokens that are there already, and multiplies negative ones.
    pub repetition_penalty: f32,
    /// Taken off the logits of tokens that were written already.
    pub presence_penalty: f32,
    /// Where the draws begin.
    pub seed: u64,
}

/// Chooses tokens one after the other.
#[derive(Clone, Debug)]
pub struct TokenChooser {
    sampling: Option<TokenSampling>,
    state: u64,
    read: HashSet<u32>,
    written: HashSet<u32>,
}

impl TokenChooser {
    /// A chooser behind a prompt of these tokens; without sampling it takes the likeliest.
    pub fn new(sampling: Option<TokenSampling>, prompt: impl IntoIterator<Item = u32>) -> TokenChooser {
        let state = sampling.map_or(0, |sampling| sampling.seed);
        TokenChooser { sampling, state, read: prompt.into_iter().collect(), written: HashSet::new() }
    }

    /// The next token. There must be at least one logit; of none it is 0.
    pub fn choose(&mut self, logits: &[f32]) -> u32 {
        let id = match self.sampling {
            Some(sampling) if sampling.temperature > 0.0 => self.draw(&sampling, logits),
            _ => likeliest(logits),
        };
        self.written.insert(id);
        id
    }

    fn draw(&mut self, sampling: &TokenSampling, logits: &[f32]) -> u32 {
        let mut candidates: Vec<(u32, f32)> =
            logits.iter().zip(0..).map(|(logit, id)| (id, self.scored(sampling, id, *logit))).collect();
        let descending = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let keep = if sampling.top_k == 0 { candidates.len() } else { sampling.top_k.min(candidates.len()) };
        if (1..candidates.len()).contains(&keep) {
            candidates.select_nth_unstable_by(keep - 1, descending);
            candidates.truncate(keep);
        }
        candidates.sort_unstable_by(descending);
        let Some(&(first, highest)) = candidates.first() else { return 0 };
        let mut weights: Vec<f64> =
            candidates.iter().map(|(_, logit)| f64::from(logit - highest).exp()).collect();
        let least = f64::from(sampling.min_p);
        let mut kept = weights.iter().take_while(|weight| **weight >= least).count().max(1);
        let total: f64 = weights[..kept].iter().sum();
        let mut sum = 0.0;
        // A token is kept while those before it have not yet reached the part that is asked for.
        let within = weights[..kept].iter().take_while(|weight| {
            let goes_on = sum <= f64::from(sampling.top_p) * total;
            sum += **weight;
            goes_on
        });
        kept = within.count().max(1);
        weights.truncate(kept);
        let mut left = self.uniform() * weights.iter().sum::<f64>();
        for (weight, (id, _)) in weights.iter().zip(&candidates) {
            left -= weight;
            if left < 0.0 {
                return *id;
            }
        }
        first
    }

    /// A logit with its penalties, at the temperature.
    fn scored(&self, sampling: &TokenSampling, id: u32, logit: f32) -> f32 {
        let is_written = self.written.contains(&id);
        let mut logit = logit;
        if sampling.repetition_penalty != 1.0 && (is_written || self.read.contains(&id)) {
            logit = match logit < 0.0 {
                true => logit * sampling.repetition_penalty,
                false => logit / sampling.repetition_penalty.max(f32::MIN_POSITIVE),
            };
        }
        if is_written {
            logit -= sampling.presence_penalty;
        }
        logit / sampling.temperature
    }

    /// The next number from 0 up to 1 (SplitMix64).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The first of the highest logits.
fn likeliest(logits: &[f32]) -> u32 {
    let higher = |a: &(u32, &f32), b: &(u32, &f32)| match a.1.total_cmp(b.1) {
        Ordering::Equal => b.0.cmp(&a.0),
        order => order,
    };
    (0..).zip(logits).max_by(higher).map_or(0, |(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: TokenSampling = TokenSampling {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        seed: 7,
    };

    /// How often each of four tokens is drawn, as parts of one.
    fn drawn(sampling: TokenSampling, logits: &[f32; 4]) -> [f64; 4] {
        let mut counts = [0.0; 4];
        for seed in 0..4000 {
            let mut chooser = TokenChooser::new(Some(TokenSampling { seed, ..sampling }), [0]);
            counts[chooser.choose(logits) as usize] += 1.0 / 4000.0;
        }
        counts
    }

    fn assert_near(got: [f64; 4], expected: [f64; 4]) {
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.03), "{got:?}, not {expected:?}");
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        let logits = [0.4_f32.ln(), 0.3_f32.ln(), 0.2_f32.ln(), 0.1_f32.ln()];
        assert_near(drawn(PLAIN, &logits), [0.4, 0.3, 0.2, 0.1]);
        assert_near(drawn(TokenSampling { top_k: 2, ..PLAIN }, &logits), [4.0 / 7.0, 3.0 / 7.0, 0.0, 0.0]);
        let [a, b, c] = [4.0 / 9.0, 3.0 / 9.0, 2.0 / 9.0];
        assert_near(drawn(TokenSampling { top_p: 0.75, ..PLAIN }, &logits), [a, b, c, 0.0]);
        assert_near(drawn(TokenSampling { min_p: 0.45, ..PLAIN }, &logits), [a, b, c, 0.0]);
        let half = TokenSampling { temperature: 0.5, ..PLAIN };
        assert_near(drawn(half, &logits), [16.0 / 30.0, 9.0 / 30.0, 4.0 / 30.0, 1.0 / 30.0]);
        // The prompt has token 0, whose logit is negative and doubles: 0.4 becomes 0.16.
        let repeated = TokenSampling { repetition_penalty: 2.0, ..PLAIN };
        assert_near(drawn(repeated, &logits), [0.16 / 0.76, 0.3 / 0.76, 0.2 / 0.76, 0.1 / 0.76]);
    }

    #[test]
    fn the_same_seed_draws_the_same_and_none_takes_the_likeliest() {
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
        let run = |sampling| {
            let mut chooser = TokenChooser::new(sampling, []);
            (0..20).map(|_| chooser.choose(&logits)).collect::<Vec<u32>>()
        };
        assert_eq!(run(Some(PLAIN)), run(Some(PLAIN)));
        assert_ne!(run(Some(PLAIN)), run(Some(TokenSampling { seed: 8, ..PLAIN })));
        let highest = (0..50).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(0) as u32;
        assert_eq!(run(None), vec![highest; 20]);
        // A written token that costs more than the highest logit is not written again.
        let present = run(Some(TokenSampling { presence_penalty: 1e6, ..PLAIN }));
        assert_eq!(present.iter().collect::<HashSet<_>>().len(), 20);
    }
}
