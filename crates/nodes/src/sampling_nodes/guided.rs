//! Guided predictions: what a step asks of the model, in one pass, and how stages of guidance make one of its answers.

use models::conditioning::Cond;
use models::diffusion::{Alteration, Recording};
use runtime::{After, Altered, Instead, Reusing};
use sampling::{Latent, LatentShape, Momentum, Reuse, Weighing, away_from, blurred, perpendicular};

use super::guider::{Guider, Guiding};
use super::predicting::{Evaluator, Question};
use crate::value::{Conditioning, Entry};
use crate::{Error, Result};

/// Pictures of at most so many values along a side are not blurred: there is no room for the kernel.
const TOO_SMALL_TO_BLUR: usize = 4;

/// What a step predicts.
#[derive(Clone)]
pub(crate) struct Guided {
    /// The guided prediction.
    pub(crate) denoised: Latent,
    /// What guidance stepped away from; zeros if nothing was evaluated.
    pub(crate) negative: Latent,
}

/// The guidance of one run, with what its stages remember from step to step.
pub(crate) struct Steering<'a> {
    guider: &'a Guider,
    evaluator: &'a Evaluator<'a>,
    momenta: Vec<Momentum>,
    recording: Recording,
    guessed: Option<GuessedSteps>,
}

/// Whole steps that are guessed from the last computed one.
struct GuessedSteps {
    reuse: Reuse,
    /// The last computed step, and what it adds to its input.
    last: Option<(Guided, Latent)>,
}

impl Guider {
    /// What a step asks of the model, all of it for one pass: first the conditionings that are evaluated, by their
    /// places, then what stages of guidance add to them. `now` says which levels count.
    pub(crate) fn questions(
        &self,
        want_negative: bool,
        recording: &Recording,
        now: impl Fn(&runtime::Levels) -> bool,
    ) -> Vec<Question> {
        let guidance = &self.model.guidance;
        let roles = self.guiding.roles();
        let evaluated = self.guiding.evaluated(want_negative || guidance.needs_negative());
        let is_plain = matches!(self.guiding, Guiding::Basic { .. } | Guiding::Cfg { .. });
        let question = |side: usize| {
            let mut altered = Vec::new();
            if Some(side) == roles.negative {
                let at_level =
                    guidance.negative_altered.iter().filter(|altered| is_plain && now(&altered.levels));
                altered.extend(at_level.map(|Altered { alteration, .. }| alteration.clone()));
                if guidance.needs_negative() {
                    altered.push(Alteration::RecordAttention(recording.clone()));
                }
            }
            Question { side, altered }
        };
        let mut questions: Vec<Question> = evaluated.iter().copied().map(question).collect();
        if self.has_empty_prompt() {
            questions.push(Question { side: self.conditionings().len(), altered: Vec::new() });
        }
        if evaluated.contains(&roles.positive) {
            let away = guidance.after.iter().filter_map(|stage| match stage {
                After::AwayFromAltered(away) if away.scale > 0.0 && now(&away.levels) => Some(away),
                _ => None,
            });
            questions
                .extend(away.map(|away| Question { side: roles.positive, altered: away.altered.clone() }));
        }
        questions
    }

    /// The empty prompt of a stage, which stands behind the guider's own conditionings.
    pub(crate) fn empty_prompt(&self) -> Option<Conditioning> {
        let Some(Instead::Perpendicular { empty, .. }) = &self.model.guidance.instead else { return None };
        let entries = empty.iter().map(|cond| Entry::new(Cond::clone(cond))).collect();
        self.has_empty_prompt().then_some(Conditioning { entries })
    }

    /// Whether the empty prompt of a stage is evaluated beside the guider's own conditionings.
    fn has_empty_prompt(&self) -> bool {
        let replaced = matches!(self.model.guidance.instead, Some(Instead::Perpendicular { .. }));
        replaced && !matches!(self.guiding, Guiding::Perpendicular { .. })
    }
}

