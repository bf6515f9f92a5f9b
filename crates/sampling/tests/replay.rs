//! Samplers that ask the model once per step, fed with the predictions of real runs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use sampling::{
    Conditioning, Error, Latent, LatentSpec, ModelSampling, Request, Sampler, Scheduler, Silent, StepPlan,
    Tuning, noise, resize_mask, sample,
};
use support::{Recorder, Replay, data, latent};
use testkit::{Golden, Report, assert_close};

/// A correct f32 implementation stays below 1e-4; ours is held to less.
const TOLERANCE: f64 = 2e-6;

const SINGLE_CALL: [Sampler; 20] = [
    Sampler::Euler,
    Sampler::EulerAncestral,
    Sampler::Lms,
    Sampler::DpmPp2m,
    Sampler::DpmPp2mSde,
    Sampler::DpmPp2mSdeHeun,
    Sampler::DpmPp3mSde,
    Sampler::Ddpm,
    Sampler::Lcm,
    Sampler::Ipndm,
    Sampler::IpndmV,
    Sampler::Deis,
    Sampler::ResMultistep,
    Sampler::ResMultistepAncestral,
    Sampler::GradientEstimation,
    Sampler::ErSde,
    Sampler::SaSolver,
    Sampler::Ddim,
    Sampler::UniPc,
    Sampler::UniPcBh2,
];

/// Whether the reference reports the x that the model was asked with.
///
/// It reports the starting noise for three multistep samplers, and the state after the step for UniPC.
fn reports_its_x(sampler: Sampler) -> bool {
    use Sampler::{Deis, Ipndm, IpndmV, UniPc, UniPcBh2};
    !matches!(sampler, Ipndm | IpndmV | Deis | UniPc | UniPcBh2)
}

