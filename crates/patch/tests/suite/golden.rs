//! The weights that ComfyUI 0.7 makes of FLUX and SD1.5 with LoRA files of both naming styles.

use meta::Shape;
use models::diffusion::flux;
use patch::{KeyMap, PatchSet, apply, unclaimed};
use serde_json::Value;
use testkit::{Golden, Manifest, Report};

use crate::fixture::{bundled, lane, tensor};

/// Names and shapes of the tensors below a prefix, without it.
fn weights(manifest: &Manifest, prefix: &str) -> Vec<(String, Shape)> {
    let below =
        manifest.tensors.iter().filter_map(|t| Some((t.name.strip_prefix(prefix)?.to_owned(), t.shape)));
    below.collect()
}

fn names(weights: &[(String, Shape)]) -> impl Iterator<Item = (&str, &Shape)> {
    weights.iter().map(|(name, shape)| (name.as_str(), shape))
}

/// The LoRA files of a workflow and their strengths, in order.
fn loras(workflow: &Value) -> Vec<(String, f64)> {
    let nodes = workflow.as_object().unwrap().values();
    let loaders = nodes.filter(|node| node["class_type"].as_str().unwrap().starts_with("LoraLoader"));
    let lora = |node: &Value| {
        let file =
            node["inputs"]["lora_name"].as_str().unwrap().strip_suffix(".safetensors").unwrap().to_owned();
        (file, node["inputs"]["strength_model"].as_f64().unwrap())
    };
    loaders.map(lora).collect()
}

/// Every `max(1, dim / 16)`-th row and column of a weight seen as `[out, rest]`.
fn sampled(shape: &Shape, values: &[f32]) -> Vec<f32> {
    let rows = shape.dims()[0];
    let columns = values.len() / rows;
    let (row_step, column_step) = ((rows / 16).max(1), (columns / 16).max(1));
    let kept = (0..rows).step_by(row_step);
    kept.flat_map(|r| (0..columns).step_by(column_step).map(move |c| values[r * columns + c])).collect()
}

/// Compares all weights of all cases of a model; returns how many there were.
fn check(model: &str, prefix: &str, map: &KeyMap) -> usize {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    let golden = Golden::open(format!("{data}/lora.safetensors")).unwrap();
    let workflows = std::fs::read_to_string(format!("{data}/lora_workflows.json")).unwrap();
    let workflows: Value = serde_json::from_str(&workflows).unwrap();
    let manifest = Manifest::bundled(model).unwrap();
    let (lane, mut checked) = (lane(), 0);
    for (case, workflow) in workflows.as_object().unwrap().iter().filter(|(case, _)| case.starts_with(model))
    {
        let mut set = PatchSet::new();
        for (file, strength) in loras(workflow) {
            set.add(&bundled(&file), map, strength).unwrap();
        }
        let start = format!("{case}.weight.diffusion_model.");
        for key in golden.names().filter(|name| name.starts_with(&start)) {
            let weight = &key[start.len()..];
            let stored = manifest.tensor(&format!("{prefix}{weight}")).unwrap();
            let before = tensor(&lane, stored.shape, &stored.values().unwrap());
            let after = apply(&lane, &before, set.patches(weight)).unwrap().to_vec().unwrap();
            let got = sampled(&stored.shape, &after);
            Report::new(key, &got, &golden.tensor(key).unwrap().1).assert(1e-6);
            // A weight that no patch reached would be close, too.
            if !set.patches(weight).is_empty() {
                assert!(
                    !Report::new(key, &sampled(&stored.shape, &before.to_vec().unwrap()), &got).passes(1e-3)
                );
            }
            checked += 1;
        }
    }
    checked
}

#[test]
fn flux_weights() {
    let weights = weights(&Manifest::bundled("flux_dev_micro").unwrap(), "");
    let map = flux::patch_keys(names(&weights));
    assert_eq!(check("flux_dev_micro", "", &map), 28);
    for (file, changed) in [("flux_dev_micro_lora_kohya", 26), ("flux_dev_micro_lora_diffusers", 14)] {
        let mut set = PatchSet::new();
        set.add(&bundled(file), &map, 1.0).unwrap();
        assert_eq!((set.len(), set.unmatched().len()), (changed, 0), "{file}");
    }
}

#[test]
fn sd15_weights() {
    let manifest = Manifest::bundled("sd15_tiny").unwrap();
    let unet = weights(&manifest, "model.diffusion_model.");
    let map = KeyMap::for_unet(names(&unet));
    assert_eq!(check("sd15_tiny", "model.diffusion_model.", &map), 28);
}

#[test]
fn sd15_files_are_claimed_by_unet_and_text_encoder() {
    let manifest = Manifest::bundled("sd15_tiny").unwrap();
    let unet = weights(&manifest, "model.diffusion_model.");
    let clip = weights(&manifest, "cond_stage_model.transformer.");
    let unet_map = KeyMap::for_unet(names(&unet));
    let clip_map = KeyMap::for_text_encoder(names(&clip), "clip_l", &["clip_l"]);
    let file = bundled("sd15_tiny_lora_kohya");
    let (mut model, mut text) = (PatchSet::new(), PatchSet::new());
    model.add(&file, &unet_map, 1.0).unwrap();
    text.add(&file, &clip_map, 0.5).unwrap();
    // Twelve layers of the text encoder with three tensors each are none of the UNet's, and the rest is not the text
    // encoder's.
    assert_eq!((text.len(), model.unmatched().len()), (12, 36));
    assert_eq!((model.len() * 3, text.unmatched().len()), (246, 246));
    assert_eq!(unclaimed(&[&model, &text]), [] as [&str; 0]);

    let mut diffusers = PatchSet::new();
    diffusers.add(&bundled("sd15_tiny_lora_diffusers"), &unet_map, 1.0).unwrap();
    assert_eq!(diffusers.unmatched(), &[] as &[String]);
}
