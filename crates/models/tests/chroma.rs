//! Chroma against the reference implementation, module by module, and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use models::conditioning::{Cond, Guidance};
use models::diffusion::ForwardProbed;
use models::diffusion::chroma::Chroma;
use models::{Module, Probe, detect};
use residency::Manifest;
use support::transformers::{array, check_placements, input, missed_modules, texts};
use support::*;

const MODEL: &str = "chroma_tiny";

/// A model and its manifest.
fn model() -> (Chroma, Manifest) {
    let checkpoint = checkpoint(MODEL);
    let detected = detect(&checkpoint);
    let model = Chroma::read(&checkpoint, &detected.parts[0]).unwrap();
    let manifest = model.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (model, manifest)
}

#[test]
fn the_model_equals_the_reference_in_every_module() {
    let (model, manifest) = model();
    let (golden, session) = (golden(MODEL), open_on_cpu(manifest));
    let cond = Cond::text(array(&golden, "context"), None);
    let missed = missed_modules(
        &golden,
        &session,
        |latent, time, probe| model.forward_probed(&session, (&cond, latent, time), probe),
        |_| Vec::new(),
    );
    // The activation is the end of a feed-forward's first layer.
    assert_eq!(missed.iter().filter(|name| !name.ends_with("mlp.0")).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn guidance_and_placement() {
    let (model, manifest) = model();
    let session = open_on_cpu(manifest);
    let latent = input(&golden(MODEL), &session, "x");
    let [cond, _] = texts([1, 12, 4096]);
    let with = |guidance: Guidance| {
        let cond = Cond { guidance, ..cond.clone() };
        let output = model.forward_probed(&session, (&cond, &latent, 0.7), &mut Probe::none()).unwrap();
        output.to_vec().unwrap()
    };
    assert_eq!(with(Guidance::Usual), with(Guidance::Scale(0.0)));
    assert_ne!(with(Guidance::Usual), with(Guidance::Scale(2.0)));
    let latents: [&[usize]; 2] = [&[1, 16, 8, 8], &[2, 16, 9, 13]];
    check_placements(&model, &checkpoint(MODEL), &texts([1, 12, 4096]), &latents);
}
