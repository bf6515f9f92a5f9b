//! Stages before guidance: the predictions themselves change.

use super::Weighing;
use super::frequencies::scaled;
use super::groups::Groups;
use crate::Latent;

/// Lengths below it count as it.
const SHORTEST: f64 = 1e-12;

/// One stage before guidance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BeforeCfg {
    /// Adaptive projected guidance (Sadat et al. 2024): the part along the positive prediction is weighed apart.
    Projected {
        /// How much of the part along the positive prediction stays.
        eta: f64,
        /// The longest that guidance may be; no limit at zero.
        longest: f64,
        /// How much of the guidance of the steps before is kept.
        momentum: f64,
    },
    /// FreSca: slow and fast changes over the picture are scaled by numbers of their own.
    Frequencies {
        /// For slow ones.
        low: f64,
        /// For fast ones.
        high: f64,
        /// How many waves over the picture are still slow.
        cutoff: usize,
    },
    /// Tangential damping (TCFG): of the negative prediction only what goes along both is kept.
    Tangential,
}

/// What a stage remembers from step to step.
#[derive(Clone, Debug, Default)]
pub struct Momentum {
    average: Option<Latent>,
    level: Option<f32>,
}

impl BeforeCfg {
    /// The positive and the negative prediction as this stage leaves them. `negative_evaluated` says whether there is a
    /// negative prediction beside zeros.
    #[must_use]
    pub fn apply(
        &self,
        weighing: &Weighing<'_>,
        negative_evaluated: bool,
        remembered: &mut Momentum,
    ) -> (Latent, Latent) {
        let Weighing { positive, negative, x, .. } = *weighing;
        match *self {
            BeforeCfg::Projected { .. } => (self.projected(weighing, remembered), negative.clone()),
            BeforeCfg::Frequencies { low, high, cutoff } if negative_evaluated => {
                let guidance = positive.zip(negative, |yes, no| yes - no);
                let guidance = scaled(&guidance, [low as f32, high as f32], cutoff);
                (guidance.zip(negative, |guidance, no| guidance + no), negative.clone())
            }
            BeforeCfg::Tangential if negative_evaluated => {
                let noise = |clean: &Latent| x.zip(clean, |x, clean| x - clean);
                let damped = along_both(&noise(positive), &noise(negative));
                (positive.clone(), x.zip(&damped, |x, damped| x - damped))
            }
            BeforeCfg::Frequencies { .. } | BeforeCfg::Tangential => (positive.clone(), negative.clone()),
        }
    }

    fn projected(&self, weighing: &Weighing<'_>, remembered: &mut Momentum) -> Latent {
        let BeforeCfg::Projected { eta, longest, momentum } = *self else {
            return weighing.positive.clone();
        };
        let Weighing { positive, negative, sigma, scale, .. } = *weighing;
        // A level above the last one begins another run.
        if remembered.level.is_some_and(|level| sigma > level) {
            remembered.average = None;
        }
        remembered.level = Some(sigma);
        let mut guidance = positive.zip(negative, |yes, no| yes - no);
        if momentum != 0.0 {
            if let Some(average) = &remembered.average {
                let share = momentum as f32;
                guidance = average.zip(&guidance, |average, now| share * average + now);
            }
            remembered.average = Some(guidance.clone());
        }
        let groups = Groups::of_last_three(guidance.shape());
        if longest > 0.0 {
            let shorter: Vec<f32> =
                groups.norms(&guidance).into_iter().map(|norm| (longest / norm).min(1.0) as f32).collect();
            guidance = groups.map(&guidance, |group, value| value * shorter[group]);
        }
        let lengths: Vec<f64> =
            groups.norms(positive).into_iter().map(|length| length.max(SHORTEST)).collect();
        let direction = groups.map(positive, |group, value| (f64::from(value) / lengths[group]) as f32);
        let along = groups.products(&guidance, &direction);
        let parallel = groups.map(&direction, |group, value| along[group] as f32 * value);
        let (eta, scale) = (eta as f32, scale as f32);
        let changed = guidance.zip(&parallel, |whole, parallel| (whole - parallel) + eta * parallel);
        let base = negative.zip(&changed, |no, changed| no + changed);
        base.zip3(positive, negative, |base, yes, no| base + (yes - no) / scale)
    }
}

