//! Kandinsky 5: its transformer against formulas that were written down elsewhere (`tools/reference`), and on every
//! placement. Whole runs are among the reference cases.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use checkpoint::Checkpoint;
use models::conditioning::{Array, Cond, Conditioned, Scene};
use models::diffusion::kandinsky5::Kandinsky5;
use models::diffusion::{Alteration, Amount, Diffusion, Evaluation, Placed};
use models::{Module, detect};
use sampling::{Latent, LatentShape};
use support::transformers::{array, check_placements, texts};
use support::{checkpoint, golden, open_on_cpu};
use testkit::{Golden, random_normal};

const NAME: &str = "kandinsky5_tiny";
/// The reference computes in f64.
const TOLERANCE: f64 = 1e-5;

/// A model all of whose tensors are read.
fn model(file: &Checkpoint) -> Kandinsky5 {
    let detected = detect(file);
    let model = Kandinsky5::read(file, &detected.parts[0]).unwrap();
    let manifest = model.manifest(file).unwrap();
    assert_eq!(detected.parts[0].unused(file, &manifest), [""; 0]);
    model
}

/// The model that makes pictures: the same, but that it is shown the latent alone.
fn picture_checkpoint() -> Checkpoint {
    let mut manifest = testkit::Manifest::bundled(NAME).unwrap();
    let shown = manifest.tensors.iter_mut().find(|tensor| tensor.name == "visual_embeddings.in_layer.weight");
    shown.unwrap().shape = meta::Shape::from([256, 64]);
    Checkpoint::from_memory(("pictures", manifest.bytes().unwrap().into()), Vec::new()).unwrap()
}

/// The golden's text and pooled text.
fn cond(golden: &Golden) -> Cond {
    Cond::text(array(golden, "text"), Some(array(golden, "pooled")))
}

/// A procedural input of a golden file as a latent in the autoencoder's scale, which `model` brings back to its own.
fn latent(golden: &Golden, name: &str, model: &Kandinsky5) -> Arc<Latent> {
    let Array { shape, values } = array(golden, name);
    let spec = Diffusion::latent(model);
    Arc::new(spec.to_autoencoder(&Latent::new(shape, values).unwrap()).unwrap())
}

/// One evaluation of a latent of this shape, cut from the golden's.
fn evaluated(model: &Kandinsky5, file: &Checkpoint, cond: &Cond, shape: &[usize]) -> Vec<f32> {
    let session = open_on_cpu(model.manifest(file).unwrap());
    let scene = Scene::empty(LatentShape::sized(shape).unwrap());
    let run = model.start(&session, &[Conditioned::whole(cond)], &scene).unwrap();
    let x = array(&golden(NAME), "x");
    let x = session.lane().unwrap().tensor([1, 16, 2, 6, 4], &x.values).unwrap();
    let x = if shape.len() == 4 { x.slice(2, 0, 1).unwrap().reshape([1, 16, 6, 4]).unwrap() } else { x };
    run.forward(&[Evaluation::new(0, &x, 640.0)]).unwrap()[0].to_vec().unwrap()
}

#[test]
fn videos_equal_the_formulas() {
    let (file, golden) = (checkpoint(NAME), golden(NAME));
    let model = model(&file);
    assert_eq!((model.config().text_blocks, model.config().blocks, model.config().head), (2, 2, 64));
    assert_eq!((model.latent().channels, model.latent().frames_per_value), (16, Some(4)));
    let (shape, _) = golden.tensor("video").unwrap();
    let plain = evaluated(&model, &file, &cond(&golden), shape.dims());
    golden.assert_close("video", &shape, &plain, TOLERANCE);
    let mut mask = Latent::zeros(&[1, 1, 2, 6, 4]);
    mask.values_mut()[24..].fill(1.0);
    let begun = Cond {
        concat_latent: Some(latent(&golden, "picture", &model)),
        concat_mask: Some(Arc::new(mask)),
        ..cond(&golden)
    };
    golden.assert_close("begun", &shape, &evaluated(&model, &file, &begun, shape.dims()), TOLERANCE);
}

