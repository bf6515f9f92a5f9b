//! Conditionings made ready for a run: areas in latent values, masks at latent size, times as noise levels.

use std::sync::Arc;

use sampling::{Latent, ModelSampling, resize_mask};

use super::planes::mask_planes;
use crate::Result;
use crate::value::{Area, Conditioning, Entry};

/// The smallest sides of an area around a mask.
const SMALLEST_AREA: usize = 8;
/// Over so many values the edge of an area fades.
const FADE: usize = 8;

/// One entry for a latent of a known size.
#[derive(Clone, Debug)]
pub(crate) struct ReadyEntry {
    /// What the model is told.
    pub(crate) told: Arc<Entry>,
    /// Height, width, top and left of where it counts.
    pub(crate) area: Option<[usize; 4]>,
    /// How much it counts, by item and place.
    mask: Option<Latent>,
    mask_strength: f32,
    strength: f32,
    /// The levels between which it counts, the higher first.
    levels: Option<(f64, f64)>,
}

impl ReadyEntry {
    fn new(entry: &Entry, shape: &[usize; 4], sampling: &ModelSampling) -> Result<ReadyEntry> {
        let [_, _, height, width] = *shape;
        let share = |share: f64, of: usize| (share * of as f64).round_ties_even().max(0.0) as usize;
        let mut area = entry.area.map(|area| match area {
            Area::Values(values) => values,
            Area::Shares([h, w, top, left]) => {
                [share(h, height).max(1), share(w, width).max(1), share(top, height), share(left, width)]
            }
        });
        let mut mask = None;
        if let Some(given) = &entry.mask {
            let planes = resize_mask(&mask_planes(given)?, &[given.batch, 1, height, width])?;
            if entry.mask_sets_area {
                area = Some(bounds(&planes, height, width));
            }
            mask = Some(planes);
        }
        let always = entry.start_percent == 0.0 && entry.end_percent == 1.0;
        let level = |percent: f64| sampling.percent_to_sigma(percent);
        Ok(ReadyEntry {
            told: Arc::new(entry.clone()),
            area,
            mask,
            mask_strength: entry.mask_strength,
            strength: entry.strength,
            levels: (!always).then(|| (level(entry.start_percent), level(entry.end_percent))),
        })
    }

    /// Whether it counts at a level.
    pub(crate) fn counts_at(&self, sigma: f32) -> bool {
        self.levels.is_none_or(|(from, to)| f64::from(sigma) <= from && f64::from(sigma) >= to)
    }

    /// The area as far as it is inside the latent.
    pub(crate) fn window(&self, [_, _, height, width]: [usize; 4]) -> Option<[usize; 4]> {
        self.area.map(|[h, w, top, left]| {
            let (top, left) = (top.min(height.saturating_sub(1)), left.min(width.saturating_sub(1)));
            [h.min(height - top), w.min(width - left), top, left]
        })
    }

    /// How much it counts at each value of its part of the latent, `[batch, 1, height, width]`.
    pub(crate) fn weights(&self, shape: [usize; 4]) -> Latent {
        let [batch, _, height, width] = shape;
        let [h, w, top, left] = self.window(shape).unwrap_or([height, width, 0, 0]);
        let mut values = vec![self.strength; batch * h * w];
        if let Some(mask) = &self.mask {
            let items = mask.shape().first().copied().unwrap_or(1).clamp(1, batch.max(1));
            for (at, value) in values.iter_mut().enumerate() {
                let (item, y, x) = (at / (h * w) % items, at / w % h, at % w);
                let place = (item * height + top + y) * width + left + x;
                *value *= mask.values()[place] * self.mask_strength;
            }
        } else if self.area.is_some() {
            for (at, value) in values.iter_mut().enumerate() {
                *value *= fade(at / w % h, h, (top, height)) * fade(at % w, w, (left, width));
            }
        }
        Latent::new(vec![batch, 1, h, w], values).unwrap_or_else(|_| Latent::zeros(&[batch, 1, h, w]))
    }
}

/// The weight at a place along one side of an area: it falls toward edges that are inside the latent.
fn fade(at: usize, length: usize, (start, whole): (usize, usize)) -> f32 {
    let over = FADE.min(length / 4);
    let mut weight = 1.0;
    if start != 0 && at < over {
        weight *= (1.0 / over as f32) * (at + 1) as f32;
    }
    let from_end = length - 1 - at;
    if start + length < whole && from_end < over {
        weight *= (1.0 / over as f32) * (from_end + 1) as f32;
    }
    weight
}

/// The box around what a mask has, over all its items.
fn bounds(planes: &Latent, height: usize, width: usize) -> [usize; 4] {
    let mut found: Option<[usize; 4]> = None;
    for (at, value) in planes.values().iter().enumerate() {
        if *value != 0.0 {
            let (y, x) = (at / width % height, at % width);
            let [top, left, bottom, right] = found.unwrap_or([y, x, y, x]);
            found = Some([top.min(y), left.min(x), bottom.max(y), right.max(x)]);
        }
    }
    let Some([top, left, bottom, right]) = found else { return [SMALLEST_AREA, SMALLEST_AREA, 0, 0] };
    [(bottom - top + 1).max(SMALLEST_AREA), (right - left + 1).max(SMALLEST_AREA), top, left]
}

