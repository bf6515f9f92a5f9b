//! The reference's workflows over HTTP: each gives the latent that ComfyUI 0.7.0 computes for the same files.

use std::path::PathBuf;

use sampling::{Latent, Sampler};
use serde_json::{Value, json};
use testkit::{Golden, Report, ScratchDir};

use crate::model_files::write_regenerated;
use crate::server::Server;

/// A correct implementation in f32 stays well below it.
const TOLERANCE: f64 = 1e-4;
/// The reference rounds what it unpacks from GGUF to 16 bits; we do not.
const ROUNDED_TOLERANCE: f64 = 2e-3;

/// A file of the reference, which the nodes are tested with as well.
fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../nodes/tests/data/flux_runs").join(name)
}

#[test]
fn every_reference_workflow_gives_the_stored_latent() {
    let folder = ScratchDir::new().unwrap();
    write_regenerated(&folder.join("models"));
    let server = Server::start(folder.path(), &[]);
    server.upload("image.png", &std::fs::read(data("image.png")).unwrap());
    std::fs::copy(data("mask.png"), folder.join("input/mask.png")).unwrap();
    let text = std::fs::read_to_string(data("workflows.json")).unwrap();
    let workflows: Value = serde_json::from_str(&text).unwrap();
    let mut reports = runs(&server, &workflows["runs"]);
    reports.extend(samplers(&server, &workflows["samplers"]));
    reports.extend(loras(&server, &workflows["lora"]));
    let wrong: Vec<String> = reports
        .iter()
        .filter(|report| {
            let rounded = report.name.contains("gguf");
            !report.passes(if rounded { ROUNDED_TOLERANCE } else { TOLERANCE })
        })
        .map(ToString::to_string)
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let exact = reports.iter().filter(|report| !report.name.contains("gguf"));
    let worst = exact.max_by(|a, b| a.relative.total_cmp(&b.relative)).unwrap();
    println!("{} latents over HTTP, worst: {worst}", reports.len());
}

/// Posts a workflow whose node 8 samples; the latent that comes out of it.
fn latent(server: &Server, workflow: &Value) -> Vec<f32> {
    let mut prompt = workflow.clone();
    let inputs = json!({ "samples": ["8", 0], "filename_prefix": "golden/latent" });
    prompt["save"] = json!({ "class_type": "SaveLatent", "inputs": inputs });
    server.run(&prompt).latent("save")
}

fn runs(server: &Server, cases: &Value) -> Vec<Report> {
    let golden = Golden::open(data("runs.safetensors")).unwrap();
    let cases = cases.as_object().unwrap();
    assert_eq!(cases.len(), 11);
    let report = |(case, workflow): (&String, &Value)| {
        let (_, want) = golden.tensor(&format!("{case}.latent")).unwrap();
        Report::new(case, &latent(server, workflow), &want)
    };
    cases.iter().map(report).collect()
}

fn samplers(server: &Server, about: &Value) -> Vec<Report> {
    let golden = Golden::open(data("samplers.safetensors")).unwrap();
    let report = |sampler: &Sampler| {
        let mut workflow = about["workflow"].clone();
        workflow["8"]["inputs"]["sampler_name"] = json!(sampler.name());
        let values = latent(server, &workflow);
        let stored = about["same_as"][sampler.name()].as_str().unwrap_or(sampler.name());
        // What is stored is in the model's scale, of the shape of the file's.
        let (shape, want) = golden.tensor(&format!("{stored}.x_final")).unwrap();
        let latent = Latent::new(shape.dims().to_vec(), values).unwrap();
        let latent = models::diffusion::flux::LATENT.to_model(&latent).unwrap();
        Report::new(format!("sampler {sampler}"), latent.values(), &want)
    };
    Sampler::ALL.iter().map(report).collect()
}

fn loras(server: &Server, cases: &Value) -> Vec<Report> {
    let golden = Golden::open(data("lora.safetensors")).unwrap();
    let cases = cases.as_object().unwrap();
    assert_eq!(cases.len(), 7);
    let report = |(case, workflow): (&String, &Value)| {
        let (_, want) = golden.tensor(&format!("{case}.latent")).unwrap();
        Report::new(case, &latent(server, workflow), &want)
    };
    cases.iter().map(report).collect()
}
