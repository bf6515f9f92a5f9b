//! Qwen-Image 2.1 against diffusers and transformers: module by module, text with and without pictures, autoencoder,
//! schedule, whole runs, and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use checkpoint::Checkpoint;
use meta::{DType, Encoding, Shape};
use models::conditioning::Cond;
use models::diffusion::qwen_image21::{LATENT, QwenImage21};
use models::diffusion::{Diffusion, ForwardProbed};
use models::vae::wan::Wan;
use models::vae::{Autoencoder, Pictures, Tiling};
use models::{Module, Probe, detect};
use residency::{Manifest, Session};
use sampling::{Latent, Sampler, Scaling, Scheduler, StepPlan};
use support::newer::*;
use support::transformers::{check_placements, texts};
use support::{checkpoint, open_on_cpu};
use testkit::{Golden, Report, SafetensorsWriter, random_normal};

const MODEL: &str = "qwen_image_2.1_tiny";
const FAMILY: &str = "qwen_image21";
const ENCODER: &str = "qwen3vl_8b_tiny";
const VAE: &str = "qwen_image_2.1_vae_tiny";
const PICTURE: &str = "<|vision_start|><|image_pad|><|vision_end|>";

fn read(checkpoint: &Checkpoint) -> (QwenImage21, Manifest) {
    let detected = detect(checkpoint);
    assert_eq!(detected.parts[0].name, "Qwen-Image 2.1");
    let model = QwenImage21::read(checkpoint, &detected.parts[0]).unwrap();
    let manifest = model.manifest(checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(checkpoint, &manifest), [""; 0]);
    (model, manifest)
}

/// A model and its manifest.
fn model() -> (QwenImage21, Manifest) {
    read(&checkpoint(MODEL))
}

/// Stored places of pictures among words.
fn slots(golden: &Golden, name: &str) -> Vec<usize> {
    let (words, _) = golden.bytes(name).unwrap().as_chunks::<8>();
    words.iter().map(|word| i64::from_le_bytes(*word) as usize).collect()
}

/// The same text with the stored pictures among its words.
fn looking(golden: &Golden, cond: &Cond) -> Cond {
    let reference = |name: &str| Arc::new(LATENT.to_autoencoder(&latent(golden, name)).unwrap());
    Cond {
        reference_latents: vec![reference("ref0"), reference("ref1")],
        reference_slots: slots(golden, "slots"),
        ..cond.clone()
    }
}

#[test]
fn the_model_equals_the_reference_in_every_module() {
    let (model, manifest) = model();
    let session = open_on_cpu(manifest);
    for set in Set::all(FAMILY) {
        let golden = set.values("forward");
        let cond = Cond::text(array(&golden, "context"), None);
        let x = tensor(&golden, &session, "x");
        for (case, cond) in [("t2i", &cond), ("edit", &looking(&golden, &cond))] {
            for time in ["t0", "t1"] {
                let mut seen = 0;
                let mut see = |name: &str, value: &tensor::Tensor| {
                    let name = name.replace("transformer_", "");
                    seen += usize::from(close(
                        &golden,
                        &format!("{case}.{time}.{name}"),
                        &value.to_vec().unwrap(),
                    ));
                };
                let sigma = number(&golden, &format!("{time}.sigma"));
                let probe = &mut Probe::new(&mut see);
                let got = model.forward_probed(&session, (cond, &x, sigma), probe).unwrap();
                let velocity = format!("{case}.{time}.velocity");
                let has_velocity = close(&golden, &velocity, &got.to_vec().unwrap());
                let own = golden.names().filter(|name| name.starts_with(&format!("{case}.{time}.")));
                // The last normalisation is of the image alone, and attention in its own layout.
                let own = own.filter(|name| !name.contains("norm_out") && !name.contains("target_attention"));
                assert_eq!(seen + usize::from(has_velocity), own.count(), "{case} {time}");
            }
        }
    }
}

