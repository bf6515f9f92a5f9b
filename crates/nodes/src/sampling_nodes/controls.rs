//! The control networks of a run: their pictures made ready once, and what they add to each evaluation of a step.

use std::sync::Arc;
use std::time::Instant;

use graph::{Call, Failure};
use models::conditioning::Scene;
use models::control::{ControlNetwork, ControlRun, Controlled};
use models::diffusion::{ControlResiduals, Evaluation};
use runtime::{EvaluationShape, Model, Network, Opened, Runtime, Source, StepShape, Wanted, Work};
use sampling::{LatentShape, ModelSampling};
use tensor::Tensor;

use super::entries::{ReadyEntry, counting_at};
use super::step_shape::shape_of;
use crate::control::{Hint, ready_hint};
use crate::value::{Control, Entry};
use crate::{Error, Result};

/// All control networks of a run.
pub(crate) struct Controls {
    networks: Vec<NetworkUse>,
    /// What controls each conditioning of the run, by its place among all, in the order in which nodes said it.
    chains: Vec<Vec<Link>>,
}

/// One network, and all that it is asked.
struct NetworkUse {
    source: Arc<Source>,
    asked: Vec<Question>,
}

/// A conditioning with its picture.
struct Question {
    entry: Arc<Entry>,
    hint: Arc<Hint>,
    picture_kind: Option<usize>,
}

/// One control of a conditioning.
struct Link {
    /// Which network, and which of its questions.
    network: usize,
    question: usize,
    control: Arc<Control>,
    /// The levels between which it counts, the higher first.
    levels: (f32, f32),
}

impl Link {
    fn counts_at(&self, sigma: f32) -> bool {
        sigma <= self.levels.0 && sigma >= self.levels.1
    }
}

/// A picture that was made ready, by what it was made from and for which size.
type KnownHint = (Arc<Control>, [usize; 2], Arc<Hint>);

impl Controls {
    /// Makes the pictures of all control networks ready: scaled to what each conditioning is evaluated for, and encoded.
    pub(crate) fn prepare(
        runtime: &Runtime,
        call: &Call,
        model: &Model,
        conditionings: &[Vec<ReadyEntry>],
        shape: LatentShape,
    ) -> Result<Controls, Failure> {
        let mut all = Controls { networks: Vec::new(), chains: Vec::new() };
        let mut hints: Vec<KnownHint> = Vec::new();
        for ready in conditionings.iter().flatten() {
            let mut chain = Vec::new();
            for control in &ready.entry.controls {
                let network = all.network(control, model)?;
                let size = evaluated_size(ready, shape);
                let known = hints.iter().find(|(of, at, _)| Arc::ptr_eq(of, control) && *at == size);
                let hint = match known {
                    Some((_, _, hint)) => Arc::clone(hint),
                    None => {
                        let of = [shape.batch, size[0], size[1]];
                        let hint = Arc::new(ready_hint(runtime, call, control, of)?);
                        hints.push((Arc::clone(control), size, Arc::clone(&hint)));
                        hint
                    }
                };
                let asked = &mut all.networks[network].asked;
                let question = asked.len();
                let picture_kind = control.network.picture_kind;
                asked.push(Question { entry: Arc::clone(&ready.entry), hint, picture_kind });
                let levels = levels(control, &model.sampling);
                chain.push(Link { network, question, control: Arc::clone(control), levels });
            }
            all.chains.push(chain);
        }
        Ok(all)
    }

    /// The place of a control's network, which is one for all that use it.
    fn network(&mut self, control: &Control, model: &Model) -> Result<usize> {
        let source = &control.network.source;
        check_fits(source, source.control_network()?, model)?;
        let same = |known: &NetworkUse| {
            Arc::ptr_eq(&known.source.file, &source.file) && known.source.part == source.part
        };
        if let Some(known) = self.networks.iter().position(same) {
            return Ok(known);
        }
        let source = if source.control_network()?.needs_base() {
            Arc::new(source.on_base(&model.source)?)
        } else {
            Arc::clone(source)
        };
        self.networks.push(NetworkUse { source, asked: Vec::new() });
        Ok(self.networks.len() - 1)
    }

    /// Whether no network controls anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// The largest step of each network in a run over these levels that evaluates some of the conditionings.
    pub(crate) fn works(
        &self,
        conditionings: &[Vec<ReadyEntry>],
        evaluated: &[usize],
        sigmas: &[f32],
        latent: LatentShape,
    ) -> Vec<Work> {
        let firsts: Vec<usize> = conditionings
            .iter()
            .scan(0, |next, entries| Some(std::mem::replace(next, *next + entries.len())))
            .collect();
        let at = |network: usize, sigma: f32| -> Vec<EvaluationShape> {
            let sides =
                evaluated.iter().filter_map(|which| Some((firsts.get(*which)?, conditionings.get(*which)?)));
            let asked = sides.flat_map(|(first, entries)| {
                counting_at(entries, sigma, latent).into_iter().flat_map(move |counting| {
                    let [height, width, ..] = counting.coverage.window();
                    let links = self.chains[first + counting.index].iter();
                    let counts = links.filter(move |link| link.network == network && link.counts_at(sigma));
                    counts.map(move |_| shape_of(&entries[counting.index], [height, width]))
                })
            });
            asked.collect()
        };
        let largest = |network: usize| {
            let steps = sigmas.iter().map(|sigma| at(network, *sigma));
            let evaluations = steps.max_by_key(Vec::len).unwrap_or_default();
            Work::Control(StepShape { batch: latent.batch, frames: latent.frames, evaluations })
        };
        (0..self.networks.len()).map(largest).collect()
    }

