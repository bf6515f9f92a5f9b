//! What is to be where in a picture: a network beside a UNet against formulas that were written down elsewhere
//! (`tools/reference`), in company, and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use checkpoint::Checkpoint;
use meta::DeviceId;
use models::conditioning::{Array, Cond, Conditioned, Grounding, PlacedText, Scene};
use models::detect::{Reader, Role};
use models::diffusion::model_patches::{PatchGiven, PatchNetwork, rehearse};
use models::diffusion::{Diffusion, Evaluation, sd15};
use models::{Module, detect};
use placement::RemotePolicy;
use residency::{Residency, Session};
use sampling::LatentShape;
use support::transformers::array;
use support::*;

const NAME: &str = "gligen_sd15_micro";
/// The reference computes in f64.
const TOLERANCE: f64 = 1e-5;
/// Rows and columns of the latent.
const SIZE: [usize; 2] = [16, 8];

fn network(file: &Checkpoint) -> Box<dyn PatchNetwork> {
    let detected = detect(file);
    assert_eq!(detected.seems(), "a model patch (GLIGEN for Stable Diffusion 1.5)");
    let part = detected.part(Role::ModelPatch, "a model patch").unwrap();
    let Some(Reader::ModelPatch(family)) = part.reader else { panic!("nobody reads {part}") };
    let network = (family.read)(file, part).unwrap();
    assert_eq!(part.unused(file, &network.manifest(file).unwrap()), [""; 0]);
    network
}

/// The first so many texts of the reference, with their boxes: height, width, top and left.
fn grounding(count: usize) -> Grounding {
    let golden = golden(NAME);
    let places = [[8, 4, 0, 0], [9, 5, 6, 3]];
    let placed = ["first", "second"].into_iter().zip(places).take(count).map(|(text, place)| {
        let values = array(&golden, text).values;
        PlacedText { text: Arc::new(Array { shape: vec![1, values.len()], values }), place }
    });
    Grounding { size: SIZE, texts: placed.collect() }
}

/// A step of evaluations that are told so many texts each.
fn evaluated(network: &dyn PatchNetwork, session: &Session, texts: &[usize]) -> Vec<Vec<f32>> {
    let (file, golden) = (checkpoint("sd15_micro"), golden(NAME));
    let model = sd15::read(&file, &detect(&file).parts[0]).unwrap();
    let own = open_on_cpu(model.manifest(&file).unwrap());
    let shape = LatentShape { batch: 1, channels: 4, frames: 1, height: SIZE[0], width: SIZE[1] };
    let cond = Cond::text(array(&golden, "context"), None);
    let conds: Vec<Conditioned<'_>> = texts.iter().map(|_| Conditioned::whole(&cond)).collect();
    let run = model.start(&own, &conds, &Scene::empty(shape)).unwrap();
    let x = own.lane().unwrap().tensor([1, 4, 16, 8], &array(&golden, "x").values).unwrap();
    let evaluations: Vec<Evaluation<'_>> =
        (0..texts.len()).map(|at| Evaluation::new(at, &x, 601.0)).collect();
    let grounded: Vec<Grounding> = texts.iter().map(|count| grounding(*count)).collect();
    let given = PatchGiven { pictures: &[], grounded: &grounded, strength: 1.0 };
    let patch = network.start(session, &given).unwrap();
    let outputs = run.forward_patched(&evaluations, &[&*patch]).unwrap();
    outputs.iter().map(|output| output.to_vec().unwrap()).collect()
}

#[test]
fn texts_with_places_change_a_picture_as_the_formulas_say() {
    let file = checkpoint(NAME);
    let network = network(&file);
    assert_eq!((network.text_width(), network.points().len()), (Some(768), 16));
    let session = open_on_cpu(network.manifest(&file).unwrap());
    let golden = golden(NAME);
    for (name, texts) in [("plain", 0), ("one", 1), ("two", 2)] {
        let (shape, _) = golden.tensor(name).unwrap();
        let values = evaluated(&*network, &session, &[texts]).swap_remove(0);
        golden.assert_close(name, &shape, &values, TOLERANCE);
    }
}

#[test]
fn company_and_placement_change_no_bit() {
    let file = checkpoint(NAME);
    let network = network(&file);
    let manifest = || network.manifest(&file).unwrap();
    let session = open_on_cpu(manifest());
    let alone: Vec<Vec<f32>> =
        [2, 0, 1].iter().map(|texts| evaluated(&*network, &session, &[*texts]).swap_remove(0)).collect();
    assert!(alone[0] != alone[1] && alone[0] != alone[2]);
    assert!(evaluated(&*network, &session, &[2, 0, 1]) == alone);
    for text in ["sim:0,1%;cpu,99%", "sim:0,50%;sim:1,50%"] {
        let residency = Residency::new(machine(&["2gb@5gbps", "2gb@5gbps"]));
        let plan = plan(&manifest(), residency.devices(), DeviceId::sim(0), text, RemotePolicy::Stream);
        let session = open(&residency, manifest(), plan);
        assert!(evaluated(&*network, &session, &[2, 0, 1]) == alone, "{text}");
    }
}

#[test]
fn what_does_not_fit_is_told() {
    let file = checkpoint(NAME);
    let network = network(&file);
    let session = open_on_cpu(network.manifest(&file).unwrap());
    let told = |grounding: Grounding| {
        let given = PatchGiven { pictures: &[], grounded: &[grounding], strength: 1.0 };
        network.start(&session, &given).map(|_| ()).unwrap_err().to_string()
    };
    let narrow = PlacedText { text: Arc::new(Array::zeros(&[1, 512])), place: [1, 1, 0, 0] };
    assert!(told(Grounding { size: SIZE, texts: vec![narrow] }).contains("768 values"));
    let text = grounding(1).texts.remove(0);
    assert!(told(Grounding { size: SIZE, texts: vec![text; 31] }).contains("at most 30"));
    // A rehearsal needs nothing but sizes.
    rehearse(&*network, &session, 2, &[SIZE, [8, 8]]).unwrap();
}
