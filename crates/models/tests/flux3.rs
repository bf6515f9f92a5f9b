//! FLUX.3 klein against diffusers and transformers: module by module, text, schedule, whole runs, and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use models::conditioning::Cond;
use models::diffusion::Diffusion;
use models::diffusion::flux3::{Flux3, LATENT};
use models::vae::{Autoencoder, Pictures};
use models::{Module, Probe, detect};
use residency::{Manifest, Session};
use sampling::{Latent, ModelSampling};
use support::newer::*;
use support::transformers::{check_placements, texts};
use support::{checkpoint, open_on_cpu};
use testkit::{Golden, Report, random_normal};

const MODELS: [(&str, &str, &str); 2] = [
    ("base", "flux3_klein_base_tiny", "FLUX.3 klein base"),
    ("distilled", "flux3_klein_tiny", "FLUX.3 klein"),
];
const FAMILY: &str = "flux3";
const ENCODER: &str = "qwen3vl_4b_tiny";
const WINDOW: usize = 80;

/// A model and its manifest.
fn model(name: &str) -> (Flux3, Manifest) {
    let checkpoint = checkpoint(name);
    let detected = detect(&checkpoint);
    let known = MODELS.iter().find(|(_, file, _)| *file == name).unwrap().2;
    assert_eq!(detected.parts[0].name, known);
    let model = Flux3::read(&checkpoint, &detected.parts[0]).unwrap();
    let manifest = model.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (model, manifest)
}

/// Evaluates at the stored times, and compares the velocity and every module that is stored. How many are.
fn check_forward(model: &Flux3, session: &Session, cond: &Cond, golden: &Golden, case: &str) -> usize {
    let x = tensor(golden, session, "x");
    let mut compared = 0;
    for time in ["t0", "t1"] {
        let mut see = |name: &str, value: &tensor::Tensor| {
            compared +=
                usize::from(close(golden, &format!("{case}.{time}.{name}"), &value.to_vec().unwrap()));
        };
        let [sigma, target] = ["sigma", "target"].map(|it| number(golden, &format!("{time}.{it}")));
        let probe = &mut Probe::new(&mut see);
        let times = [sigma, target];
        let got =
            model.forward_probed(session, (cond, &times), (&x, sigma), probe).unwrap().to_vec().unwrap();
        compared += usize::from(close(golden, &format!("{case}.{time}.velocity"), &got));
    }
    compared
}

#[test]
fn both_models_equal_the_reference_in_every_module() {
    for set in Set::all(FAMILY) {
        let golden = set.values("forward");
        let cond = Cond::text(array(&golden, "context"), None);
        let reference = |name: &str| Arc::new(LATENT.to_autoencoder(&latent(&golden, name)).unwrap());
        let looking = Cond { reference_latents: vec![reference("ref0"), reference("ref1")], ..cond.clone() };
        let mut compared = 0;
        for (case, file, _) in MODELS {
            let (model, manifest) = model(file);
            let session = open_on_cpu(manifest);
            assert_eq!(model.config().jumps, case == "distilled");
            compared += check_forward(&model, &session, &cond, &golden, case);
            compared += check_forward(&model, &session, &looking, &golden, &format!("{case}_edit"));
        }
        let is_result = |name: &&str| name.starts_with("base") || name.starts_with("distilled");
        assert_eq!(compared, golden.names().filter(is_result).count());
    }
}

