//! The model as samplers see it: every entry of every conditioning evaluated, and their answers joined.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use meta::DType;
use models::conditioning::{Array, CondInput, Conditioned, Scene};
use models::diffusion::model_patches::PatchRun;
use models::diffusion::{Alteration, Diffusion, DiffusionRun, Evaluation};
use runtime::{Model, Opened, Reusing, Runtime};
use sampling::{Latent, LatentShape, Window};
use tensor::{Lane, Tensor};

use super::controls::ControlRuns;
use super::coverage::{Coverage, weighted_mean};
use super::entries::{Counting, ReadyEntry, counting_at};
use super::guider::Guider;
use super::reusing::{GuessedEvaluations, Key};
use super::work_units::{self, Order, Units};
use crate::Result;

/// A conditioning: its entries, and where they stand among all of the run.
#[derive(Clone)]
pub(crate) struct Side<'a> {
    entries: &'a [ReadyEntry],
    first: usize,
}

/// What a step asks of the model: a conditioning, by its place, and how the model departs from its training for it.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) side: usize,
    pub(crate) altered: Vec<Alteration>,
}

impl Question {
    /// The same with the departures that the model makes for every evaluation, at whatever level, and without those that
    /// it does not know.
    pub(crate) fn in_force(mut self, model: &Model) -> Result<Question> {
        let diffusion = model.diffusion()?;
        let always = model.guidance.altered.iter().map(|altered| altered.alteration.clone());
        self.altered = always.chain(self.altered).filter(|alteration| diffusion.knows(alteration)).collect();
        Ok(self)
    }
}

impl From<usize> for Question {
    fn from(side: usize) -> Question {
        Question { side, altered: Vec::new() }
    }
}

/// An entry at a level, and where it counts there: one evaluation of the model.
struct Asked {
    /// Its conditioning, by its place among those of the run, and how the model is altered.
    key: Key,
    coverage: Arc<Coverage>,
}

/// A part of the latent.
struct View<'a> {
    window: Window,
    part: Cow<'a, Latent>,
}

/// Networks that run beside a diffusion model.
pub(crate) struct RunsBeside<'a> {
    pub(crate) controls: ControlRuns<'a>,
    pub(crate) patches: Vec<Box<dyn PatchRun + 'a>>,
    /// Other devices that take conditionings of a step.
    pub(crate) units: Option<Units>,
}

/// A diffusion model with its conditionings, at a latent size.
pub(crate) struct Evaluator<'a> {
    runtime: &'a Runtime,
    opened: &'a Opened,
    run: Box<dyn DiffusionRun + 'a>,
    model: &'a Model,
    diffusion: &'a dyn Diffusion,
    sides: Vec<Side<'a>>,
    controls: ControlRuns<'a>,
    patches: Vec<Box<dyn PatchRun + 'a>>,
    guessed: Option<RefCell<GuessedEvaluations>>,
    /// Other accelerators that evaluate at the same time, if there are any.
    units: Option<Units>,
}

/// What all conditionings of a run say, and where each has its entries.
pub(crate) fn conditioned<'a>(
    guider: &Guider,
    conditionings: &'a [Vec<ReadyEntry>],
) -> (Vec<Conditioned<'a>>, Vec<Side<'a>>) {
    let (mut conds, mut sides) = (Vec::new(), Vec::new());
    for (which, entries) in conditionings.iter().enumerate() {
        sides.push(Side { entries, first: conds.len() });
        conds.extend(entries.iter().map(|ready| Conditioned {
            cond: &ready.entry.cond,
            // A default entry looks at the whole latent.
            window: (!ready.entry.is_default).then(|| ready.coverage.window()),
            is_negative: guider.guiding.is_negative(which),
        }));
    }
    (conds, sides)
}

