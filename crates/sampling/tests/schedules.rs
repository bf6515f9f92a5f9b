//! Every schedule of the golden file, to 1e-6.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use sampling::{Latent, ModelSampling, Parameterization, Sampler, Scheduler, StepPlan, nodes};
use serde_json::Value;
use support::{data, sampling};

fn golden() -> Value {
    serde_json::from_str(&std::fs::read_to_string(data("schedules.json")).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<Option<f64>> {
    value.as_array().unwrap().iter().map(Value::as_f64).collect()
}

/// The largest difference, relative to the value or to one, whichever is larger.
fn check(what: &str, got: &[f32], want: &[Option<f64>]) -> f64 {
    assert_eq!(got.len(), want.len(), "{what}: got {got:?}, want {want:?}");
    let mut worst = 0.0f64;
    for (got, want) in got.iter().zip(want) {
        // Where the reference is not finite, ours must still be.
        let Some(want) = want else {
            assert!(got.is_finite(), "{what}: {got:?}");
            continue;
        };
        worst = worst.max((f64::from(*got) - want).abs() / want.abs().max(1.0));
    }
    assert!(worst <= 1e-6, "{what}: off by {worst:e}: got {got:?}, want {want:?}");
    worst
}

#[test]
fn model_tables() {
    let golden = golden();
    let tables = golden["model_sigmas"].as_object().unwrap();
    assert_eq!(tables.len(), 16);
    for (name, table) in tables {
        let sampling = sampling(name);
        assert_eq!(sampling.sigmas().len() as u64, table["count"].as_u64().unwrap(), "{name}");
        let every: Vec<f32> = sampling.sigmas().iter().copied().step_by(97).collect();
        check(name, &every, &numbers(&table["every_97th"]));
        check(
            name,
            &[sampling.sigma_min(), sampling.sigma_max()],
            &[table["sigma_min"].as_f64(), table["sigma_max"].as_f64()],
        );
        let timesteps: Vec<f32> = every.iter().map(|s| sampling.timestep(*s)).collect();
        check(name, &timesteps, &numbers(&table["timestep_of_sigmas"]));
    }
}

#[test]
fn ksampler_schedules() {
    let golden = golden();
    let cases = golden["ksampler"].as_array().unwrap();
    assert_eq!(cases.len(), 912);
    let mut worst = 0.0f64;
    for case in cases {
        let text = |key: &str| case[key].as_str().unwrap();
        let plan = StepPlan::new(case["steps"].as_u64().unwrap() as usize, case["denoise"].as_f64().unwrap());
        let sampler: Sampler = text("sampler").parse().unwrap();
        let scheduler: Scheduler = text("scheduler").parse().unwrap();
        let got = plan.sigmas(&sampling(text("model")), scheduler, sampler).unwrap();
        let what = format!("{} {sampler} {scheduler} {plan:?}", text("model"));
        worst = worst.max(check(&what, &got, &numbers(&case["sigmas"])));
    }
    println!("worst relative difference of {} schedules: {worst:e}", cases.len());
}

#[test]
fn scheduler_nodes() {
    let golden = golden();
    let cases = golden["nodes"].as_array().unwrap();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let inputs = &case["inputs"];
        let number = |key: &str| inputs[key].as_f64().unwrap();
        let whole = |key: &str| inputs[key].as_u64().unwrap() as usize;
        let steps = whole("steps");
        let got = match case["node"].as_str().unwrap() {
            "KarrasScheduler" => {
                nodes::karras(steps, number("sigma_max"), number("sigma_min"), number("rho"))
            }
            "ExponentialScheduler" => nodes::exponential(steps, number("sigma_max"), number("sigma_min")),
            "PolyexponentialScheduler" => {
                nodes::polyexponential(steps, number("sigma_max"), number("sigma_min"), number("rho"))
            }
            "LaplaceScheduler" => {
                let bounds = (number("sigma_max"), number("sigma_min"));
                nodes::laplace(steps, bounds, number("mu"), number("beta"))
            }
            "VPScheduler" => nodes::vp(steps, number("beta_d"), number("beta_min"), number("eps_s")),
            "AlignYourStepsScheduler" => {
                nodes::align_your_steps(inputs["model_type"].as_str().unwrap(), steps, number("denoise"))
            }
            "OptimalStepsScheduler" => {
                nodes::optimal_steps(inputs["model_type"].as_str().unwrap(), steps, number("denoise"))
            }
            "GITSScheduler" => nodes::gits(number("coeff"), steps, number("denoise")),
            "LTXVScheduler" => {
                let terminal = inputs["stretch"].as_bool().unwrap().then(|| number("terminal"));
                nodes::ltxv(steps, number("max_shift"), number("base_shift"), terminal, 4096)
            }
            "Flux2Scheduler" => nodes::size_dependent_flow(steps, whole("width"), whole("height")),
            other => panic!("no scheduler is called {other}"),
        };
        check(&case.to_string(), &got.unwrap(), &numbers(&case["sigmas"]));
    }
}

#[test]
fn discarding_samplers_are_those_of_the_golden() {
    let golden = golden();
    let want: Vec<&str> = golden["discard_penultimate_sigma_samplers"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let got: Vec<&str> =
        Sampler::ALL.iter().filter(|s| s.discards_penultimate_sigma()).map(|s| s.name()).collect();
    assert_eq!(got, want);
}

#[test]
fn table_schedules_keep_their_ends_at_any_length() {
    for steps in [2, 5, 20, 21, 50] {
        let sigmas = nodes::gits(1.2, steps, 1.0).unwrap();
        assert_eq!((sigmas.len(), sigmas[0], sigmas[steps]), (steps + 1, 14.614_641, 0.0));
        assert!(sigmas.windows(2).all(|w| w[0] > w[1]), "{sigmas:?}");
        let half = nodes::gits(1.2, steps, 0.5).unwrap();
        assert_eq!(half[..half.len() - 1], sigmas[sigmas.len() - half.len()..steps]);
    }
    assert!(nodes::gits(1.23, 8, 1.0).is_err());
    assert!(nodes::align_your_steps("SD9", 8, 1.0).unwrap_err().to_string().contains("SDXL"));
}

#[test]
fn model_samplings_follow_the_reference() {
    let golden: Value =
        serde_json::from_str(&std::fs::read_to_string(data("model_sampling.json")).unwrap()).unwrap();
    let row = |values: &[f32]| Latent::new(vec![1, 1, 1, 3], values.to_vec()).unwrap();
    let (x, output) = (row(&[0.5, -1.25, 3.0]), row(&[0.2, 0.7, -1.5]));
    for (name, sampling) in [
        ("eps", ModelSampling::discrete(Parameterization::Eps, false)),
        ("v", ModelSampling::discrete(Parameterization::V, false)),
        ("v_zsnr", ModelSampling::discrete(Parameterization::V, true)),
        ("clean", ModelSampling::discrete(Parameterization::Clean, false)),
        ("edm", ModelSampling::continuous_edm(Parameterization::Edm, (0.002, 80.0), 0.5)),
        ("continuous_v", ModelSampling::continuous_v(Parameterization::V, (0.002, 500.0), 1.0)),
        ("flow", ModelSampling::flow(3.0, 1000.0)),
        ("flux", ModelSampling::exponential_flow(1.15)),
    ] {
        let want = &golden[name];
        let compare = |key: &str, got: &[f32]| check(&format!("{name} {key}"), got, &numbers(&want[key]));
        let sigma = want["sigma"].as_f64().unwrap() as f32;
        compare("sigmas", &sampling.sigmas().iter().copied().step_by(97).collect::<Vec<_>>());
        check(
            name,
            &[sampling.sigma_max(), sampling.timestep(sigma)],
            &[want["sigma_max"].as_f64(), want["timestep"].as_f64()],
        );
        let timesteps: &[f32] = if ["eps", "v", "v_zsnr", "clean"].contains(&name) {
            &[0.0, 0.5, 3.25, 998.6]
        } else {
            &[0.1, 0.35, 0.8]
        };
        compare("sigma_of", &timesteps.iter().map(|t| sampling.sigma(*t)).collect::<Vec<_>>());
        let percents = [0.0, 0.1, 0.35, 0.8, 0.999, 1.0].map(|p| sampling.percent_to_sigma(p) as f32);
        compare("percent", &percents);
        compare("input", sampling.calculate_input(sigma, &x).values());
        compare("denoised", sampling.calculate_denoised(sigma, &output, &x).values());
        compare("scaled", sampling.noise_scaling(sigma, &output, &x, false).values());
        compare("scaled_max", sampling.noise_scaling(sigma, &output, &x, true).values());
        compare("inverse", sampling.inverse_noise_scaling(sigma, x.clone()).values());
    }
}

#[test]
fn schedules_that_read_a_models_table() {
    let golden: Value =
        serde_json::from_str(&std::fs::read_to_string(data("model_sampling.json")).unwrap()).unwrap();
    let eps = sampling("sd15");
    for case in golden["beta"].as_array().unwrap() {
        let number = |key: &str| case[key].as_f64().unwrap();
        let got = nodes::beta(&eps, number("steps") as usize, number("alpha"), number("beta")).unwrap();
        check(&case.to_string(), &got, &numbers(&case["sigmas"]));
    }
    for case in golden["sd_turbo"].as_array().unwrap() {
        let number = |key: &str| case[key].as_f64().unwrap();
        let got = nodes::sd_turbo(&eps, number("steps") as usize, number("denoise")).unwrap();
        check(&case.to_string(), &got, &numbers(&case["sigmas"]));
    }
    assert!(nodes::beta(&eps, 4, 0.0, 0.6).is_err());
    let half = nodes::basic(&eps, Scheduler::Karras, 5, 0.5).unwrap();
    assert_eq!(half, Scheduler::Karras.sigmas(&eps, 10).unwrap()[5..]);
}
