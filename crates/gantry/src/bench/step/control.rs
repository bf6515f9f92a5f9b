//! `gantry bench step --control`: a step of a model with a control network of its released size beside it, and without one,
//! in turns in one run. Both are planned, opened and started together, as a sampler does it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use checkpoint::Checkpoint;
use device::Device;
use meta::ByteSize;
use models::conditioning::{Array, Cond, CondShape, Conditioned, Scene};
use models::control::{ControlRun, Controlled, FAMILIES, ReleasedControl};
use models::detect::detect;
use models::diffusion::{Diffusion, DiffusionFamily, DiffusionRun, Evaluation, ReleasedModel};
use residency::{Cancel, Products};
use runtime::{Caller, EvaluationShape, Network, Opened, Placing, Source, StepShape, Wanted, Work};
use serde::Serialize;
use tensor::{Lane, Tensor};
use testkit::{ScratchDir, random_f32};

use super::stored::write_whole;
use super::{StepSize, evaluations, random_cond, relative_error, released, size_of};
use crate::bench::served::files;
use crate::bench::show;
use crate::cli::BenchArgs;
use crate::commands::tell;
use crate::machine::Machine;
use crate::planning;
use crate::table::Table;

/// Steps of each kind that are measured, in turns; their medians count.
const STEPS: usize = 7;

#[derive(Serialize)]
struct Report {
    version: &'static str,
    device: String,
    device_name: String,
    model: &'static str,
    /// The control network.
    network: String,
    cfg: f64,
    size: StepSize,
    model_bytes: u64,
    network_bytes: u64,
    #[serde(flatten)]
    measured: Measured,
    /// A step with it over one without.
    ratio: f64,
}

#[derive(Serialize)]
struct Measured {
    without: Kind,
    with: Kind,
    /// What both networks copied in all steps: nothing where all of them is on the device.
    streamed_bytes: u64,
    /// By how much the network changes what a step gives, relative to it.
    change: f64,
}

/// Steps of one kind.
#[derive(Serialize)]
struct Kind {
    /// The first, which may have to look for kernels.
    first_step_s: f64,
    step_s: f64,
}

pub(super) fn run(machine: &Machine, device: &Device, args: &BenchArgs) -> Result<ExitCode> {
    let (family, released) = released(args)?;
    let network = network_of(family)?;
    let dir = ScratchDir::new()?;
    tell(&format!("writing {} and a control network for it\n", released.name));
    let [model, control] = write(dir.path(), (family, released), network)?;
    let bench = Bench { size: size_of(args, released), evaluations: evaluations(released), device };
    let placing = || Placing::automatic(device.id());
    let model = Source::diffusion(&model, &detect(&model), None, placing())?;
    let control = Source::control(&control, &detect(&control), placing())?;
    ensure!(
        control.control_network()?.controls().contains(&family.name),
        "{} controls another model",
        control.part
    );
    let measured = bench.measure(machine, &model, &control)?;
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        device: device.id().to_string(),
        device_name: device.description().name.clone(),
        model: released.name,
        network: control.part.name.to_string(),
        cfg: released.cfg,
        size: bench.size,
        model_bytes: model.file.tensor_bytes(),
        network_bytes: control.file.tensor_bytes(),
        ratio: measured.with.step_s / measured.without.step_s,
        measured,
    };
    show(args, &report, Report::to_text)
}

/// The released control network of a family.
fn network_of(family: &DiffusionFamily) -> Result<&'static ReleasedControl> {
    let known = || FAMILIES.iter().filter_map(|network| network.released.as_ref());
    let families = models::diffusion::FAMILIES.iter();
    let has_one = |family: &&&DiffusionFamily| known().any(|network| network.controls == family.name);
    let keys: Vec<&str> = families.filter(has_one).map(|family| family.key).collect();
    known().find(|network| network.controls == family.name).with_context(|| {
        format!(
            "--control: no control network of {} is known; name one with --family: {}",
            family.name,
            keys.join(", ")
        )
    })
}

