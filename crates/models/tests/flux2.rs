//! FLUX.2 against the reference implementation, module by module, and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use models::conditioning::{Cond, Guidance};
use models::diffusion::ForwardProbed;
use models::diffusion::flux2::{Flux2, patch_keys};
use models::{Module, Probe, detect};
use residency::Manifest;
use sampling::Latent;
use support::transformers::{array, check_placements, input, missed_modules, texts};
use support::*;
use testkit::random_normal;

const MODEL: &str = "flux2_tiny";

/// A model and its manifest.
fn model() -> (Flux2, Manifest) {
    let checkpoint = checkpoint(MODEL);
    let detected = detect(&checkpoint);
    let model = Flux2::read(&checkpoint, &detected.parts[0]).unwrap();
    let manifest = model.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (model, manifest)
}

/// A text with a picture to look at, placed in this way.
fn looking(cond: &Cond, method: Option<&str>) -> Cond {
    let picture = Latent::new(vec![1, 128, 2, 3], random_normal(9, 768)).unwrap();
    Cond {
        reference_latents: vec![Arc::new(picture)],
        reference_method: method.map(str::to_owned),
        ..cond.clone()
    }
}

#[test]
fn the_model_equals_the_reference_in_every_module() {
    let (model, manifest) = model();
    let (golden, session) = (golden(MODEL), open_on_cpu(manifest));
    let cond = Cond { guidance: Guidance::Scale(4.0), ..Cond::text(array(&golden, "context"), None) };
    let missed = missed_modules(
        &golden,
        &session,
        |latent, time, probe| model.forward_probed(&session, (&cond, latent, time), probe),
        |_| Vec::new(),
    );
    assert_eq!(missed, [""; 0]);
}

#[test]
fn placement_and_company_change_no_bit() {
    let (model, _) = model();
    let [one, two] = texts([1, 12, 384]);
    let latents: [&[usize]; 2] = [&[1, 128, 4, 4], &[2, 128, 3, 5]];
    check_placements(&model, &checkpoint(MODEL), &[looking(&one, None), looking(&two, None)], &latents);
}

#[test]
fn pictures_to_look_at_stand_where_they_are_told() {
    let (model, manifest) = model();
    let session = open_on_cpu(manifest);
    let latent = input(&golden(MODEL), &session, "x");
    let [cond, _] = texts([1, 12, 384]);
    let with = |cond: &Cond| {
        let output = model.forward_probed(&session, (cond, &latent, 0.7), &mut Probe::none());
        output.map(|output| output.to_vec().unwrap())
    };
    let index = with(&looking(&cond, None)).unwrap();
    assert_eq!(with(&looking(&cond, Some("index"))).unwrap(), index);
    assert_ne!(with(&looking(&cond, Some("offset"))).unwrap(), index);
    assert_ne!(with(&looking(&cond, Some("uxo"))).unwrap(), index);
    assert_ne!(with(&cond).unwrap(), index);
    let error = with(&looking(&cond, Some("sideways"))).unwrap_err();
    assert!(error.to_string().contains("sideways"));
}

#[test]
fn every_weight_has_a_name_in_patch_files() {
    let file = checkpoint(MODEL);
    let map = patch_keys(file.entries().iter().map(|entry| (entry.name(), entry.shape())));
    let named: BTreeSet<&str> = map
        .names()
        .filter(|(stem, _)| !stem.starts_with("double_blocks.") && !stem.starts_with("single_blocks."))
        .map(|(_, target)| target.weight.as_str())
        .collect();
    for weight in file.entries().iter().map(checkpoint::Entry::name) {
        assert!(named.contains(weight), "{weight}");
    }
}
