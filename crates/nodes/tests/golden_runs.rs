//! Whole workflows through the executor and the nodes, against what ComfyUI 0.7.0 computes for the same files.
//! The files are regenerated; they draw noise, but always the same.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_support;

use std::sync::atomic::Ordering;

use golden_support::{Bench, workflows};
use graph::{Literal, RunEnd, RunEvent};
use nodes::value::{Conditioning, Image, LatentImage};
use residency::FreeRequest;
use sampling::Sampler;
use testkit::{Golden, Report};

/// A correct implementation in f32 stays well below it.
const TOLERANCE: f64 = 1e-4;
/// The reference rounds what it unpacks from GGUF to 16 bits; we do not. With its rounded weights the strict one holds.
const ROUNDED_TOLERANCE: f64 = 2e-3;

/// Everything that was compared.
#[derive(Default)]
struct Comparisons {
    reports: Vec<(Report, f64)>,
}

impl Comparisons {
    fn add(&mut self, name: String, got: &[f32], want: &[f32], tolerance: f64) {
        self.reports.push((Report::new(name, got, want), tolerance));
    }

    fn finish(self) {
        let exact = self.reports.iter().filter(|(_, tolerance)| *tolerance == TOLERANCE);
        let worst = exact.max_by(|(a, _), (b, _)| a.relative.total_cmp(&b.relative)).unwrap();
        println!("{} tensors, worst: {}", self.reports.len(), worst.0);
        let wrong = self.reports.iter().filter(|(report, tolerance)| !report.passes(*tolerance));
        let wrong: Vec<String> = wrong.map(|(report, _)| report.to_string()).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// The order of the tests is that of the files' sizes, and one test owns them all: they are written once and
/// are gone when it ends.
#[test]
fn every_flux_workflow_gives_what_comfyui_gives() {
    let bench = Bench::new();
    let mut comparisons = Comparisons::default();
    runs(&bench, &mut comparisons);
    samplers(&bench, &mut comparisons);
    loras(&bench, &mut comparisons);
    comparisons.finish();
    models_come_back_after_a_free(&bench);
    steps_are_told_and_cancelled(&bench);
}

fn runs(bench: &Bench, comparisons: &mut Comparisons) {
    let golden = Golden::open(golden_support::data("runs.safetensors")).unwrap();
    let cases = workflows();
    let cases = cases.get("runs").and_then(Literal::as_map).unwrap();
    assert_eq!(cases.len(), 11);
    for (case, workflow) in cases {
        let wanted: Vec<&str> = golden.names().filter(|name| golden_case(name) == case).collect();
        assert!(wanted.iter().any(|name| name.ends_with(".latent")), "{case}");
        let mut collect = vec![("latent", "8")];
        for (name, node) in [("text", "4"), ("encoded", "12"), ("image", "9")] {
            if workflow.get(node).is_some() {
                collect.push((name, node));
            }
        }
        let mut versions = vec![(workflow.clone(), TOLERANCE)];
        if case.contains("gguf") {
            versions = vec![(workflow.clone(), ROUNDED_TOLERANCE), (rounded(workflow), TOLERANCE)];
        }
        for (workflow, tolerance) in versions {
            let got = bench.run(&workflow, &collect);
            compare(&golden, (case, &wanted), &got, tolerance, comparisons);
        }
    }
}

/// The workflow with the model unpacked and rounded as the reference rounds it.
fn rounded(workflow: &Literal) -> Literal {
    let mut workflow = workflow.clone();
    let Literal::Map(nodes) = &mut workflow else { panic!("a workflow is an object") };
    let Some(Literal::Map(loader)) = nodes.get_mut("1") else { panic!("there is no loader") };
    loader.insert("class_type".to_owned(), "UNETLoader".into());
    golden_support::set(&mut workflow, "1", "unet_name", "flux_dev_micro-rounded.safetensors");
    golden_support::set(&mut workflow, "1", "weight_dtype", "default");
    workflow
}

/// Compares the wanted tensors of a case with what a run gave.
fn compare(
    golden: &Golden,
    (case, wanted): (&str, &[&str]),
    got: &golden_support::Collected,
    tolerance: f64,
    comparisons: &mut Comparisons,
) {
    for &name in wanted {
        let (_, want) = golden.tensor(name).unwrap();
        let part = &name[case.len() + 1..];
        let values = match part {
            "latent" => got.object::<LatentImage>("latent").samples.values().to_vec(),
            "encoded.12" => got.object::<LatentImage>("encoded").samples.values().to_vec(),
            "image.9" => got.object::<Image>("image").values.to_vec(),
            "pooled.4" => first_entry(&got.object("text")).1,
            "cond.4.rms" => row_means(&first_entry(&got.object("text")).0),
            // The empty prompt, which only the sampler sees.
            _ => continue,
        };
        comparisons.add(name.to_owned(), &values, &want, tolerance);
    }
}

/// The case that a tensor belongs to.
fn golden_case(name: &str) -> &str {
    name.split('.').next().unwrap()
}

/// The tokens and the pooled vector of a conditioning of one entry.
fn first_entry(conditioning: &Conditioning) -> (Vec<f32>, Vec<f32>) {
    assert_eq!(conditioning.entries.len(), 1);
    let entry = &conditioning.entries[0];
    (entry.cond.text.values.clone(), entry.cond.pooled.as_ref().unwrap().values.clone())
}

/// The root mean square of each token.
fn row_means(tokens: &[f32]) -> Vec<f32> {
    let rms = |row: &[f32]| {
        let sum: f64 = row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        (sum / row.len() as f64).sqrt() as f32
    };
    tokens.chunks_exact(4096).map(rms).collect()
}

fn samplers(bench: &Bench, comparisons: &mut Comparisons) {
    let golden = Golden::open(golden_support::data("samplers.safetensors")).unwrap();
    let all = workflows();
    let about = all.get("samplers").unwrap();
    let same_as = about.get("same_as").unwrap();
    // One executor, so that the prompts are encoded once.
    let mut executor = bench.executor();
    for sampler in Sampler::ALL {
        let mut workflow = about.get("workflow").unwrap().clone();
        golden_support::set(&mut workflow, "8", "sampler_name", sampler.name());
        let got = bench.run_with(&mut executor, &workflow, &[("latent", "8")]);
        let latent =
            models::diffusion::flux::LATENT.to_model(&got.object::<LatentImage>("latent").samples).unwrap();
        let stored = same_as.get(sampler.name()).and_then(Literal::as_text).unwrap_or(sampler.name());
        let (_, want) = golden.tensor(&format!("{stored}.x_final")).unwrap();
        comparisons.add(format!("sampler {sampler}"), latent.values(), &want, TOLERANCE);
    }
}

fn loras(bench: &Bench, comparisons: &mut Comparisons) {
    let golden = Golden::open(golden_support::data("lora.safetensors")).unwrap();
    let all = workflows();
    let cases = all.get("lora").and_then(Literal::as_map).unwrap();
    assert_eq!(cases.len(), 7);
    let mut executor = bench.executor();
    for (case, workflow) in cases {
        let got = bench.run_with(&mut executor, workflow, &[("latent", "8")]);
        let (_, want) = golden.tensor(&format!("{case}.latent")).unwrap();
        let latent = got.object::<LatentImage>("latent");
        comparisons.add(case.clone(), latent.samples.values(), &want, TOLERANCE);
    }
}

/// A cached loader still works after its model was freed, and the same file is loaded once.
fn models_come_back_after_a_free(bench: &Bench) {
    let all = workflows();
    let workflow = all.get("samplers").and_then(|about| about.get("workflow")).unwrap();
    let mut executor = bench.executor();
    let first = bench.run_with(&mut executor, workflow, &[("latent", "8")]);
    let loaded = bench.runtime.residency.models().len();
    let unload = FreeRequest { unload_models: true, ..FreeRequest::default() };
    bench.runtime.residency.free(unload, &mut || {}).unwrap();
    assert_eq!(bench.runtime.residency.models().len(), 0, "{loaded} were loaded");
    let mut again = workflow.clone();
    golden_support::set(&mut again, "8", "cfg", 1.5);
    let other = bench.run_with(&mut executor, &again, &[("latent", "8")]);
    // The prompts are cached, so only the diffusion model comes back.
    assert_eq!(bench.runtime.residency.models().len(), 1);
    golden_support::set(&mut again, "8", "cfg", 1.0);
    let same = bench.run_with(&mut executor, &again, &[("latent", "8")]);
    assert_eq!(bench.runtime.residency.models().len(), 1);
    let values = |got: &golden_support::Collected| got.object::<LatentImage>("latent").samples.clone();
    assert!(values(&first) == values(&same) && values(&first) != values(&other));
    let stats = bench.runtime.stats();
    let flux = stats.iter().find(|stats| stats.name == "flux_dev_micro.safetensors").unwrap();
    assert!(flux.evaluations > 0 && flux.measured_s > 0.0 && flux.predicted_s > 0.0, "{flux:?}");
}

/// Every step is told with a preview, and a job that is to end ends between steps.
fn steps_are_told_and_cancelled(bench: &Bench) {
    let all = workflows();
    let workflow = all.get("samplers").and_then(|about| about.get("workflow")).unwrap();
    let mut changed = workflow.clone();
    golden_support::set(&mut changed, "8", "seed", 7);
    let job = bench.job(&changed, &[("latent", "8")]);
    let events = job.events.clone();
    let report = bench.executor().run(job.request);
    assert!(matches!(report.end, RunEnd::Succeeded), "{:?}", report.end);
    let seen = events.lock().unwrap();
    let steps: Vec<(f64, f64, bool)> = seen
        .iter()
        .filter_map(|event| match event {
            RunEvent::Progress { identity, value, max, picture, .. } if identity.class == "KSampler" => {
                let fits = picture.as_ref().is_some_and(|p| p.width == 512 && p.rgb.len() == 512 * 512 * 3);
                Some((*value, *max, fits))
            }
            _ => None,
        })
        .collect();
    assert_eq!(steps, (1..=5).map(|step| (f64::from(step), 5.0, true)).collect::<Vec<_>>());

    let job = bench.job(&changed, &[("latent", "8")]);
    job.stop_after_steps.store(2, Ordering::Relaxed);
    let report = bench.executor().run(job.request);
    let RunEnd::Interrupted { identity, .. } = &report.end else { panic!("{:?}", report.end) };
    assert_eq!(identity.class, "KSampler");
}
