//! Guiders: which conditionings are predicted with, and how their predictions become one.

use std::sync::Arc;

use graph::Object;

use crate::value::Conditioning;
use runtime::Model;

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
    /// Away from an empty prompt, without what the negative has in common with the positive.
    Perpendicular {
        positive: Arc<Conditioning>,
        negative: Arc<Conditioning>,
        empty: Arc<Conditioning>,
        cfg: f64,
        /// How much the negative counts.
        negative_scale: f64,
    },
}

/// The two conditionings that guidance weighs against each other, by their places, and its scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Roles {
    pub(crate) positive: usize,
    /// None where a guider has no such.
    pub(crate) negative: Option<usize>,
    pub(crate) scale: f64,
}

impl Guider {
    /// The conditionings; elsewhere they are known by their places in this list.
    pub(crate) fn conditionings(&self) -> Vec<&Conditioning> {
        match &self.guiding {
            Guiding::Basic { positive } => vec![positive],
            Guiding::Cfg { positive, negative, .. } => vec![positive, negative],
            Guiding::Dual { first, second, negative, .. } => vec![first, second, negative],
            Guiding::Perpendicular { positive, negative, empty, .. } => vec![positive, negative, empty],
        }
    }

    /// The factor that the sampler applies.
    pub(crate) fn cfg(&self) -> f64 {
        match self.guiding {
            Guiding::Cfg { cfg, .. } => cfg,
            Guiding::Basic { .. } | Guiding::Dual { .. } | Guiding::Perpendicular { .. } => 1.0,
        }
    }

    /// Whether the sampler can be left to guide by itself.
    pub(crate) fn is_usual(&self) -> bool {
        let usual = matches!(self.guiding, Guiding::Basic { .. } | Guiding::Cfg { .. });
        usual && self.model.guidance.is_usual()
    }
}

impl Guiding {
    /// Whether a conditioning, by its place, says what the picture is not to be. What stands behind the guider's own does.
    pub(crate) fn is_negative(&self, place: usize) -> bool {
        match self {
            Guiding::Basic { .. } | Guiding::Cfg { .. } | Guiding::Perpendicular { .. } => place > 0,
            Guiding::Dual { .. } => place > 1,
        }
    }

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
            Guiding::Perpendicular { negative_scale, .. } if want_negative || negative_scale != 0.0 => {
                vec![0, 1, 2]
            }
            Guiding::Perpendicular { cfg, .. } if !is_one(cfg) => vec![0, 2],
            Guiding::Perpendicular { .. } => vec![0],
        }
    }

    /// What is weighed against each other by the formula that nodes may replace.
    pub(crate) fn roles(&self) -> Roles {
        match *self {
            Guiding::Basic { .. } => Roles { positive: 0, negative: None, scale: 1.0 },
            Guiding::Cfg { cfg, .. } => Roles { positive: 0, negative: Some(1), scale: cfg },
            Guiding::Dual { cfg_conds, nested: true, .. } => {
                Roles { positive: 0, negative: Some(1), scale: cfg_conds }
            }
            Guiding::Dual { cfg_negative, .. } => {
                Roles { positive: 1, negative: Some(2), scale: cfg_negative }
            }
            Guiding::Perpendicular { cfg, .. } => Roles { positive: 0, negative: Some(1), scale: cfg },
        }
    }
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
            Guiding::Dual { .. } | Guiding::Perpendicular { .. } => "three conditionings",
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
        let perpendicular = |cfg: f64, negative_scale: f64| Guiding::Perpendicular {
            positive: text(),
            negative: text(),
            empty: text(),
            cfg,
            negative_scale,
        };
        let cases: [(Guiding, &[usize], &[usize]); 10] = [
            (Guiding::Basic { positive: text() }, &[0], &[0]),
            (cfg(1.0), &[0], &[0, 1]),
            (cfg(3.5), &[0, 1], &[0, 1]),
            (dual(1.0, 1.0, false), &[0], &[0, 1, 2]),
            (dual(2.0, 1.0, false), &[0, 1], &[0, 1, 2]),
            (dual(1.0, 2.0, false), &[0, 1, 2], &[0, 1, 2]),
            (dual(1.0, 1.0, true), &[0, 1, 2], &[0, 1, 2]),
            (perpendicular(1.0, 0.0), &[0], &[0, 1, 2]),
            (perpendicular(2.0, 0.0), &[0, 2], &[0, 1, 2]),
            (perpendicular(1.0, 0.5), &[0, 1, 2], &[0, 1, 2]),
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