/// Conditionings for a latent of a shape, each with a counterpart for every area that another has.
pub(crate) fn ready(
    conditionings: &[&Conditioning],
    shape: [usize; 4],
    sampling: &ModelSampling,
) -> Result<Vec<Vec<ReadyEntry>>> {
    let entries = |conditioning: &&Conditioning| -> Result<Vec<ReadyEntry>> {
        conditioning.entries.iter().map(|entry| ReadyEntry::new(entry, &shape, sampling)).collect()
    };
    let mut all = conditionings.iter().map(entries).collect::<Result<Vec<_>>>()?;
    for from in 0..all.len() {
        let mut at = 0;
        while let Some(entry) = all[from].get(at).cloned() {
            for (to, others) in all.iter_mut().enumerate() {
                if to != from {
                    add_counterpart(others, &entry);
                }
            }
            at += 1;
        }
    }
    Ok(all)
}

/// Adds what counts in the area of `entry` if nothing does in exactly that area: what the smallest entry around
/// it tells, where and when `entry` counts.
fn add_counterpart(entries: &mut Vec<ReadyEntry>, entry: &ReadyEntry) {
    let Some(area) = entry.area else { return };
    let inside = |outer: [usize; 4]| {
        let [h, w, top, left] = area;
        let [outer_h, outer_w, outer_top, outer_left] = outer;
        top >= outer_top
            && left >= outer_left
            && top + h <= outer_top + outer_h
            && left + w <= outer_left + outer_w
    };
    let mut smallest: Option<&ReadyEntry> = None;
    for other in entries.iter() {
        smallest = match (other.area, smallest) {
            (Some(area), known) if inside(area) => match known.and_then(|known| known.area) {
                Some(known_area) if known_area[0] * known_area[1] <= area[0] * area[1] => known,
                _ => Some(other),
            },
            (Some(_), known) => known,
            (None, None) => Some(other),
            (None, known) => known,
        };
    }
    let Some(smallest) = smallest.filter(|smallest| smallest.area != Some(area)) else { return };
    let counterpart = ReadyEntry { told: Arc::clone(&smallest.told), ..entry.clone() };
    entries.push(counterpart);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Array, Mask};

    const SHAPE: [usize; 4] = [1, 16, 16, 32];

    fn entry() -> Entry {
        Entry::new(Array { shape: vec![1, 1, 1], values: vec![0.0] }, None)
    }

    fn ready_one(entry: &Entry) -> ReadyEntry {
        ReadyEntry::new(entry, &SHAPE, &ModelSampling::flux(1.15)).unwrap()
    }

    #[test]
    fn areas_fade_where_the_latent_goes_on() {
        let area = Some(Area::Shares([1.0, 0.5, 0.0, 0.5]));
        let right = ready_one(&Entry { area, strength: 2.0, ..entry() });
        assert_eq!(right.area, Some([16, 16, 0, 16]));
        let weights = right.weights(SHAPE);
        assert_eq!(weights.shape(), [1, 1, 16, 16]);
        // Four values fade at the left; the right edge is the latent's own.
        assert_eq!(&weights.values()[..6], &[0.5, 1.0, 1.5, 2.0, 2.0, 2.0]);
        assert_eq!(weights.values()[15], 2.0);
    }

    #[test]
    fn the_other_conditioning_gets_the_same_areas() {
        let area = Some(Area::Values([8, 8, 0, 0]));
        let positive = Conditioning { entries: vec![Entry { area, strength: 0.5, ..entry() }, entry()] };
        let negative = Conditioning { entries: vec![Entry { guidance: Some(7.0), ..entry() }] };
        let all = ready(&[&positive, &negative], SHAPE, &ModelSampling::flux(1.15)).unwrap();
        assert_eq!((all[0].len(), all[1].len()), (2, 2));
        let counterpart = &all[1][1];
        assert_eq!((counterpart.area, counterpart.strength), (Some([8, 8, 0, 0]), 0.5));
        assert_eq!(counterpart.told.guidance, Some(7.0));
    }

    #[test]
    fn times_and_masks_limit_an_entry() {
        let late = ready_one(&Entry { start_percent: 0.5, ..entry() });
        assert!(!late.counts_at(1.0) && late.counts_at(0.1));
        assert!(ready_one(&entry()).counts_at(3.0));
        let mut values = vec![0.0; 16 * 32];
        values[5 * 32 + 20] = 1.0;
        let mask = Mask::collect(&crate::host::Host::with_budget(1 << 30), [1, 16, 32], values);
        let mask = Arc::new(mask.unwrap());
        let masked =
            ready_one(&Entry { mask: Some(mask), mask_sets_area: true, mask_strength: 0.5, ..entry() });
        assert_eq!(masked.area, Some([8, 8, 5, 20]));
        assert_eq!(masked.weights(SHAPE).values()[0], 0.5);
        assert_eq!(masked.weights(SHAPE).values()[1..].iter().sum::<f32>(), 0.0);
    }
}
