//! Conditionings made ready for a run: areas in latent values, masks at latent size, times as noise levels.

use std::sync::Arc;

use sampling::{Latent, LatentShape, ModelSampling, Window, resize_mask};

use super::coverage::Coverage;
use crate::Result;
use crate::value::{Area, Conditioning, Entry};

/// The smallest sides of an area around a mask.
const SMALLEST_AREA: usize = 8;
/// Over so many values the edge of an area fades.
const FADE: usize = 8;

/// One entry for a latent of a known size.
#[derive(Clone, Debug)]
pub(crate) struct ReadyEntry {
    /// The entry.
    pub(crate) entry: Arc<Entry>,
    /// Where it was said to count, which may reach over the edge.
    area: Option<Window>,
    /// Where it counts, and how much.
    pub(crate) coverage: Arc<Coverage>,
    /// The levels between which it counts, the higher first.
    levels: Option<(f64, f64)>,
}

impl ReadyEntry {
    fn new(entry: &Entry, shape: LatentShape, sampling: &ModelSampling) -> Result<ReadyEntry> {
        let LatentShape { height, width, .. } = shape;
        let share = |share: f64, of: usize| (share * of as f64).round_ties_even().max(0.0) as usize;
        let mut area = entry.area.map(|area| match area {
            Area::Values(values) => values,
            Area::Shares([h, w, top, left]) => {
                [share(h, height).max(1), share(w, width).max(1), share(top, height), share(left, width)]
            }
        });
        let mut mask = None;
        if let Some(given) = &entry.mask {
            let planes = resize_mask(&given.planes()?, &[given.batch, 1, height, width])?;
            if entry.mask_sets_area {
                area = Some(bounds(&planes, height, width));
            }
            mask = Some(planes);
        }
        let always = entry.start_percent == 0.0 && entry.end_percent == 1.0;
        let level = |percent: f64| sampling.percent_to_sigma(percent);
        Ok(ReadyEntry {
            entry: Arc::new(entry.clone()),
            area,
            coverage: Arc::new(coverage(entry, area, mask.as_ref(), shape)),
            levels: (!always).then(|| (level(entry.start_percent), level(entry.end_percent))),
        })
    }

    /// Whether it counts at a level.
    pub(crate) fn counts_at(&self, sigma: f32) -> bool {
        self.levels.is_none_or(|(from, to)| f64::from(sigma) <= from && f64::from(sigma) >= to)
    }
}

/// Where and how much an entry counts: in its area as far as that is inside the latent, by its mask.
fn coverage(entry: &Entry, area: Option<Window>, mask: Option<&Latent>, shape: LatentShape) -> Coverage {
    let LatentShape { batch, height, width, .. } = shape;
    let inside = |[h, w, top, left]: Window| {
        let (top, left) = (top.min(height.saturating_sub(1)), left.min(width.saturating_sub(1)));
        [h.min(height - top), w.min(width - left), top, left]
    };
    let window @ [h, w, top, left] = area.map_or([height, width, 0, 0], inside);
    let mut weights = vec![entry.strength; batch * h * w];
    if let Some(mask) = mask {
        let items = mask.shape().first().copied().unwrap_or(1).clamp(1, batch.max(1));
        for (at, weight) in weights.iter_mut().enumerate() {
            let (item, y, x) = (at / (h * w) % items, at / w % h, at % w);
            let place = (item * height + top + y) * width + left + x;
            *weight *= mask.values()[place] * entry.mask_strength;
        }
    } else if area.is_some() {
        for (at, weight) in weights.iter_mut().enumerate() {
            *weight *= fade(at / w % h, h, (top, height)) * fade(at % w, w, (left, width));
        }
    }
    Coverage::new(window, weights)
}

/// An entry of a conditioning that counts at a level, by its place among the entries, and where it counts there.
pub(crate) struct Counting {
    pub(crate) index: usize,
    pub(crate) coverage: Arc<Coverage>,
}

