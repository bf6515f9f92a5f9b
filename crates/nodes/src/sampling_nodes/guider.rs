//! Guiders: which conditionings are predicted with, and how their predictions become one.

use std::sync::Arc;

use graph::Object;
use sampling::Latent;

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
    /// The conditionings; elsewhere they are known by their places in this list.
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

    /// The guided prediction and the negative one, as far as they are wanted, for runs in which the sampler does not
    /// guide. All conditionings go through the model in one pass.
    pub(crate) fn guided(
        &self,
        evaluator: &Evaluator<'_>,
        x: &Latent,
        sigma: f32,
        wanted: &[sampling::Conditioning],
    ) -> Result<Vec<Latent>> {
        let evaluated = self.guiding.evaluated(wanted.contains(&sampling::Conditioning::Negative));
        // What is not evaluated sees nothing.
        let mut predictions = [(); 3].map(|()| None);
        for (which, prediction) in evaluated.iter().zip(evaluator.predict(&evaluated, x, sigma)?) {
            predictions[*which] = Some(prediction);
        }
        let [first, second, third] =
            predictions.map(|prediction| prediction.unwrap_or_else(|| Latent::zeros(x.shape())));
        let (guided, negative) = match &self.guiding {
            Guiding::Basic { .. } => (first, second),
            Guiding::Cfg { .. } if evaluated.len() == 1 => (first, second),
            Guiding::Cfg { cfg, .. } => (between(&second, &first, *cfg), second),
            Guiding::Dual { cfg_conds, cfg_negative, nested: true, .. } => {
                (between(&third, &between(&second, &first, *cfg_conds), *cfg_negative), third)
            }
            Guiding::Dual { cfg_conds, cfg_negative, .. } => {
                let mut sum = between(&third, &second, *cfg_negative);
                let steps = first.values().iter().zip(second.values());
                sum.values_mut().iter_mut().zip(steps).for_each(|(sum, (first, second))| {
                    *sum += (first - second) * *cfg_conds as f32;
                });
                (sum, third)
            }
        };
        let asked = wanted.iter().map(|conditioning| match conditioning {
            sampling::Conditioning::Positive => guided.clone(),
            sampling::Conditioning::Negative => negative.clone(),
        });
        Ok(asked.collect())
    }
}

impl Guiding {
    /// The conditionings that a step evaluates, by their places. A factor of one makes what it starts from
    /// irrelevant, unless the sampler itself steps away from the negative.
    pub(crate) fn evaluated(&self, want_negative: bool) -> Vec<usize> {
        match *self {
            Guiding::Basic { .. } => vec![0],
            Guiding::Cfg { cfg, .. } if want_negative || !is_one(cfg) => vec![0, 1],
            Guiding::Cfg { .. } => vec![0],
            Guiding::Dual { cfg_negative, nested, .. }
                if want_negative || nested || !is_one(cfg_negative) =>
            {
                vec![0, 1, 2]
            }
            Guiding::Dual { cfg_conds, .. } if !is_one(cfg_conds) => vec![0, 1],
            Guiding::Dual { .. } => vec![0],
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_matters_is_evaluated() {
        let text = || Arc::new(Conditioning { entries: Vec::new() });
        let cfg = |cfg: f64| Guiding::Cfg { positive: text(), negative: text(), cfg };
        let dual = |cfg_conds: f64, cfg_negative: f64, nested: bool| Guiding::Dual {
            first: text(),
            second: text(),
            negative: text(),
            cfg_conds,
            cfg_negative,
            nested,
        };
        let cases: [(Guiding, &[usize], &[usize]); 7] = [
            (Guiding::Basic { positive: text() }, &[0], &[0]),
            (cfg(1.0), &[0], &[0, 1]),
            (cfg(3.5), &[0, 1], &[0, 1]),
            (dual(1.0, 1.0, false), &[0], &[0, 1, 2]),
            (dual(2.0, 1.0, false), &[0, 1], &[0, 1, 2]),
            (dual(1.0, 2.0, false), &[0, 1, 2], &[0, 1, 2]),
            (dual(1.0, 1.0, true), &[0, 1, 2], &[0, 1, 2]),
        ];
        for (index, (guiding, plain, with_negative)) in cases.iter().enumerate() {
            assert_eq!(
                (&*guiding.evaluated(false), &*guiding.evaluated(true)),
                (*plain, *with_negative),
                "{index}"
            );
        }
    }
}
