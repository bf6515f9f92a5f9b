//! HunyuanVideo and HunyuanVideo 1.5 against the reference implementation, module by module, and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::PathBuf;
use std::sync::Arc;

use meta::Shape;
use models::conditioning::{Array, Cond, CondInput, Conditioned, Guidance, Scene};
use models::diffusion::hunyuan_video::HunyuanVideo;
use models::diffusion::{Diffusion, Evaluation, ForwardProbed};
use models::vae::video_kl::VideoKl;
use models::vae::{Autoencoder, FrameTiles, Pictures, Tiling};
use models::{Module, Probe, detect};
use patch::{PatchFile, PatchSet, apply};
use residency::Manifest;
use sampling::{Latent, LatentShape};
use support::transformers::{array, check_placements, missed_modules, texts};
use support::*;
use tensor::Tensor;
use testkit::{Golden, Report, random_normal};

const FIRST: &str = "hunyuan_video_tiny";
const LATER: &str = "hunyuan_video_15_tiny";
const LARGER: &str = "hunyuan_video_15_sr_tiny";
const LATER_VAE: &str = "hunyuan_video_15_vae_tiny";

/// A model and its manifest.
fn model(name: &str) -> (HunyuanVideo, Manifest) {
    let checkpoint = checkpoint(name);
    let detected = detect(&checkpoint);
    let model = HunyuanVideo::read(&checkpoint, &detected.parts[0]).unwrap();
    let manifest = model.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (model, manifest)
}

fn latent(seed: u64, shape: &[usize]) -> Arc<Latent> {
    Arc::new(Latent::new(shape.to_vec(), random_normal(seed, shape.iter().product())).unwrap())
}

#[test]
fn the_first_generation_equals_the_reference_in_every_module() {
    let (model, manifest) = model(FIRST);
    let config = model.config();
    assert_eq!((config.refiner_blocks, config.double_blocks, config.single_blocks), (2, 2, 2));
    let (golden, session) = (golden(FIRST), open_on_cpu(manifest));
    let cond = Cond::text(array(&golden, "context"), Some(array(&golden, "y")));
    let cond = Cond { guidance: Guidance::Scale(6.0), ..cond };
    let missed = missed_modules(
        &golden,
        &session,
        |latent, time, probe| model.forward_probed(&session, (&cond, latent, time), probe),
        |_| Vec::new(),
    );
    assert_eq!(missed, [""; 0]);
}

#[test]
fn letters_and_a_picture_equal_the_reference_in_every_module() {
    let (model, manifest) = model(LATER);
    let (golden, session) = (golden(LATER), open_on_cpu(manifest));
    let forward = |x: &Tensor, time: f32, probe: &mut Probe<'_>| {
        // The latent, what stands beside it in the model's scale, and where that is given.
        let part = |start: usize, len: usize| x.slice(1, start, len).unwrap().contiguous().unwrap();
        let host = |start: usize, len: usize, change: &dyn Fn(f32) -> f32| {
            let part = part(start, len);
            let values = part.to_vec().unwrap().into_iter().map(change).collect();
            Some(Arc::new(Latent::new(part.dims().to_vec(), values).unwrap()))
        };
        let cond = Cond {
            second_text: Some(Arc::new(array(&golden, "txt_byt5"))),
            vision: Some(Arc::new(array(&golden, "clip_fea"))),
            concat_latent: host(32, 32, &|value| value / 1.03682),
            concat_mask: host(64, 1, &|value| 1.0 - value),
            ..Cond::text(array(&golden, "context"), None)
        };
        model.forward_probed(&session, (&cond, &part(0, 32), time), probe)
    };
    assert_eq!(missed_modules(&golden, &session, forward, |_| Vec::new()), [""; 0]);
}

