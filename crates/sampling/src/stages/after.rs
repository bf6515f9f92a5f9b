//! Stages after guidance: the weighed prediction changes once more.

use super::Weighing;
use super::groups::Groups;
use crate::Latent;
use crate::sampler::lerp;

/// One stage after guidance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AfterCfg {
    /// CFG-Zero* (Fan et al. 2025): the negative is scaled by how much of the positive it explains.
    ZeroStar,
    /// No place may get longer than the positive prediction has it.
    Normed {
        /// A factor on the result.
        strength: f64,
    },
    /// More toward the positive prediction where guidance and negative disagree (Mahiro).
    Directed,
    /// The predicted noise is made smaller (Ning et al. 2023).
    ScaledNoise {
        /// What it is divided by.
        by: f64,
    },
    /// The predicted noise is rescaled by the signal-to-noise ratio (temporal score rescaling).
    RescaledScore {
        /// The ratio late in a run.
        ratio: f64,
        /// How early it takes effect.
        deviation: f64,
    },
}

impl AfterCfg {
    /// What becomes of a prediction.
    #[must_use]
    pub fn apply(&self, weighing: &Weighing<'_>, guided: &Latent) -> Latent {
        let Weighing { x, positive, negative, scale, .. } = *weighing;
        match *self {
            AfterCfg::ZeroStar => {
                let noise = |clean: &Latent| x.zip(clean, |x, clean| x - clean);
                let (yes, no) = (noise(positive), noise(negative));
                let groups = Groups::items(x.shape());
                let shares = groups.products(&yes, &no).into_iter().zip(groups.products(&no, &no));
                let shares: Vec<f32> = shares.map(|(both, no)| (both / (no + 1e-8)) as f32).collect();
                let scale = scale as f32;
                let add = groups
                    .map(negative, |item, no| no * (shares[item] - 1.0) + scale * no * (1.0 - shares[item]));
                guided.zip(&add, |guided, add| guided + add)
            }
            AfterCfg::Normed { strength } => {
                let groups = Groups::along(x.shape(), 1..2);
                let lengths = groups.norms(positive).into_iter().zip(groups.norms(guided));
                let factors: Vec<f32> =
                    lengths.map(|(want, has)| (want / (has + 1e-8)).clamp(0.0, 1.0) as f32).collect();
                groups.map(guided, |place, value| value * factors[place] * strength as f32)
            }
            AfterCfg::Directed => directed(weighing, guided),
            AfterCfg::ScaledNoise { by } => {
                let by = by as f32;
                x.zip(guided, |x, clean| x - (x - clean) / by)
            }
            AfterCfg::RescaledScore { ratio, deviation } => {
                rescaled_score(weighing, guided, ratio, deviation)
            }
        }
    }
}

/// Guidance away from another prediction by `scale`, of which a share `rescaling` is brought back to the spread of the
/// positive prediction.
#[must_use]
pub fn away_from(other: &Latent, guided: &Latent, positive: &Latent, [scale, rescaling]: [f64; 2]) -> Latent {
    let far = scale as f32;
    let moved = guided.zip3(positive, other, |guided, yes, other| guided + (yes - other) * far);
    if rescaling == 0.0 {
        return moved;
    }
    let all = Groups::along(moved.shape(), 0..moved.shape().len());
    let spread = |latent: &Latent| all.deviations(latent)[0];
    let factor = (rescaling * (spread(positive) / spread(&moved)) + (1.0 - rescaling)) as f32;
    moved.map(|value| value * factor)
}

fn directed(weighing: &Weighing<'_>, guided: &Latent) -> Latent {
    let scale = weighing.scale as f32;
    let leap = weighing.positive.map(|value| value * scale);
    let root = |value: f32| value.abs().sqrt().copysign(value);
    let away = weighing.negative.map(|value| root(value * scale));
    let merged = leap.zip(guided, |leap, guided| root((leap + guided) / 2.0));
    let groups = Groups::along(guided.shape(), 1..2);
    let lengths = groups.norms(&away).into_iter().zip(groups.norms(&merged));
    let alike: Vec<f64> = groups
        .products(&away, &merged)
        .into_iter()
        .zip(lengths)
        .map(|(both, (a, b))| both / (a.max(1e-8) * b.max(1e-8)))
        .collect();
    let alike = 2.0 * (alike.iter().sum::<f64>() / alike.len().max(1) as f64 + 1.0);
    let alike = alike as f32;
    guided.zip(&leap, |guided, leap| (alike * guided + (4.0 - alike) * leap) / 4.0)
}