    /// What is opened beside the model.
    pub(crate) fn wanted<'a>(&'a self, model: &'a Model, works: &'a [Work]) -> Vec<Wanted<'a>> {
        let wanted = |(network, work): (&'a NetworkUse, &'a Work)| {
            // What is patched into the model is patched into what a network has of it.
            let loras = if network.source.has_base() { &*model.loras } else { &[] };
            Wanted { source: &network.source, beside: &[], loras, work }
        };
        self.networks.iter().zip(works).map(wanted).collect()
    }
}

/// Rows and columns of the latent that a conditioning is evaluated for.
pub(super) fn evaluated_size(ready: &ReadyEntry, shape: LatentShape) -> [usize; 2] {
    if ready.entry.is_default {
        return [shape.height, shape.width];
    }
    let [height, width, ..] = ready.coverage.window();
    [height, width]
}

fn levels(control: &Control, sampling: &ModelSampling) -> (f32, f32) {
    let level = |percent: f64| sampling.percent_to_sigma(percent) as f32;
    (level(control.start_percent), level(control.end_percent))
}

/// An error if a network is for other models.
fn check_fits(source: &Source, network: &dyn ControlNetwork, model: &Model) -> Result<()> {
    let family = match &*model.source.network {
        Network::Diffusion(_, family) => family.name,
        _ => "",
    };
    if network.controls().contains(&family) {
        return Ok(());
    }
    Err(Error::Told(format!(
        "{} is {}, which controls {}; the model {} is {}. Take a control network that was made for it, or a model of the \
         family that the network was made for",
        source.name(),
        source.part,
        network.controls().join(" or "),
        model.source.name(),
        model.source.part.name,
    )))
}

/// Control networks that are open, with all that does not change within a run.
pub(crate) struct ControlRuns<'a> {
    runtime: &'a Runtime,
    controls: &'a Controls,
    runs: Vec<(&'a Opened, Box<dyn ControlRun + 'a>)>,
}

impl<'a> ControlRuns<'a> {
    /// Starts every network, in the order in which they were opened.
    pub(crate) fn new(
        runtime: &'a Runtime,
        controls: &'a Controls,
        opened: &'a [Opened],
        scene: &Scene<'_>,
    ) -> Result<ControlRuns<'a>> {
        let start = |(network, opened): (&'a NetworkUse, &'a Opened)| {
            let controlled = network.asked.iter().map(|question| Controlled {
                cond: &question.entry.cond,
                hint: &question.hint.array,
                picture_kind: question.picture_kind,
            });
            let controlled: Vec<Controlled<'_>> = controlled.collect();
            let run = network.source.control_network()?.start(&opened.session, &controlled, scene)?;
            Ok((opened, run))
        };
        let runs = controls.networks.iter().zip(opened).map(start).collect::<Result<_>>()?;
        Ok(ControlRuns { runtime, controls, runs })
    }

    /// What is added inside of the model for each evaluation of a step: by the conditioning's place among all and the
    /// part of the latent on the device.
    pub(crate) fn residuals(
        &self,
        evaluations: &[(usize, &Tensor)],
        time: f32,
        sigma: f32,
    ) -> Result<Vec<Option<ControlResiduals>>> {
        let links = |at: usize| {
            let chain = self.controls.chains.get(evaluations[at].0).map_or(&[][..], Vec::as_slice);
            chain.iter().enumerate().filter(move |(_, link)| link.counts_at(sigma))
        };
        // What each network gives, by the evaluation and the place in its chain.
        let mut given: Vec<Vec<(usize, ControlResiduals)>> = vec![Vec::new(); evaluations.len()];
        for (network, (opened, run)) in self.runs.iter().enumerate() {
            let mut places = Vec::new();
            let mut asked = Vec::new();
            for (at, (_, latent)) in evaluations.iter().enumerate() {
                for (order, link) in links(at).filter(|(_, link)| link.network == network) {
                    places.push((at, order, link));
                    asked.push(Evaluation::new(link.question, latent, time));
                }
            }
            if asked.is_empty() {
                continue;
            }
            let started = Instant::now();
            for ((at, order, link), residuals) in places.into_iter().zip(run.forward(&asked)?) {
                given[at].push((order, weighed(&residuals, &link.control)?));
            }
            self.runtime.note_evaluation(opened, started);
        }
        given.into_iter().map(summed).collect()
    }
}

/// Averaged if the network wants it, and times the strength.
fn weighed(residuals: &ControlResiduals, control: &Control) -> Result<ControlResiduals> {
    if !control.network.averages {
        return Ok(residuals.scaled(control.strength)?);
    }
    let averaged = residuals
        .mapped(|residual| Ok(residual.mean(&[2, 3])?.broadcast(*residual.shape())?.contiguous()?))?;
    Ok(averaged.scaled(control.strength)?)
}

/// The sum over a chain, the first control first.
fn summed(mut given: Vec<(usize, ControlResiduals)>) -> Result<Option<ControlResiduals>> {
    given.sort_by_key(|(order, _)| *order);
    let mut given = given.into_iter().map(|(_, residuals)| residuals);
    let Some(first) = given.next() else { return Ok(None) };
    Ok(Some(given.try_fold(first, |sum, more| sum.with(&more))?))
}
