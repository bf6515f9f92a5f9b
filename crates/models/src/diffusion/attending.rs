//! Attention in which some tokens of the text are looked at more or less than others. A bias on keys is the same for most
//! queries, so queries are taken in groups, each with one row of biases: no matrix of queries and keys is made.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use meta::DeviceId;
use tensor::{Lane, Mask, Tensor};

use crate::Result;
use crate::conditioning::TokenBias;

/// Which queries see which biases.
#[derive(Default)]
pub(super) struct Attending {
    groups: Vec<Group>,
    on: Mutex<Vec<(DeviceId, Vec<Mask>)>>,
}

/// Queries that see the same.
struct Group {
    queries: Range<usize>,
    /// What is added to their scores, key by key; nothing if it is empty.
    biases: Vec<f32>,
}

impl Attending {
    /// Text tokens in front, then all others, `tokens` in all. A biased span is as it is for the tokens of the text before
    /// it and for all of the image; its own tokens and those of the text behind it see it without.
    pub(super) fn new(biased: &[TokenBias], texts: usize, tokens: usize) -> Attending {
        if biased.is_empty() {
            return Attending::default();
        }
        let starts = biased.iter().map(|span| span.start);
        let mut edges: Vec<usize> = [0, texts, tokens].into_iter().chain(starts).collect();
        edges.sort_unstable();
        edges.dedup();
        let group = |edge: &[usize]| {
            let queries = edge[0]..edge[1];
            let seen = biased.iter().filter(|span| queries.start >= texts || queries.end <= span.start);
            let mut biases = Vec::new();
            for span in seen {
                biases.resize(tokens, 0.0);
                biases[span.start..span.start + span.tokens].fill(span.bias);
            }
            Group { queries, biases }
        };
        Attending { groups: edges.windows(2).map(group).collect(), on: Mutex::default() }
    }

    /// Attention of queries over keys and values, `[batch, tokens, heads, size]`, written into a view of another tensor.
    pub(super) fn attend(&self, [q, k, v]: [&Tensor; 3], scale: f32, out: &Tensor) -> Result<()> {
        if self.groups.is_empty() {
            return Ok(q.attention_into(k, v, &Mask::None, scale, out)?);
        }
        for (group, mask) in self.groups.iter().zip(self.masks(q.lane())?) {
            let Range { start, end } = group.queries;
            let (q, out) = (q.slice(1, start, end - start)?, out.slice(1, start, end - start)?);
            q.attention_into(k, v, &mask, scale, &out)?;
        }
        Ok(())
    }

    /// The biases of each group on a lane's device. They are sent there once.
    fn masks(&self, lane: &Lane) -> Result<Vec<Mask>> {
        let device = lane.device().id();
        // Masks are put in whole, so what another thread left is good.
        let mut on = self.on.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, masks)) = on.iter().find(|(id, _)| *id == device) {
            return Ok(masks.clone());
        }
        let mask = |group: &Group| -> Result<Mask> {
            if group.biases.is_empty() {
                return Ok(Mask::None);
            }
            Ok(Mask::Additive(lane.tensor([1, 1, 1, group.biases.len()], &group.biases)?))
        };
        let masks = self.groups.iter().map(mask).collect::<Result<Vec<_>>>()?;
        on.push((device, masks.clone()));
        Ok(masks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(biased: &[TokenBias]) -> Vec<(Range<usize>, Vec<f32>)> {
        let attending = Attending::new(biased, 5, 7);
        attending.groups.into_iter().map(|group| (group.queries, group.biases)).collect()
    }

    #[test]
    fn what_stands_before_a_span_and_the_image_see_its_bias() {
        assert_eq!(groups(&[]), []);
        let first = TokenBias { start: 2, tokens: 1, bias: -1.0 };
        let row = vec![0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(groups(&[first]), [(0..2, row.clone()), (2..5, vec![]), (5..7, row)]);
        // The tokens of the first span see the second, not the other way round.
        let second = TokenBias { start: 3, tokens: 2, bias: -2.0 };
        let both = vec![0.0, 0.0, -1.0, -2.0, -2.0, 0.0, 0.0];
        let later = vec![0.0, 0.0, 0.0, -2.0, -2.0, 0.0, 0.0];
        assert_eq!(
            groups(&[first, second]),
            [(0..2, both.clone()), (2..3, later), (3..5, vec![]), (5..7, both)]
        );
    }
}