#[test]
fn texts_are_the_users_turn_without_pictures() {
    let reader = Reader::new(ENCODER, "qwen_image");
    assert_eq!(reader.model.encoder.key(), "qwen3vl_8b");
    for set in Set::all(FAMILY) {
        let golden = set.values("text");
        let (mut prompts, mut edits, mut compared) = (0, 0, 0);
        for case in set.cases["prompts"].as_array().unwrap() {
            let prompt = case["prompt"].as_str().unwrap();
            if case.get("image").is_none() {
                let (ids, encoded) = reader.encode_prompt(prompt);
                if close(&golden, &format!("p{prompts}.cond"), &encoded.cond.to_vec().unwrap()) {
                    check_ids(&golden, &format!("p{prompts}"), &ids);
                    compared += 1;
                }
                prompts += 1;
                continue;
            }
            let name = format!("e{edits}");
            edits += 1;
            if !golden.names().any(|known| known == format!("{name}.cond")) {
                continue;
            }
            let (ids, encoded) = edited(&reader, &golden, prompt, true);
            check_ids(&golden, &name, &ids);
            assert!(close(&golden, &format!("{name}.cond"), &encoded.cond.to_vec().unwrap()));
            assert_eq!(encoded.slots, slots(&golden, &format!("{name}.slots")));
            let (_, whole) = edited(&reader, &golden, prompt, false);
            close(&golden, &format!("{name}.cond_with_vision"), &whole.cond.to_vec().unwrap());
            compared += 1;
        }
        assert_eq!(compared, golden.names().filter(|name| name.ends_with(".cond")).count());
    }
}

/// A prompt about the stored picture; with or without the picture's own tokens.
fn edited(
    reader: &Reader,
    golden: &Golden,
    prompt: &str,
    leaves_out: bool,
) -> (Vec<u32>, models::text::Encoded) {
    let seen = [reader.look(&array(golden, "image"))];
    let text = reader.conversation(&format!("<image1>{PICTURE}{prompt}"));
    reader.encode_with(&text, &seen, leaves_out)
}

#[test]
fn the_tower_equals_the_reference_layer_by_layer() {
    for golden in Set::all(FAMILY).iter().map(|set| set.values("text")) {
        if !golden.names().any(|name| name == "image") {
            continue;
        }
        let file = checkpoint(ENCODER);
        let detected = detect(&file);
        let part = detected.parts_for(detect::Role::Vision).next().unwrap();
        let tower = models::vision::qwen3_tower::Qwen3Tower::read(&file, part).unwrap();
        let session = open_on_cpu(tower.manifest(&file).unwrap());
        let mut seen = 0;
        let mut see = |name: &str, value: &tensor::Tensor| {
            let name = name.replace("deepstack_merger_list", "deepstack");
            seen += usize::from(close(&golden, &format!("e0.visual.{name}"), &value.to_vec().unwrap()));
        };
        let picture = array(&golden, "image");
        let size = [picture.shape[0], picture.shape[1]];
        tower.look_probed(&session, size, &picture.values, &mut Probe::new(&mut see)).unwrap();
        assert_eq!(seen, golden.names().filter(|name| name.starts_with("e0.visual.")).count());
    }
}

#[test]
fn levels_and_whole_runs_equal_the_reference() {
    let (model, manifest) = model();
    let (session, reader) = (open_on_cpu(manifest), Reader::new(ENCODER, "qwen_image"));
    for set in Set::all(FAMILY) {
        check_simple_schedules(&set, &model.sampling());
        let golden = set.values("run");
        for case in ["t2i", "edit"] {
            let prefix = format!("{case}.");
            if !golden.names().any(|name| name.starts_with(&prefix)) {
                continue;
            }
            let about = &set.cases["run"][case];
            let prompts = set.cases["prompts"].as_array().unwrap();
            let cond = |which: &str| match about[which].as_u64() {
                Some(index) => reader.cond(prompts[index as usize]["prompt"].as_str().unwrap()),
                None => {
                    let index = usize::from(which == "negative");
                    let mut edits = prompts.iter().filter(|case| case.get("image").is_some());
                    let prompt = edits.nth(index).unwrap()["prompt"].as_str().unwrap();
                    let (_, encoded) = edited(&reader, &set.values("text"), prompt, true);
                    let reference = Arc::new(latent(&golden, "edit.reference_latent"));
                    Cond {
                        reference_latents: vec![reference],
                        reference_slots: encoded.slots.clone(),
                        ..cond_of(&encoded)
                    }
                }
            };
            let plan = StepPlan::new(about["steps"].as_u64().unwrap() as usize, 1.0);
            let sigmas = plan.sigmas(&model.sampling(), Scheduler::Simple, Sampler::Euler).unwrap();
            let conds = [cond("positive"), cond("negative")];
            let how = (about["cfg"].as_f64().unwrap(), sigmas);
            let result = check_run(&model, &session, conds.each_ref(), (&golden, &prefix), how);
            if golden.names().any(|name| name == format!("{prefix}image")) {
                assert!(close(&golden, &format!("{prefix}image"), &decoded(&result, None)));
            }
        }
    }
}

