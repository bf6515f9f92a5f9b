//! Every sampler on a small analytic model, against the reference's results on the same model.
//!
//! This reaches what stored predictions cannot: samplers that ask the model several times per step, CFG++,
//! and schedules that neither start at the top nor end at zero. `tests/data/README.md` says how it was made.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use sampling::{
    Conditioning, Latent, LatentSpec, ModelSampling, Parameterization, Predictor, Request, Sampler, Silent,
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
        wanted: &[Conditioning],
    ) -> Result<Vec<Latent>, Box<dyn std::error::Error + Send + Sync>> {
        self.sigmas.push(sigma);
        self.negatives += usize::from(wanted.contains(&Conditioning::Negative));
        let bend = |x: f32| x / (1.0 + x.abs());
        let offset = |i: usize| ((i * 37) % 101) as f32 / 101.0 - 0.5;
        let each = |f: &dyn Fn(usize, f32) -> f32| {
            let values = x.values().iter().enumerate().map(|(i, x)| f(i, *x)).collect();
            Latent::new(x.shape().to_vec(), values)
        };
        let predict = |conditioning: &Conditioning| match conditioning {
            Conditioning::Positive => each(&|i, x| offset(i) + 0.5 * bend(x) / (1.0 + sigma)),
            Conditioning::Negative => each(&|i, x| 0.5 * offset(i) + 0.25 * bend(x)),
        };
        Ok(wanted.iter().map(predict).collect::<Result<_, _>>()?)
    }
}

struct Family {
    name: &'static str,
    sampling: ModelSampling,
    format: &'static LatentSpec,
}

fn families() -> [Family; 2] {
    [
        Family {
            name: "eps",
            sampling: ModelSampling::discrete(Parameterization::Eps, false),
            format: &support::SD15,
        },
        Family { name: "flux", sampling: ModelSampling::exponential_flow(1.15), format: &support::FLUX },
    ]
}

/// The sampler that the reference was run with: some names mean the same on a CPU.
fn reference_name(sampler: Sampler) -> &'static str {
    match sampler {
        Sampler::Ddim => "euler",
        other => other.name().strip_suffix("_gpu").unwrap_or(other.name()),
    }
}

/// Runs a sampler over a case's levels; what it gave and the levels at which the model was asked.
fn run(
    golden: &Golden,
    family: &Family,
    case: &str,
    sampler: Sampler,
    seed: u64,
    tuning: Tuning,
) -> (Report, Report) {
    let (_, sigmas) = golden.tensor(&format!("{}.{case}.sigmas", family.name)).unwrap();
    let key = format!("{}.{case}.{}", family.name, reference_name(sampler));
    let want = latent(golden, &format!("{key}.final"));
    let request = Request {
        sampling: &family.sampling,
        format: family.format,
        sampler,
        tuning,
        sigmas,
        latent: Latent::zeros(want.shape()),
        noise: noise::prepare_noise(seed, want.shape(), None).unwrap(),
        mask: None,
        keeps_clean: false,
        cfg: 2.5,
        seed,
    };
    let mut toy = Toy { sigmas: Vec::new(), negatives: 0 };
    let got = sample(&request, &mut toy, &mut Silent).unwrap();
    let got = family.format.to_model(&got).unwrap();
    assert_eq!(toy.negatives, toy.sigmas.len(), "guidance needs both predictions");
    let (_, calls) = golden.tensor(&format!("{key}.calls")).unwrap();
    let levels = Report::new(format!("{key} levels"), &toy.sigmas, &calls);
    let values = Report::new(format!("{key} values"), got.values(), want.values());
    println!("{key:<45} {:>9.1e} {:>9.1e}", values.relative, levels.relative);
    (values, levels)
}

/// What passed, or all that did not.
fn judge(reports: Vec<(Report, Report)>, count: usize) {
    assert_eq!(reports.len(), count);
    let failed: Vec<String> = reports
        .into_iter()
        .flat_map(|(values, levels)| [values, levels])
        .filter(|report| !report.passes(TOLERANCE))
        .map(|report| report.to_string())
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The largest differences are 3e-6, where the reference itself divides small differences in f32.
const TOLERANCE: f64 = 5e-6;

#[test]
fn every_sampler_agrees_with_the_reference() {
    let golden = Golden::open(data("toy.safetensors")).unwrap();
    let mut reports = Vec::new();
    for family in families() {
        for (case, seed) in [("full", 7u64), ("part", (1 << 40) + 5), ("short", 0)] {
            for &sampler in Sampler::ALL {
                reports.push(run(&golden, &family, case, sampler, seed, Tuning::default()));
            }
        }
    }
    judge(reports, Sampler::ALL.len() * 6);
}

#[test]
fn stochastic_samplers_agree_at_other_settings() {
    let golden = Golden::open(data("toy.safetensors")).unwrap();
    let mut reports = Vec::new();
    for family in families() {
        for (case, tuning) in
            [("tuned", Tuning { eta: 0.6, s_noise: 0.9 }), ("still", Tuning { eta: 0.0, s_noise: 1.0 })]
        {
            for &sampler in Sampler::ALL {
                let name = format!("{}.{case}.{}.final", family.name, reference_name(sampler));
                if golden.names().any(|n| n == name) {
                    reports.push(run(&golden, &family, case, sampler, 99, tuning));
                }
            }
        }
    }
    // 17 settings, four of which have a second name; one is not finite in the reference.
    judge(reports, 21 * 4 - 1);
}

#[test]
fn levels_may_rise() {
    let golden = Golden::open(data("toy.safetensors")).unwrap();
    let mut reports = Vec::new();
    for family in families() {
        for &sampler in Sampler::ALL.iter().filter(|s| **s != Sampler::Ddim) {
            let name = format!("{}.rising.{sampler}.final", family.name);
            if golden.names().any(|n| n == name) {
                reports.push(run(&golden, &family, "rising", sampler, 3, Tuning::default()));
            }
        }
    }
    judge(reports, 20);
}

#[test]
fn only_cfg_pp_predicts_the_negative_without_guidance() {
    let sampling = ModelSampling::exponential_flow(1.15);
    let shape = [1, 16, 2, 2];
    for &sampler in Sampler::ALL {
        let request = Request {
            sampling: &sampling,
            format: &support::FLUX,
            sampler,
            tuning: Tuning::default(),
            sigmas: vec![0.9, 0.6, 0.3, 0.1],
            latent: Latent::zeros(&shape),
            noise: noise::prepare_noise(1, &shape, None).unwrap(),
            mask: None,
            keeps_clean: false,
            cfg: 1.0,
            seed: 1,
        };
        let mut toy = Toy { sigmas: Vec::new(), negatives: 0 };
        sample(&request, &mut toy, &mut Silent).unwrap();
        let expected = if sampler.needs_negative() { toy.sigmas.len() } else { 0 };
        assert_eq!(toy.negatives, expected, "{sampler}");
        assert_eq!(sampler.needs_negative(), sampler.name().ends_with("_cfg_pp"), "{sampler}");
    }
}
