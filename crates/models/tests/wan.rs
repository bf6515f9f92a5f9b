//! Wan 2.1 and 2.2 against the reference implementation, module by module, and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use meta::{DeviceId, Shape};
use models::conditioning::{Array, Cond, Conditioned, Scene, VideoControl};
use models::diffusion::wan::{SteeringVideo, Wan, WanInputs};
use models::diffusion::{Alteration, Amount, Diffusion, Evaluation, Placed};
use models::{Module, Probe, detect};
use patch::{PatchFile, PatchSet, apply};
use placement::RemotePolicy;
use residency::{Manifest, Residency, Session};
use sampling::{Latent, LatentShape};
use support::*;
use tensor::Tensor;
use testkit::{Golden, Report, random_normal};

const TOLERANCE: f64 = 1e-5;

/// A model and its manifest.
fn model(name: &str) -> (Wan, Manifest) {
    let checkpoint = checkpoint(name);
    let detected = detect(&checkpoint);
    let model = Wan::read(&checkpoint, &detected.parts[0]).unwrap();
    let manifest = model.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (model, manifest)
}

/// The golden's inputs on a device, beyond the noisy latent.
fn input(golden: &Golden, session: &Session, name: &str) -> Tensor {
    let input = golden.input(name).unwrap();
    session.lane().unwrap().tensor(input.shape, &input.values()).unwrap()
}

/// Runs a model and compares every module that both sides name; which they were.
fn compare_modules(
    model: &Wan,
    session: &Session,
    golden: &Golden,
    inputs: &WanInputs<'_>,
) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut see = |name: &str, value: &Tensor| {
        let stored = format!("out.{name}");
        let values = || value.to_vec().unwrap();
        // Modulations stand apart by their times there, and the first call of a module is the one that was kept.
        let Some(shape) = golden.shape(&stored).unwrap().filter(|_| !seen.contains(name)) else { return };
        if shape.count() == value.shape().count() {
            golden.assert_close(&stored, &shape, &values(), TOLERANCE);
            seen.insert(name.to_owned());
        }
    };
    let output = model.forward_probed(session, inputs, &mut Probe::new(&mut see)).unwrap();
    golden.assert_close("output", output.shape(), &output.to_vec().unwrap(), TOLERANCE);
    seen
}

/// The modules of which the golden file has results, but for the rotations, which are kept as tables here.
fn golden_modules(golden: &Golden) -> BTreeSet<String> {
    let module = |name: &str| {
        let name = name.strip_prefix("out.")?;
        let pieces = [".rows", ".cols", ".rms"];
        let name = pieces.iter().find_map(|piece| name.strip_suffix(piece)).unwrap_or(name);
        (name != "rope_embedder").then(|| name.to_owned())
    };
    golden.names().filter_map(module).collect()
}

/// Runs the golden's inputs: all modules must be the same.
fn check(name: &str, model: &Wan, session: &Session, golden: &Golden) {
    let (x, context) = (input(golden, session, "x"), input(golden, session, "context"));
    let channels = model.config().channels;
    // The latent, then what stands beside it.
    let latent = x.slice(1, 0, channels).unwrap().contiguous().unwrap();
    let time = golden.metadata("timestep").unwrap();
    let mut inputs = WanInputs::new(&latent, time.parse().unwrap_or(1.0), &context);
    let vision = model.config().vision.map(|_| input(golden, session, "clip_fea"));
    inputs.vision = vision.as_ref();
    if x.dim(1) > channels {
        let beside = x.slice(1, channels, x.dim(1) - channels).unwrap();
        inputs.concat = Some(beside.contiguous().unwrap());
    }
    if model.config().control.is_some() {
        let frames = input(golden, session, "vace_context");
        let [_, _, channels, count, height, width] = <[usize; 6]>::try_from(frames.dims()).unwrap();
        let frames = frames.reshape([1, channels, count, height, width]).unwrap();
        let strength = golden.metadata("vace_strength").unwrap().parse().unwrap();
        inputs.controls = vec![SteeringVideo { frames, strength }];
    }
    if time.starts_with('[') {
        let times = time.trim_matches(['[', ']']).split(", ").map(|time| time.parse().unwrap());
        inputs.times = Some(times.collect());
    }
    let seen = compare_modules(model, session, golden, &inputs);
    // What a block beside the others adds has two names there.
    let named = |name: &&String| !(name.starts_with("vace_blocks.") && name.ends_with(".0"));
    let modules = golden_modules(golden);
    let unseen: Vec<&String> = modules.difference(&seen).filter(named).collect();
    assert_eq!(unseen, [""; 0], "{name}");
}

#[test]
fn image_to_video_equals_the_reference_in_every_module() {
    let (model, manifest) = model("wan2.1_i2v_tiny");
    assert_eq!((model.config().blocks, model.config().heads, model.config().channels), (2, 2, 16));
    check("wan2.1_i2v_tiny", &model, &open_on_cpu(manifest), &golden("wan2.1_i2v_tiny"));
}