/// The autoencoder, which has the layout of another's.
fn autoencoder() -> (Wan, Session) {
    let checkpoint = checkpoint(VAE);
    let detected = detect(&checkpoint);
    let vae = Wan::read(&checkpoint, &detected.parts[0]).unwrap();
    let manifest = vae.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (vae, open_on_cpu(manifest))
}

/// A picture with transparency, 0 to 1, of a latent in the autoencoder's scale.
fn decoded(latent: &Latent, tiling: Option<Tiling>) -> Vec<f32> {
    let (vae, session) = autoencoder();
    let shape = Shape::new(latent.shape()).unwrap();
    let latent = session.lane().unwrap().tensor(shape, latent.values()).unwrap();
    let mut pictures = Vec::new();
    vae.decode(&session, &latent, tiling, &mut |values| {
        pictures.extend_from_slice(values);
        Ok(())
    })
    .unwrap();
    pictures
}

#[test]
fn the_autoencoder_equals_the_reference() {
    let (vae, session) = autoencoder();
    assert_eq!((vae.pixels_per_value(), vae.latent_channels()), (16, 64));
    assert_eq!((vae.frames_per_value(), vae.picture_channels()), (None, 4));
    for golden in Set::all(FAMILY).iter().map(|set| set.values("vae")) {
        let Scaling::PerChannel { means, deviations } = LATENT.scaling else { panic!("{LATENT:?}") };
        assert!(close(&golden, "mean", means) && close(&golden, "std", deviations));
        let sample = latent(&golden, "latent");
        let [batch, channels, height, width] = <[usize; 4]>::try_from(sample.shape()).unwrap();
        let shape = [batch, channels, 1, height, width];
        let on_device = session.lane().unwrap().tensor(shape, sample.values()).unwrap();
        let mut seen = 0;
        let mut see = |name: &str, value: &tensor::Tensor| {
            seen += usize::from(close(&golden, &format!("dec.{name}"), &value.to_vec().unwrap()));
        };
        vae.decode_probed(&session, &on_device, &mut Probe::new(&mut see), &mut |_| Ok(())).unwrap();
        assert_eq!(seen, 1);
        if !golden.names().any(|name| name == "decoded") {
            continue;
        }
        let signed: Vec<f32> = decoded(&sample, None).iter().map(|value| 2.0 * value - 1.0).collect();
        assert!(close(&golden, "decoded", &signed));
        for picture in ["rgb", "rgba"] {
            let (shape, values) = golden.tensor(picture).unwrap();
            let shape = <[usize; 4]>::try_from(shape.dims()).unwrap();
            let encoded = vae.encode(&session, &Pictures { shape, values: &values }, None).unwrap();
            assert!(close(&golden, &format!("encoded.{picture}"), &encoded.to_vec().unwrap()));
        }
    }
}

#[test]
fn pictures_are_encoded_one_by_one_and_in_tiles() {
    let (vae, session) = autoencoder();
    let values = testkit::random_f32(8, 2 * 48 * 32 * 4);
    let encode = |values: &[f32], count: usize, tiling| {
        let pictures = Pictures { shape: [count, 48, 32, 4], values };
        vae.encode(&session, &pictures, tiling).unwrap()
    };
    let both = encode(&values, 2, None);
    assert_eq!(both.dims(), [2, 64, 3, 2]);
    let half = values.len() / 2;
    let apart = [encode(&values[..half], 1, None), encode(&values[half..], 1, None)];
    let apart: Vec<f32> = apart.iter().flat_map(|latent| latent.to_vec().unwrap()).collect();
    assert_eq!(both.to_vec().unwrap(), apart);
    let tiling = Some(Tiling { tile: 4, overlap: 1, frames: None });
    Report::new("tiles", &encode(&values, 2, tiling).to_vec().unwrap(), &apart).assert(1e-6);
    let latent = Latent::new(vec![2, 64, 3, 2], apart).unwrap();
    Report::new("decoded", &decoded(&latent, tiling), &decoded(&latent, None)).assert(1e-6);
}

