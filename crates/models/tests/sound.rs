//! Models that listen: Whisper's encoder and wav2vec 2.0 against transformers, and Wan's HuMo and S2V against formulas that
//! were written down elsewhere (`tools/reference`), on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use checkpoint::Checkpoint;
use meta::DeviceId;
use models::audio::AudioEncoder;
use models::conditioning::{Array, Cond, CondInput, Conditioned, Scene};
use models::detect::{Reader, Role};
use models::diffusion::wan::Wan;
use models::diffusion::{Diffusion, Evaluation};
use models::{Module, detect};
use placement::RemotePolicy;
use residency::{Residency, Session};
use sampling::{Latent, LatentShape};
use support::transformers::{array, check_placements, texts};
use support::*;
use testkit::random_normal;

/// The reference computes in f64.
const TOLERANCE: f64 = 1e-5;
const VALUES: &str = "wan_humo_tiny";
const SPEECH: &str = "wan_s2v_tiny";
const ALONE: &str = "wan2.1_humo_tiny";
const BESIDE: &str = "wan2.1_humo_beside_tiny";
/// Values that are heard with a frame.
const HEARD: usize = 8 * 5 * 64;

fn encoder(file: &Checkpoint, kind: &str) -> Box<dyn AudioEncoder> {
    let detected = detect(file);
    assert_eq!(detected.seems(), format!("an audio encoder ({kind})"));
    let part = detected.part(Role::Audio, "an audio encoder").unwrap();
    let Some(Reader::Audio(family)) = part.reader else { panic!("nobody reads {part}") };
    let encoder = (family.read)(file, part).unwrap();
    assert_eq!(part.unused(file, &encoder.manifest(file).unwrap()), [""; 0]);
    encoder
}

/// Some moments of every layer, which there are so many of.
fn layers(
    encoder: &dyn AudioEncoder,
    session: &Session,
    sound: &[f32],
    [moments, step]: [usize; 2],
) -> Vec<f32> {
    let heard = encoder.listen(session, sound).unwrap();
    let some = |layer: &tensor::Tensor| {
        assert_eq!(layer.dims(), [1, moments, 64]);
        let values = layer.to_vec().unwrap();
        values.chunks_exact(64).step_by(step).flatten().copied().collect::<Vec<f32>>()
    };
    heard.iter().flat_map(some).collect()
}

#[test]
fn whisper_hears_what_transformers_hears_wherever_the_weights_are() {
    let (file, golden) = (checkpoint("whisper_tiny"), golden(VALUES));
    let encoder = encoder(&file, "Whisper");
    let layers = |encoder: &dyn AudioEncoder, session: &Session, sound: &[f32]| {
        layers(encoder, session, sound, [50, 25])
    };
    let sound = array(&golden, "sound").values;
    let session = open_on_cpu(encoder.manifest(&file).unwrap());
    let expected = layers(&*encoder, &session, &sound);
    let (shape, _) = golden.tensor("layers").unwrap();
    golden.assert_close("layers", &shape, &expected, 2e-5);
    // What is longer than it listens is cut.
    let long: Vec<f32> = sound.iter().copied().chain([0.0; 4000]).chain([0.7; 1000]).collect();
    assert!(layers(&*encoder, &session, &long) == expected);
    let residency = Residency::new(machine(&["2gb@5gbps", "2gb@5gbps"]));
    let manifest = || encoder.manifest(&file).unwrap();
    let text = "sim:0,1%;cpu,99%";
    let plan = plan(&manifest(), residency.devices(), DeviceId::sim(0), text, RemotePolicy::Stream);
    assert!(layers(&*encoder, &open(&residency, manifest(), plan), &sound) == expected);
    encoder.rehearse(&session).unwrap();
}

