//! The evaluations of a step on several accelerators at the same time.
//!
//! Each accelerator has the model with its patches, and gets as many of a step's evaluations as make the step shortest by
//! what is predicted for each. One computes in the thread of the sampler, every other in a thread of its own.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::Instant;

use meta::DeviceId;
use models::conditioning::{Conditioned, Scene};
use models::diffusion::{Diffusion, DiffusionRun, Evaluation};
use runtime::{Caller, Model, Opened, Runtime, Source, StepShape, Wanted, Work};
use sampling::Latent;
use tensor::Tensor;

use super::predicting::on_device;
use crate::{Error, Result};

/// Who evaluates what.
pub(crate) struct Split {
    /// What the model itself does of the largest step.
    pub(crate) own: Work,
    /// The model on other accelerators, with what each does of that step.
    others: Vec<(Source, Work)>,
    /// Seconds that one evaluation takes, of the model itself and of the others.
    seconds: Vec<f64>,
}

impl Split {
    /// How the evaluations of a run whose largest step is this are split; none if one accelerator does them all.
    pub(crate) fn of(
        runtime: &Runtime,
        caller: &Caller,
        model: &Model,
        work: &Work,
    ) -> Result<Option<Split>> {
        let Work::Step(step) = work else { return Ok(None) };
        let count = step.evaluations.len();
        // What records what another evaluation does has to run beside it.
        let is_plain = step.evaluations.iter().all(|evaluation| evaluation.altered.is_empty());
        let own = runtime.device_of(&model.source, caller);
        if model.most_devices < 2 || count < 2 || !is_plain || own == DeviceId::CPU {
            return Ok(None);
        }
        let per_evaluation =
            |source: &Source| -> Result<f64> { Ok(runtime.predicted_s(source, work)? / count as f64) };
        let accelerators = runtime.devices.iter().map(device::Device::id);
        let others = accelerators.filter(|id| *id != own && *id != DeviceId::CPU);
        let mut others = others
            .map(|id| model.source.placed_on(id))
            // One that has no room for it is none.
            .filter_map(|source| Some((per_evaluation(&source).ok()?, source)))
            .collect::<Vec<(f64, Source)>>();
        others.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        others.truncate(model.most_devices - 1);
        let mut seconds = vec![match model.source.placing.compute == own {
            true => per_evaluation(&model.source)?,
            false => per_evaluation(&model.source.placed_on(own))?,
        }];
        seconds.extend(others.iter().map(|(seconds, _)| *seconds));
        let shares = shares(count, &seconds);
        let share = |unit: usize| -> Work {
            let own = step.evaluations.iter().zip(&shares).filter(|(_, share)| **share == unit);
            let evaluations = own.map(|(evaluation, _)| evaluation.clone()).collect();
            Work::Step(StepShape { evaluations, ..step.clone() })
        };
        let used = (1..seconds.len()).filter(|unit| shares.contains(unit)).count();
        if used == 0 {
            return Ok(None);
        }
        // The fastest come first, so that those without a share are the last.
        others.truncate(used);
        seconds.truncate(used + 1);
        let others = others.into_iter().enumerate().map(|(at, (_, source))| (source, share(at + 1)));
        let others: Vec<(Source, Work)> = others.collect();
        tracing::info!(
            "{}: {} of {count} evaluations of a step on {own}, the others on {}",
            model.source.name(),
            shares.iter().filter(|share| **share == 0).count(),
            others
                .iter()
                .map(|(source, _)| source.placing.compute.to_string())
                .collect::<Vec<_>>()
                .join(", "),
        );
        Ok(Some(Split { own: share(0), others, seconds }))
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

/// Which unit makes each of so many evaluations: always the one that would be done with it first, and of equal ones the
/// first.
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

/// What a unit is given: an order, and where its answer goes.
type Task = (Order, Sender<Result<Vec<Latent>>>);

/// Accelerators that help, while a run lasts.
pub(crate) struct Units {
    helpers: Vec<Sender<Task>>,
    seconds: Vec<f64>,
}

/// What helpers start with.
#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) diffusion: &'a dyn Diffusion,
    pub(crate) conds: &'a [Conditioned<'a>],
    pub(crate) scene: &'a Scene<'a>,
}

impl Units {
    /// Starts a thread for each of the models that were opened for it. They end when this goes.
    pub(crate) fn start<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        split: &Split,
        opened: &'env [Opened],
        start: Start<'env>,
    ) -> Units {
        let helper = |opened: &'env Opened| {
            let (orders, taken) = channel();
            scope.spawn(move || help(opened, start, &taken));
            orders
        };
        Units { helpers: opened.iter().map(helper).collect(), seconds: split.seconds.clone() }
    }

    /// Which unit makes each of so many evaluations; 0 is the model itself.
    pub(crate) fn shares(&self, count: usize) -> Vec<usize> {
        shares(count, &self.seconds)
    }

    /// Gives a unit something to do; what it gives comes back here.
    pub(crate) fn order(&self, unit: usize, order: Order) -> Receiver<Result<Vec<Latent>>> {
        let (answer, answered) = channel();
        // A helper that has ended lets the answer go, which is told there.
        let _ = self.helpers[unit - 1].send((order, answer));
        answered
    }
}

/// What a unit gave.
pub(crate) fn answer(answered: &Receiver<Result<Vec<Latent>>>) -> Result<Vec<Latent>> {
    answered
        .recv()
        .unwrap_or_else(|_| Err(Error::Told("a helping accelerator's thread has ended".to_owned())))
}

/// Does what it is told, on the device of its model, until nobody tells it anything any more.
fn help(opened: &Opened, start: Start<'_>, orders: &Receiver<Task>) {
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
    fn evaluations_go_where_they_are_done_first() {
        assert_eq!(shares(2, &[1.0, 1.0]), [0, 1]);
        assert_eq!(shares(2, &[1.0, 1.6]), [0, 1], "one each is 1.6, both on the faster one 2");
        assert_eq!(shares(2, &[1.0, 2.5]), [0, 0], "both on the faster one is 2");
        assert_eq!(shares(4, &[1.0, 1.9]), [0, 1, 0, 0]);
        assert_eq!(shares(6, &[1.0, 2.0, 2.0]), [0, 0, 1, 2, 0, 0]);
    }
}
