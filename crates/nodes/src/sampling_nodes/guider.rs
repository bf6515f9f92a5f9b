//! Guiders: which conditionings are predicted with, and how their predictions become one.

use std::sync::Arc;

use graph::Object;
use sampling::{Latent, Prediction};

use super::predicting::Evaluator;
use crate::Result;
use crate::studio::Model;
use crate::value::Conditioning;

/// A model with its conditionings: `GUIDER`.
#[derive(Clone)]
pub(crate) struct Guider {
    pub(crate) model: Arc<Model>,
    pub(crate) guiding: Guiding,
}

/// How predictions become one.
#[derive(Clone)]
pub(crate) enum Guiding {
    /// One conditioning alone.
    Basic { positive: Arc<Conditioning> },
    /// Away from the negative, by a factor.
    Cfg { positive: Arc<Conditioning>, negative: Arc<Conditioning>, cfg: f64 },
    /// Between two, and away from a third.
    Dual {
        first: Arc<Conditioning>,
        second: Arc<Conditioning>,
        negative: Arc<Conditioning>,
        /// From the second to the first.
        cfg_conds: f64,
        /// From the negative to the second.
        cfg_negative: f64,
        /// The first factor is applied within the second.
        nested: bool,
    },
}

impl Guider {
    /// The conditionings, in the order in which they are evaluated.
    pub(crate) fn conditionings(&self) -> Vec<&Conditioning> {
        match &self.guiding {
            Guiding::Basic { positive } => vec![positive],
            Guiding::Cfg { positive, negative, .. } => vec![positive, negative],
            Guiding::Dual { first, second, negative, .. } => vec![first, second, negative],
        }
    }

    /// The factor that the sampler applies.
    pub(crate) fn cfg(&self) -> f64 {
        match self.guiding {
            Guiding::Cfg { cfg, .. } => cfg,
            Guiding::Basic { .. } | Guiding::Dual { .. } => 1.0,
        }
    }

    /// The guided prediction, for runs in which the sampler does not guide.
    pub(crate) fn guided(
        &self,
        evaluator: &Evaluator<'_>,
        x: &Latent,
        sigma: f32,
        want_negative: bool,
    ) -> Result<Prediction> {
        match &self.guiding {
            Guiding::Basic { .. } => evaluator.predict_both(x, sigma, want_negative),
            Guiding::Cfg { cfg, .. } => {
                let wanted = want_negative || !is_one(*cfg);
                let both = evaluator.predict_both(x, sigma, wanted)?;
                let positive = match &both.negative {
                    Some(negative) => between(negative, &both.positive, *cfg),
                    None => both.positive,
                };
                Ok(Prediction { positive, negative: both.negative })
            }
            Guiding::Dual { cfg_conds, cfg_negative, nested, .. } => {
                let predict = |which: usize| evaluator.predict(which, x, sigma);
                // A factor of one makes what it starts from irrelevant.
                let (skip_negative, skip_second) = (
                    is_one(*cfg_negative) && !nested,
                    is_one(*cfg_conds) && is_one(*cfg_negative) && !nested,
                );
                let first = predict(0)?;
                let nothing = || Latent::zeros(x.shape());
                let second = if skip_second { nothing() } else { predict(1)? };
                let negative = if skip_negative { nothing() } else { predict(2)? };
                let positive = if *nested {
                    between(&negative, &between(&second, &first, *cfg_conds), *cfg_negative)
                } else {
                    let away = between(&negative, &second, *cfg_negative);
                    let mut sum = away;
                    let steps = first.values().iter().zip(second.values());
                    sum.values_mut().iter_mut().zip(steps).for_each(|(sum, (first, second))| {
                        *sum += (first - second) * *cfg_conds as f32;
                    });
                    sum
                };
                Ok(Prediction { positive, negative: Some(negative) })
            }
        }
    }
}

/// From one latent so many times the way to another.
fn between(from: &Latent, to: &Latent, factor: f64) -> Latent {
    let mut out = from.clone();
    let factor = factor as f32;
    out.values_mut().iter_mut().zip(to.values()).for_each(|(out, to)| *out += (to - *out) * factor);
    out
}

fn is_one(factor: f64) -> bool {
    (factor - 1.0).abs() <= 1e-9 * factor.abs().max(1.0)
}

impl Object for Guider {
    fn is_current(&self) -> bool {
        self.model.is_current()
    }

    fn describe(&self) -> String {
        let kind = match self.guiding {
            Guiding::Basic { .. } => "one conditioning",
            Guiding::Cfg { .. } => "two conditionings",
            Guiding::Dual { .. } => "three conditionings",
        };
        format!("guider of {} with {kind}", self.model.describe())
    }
}

impl std::fmt::Debug for Guider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}
