//! Krea 2 against diffusers and transformers: module by module, text, schedule, whole runs, and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use models::conditioning::Cond;
use models::diffusion::krea2::{Krea2, LATENT};
use models::diffusion::{Diffusion, ForwardProbed};
use models::vae::wan::Wan;
use models::vae::{Autoencoder, Pictures};
use models::{Module, Probe, detect};
use residency::Manifest;
use sampling::{Latent, Sampler, Scheduler, StepPlan};
use support::newer::*;
use support::transformers::{check_placements, texts};
use support::{checkpoint, open_on_cpu};
use testkit::random_normal;

const MODEL: &str = "krea2_tiny";
const FAMILY: &str = "krea2";
const ENCODER: &str = "qwen3vl_4b_tiny";

/// A model and its manifest.
fn model() -> (Krea2, Manifest) {
    let checkpoint = checkpoint(MODEL);
    let detected = detect(&checkpoint);
    assert_eq!(detected.parts[0].name, "Krea 2");
    let model = Krea2::read(&checkpoint, &detected.parts[0]).unwrap();
    let manifest = model.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (model, manifest)
}

#[test]
fn the_model_equals_the_reference_in_every_module() {
    let (model, manifest) = model();
    let session = open_on_cpu(manifest);
    for set in Set::all(FAMILY) {
        let golden = set.values("forward");
        let cond = Cond::text(array(&golden, "context"), None);
        let x = tensor(&golden, &session, "x");
        for time in ["t0", "t1"] {
            let mut seen = 0;
            let mut see = |name: &str, value: &tensor::Tensor| {
                seen += usize::from(close(&golden, &format!("{time}.{name}"), &value.to_vec().unwrap()));
            };
            let sigma = number(&golden, &format!("{time}.sigma"));
            let probe = &mut Probe::new(&mut see);
            let got = model.forward_probed(&session, (&cond, &x, sigma), probe).unwrap();
            assert!(close(&golden, &format!("{time}.velocity"), &got.to_vec().unwrap()));
            let own = golden.names().filter(|name| name.starts_with(time));
            // Queries, keys and values are no modules; keys and values are stored as often as queries look at them.
            let others = ["sigma", "velocity", "attention.q", "attention.k", "attention.v"];
            let own = own.filter(|name| !others.iter().any(|other| name.ends_with(other))).count();
            assert_eq!(seen, own, "{time}");
        }
        // The picture to look at is kept in the autoencoder's scale.
        let reference = |name: &str| Arc::new(LATENT.to_autoencoder(&latent(&golden, name)).unwrap());
        let looking = Cond { reference_latents: vec![reference("ref0"), reference("ref1")], ..cond };
        let got = evaluate(&model, &session, &looking, (&x, number(&golden, "t0.sigma")), &[]);
        assert!(close(&golden, "ref.t0.velocity", &got));
    }
}

#[test]
fn texts_are_twelve_states_of_the_encoder() {
    let reader = Reader::new(ENCODER, "krea2");
    assert_eq!(reader.model.encoder.key(), "qwen3vl_4b");
    for set in Set::all(FAMILY) {
        let golden = set.values("text");
        let mut compared = 0;
        for (i, case) in set.cases["prompts"].as_array().unwrap().iter().enumerate() {
            let prompt = case["prompt"].as_str().unwrap();
            if case.get("image").is_some() {
                let Some("e0.cond") = golden.names().find(|name| *name == "e0.cond") else { continue };
                let seen = [reader.look(&array(&golden, "e0.image"))];
                let prefix = set.cases["edit_template_prefix"].as_str().unwrap();
                let suffix = set.cases["template_suffix"].as_str().unwrap();
                let shown = "Picture 1: <|vision_start|><|image_pad|><|vision_end|>";
                let (ids, encoded) = reader.encode(&format!("{prefix}{shown}{prompt}{suffix}"), &seen);
                check_ids(&golden, "e0", &ids);
                assert!(close(&golden, "e0.cond", &encoded.cond.to_vec().unwrap()));
                compared += 1;
                continue;
            }
            let (ids, encoded) = reader.encode_prompt(prompt);
            if close(&golden, &format!("p{i}.cond"), &encoded.cond.to_vec().unwrap()) {
                check_ids(&golden, &format!("p{i}"), &ids);
                compared += 1;
            }
        }
        assert_eq!(compared, golden.names().filter(|name| name.ends_with(".cond")).count());
    }
}

#[test]
fn levels_and_whole_runs_equal_the_reference() {
    let (model, manifest) = model();
    let (session, reader) = (open_on_cpu(manifest), Reader::new(ENCODER, "krea2"));
    for set in Set::all(FAMILY) {
        check_simple_schedules(&set, &model.sampling());
        let (golden, case) = (set.values("run"), &set.cases["run"]);
        let cond = |which: &str| {
            let index = case[which].as_u64().unwrap() as usize;
            reader.cond(set.cases["prompts"][index]["prompt"].as_str().unwrap())
        };
        let plan = StepPlan::new(case["steps"].as_u64().unwrap() as usize, 1.0);
        let sigmas = plan.sigmas(&model.sampling(), Scheduler::Simple, Sampler::Euler).unwrap();
        let conds = [cond("positive"), cond("negative")];
        let cfg = case["cfg"].as_f64().unwrap();
        let result = check_run(&model, &session, conds.each_ref(), (&golden, ""), (cfg, sigmas));
        if golden.names().any(|name| name == "image") {
            assert!(close(&golden, "image", &decoded(&result)));
        }
    }
}