/// The entries that count at a level, in the order in which their answers are joined. Default entries come last and
/// count where the others leave something over.
pub(crate) fn counting_at(entries: &[ReadyEntry], sigma: f32, shape: LatentShape) -> Vec<Counting> {
    let at_level = |is_default: bool| {
        let all = entries.iter().enumerate();
        all.filter(move |(_, entry)| entry.entry.is_default == is_default && entry.counts_at(sigma))
    };
    let mut counting: Vec<Counting> =
        at_level(false).map(|(index, entry)| Counting { index, coverage: entry.coverage.clone() }).collect();
    if at_level(true).next().is_some()
        && let Some(rest) =
            Coverage::of_the_rest(counting.iter().map(|counting| counting.coverage.as_ref()), shape)
    {
        let coverage = Arc::new(rest);
        counting.extend(at_level(true).map(|(index, _)| Counting { index, coverage: coverage.clone() }));
    }
    counting
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
    shape: LatentShape,
    sampling: &ModelSampling,
) -> Result<Vec<Vec<ReadyEntry>>> {
    let entries = |conditioning: &&Conditioning| -> Result<Vec<ReadyEntry>> {
        conditioning.entries.iter().map(|entry| ReadyEntry::new(entry, shape, sampling)).collect()
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
    if let Some((positive, others)) = all.split_first_mut() {
        others.iter_mut().for_each(|entries| {
            follow(positive, entries);
            share_grounding(positive, entries);
        });
    }
    Ok(all)
}

/// Lets entries without an area follow what those of the positive conditioning say that the others follow, too, unless one
/// of them follows a picture already.
fn follow(positive: &[ReadyEntry], entries: &mut Vec<ReadyEntry>) {
    let is_whole = |entry: &&ReadyEntry| entry.area.is_none();
    let whole = positive.iter().filter(is_whole);
    let controlled: Vec<&ReadyEntry> =
        whole.filter(|entry| entry.entry.controls_negative && !entry.entry.controls.is_empty()).collect();
    let follows = |entry: &ReadyEntry| !entry.entry.controls.is_empty();
    if controlled.is_empty() || entries.iter().filter(is_whole).any(follows) {
        return;
    }
    let places: Vec<usize> = (0..entries.len()).filter(|at| entries[*at].area.is_none()).collect();
    for (index, from) in controlled.into_iter().enumerate() {
        let Some(place) = places.get(index % places.len().max(1)).copied() else { return };
        let controls = from.entry.controls.clone();
        let entry = Entry { controls, ..Entry::clone(&entries[place].entry) };
        let following = ReadyEntry { entry: Arc::new(entry), ..entries[place].clone() };
        // More controls than entries: one that follows already gets a companion.
        if follows(&entries[place]) {
            entries.push(following);
        } else {
            entries[place] = following;
        }
    }
}

/// Tells entries without an area what those of the positive conditioning are told of places, unless one of them is told of
/// places already.
fn share_grounding(positive: &[ReadyEntry], entries: &mut Vec<ReadyEntry>) {
    let is_whole = |entry: &&ReadyEntry| entry.area.is_none();
    let told = positive.iter().filter(is_whole).filter_map(|entry| entry.entry.grounding.as_ref());
    let is_told = |entry: &ReadyEntry| entry.entry.grounding.is_some();
    if entries.iter().filter(is_whole).any(is_told) {
        return;
    }
    let places: Vec<usize> = (0..entries.len()).filter(|at| entries[*at].area.is_none()).collect();
    for (index, grounding) in told.enumerate() {
        let Some(place) = places.get(index % places.len().max(1)).copied() else { return };
        let entry = Entry { grounding: Some(Arc::clone(grounding)), ..Entry::clone(&entries[place].entry) };
        let told = ReadyEntry { entry: Arc::new(entry), ..entries[place].clone() };
        // More than there are entries: one that is told already gets a companion.
        if is_told(&entries[place]) {
            entries.push(told);
        } else {
            entries[place] = told;
        }
    }
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
    let counterpart = ReadyEntry { entry: Arc::clone(&smallest.entry), ..entry.clone() };
    entries.push(counterpart);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Array, Guidance, Mask};

    const SHAPE: LatentShape = LatentShape { batch: 1, channels: 16, frames: 1, height: 16, width: 32 };

    fn entry() -> Entry {
        Entry::text(Array { shape: vec![1, 1, 1], values: vec![0.0] }, None)
    }

    fn ready_one(entry: &Entry) -> ReadyEntry {
        ReadyEntry::new(entry, SHAPE, &ModelSampling::exponential_flow(1.15)).unwrap()
    }

    #[test]
    fn areas_fade_where_the_latent_goes_on() {
        let area = Some(Area::Shares([1.0, 0.5, 0.0, 0.5]));
        let right = ready_one(&Entry { area, strength: 2.0, ..entry() });
        assert_eq!(right.area, Some([16, 16, 0, 16]));
        assert_eq!(right.coverage.window(), [16, 16, 0, 16]);
        // Four values fade at the left; the right edge is the latent's own.
        let weights = [0, 1, 2, 3, 4, 5, 15].map(|x| right.coverage.weight(0, 0, x));
        assert_eq!(weights, [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0]);
        // What reaches over the edge is cut.
        let area = Some(Area::Values([20, 20, 8, 30]));
        assert_eq!(ready_one(&Entry { area, ..entry() }).coverage.window(), [8, 2, 8, 30]);
    }

    #[test]
    fn the_other_conditioning_gets_the_same_areas() {
        let area = Some(Area::Values([8, 8, 0, 0]));
        let positive = Conditioning { entries: vec![Entry { area, strength: 0.5, ..entry() }, entry()] };
        let mut guided = entry();
        guided.cond.guidance = Guidance::Scale(7.0);
        let negative = Conditioning { entries: vec![guided] };
        let all = ready(&[&positive, &negative], SHAPE, &ModelSampling::exponential_flow(1.15)).unwrap();
        assert_eq!((all[0].len(), all[1].len()), (2, 2));
        let counterpart = &all[1][1];
        assert_eq!((counterpart.area, counterpart.coverage.weight(0, 0, 0)), (Some([8, 8, 0, 0]), 0.5));
        assert_eq!(counterpart.entry.cond.guidance, Guidance::Scale(7.0));
    }

    #[test]
    fn times_and_masks_limit_an_entry() {
        let late = ready_one(&Entry { start_percent: 0.5, ..entry() });
        assert!(!late.counts_at(1.0) && late.counts_at(0.1));
        assert!(ready_one(&entry()).counts_at(3.0));
        let mut values = vec![0.0; 16 * 32];
        values[5 * 32 + 20] = 1.0;
        let mask = Mask::collect(&runtime::host::Host::with_budget(1 << 30), [1, 16, 32], values);
        let mask = Arc::new(mask.unwrap());
        let masked =
            ready_one(&Entry { mask: Some(mask), mask_sets_area: true, mask_strength: 0.5, ..entry() });
        assert_eq!(masked.area, Some([8, 8, 5, 20]));
        assert_eq!(masked.coverage.weight(0, 0, 0), 0.5);
        let others = (1..64).map(|at| masked.coverage.weight(0, at / 8, at % 8));
        assert_eq!(others.sum::<f32>(), 0.0);
    }

    #[test]
    fn default_entries_count_last_and_where_something_is_left() {
        let left = Some(Area::Values([16, 16, 0, 0]));
        let default = |more: Entry| ready_one(&Entry { is_default: true, ..more });
        let late = Entry { start_percent: 0.5, ..entry() };
        let entries = [default(entry()), ready_one(&Entry { area: left, ..entry() }), ready_one(&late)];
        let places = |sigma: f32| {
            let counting = counting_at(&entries, sigma, SHAPE);
            counting.iter().map(|counting| counting.index).collect::<Vec<_>>()
        };
        // Later on the whole latent is covered.
        assert_eq!((places(1.0), places(0.1)), (vec![1, 0], vec![1, 2]));
        let counting = counting_at(&entries, 1.0, SHAPE);
        let rest = &counting[1].coverage;
        assert_eq!(rest.window(), [16, 32, 0, 0]);
        assert_eq!([rest.weight(0, 3, 3), rest.weight(0, 3, 30)], [0.0, 1.0]);
    }
}