fn rescaled_score(weighing: &Weighing<'_>, guided: &Latent, ratio: f64, deviation: f64) -> Latent {
    let Weighing { x, sigma, sampling, .. } = *weighing;
    if ratio == 1.0 || sigma == 0.0 {
        return guided.clone();
    }
    let half_log = sampling.half_log_snr(sigma);
    let snr = (2.0 * half_log).exp();
    if snr == 0.0 {
        return guided.clone();
    }
    let (ratio, variance) = (ratio as f32, (deviation * deviation) as f32);
    let rescaled = (snr * variance + 1.0) / (snr * variance / ratio + 1.0);
    let share = if snr.is_infinite() { ratio } else { rescaled };
    let signal = sigma * half_log.exp();
    x.zip(guided, |x, clean| lerp(x / signal, clean, share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelSampling, Parameterization};

    fn latent(values: [f32; 2]) -> Latent {
        Latent::new(vec![1, 2, 1, 1], values.to_vec()).unwrap()
    }

    fn apply(stage: AfterCfg, x: [f32; 2], yes: [f32; 2], no: [f32; 2]) -> Vec<f32> {
        let sampling = ModelSampling::discrete(Parameterization::Eps, false);
        let (x, yes, no) = (latent(x), latent(yes), latent(no));
        let weighing =
            Weighing { x: &x, sigma: 1.0, positive: &yes, negative: &no, scale: 2.0, sampling: &sampling };
        stage.apply(&weighing, &weighing.guided()).into_values()
    }

    #[test]
    fn away_from_another_prediction() {
        let (guided, yes, other) = (latent([1.0, 2.0]), latent([1.0, 3.0]), latent([0.0, 3.0]));
        assert_eq!(away_from(&other, &guided, &yes, [2.0, 0.0]).values(), [3.0, 2.0]);
        // The spread of (3, 2) becomes that of (1, 3), which is twice as wide.
        assert_eq!(away_from(&other, &guided, &yes, [2.0, 1.0]).values(), [6.0, 4.0]);
    }

    #[test]
    fn each_stage_is_its_formula() {
        // The negative explains the whole positive: nothing changes.
        assert_eq!(apply(AfterCfg::ZeroStar, [0.0; 2], [1.0, 1.0], [1.0, 1.0]), [1.0, 1.0]);
        // It explains nothing: the negative goes.
        assert_eq!(apply(AfterCfg::ZeroStar, [0.0; 2], [0.0, 2.0], [1.0, 0.0]), [0.0, 4.0]);
        assert_eq!(apply(AfterCfg::Normed { strength: 0.5 }, [0.0; 2], [3.0, 4.0], [0.0; 2]), [1.5, 2.0]);
        assert_eq!(apply(AfterCfg::ScaledNoise { by: 2.0 }, [1.0, 2.0], [0.0; 2], [0.0; 2]), [0.5, 1.0]);
        // Alike: the guided prediction; the other way: the leap.
        let alike = apply(AfterCfg::Directed, [0.0; 2], [1.0, 0.0], [0.5, 0.0]);
        assert!((alike[0] - 1.5).abs() < 1e-5, "{alike:?}");
        let kept = AfterCfg::RescaledScore { ratio: 1.0, deviation: 1.0 };
        assert_eq!(apply(kept, [1.0, 2.0], [0.5; 2], [0.5; 2]), [0.5, 0.5]);
        let halved = AfterCfg::RescaledScore { ratio: 0.5, deviation: 1.0 };
        // At level one the ratio is one: (1 + 1) / (2 + 1) of the way from x.
        let values = apply(halved, [1.0, 1.0], [0.5; 2], [0.5; 2]);
        assert!((values[0] - (1.0 - 0.5 * 2.0 / 3.0)).abs() < 1e-5, "{values:?}");
    }
}
