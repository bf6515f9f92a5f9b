//! Qwen-Image against the reference implementation, module by module, and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use models::conditioning::{Cond, Conditioned, Scene};
use models::diffusion::qwen_image::QwenImage;
use models::diffusion::{Alteration, BlockGroup, ControlResiduals, Diffusion, Evaluation, ForwardProbed};
use models::{Module, Probe, detect};
use residency::{Manifest, Session};
use sampling::{Latent, LatentShape};
use support::transformers::{array, check_placements, missed_modules, texts};
use support::*;
use tensor::Tensor;
use testkit::random_normal;

const MODEL: &str = "qwen_image_tiny";
const LATENT: [usize; 5] = [1, 16, 1, 8, 8];

/// A model and its manifest.
fn model() -> (QwenImage, Manifest) {
    let checkpoint = checkpoint(MODEL);
    let detected = detect(&checkpoint);
    let model = QwenImage::read(&checkpoint, &detected.parts[0]).unwrap();
    let manifest = model.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (model, manifest)
}

/// A text with a picture to look at, placed in this way.
fn looking(cond: &Cond, method: Option<&str>) -> Cond {
    let picture = Latent::new(vec![1, 16, 6, 10], random_normal(9, 960)).unwrap();
    Cond {
        reference_latents: vec![Arc::new(picture)],
        reference_method: method.map(str::to_owned),
        ..cond.clone()
    }
}

#[test]
fn the_model_equals_the_reference_in_every_module() {
    let (model, manifest) = model();
    let (golden, session) = (golden(MODEL), open_on_cpu(manifest));
    let cond = Cond::text(array(&golden, "context"), None);
    let missed = missed_modules(
        &golden,
        &session,
        |latent, time, probe| model.forward_probed(&session, (&cond, latent, time), probe),
        // The reference has what attention gives for image and text under its own name.
        |name| match name.strip_suffix("attn.to_out.0") {
            Some(block) => vec![format!("{block}attn.0")],
            None => name
                .strip_suffix("attn.to_add_out")
                .map(|block| format!("{block}attn.1"))
                .into_iter()
                .collect(),
        },
    );
    assert_eq!(missed, [""; 0]);
}

#[test]
fn placement_and_company_change_no_bit() {
    let (model, _) = model();
    let [one, two] = texts([1, 12, 256]);
    let latents: [&[usize]; 2] = [&LATENT, &[2, 16, 1, 9, 13]];
    check_placements(&model, &checkpoint(MODEL), &[one.clone(), two.clone()], &latents);
    let timeless = [looking(&one, Some("index_timestep_zero")), looking(&two, Some("index_timestep_zero"))];
    check_placements(&model, &checkpoint(MODEL), &timeless, &[&LATENT]);
}

/// What an evaluation gives.
fn evaluate(
    model: &QwenImage,
    session: &Session,
    cond: &Cond,
    control: Option<&ControlResiduals>,
    altered: &[Alteration],
) -> Vec<f32> {
    let scene = Scene::empty(LatentShape::sized(&LATENT).unwrap());
    let run = model.start(session, &[Conditioned::whole(cond)], &scene).unwrap();
    let latent = session.lane().unwrap().tensor(LATENT, &random_normal(5, 1024)).unwrap();
    let evaluation = Evaluation { control, altered, ..Evaluation::new(0, &latent, 0.64) };
    run.forward(&[evaluation]).unwrap()[0].to_vec().unwrap()
}

#[test]
fn control_networks_and_alterations_change_what_they_name() {
    let (model, manifest) = model();
    let session = open_on_cpu(manifest);
    let [cond, _] = texts([1, 12, 256]);
    let plain = evaluate(&model, &session, &cond, None, &[]);
    let skip = |index| [Alteration::SkipBlock { group: BlockGroup::Double, index }];
    assert_ne!(evaluate(&model, &session, &cond, None, &skip(1)), plain);
    assert_eq!(evaluate(&model, &session, &cond, None, &skip(7)), plain);
    let residual = |value: f32| -> Option<Tensor> {
        Some(session.lane().unwrap().tensor([1, 16, 256], &vec![value; 16 * 256]).unwrap())
    };
    let given = |input: Vec<Option<Tensor>>| {
        let control = ControlResiduals { input, ..ControlResiduals::default() };
        evaluate(&model, &session, &cond, Some(&control), &[])
    };
    assert_eq!(given(vec![residual(0.0), None]), plain);
    let (first, second) = (given(vec![residual(0.5), None]), given(vec![None, residual(0.5)]));
    assert!(first != plain && second != plain && first != second);
}

#[test]
fn pictures_to_look_at_stand_where_they_are_told() {
    let (model, manifest) = model();
    let session = open_on_cpu(manifest);
    let [cond, _] = texts([1, 12, 256]);
    let with = |method: Option<&str>| evaluate(&model, &session, &looking(&cond, method), None, &[]);
    let index = with(Some("index"));
    // Files of this generation say nothing else.
    assert_eq!(with(None), index);
    assert_ne!(with(Some("index_timestep_zero")), index);
    assert_ne!(with(Some("negative_index")), index);
    assert_ne!(evaluate(&model, &session, &cond, None, &[]), index);
    let scene = Scene::empty(LatentShape::sized(&LATENT).unwrap());
    let cond = looking(&cond, Some("sideways"));
    let error = model.start(&session, &[Conditioned::whole(&cond)], &scene);
    assert!(error.err().unwrap().to_string().contains("sideways"));
}

#[test]
fn what_does_not_fit_is_told() {
    let (model, manifest) = model();
    let session = open_on_cpu(manifest);
    let [cond, _] = texts([1, 4, 256]);
    let latent = session.lane().unwrap().tensor([1, 16, 8, 8], &vec![0.0; 1024]).unwrap();
    let error = model.forward_probed(&session, (&cond, &latent, 0.5), &mut Probe::none()).unwrap_err();
    assert!(error.to_string().contains("[batch, 16, frames, height, width]"), "{error}");
}