#[test]
fn a_video_made_larger_equals_diffusers_with_and_without_a_landing() {
    let (model, manifest) = model(LARGER);
    assert!(model.config().jumps && model.takes().contains(&CondInput::NoiseAugmentation));
    let (golden, session) = (golden(LARGER), open_on_cpu(manifest));
    // Without noise three quarters of the video are kept; the values here are those behind that.
    let mut beside = array(&golden, "beside").values;
    let (start, end) = (33 * 16, 65 * 16);
    beside[start..end].iter_mut().for_each(|value| *value /= 0.75);
    let cond = Cond {
        second_text: Some(Arc::new(array(&golden, "letters"))),
        vision: Some(Arc::new(array(&golden, "vision"))),
        concat_latent: Some(Arc::new(Latent::new(vec![1, 66, 2, 4, 2], beside).unwrap())),
        ..Cond::text(array(&golden, "text"), None)
    };
    let x = session.lane().unwrap().tensor([1, 32, 2, 4, 2], &array(&golden, "x").values).unwrap();
    let evaluated = |times: &[f32]| {
        let scene = Scene { times, ..Scene::empty(LatentShape::sized(x.dims()).unwrap()) };
        let run = model.start(&session, &[Conditioned::whole(&cond)], &scene).unwrap();
        run.forward(&[Evaluation::new(0, &x, 700.0)]).unwrap()[0].to_vec().unwrap()
    };
    let (shape, _) = golden.tensor("alone").unwrap();
    // An evaluation that no step begins at lands nowhere.
    for (name, times) in [("alone", &[][..]), ("alone", &[900.0, 300.0]), ("landing", &[900.0, 700.0, 300.0])]
    {
        golden.assert_close(name, &shape, &evaluated(times), 1e-5);
    }
    let conds = texts([1, 12, 256]).map(|cond| Cond {
        concat_latent: Some(latent(4, &[1, 66, 2, 4, 4])),
        noise_augmentation: Some(0.7),
        ..cond
    });
    check_placements(&model, &checkpoint(LARGER), &conds, &[&[1, 32, 2, 4, 4]]);
}

#[test]
fn placement_and_company_change_no_bit() {
    let (first, _) = model(FIRST);
    let conds = texts([1, 12, 256]);
    let latents: [&[usize]; 2] = [&[1, 16, 2, 6, 4], &[2, 16, 1, 5, 7]];
    check_placements(&first, &checkpoint(FIRST), &conds, &latents);
    let guided = conds.clone().map(|cond| Cond { guiding_frame: Some(0.0), ..cond });
    check_placements(&first, &checkpoint(FIRST), &guided, &latents[..1]);
    let looking = conds.map(|cond| Cond { reference_latents: vec![latent(7, &[1, 16, 1, 6, 4])], ..cond });
    check_placements(&first, &checkpoint(FIRST), &looking, &latents[..1]);
    let (later, _) = model(LATER);
    let more = |width: usize| {
        Some(Arc::new(Array { shape: vec![1, 5, width], values: random_normal(3, 5 * width) }))
    };
    let [one, two] = texts([1, 12, 256]);
    // One reads letters, the other does not, so they are two batches.
    let conds = [
        Cond { vision: more(1152), second_text: more(1472), ..one },
        Cond { vision: more(1152), concat_latent: Some(latent(8, &[1, 32, 2, 4, 4])), ..two },
    ];
    check_placements(&later, &checkpoint(LATER), &conds, &[&[1, 32, 2, 4, 4]]);
}

#[test]
fn a_frame_with_a_time_of_its_own_and_a_picture_to_look_at_change_the_result() {
    let (model, manifest) = model(FIRST);
    let session = open_on_cpu(manifest);
    let [cond, _] = texts([1, 12, 256]);
    let x = session.lane().unwrap().tensor([1, 16, 2, 4, 4], &random_normal(1, 512)).unwrap();
    let with = |cond: &Cond| {
        model.forward_probed(&session, (cond, &x, 700.0), &mut Probe::none()).unwrap().to_vec().unwrap()
    };
    let plain = with(&cond);
    // A frame whose time is that of the others is as they are.
    let same = with(&Cond { guiding_frame: Some(700.0), ..cond.clone() });
    Report::new("the same time", &same, &plain).assert(1e-6);
    assert_ne!(with(&Cond { guiding_frame: Some(0.0), ..cond.clone() }), plain);
    assert_ne!(with(&Cond { reference_latents: vec![latent(2, &[1, 16, 1, 4, 4])], ..cond.clone() }), plain);
    let narrow = Cond::text(Array::zeros(&[1, 4, 64]), None);
    let error = model.forward_probed(&session, (&narrow, &x, 1.0), &mut Probe::none()).unwrap_err();
    assert!(error.to_string().contains("[1 or 1, tokens, 256]"), "{error}");
}

