//! The UNet against the reference implementation, module by module, on every placement, and under diffusers' names.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;

use checkpoint::Checkpoint;
use meta::DeviceId;
use models::conditioning::{Array, Cond, Conditioned, Scene};
use models::detect::Layout;
use models::diffusion::unet::{Unet, UnetInputs};
use models::diffusion::{ControlResiduals, Diffusion, Evaluation, sd15, svd};
use models::{Module, Probe, detect};
use placement::RemotePolicy;
use residency::{Manifest, Residency, Session};
use sampling::LatentShape;
use support::*;
use tensor::Tensor;
use testkit::{Golden, random_normal};

/// What the reference's own repetitions stay well below, and a wrong formula far above.
const TOLERANCE: f64 = 1e-4;

/// The model and its manifest.
fn model(file: &Checkpoint) -> (Unet, Manifest) {
    let detected = detect(file);
    let model = sd15::read(file, &detected.parts[0]).unwrap();
    let manifest = model.manifest(file).unwrap();
    assert_eq!(detected.parts[0].unused(file, &manifest), [""; 0]);
    (model, manifest)
}

/// Runs the golden's inputs and compares every module that both sides name; which they were.
fn compare_modules(model: &Unet, session: &Session, golden: &Golden) -> BTreeSet<String> {
    let lane = session.lane().unwrap();
    let input = |name: &str| {
        let input = golden.input(name).unwrap();
        lane.tensor(input.shape, &input.values()).unwrap()
    };
    let (latent, context) = (input("x"), input("context"));
    let vector = golden.input("y").ok().map(|_| input("y"));
    let time = golden.metadata("timestep").unwrap().parse().unwrap();
    let inputs = UnetInputs { latent: &latent, time, context: &context, vector: vector.as_ref() };
    let mut seen = BTreeSet::new();
    let mut see = |name: &str, value: &Tensor| {
        let stored = format!("out.{name}");
        // The reference embeds the time once for each item.
        let rows = if name == "time_embed" { latent.dim(0) } else { value.dim(0) };
        let value = value.broadcast(value.shape().with(0, rows)).unwrap();
        if golden.names().any(|n| n == stored || n == format!("{stored}.rms")) {
            golden.assert_close(&stored, value.shape(), &value.to_vec().unwrap(), TOLERANCE);
            seen.insert(name.to_owned());
        }
    };
    let output = model.forward_probed(session, &inputs, &mut Probe::new(&mut see)).unwrap();
    golden.assert_close("output", output.shape(), &output.to_vec().unwrap(), TOLERANCE);
    seen
}

#[test]
fn every_module_of_a_model_with_frames_equals_the_reference() {
    let mut manifest = testkit::Manifest::bundled("svd_micro").unwrap();
    manifest.tensors.retain(|tensor| tensor.name.starts_with("model.diffusion_model."));
    let bytes = manifest.bytes().unwrap();
    let file = Checkpoint::from_memory(("svd", bytes.into()), Vec::new()).unwrap();
    let detected = detect(&file);
    assert_eq!(detected.name(), Some("SVD"));
    let model = svd::read(&file, &detected.parts[0]).unwrap();
    let manifest = model.manifest(&file).unwrap();
    assert_eq!(detected.parts[0].unused(&file, &manifest), [""; 0]);
    assert!(model.config().has_frames);
    let golden = golden("svd_micro");
    let seen = compare_modules(&model, &open_on_cpu(manifest), &golden);
    assert_eq!(golden_modules(&golden).difference(&seen).collect::<Vec<_>>(), [""; 0]);
}

/// The modules of which the golden file has results.
fn golden_modules(golden: &Golden) -> BTreeSet<String> {
    let module = |name: &str| {
        let name = name.strip_prefix("out.")?;
        let pieces = [".channels", ".mean", ".rms"];
        Some(pieces.iter().find_map(|piece| name.strip_suffix(piece)).unwrap_or(name).to_owned())
    };
    golden.names().filter_map(module).collect()
}

#[test]
fn every_module_equals_the_reference() {
    let (model, manifest) = model(&checkpoint("sd15_micro"));
    assert_eq!((model.config().in_channels, model.config().context_width), (4, 768));
    let golden = golden("sd15_micro");
    let seen = compare_modules(&model, &open_on_cpu(manifest), &golden);
    assert_eq!(golden_modules(&golden).difference(&seen).collect::<Vec<_>>(), [""; 0]);
}

