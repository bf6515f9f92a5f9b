//! Control networks against the reference implementation, and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use checkpoint::Checkpoint;
use meta::DeviceId;
use models::conditioning::{Array, Cond, Scene};
use models::control::{ControlNetwork, Controlled};
use models::detect;
use models::detect::{Reader, Role};
use models::diffusion::{ControlResiduals, Evaluation};
use placement::RemotePolicy;
use residency::{Residency, Session};
use sampling::LatentShape;
use support::*;
use tensor::Tensor;
use testkit::{Golden, random_normal};

/// What the reference's own repetitions stay well below, and a wrong formula far above.
const TOLERANCE: f64 = 1e-4;

/// The control network of a file.
fn network(file: &Checkpoint) -> Box<dyn ControlNetwork> {
    let detected = detect(file);
    let part = detected.part(Role::Control, "a control network").unwrap();
    assert_eq!(detected.parts.len(), 1, "{detected}");
    match part.reader {
        Some(Reader::Control(family)) => (family.read)(file, part).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// A network with what it takes of the model that it controls, and its manifest.
fn ready(name: &str) -> (Box<dyn ControlNetwork>, residency::Manifest) {
    let file = checkpoint(name);
    let mut network = network(&file);
    if network.needs_base() {
        let base = checkpoint(if name.starts_with("sd15") { "sd15_micro" } else { "sd35_micro" });
        network = network.on_base(&file, (&base, &detect(&base).parts[0])).unwrap();
        assert!(!network.needs_base());
    }
    let manifest = network.manifest(&file).unwrap();
    (network, manifest)
}

fn array(seed: u64, shape: &[usize]) -> Array {
    Array { shape: shape.to_vec(), values: random_normal(seed, shape.iter().product()) }
}

fn scene(latent: &[usize]) -> Scene<'static> {
    let shape =
        LatentShape { batch: latent[0], channels: latent[1], frames: 1, height: latent[2], width: latent[3] };
    Scene::empty(shape)
}

/// What the reference was called with, which its file does not say.
struct Called {
    name: &'static str,
    time: f32,
    picture_kind: Option<usize>,
    /// How many places of each kind it gives something for.
    places: [usize; 3],
}

const CALLED: [Called; 1] =
    [Called { name: "flux_instantx_union_micro", time: 0.6, picture_kind: Some(1), places: [19, 0, 38] }];

#[test]
fn what_networks_give_equals_the_reference() {
    for Called { name, time, picture_kind, places } in CALLED {
        let (network, manifest) = ready(name);
        let (session, golden) = (open_on_cpu(manifest), golden(name));
        let given = called(&*network, &session, &golden, (time, picture_kind));
        let all = [("input", &given.input), ("middle", &given.middle), ("output", &given.output)];
        assert_eq!(all.map(|(_, tensors)| tensors.len()), places, "{name}");
        for (part, tensors) in all {
            for (index, tensor) in tensors.iter().enumerate() {
                let tensor = tensor.as_ref().unwrap();
                let stored = format!("out.{part}.{index}");
                golden.assert_close(&stored, tensor.shape(), &tensor.to_vec().unwrap(), TOLERANCE);
            }
        }
    }
}

fn called(
    network: &dyn ControlNetwork,
    session: &Session,
    golden: &Golden,
    (time, picture_kind): (f32, Option<usize>),
) -> ControlResiduals {
    let input = |name: &str| {
        let input = golden.input(name).ok()?;
        Some(Array { shape: input.shape.dims().to_vec(), values: input.values() })
    };
    let cond = Cond::text(input("context").unwrap(), input("y"));
    let (latent, hint) = (input("x").unwrap(), input("hint").unwrap());
    let controlled = [Controlled { cond: &cond, hint: &hint, picture_kind }];
    let run = network.start(session, &controlled, &scene(&latent.shape)).unwrap();
    let shape: [usize; 4] = latent.shape.clone().try_into().unwrap();
    let latent = session.lane().unwrap().tensor(shape, &latent.values).unwrap();
    run.forward(&[Evaluation::new(0, &latent, time)]).unwrap().remove(0)
}

fn bits(residuals: &ControlResiduals) -> Vec<Vec<u32>> {
    let all = residuals.input.iter().chain(&residuals.middle).chain(&residuals.output).flatten();
    let bits = |tensor: &Tensor| tensor.to_vec().unwrap().iter().map(|value| value.to_bits()).collect();
    all.map(bits).collect()
}

/// Two evaluations of one step with texts and pictures of their own, as bits.
fn step(network: &dyn ControlNetwork, session: &Session) -> Vec<Vec<Vec<u32>>> {
    let (text, pooled) = match network.controls() {
        ["FLUX.1"] => (4096, 768),
        ["Stable Diffusion 3"] => (4096, 2048),
        _ => (768, 768),
    };
    let latent = [1, network.latent_channels(), 8, 16];
    let conds =
        [1, 2].map(|seed| Cond::text(array(seed, &[1, 12, text]), Some(array(seed + 9, &[1, pooled]))));
    let [channels, height, width] = network.hint().shape(latent[2], latent[3]);
    let hints = [3, 4].map(|seed| array(seed, &[1, channels, height, width]));
    let controlled = [0, 1].map(|i| Controlled { cond: &conds[i], hint: &hints[i], picture_kind: None });
    let run = network.start(session, &controlled, &scene(&latent)).unwrap();
    let values = random_normal(5, latent.iter().product());
    let latent = session.lane().unwrap().tensor(latent, &values).unwrap();
    let both = [0, 1].map(|cond| Evaluation::new(cond, &latent, 0.64));
    let together: Vec<_> = run.forward(&both).unwrap().iter().map(bits).collect();
    // Each by itself gives the same bits.
    for (evaluation, expected) in both.iter().zip(&together) {
        assert!(bits(&run.forward(std::slice::from_ref(evaluation)).unwrap()[0]) == *expected);
    }
    assert!(together[0] != together[1]);
    together
}

const NETWORKS: [&str; 7] = [
    "flux_xlabs_micro",
    "flux_instantx_union_micro",
    "sd3_micro_diffusers",
    "sd35_micro_stability",
    "sd15_micro_controlnet",
    "sd15_micro_control_lora",
    "sd15_micro_t2i_adapter",
];

#[test]
fn placement_and_company_change_no_bit() {
    for name in NETWORKS {
        let (network, manifest) = ready(name);
        let expected = step(&*network, &open_on_cpu(manifest.clone()));
        for text in ["sim:0,1%;cpu,99%", "sim:0,50%;sim:1,50%"] {
            for remote in [RemotePolicy::Stream, RemotePolicy::InPlace] {
                let residency = Residency::new(machine(&["2gb@5gbps", "2gb@5gbps"]));
                let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), text, remote);
                let session = open(&residency, manifest.clone(), plan);
                assert!(step(&*network, &session) == expected, "{name} {text} {remote:?}");
            }
        }
    }
}

