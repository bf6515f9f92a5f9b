//! The evaluations of a step on several accelerators at the same time.
//!
//! Each accelerator has the model with its patches, and gets as many of a step's evaluations, or as many rows of the batch, as
//! make the step shortest by what is predicted for each. One computes in the thread of the sampler, every other in a thread of its own.

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::Instant;

use meta::DeviceId;
use models::conditioning::{Conditioned, Scene};
use models::diffusion::{Diffusion, DiffusionRun, Evaluation};
use runtime::{Caller, Model, Opened, Runtime, Source, StepShape, Wanted, Work};
use sampling::{Latent, LatentShape};
use tensor::Tensor;

use super::predicting::on_device;
use crate::{Error, Result};

/// Who evaluates what.
pub(crate) struct Split {
    /// What the model itself does of the largest step.
    pub(crate) own: Work,
    /// The model on other accelerators, with what each does of that step.
    others: Vec<(Source, Work)>,
    way: Way,
}

/// How a step is split.
#[derive(Clone, Debug, PartialEq)]
enum Way {
    /// Whole evaluations; with the seconds that one takes, of the model itself and of the others.
    Evaluations(Vec<f64>),
    /// Rows of the batch, of the model itself and of the others, in all evaluations.
    Rows(Vec<Range<usize>>),
}

impl Split {
    /// How the evaluations of a run whose largest step is this are split; none if one accelerator does them all. A batch
    /// is split only where nothing but texts, the same for all of it, is said.
    pub(crate) fn of(
        runtime: &Runtime,
        caller: &Caller,
        model: &Model,
        work: &Work,
        has_equal_rows: bool,
    ) -> Result<Option<Split>> {
        let Work::Step(step) = work else { return Ok(None) };
        let own = runtime.device_of(&model.source, caller);
        // What records what another evaluation does has to run beside it.
        let is_plain = step.evaluations.iter().all(|evaluation| evaluation.altered.is_empty());
        let rows = if has_equal_rows { step.batch } else { 1 };
        let is_one = step.evaluations.len().max(rows) < 2;
        if model.most_devices < 2 || is_one || !is_plain || own == DeviceId::CPU {
            return Ok(None);
        }
        let (mut sources, seconds) = units(runtime, model, own, work)?;
        let Some((way, used)) = Way::best(step.evaluations.len(), rows, &seconds) else { return Ok(None) };
        sources.truncate(used - 1);
        let names: Vec<String> = sources.iter().map(|source| source.placing.compute.to_string()).collect();
        tracing::info!("{}: {}, on {own} and {}", model.source.name(), way.told(step), names.join(", "));
        let others = sources.into_iter().enumerate().map(|(at, source)| (source, way.share(step, at + 1)));
        Ok(Some(Split { own: way.share(step, 0), others: others.collect(), way }))
    }

    /// What is opened beside the model.
    pub(crate) fn wanted<'a>(&'a self, model: &'a Model) -> impl Iterator<Item = Wanted<'a>> {
        let wanted =
            |(source, work): &'a (Source, Work)| Wanted { source, beside: &[], loras: &model.loras, work };
        self.others.iter().map(wanted)
    }

    /// How many accelerators help.
    pub(crate) fn others(&self) -> usize {
        self.others.len()
    }
}

impl Way {
    /// The way in which a step of so many evaluations of so many rows is shortest, and how many units have a share; none
    /// if the first is done as soon by itself. `seconds` are what the whole step takes of each.
    fn best(evaluations: usize, rows: usize, seconds: &[f64]) -> Option<(Way, usize)> {
        let split = |parts: usize| {
            let each: Vec<f64> = seconds.iter().map(|seconds| seconds / parts as f64).collect();
            let shares = shares(parts, &each);
            let counts = |unit: usize| shares.iter().filter(|share| **share == unit).count();
            let counts: Vec<usize> = (0..seconds.len()).map(counts).collect();
            let longest =
                counts.iter().zip(&each).map(|(count, each)| *count as f64 * each).fold(0.0, f64::max);
            // The fastest come first, so that those without a share are the last.
            let used = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
            (longest, used, each, counts)
        };
        let (by_evaluation, by_row) = (split(evaluations), split(rows));
        let is_by_row = by_row.0 < by_evaluation.0;
        let (longest, used, each, counts) = if is_by_row { by_row } else { by_evaluation };
        if used < 2 || longest >= seconds[0] {
            return None;
        }
        if !is_by_row {
            return Some((Way::Evaluations(each[..used].to_vec()), used));
        }
        let mut next = 0;
        let ranges = counts[..used].iter().map(|count| {
            next += count;
            next - count..next
        });
        Some((Way::Rows(ranges.collect()), used))
    }