/// Writes a model and its control network.
fn write(
    dir: &Path,
    shapes: (&DiffusionFamily, &ReleasedModel),
    network: &ReleasedControl,
) -> Result<[Arc<Checkpoint>; 2]> {
    let model = write_whole(dir, "BF16", shapes)?;
    let control = dir.join("control.safetensors");
    files::write_network(&control, (network.tensors)(&(shapes.1.tensors)(usize::MAX)))?;
    Ok([Arc::new(Checkpoint::open(&model)?), Arc::new(Checkpoint::open(&control)?)])
}

struct Bench<'a> {
    size: StepSize,
    evaluations: usize,
    device: &'a Device,
}

impl Bench<'_> {
    fn measure(&self, machine: &Machine, model: &Source, control: &Source) -> Result<Measured> {
        let runtime = planning::runtime_on(machine.registry(), self.device.id(), Products::Exact)?;
        let Network::Diffusion(diffusion, _) = &*model.network else {
            bail!("{} is no diffusion model", model.part)
        };
        let latent = self.size.latent(diffusion.latent());
        let shape = EvaluationShape {
            height: latent.height,
            width: latent.width,
            cond: CondShape { tokens: self.size.tokens, ..CondShape::default() },
            altered: Vec::new(),
        };
        let step = StepShape { batch: 1, frames: latent.frames, evaluations: vec![shape; self.evaluations] };
        let works = [Work::Step(step.clone()), Work::Control(step)];
        let wanted = |source, work| Wanted { source, beside: &[], loras: &[], work };
        let caller = Caller { job: None, cancel: Cancel::default(), device: None };
        let measured = runtime.with_sessions(
            wanted(model, &works[0]),
            &[wanted(control, &works[1])],
            &caller,
            |opened, others| self.in_turns(&**diffusion, control, opened, others),
        );
        Ok(measured?)
    }

    /// Steps with the network and without, in turns.
    fn in_turns(
        &self,
        diffusion: &dyn Diffusion,
        control: &Source,
        opened: &Opened,
        others: &[Opened],
    ) -> runtime::Result<Measured> {
        let scene = Scene::empty(self.size.latent(diffusion.latent()));
        let conds: Vec<Cond> =
            (0..self.evaluations).map(|which| random_cond(diffusion, self.size.tokens, which)).collect();
        let conditioned: Vec<Conditioned<'_>> = conds.iter().map(Conditioned::whole).collect();
        let network = control.control_network()?;
        let [channels, height, width] = network.hint().shape(scene.shape.height, scene.shape.width);
        let values = random_f32(9, channels * height * width).into_iter().map(f32::abs).collect();
        let hint = Array { shape: vec![1, channels, height, width], values };
        let controlled: Vec<Controlled<'_>> =
            conds.iter().map(|cond| Controlled { cond, hint: &hint, picture_kind: None }).collect();
        let mut controls = Vec::new();
        for other in others {
            controls.push(network.start(&other.session, &controlled, &scene)?);
        }
        let pair = Pair {
            lane: opened.session.lane()?,
            run: diffusion.start(&opened.session, &conditioned, &scene)?,
            controls,
            time: diffusion.sampling().timestep(0.8),
            evaluations: self.evaluations,
        };
        let noise = self.size.noise(diffusion.latent());
        let timed = |is_controlled: bool| -> runtime::Result<(f64, Vec<f32>)> {
            // A sampler brings the latent and reads the answer in every step.
            let start = Instant::now();
            let latent = self.size.on_device(diffusion.latent(), pair.lane, &noise)?;
            let given = pair.step(&latent, is_controlled)?;
            Ok((start.elapsed().as_secs_f64(), given))
        };
        let firsts = [timed(false)?, timed(true)?];
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..STEPS {
            for (times, is_controlled) in times.iter_mut().zip([false, true]) {
                times.push(timed(is_controlled)?.0);
            }
        }
        let streamed = others.iter().chain([opened]).map(|opened| opened.session.stats().bytes);
        let kind = |first: f64, times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            Kind { first_step_s: first, step_s: times[STEPS / 2] }
        };
        Ok(Measured {
            without: kind(firsts[0].0, &mut times[0]),
            with: kind(firsts[1].0, &mut times[1]),
            streamed_bytes: streamed.sum(),
            change: relative_error(&firsts[1].1, &firsts[0].1),
        })
    }
}