impl<'a> Evaluator<'a> {
    /// Brings what the entries say to the device, once for the run.
    pub(crate) fn new(
        runtime: &'a Runtime,
        opened: &'a Opened,
        model: &'a Model,
        (conds, sides): (&[Conditioned<'a>], &[Side<'a>]),
        beside: RunsBeside<'a>,
        scene: &Scene<'_>,
    ) -> Result<Evaluator<'a>> {
        let RunsBeside { controls, patches, units } = beside;
        let (diffusion, sides) = (model.diffusion()?, sides.to_vec());
        let takes = diffusion.takes();
        let unknown = conds.iter().flat_map(|conditioned| conditioned.cond.inputs());
        let mut unknown: Vec<String> =
            unknown.filter(|input| !takes.contains(input)).map(|input| input.to_string()).collect();
        let altered = model.guidance.alterations().filter(|alteration| !diffusion.knows(alteration));
        unknown.extend(altered.map(ToString::to_string));
        unknown.dedup();
        if !unknown.is_empty() {
            tracing::warn!("{} has no use for {}; it is left out", model.source.name(), unknown.join(", "));
        }
        let run = diffusion.start(&opened.session, conds, scene)?;
        let guessed = match &model.guidance.reuse {
            Some(Reusing::Evaluations(rule)) => {
                Some(RefCell::new(GuessedEvaluations::new(rule, &model.sampling)))
            }
            _ => None,
        };
        Ok(Evaluator { runtime, opened, run, model, diffusion, sides, controls, patches, guessed, units })
    }

    /// The clean latents that conditionings see in `x`, by their places, in one pass over the model: each the mean of
    /// its entries, weighted by place. One that has no entry at this level sees nothing.
    pub(crate) fn predict(&self, questions: &[Question], x: &Latent, sigma: f32) -> Result<Vec<Latent>> {
        let shape = LatentShape::of(x)?;
        let asked: Vec<Vec<Asked>> =
            questions.iter().map(|question| self.asked(question, sigma, shape)).collect();
        let all: Vec<&Asked> = asked.iter().flatten().collect();
        let mut answers = self.evaluate(&all, x, sigma)?.into_iter();
        let joined = |asked: &Vec<Asked>| {
            let coverages = asked.iter().map(|asked| asked.coverage.as_ref());
            weighted_mean(coverages.zip(answers.by_ref()).collect(), x)
        };
        asked.iter().map(joined).collect()
    }

    /// Steps whose evaluations were guessed.
    pub(crate) fn skipped(&self) -> usize {
        self.guessed.as_ref().map_or(0, |guessed| guessed.borrow().skipped())
    }

    /// What a conditioning asks of the model at a level.
    fn asked(&self, question: &Question, sigma: f32, shape: LatentShape) -> Vec<Asked> {
        let Some(Side { entries, first }) = self.sides.get(question.side) else {
            return Vec::new();
        };
        let always = self.model.guidance.altered.iter().filter(|altered| altered.levels.has(sigma));
        let altered = always.map(|altered| &altered.alteration).chain(&question.altered);
        let altered: Vec<Alteration> =
            altered.filter(|alteration| self.diffusion.knows(alteration)).cloned().collect();
        let asked = |Counting { index, coverage }| Asked {
            key: Key { cond: first + index, altered: altered.clone() },
            coverage,
        };
        counting_at(entries, sigma, shape).into_iter().map(asked).collect()
    }

    /// The clean latents that the model sees: all evaluations of a step.
    fn evaluate(&self, asked: &[&Asked], x: &Latent, sigma: f32) -> Result<Vec<Latent>> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        // Evaluations of the same part of the latent share it.
        let mut views: Vec<View<'_>> = Vec::new();
        let mut places = Vec::with_capacity(asked.len());
        for asked in asked {
            let window = asked.coverage.window();
            let known = views.iter().position(|view| view.window == window);
            places.push(known.unwrap_or(views.len()));
            if known.is_none() {
                views.push(View::new(window, x)?);
            }
        }
        let sampling = &self.model.sampling;
        let inputs: Vec<Cow<'_, Latent>> =
            views.iter().map(|view| sampling.calculate_input(sigma, &view.part)).collect();
        let each: Vec<&Latent> = places.iter().map(|place| &*inputs[*place]).collect();
        let keys: Vec<&Key> = asked.iter().map(|asked| &asked.key).collect();
        if let Some(guessed) = &self.guessed
            && let Some(outputs) = guessed.borrow_mut().guess(&keys, &each, sigma)
        {
            let is_exact = self.opened.session.lane()?.dtype() == DType::F32;
            let denoised = |(output, place): (&Latent, &usize)| {
                // The reference adds to the model's input where it lies. In f32 a flow's latent is that input itself, so
                // that the clean latent is computed from the sum; in 16 bits the input is a copy.
                let from = if sampling.is_flow() && is_exact { output } else { &views[*place].part };
                sampling.calculate_denoised(sigma, output, from)
            };
            return Ok(outputs.iter().zip(&places).map(denoised).collect());
        }
        let outputs = match &self.units {
            Some(units) => match units.shares(keys.len()) {
                Some(shares) => self.shared_outputs((units, &shares), &keys, (&inputs, &places), sigma)?,
                None => self.joined_outputs(units, &keys, (&inputs, &places), sigma)?,
            },
            None => self.outputs(&keys, &inputs, &places, sigma)?,
        };
        if let Some(guessed) = &self.guessed {
            guessed.borrow_mut().remember(&keys, &each, &outputs, sigma);
        }
        let denoised = |(output, place): (&Latent, &usize)| {
            sampling.calculate_denoised(sigma, output, &views[*place].part)
        };
        Ok(outputs.iter().zip(&places).map(denoised).collect())
    }

    /// What the model gives for inputs at these places, the others' shares on their accelerators at the same time.
    fn shared_outputs(
        &self,
        (units, shares): (&Units, &[usize]),
        keys: &[&Key],
        (inputs, places): (&[Cow<'_, Latent>], &[usize]),
        sigma: f32,
    ) -> Result<Vec<Latent>> {
        let time = self.model.sampling.timestep(sigma);
        let of = |unit: usize| (0..keys.len()).filter(|at| shares[*at] == unit).collect::<Vec<usize>>();
        let last = shares.iter().copied().max().unwrap_or(0);
        let ordered = (1..=last).map(|unit| {
            let own = of(unit);
            let evaluations = own.iter().map(|at| (keys[*at].cond, places[*at])).collect();
            let inputs = inputs.iter().map(|input| Latent::clone(input)).collect();
            (own, units.order(unit, Order { inputs, evaluations, time }))
        });
        let ordered: Vec<_> = ordered.collect();
        let own = of(0);
        let (own_keys, own_places): (Vec<&Key>, Vec<usize>) =
            own.iter().map(|at| (keys[*at], places[*at])).unzip();
        let mut given: Vec<(usize, Latent)> =
            own.into_iter().zip(self.outputs(&own_keys, inputs, &own_places, sigma)?).collect();
        for (own, answered) in ordered {
            given.extend(own.into_iter().zip(work_units::answer(&answered)?));
        }
        given.sort_by_key(|(at, _)| *at);
        Ok(given.into_iter().map(|(_, output)| output).collect())
    }

    /// The same where each accelerator has its rows of the batch.
    fn joined_outputs(
        &self,
        units: &Units,
        keys: &[&Key],
        (inputs, places): (&[Cow<'_, Latent>], &[usize]),
        sigma: f32,
    ) -> Result<Vec<Latent>> {
        let time = self.model.sampling.timestep(sigma);
        let evaluations: Vec<(usize, usize)> =
            keys.iter().zip(places).map(|(key, place)| (key.cond, *place)).collect();
        let of =
            |rows: &Range<usize>| inputs.iter().map(|input| rows_of(input, rows)).collect::<Result<Vec<_>>>();
        let mut ordered = Vec::new();
        for (unit, rows) in units.rows().iter().enumerate().skip(1) {
            let order = Order { inputs: of(rows)?, evaluations: evaluations.clone(), time };
            ordered.push(units.order(unit, order));
        }
        let own: Vec<Cow<'_, Latent>> = of(&units.rows()[0])?.into_iter().map(Cow::Owned).collect();
        let mut parts = vec![self.outputs(keys, &own, places, sigma)?];
        for answered in &ordered {
            parts.push(work_units::answer(answered)?);
        }
        let joined = |(at, place): (usize, &usize)| {
            let values = parts.iter().flat_map(|part| part[at].values()).copied().collect();
            Ok(Latent::new(inputs[*place].shape().to_vec(), values)?)
        };
        places.iter().enumerate().map(joined).collect()
    }

    /// What the model gives for inputs at these places, in one pass.
    fn outputs(
        &self,
        keys: &[&Key],
        inputs: &[Cow<'_, Latent>],
        places: &[usize],
        sigma: f32,
    ) -> Result<Vec<Latent>> {
        let started = Instant::now();
        let lane = self.opened.session.lane()?;
        let there: Vec<Tensor> = inputs.iter().map(|input| on_device(lane, input)).collect::<Result<_>>()?;
        let time = self.model.sampling.timestep(sigma);
        let parts: Vec<(usize, &Tensor)> =
            keys.iter().zip(places).map(|(key, place)| (key.cond, &there[*place])).collect();
        let residuals = self.controls.residuals(&parts, time, sigma)?;
        let evaluations =
            keys.iter().zip(&parts).zip(&residuals).map(|((key, (cond, input)), control)| Evaluation {
                control: control.as_ref(),
                altered: &key.altered,
                ..Evaluation::new(*cond, input, time)
            });
        let evaluations: Vec<Evaluation<'_>> = evaluations.collect();
        let patches: Vec<&dyn PatchRun> = self.patches.iter().map(|patch| &**patch).collect();
        let outputs = self.run.forward_patched(&evaluations, &patches)?;
        drop(residuals);
        let outputs = outputs.iter().map(Tensor::to_vec).collect::<std::result::Result<Vec<_>, _>>()?;
        self.runtime.note_evaluation(self.opened, started);
        let shaped =
            |(place, output): (&usize, Vec<f32>)| Ok(Latent::new(inputs[*place].shape().to_vec(), output)?);
        places.iter().zip(outputs).map(shaped).collect()
    }
}

impl<'a> View<'a> {
    fn new(window: Window, x: &'a Latent) -> Result<View<'a>> {
        let LatentShape { height, width, .. } = LatentShape::of(x)?;
        let part =
            if window == [height, width, 0, 0] { Cow::Borrowed(x) } else { Cow::Owned(x.cropped(window)?) };
        Ok(View { window, part })
    }
}

/// Rows of a batch.
fn rows_of(latent: &Latent, rows: &Range<usize>) -> Result<Latent> {
    let mut shape = latent.shape().to_vec();
    let row = latent.values().len() / shape[0].max(1);
    shape[0] = rows.len();
    Ok(Latent::new(shape, latent.values()[rows.start * row..rows.end * row].to_vec())?)
}

/// Whether conditionings say the same of every row of a batch: texts, and numbers.
pub(crate) fn have_equal_rows(conds: &[Conditioned<'_>]) -> bool {
    let is_one = |array: &Arc<Array>| array.shape.first() == Some(&1);
    let plain = [CondInput::Guidance, CondInput::AttentionBias, CondInput::Sizes, CondInput::FrameRate];
    conds.iter().map(|conditioned| conditioned.cond).all(|cond| {
        is_one(&cond.text)
            && cond.second_text.as_ref().is_none_or(is_one)
            && cond.pooled.as_ref().is_none_or(is_one)
            && cond.inputs().iter().all(|input| plain.contains(input))
    })
}

/// A latent on a device, with the axes that it has.
pub(super) fn on_device(lane: &Lane, latent: &Latent) -> Result<Tensor> {
    let shape = LatentShape::of(latent)?;
    let LatentShape { batch, channels, frames, height, width } = shape;
    Ok(match latent.shape().len() {
        4 => lane.tensor([batch, channels, height, width], latent.values())?,
        _ => lane.tensor([batch, channels, frames, height, width], latent.values())?,
    })
}