#[test]
fn wav2vec_hears_what_transformers_hears_wherever_the_weights_are() {
    let golden = golden(SPEECH);
    let sound = array(&golden, "sound").values;
    for name in ["large", "base"] {
        let file = checkpoint(&format!("wav2vec2_{name}_tiny"));
        let encoder = encoder(&file, "wav2vec 2.0");
        let session = open_on_cpu(encoder.manifest(&file).unwrap());
        let expected = layers(&*encoder, &session, &sound, [18, 3]);
        let (shape, _) = golden.tensor(name).unwrap();
        golden.assert_close(name, &shape, &expected, 2e-5);
        let residency = Residency::new(machine(&["2gb@5gbps", "2gb@5gbps"]));
        let manifest = || encoder.manifest(&file).unwrap();
        let text = "sim:0,1%;cpu,99%";
        let plan = plan(&manifest(), residency.devices(), DeviceId::sim(0), text, RemotePolicy::Stream);
        assert!(
            layers(&*encoder, &open(&residency, manifest(), plan), &sound, [18, 3]) == expected,
            "{name}"
        );
        let told = encoder.listen(&session, &[0.0; 399]).map(|_| ()).unwrap_err().to_string();
        assert!(told.contains("at least 400 values"), "{told}");
    }
}

/// A conditioning of the S2V golden, as far as it is told.
fn spoken(steered: bool, goes_on: bool) -> Cond {
    let golden = golden(SPEECH);
    let latent = |name: &str| {
        let array = array(&golden, name);
        let latent = Latent::new(array.shape, array.values).unwrap();
        // The reference is in the model's scale, conditionings are in the autoencoder's.
        Arc::new(models::diffusion::latents::VIDEO_16.to_autoencoder(&latent).unwrap())
    };
    let mut cond = Cond::text(array(&golden, "text"), None);
    if steered {
        let heard = array(&golden, "heard");
        let [frames, layers, width] = [heard.shape[0], heard.shape[1], heard.shape[2]];
        cond.audio = Some(Arc::new(Array { shape: vec![1, frames, layers * width], values: heard.values }));
        cond.concat_latent = Some(latent("steering"));
        cond.reference_latents = vec![latent("picture")];
    }
    cond.frames_before = goes_on.then(|| latent("motion"));
    cond
}

fn speaking(file: &Checkpoint) -> Wan {
    let detected = detect(file);
    assert_eq!(detected.name(), Some("Wan 2.2 S2V"));
    let model = Wan::read(file, &detected.parts[0]).unwrap();
    let manifest = model.manifest(file).unwrap();
    assert_eq!(detected.parts[0].unused(file, &manifest), [""; 0]);
    model
}

#[test]
fn speech_is_told_as_the_formulas_say() {
    let (file, golden) = (checkpoint("wan2.2_s2v_tiny"), golden(SPEECH));
    let model = speaking(&file);
    let session = open_on_cpu(model.manifest(&file).unwrap());
    let shape = LatentShape { batch: 1, channels: 16, frames: 2, height: 8, width: 10 };
    let x = session.lane().unwrap().tensor([1, 16, 2, 8, 10], &array(&golden, "x").values).unwrap();
    for (name, steered, goes_on) in
        [("plain", false, false), ("begun", true, false), ("going_on", true, true)]
    {
        let cond = spoken(steered, goes_on);
        let run = model.start(&session, &[Conditioned::whole(&cond)], &Scene::empty(shape)).unwrap();
        let values = run.forward(&[Evaluation::new(0, &x, 640.0)]).unwrap()[0].to_vec().unwrap();
        let (shape, _) = golden.tensor(name).unwrap();
        golden.assert_close(name, &shape, &values, TOLERANCE);
    }
    let latents: [&[usize]; 1] = [&[1, 16, 2, 8, 10]];
    let [one, two] = texts([1, 12, 4096]);
    let told = |cond: Cond, goes_on: bool| Cond { text: cond.text, ..spoken(true, goes_on) };
    check_placements(&model, &file, &[told(one.clone(), true), told(two.clone(), true)], &latents);
    check_placements(&model, &file, &[told(one, false), two], &latents);
}

