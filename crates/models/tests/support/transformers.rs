//! Transformers against the reference implementation module by module, and on every placement.

use std::collections::BTreeSet;

use checkpoint::Checkpoint;
use meta::DeviceId;
use models::conditioning::{Array, Cond, Conditioned, Scene};
use models::diffusion::{Diffusion, Evaluation};
use models::{Probe, Result};
use placement::RemotePolicy;
use residency::{Residency, Session};
use sampling::LatentShape;
use tensor::Tensor;
use testkit::{Golden, random_normal};

use super::{machine, open, open_on_cpu, plan};

/// What the reference's own repetitions stay well below, and a wrong formula far above.
pub(crate) const TOLERANCE: f64 = 1e-4;

/// A procedural input of a golden file as a tensor.
pub(crate) fn input(golden: &Golden, session: &Session, name: &str) -> Tensor {
    let input = golden.input(name).unwrap();
    session.lane().unwrap().tensor(input.shape, &input.values()).unwrap()
}

/// A procedural input of a golden file on the host.
pub(crate) fn array(golden: &Golden, name: &str) -> Array {
    let input = golden.input(name).unwrap();
    Array { shape: input.shape.dims().to_vec(), values: input.values() }
}

/// Runs the golden's inputs and compares every module that both sides name; `other_names` gives the names that the
/// reference has for a module beside its own. What the reference names and the model did not show is the answer.
pub(crate) fn missed_modules(
    golden: &Golden,
    session: &Session,
    forward: impl FnOnce(&Tensor, f32, &mut Probe<'_>) -> Result<Tensor>,
    other_names: impl Fn(&str) -> Vec<String>,
) -> Vec<String> {
    let (latent, time) = (input(golden, session, "x"), golden.metadata("timestep").unwrap().parse().unwrap());
    let mut seen = BTreeSet::new();
    let mut see = |name: &str, value: &Tensor| {
        for name in other_names(name).into_iter().chain([name.to_owned()]) {
            let stored = format!("out.{name}");
            if golden.names().any(|n| n == stored || n == format!("{stored}.rms")) {
                // The reference has the heads before the tokens in some families.
                let expected = golden.shape(&stored).unwrap();
                let is_turned = value.rank() == 4 && expected.is_some_and(|shape| shape != *value.shape());
                let value = if is_turned { value.transpose(1, 2).unwrap() } else { value.clone() };
                golden.assert_close(&stored, value.shape(), &value.to_vec().unwrap(), TOLERANCE);
                seen.insert(name);
            }
        }
    };
    let output = forward(&latent, time, &mut Probe::new(&mut see)).unwrap();
    golden.assert_close("output", output.shape(), &output.to_vec().unwrap(), TOLERANCE);
    let pieces = [".rows", ".cols", ".rms", ".mean", ".channels"];
    let module = |name: &str| {
        let name = name.strip_prefix("out.")?;
        Some(pieces.iter().find_map(|piece| name.strip_suffix(piece)).unwrap_or(name).to_owned())
    };
    let all: BTreeSet<String> = golden.names().filter_map(module).collect();
    all.difference(&seen).cloned().collect()
}

/// Checks that two evaluations of a step give the same bits together and alone, resident, streamed and in place, for
/// latents of each of these shapes.
pub(crate) fn check_placements(
    model: &dyn Diffusion,
    file: &Checkpoint,
    conds: &[Cond; 2],
    latents: &[&[usize]],
) {
    let manifest = || model.manifest(file).unwrap();
    for latent in latents {
        let expected = step(model, &open_on_cpu(manifest()), conds, latent);
        for text in ["sim:0,1%;cpu,99%", "sim:0,50%;sim:1,50%"] {
            for remote in [RemotePolicy::Stream, RemotePolicy::InPlace] {
                let residency = Residency::new(machine(&["2gb@5gbps", "2gb@5gbps"]));
                let plan = plan(&manifest(), residency.devices(), DeviceId::sim(0), text, remote);
                let session = open(&residency, manifest(), plan);
                assert!(step(model, &session, conds, latent) == expected, "{text} {remote:?} {latent:?}");
            }
        }
    }
}

/// Two texts of different lengths are two batches, those of equal lengths one.
pub(crate) fn texts(shape: [usize; 3]) -> [Cond; 2] {
    [1, 2].map(|seed| {
        let values = random_normal(seed, shape.iter().product());
        Cond::text(Array { shape: shape.to_vec(), values }, None)
    })
}

/// Two evaluations of one step with texts of their own, as bits.
fn step(model: &dyn Diffusion, session: &Session, conds: &[Cond; 2], latent: &[usize]) -> Vec<Vec<u32>> {
    let conditioned = conds.each_ref().map(Conditioned::whole);
    let shape = LatentShape::sized(latent).unwrap();
    let run = model.start(session, &conditioned, &Scene::empty(shape)).unwrap();
    let values = random_normal(5, latent.iter().product());
    let latent = session.lane().unwrap().tensor(meta::Shape::new(latent).unwrap(), &values).unwrap();
    let both = [0, 1].map(|cond| Evaluation::new(cond, &latent, 0.64));
    let together = run.forward(&both).unwrap();
    let bits = |tensor: &Tensor| tensor.to_vec().unwrap().iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    let together: Vec<Vec<u32>> = together.iter().map(bits).collect();
    // Each by itself gives the same bits, and a second step needs nothing that the first has used up.
    for (evaluation, expected) in both.iter().zip(&together) {
        assert!(bits(&run.forward(std::slice::from_ref(evaluation)).unwrap()[0]) == *expected);
    }
    assert!(together[0] != together[1] && together[0].iter().all(|v| f32::from_bits(*v).is_finite()));
    together
}