fn replay(file: &str, sampling: &ModelSampling, format: &'static LatentSpec, scheduler: Scheduler) {
    let golden = Golden::open(data(file)).unwrap();
    let noise = noise::prepare_noise(42, latent(&golden, "noise").shape(), None).unwrap();
    assert_eq!(noise, latent(&golden, "noise"));
    let mut failures = Vec::new();
    for sampler in SINGLE_CALL {
        let sigmas = StepPlan::new(5, 1.0).sigmas(sampling, scheduler, sampler).unwrap();
        let own = format!("{sampler}.sigmas");
        let stored = if golden.names().any(|n| n == own) { own.as_str() } else { "sigmas" };
        assert_close(stored, &sigmas, &golden.tensor(stored).unwrap().1, 1e-6);
        let answers = (0..5).map(|i| latent(&golden, &format!("{sampler}.step{i:02}.x0"))).collect();
        let mut model = Replay::new(answers);
        let request = Request {
            sampling,
            format,
            sampler,
            tuning: Tuning::default(),
            sigmas,
            latent: Latent::zeros(noise.shape()),
            noise: noise.clone(),
            mask: None,
            keeps_clean: false,
            cfg: 1.0,
            seed: 42,
        };
        let mut recorder = Recorder::default();
        let got = sample(&request, &mut model, &mut recorder).unwrap();
        let mut reports = Vec::new();
        if reports_its_x(sampler) {
            for (i, (x, _)) in model.asked.iter().enumerate() {
                assert_eq!(&recorder.x[i], x, "{sampler}, step {i}");
            }
            // Those of the steps between them are not kept; the last one follows from all.
            for i in [0, 4] {
                let (name, (x, _)) = (format!("{sampler}.step{i:02}.x"), &model.asked[i]);
                reports.push(Report::new(name.clone(), x.values(), latent(&golden, &name).values()));
            }
        }
        let want = latent(&golden, &format!("{sampler}.x_final"));
        let got = format.to_model(&got).unwrap();
        reports.push(Report::new(format!("{sampler}.x_final"), got.values(), want.values()));
        let worst = reports.iter().map(|r| r.relative).fold(0.0, f64::max);
        println!("{file} {sampler:<25} {worst:.1e}");
        assert_eq!(model.asked.len(), 5);
        failures.extend(reports.iter().filter(|r| !r.passes(TOLERANCE)).map(ToString::to_string));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn flux_runs() {
    replay(
        "flux_dev_micro_samplers.safetensors",
        &support::sampling("flux_default"),
        &support::FLUX,
        Scheduler::Simple,
    );
}

#[test]
fn sd15_runs() {
    replay("sd15_tiny_samplers.safetensors", &support::sampling("sd15"), &support::SD15, Scheduler::Normal);
}

/// A whole run of a workflow: what its nodes say, and the file's key prefix.
struct Case {
    key: &'static str,
    sampling: &'static str,
    format: &'static LatentSpec,
    sampler: Sampler,
    scheduler: Scheduler,
    plan: StepPlan,
    seed: u64,
    adds_noise: bool,
}

/// What the model predicted before the kept part of the picture was laid over it.
fn without_mask(x0: &Latent, image: &Latent, mask: &Latent) -> Latent {
    let values = x0.values().iter().zip(image.values()).zip(mask.values());
    let undo = |((x0, image), mask): ((&f32, &f32), &f32)| {
        if *mask == 0.0 { 0.0 } else { (x0 - image * (1.0 - mask)) / mask }
    };
    Latent::new(x0.shape().to_vec(), values.map(undo).collect()).unwrap()
}

fn check_run(golden: &Golden, case: &Case) {
    let get = |name: &str| latent(golden, &format!("{}.{name}", case.key));
    let has = |name: &str| golden.names().any(|n| n == format!("{}.{name}", case.key));
    let sampling = support::sampling(case.sampling);
    let sigmas = case.plan.sigmas(&sampling, case.scheduler, case.sampler).unwrap();
    assert_close(case.key, &sigmas, get("sigmas").values(), 1e-6);
    let shape = get("noise").shape().to_vec();
    let noise = if case.adds_noise {
        noise::prepare_noise(case.seed, &shape, None).unwrap()
    } else {
        Latent::zeros(&shape)
    };
    assert_eq!(noise, get("noise"), "{}", case.key);
    let steps = sigmas.len() - 1;
    let answers: Vec<Latent> = (0..steps).map(|i| get(&format!("step{i:02}.x0"))).collect();
    let mask = has("noise_mask").then(|| get("noise_mask"));
    let unmasked = match &mask {
        Some(mask) => {
            let mask = resize_mask(mask, &shape).unwrap();
            let image = case.format.to_model(&get("latent_in")).unwrap();
            answers.iter().map(|x0| without_mask(x0, &image, &mask)).collect()
        }
        None => answers.clone(),
    };
    let mut model = Replay::new(unmasked);
    let request = Request {
        sampling: &sampling,
        format: case.format,
        sampler: case.sampler,
        tuning: Tuning::default(),
        sigmas,
        latent: if has("latent_in") { get("latent_in") } else { Latent::zeros(&shape) },
        noise,
        mask,
        keeps_clean: false,
        cfg: 1.0,
        seed: case.seed,
    };
    let mut recorder = Recorder::default();
    let got = sample(&request, &mut model, &mut recorder).unwrap();
    for (i, answer) in answers.iter().enumerate() {
        let name = format!("step{i:02}.x");
        assert_close(&format!("{}.{name}", case.key), recorder.x[i].values(), get(&name).values(), TOLERANCE);
        assert_close(case.key, recorder.denoised[i].values(), answer.values(), TOLERANCE);
    }
    let model_scale = case.format.to_model(&got).unwrap();
    assert_close(case.key, model_scale.values(), get("x_final").values(), TOLERANCE);
    if has("latent") {
        assert_close(case.key, got.values(), get("latent").values(), TOLERANCE);
    }
}

const FLUX: Case = Case {
    key: "flux_dev_micro_img2img",
    sampling: "flux_default",
    format: &support::FLUX,
    sampler: Sampler::Euler,
    scheduler: Scheduler::Simple,
    plan: StepPlan { steps: 4, denoise: 0.6, start: None, end: None, force_full_denoise: false },
    seed: 42,
    adds_noise: true,
};

const SD15: Case = Case {
    key: "sd15_tiny_img2img",
    sampling: "sd15",
    format: &support::SD15,
    scheduler: Scheduler::Normal,
    plan: StepPlan { steps: 6, denoise: 0.5, start: None, end: None, force_full_denoise: false },
    ..FLUX
};

#[test]
fn image_to_image_and_inpainting() {
    let golden = Golden::open(data("runs.safetensors")).unwrap();
    check_run(&golden, &FLUX);
    check_run(&golden, &SD15);
    check_run(&golden, &Case { key: "flux_dev_micro_inpaint", plan: StepPlan::new(4, 1.0), ..FLUX });
    check_run(&golden, &Case { key: "sd15_tiny_inpaint", plan: StepPlan::new(4, 1.0), ..SD15 });
    check_run(&golden, &Case { key: "sd15_tiny_vae_inpaint", plan: StepPlan::new(3, 1.0), ..SD15 });
}

#[test]
fn other_sizes_samplings_and_seeds() {
    let golden = Golden::open(data("runs.safetensors")).unwrap();
    let batch = Case {
        key: "flux_dev_micro_batch2_nonsquare",
        sampler: Sampler::DpmPp2m,
        scheduler: Scheduler::Beta,
        plan: StepPlan::new(3, 1.0),
        seed: u64::MAX,
        ..FLUX
    };
    let custom = Case {
        key: "flux_dev_micro_custom_sampler",
        sampling: "flux_64x64",
        plan: StepPlan::new(4, 1.0),
        seed: 7,
        ..FLUX
    };
    let sd3 = Case {
        key: "sd35_micro",
        sampling: "sd3_shift3",
        format: &support::SD3,
        sampler: Sampler::DpmPp2m,
        scheduler: Scheduler::SgmUniform,
        plan: StepPlan::new(3, 1.0),
        ..FLUX
    };
    [batch, custom, sd3].iter().for_each(|case| check_run(&golden, case));
}

#[test]
fn two_samplers_in_a_row() {
    let golden = Golden::open(data("runs.safetensors")).unwrap();
    let advanced = Case { sampler: Sampler::EulerAncestral, scheduler: Scheduler::Karras, ..SD15 };
    let plan = StepPlan::new(5, 1.0);
    let first = Case {
        key: "sd15_tiny_advanced_two_stage.stage1",
        plan: StepPlan { start: Some(0), end: Some(3), ..plan },
        ..advanced
    };
    let second = Case {
        key: "sd15_tiny_advanced_two_stage",
        plan: StepPlan { start: Some(3), end: Some(10_000), force_full_denoise: true, ..plan },
        adds_noise: false,
        ..advanced
    };
    check_run(&golden, &first);
    check_run(&golden, &second);
}

fn small_request(sampling: &ModelSampling, sigmas: Vec<f32>) -> Request<'_> {
    Request {
        sampling,
        format: &support::SD15,
        sampler: Sampler::Euler,
        tuning: Tuning::default(),
        sigmas,
        noise: noise::prepare_noise(1, &[1, 4, 2, 2], None).unwrap(),
        latent: Latent::zeros(&[1, 4, 2, 2]),
        mask: None,
        keeps_clean: false,
        cfg: 1.0,
        seed: 1,
    }
}

#[test]
fn a_run_can_be_cancelled_between_steps() {
    let sampling = support::sampling("sd15");
    let request = small_request(&sampling, vec![10.0, 5.0, 2.0, 0.0]);
    let mut model = Replay::new(vec![Latent::zeros(&[1, 4, 2, 2]); 3]);
    let mut recorder = Recorder { cancel_after: Some(2), ..Recorder::default() };
    let error = sample(&request, &mut model, &mut recorder).unwrap_err();
    assert!(matches!(error, Error::Cancelled { steps_done: 2, steps: 3 }), "{error}");
    assert_eq!(model.asked.len(), 2);
}

#[test]
fn wrong_inputs_are_told() {
    let sampling = support::sampling("sd15");
    let mut model = Replay::new(Vec::new());
    let good = small_request(&sampling, vec![10.0, 0.0]);
    let mut run = |request: &Request<'_>| sample(request, &mut model, &mut Silent).unwrap_err();
    let bad = Request { sigmas: vec![10.0, f32::NAN], ..good.clone() };
    assert!(matches!(run(&bad), Error::BadSigma { index: 1, .. }));
    let bad = Request { latent: Latent::zeros(&[1, 4, 3, 2]), ..good.clone() };
    assert!(matches!(run(&bad), Error::Shape { what: "the noise", .. }));
    let bad = Request { cfg: 3.0, ..good.clone() };
    let failed = run(&bad);
    assert!(matches!(failed, Error::Model { .. }) && failed.to_string().contains("more calls"), "{failed}");
    let mut model = Replay::new(vec![Latent::zeros(&[1, 4, 2, 2])]);
    let failed = sample(&bad, &mut model, &mut Silent).unwrap_err();
    assert!(matches!(failed, Error::NoPrediction { conditioning: Conditioning::Negative, .. }), "{failed}");
    let empty = Request { sigmas: Vec::new(), ..good };
    assert_eq!(sample(&empty, &mut model, &mut Silent).unwrap(), empty.latent);
}