    /// What a unit does of a step.
    fn share(&self, step: &StepShape, unit: usize) -> Work {
        Work::Step(match self {
            Way::Rows(ranges) => StepShape { batch: ranges[unit].len(), ..step.clone() },
            Way::Evaluations(seconds) => {
                let shares = shares(step.evaluations.len(), seconds);
                let own = step.evaluations.iter().zip(shares).filter(|(_, share)| *share == unit);
                StepShape {
                    evaluations: own.map(|(evaluation, _)| evaluation.clone()).collect(),
                    ..step.clone()
                }
            }
        })
    }

    /// The batch that a unit's latents have, of the whole batch.
    fn batch(&self, unit: usize, whole: usize) -> usize {
        match self {
            Way::Rows(ranges) => ranges[unit].len(),
            Way::Evaluations(_) => whole,
        }
    }

    /// For the log.
    fn told(&self, step: &StepShape) -> String {
        match self {
            Way::Rows(ranges) => {
                let counts: Vec<String> = ranges.iter().map(|range| range.len().to_string()).collect();
                format!("a batch of {} in parts of {}", step.batch, counts.join(" and "))
            }
            Way::Evaluations(_) => {
                format!("{} evaluations of a step at the same time", step.evaluations.len())
            }
        }
    }
}

/// The model on other accelerators, the fastest first, at most as many as may help; and the seconds that the work takes of
/// the model itself and of each of them.
fn units(runtime: &Runtime, model: &Model, own: DeviceId, work: &Work) -> Result<(Vec<Source>, Vec<f64>)> {
    let accelerators = runtime.devices.iter().map(device::Device::id);
    let others = accelerators.filter(|id| *id != own && *id != DeviceId::CPU);
    let mut others = others
        .map(|id| model.source.placed_on(id))
        // One that has no room for it is none.
        .filter_map(|source| Some((runtime.predicted_s(&source, work).ok()?, source)))
        .collect::<Vec<(f64, Source)>>();
    others.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    others.truncate(model.most_devices - 1);
    let mut seconds = vec![match model.source.placing.compute == own {
        true => runtime.predicted_s(&model.source, work)?,
        false => runtime.predicted_s(&model.source.placed_on(own), work)?,
    }];
    seconds.extend(others.iter().map(|(seconds, _)| *seconds));
    Ok((others.into_iter().map(|(_, source)| source).collect(), seconds))
}

/// Which unit makes each of so many parts: always the one that would be done with it first, and of equal ones the first.
fn shares(count: usize, seconds: &[f64]) -> Vec<usize> {
    let mut busy = vec![0.0; seconds.len()];
    let mut share = || {
        let done = |unit: &usize| busy[*unit] + seconds[*unit];
        let first = (0..seconds.len()).min_by(|one, other| done(one).total_cmp(&done(other))).unwrap_or(0);
        busy[first] += seconds[first];
        first
    };
    (0..count).map(|_| share()).collect()
}

/// What one unit is to evaluate at a level.
pub(crate) struct Order {
    /// The latents, as the model takes them.
    pub(crate) inputs: Vec<Latent>,
    /// By evaluation, its conditioning and which of the latents it looks at.
    pub(crate) evaluations: Vec<(usize, usize)>,
    /// The model's time.
    pub(crate) time: f32,
}

/// What a unit gives: a latent for each evaluation that it was told to make.
pub(crate) type Given = Result<Vec<Latent>>;

/// Accelerators that help, while a run lasts.
pub(crate) struct Units {
    helpers: Vec<Sender<(Order, Sender<Given>)>>,
    way: Way,
}

/// What helpers start with.
#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) diffusion: &'a dyn Diffusion,
    pub(crate) conds: &'a [Conditioned<'a>],
    pub(crate) scene: &'a Scene<'a>,
}

impl Split {
    /// The scene as a unit sees it, with its part of the batch; 0 is the model itself.
    pub(crate) fn scene<'a>(&self, unit: usize, scene: &Scene<'a>) -> Scene<'a> {
        part(scene, self.way.batch(unit, scene.shape.batch))
    }
}

/// The same scene for another batch.
fn part<'a>(scene: &Scene<'a>, batch: usize) -> Scene<'a> {
    Scene { shape: LatentShape { batch, ..scene.shape }, ..*scene }
}

