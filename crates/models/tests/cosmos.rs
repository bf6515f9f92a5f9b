//! Cosmos Predict 2: its transformer against formulas that were written down elsewhere (`tools/reference`), and on every
//! placement. Whole runs are among the reference cases.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use checkpoint::Checkpoint;
use models::conditioning::{Array, Cond, Conditioned, Scene};
use models::diffusion::cosmos::Cosmos;
use models::diffusion::{Diffusion, Evaluation, Kept};
use models::{Module, detect};
use sampling::{Latent, LatentShape};
use support::transformers::{array, check_placements, texts};
use support::{checkpoint, golden, open_on_cpu};

const PICTURES: &str = "cosmos_predict2_t2i_tiny";
const VIDEOS: &str = "cosmos_predict2_video2world_tiny";
/// The reference computes in f64.
const TOLERANCE: f64 = 1e-5;

/// A model all of whose tensors are read.
fn model(file: &Checkpoint) -> Cosmos {
    let detected = detect(file);
    let model = Cosmos::read(file, &detected.parts[0]).unwrap();
    let manifest = model.manifest(file).unwrap();
    assert_eq!(detected.parts[0].unused(file, &manifest), [""; 0]);
    model
}

/// One evaluation of so many frames of the golden's latent, with a mask of what is made new.
fn evaluated(name: &str, frames: usize, mask: Option<&Latent>) -> Vec<f32> {
    let (file, golden) = (checkpoint(name), golden("cosmos_tiny"));
    let model = model(&file);
    let session = open_on_cpu(model.manifest(&file).unwrap());
    let shape = LatentShape { batch: 1, channels: 16, frames, height: 6, width: 4 };
    let cond = Cond::text(array(&golden, "text"), None);
    let scene = Scene { mask, ..Scene::empty(shape) };
    let run = model.start(&session, &[Conditioned::whole(&cond)], &scene).unwrap();
    let x = session.lane().unwrap().tensor([1, 16, 2, 6, 4], &array(&golden, "x").values).unwrap();
    let x = x.slice(2, 0, frames).unwrap().contiguous().unwrap();
    run.forward(&[Evaluation::new(0, &x, 0.64)]).unwrap()[0].to_vec().unwrap()
}

#[test]
fn evaluations_equal_the_formulas() {
    let golden = golden("cosmos_tiny");
    let check = |name: &str, values: Vec<f32>| {
        let (shape, _) = golden.tensor(name).unwrap();
        golden.assert_close(name, &shape, &values, TOLERANCE);
    };
    check("picture", evaluated(PICTURES, 1, None));
    check("video", evaluated(VIDEOS, 2, None));
    // The first frame is given, the second is made for the most part.
    let mut mask = Latent::zeros(&[1, 1, 2, 6, 4]);
    mask.values_mut()[24..].fill(0.75);
    check("begun", evaluated(VIDEOS, 2, Some(&mask)));
}

#[test]
fn sizes_and_levels_are_those_of_the_variant() {
    let pictures = model(&checkpoint(PICTURES));
    let videos = model(&checkpoint(VIDEOS));
    assert_eq!((pictures.config().blocks, pictures.config().head, pictures.config().narrow), (2, 128, 64));
    assert!(!pictures.config().sees_given_frames() && videos.config().sees_given_frames());
    assert_eq!((pictures.config().stretches, videos.config().stretches), ([1.0, 4.0, 4.0], [1.0, 3.0, 3.0]));
    assert_eq!(videos.kept(), Kept::Clean);
    let levels = videos.sampling();
    assert!(
        (levels.sigma_max() / 80.0 - 1.0).abs() < 1e-5 && (levels.sigma_min() / 0.002 - 1.0).abs() < 1e-5
    );
    assert_eq!(levels.timestep(3.0), 0.75);
}

#[test]
fn placement_and_company_change_no_bit() {
    for name in [PICTURES, VIDEOS] {
        let file = checkpoint(name);
        let latents: [&[usize]; 3] = [&[1, 16, 2, 5, 6], &[1, 16, 1, 2, 4], &[2, 16, 1, 4, 4]];
        check_placements(&model(&file), &file, &texts([1, 12, 1024]), &latents);
    }
}

#[test]
fn what_does_not_fit_is_told() {
    let file = checkpoint(PICTURES);
    let model = model(&file);
    let session = open_on_cpu(model.manifest(&file).unwrap());
    let shape = LatentShape { batch: 1, channels: 16, frames: 1, height: 4, width: 4 };
    let cond = Cond::text(Array::zeros(&[1, 4, 100]), None);
    let told = model.start(&session, &[Conditioned::whole(&cond)], &Scene::empty(shape)).map(|_| ());
    let told = told.unwrap_err().to_string();
    assert!(told.contains("[1 or 1, tokens, 1024]"), "{told}");
    let cond = Cond::text(Array::zeros(&[1, 4, 1024]), None);
    let run = model.start(&session, &[Conditioned::whole(&cond)], &Scene::empty(shape)).unwrap();
    let wrong = session.lane().unwrap().full([1, 4, 1, 4, 4], 0.0).unwrap();
    let told = run.forward(&[Evaluation::new(0, &wrong, 0.5)]).unwrap_err().to_string();
    assert!(told.contains("[batch, 16, frames, height, width]"), "{told}");
}
