//! Mochi: its autoencoder against the reference implementation, its transformer on every placement. Whole runs are among
//! the reference cases.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use meta::DeviceId;
use models::conditioning::{Array, Cond, Conditioned, Scene};
use models::diffusion::mochi::Mochi;
use models::diffusion::{Diffusion, Evaluation};
use models::vae::Autoencoder as _;
use models::vae::mochi::Mochi as Autoencoder;
use models::{Module, Probe, detect};
use placement::RemotePolicy;
use residency::{Manifest, Residency, Session};
use sampling::LatentShape;
use support::*;
use tensor::Tensor;
use testkit::random_normal;

const TOLERANCE: f64 = 1e-5;

#[test]
fn the_autoencoder_equals_the_reference() {
    let file = checkpoint("mochi_vae");
    let detected = detect(&file);
    let autoencoder = Autoencoder::read(&file, &detected.parts[0]).unwrap();
    let manifest = autoencoder.manifest(&file).unwrap();
    assert_eq!(detected.parts[0].unused(&file, &manifest), [""; 0]);
    let sizes =
        (autoencoder.pixels_per_value(), autoencoder.frames_per_value(), autoencoder.latent_channels());
    assert_eq!(sizes, (8, Some(6), 12));
    let (session, golden) = (open_on_cpu(manifest), golden("mochi_vae"));
    let input = golden.input("decode.input").unwrap();
    let latent = session.lane().unwrap().tensor(input.shape, &input.values()).unwrap();
    let mut seen = 0;
    let mut see = |name: &str, value: &Tensor| {
        golden.assert_close(&format!("out.{name}"), value.shape(), &value.to_vec().unwrap(), TOLERANCE);
        seen += 1;
    };
    autoencoder.decode_probed(&session, &latent, &mut Probe::new(&mut see), &mut |_| Ok(())).unwrap();
    assert_eq!(seen, 5);
    let mut video = Vec::new();
    let mut take = |values: &[f32]| {
        video.extend_from_slice(values);
        Ok(())
    };
    autoencoder.decode(&session, &latent, None, &mut take).unwrap();
    let (shape, _) = golden.tensor("decode.image").unwrap();
    golden.assert_close("decode.image", &shape, &video, TOLERANCE);
}

fn model() -> (Mochi, Manifest) {
    let file = checkpoint("mochi_micro");
    let detected = detect(&file);
    let model = Mochi::read(&file, &detected.parts[0]).unwrap();
    let manifest = model.manifest(&file).unwrap();
    assert_eq!(detected.parts[0].unused(&file, &manifest), [""; 0]);
    (model, manifest)
}

/// Three evaluations of one step, two of them with texts of equal length, as bits.
fn step(model: &Mochi, session: &Session) -> Vec<Vec<u32>> {
    let shape = LatentShape { batch: 1, channels: 12, frames: 2, height: 4, width: 6 };
    let conds = [(1, 10), (2, 10), (3, 12)].map(|(seed, words)| {
        let text = Array { shape: vec![1, 16, 4096], values: random_normal(seed, 16 * 4096) };
        let counts = (0..16).map(|at| at < words).collect();
        Cond { attention_mask: Some(Arc::new(counts)), ..Cond::text(text, None) }
    });
    let conditioned = conds.each_ref().map(Conditioned::whole);
    let run = model.start(session, &conditioned, &Scene::empty(shape)).unwrap();
    let latent = random_normal(5, shape.values());
    let latent = session.lane().unwrap().tensor([1, 12, 2, 4, 6], &latent).unwrap();
    let all = [0, 1, 2].map(|cond| Evaluation::new(cond, &latent, 0.64));
    let bits = |tensor: &Tensor| tensor.to_vec().unwrap().iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    let together: Vec<Vec<u32>> = run.forward(&all).unwrap().iter().map(bits).collect();
    assert_ne!(together[0], together[1]);
    for (evaluation, expected) in all.iter().zip(&together) {
        assert!(bits(&run.forward(std::slice::from_ref(evaluation)).unwrap()[0]) == *expected);
    }
    together
}

#[test]
fn placement_and_company_change_no_bit() {
    let (model, manifest) = model();
    assert_eq!((model.config().blocks, model.config().heads, model.config().hidden), (2, 2, 256));
    let expected = step(&model, &open_on_cpu(manifest));
    for text in ["sim:0,1%;cpu,99%", "sim:0,50%;sim:1,50%"] {
        let remote = if text.contains("sim:1") { RemotePolicy::InPlace } else { RemotePolicy::Auto };
        let residency = Residency::new(machine(&["1gb@20gbps"; 2]));
        let (model, manifest) = self::model();
        let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), text, remote);
        let session = open(&residency, manifest, plan);
        assert!(step(&model, &session) == expected, "{text}");
    }
}

#[test]
fn what_fills_a_text_up_is_not_seen() {
    let (model, manifest) = model();
    let session = open_on_cpu(manifest);
    let shape = LatentShape { batch: 1, channels: 12, frames: 1, height: 4, width: 4 };
    let result = |filling: f32| {
        let mut values = random_normal(1, 6 * 4096);
        values[4 * 4096..].fill(filling);
        let text = Array { shape: vec![1, 6, 4096], values };
        let counts = vec![true, true, true, true, false, false];
        let cond = Cond { attention_mask: Some(Arc::new(counts)), ..Cond::text(text, None) };
        let run = model.start(&session, &[Conditioned::whole(&cond)], &Scene::empty(shape)).unwrap();
        let latent = session.lane().unwrap().full([1, 12, 1, 4, 4], 0.5).unwrap();
        run.forward(&[Evaluation::new(0, &latent, 0.5)]).unwrap()[0].to_vec().unwrap()
    };
    assert_eq!(result(0.0), result(7.0));
    let wrong = session.lane().unwrap().full([1, 16, 1, 4, 4], 0.0).unwrap();
    let cond = Cond::text(Array::zeros(&[1, 4, 4096]), None);
    let run = model.start(&session, &[Conditioned::whole(&cond)], &Scene::empty(shape)).unwrap();
    let told = run.forward(&[Evaluation::new(0, &wrong, 0.5)]).unwrap_err().to_string();
    assert!(told.contains("[batch, 12, frames, height, width]"), "{told}");
}
