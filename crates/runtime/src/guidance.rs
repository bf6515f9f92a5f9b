//! What nodes change about the steps of a model, between loader and sampler: stages of guidance, departures of the model
//! from its training, and steps that are guessed. All of it is values; samplers put it in force.

use std::sync::Arc;

use models::conditioning::Cond;
use models::diffusion::Alteration;
use sampling::{AfterCfg, BeforeCfg, InsteadOfCfg, ModelSampling, ReuseRule};

/// What nodes added to a model's guidance. Stages of a kind are applied in the order of their nodes.
#[derive(Clone, Debug, Default)]
pub struct Guidance {
    /// Departures of every evaluation from the model as it was trained.
    pub altered: Vec<Altered>,
    /// Departures of the negative evaluation alone; those of the last node count.
    pub negative_altered: Vec<Altered>,
    /// Before the predictions are weighed against each other.
    pub before: Vec<BeforeCfg>,
    /// Instead of the usual weighing; the last node's counts.
    pub instead: Option<Instead>,
    /// After it.
    pub after: Vec<After>,
    /// Which steps are guessed; the last node's rule counts.
    pub reuse: Option<Reusing>,
}

/// Another way to weigh predictions.
#[derive(Clone, Debug)]
pub enum Instead {
    /// A formula of the two predictions.
    Formula(InsteadOfCfg),
    /// Away from an empty prompt, without what the negative has in common with the positive.
    Perpendicular {
        /// The empty prompt.
        empty: Vec<Arc<Cond>>,
        /// How much the negative counts.
        scale: f64,
    },
}

/// A stage after guidance.
#[derive(Clone, Debug)]
pub enum After {
    /// A formula of the predictions.
    Formula(AfterCfg),
    /// Away from what the altered model predicts.
    AwayFromAltered(AwayFromAltered),
    /// Away from what the model predicts for a picture that is blurred where it looked.
    AwayFromBlurred {
        /// How far.
        scale: f64,
        /// The width of the blur.
        sigma: f64,
    },
}

/// Guidance away from an altered evaluation of the positive conditioning.
#[derive(Clone, Debug)]
pub struct AwayFromAltered {
    /// How it is altered.
    pub altered: Vec<Alteration>,
    /// Between which levels.
    pub levels: Levels,
    /// How far.
    pub scale: f64,
    /// How much of the result is brought back to the spread of the positive prediction.
    pub rescaling: f64,
}

/// A departure from the model as it was trained.
#[derive(Clone, Debug)]
pub struct Altered {
    /// The departure.
    pub alteration: Alteration,
    /// Between which levels.
    pub levels: Levels,
}

/// Levels of noise between which something counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// The highest.
    pub from: f64,
    /// The lowest.
    pub to: f64,
}

/// Which steps are guessed.
#[derive(Clone, Copy, Debug)]
pub enum Reusing {
    /// Evaluations of the model: their outputs are guessed (EasyCache).
    Evaluations(ReuseRule),
    /// Whole steps: what guidance gives is guessed (LazyCache).
    Steps(ReuseRule),
}

impl Guidance {
    /// Whether a sampler weighs the predictions in the usual way and computes every step.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        let Guidance { negative_altered, before, instead, after, reuse, .. } = self;
        let guessed = matches!(reuse, Some(Reusing::Steps(_)));
        negative_altered.is_empty() && before.is_empty() && instead.is_none() && after.is_empty() && !guessed
    }

    /// Whether some stage needs the negative prediction even if the scale of guidance makes it irrelevant.
    #[must_use]
    pub fn needs_negative(&self) -> bool {
        self.after.iter().any(|stage| matches!(stage, After::AwayFromBlurred { .. }))
    }

    /// All departures from the model as it was trained that some evaluation may make.
    pub fn alterations(&self) -> impl Iterator<Item = &Alteration> {
        let always = self.altered.iter().chain(&self.negative_altered).map(|altered| &altered.alteration);
        let away = self.after.iter().flat_map(|stage| match stage {
            After::AwayFromAltered(away) => away.altered.as_slice(),
            After::Formula(_) | After::AwayFromBlurred { .. } => &[],
        });
        always.chain(away)
    }
}

impl Levels {
    /// All levels.
    pub const ALL: Levels = Levels { from: f64::INFINITY, to: 0.0 };

    /// The levels between two shares of a run.
    #[must_use]
    pub fn between(sampling: &ModelSampling, start_percent: f64, end_percent: f64) -> Levels {
        let level = |percent: f64| sampling.percent_to_sigma(percent);
        Levels { from: level(start_percent), to: level(end_percent) }
    }

    /// Whether a level is one of them.
    #[must_use]
    pub fn has(&self, sigma: f32) -> bool {
        (self.to..=self.from).contains(&f64::from(sigma))
    }
}