#[test]
fn texts_are_eight_states_in_windows() {
    let reader = Reader::new(ENCODER, "flux3");
    for set in Set::all(FAMILY) {
        let golden = set.values("text");
        let mut compared = 0;
        for (i, case) in set.cases["prompts"].as_array().unwrap().iter().enumerate() {
            let (ids, encoded) = reader.encode_prompt(case["prompt"].as_str().unwrap());
            assert_eq!(encoded.cond.dim(1), WINDOW);
            let values = encoded.cond.to_vec().unwrap();
            let width = encoded.cond.dim(2);
            let rows = case["stored_rows"].as_u64().unwrap() as usize;
            compared += usize::from(close(&golden, &format!("p{i}.cond"), &values[..rows * width]));
            let last = &values[(WINDOW - 1) * width..];
            compared += usize::from(close(&golden, &format!("p{i}.cond_last"), last));
            // All that fills the window up is the same.
            let words = case["tokens"].as_u64().unwrap() as usize;
            assert!(values[words * width..].chunks(width).all(|row| row == last));
            if golden.names().any(|name| name == format!("p{i}.ids")) {
                check_ids(&golden, &format!("p{i}"), &ids);
            }
        }
        assert_eq!(compared, golden.names().filter(|name| name.contains("cond")).count());
    }
    let long = reader.encode_prompt(&"a lighthouse ".repeat(60)).1;
    assert_eq!(long.cond.dim(1) % WINDOW, 0);
    assert!(long.cond.dim(1) > WINDOW);
}

/// The levels of so many steps: even times, shifted.
fn levels(sampling: &ModelSampling, steps: usize) -> Vec<f32> {
    let time = |i: usize| 1.0 - i as f32 / steps as f32;
    (0..steps).map(|i| sampling.sigma(time(i))).chain([0.0]).collect()
}

