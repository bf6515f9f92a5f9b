//! Stages instead of the usual weighing of two predictions.

use super::Weighing;
use super::groups::Groups;
use crate::Latent;

/// Another way to weigh the positive prediction against the negative one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InsteadOfCfg {
    /// The result is brought to the spread of the positive prediction, seen as a velocity (Lin et al. 2023).
    Rescaled {
        /// How much of the rescaled result is taken.
        share: f64,
    },
    /// Below a level the usual weighing, kept from growing longer than the positive prediction; above it, the positive alone.
    Renormed {
        /// Guidance begins below this level.
        below: f64,
        /// How many times the positive's length the result may have; no limit at zero.
        longest: f64,
    },
    /// The scale rises from the first item to the last.
    Rising {
        /// The scale of the first item.
        first: f64,
    },
    /// The scale rises from the first item to the middle and falls to the last.
    Triangle {
        /// The scale of the first and last item.
        lowest: f64,
    },
}

impl InsteadOfCfg {
    /// The prediction that guidance gives.
    #[must_use]
    pub fn apply(&self, weighing: &Weighing<'_>) -> Latent {
        let Weighing { x, positive, negative, .. } = *weighing;
        match *self {
            InsteadOfCfg::Rescaled { share } => rescaled(weighing, share as f32),
            InsteadOfCfg::Renormed { below, longest } => renormed(weighing, below, longest),
            InsteadOfCfg::Rising { .. } | InsteadOfCfg::Triangle { .. } => {
                let items = x.shape().first().copied().unwrap_or(1);
                let scales: Vec<f32> = (0..items).map(|item| self.scale_of(item, items, weighing)).collect();
                let groups = Groups::items(x.shape());
                let noise = |clean: &Latent| x.zip(clean, |x, clean| x - clean);
                let (yes, no) = (noise(positive), noise(negative));
                let guidance = yes.zip(&no, |yes, no| yes - no);
                let guidance = groups.map(&guidance, |item, value| scales[item] * value);
                x.zip3(&no, &guidance, |x, no, guidance| x - (no + guidance))
            }
        }
    }

    /// The scale of one of several items.
    fn scale_of(&self, item: usize, items: usize, weighing: &Weighing<'_>) -> f32 {
        let along = if items > 1 { item as f64 / (items - 1) as f64 } else { 0.0 };
        let scale = match *self {
            InsteadOfCfg::Rising { first } => first + (weighing.scale - first) * along,
            InsteadOfCfg::Triangle { lowest } => {
                let height = 2.0 * (along - (along + 0.5).floor()).abs();
                height * (weighing.scale - lowest) + lowest
            }
            _ => weighing.scale,
        };
        scale as f32
    }
}

fn rescaled(weighing: &Weighing<'_>, share: f32) -> Latent {
    let Weighing { x, sigma, positive, negative, scale, .. } = *weighing;
    let (variance, scale) = (sigma * sigma + 1.0, scale as f32);
    let deviation = variance.sqrt();
    let velocity = |clean: &Latent| x.zip(clean, |x, clean| ((x / variance - clean) * deviation) / sigma);
    let (yes, no) = (velocity(positive), velocity(negative));
    let guided = no.zip(&yes, |no, yes| no + scale * (yes - no));
    let groups = Groups::along(x.shape(), 1..4);
    let ratios: Vec<f32> = groups
        .deviations(&yes)
        .into_iter()
        .zip(groups.deviations(&guided))
        .map(|(positive, guided)| (positive / guided) as f32)
        .collect();
    let mixed = groups.map(&guided, |group, value| share * (value * ratios[group]) + (1.0 - share) * value);
    x.zip(&mixed, |x, mixed| x / variance - mixed * sigma / deviation)
}

fn renormed(weighing: &Weighing<'_>, below: f64, longest: f64) -> Latent {
    if f64::from(weighing.sigma) >= below {
        return weighing.positive.clone();
    }
    let guided = weighing.guided();
    if longest <= 0.0 {
        return guided;
    }
    let groups = Groups::items(guided.shape());
    let most: Vec<f64> = groups.norms(weighing.positive).into_iter().map(|norm| norm * longest).collect();
    let shorter: Vec<f32> = groups
        .norms(&guided)
        .into_iter()
        .zip(most)
        .map(|(norm, most)| if norm >= most { (most / norm) as f32 } else { 1.0 })
        .collect();
    groups.map(&guided, |item, value| value * shorter[item])
}