#[test]
fn pictures_equal_the_formulas() {
    let (file, golden) = (picture_checkpoint(), golden(NAME));
    assert_eq!(detect(&file).seems(), "a diffusion model (Kandinsky 5 image)");
    let model = model(&file);
    assert_eq!((model.latent().name, model.latent().frames_per_value), ("FLUX", None));
    let (shape, _) = golden.tensor("picture").unwrap();
    golden.assert_close(
        "picture",
        &shape,
        &evaluated(&model, &file, &cond(&golden), shape.dims()),
        TOLERANCE,
    );
}

#[test]
fn placement_and_company_change_no_bit() {
    let file = checkpoint(NAME);
    let pooled = |seed| Some(Arc::new(Array { shape: vec![1, 768], values: random_normal(seed, 768) }));
    let [one, two] = texts([1, 12, 256]);
    let conds = [Cond { pooled: pooled(3), ..one }, Cond { pooled: pooled(4), ..two }];
    // Odd sides, a few tokens only, and several items.
    let latents: [&[usize]; 3] = [&[1, 16, 2, 5, 6], &[1, 16, 1, 2, 4], &[2, 16, 2, 4, 4]];
    check_placements(&model(&file), &file, &conds, &latents);
    let picture = Arc::new(Latent::new(vec![1, 16, 1, 4, 4], random_normal(6, 256)).unwrap());
    let conds = conds.map(|cond| Cond { concat_latent: Some(Arc::clone(&picture)), ..cond });
    check_placements(&model(&file), &file, &conds, &[&[1, 16, 3, 4, 4]]);
    let file = picture_checkpoint();
    let conds = conds.map(|cond| Cond { concat_latent: None, ..cond });
    check_placements(&model(&file), &file, &conds, &[&[1, 16, 6, 4]]);
}

#[test]
fn positions_may_be_said() {
    let (file, golden) = (checkpoint(NAME), golden(NAME));
    let model = model(&file);
    let session = open_on_cpu(model.manifest(&file).unwrap());
    let (shape, _) = golden.tensor("video").unwrap();
    let (scene, cond) = (Scene::empty(LatentShape::sized(shape.dims()).unwrap()), cond(&golden));
    let run = model.start(&session, &[Conditioned::whole(&cond)], &scene).unwrap();
    let x = session.lane().unwrap().tensor(shape, &array(&golden, "x").values).unwrap();
    let with = |scale: [f32; 3]| {
        let placed = Placed { scale: scale.map(Amount), ..Placed::COUNTED };
        let altered = [Alteration::Placed(placed)];
        let evaluation = Evaluation { altered: &altered, ..Evaluation::new(0, &x, 640.0) };
        run.forward(&[evaluation]).unwrap()[0].to_vec().unwrap()
    };
    // Rows and columns stand at half steps, unless they are said to stand elsewhere.
    golden.assert_close("video", &shape, &with([1.0, 0.5, 0.5]), TOLERANCE);
    assert_ne!(with([1.0, 0.5, 0.5]), with([1.0; 3]));
}

#[test]
fn what_does_not_fit_is_told() {
    let file = checkpoint(NAME);
    let model = model(&file);
    let session = open_on_cpu(model.manifest(&file).unwrap());
    let shape = LatentShape { batch: 1, channels: 16, frames: 1, height: 4, width: 4 };
    let start = |cond: &Cond| {
        let run = model.start(&session, &[Conditioned::whole(cond)], &Scene::empty(shape));
        run.map(|_| ()).unwrap_err().to_string()
    };
    let told = start(&Cond::text(Array::zeros(&[1, 4, 100]), None));
    assert!(told.contains("[1 or 1, tokens, 256]"), "{told}");
    let told = start(&Cond::text(Array::zeros(&[1, 4, 256]), Some(Array::zeros(&[1, 9]))));
    assert!(told.contains("[1 or 1, 768]"), "{told}");
    let cond = Cond::text(Array::zeros(&[1, 4, 256]), None);
    let run = model.start(&session, &[Conditioned::whole(&cond)], &Scene::empty(shape)).unwrap();
    let wrong = session.lane().unwrap().full([1, 4, 1, 4, 4], 0.0).unwrap();
    let told = run.forward(&[Evaluation::new(0, &wrong, 0.5)]).unwrap_err().to_string();
    assert!(told.contains("[batch, 16, frames, height, width]"), "{told}");
}