#[test]
fn placement_and_company_change_no_bit() {
    let (model, _) = model();
    let conds = texts([1, 12, 128]);
    let latents: [&[usize]; 2] = [&[1, 64, 4, 6], &[2, 64, 3, 5]];
    check_placements(&model, &checkpoint(MODEL), &conds, &latents);
    let picture = Arc::new(Latent::new(vec![1, 64, 4, 4], random_normal(9, 1024)).unwrap());
    let looking = conds.map(|cond| Cond {
        reference_latents: vec![Arc::clone(&picture), Arc::clone(&picture)],
        reference_slots: vec![3, 5],
        ..cond
    });
    check_placements(&model, &checkpoint(MODEL), &looking, &latents[..1]);
}

#[test]
fn what_stands_before_the_image_does_not_see_it() {
    let (model, manifest) = model();
    let session = open_on_cpu(manifest);
    let [cond, _] = texts([1, 12, 128]);
    let before = |seed: u64, time: f32| {
        let x = session.lane().unwrap().tensor([1, 64, 4, 6], &random_normal(seed, 1536)).unwrap();
        let mut last = Vec::new();
        let mut see = |name: &str, value: &tensor::Tensor| {
            if name == "transformer_blocks.1" {
                last = value.slice(1, 0, 12).unwrap().contiguous().unwrap().to_vec().unwrap();
            }
        };
        model.forward_probed(&session, (&cond, &x, time), &mut Probe::new(&mut see)).unwrap();
        last
    };
    assert_eq!(before(1, 0.9), before(2, 0.3));
    // Pictures without a place stand behind the text.
    let x = session.lane().unwrap().tensor([1, 64, 4, 6], &random_normal(5, 1536)).unwrap();
    let picture = Arc::new(Latent::new(vec![1, 64, 2, 4], random_normal(9, 512)).unwrap());
    let with = |slots: Vec<usize>| {
        let cond =
            Cond { reference_latents: vec![Arc::clone(&picture)], reference_slots: slots, ..cond.clone() };
        evaluate(&model, &session, &cond, (&x, 0.5), &[])
    };
    assert_eq!(with(vec![]), with(vec![12]));
    assert_ne!(with(vec![]), with(vec![4]));
}

#[test]
fn files_with_the_feed_forward_apart_give_the_same() {
    let whole = checkpoint(MODEL);
    let mut writer = SafetensorsWriter::new();
    for entry in whole.entries() {
        let (name, bytes) = (entry.name(), whole.bytes(entry));
        let Some(block) = name.strip_suffix("gate_up.weight") else {
            writer = writer.tensor(name, entry.encoding(), *entry.shape(), bytes);
            continue;
        };
        let (rows, half) = (entry.shape().dims()[0] / 2, bytes.len() / 2);
        let shape = entry.shape().with(0, rows);
        for (part, bytes) in [("gate_layer", &bytes[..half]), ("proj", &bytes[half..])] {
            writer =
                writer.tensor(format!("{block}{part}.weight"), Encoding::Plain(DType::BF16), shape, bytes);
        }
    }
    let bytes = writer.finish().unwrap();
    let apart = Checkpoint::from_memory(("apart", bytes.into()), Vec::new()).unwrap();
    let [cond, _] = texts([1, 12, 128]);
    let [one, other] = [&whole, &apart].map(|file| {
        let (model, manifest) = read(file);
        let session = open_on_cpu(manifest);
        let x = session.lane().unwrap().tensor([1, 64, 4, 6], &random_normal(5, 1536)).unwrap();
        evaluate(&model, &session, &cond, (&x, 0.5), &[])
    });
    assert_eq!(one, other);
}

#[test]
fn layers_have_the_names_of_training_programs() {
    let (model, manifest) = model();
    let weights: Vec<_> = manifest.weights().iter().map(|it| (it.name.clone(), it.shape)).collect();
    let map = model.patch_keys(&weights);
    let rows = |key: &str| {
        let target = map.find(key).unwrap_or_else(|| panic!("{key}"));
        (target.weight.clone(), target.rows.map(|rows| (rows.start, rows.len)))
    };
    let gate_up = "transformer_blocks.1.img_mlp.gate_up.weight".to_owned();
    assert_eq!(rows("diffusion_model.transformer_blocks.1.img_mlp.gate_up"), (gate_up.clone(), None));
    let apart =
        ["gate_layer", "proj"].map(|part| rows(&format!("transformer.transformer_blocks.1.img_mlp.{part}")));
    assert_eq!(apart, [(gate_up.clone(), Some((0, 768))), (gate_up, Some((768, 768)))]);
    let query = "transformer_blocks.0.attn.to_q.weight".to_owned();
    assert_eq!(rows("lora_unet_transformer_blocks_0_attn_to_q"), (query, None));
}
