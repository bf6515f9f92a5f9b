//! Every sampler on a small analytic model, against the reference's results on the same model.
//!
//! This reaches what stored predictions cannot: samplers that ask the model several times per step, CFG++,
//! and schedules that neither start at the top nor end at zero. `tests/data/README.md` says how it was made.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use sampling::{
    Latent, LatentFormat, ModelSampling, Parameterization, Prediction, Predictor, Request, Sampler, Silent,
    Tuning, noise, sample,
};
use support::{data, latent};
use testkit::{Golden, Report};

/// The analytic model: bounded, different in every value, and not linear.
struct Toy {
    sigmas: Vec<f32>,
    negatives: usize,
}

impl Predictor for Toy {
    fn predict(
        &mut self,
        x: &Latent,
        sigma: f32,
        want_negative: bool,
    ) -> Result<Prediction, Box<dyn std::error::Error + Send + Sync>> {
        self.sigmas.push(sigma);
        self.negatives += usize::from(want_negative);
        let bend = |x: f32| x / (1.0 + x.abs());
        let offset = |i: usize| ((i * 37) % 101) as f32 / 101.0 - 0.5;
        let each = |f: &dyn Fn(usize, f32) -> f32| {
            let values = x.values().iter().enumerate().map(|(i, x)| f(i, *x)).collect();
            Latent::new(x.shape().to_vec(), values)
        };
        let positive = each(&|i, x| offset(i) + 0.5 * bend(x) / (1.0 + sigma))?;
        let negative = each(&|i, x| 0.5 * offset(i) + 0.25 * bend(x))?;
        Ok(Prediction { positive, negative: want_negative.then_some(negative) })
    }
}

struct Family {
    name: &'static str,
    sampling: ModelSampling,
    format: LatentFormat,
}

fn families() -> [Family; 2] {
    [
        Family {
            name: "eps",
            sampling: ModelSampling::discrete(Parameterization::Eps, false),
            format: LatentFormat::Sd15,
        },
        Family { name: "flux", sampling: ModelSampling::flux(1.15), format: LatentFormat::Flux },
    ]
}

/// The sampler that the reference was run with: some names mean the same on a CPU.
fn reference_name(sampler: Sampler) -> &'static str {
    match sampler {
        Sampler::Ddim => "euler",
        other => other.name().strip_suffix("_gpu").unwrap_or(other.name()),
    }
}

#[test]
fn every_sampler_agrees_with_the_reference() {
    let golden = Golden::open(data("toy.safetensors")).unwrap();
    let mut failures = Vec::new();
    let mut compared = 0;
    for family in families() {
        for (case, seed) in [("full", 7u64), ("part", (1 << 40) + 5), ("short", 0)] {
            let (_, sigmas) = golden.tensor(&format!("{}.{case}.sigmas", family.name)).unwrap();
            for &sampler in Sampler::ALL {
                let key = format!("{}.{case}.{}", family.name, reference_name(sampler));
                let want = latent(&golden, &format!("{key}.final"));
                let noise = noise::prepare_noise(seed, want.shape(), None).unwrap();
                let request = Request {
                    sampling: &family.sampling,
                    format: family.format,
                    sampler,
                    tuning: Tuning::default(),
                    sigmas: sigmas.clone(),
                    latent: Latent::zeros(want.shape()),
                    noise,
                    mask: None,
                    cfg: 2.5,
                    seed,
                };
                let mut toy = Toy { sigmas: Vec::new(), negatives: 0 };
                let got = match sample(&request, &mut toy, &mut Silent) {
                    Ok(got) => family.format.to_model(&got).unwrap(),
                    Err(error) => {
                        failures.push(format!("{key}: {error}"));
                        continue;
                    }
                };
                let (_, calls) = golden.tensor(&format!("{key}.calls")).unwrap();
                let levels = Report::new(format!("{key} levels"), &toy.sigmas, &calls);
                let values = Report::new(format!("{key} values"), got.values(), want.values());
                println!("{key:<45} {:>9.1e} {:>9.1e}", values.relative, levels.relative);
                for report in [levels, values] {
                    if !report.passes(tolerance(sampler)) {
                        failures.push(report.to_string());
                    }
                }
                compared += 1;
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(compared, Sampler::ALL.len() * 6);
}

fn tolerance(_: Sampler) -> f64 {
    5e-6
}