impl Units {
    /// Starts a thread for each of the models that were opened for it. They end when this goes.
    pub(crate) fn start<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        split: &Split,
        opened: &'env [Opened],
        start: Start<'env>,
    ) -> Units {
        let helper = |(at, opened): (usize, &'env Opened)| {
            let (orders, taken) = channel();
            let batch = split.way.batch(at + 1, start.scene.shape.batch);
            scope.spawn(move || help(opened, start, batch, &taken));
            orders
        };
        Units { helpers: opened.iter().enumerate().map(helper).collect(), way: split.way.clone() }
    }

    /// Which unit makes each of so many evaluations, 0 being the model itself; none if all make parts of each.
    pub(crate) fn shares(&self, count: usize) -> Option<Vec<usize>> {
        match &self.way {
            Way::Evaluations(seconds) => Some(shares(count, seconds)),
            Way::Rows(_) => None,
        }
    }

    /// The rows of the batch that each unit has, if that is how they share it.
    pub(crate) fn rows(&self) -> &[Range<usize>] {
        match &self.way {
            Way::Rows(ranges) => ranges,
            Way::Evaluations(_) => &[],
        }
    }

    /// Gives a unit something to do; what it gives comes back here.
    pub(crate) fn order(&self, unit: usize, order: Order) -> Receiver<Given> {
        let (answer, answered) = channel();
        // A helper that has ended lets the answer go, which is told there.
        let _ = self.helpers[unit - 1].send((order, answer));
        answered
    }
}

/// What a unit gave.
pub(crate) fn answer(answered: &Receiver<Given>) -> Given {
    answered
        .recv()
        .unwrap_or_else(|_| Err(Error::Told("a helping accelerator's thread has ended".to_owned())))
}

/// Does what it is told, on the device of its model, until nobody tells it anything any more.
fn help(opened: &Opened, start: Start<'_>, batch: usize, orders: &Receiver<(Order, Sender<Given>)>) {
    let scene = part(start.scene, batch);
    let start = Start { scene: &scene, ..start };
    let mut run: Option<Box<dyn DiffusionRun + '_>> = None;
    for (order, answer) in orders {
        let result = match &run {
            Some(run) => evaluate(&**run, opened, &order, start.runtime),
            None => start_run(opened, start).and_then(|started| {
                let outputs = evaluate(&*started, opened, &order, start.runtime);
                run = Some(started);
                outputs
            }),
        };
        // Whoever asked may have failed meanwhile.
        let _ = answer.send(result);
    }
}

fn start_run<'a>(opened: &'a Opened, start: Start<'a>) -> Result<Box<dyn DiffusionRun + 'a>> {
    Ok(start.diffusion.start(&opened.session, start.conds, start.scene)?)
}

fn evaluate(
    run: &dyn DiffusionRun,
    opened: &Opened,
    order: &Order,
    runtime: &Runtime,
) -> Result<Vec<Latent>> {
    let started = Instant::now();
    let lane = opened.session.lane()?;
    let there: Vec<Tensor> =
        order.inputs.iter().map(|input| on_device(lane, input)).collect::<Result<_>>()?;
    let evaluations: Vec<Evaluation<'_>> = order
        .evaluations
        .iter()
        .map(|(cond, place)| Evaluation::new(*cond, &there[*place], order.time))
        .collect();
    let outputs = run.forward(&evaluations)?;
    let outputs = outputs.iter().map(Tensor::to_vec).collect::<std::result::Result<Vec<_>, _>>()?;
    runtime.note_evaluation(opened, started);
    let shaped = |((_, place), output): (&(usize, usize), Vec<f32>)| {
        Ok(Latent::new(order.inputs[*place].shape().to_vec(), output)?)
    };
    order.evaluations.iter().zip(outputs).map(shaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_where_they_are_done_first() {
        assert_eq!(shares(2, &[1.0, 1.0]), [0, 1]);
        assert_eq!(shares(2, &[1.0, 1.6]), [0, 1], "one each is 1.6, both on the faster one 2");
        assert_eq!(shares(2, &[1.0, 2.5]), [0, 0], "both on the faster one is 2");
        assert_eq!(shares(4, &[1.0, 1.9]), [0, 1, 0, 0]);
        assert_eq!(shares(6, &[1.0, 2.0, 2.0]), [0, 0, 1, 2, 0, 0]);
    }

    #[test]
    fn the_way_is_the_shortest() {
        let best = |evaluations, rows, seconds: &[f64]| Way::best(evaluations, rows, seconds);
        assert_eq!(best(2, 1, &[2.0, 2.0]), Some((Way::Evaluations(vec![1.0, 1.0]), 2)));
        assert_eq!(best(1, 8, &[8.0, 8.0]), Some((Way::Rows(vec![0..4, 4..8]), 2)));
        assert_eq!(best(2, 8, &[8.0, 8.0]), Some((Way::Evaluations(vec![4.0, 4.0]), 2)), "as short");
        // 5 rows of 1 second, and 3 of 1 / 0.6, against one evaluation of 8 / 2 / 0.6.
        assert_eq!(best(2, 8, &[8.0, 8.0 / 0.6]), Some((Way::Rows(vec![0..5, 5..8]), 2)));
        assert_eq!(best(2, 2, &[1.0, 9.0]), None);
        assert_eq!(best(2, 1, &[1.0]), None, "nobody helps");
        assert_eq!(
            best(1, 3, &[3.0, 3.0, 30.0]),
            Some((Way::Rows(vec![0..2, 2..3]), 2)),
            "the third would hold it up"
        );
    }
}