/// Every `max(1, dim / 16)`-th row and column of a weight seen as `[out, rest]`.
fn sampled(shape: &Shape, values: &[f32]) -> Vec<f32> {
    let rows = shape.dims()[0];
    let columns = values.len() / rows;
    let (row_step, column_step) = ((rows / 16).max(1), (columns / 16).max(1));
    let kept = (0..rows).step_by(row_step);
    kept.flat_map(|r| (0..columns).step_by(column_step).map(move |c| values[r * columns + c])).collect()
}

#[test]
fn lora_files_change_weights_as_in_the_reference() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    let Ok(golden) = Golden::open(folder.join("lora_more.safetensors")) else { return };
    let (model, manifest) = model(FIRST);
    let weights: Vec<(String, Shape)> =
        manifest.weights().iter().map(|weight| (weight.name.clone(), weight.shape)).collect();
    let map = model.patch_keys(&weights);
    let session = open_on_cpu(manifest);
    let lane = session.lane().unwrap();
    for style in ["diffusion_pipe", "kohya"] {
        let file = folder.join(format!("manifests/{FIRST}_lora_{style}.json"));
        let bytes = testkit::Manifest::open(file).unwrap().bytes().unwrap();
        let file = checkpoint::Checkpoint::from_memory((style, bytes.into()), Vec::new()).unwrap();
        let mut set = PatchSet::new();
        set.add(&PatchFile::read(&file).unwrap(), &map, 1.0).unwrap();
        assert_eq!(set.unmatched(), [""; 0]);
        let start = format!("{FIRST}.{style}.1.0.weight.diffusion_model.");
        let keys: Vec<&str> = golden.names().filter(|name| name.starts_with(&start)).collect();
        assert!(keys.len() > 2, "{keys:?}");
        for key in keys {
            // The reference has the names of later releases, and so has the model.
            let name = &key[start.len()..];
            let lease = (0..session.manifest().blocks().len())
                .map(|block| session.lease(block).unwrap())
                .find(|lease| lease.find(name).unwrap().is_some())
                .unwrap();
            let before = lane.unpack(&lease.weight(name).unwrap()).unwrap();
            let after = apply(lane, &before, set.patches(name)).unwrap().to_vec().unwrap();
            let want = golden.tensor(key).unwrap().1;
            Report::new(key, &sampled(before.shape(), &after), &want).assert(1e-6);
            assert_ne!(after, before.to_vec().unwrap(), "{key}");
        }
    }
}

#[test]
fn the_autoencoder_that_folds_equals_the_reference() {
    let (file, golden) = (checkpoint(LATER_VAE), golden(LATER_VAE));
    let detected = detect(&file);
    let model = VideoKl::read(&file, &detected.parts[0]).unwrap();
    let manifest = model.manifest(&file).unwrap();
    // The reference's files have layers for a time that nothing tells them.
    let unused = detected.parts[0].unused(&file, &manifest);
    assert!(unused.iter().all(|name| name.contains(".temb_proj.")), "{unused:?}");
    let session = open_on_cpu(manifest);
    assert_eq!(
        (model.pixels_per_value(), model.frames_per_value(), model.latent_channels()),
        (16, Some(4), 32)
    );
    let input = golden.input("decode.input").unwrap();
    let latent = session.lane().unwrap().tensor(input.shape, &input.values()).unwrap();
    let decoded = |tiling: Option<Tiling>| {
        let mut pictures = Vec::new();
        let mut take = |values: &[f32]| {
            pictures.extend_from_slice(values);
            Ok(())
        };
        model.decode(&session, &latent, tiling, &mut take).unwrap();
        pictures
    };
    let (shape, _) = golden.tensor("decode.image").unwrap();
    let video = decoded(None);
    golden.assert_close("decode.image", &shape, &video, 1e-5);
    let (shape, pixels) = golden.tensor("encode.pixels").unwrap();
    let pictures = Pictures { shape: <[usize; 4]>::try_from(shape.dims()).unwrap(), values: &pixels };
    let encoded = model.encode(&session, &pictures, None).unwrap();
    golden.assert_close("encode.latent", encoded.shape(), &encoded.to_vec().unwrap(), 1e-5);
    // One tile that covers all is the whole.
    let tiling = Tiling { tile: 8, overlap: 2, frames: Some(FrameTiles { tile: 4, overlap: 1 }) };
    Report::new("decode", &decoded(Some(tiling)), &video).assert(1e-6);
}