/// The part of the negative along the direction that both have most in common: the first right singular vector of the
/// two as rows, one for each item.
fn along_both(positive: &Latent, negative: &Latent) -> Latent {
    let groups = Groups::items(positive.shape());
    let (nn, pp) = (groups.products(negative, negative), groups.products(positive, positive));
    let np = groups.products(negative, positive);
    // The vector is `a * negative + b * positive`, where (a, b) is the first eigenvector of their products.
    let weights: Vec<(f64, f64)> = (0..nn.len())
        .map(|item| {
            let (nn, pp, np) = (nn[item], pp[item], np[item]);
            let largest = (nn + pp) / 2.0 + (((nn - pp) / 2.0).powi(2) + np * np).sqrt();
            if largest <= 0.0 {
                return (0.0, 0.0);
            }
            // Of two forms of the same vector, the one that is not short.
            let (a, b) = if nn >= pp { (largest - pp, np) } else { (np, largest - nn) };
            let squared = (a * a * nn + 2.0 * a * b * np + b * b * pp).max(f64::MIN_POSITIVE);
            // The negative's share of the vector over the vector's squared length, times the vector.
            let share = (a * nn + b * np) / squared;
            (share * a, share * b)
        })
        .collect();
    let mut out = negative.clone();
    for (at, (value, yes)) in out.values_mut().iter_mut().zip(positive.values()).enumerate() {
        let (a, b) = weights[groups.of(at)];
        *value = (a * f64::from(*value) + b * f64::from(*yes)) as f32;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSampling;

    fn latent(values: [f32; 4]) -> Latent {
        Latent::new(vec![1, 1, 2, 2], values.to_vec()).unwrap()
    }

    fn close(got: &Latent, want: [f32; 4]) {
        let far = got.values().iter().zip(want).any(|(got, want)| (got - want).abs() > 1e-5);
        assert!(!far, "{:?} for {want:?}", got.values());
    }

    #[test]
    fn at_usual_numbers_projected_guidance_is_the_usual_one() {
        let sampling = ModelSampling::exponential_flow(1.15);
        let (x, yes, no) = (latent([0.0; 4]), latent([1.0, 2.0, 0.5, 0.0]), latent([0.5, 1.0, 0.0, -1.0]));
        let weighing =
            Weighing { x: &x, sigma: 0.5, positive: &yes, negative: &no, scale: 4.0, sampling: &sampling };
        let usual = BeforeCfg::Projected { eta: 1.0, longest: 0.0, momentum: 0.0 };
        let (positive, negative) = usual.apply(&weighing, true, &mut Momentum::default());
        // `no + guidance + guidance / scale`: by the scale, five times the guidance.
        close(&positive, [1.125, 2.25, 0.625, 0.25]);
        close(&negative, [0.5, 1.0, 0.0, -1.0]);
        // With momentum the second step has the first's guidance, until a run starts anew.
        let kept = BeforeCfg::Projected { eta: 1.0, longest: 0.0, momentum: 0.5 };
        let mut remembered = Momentum::default();
        let values = |remembered: &mut Momentum, sigma: f32| {
            kept.apply(&Weighing { sigma, ..weighing }, true, remembered).0.values()[0]
        };
        assert_eq!([values(&mut remembered, 0.5), values(&mut remembered, 0.4)], [1.125, 1.375]);
        assert_eq!(values(&mut remembered, 0.9), 1.125);
    }

    #[test]
    fn tangential_damping_keeps_what_is_common() {
        let sampling = ModelSampling::exponential_flow(1.15);
        let (x, yes, no) = (latent([0.0; 4]), latent([-2.0, 0.0, 0.0, 0.0]), latent([-1.0, 0.0, 0.0, 0.0]));
        let weighing =
            Weighing { x: &x, sigma: 0.5, positive: &yes, negative: &no, scale: 4.0, sampling: &sampling };
        let mut nothing = Momentum::default();
        close(&BeforeCfg::Tangential.apply(&weighing, true, &mut nothing).1, [-1.0, 0.0, 0.0, 0.0]);
        // At a right angle, the longer one decides, and nothing of the shorter is along it.
        let across = latent([0.0, 1.0, 0.0, 0.0]);
        let weighing = Weighing { negative: &across, ..weighing };
        close(&BeforeCfg::Tangential.apply(&weighing, true, &mut nothing).1, [0.0; 4]);
        close(&BeforeCfg::Tangential.apply(&weighing, false, &mut nothing).1, [0.0, 1.0, 0.0, 0.0]);
    }
}