/// What diffusers calls a tensor of a model with levels of two units, the last without transformers.
fn diffusers_name(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let residual = |rest: &[&str]| {
        let layer = match rest[..2].join(".").as_str() {
            "in_layers.0" => "norm1",
            "in_layers.2" => "conv1",
            "emb_layers.1" => "time_emb_proj",
            "out_layers.0" => "norm2",
            "out_layers.3" => "conv2",
            _ => return format!("conv_shortcut.{}", rest[1]),
        };
        format!("{layer}.{}", rest[2])
    };
    let number = |at: usize| parts[at].parse::<usize>().unwrap();
    match parts[0] {
        "time_embed" => format!("time_embedding.linear_{}.{}", number(1) / 2 + 1, parts[2]),
        "out" if parts[1] == "0" => format!("conv_norm_out.{}", parts[2]),
        "out" => format!("conv_out.{}", parts[2]),
        "input_blocks" if parts[1] == "0" => format!("conv_in.{}", parts[3]),
        "input_blocks" => {
            let (level, at) = ((number(1) - 1) / 3, (number(1) - 1) % 3);
            match (at, parts[2]) {
                (2, _) => format!("down_blocks.{level}.downsamplers.0.conv.{}", parts[4]),
                (_, "0") => format!("down_blocks.{level}.resnets.{at}.{}", residual(&parts[3..])),
                _ => format!("down_blocks.{level}.attentions.{at}.{}", parts[3..].join(".")),
            }
        }
        "middle_block" if parts[1] == "1" => format!("mid_block.attentions.0.{}", parts[2..].join(".")),
        "middle_block" => format!("mid_block.resnets.{}.{}", number(1) / 2, residual(&parts[2..])),
        _ => {
            let (level, at) = (number(1) / 3, number(1) % 3);
            match (parts[2], parts[3]) {
                ("0", _) => format!("up_blocks.{level}.resnets.{at}.{}", residual(&parts[3..])),
                (_, "conv") => format!("up_blocks.{level}.upsamplers.0.conv.{}", parts[4]),
                _ => format!("up_blocks.{level}.attentions.{at}.{}", parts[3..].join(".")),
            }
        }
    }
}

#[test]
fn diffusers_names_mean_the_same_tensors() {
    let native = checkpoint("sd15_micro");
    let (model, manifest) = model(&native);
    let mut renamed = testkit::Manifest::bundled("sd15_micro").unwrap();
    for tensor in &mut renamed.tensors {
        tensor.name = diffusers_name(&tensor.name);
    }
    let bytes = renamed.bytes().unwrap();
    let renamed = Checkpoint::from_memory(("renamed", bytes.into()), Vec::new()).unwrap();
    let detected = detect(&renamed);
    assert_eq!((&*detected.parts[0].name, detected.parts[0].layout), ("SD1.5", Layout::Diffusers));
    let (other, theirs) = self::model(&renamed);
    assert_eq!(model.config(), other.config());
    let names = |manifest: &Manifest| -> Vec<String> {
        manifest.weights().iter().map(|weight| weight.name.clone()).collect()
    };
    assert_eq!(names(&manifest), names(&theirs));
}

fn array(seed: u64, shape: &[usize]) -> Array {
    Array { shape: shape.to_vec(), values: random_normal(seed, shape.iter().product()) }
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec().unwrap().iter().map(|v| v.to_bits()).collect()
}

/// Two evaluations of one step with texts of their own, as bits.
fn step(
    model: &Unet,
    session: &Session,
    latent: [usize; 4],
    control: Option<&ControlResiduals>,
) -> Vec<Vec<u32>> {
    let conds = [1, 2].map(|seed| Cond::text(array(seed, &[1, 12, 768]), None));
    let conditioned = conds.each_ref().map(Conditioned::whole);
    let [batch, channels, height, width] = latent;
    let shape = LatentShape { batch, channels, frames: 1, height, width };
    let run = model.start(session, &conditioned, &Scene::empty(shape)).unwrap();
    let values = random_normal(5, latent.iter().product());
    let latent = session.lane().unwrap().tensor(latent, &values).unwrap();
    let both = [0, 1].map(|cond| Evaluation { control, ..Evaluation::new(cond, &latent, 640.0) });
    let together: Vec<Vec<u32>> = run.forward(&both).unwrap().iter().map(bits).collect();
    // Each by itself gives the same bits, and a second step needs nothing that the first has used up.
    for (evaluation, expected) in both.iter().zip(&together) {
        assert!(bits(&run.forward(std::slice::from_ref(evaluation)).unwrap()[0]) == *expected);
    }
    together
}