fn model(file: &Checkpoint) -> Wan {
    let detected = detect(file);
    assert_eq!(detected.name(), Some("Wan 2.1 HuMo"));
    let model = Wan::read(file, &detected.parts[0]).unwrap();
    let manifest = model.manifest(file).unwrap();
    assert_eq!(detected.parts[0].unused(file, &manifest), [""; 0]);
    assert_eq!(model.takes(), [CondInput::Audio, CondInput::ReferenceLatents]);
    model
}

/// One evaluation of the golden's latent, with its picture and its sound or without both.
fn evaluated(name: &str, hears: bool) -> Vec<f32> {
    let (file, golden) = (checkpoint(name), golden(VALUES));
    let model = model(&file);
    let session = open_on_cpu(model.manifest(&file).unwrap());
    let picture = array(&golden, "picture");
    // The reference is in the model's scale, conditionings are in the autoencoder's.
    let picture = Latent::new(picture.shape, picture.values).unwrap();
    let picture = model.latent().to_autoencoder(&picture).unwrap();
    let mut cond = Cond::text(array(&golden, "text"), None);
    if hears {
        cond.reference_latents = vec![Arc::new(picture)];
        cond.audio = Some(Arc::new(array(&golden, "audio")));
    }
    let shape = LatentShape { batch: 1, channels: 16, frames: 2, height: 4, width: 6 };
    let run = model.start(&session, &[Conditioned::whole(&cond)], &Scene::empty(shape)).unwrap();
    let x = session.lane().unwrap().tensor([1, 16, 2, 4, 6], &array(&golden, "x").values).unwrap();
    run.forward(&[Evaluation::new(0, &x, 640.0)]).unwrap()[0].to_vec().unwrap()
}

#[test]
fn evaluations_equal_the_formulas() {
    let golden = golden(VALUES);
    for (name, file, hears) in [("silent", ALONE, false), ("heard", ALONE, true), ("beside", BESIDE, true)] {
        let (shape, _) = golden.tensor(name).unwrap();
        golden.assert_close(name, &shape, &evaluated(file, hears), TOLERANCE);
    }
}

#[test]
fn placement_and_company_change_no_bit() {
    for name in [ALONE, BESIDE] {
        let file = checkpoint(name);
        let picture = Arc::new(Latent::new(vec![1, 16, 1, 4, 6], random_normal(7, 384)).unwrap());
        let audio = Array { shape: vec![1, 2, HEARD], values: random_normal(8, 2 * HEARD) };
        let [one, two] = texts([1, 12, 4096]);
        let told = |cond: Cond| Cond {
            reference_latents: vec![Arc::clone(&picture)],
            audio: Some(Arc::new(audio.clone())),
            ..cond
        };
        let silent = Cond { audio: None, ..told(two.clone()) };
        check_placements(&model(&file), &file, &[told(one.clone()), told(two)], &[&[1, 16, 2, 4, 6]]);
        check_placements(&model(&file), &file, &[told(one), silent], &[&[1, 16, 2, 4, 6]]);
    }
}

#[test]
fn a_sound_for_another_length_is_told() {
    let file = checkpoint(ALONE);
    let model = model(&file);
    let session = open_on_cpu(model.manifest(&file).unwrap());
    let shape = LatentShape { batch: 1, channels: 16, frames: 2, height: 4, width: 4 };
    let told = |frames: usize, values: usize| {
        let audio = Some(Arc::new(Array::zeros(&[1, frames, values])));
        let cond = Cond { audio, ..Cond::text(Array::zeros(&[1, 4, 4096]), None) };
        let started = model.start(&session, &[Conditioned::whole(&cond)], &Scene::empty(shape)).map(|_| ());
        started.err().map(|error| error.to_string())
    };
    assert_eq!(told(2, HEARD), None);
    assert!(told(3, HEARD).unwrap().contains("[1 or 1, 2, 2560]"));
    assert!(told(2, 100).unwrap().contains("[1 or 1, 2, 2560]"));
}
