//! Which answer is written: the likeliest token each time, several answers side by side (beams), or drawn by chance.

use super::decoder::Decoder;
use super::settings::Rules;
use crate::Result;

/// What a score loses that must not be chosen; it stays above "never", which is infinite.
const NOT_NOW: f32 = -1.0e9;

/// How an answer is written.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The rules that come with the model.
    pub rules: Rules,
    /// Answers that are followed side by side.
    pub beams: usize,
    /// Tokens of the longest answer.
    pub max_new_tokens: usize,
    /// Tokens are drawn by their likelihood, from this seed. The draws are this program's own: another program with
    /// the same seed writes other words.
    pub seed: Option<u64>,
}

/// Writes an answer of at most `positions` tokens.
pub(super) fn run(decoder: &mut Decoder<'_>, how: &Generation, positions: usize) -> Result<Vec<u32>> {
    let longest = how.max_new_tokens.saturating_add(1).min(positions);
    let mut draws = how.seed.map(Draws::new);
    if decoder.beams() == 1 {
        return one_by_one(decoder, &how.rules, longest, &mut draws);
    }
    Beams::new(&how.rules, decoder.beams(), longest).run(decoder, &mut draws)
}

/// The likeliest token each time, or a drawn one.
fn one_by_one(
    decoder: &mut Decoder<'_>,
    rules: &Rules,
    longest: usize,
    draws: &mut Option<Draws>,
) -> Result<Vec<u32>> {
    let mut written = vec![rules.start];
    let mut last = rules.start;
    while written.len() < longest {
        let mut ratings = decoder.step(&[last])?;
        rules.apply(&written, longest, &mut ratings);
        if let Some(draws) = draws {
            keep_likeliest(&mut ratings, rules.top_k);
            let all = log_sum_exp(&ratings);
            ratings.iter_mut().for_each(|rating| *rating = draws.noisy(*rating - all));
        }
        last = highest(&ratings, 1)[0] as u32;
        written.push(last);
        if last == rules.end {
            break;
        }
    }
    Ok(written)
}

/// Several answers side by side: those that are being written, and the best of those that are complete.
struct Beams<'a> {
    rules: &'a Rules,
    longest: usize,
    running: Vec<Answer>,
    complete: Vec<Answer>,
    /// Whether an answer in writing can still become better than those that are complete.
    can_improve: bool,
}

#[derive(Clone)]
struct Answer {
    tokens: Vec<u32>,
    score: f32,
    is_complete: bool,
}

/// A token after one of the answers in writing.
#[derive(Clone, Copy)]
struct Candidate {
    beam: usize,
    token: u32,
    score: f32,
    /// Whether the answer is complete with it.
    ends: bool,
}