/// Perp-Neg (Armandpour et al. 2023): away from an empty prompt toward the positive, and from what of the negative is at
/// right angles to it.
#[must_use]
pub fn perpendicular(positive: &Latent, negative: &Latent, empty: &Latent, scales: [f64; 2]) -> Latent {
    let [scale, negative_scale] = scales.map(|scale| scale as f32);
    let yes = positive.zip(empty, |yes, empty| yes - empty);
    let no = negative.zip(empty, |no, empty| no - empty);
    let all = Groups::along(yes.shape(), 0..yes.shape().len());
    let (shared, length) = (all.products(&no, &yes)[0], all.products(&yes, &yes)[0]);
    // A positive prompt that is the empty one has no direction; the reference divides by zero there.
    let along = if length == 0.0 { 0.0 } else { (shared / length) as f32 };
    let away = no.zip(&yes, |no, yes| (no - along * yes) * negative_scale);
    empty.zip3(&yes, &away, |empty, yes, away| empty + scale * (yes - away))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSampling;

    fn latent(items: usize, values: &[f32]) -> Latent {
        Latent::new(vec![items, 1, 1, values.len() / items], values.to_vec()).unwrap()
    }

    #[test]
    fn scales_go_over_the_items() {
        let sampling = ModelSampling::exponential_flow(1.15);
        let (x, yes, no) = (latent(3, &[0.0; 3]), latent(3, &[1.0; 3]), latent(3, &[0.0; 3]));
        let weighing =
            Weighing { x: &x, sigma: 1.0, positive: &yes, negative: &no, scale: 3.0, sampling: &sampling };
        assert_eq!(InsteadOfCfg::Rising { first: 1.0 }.apply(&weighing).values(), [1.0, 2.0, 3.0]);
        assert_eq!(InsteadOfCfg::Triangle { lowest: 1.0 }.apply(&weighing).values(), [1.0, 3.0, 1.0]);
    }

    #[test]
    fn a_result_is_no_longer_than_the_positive() {
        let sampling = ModelSampling::exponential_flow(1.15);
        let (x, yes, no) = (latent(1, &[0.0; 2]), latent(1, &[3.0, 4.0]), latent(1, &[0.0; 2]));
        let weighing =
            Weighing { x: &x, sigma: 0.5, positive: &yes, negative: &no, scale: 2.0, sampling: &sampling };
        let apply = |below, longest| InsteadOfCfg::Renormed { below, longest }.apply(&weighing);
        assert_eq!(apply(1.0, 1.0).values(), [3.0, 4.0]);
        assert_eq!(apply(1.0, 0.0).values(), [6.0, 8.0]);
        assert_eq!(apply(0.5, 0.0).values(), [3.0, 4.0]);
        let rescaled = InsteadOfCfg::Rescaled { share: 0.0 }.apply(&weighing);
        assert!(rescaled.values().iter().zip([6.0, 8.0]).all(|(got, want)| (got - want).abs() < 1e-5));
    }

    #[test]
    fn what_of_the_negative_is_along_the_positive_does_not_count() {
        let (empty, yes) = (latent(1, &[0.0; 2]), latent(1, &[1.0, 0.0]));
        let along = perpendicular(&yes, &latent(1, &[5.0, 0.0]), &empty, [2.0, 1.0]);
        assert_eq!(along.values(), [2.0, 0.0]);
        let across = perpendicular(&yes, &latent(1, &[5.0, 1.0]), &empty, [2.0, 0.5]);
        assert_eq!(across.values(), [2.0, -1.0]);
        let without_direction = perpendicular(&empty, &latent(1, &[5.0, 1.0]), &empty, [2.0, 0.5]);
        assert_eq!(without_direction.values(), [-5.0, -1.0]);
    }
}