#[test]
fn strengths_and_sums_are_those_of_the_values() {
    let lane = tensor::Lane::new(machine(&[]).get(DeviceId::CPU).unwrap(), meta::DType::F32).unwrap();
    let tensor = |value: f32| Some(lane.tensor([1, 1, 2], &[value, -value]).unwrap());
    let shared = tensor(3.0);
    let first = ControlResiduals {
        input: vec![shared.clone(), shared, None],
        middle: Vec::new(),
        output: vec![tensor(1.0)],
    };
    let second =
        ControlResiduals { input: vec![tensor(10.0)], middle: vec![tensor(7.0)], output: Vec::new() };
    let scaled = first.scaled(0.5).unwrap();
    // What was one tensor still is.
    let place = |at: usize| scaled.input[at].as_ref().unwrap().operand().clone();
    assert!(place(0).same_view(&place(1)));
    let sum = second.with(&scaled).unwrap();
    let values = |places: &[Option<Tensor>]| -> Vec<Option<f32>> {
        places.iter().map(|place| place.as_ref().map(|tensor| tensor.to_vec().unwrap()[0])).collect()
    };
    assert_eq!(values(&sum.input), [Some(11.5), Some(1.5), None]);
    assert_eq!((values(&sum.middle), values(&sum.output)), (vec![Some(7.0)], vec![Some(0.5)]));
}

#[test]
fn what_does_not_fit_is_told() {
    let (network, manifest) = ready("flux_instantx_union_micro");
    let session = open_on_cpu(manifest);
    let cond = Cond::text(array(1, &[1, 12, 4096]), Some(array(2, &[1, 768])));
    let error = |hint: &Array, picture_kind: Option<usize>| {
        let controlled = [Controlled { cond: &cond, hint, picture_kind }];
        network.start(&session, &controlled, &scene(&[1, 16, 8, 8])).err().unwrap().to_string()
    };
    let wrong = error(&array(3, &[1, 3, 64, 64]), None);
    assert!(wrong.contains("of 16 channels") && wrong.contains("of 3"), "{wrong}");
    let kind = error(&array(3, &[1, 16, 8, 8]), Some(7));
    assert!(kind.contains("one of the 7"), "{kind}");
    // A model that lacks what a network takes of it.
    let file = checkpoint("sd35_micro_stability");
    let base = checkpoint("flux_dev_micro");
    let part = detect(&base).parts.remove(0);
    let missing = self::network(&file).on_base(&file, (&base, &part)).err().unwrap().to_string();
    assert!(missing.contains("y_embedder.mlp.0.weight"), "{missing}");
}