impl<'a> Beams<'a> {
    fn new(rules: &'a Rules, beams: usize, longest: usize) -> Beams<'a> {
        // All begin alike, so only the first counts until they differ.
        let begun = |beam: usize| Answer {
            tokens: vec![rules.start],
            score: if beam == 0 { 0.0 } else { NOT_NOW },
            is_complete: false,
        };
        let empty = Answer { tokens: vec![rules.start], score: NOT_NOW, is_complete: false };
        Beams {
            rules,
            longest,
            running: (0..beams).map(begun).collect(),
            complete: vec![empty; beams],
            can_improve: true,
        }
    }

    fn run(mut self, decoder: &mut Decoder<'_>, draws: &mut Option<Draws>) -> Result<Vec<u32>> {
        let mut len = 1;
        while len < self.longest {
            let last: Vec<u32> =
                self.running.iter().filter_map(|answer| answer.tokens.last().copied()).collect();
            let ratings = decoder.step(&last)?;
            let candidates = self.candidates(ratings, decoder.vocabulary(), draws);
            let order = self.go_on(&candidates, len);
            decoder.reorder(&order)?;
            len += 1;
            self.update_hope(len);
            let all_complete = self.complete.iter().all(|answer| answer.is_complete);
            let all_end = candidates.iter().all(|candidate| candidate.ends);
            if !self.can_improve || (all_complete && self.rules.early_stopping) || all_end {
                break;
            }
        }
        Ok(self.complete.swap_remove(0).tokens)
    }

    /// The best continuations, twice as many as beams, so that enough are left if half of them end.
    fn candidates(
        &self,
        mut ratings: Vec<f32>,
        vocabulary: usize,
        draws: &mut Option<Draws>,
    ) -> Vec<Candidate> {
        let rows = ratings.chunks_exact_mut(vocabulary).zip(&self.running);
        for (row, answer) in rows {
            let all = log_sum_exp(row);
            row.iter_mut().for_each(|rating| *rating -= all);
            self.rules.apply(&answer.tokens, self.longest, row);
            if draws.is_some() {
                keep_likeliest(row, self.rules.top_k);
            }
            row.iter_mut().for_each(|rating| *rating += answer.score);
        }
        let count = 2 * self.running.len();
        let chosen = match draws {
            None => highest(&ratings, count),
            // The highest of scores with such noise are draws without putting back.
            Some(draws) => {
                let noisy: Vec<f32> = ratings.iter().map(|score| draws.noisy(*score)).collect();
                let mut drawn = highest(&noisy, count);
                drawn.sort_by(|a, b| ratings[*b].total_cmp(&ratings[*a]));
                drawn
            }
        };
        let candidate = |place: usize| {
            let (beam, token) = (place / vocabulary, (place % vocabulary) as u32);
            let len = self.running[beam].tokens.len() + 1;
            let ends = token == self.rules.end || len >= self.longest;
            Candidate { beam, token, score: ratings[place], ends }
        };
        chosen.into_iter().map(candidate).collect()
    }

    /// Goes on with the best candidates that do not end, and keeps the best that do. Gives which beam each answer in
    /// writing came from.
    fn go_on(&mut self, candidates: &[Candidate], len: usize) -> Vec<usize> {
        let beams = self.running.len();
        let longer = |candidate: &Candidate| {
            let mut tokens = self.running[candidate.beam].tokens.clone();
            tokens.push(candidate.token);
            tokens
        };
        let full = self.complete.iter().all(|answer| answer.is_complete) && self.rules.early_stopping;
        let ended = candidates.iter().enumerate().map(|(place, candidate)| {
            // Those behind the first only stand by, in case that the first all end.
            let is_complete = candidate.ends && place < beams;
            let mut score = candidate.score / (len as f32).powf(self.rules.length_penalty);
            for bad in [full, !self.can_improve, !is_complete] {
                score += if bad { NOT_NOW } else { 0.0 };
            }
            Answer { tokens: longer(candidate), score, is_complete }
        });
        let mut complete: Vec<Answer> = self.complete.iter().cloned().chain(ended).collect();
        complete.sort_by(|a, b| b.score.total_cmp(&a.score));
        complete.truncate(beams);
        let score_of = |candidate: &Candidate| candidate.score + if candidate.ends { NOT_NOW } else { 0.0 };
        let mut next: Vec<&Candidate> = candidates.iter().collect();
        next.sort_by(|a, b| score_of(b).total_cmp(&score_of(a)));
        next.truncate(beams);
        let order = next.iter().map(|candidate| candidate.beam).collect();
        let running = next
            .into_iter()
            .map(|candidate| Answer {
                tokens: longer(candidate),
                score: score_of(candidate),
                is_complete: false,
            })
            .collect();
        (self.running, self.complete) = (running, complete);
        order
    }

    /// Whether the best answer in writing, if it ended now, would be better than the worst complete one.
    fn update_hope(&mut self, len: usize) {
        let best = self.running[0].score / ((len - 1) as f32).powf(self.rules.length_penalty);
        let least = self.complete.iter().map(|answer| answer.score).fold(f32::INFINITY, f32::min);
        let is_above = |answer: &Answer| best > if answer.is_complete { least } else { NOT_NOW };
        self.can_improve = self.can_improve && self.complete.iter().any(is_above);
    }
}

impl Rules {
    /// Takes out what must not follow, and leaves only what must.
    fn apply(&self, written: &[u32], longest: usize, ratings: &mut [f32]) {
        if self.no_repeat > 0 && written.len() + 1 >= self.no_repeat {
            let recent = &written[written.len() + 1 - self.no_repeat..];
            for row in written.windows(self.no_repeat) {
                if let Some(rating) = ratings.get_mut(row[self.no_repeat - 1] as usize)
                    && row[..self.no_repeat - 1] == *recent
                {
                    *rating = f32::NEG_INFINITY;
                }
            }
        }
        let mut only = |token: u32| {
            ratings.fill(f32::NEG_INFINITY);
            if let Some(rating) = ratings.get_mut(token as usize) {
                *rating = 0.0;
            }
        };
        if let Some(first) = self.first.filter(|_| written.len() == 1) {
            only(first);
        }
        if let Some(last) = self.last.filter(|_| written.len() + 1 == longest) {
            only(last);
        }
    }
}

/// Takes out all but the likeliest.
fn keep_likeliest(ratings: &mut [f32], count: usize) {
    let count = count.max(2);
    if count >= ratings.len() {
        return;
    }
    let least = highest(ratings, count).last().map_or(f32::NEG_INFINITY, |place| ratings[*place]);
    ratings.iter_mut().filter(|rating| **rating < least).for_each(|rating| *rating = f32::NEG_INFINITY);
}

/// The places of the highest values, the highest first; of equal ones the first.
fn highest(values: &[f32], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..values.len()).collect();
    let by_value = |a: &usize, b: &usize| values[*b].total_cmp(&values[*a]).then(a.cmp(b));
    let count = count.min(places.len());
    if count > 0 && count < places.len() {
        places.select_nth_unstable_by(count - 1, by_value);
        places.truncate(count);
    }
    places.sort_by(by_value);
    places
}