impl<'a> Steering<'a> {
    pub(crate) fn new(guider: &'a Guider, evaluator: &'a Evaluator<'a>) -> Steering<'a> {
        let guidance = &guider.model.guidance;
        let guessed = match &guidance.reuse {
            Some(Reusing::Steps(rule)) => {
                Some(GuessedSteps { reuse: rule.for_run(&guider.model.sampling), last: None })
            }
            _ => None,
        };
        Steering {
            guider,
            evaluator,
            momenta: vec![Momentum::default(); guidance.before.len()],
            recording: Recording::default(),
            guessed,
        }
    }

    /// What a step predicts for `x`.
    pub(crate) fn predict(&mut self, x: &Latent, sigma: f32, want_negative: bool) -> Result<Guided> {
        let Some(guessed) = self.guessed.as_mut().filter(|guessed| !guessed.reuse.has_ended(sigma)) else {
            return self.computed(x, sigma, want_negative);
        };
        if guessed.reuse.skips(x, sigma)
            && let Some((last, difference)) = &guessed.last
        {
            return Ok(Guided { denoised: sum(x, difference), negative: last.negative.clone() });
        }
        let computed = self.computed(x, sigma, want_negative)?;
        if let Some(guessed) = &mut self.guessed {
            let output = &computed.denoised;
            guessed.reuse.remember(x, output, output.mean_size());
            guessed.last = Some((computed.clone(), difference(output, x)));
        }
        Ok(computed)
    }

    /// Steps that were guessed.
    pub(crate) fn skipped(&self) -> usize {
        self.guessed.as_ref().map_or(0, |guessed| guessed.reuse.skipped())
    }

    fn computed(&mut self, x: &Latent, sigma: f32, want_negative: bool) -> Result<Guided> {
        let questions = self.guider.questions(want_negative, &self.recording, |levels| levels.has(sigma));
        let mut answers = self.evaluator.predict(&questions, x, sigma)?.into_iter();
        // What is not evaluated sees nothing.
        let mut sides: [Option<Latent>; 3] = Default::default();
        let needs_negative = want_negative || self.guider.model.guidance.needs_negative();
        for (side, answer) in self.guider.guiding.evaluated(needs_negative).into_iter().zip(&mut answers) {
            sides[side] = Some(answer);
        }
        let roles = self.guider.guiding.roles();
        let negative_evaluated = roles.negative.is_some_and(|place| sides[place].is_some());
        let [first, second, third] = sides.map(|side| side.unwrap_or_else(|| Latent::zeros(x.shape())));
        let step = Step { x, sigma, scale: roles.scale, negative_evaluated };
        match &self.guider.guiding {
            Guiding::Basic { .. } | Guiding::Cfg { .. } => {
                let (yes, no) = self.before((first, second), &step);
                self.weighed(&step, [yes, no], None, &mut answers)
            }
            Guiding::Perpendicular { .. } => {
                let (yes, no) = self.before((first, second), &step);
                self.weighed(&step, [yes, no], Some(third), &mut answers)
            }
            Guiding::Dual { cfg_negative, nested: true, .. } => {
                let inner = self.weighed(&step, [first, second], None, &mut answers)?;
                let denoised = between(&third, &inner.denoised, *cfg_negative);
                Ok(Guided { denoised, negative: inner.negative })
            }
            Guiding::Dual { cfg_conds, .. } => {
                let steps: Vec<f32> =
                    first.values().iter().zip(second.values()).map(|(a, b)| a - b).collect();
                let mut outer = self.weighed(&step, [second, third], None, &mut answers)?;
                let values = outer.denoised.values_mut().iter_mut().zip(steps);
                values.for_each(|(sum, step)| *sum += step * *cfg_conds as f32);
                Ok(outer)
            }
        }
    }

    /// Both predictions as the stages before guidance leave them.
    fn before(&mut self, (mut yes, mut no): (Latent, Latent), step: &Step<'_>) -> (Latent, Latent) {
        let model = &self.guider.model;
        for (stage, remembered) in model.guidance.before.iter().zip(&mut self.momenta) {
            let weighing = step.weighing(&yes, &no, &model.sampling);
            (yes, no) = stage.apply(&weighing, step.negative_evaluated, remembered);
        }
        (yes, no)
    }

    /// One prediction of two, by the usual formula or what stands instead of it, and the stages after it. `more` are the
    /// answers to what stages asked beside the conditionings, in the order of the questions.
    fn weighed(
        &self,
        step: &Step<'_>,
        [yes, no]: [Latent; 2],
        empty: Option<Latent>,
        more: &mut dyn Iterator<Item = Latent>,
    ) -> Result<Guided> {
        let Guider { model, guiding } = self.guider;
        let weighing = step.weighing(&yes, &no, &model.sampling);
        let mut denoised = match (guiding, &model.guidance.instead) {
            (Guiding::Perpendicular { cfg, negative_scale, .. }, _) => {
                let empty = empty.unwrap_or_else(|| Latent::zeros(step.x.shape()));
                perpendicular(&yes, &no, &empty, [*cfg, *negative_scale])
            }
            (_, None) => weighing.guided(),
            (_, Some(Instead::Formula(formula))) => formula.apply(&weighing),
            (_, Some(Instead::Perpendicular { scale, .. })) => {
                let empty = more.next().unwrap_or_else(|| Latent::zeros(step.x.shape()));
                perpendicular(&yes, &no, &empty, [step.scale, *scale])
            }
        };
        for stage in &model.guidance.after {
            denoised = match stage {
                After::Formula(formula) => formula.apply(&weighing, &denoised),
                After::AwayFromAltered(away) if away.scale > 0.0 && away.levels.has(step.sigma) => {
                    match more.next() {
                        Some(other) => away_from(&other, &denoised, &yes, [away.scale, away.rescaling]),
                        None => denoised,
                    }
                }
                After::AwayFromAltered(_) => denoised,
                After::AwayFromBlurred { scale, sigma } => {
                    self.away_from_blurred(step, &no, denoised, [*scale, *sigma])?
                }
            };
        }
        Ok(Guided { denoised, negative: no })
    }

    /// Guidance away from what the negative sees in a picture that is blurred where the model looked. Its answer depends on
    /// the first pass, so it is a pass of its own.
    fn away_from_blurred(
        &self,
        step: &Step<'_>,
        negative: &Latent,
        guided: Latent,
        [scale, sigma]: [f64; 2],
    ) -> Result<Latent> {
        let LatentShape { height, width, .. } = LatentShape::of(step.x)?;
        if height.min(width) <= TOO_SMALL_TO_BLUR {
            return Ok(guided);
        }
        let (Some(attention), Some(side)) = (self.recording.take(), self.guider.guiding.roles().negative)
        else {
            return Err(Error::Told(
                "self-attention guidance looks at the attention of a negative conditioning in a UNet, and there is \
                 none here: give the sampler a negative conditioning and a model that is a UNet (Stable Diffusion \
                 up to XL), or take the node away"
                    .to_owned(),
            ));
        };
        let degraded = blurred(negative, &looked_at(&attention)?, sigma)?;
        let noise = difference(step.x, negative);
        let question = Question { side, altered: Vec::new() };
        let answers = self.evaluator.predict(&[question], &sum(&degraded, &noise), step.sigma)?;
        let Some(answer) = answers.first() else { return Ok(guided) };
        Ok(away_from(answer, &guided, &degraded, [scale, 0.0]))
    }
}

/// One step, as far as all its predictions have it in common.
struct Step<'a> {
    x: &'a Latent,
    sigma: f32,
    scale: f64,
    negative_evaluated: bool,
}