/// The autoencoder that it has in common with others.
fn autoencoder() -> (Wan, residency::Session) {
    let checkpoint = checkpoint("wan_2.1_vae_tiny");
    let wan = Wan::read(&checkpoint, &detect(&checkpoint).parts[0]).unwrap();
    let session = open_on_cpu(wan.manifest(&checkpoint).unwrap());
    (wan, session)
}

/// A picture, 0 to 1, of a latent in the autoencoder's scale.
fn decoded(latent: &Latent) -> Vec<f32> {
    let (wan, session) = autoencoder();
    let shape = meta::Shape::new(latent.shape()).unwrap();
    let latent = session.lane().unwrap().tensor(shape, latent.values()).unwrap();
    let mut pictures = Vec::new();
    wan.decode(&session, &latent, None, &mut |values| {
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
        let (wan, session) = autoencoder();
        let shape = <[usize; 4]>::try_from(shape.dims()).unwrap();
        let encoded = wan.encode(&session, &Pictures { shape, values: &image }, None).unwrap();
        let values = encoded.to_vec().unwrap();
        assert!(close(&golden, "encoded", &values));
        let scaled = LATENT.to_model(&Latent::new(encoded.dims().to_vec(), values).unwrap()).unwrap();
        assert!(close(&golden, "encoded.model_scale", scaled.values()));
        let picture = decoded(&latent(&golden, "latent"));
        let signed: Vec<f32> = picture.iter().map(|value| 2.0 * value - 1.0).collect();
        assert!(close(&golden, "decoded", &signed));
    }
}

#[test]
fn placement_and_company_change_no_bit() {
    let (model, _) = model();
    let conds = texts([1, 12, 1536]);
    let latents: [&[usize]; 2] = [&[1, 16, 1, 8, 8], &[2, 16, 1, 9, 13]];
    check_placements(&model, &checkpoint(MODEL), &conds, &latents);
    let picture = Arc::new(Latent::new(vec![1, 16, 6, 10], random_normal(9, 960)).unwrap());
    let looking = conds.map(|cond| Cond { reference_latents: vec![Arc::clone(&picture)], ..cond });
    check_placements(&model, &checkpoint(MODEL), &looking, &latents[..1]);
}

#[test]
fn pictures_to_look_at_are_read_as_they_are_told() {
    let (model, manifest) = model();
    let session = open_on_cpu(manifest);
    let [cond, _] = texts([1, 12, 1536]);
    let x = session.lane().unwrap().tensor([1, 16, 1, 8, 8], &random_normal(5, 1024)).unwrap();
    let picture = Arc::new(Latent::new(vec![1, 16, 6, 10], random_normal(9, 960)).unwrap());
    let with = |method: Option<&str>| {
        let cond = Cond {
            reference_latents: vec![Arc::clone(&picture)],
            reference_method: method.map(str::to_owned),
            ..cond.clone()
        };
        evaluate(&model, &session, &cond, (&x, 0.5), &[])
    };
    assert_eq!(with(None), with(Some("index_timestep_zero")));
    assert_ne!(with(None), with(Some("index")));
    assert_ne!(with(None), evaluate(&model, &session, &cond, (&x, 0.5), &[]));
}

#[test]
fn every_frame_is_a_picture_of_its_own() {
    let (model, manifest) = model();
    let session = open_on_cpu(manifest);
    let [cond, _] = texts([1, 12, 1536]);
    let pictures = [random_normal(5, 1024), random_normal(6, 1024)];
    let lane = session.lane().unwrap();
    let alone = |values: &Vec<f32>| {
        let x = lane.tensor([1, 16, 1, 8, 8], values).unwrap();
        evaluate(&model, &session, &cond, (&x, 0.5), &[])
    };
    // Channel by channel, in each the frames.
    let both = |pictures: &[Vec<f32>]| -> Vec<f32> {
        (0..16).flat_map(|c| pictures.iter().flat_map(move |p| p[c * 64..(c + 1) * 64].to_vec())).collect()
    };
    let x = lane.tensor([1, 16, 2, 8, 8], &both(&pictures)).unwrap();
    let together = evaluate(&model, &session, &cond, (&x, 0.5), &[]);
    let apart: Vec<Vec<f32>> = pictures.iter().map(alone).collect();
    assert_eq!(together, both(&apart));
}

#[test]
fn layers_have_the_names_of_training_programs() {
    let (model, manifest) = model();
    let weights: Vec<_> = manifest.weights().iter().map(|it| (it.name.clone(), it.shape)).collect();
    let map = model.patch_keys(&weights);
    for (key, weight) in [
        ("diffusion_model.blocks.1.attn.wq", "blocks.1.attn.wq.weight"),
        ("base_model.model.blocks.1.mlp.down", "blocks.1.mlp.down.weight"),
        ("lora_unet_blocks_0_attn_gate", "blocks.0.attn.gate.weight"),
        ("transformer.transformer_blocks.0.attn.to_out.0", "blocks.0.attn.wo.weight"),
        ("lora_transformer_transformer_blocks_0_ff_up", "blocks.0.mlp.up.weight"),
        ("transformer.text_fusion.refiner_blocks.1.attn.to_k", "txtfusion.refiner_blocks.1.attn.wk.weight"),
        ("transformer.time_mod_proj", "tproj.1.weight"),
        ("transformer.txt_in.linear_2", "txtmlp.3.weight"),
    ] {
        assert_eq!(map.find(key).map(|target| target.weight.as_str()), Some(weight), "{key}");
    }
}