/// A case of the shared folder of reference values, if it is beside the project.
fn shared(name: &str) -> Option<(Golden, checkpoint::Checkpoint)> {
    let folder = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    let golden = Golden::open(folder.join(format!("forward/{name}.safetensors"))).ok()?;
    let manifest = testkit::Manifest::open(folder.join(format!("manifests/{name}.json"))).ok()?;
    let bytes = manifest.bytes().unwrap();
    Some((golden, checkpoint::Checkpoint::from_memory((name, bytes.into()), Vec::new()).unwrap()))
}

#[test]
fn text_to_video_vace_and_times_of_frames_equal_the_reference() {
    for name in ["wan2.1_t2v_tiny", "wan2.1_vace_tiny", "wan2.2_ti2v_5B_tiny"] {
        let Some((golden, checkpoint)) = shared(name) else { continue };
        let model = Wan::read(&checkpoint, &detect(&checkpoint).parts[0]).unwrap();
        let session = open_on_cpu(model.manifest(&checkpoint).unwrap());
        check(name, &model, &session, &golden);
    }
}

/// Conditionings of two texts, with all that a model has a use for.
fn conds(model: &Wan, [frames, height, width]: [usize; 3]) -> [Cond; 2] {
    let latent = |seed: u64, channels: usize, frames: usize| {
        let shape = vec![1, channels, frames, height, width];
        let values = random_normal(seed, shape.iter().product());
        Some(Arc::new(Latent::new(shape, values).unwrap()))
    };
    let config = model.config();
    [1, 2].map(|seed| {
        let text = Array { shape: vec![1, 12, 4096], values: random_normal(seed, 12 * 4096) };
        let mut cond = Cond::text(text, None);
        if config.in_channels > 16 {
            cond.concat_latent = latent(seed + 2, 16, frames);
            cond.concat_mask = latent(seed + 4, 1, frames);
        }
        if let Some(vision) = config.vision {
            let values = random_normal(seed + 6, 20 * vision.width);
            cond.vision = Some(Arc::new(Array { shape: vec![1, 20, vision.width], values }));
        }
        if let Some(control) = config.control {
            let (frames, mask) =
                (latent(seed + 8, 32, frames), latent(seed + 9, control.channels - 32, frames));
            let strength = seed as f32;
            cond.controls = vec![VideoControl { frames: frames.unwrap(), mask: mask.unwrap(), strength }];
        }
        if config.in_channels == 16 && config.control.is_none() {
            cond.frames_behind = latent(seed + 10, 16, 1);
        }
        cond
    })
}

/// Two evaluations of one step with texts of their own, as bits.
fn step(model: &Wan, session: &Session, [batch, frames, height, width]: [usize; 4]) -> Vec<Vec<u32>> {
    let conds = conds(model, [frames, height, width]);
    let conditioned = conds.each_ref().map(|cond| Conditioned { cond, window: None, is_negative: false });
    let shape = LatentShape { batch, channels: 16, frames, height, width };
    let run = model.start(session, &conditioned, &Scene::empty(shape)).unwrap();
    let values = random_normal(5, shape.values());
    let latent = session.lane().unwrap().tensor([batch, 16, frames, height, width], &values).unwrap();
    let both = [0, 1].map(|cond| Evaluation::new(cond, &latent, 640.0));
    let bits = |tensor: &Tensor| tensor.to_vec().unwrap().iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    let together: Vec<Vec<u32>> = run.forward(&both).unwrap().iter().map(bits).collect();
    assert_ne!(together[0], together[1]);
    // Each by itself gives the same bits, and a second step needs nothing that the first has used up.
    for (evaluation, expected) in both.iter().zip(&together) {
        assert!(bits(&run.forward(std::slice::from_ref(evaluation)).unwrap()[0]) == *expected);
    }
    together
}

#[test]
fn placement_and_company_change_no_bit() {
    for name in ["wan2.1_t2v_tiny", "wan2.1_i2v_tiny", "wan2.1_vace_tiny"] {
        let Some((_, file)) = shared(name) else { continue };
        let model = Wan::read(&file, &detect(&file).parts[0]).unwrap();
        for size in [[1, 2, 6, 4], [2, 1, 5, 7]] {
            let expected = step(&model, &open_on_cpu(model.manifest(&file).unwrap()), size);
            for text in ["sim:0,1%;cpu,99%", "sim:0,50%;sim:1,50%"] {
                let remote = if text.contains("sim:1") { RemotePolicy::InPlace } else { RemotePolicy::Auto };
                let residency = Residency::new(machine(&["512mb@20gbps"; 2]));
                let manifest = model.manifest(&file).unwrap();
                let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), text, remote);
                let session = open(&residency, manifest, plan);
                assert!(step(&model, &session, size) == expected, "{name} {size:?} {text}");
            }
        }
    }
}