fn log_sum_exp(values: &[f32]) -> f32 {
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    most + values.iter().map(|value| (value - most).exp()).sum::<f32>().ln()
}

/// A stream of random numbers (splitmix64).
struct Draws(u64);

impl Draws {
    fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    /// A score with noise, of which the highest is a draw by likelihood. What cannot be drawn takes no number.
    fn noisy(&mut self, score: f32) -> f32 {
        if score == f32::NEG_INFINITY { score } else { score + self.gumbel() }
    }

    /// A number of the Gumbel distribution.
    fn gumbel(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let bits = (mixed ^ (mixed >> 31)) >> 11;
        // Never 0 and never 1, of which the logarithm has no value.
        let share = (bits as f64 + 0.5) / (1u64 << 53) as f64;
        -(-share.ln()).ln() as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_come_first_and_equal_ones_in_order() {
        assert_eq!(highest(&[1.0, 3.0, f32::NEG_INFINITY, 3.0, 2.0], 3), [1, 3, 4]);
        assert_eq!(highest(&[1.0], 4), [0]);
        let mut ratings = [0.0, 5.0, 1.0, 4.0];
        keep_likeliest(&mut ratings, 2);
        assert_eq!(ratings, [f32::NEG_INFINITY, 5.0, f32::NEG_INFINITY, 4.0]);
    }

    #[test]
    fn no_three_tokens_are_written_twice() {
        let rules = Rules { first: None, last: None, ..Rules::default() };
        let mut ratings = [0.0; 6];
        rules.apply(&[2, 4, 5, 3, 4, 5], 100, &mut ratings);
        assert_eq!(ratings.map(|rating| rating == 0.0), [true, true, true, false, true, true]);
        let mut ratings = [0.5; 3];
        Rules::default().apply(&[2], 100, &mut ratings);
        assert_eq!(ratings, [0.0, f32::NEG_INFINITY, f32::NEG_INFINITY]);
    }

    #[test]
    fn draws_follow_likelihood() {
        let mut draws = Draws::new(7);
        let scores = [0.7f32.ln(), 0.2f32.ln(), 0.1f32.ln()];
        let mut seen = [0; 3];
        for _ in 0..10_000 {
            let noisy = scores.map(|score| draws.noisy(score));
            seen[highest(&noisy, 1)[0]] += 1;
        }
        assert!((6_800..7_200).contains(&seen[0]) && (1_850..2_150).contains(&seen[1]), "{seen:?}");
    }
}