/// A model and its control network, started.
struct Pair<'a> {
    lane: &'a Lane,
    run: Box<dyn DiffusionRun + 'a>,
    controls: Vec<Box<dyn ControlRun + 'a>>,
    time: f32,
    evaluations: usize,
}

impl Pair<'_> {
    /// All evaluations of a step.
    fn step(&self, latent: &Tensor, is_controlled: bool) -> runtime::Result<Vec<f32>> {
        let asked: Vec<Evaluation<'_>> =
            (0..self.evaluations).map(|cond| Evaluation::new(cond, latent, self.time)).collect();
        let mut residuals = Vec::new();
        for control in self.controls.iter().filter(|_| is_controlled) {
            residuals = control.forward(&asked)?;
        }
        let asked =
            asked.iter().enumerate().map(|(at, asked)| Evaluation { control: residuals.get(at), ..*asked });
        let given = self.run.forward(&asked.collect::<Vec<_>>())?;
        drop(residuals);
        let mut values = Vec::new();
        for tensor in &given {
            values.extend(tensor.to_vec()?);
        }
        Ok(values)
    }
}

impl Report {
    fn to_text(&self) -> String {
        let mut table = Table::new(&["step", "first ms", "ms", "over without"]);
        let Measured { without, with, streamed_bytes, change } = &self.measured;
        for (name, kind) in [("without a ControlNet", without), ("with a ControlNet", with)] {
            table.row(&[
                name,
                &format!("{:.1}", kind.first_step_s * 1e3),
                &format!("{:.1}", kind.step_s * 1e3),
                &format!("{:.3}", kind.step_s / without.step_s),
            ]);
        }
        format!(
            "{} ({}), a model of the size of {} ({}), cfg {}, {}\n{} ({}); streamed {}; it changes a step by {change:.2}\n\n{table}",
            self.device,
            self.device_name,
            self.model,
            ByteSize(self.model_bytes),
            self.cfg,
            self.size,
            self.network,
            ByteSize(self.network_bytes),
            ByteSize(*streamed_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use models::detect::Role;

    use super::*;

    #[test]
    fn networks_are_recognised_by_the_tensors_of_their_models() {
        let dir = ScratchDir::new().unwrap();
        let families = models::diffusion::FAMILIES.iter();
        let mut seen = 0;
        for (family, network) in families.filter_map(|family| Some((*family, network_of(family).ok()?))) {
            let [_, control] = write(dir.path(), (family, &family.small), network).unwrap();
            let found = detect(&control);
            let part = found.part(Role::Control, "a control network").unwrap();
            let source = Source::of_part(&control, part, Placing::automatic(meta::DeviceId::CPU)).unwrap();
            let read = source.control_network().unwrap();
            assert!(read.controls().contains(&family.name), "{}: {part}", family.key);
            read.manifest(&control).unwrap();
            seen += 1;
        }
        assert!(seen >= 4, "{seen}");
    }

    #[test]
    fn released_networks_have_their_sizes() {
        let families = models::diffusion::FAMILIES.iter();
        let sizes = families.filter_map(|family| {
            let tensors = (network_of(family).ok()?.tensors)(&(family.released.tensors)(usize::MAX));
            Some((family.key, tensors.iter().map(|(_, shape)| shape.count()).sum::<usize>()))
        });
        let sizes: std::collections::BTreeMap<&str, usize> = sizes.collect();
        assert_eq!((sizes["sd15"], sizes["sdxl"]), (361_279_120, 1_251_014_160), "{sizes:?}");
    }

    #[test]
    fn a_family_without_a_network_is_told_which_have_one() {
        let families = models::diffusion::FAMILIES.iter();
        let without = families.map(|family| network_of(family)).find_map(Result::err);
        let told = without.unwrap().to_string();
        assert!(told.contains("no control network of") && told.contains("sdxl"), "{told}");
    }
}