#[test]
fn levels_are_those_of_the_reference() {
    let sampling = model(MODELS[0].1).0.sampling();
    for set in Set::all(FAMILY) {
        for list in set.schedules()["diffusers"].as_array().unwrap() {
            let want: Vec<f32> =
                list["sigmas"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
            let got = levels(&sampling, list["steps"].as_u64().unwrap() as usize);
            assert_eq!(got.len(), want.len());
            Report::new("levels", &got, &want).assert(1e-6);
        }
    }
}

#[test]
fn whole_runs_equal_the_reference() {
    let reader = Reader::new(ENCODER, "flux3");
    for set in Set::all(FAMILY) {
        let golden = set.values("run");
        let mut runs = 0;
        for (case, file, prefix) in
            [("base", MODELS[0].1, "base."), ("distilled_edit", MODELS[1].1, "distilled_edit.")]
        {
            if !golden.names().any(|name| name.starts_with(prefix)) {
                continue;
            }
            let (model, manifest) = model(file);
            let (session, about) = (open_on_cpu(manifest), &set.cases["run"][case]);
            let cond = |which: &str| {
                let index = about[which].as_u64().unwrap_or(1) as usize;
                reader.cond(set.cases["prompts"][index]["prompt"].as_str().unwrap())
            };
            let mut positive = cond("positive");
            if about["references"].as_u64() == Some(1) {
                let picture = latent(&golden, "distilled_edit.reference_latent");
                positive.reference_latents.push(Arc::new(LATENT.to_autoencoder(&picture).unwrap()));
            }
            let sigmas = levels(&model.sampling(), about["steps"].as_u64().unwrap() as usize);
            let cfg = about["cfg"].as_f64().unwrap_or(1.0);
            let conds = [&positive, &cond("negative")];
            let result = check_run(&model, &session, conds, (&golden, prefix), (cfg, sigmas));
            if golden.names().any(|name| name == format!("{prefix}image")) {
                assert!(close(&golden, &format!("{prefix}image"), &decoded(&result)));
            }
            runs += 1;
        }
        assert!(runs > 0);
    }
}

/// The autoencoder that it has in common with the generation before it.
fn autoencoder() -> (Box<dyn Autoencoder>, Session) {
    let checkpoint = checkpoint("flux2_vae");
    let detected = detect(&checkpoint);
    let Some(detect::Reader::Autoencoder(family)) = detected.parts[0].reader else { panic!("{detected:?}") };
    let vae = (family.read)(&checkpoint, &detected.parts[0]).unwrap();
    let session = open_on_cpu(vae.manifest(&checkpoint).unwrap());
    (vae, session)
}

/// A picture, 0 to 1, of a latent.
fn decoded(latent: &Latent) -> Vec<f32> {
    let (vae, session) = autoencoder();
    let shape = meta::Shape::new(latent.shape()).unwrap();
    let latent = session.lane().unwrap().tensor(shape, latent.values()).unwrap();
    let mut pictures = Vec::new();
    vae.decode(&session, &latent, None, &mut |values| {
        pictures.extend_from_slice(values);
        Ok(())
    })
    .unwrap();
    pictures
}

#[test]
fn the_autoencoder_equals_the_reference() {
    for golden in Set::all(FAMILY).iter().filter_map(|set| set.find("vae")) {
        let (shape, image) = golden.tensor("image").unwrap();
        let (vae, session) = autoencoder();
        let shape = <[usize; 4]>::try_from(shape.dims()).unwrap();
        let encoded = vae.encode(&session, &Pictures { shape, values: &image }, None).unwrap();
        assert!(close(&golden, "encoded", &encoded.to_vec().unwrap()));
        let picture = decoded(&latent(&golden, "latent"));
        // The reference keeps what is beyond black and white, pictures do not.
        let (_, want) = golden.tensor("decoded").unwrap();
        let want: Vec<f32> = want.iter().map(|value| (value / 2.0 + 0.5).clamp(0.0, 1.0)).collect();
        Report::new("decoded", &picture, &want).assert(TOLERANCE);
    }
}

#[test]
fn placement_and_company_change_no_bit() {
    let conds = texts([1, 12, 1024]);
    let picture = Arc::new(Latent::new(vec![1, 128, 3, 5], random_normal(9, 1920)).unwrap());
    let looking = conds.clone().map(|cond| Cond { reference_latents: vec![Arc::clone(&picture)], ..cond });
    for (_, file, _) in MODELS {
        let (model, _) = model(file);
        let latents: [&[usize]; 2] = [&[1, 128, 4, 6], &[2, 128, 3, 5]];
        check_placements(&model, &checkpoint(file), &conds, &latents);
        check_placements(&model, &checkpoint(file), &looking, &latents[..1]);
    }
}

#[test]
fn a_distilled_model_is_told_where_a_step_lands() {
    let [cond, _] = texts([1, 12, 1024]);
    let results = |file: &str| {
        let (model, manifest) = model(file);
        let session = open_on_cpu(manifest);
        let x = session.lane().unwrap().tensor([1, 128, 4, 6], &random_normal(5, 3072)).unwrap();
        let at = |times: &[f32]| evaluate(&model, &session, &cond, (&x, 0.8), times);
        [at(&[0.8, 0.4]), at(&[0.8, 0.1]), at(&[0.8, 0.4, 0.1])]
    };
    let [near, far, more] = results(MODELS[1].1);
    assert!(near != far && near == more);
    let [near, far, _] = results(MODELS[0].1);
    assert_eq!(near, far);
}

#[test]
fn layers_have_the_names_of_training_programs() {
    let (model, manifest) = model(MODELS[1].1);
    let weights: Vec<_> = manifest.weights().iter().map(|it| (it.name.clone(), it.shape)).collect();
    let map = model.patch_keys(&weights);
    for (key, weight) in [
        ("diffusion_model.single_blocks.1.q_proj", "single_blocks.1.q_proj.weight"),
        ("lora_unet_content_mode_blocks_image_0_mlp_in", "content_mode_blocks.image.0.mlp_in.weight"),
        (
            "transformer.mode_blocks.image_cond.0.attn.to_out.0",
            "content_mode_blocks.image_cond.0.attn_out.weight",
        ),
        ("transformer.txt_mode_blocks.0.attn.to_k", "txt_mode_blocks.0.k_proj.weight"),
        ("transformer.single_transformer_blocks.0.ff.linear_out", "single_blocks.0.mlp_out.weight"),
        ("transformer.target_timestep_embedder.linear_1", "ref_time_in.in_layer.weight"),
    ] {
        assert_eq!(map.find(key).map(|target| target.weight.as_str()), Some(weight), "{key}");
    }
    // Diffusers has scale before shift.
    let last = map.find("transformer.norm_out.linear").unwrap();
    assert_eq!(
        (last.weight.as_str(), last.halves_swapped),
        ("final_layer.image.adaLN_modulation.1.weight", true)
    );
}
