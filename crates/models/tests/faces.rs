//! Wan Animate: poses and faces against formulas that were written down elsewhere and diffusers (`tools/reference`), and on
//! every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use checkpoint::Checkpoint;
use models::conditioning::{Array, Cond, CondInput, Conditioned, Scene};
use models::diffusion::wan::Wan;
use models::diffusion::{Diffusion, Evaluation};
use models::{Module, detect};
use sampling::{Latent, LatentShape};
use support::transformers::{array, check_placements, texts};
use support::*;

const NAME: &str = "wan2.2_animate_tiny";
const VALUES: &str = "wan_animate_tiny";
const SIDE: usize = 512;

fn model(file: &Checkpoint) -> Wan {
    let detected = detect(file);
    assert_eq!(detected.name(), Some("Wan 2.2 Animate"));
    let model = Wan::read(file, &detected.parts[0]).unwrap();
    let manifest = model.manifest(file).unwrap();
    assert_eq!(detected.parts[0].unused(file, &manifest), [""; 0]);
    let takes = model.takes();
    assert!(takes.contains(&CondInput::Poses) && takes.contains(&CondInput::Faces));
    assert_eq!(model.config().face.as_ref().unwrap().side(), SIDE);
    model
}

/// The golden's poses, if they are given, and so many of its faces.
fn told(cond: Cond, posed: bool, faces: usize) -> Cond {
    let golden = golden(VALUES);
    let poses = || {
        let poses = array(&golden, "poses");
        // The reference is in the model's scale, conditionings are in the autoencoder's.
        let poses = Latent::new(poses.shape, poses.values).unwrap();
        Arc::new(models::diffusion::latents::VIDEO_16.to_autoencoder(&poses).unwrap())
    };
    let faces = (faces > 0).then(|| {
        let all = array(&golden, "faces").values;
        let plane = SIDE * SIDE;
        let plane_of = |colour: usize, frame: usize| &all[(3 * frame + colour) * plane..][..plane];
        let order = (0..3).flat_map(|colour| (0..faces).map(move |frame| (colour, frame)));
        let values = order.flat_map(|(colour, frame)| plane_of(colour, frame)).copied().collect();
        Arc::new(Latent::new(vec![1, 3, faces, SIDE, SIDE], values).unwrap())
    });
    Cond { poses: posed.then(poses), faces, ..cond }
}

#[test]
fn poses_and_faces_count_as_the_formulas_say() {
    let (file, golden) = (checkpoint(NAME), golden(VALUES));
    let model = model(&file);
    let session = open_on_cpu(model.manifest(&file).unwrap());
    let shape = LatentShape { batch: 1, channels: 16, frames: 3, height: 4, width: 6 };
    let x = session.lane().unwrap().tensor([1, 16, 3, 4, 6], &array(&golden, "x").values).unwrap();
    for (name, posed, faces) in
        [("plain", false, 0), ("posed", true, 0), ("seen", true, 5), ("few", false, 1)]
    {
        let cond = told(Cond::text(array(&golden, "text"), None), posed, faces);
        let run = model.start(&session, &[Conditioned::whole(&cond)], &Scene::empty(shape)).unwrap();
        let values = run.forward(&[Evaluation::new(0, &x, 640.0)]).unwrap()[0].to_vec().unwrap();
        let (shape, _) = golden.tensor(name).unwrap();
        golden.assert_close(name, &shape, &values, 1e-5);
    }
    let wrong = Arc::new(Latent::zeros(&[1, 3, 2, 64, 64]));
    let cond = Cond { faces: Some(wrong), ..Cond::text(Array::zeros(&[1, 4, 4096]), None) };
    let told = model.start(&session, &[Conditioned::whole(&cond)], &Scene::empty(shape)).map(|_| ());
    assert!(told.unwrap_err().to_string().contains("512, 512"));
}

#[test]
fn placement_and_company_change_no_bit() {
    let file = checkpoint(NAME);
    let model = model(&file);
    let [one, two] = texts([1, 12, 4096]);
    let latents: [&[usize]; 1] = [&[1, 16, 3, 4, 6]];
    check_placements(&model, &file, &[told(one.clone(), true, 1), told(two.clone(), false, 1)], &latents);
    check_placements(&model, &file, &[told(one, true, 1), two], &latents);
}