#[test]
fn placement_and_company_change_no_bit() {
    let file = checkpoint("sd15_micro");
    let (model, _) = model(&file);
    let manifest = || model.manifest(&file).unwrap();
    // Odd sizes come back as they were, and a large one runs as one batch.
    for latent in [[1, 4, 8, 8], [2, 4, 19, 26]] {
        let expected = step(&model, &open_on_cpu(manifest()), latent, None);
        assert_eq!(expected[0].len(), latent.iter().product::<usize>());
        for text in ["sim:0,1%;cpu,99%", "sim:0,50%;sim:1,50%"] {
            for remote in [RemotePolicy::Stream, RemotePolicy::InPlace] {
                let residency = Residency::new(machine(&["2gb@5gbps", "2gb@5gbps"]));
                let plan = plan(&manifest(), residency.devices(), DeviceId::sim(0), text, remote);
                let session = open(&residency, manifest(), plan);
                assert!(step(&model, &session, latent, None) == expected, "{text} {remote:?} {latent:?}");
            }
        }
    }
}

#[test]
fn control_is_added_where_the_ways_meet() {
    let file = checkpoint("sd15_micro");
    let (model, manifest) = model(&file);
    let session = open_on_cpu(manifest);
    let lane = session.lane().unwrap();
    let residual = |shape: [usize; 4], value: f32| {
        Some(lane.tensor(shape, &vec![value; shape.iter().product()]).unwrap())
    };
    let latent = [1, 4, 24, 24];
    let plain = step(&model, &session, latent, None);
    let nothing = ControlResiduals { input: vec![None; 12], middle: vec![None], output: vec![None; 12] };
    assert!(step(&model, &session, latent, Some(&nothing)) == plain);
    // What the first block on the way in keeps reaches the last block on the way out only.
    let mut kept = nothing.clone();
    kept.output[0] = residual([1, 64, 24, 24], 0.5);
    let last = vec![residual([1, 256, 3, 3], 0.5)];
    let short = ControlResiduals { output: last, ..ControlResiduals::default() };
    let mut middle = nothing.clone();
    middle.middle[0] = residual([1, 256, 3, 3], 0.5);
    let mut input = nothing.clone();
    input.input[0] = residual([1, 64, 24, 24], 0.5);
    let all = [&kept, &short, &middle, &input].map(|control| step(&model, &session, latent, Some(control)));
    for (index, one) in all.iter().enumerate() {
        assert!(*one != plain, "{index}");
        assert!(all[..index].iter().all(|other| other != one), "{index}");
    }
    // The end of the list belongs to the first block on the way out, however short the list is.
    let mut long = nothing.clone();
    long.output[11] = residual([1, 256, 3, 3], 0.5);
    assert!(step(&model, &session, latent, Some(&long)) == all[1]);
}

#[test]
fn what_does_not_fit_is_told() {
    let (model, manifest) = model(&checkpoint("sd15_micro"));
    let session = open_on_cpu(manifest);
    let lane = session.lane().unwrap();
    let tensor = |shape: &[usize]| {
        let shape = meta::Shape::new(shape).unwrap();
        lane.tensor(shape, &vec![0.0; shape.count()]).unwrap()
    };
    let error = |latent: &[usize], context: &[usize]| {
        let (latent, context) = (tensor(latent), tensor(context));
        let inputs = UnetInputs { latent: &latent, time: 1.0, context: &context, vector: None };
        model.forward_probed(&session, &inputs, &mut Probe::none()).unwrap_err().to_string()
    };
    assert!(error(&[1, 9, 8, 8], &[1, 4, 768]).contains("[batch, 4, height, width]"));
    assert!(error(&[1, 4, 8, 8], &[1, 4, 1024]).contains("[1 or 1, tokens, 768]"));
}