impl Step<'_> {
    fn weighing<'b>(
        &'b self,
        positive: &'b Latent,
        negative: &'b Latent,
        sampling: &'b sampling::ModelSampling,
    ) -> Weighing<'b> {
        Weighing { x: self.x, sigma: self.sigma, positive, negative, scale: self.scale, sampling }
    }
}

/// Which tokens others look at more than at the mean: of the mean over the heads, the sum over those who look.
fn looked_at(attention: &tensor::Tensor) -> Result<Vec<bool>> {
    let [batch, heads, queries, keys] = *attention.dims() else {
        return Err(Error::Told(format!("an attention of shape {} cannot be read", attention.shape())));
    };
    let values = attention.to_vec()?;
    let mut sums = vec![0.0f64; batch * keys];
    for (row, values) in values.chunks_exact(keys.max(1)).enumerate() {
        let item = row / (heads * queries).max(1);
        for (sum, value) in sums[item * keys..(item + 1) * keys].iter_mut().zip(values) {
            *sum += f64::from(*value) / heads as f64;
        }
    }
    Ok(sums.into_iter().map(|sum| sum as f32 > 1.0).collect())
}

/// From one latent so many times the way to another.
fn between(from: &Latent, to: &Latent, factor: f64) -> Latent {
    let mut out = from.clone();
    let factor = factor as f32;
    out.values_mut().iter_mut().zip(to.values()).for_each(|(out, to)| *out += (to - *out) * factor);
    out
}

fn sum(a: &Latent, b: &Latent) -> Latent {
    let mut out = a.clone();
    out.values_mut().iter_mut().zip(b.values()).for_each(|(out, b)| *out += b);
    out
}

/// What is between two latents of one shape.
pub(super) fn difference(a: &Latent, b: &Latent) -> Latent {
    let mut out = a.clone();
    out.values_mut().iter_mut().zip(b.values()).for_each(|(out, b)| *out -= b);
    out
}
