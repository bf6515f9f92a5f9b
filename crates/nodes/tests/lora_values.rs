//! Every LoRA of the reference, in the names of every trainer, on its model and its text encoders: what the sampler gives
//! and what the prompt became.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use golden::{GoldenFolder, ModelsFolder};
use golden_support::{Bench, host};
use graph::Literal;
use meta::DeviceId;
use nodes::value::{Conditioning, LatentImage};
use testkit::{Golden, Report};

const TOLERANCE: f64 = 1e-4;

/// The model files that a workflow names.
fn files_of<'a>(golden: &'a GoldenFolder, workflow: &Literal) -> Vec<&'a str> {
    let nodes = workflow.as_map().unwrap().values();
    let inputs = nodes.filter_map(|node| node.get("inputs")?.as_map());
    let texts: Vec<&str> = inputs.flat_map(|inputs| inputs.values()).filter_map(Literal::as_text).collect();
    let is_named = |file: &&str| file.split_once('/').is_some_and(|(_, name)| texts.contains(&name));
    golden.files().filter(is_named).collect()
}

/// The root mean square of each token of a prompt.
fn token_rms(conditioning: &Conditioning) -> Vec<f32> {
    let text = &conditioning.entries[0].cond.text;
    let width = *text.shape.last().unwrap();
    let rms = |token: &[f32]| {
        let sum: f64 = token.iter().map(|value| f64::from(*value).powi(2)).sum();
        (sum / width as f64).sqrt() as f32
    };
    text.values.chunks(width).map(rms).collect()
}

fn check(workflows: &str, values: &str, least: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    if !folder.is_dir() {
        eprintln!("\n==> NO REFERENCE VALUES: there is no folder shared/golden beside the checkout\n");
        return;
    }
    let golden = GoldenFolder::open(&folder).unwrap();
    let stored = Golden::open(folder.join(values)).unwrap();
    let text = fs::read_to_string(folder.join(workflows)).unwrap();
    let cases: BTreeMap<String, Literal> = serde_json::from_str(&text).unwrap();
    let bench = Bench::with(&[], host(), DeviceId::CPU);
    let models = bench.runtime.folders.places("text_encoders")[0].parent().unwrap().to_owned();
    let models = ModelsFolder::at(&models).unwrap();
    for (case, workflow) in &cases {
        models.ensure(&golden, files_of(&golden, workflow)).unwrap();
        let collected = bench.run(workflow, &[("latent", "8"), ("text", "4")]);
        let close = |what: &str, got: &[f32]| {
            let key = format!("{case}.{what}");
            let (_, want) = stored.tensor(&key).unwrap();
            Report::new(&key, got, &want).assert(TOLERANCE);
        };
        close("latent", collected.object::<LatentImage>("latent").samples.values());
        if stored.names().any(|name| name == format!("{case}.cond_rms")) {
            // Of long texts the reference kept the first tokens.
            let rms = token_rms(&collected.object::<Conditioning>("text"));
            close("cond_rms", &rms[..rms.len().min(256)]);
        }
    }
    assert!(cases.len() >= least, "{} cases", cases.len());
}

#[test]
fn loras_of_two_trainers_at_several_strengths() {
    check("lora_workflows.json", "lora.safetensors", 14);
}

#[test]
fn loras_of_all_families_and_all_kinds_of_patches() {
    check("lora_more_workflows.json", "lora_more.safetensors", 19);
}
