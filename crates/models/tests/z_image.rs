//! Z-Image and Lumina 2 against the reference implementation, module by module, and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;

use models::conditioning::Cond;
use models::diffusion::ForwardProbed;
use models::diffusion::z_image::{Generation, ZImage, patch_keys};
use models::{Module, Probe, detect};
use residency::Manifest;
use support::transformers::{array, check_placements, missed_modules, texts};
use support::*;

/// A model and its manifest.
fn model(name: &str) -> (ZImage, Manifest) {
    let checkpoint = checkpoint(name);
    let detected = detect(&checkpoint);
    let model = ZImage::read(&checkpoint, &detected.parts[0]).unwrap();
    let manifest = model.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (model, manifest)
}

/// The reference names sequences of one layer and feed-forwards by their ends.
fn other_names(name: &str) -> Vec<String> {
    let ends = [
        (".adaLN_modulation.0", ".adaLN_modulation"),
        (".adaLN_modulation.1", ".adaLN_modulation"),
        (".attention.out", ".attention"),
        (".feed_forward.w2", ".feed_forward"),
    ];
    let other = |(ours, theirs): &(&str, &str)| Some(format!("{}{theirs}", name.strip_suffix(ours)?));
    ends.iter().filter_map(other).collect()
}

#[test]
fn both_generations_equal_the_reference_in_every_module() {
    for (name, generation) in [("z_image_micro", Generation::ZImage), ("lumina2_tiny", Generation::Lumina2)] {
        let (model, manifest) = model(name);
        assert_eq!(model.config().generation, generation);
        let (golden, session) = (golden(name), open_on_cpu(manifest));
        let cond = Cond::text(array(&golden, "context"), None);
        let missed = missed_modules(
            &golden,
            &session,
            |latent, time, probe| model.forward_probed(&session, (&cond, latent, time), probe),
            other_names,
        );
        // The activation before a modulation is computed once for all blocks.
        let missed: Vec<&String> =
            missed.iter().filter(|name| !name.ends_with("adaLN_modulation.0")).collect();
        assert_eq!(missed, [""; 0], "{name}");
    }
}

#[test]
fn placement_and_company_change_no_bit() {
    let (model, _) = model("z_image_micro");
    let latents: [&[usize]; 2] = [&[1, 16, 8, 8], &[2, 16, 9, 13]];
    check_placements(&model, &checkpoint("z_image_micro"), &texts([1, 12, 256]), &latents);
}

#[test]
fn what_does_not_fit_is_told() {
    let (model, manifest) = model("z_image_micro");
    let session = open_on_cpu(manifest);
    let error = |latent: [usize; 4], width: usize| {
        let latent = session.lane().unwrap().tensor(latent, &vec![0.0; latent.iter().product()]).unwrap();
        let [cond, _] = texts([1, 4, width]);
        model.forward_probed(&session, (&cond, &latent, 0.5), &mut Probe::none()).unwrap_err().to_string()
    };
    assert!(error([1, 4, 8, 8], 256).contains("[batch, 16, height, width]"));
    assert!(error([1, 16, 8, 8], 64).contains("[1 or 1, tokens, 256]"));
}

#[test]
fn every_weight_has_a_name_in_patch_files() {
    for name in ["z_image_micro", "lumina2_tiny"] {
        let file = checkpoint(name);
        let map = patch_keys(file.entries().iter().map(|entry| (entry.name(), entry.shape())));
        let parts: BTreeSet<String> = map
            .names()
            .filter(|(stem, _)| stem.ends_with(".to_q") || stem.ends_with(".to_k") || stem.ends_with(".to_v"))
            .map(|(stem, target)| {
                let rows = target.rows.unwrap();
                let all = map.shape(&target.weight).unwrap().dims()[0];
                assert!(rows.start + rows.len <= all);
                assert!(!stem.ends_with(".to_v") || rows.start + rows.len == all, "{name} {stem}");
                target.weight.clone()
            })
            .collect();
        let fused = file.entries().iter().filter(|entry| entry.name().ends_with(".qkv.weight")).count();
        assert_eq!(parts.len(), fused);
    }
}