#[test]
fn names_of_patches_are_the_models_own() {
    let (model, manifest) = model("wan2.1_t2v_tiny");
    let weights: Vec<(String, Shape)> =
        manifest.weights().iter().map(|weight| (weight.name.clone(), weight.shape)).collect();
    let map = model.patch_keys(&weights);
    for key in ["lora_unet_blocks_0_cross_attn_k", "diffusion_model.blocks.0.cross_attn.k"] {
        assert_eq!(map.find(key).unwrap().weight, "blocks.0.cross_attn.k.weight", "{key}");
    }
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
    let folder = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    let Ok(golden) = Golden::open(folder.join("lora_more.safetensors")) else { return };
    let (model, manifest) = model("wan2.1_t2v_tiny");
    let weights: Vec<(String, Shape)> =
        manifest.weights().iter().map(|weight| (weight.name.clone(), weight.shape)).collect();
    let (map, session) = (model.patch_keys(&weights), open_on_cpu(manifest));
    let (lane, stored) = (session.lane().unwrap(), testkit::Manifest::bundled("wan2.1_t2v_tiny").unwrap());
    for style in ["diffusion_model", "kohya"] {
        let file = folder.join(format!("manifests/wan21_t2v_tiny_lora_{style}.json"));
        let bytes = testkit::Manifest::open(file).unwrap().bytes().unwrap();
        let file = checkpoint::Checkpoint::from_memory((style, bytes.into()), Vec::new()).unwrap();
        let mut set = PatchSet::new();
        set.add(&PatchFile::read(&file).unwrap(), &map, 1.0).unwrap();
        assert_eq!(set.unmatched(), [""; 0]);
        let start = format!("wan21_t2v_tiny.{style}.1.0.weight.diffusion_model.");
        let keys: Vec<&str> = golden.names().filter(|name| name.starts_with(&start)).collect();
        assert!(keys.len() > 2, "{keys:?}");
        for key in keys {
            let weight = stored.tensor(&key[start.len()..]).unwrap();
            let before = lane.tensor_f32(weight.shape, &weight.values().unwrap()).unwrap();
            let after = apply(lane, &before, set.patches(&key[start.len()..])).unwrap().to_vec().unwrap();
            let want = golden.tensor(key).unwrap().1;
            Report::new(key, &sampled(&weight.shape, &after), &want).assert(1e-6);
            assert_ne!(after, before.to_vec().unwrap(), "{key}");
        }
    }
}

#[test]
fn what_does_not_fit_is_told() {
    let (model, manifest) = model("wan2.1_t2v_tiny");
    let session = open_on_cpu(manifest);
    let lane = session.lane().unwrap();
    let context = lane.full([1, 4, 4096], 0.0).unwrap();
    let latent = lane.full([1, 4, 1, 4, 4], 0.0).unwrap();
    let told = |inputs: &WanInputs<'_>| {
        model.forward_probed(&session, inputs, &mut Probe::none()).unwrap_err().to_string()
    };
    assert!(told(&WanInputs::new(&latent, 1.0, &context)).contains("16 channels"));
    let latent = lane.full([1, 16, 1, 4, 4], 0.0).unwrap();
    let narrow = lane.full([1, 4, 64], 0.0).unwrap();
    assert!(told(&WanInputs::new(&latent, 1.0, &narrow)).contains("[1 or 1, tokens, 4096]"));
    let mut inputs = WanInputs::new(&latent, 1.0, &context);
    inputs.behind = Some(lane.full([1, 16, 1, 6, 4], 0.0).unwrap());
    assert!(told(&inputs).contains("pictures behind the video"));
}

#[test]
fn positions_may_be_scaled_and_moved() {
    let (model, manifest) = model("wan2.1_t2v_tiny");
    let session = open_on_cpu(manifest);
    let shape = LatentShape { batch: 1, channels: 16, frames: 2, height: 4, width: 6 };
    let text = Array { shape: vec![1, 8, 4096], values: random_normal(1, 8 * 4096) };
    let cond = Cond::text(text, None);
    let run = model.start(&session, &[Conditioned::whole(&cond)], &Scene::empty(shape)).unwrap();
    let latent = session.lane().unwrap().tensor([1, 16, 2, 4, 6], &random_normal(2, 768)).unwrap();
    let with = |placed: Option<Placed>| {
        let altered: Vec<Alteration> = placed.map(Alteration::Placed).into_iter().collect();
        assert!(altered.iter().all(|alteration| model.knows(alteration)));
        let evaluation = Evaluation { altered: &altered, ..Evaluation::new(0, &latent, 640.0) };
        run.forward(&[evaluation]).unwrap()[0].to_vec().unwrap()
    };
    let plain = with(None);
    assert_eq!(with(Some(Placed::COUNTED)), plain);
    // Tokens attend by the way from one to the other, which a common shift leaves as it is.
    let moved = Placed { shift: [Amount(3.0), Amount(-2.5), Amount(7.0)], ..Placed::COUNTED };
    Report::new("moved", &with(Some(moved)), &plain).assert(1e-5);
    for axis in 0..3 {
        let mut placed = Placed::COUNTED;
        placed.scale[axis] = Amount(7.0);
        assert!(!Report::new("scaled", &with(Some(placed)), &plain).passes(1e-3), "{axis}");
    }
}
