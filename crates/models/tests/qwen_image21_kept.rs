//! Qwen-Image 2.1 with keys and values of text and pictures that are computed in the first step of a run alone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use meta::DeviceId;
use models::conditioning::{Cond, Conditioned, Scene};
use models::diffusion::qwen_image21::QwenImage21;
use models::diffusion::{Alteration, Diffusion, DiffusionRun, Evaluation};
use models::{Module, detect};
use placement::RemotePolicy;
use residency::{Residency, Session};
use sampling::{Latent, LatentShape};
use support::transformers::texts;
use support::*;
use tensor::Tensor;
use testkit::random_normal;

const MODEL: &str = "qwen_image_2.1_tiny";
const LATENT: [usize; 4] = [1, 64, 4, 6];
const KEPT: &[Alteration] = &[Alteration::KeepReferences];
fn model() -> QwenImage21 {
    let file = checkpoint(MODEL);
    QwenImage21::read(&file, &detect(&file).parts[0]).unwrap()
}

/// Two texts, each with two pictures among its words.
fn conds() -> [Cond; 2] {
    let picture = |seed| Arc::new(Latent::new(vec![1, 64, 4, 4], random_normal(seed, 1024)).unwrap());
    texts([1, 12, 128]).map(|cond| Cond {
        reference_latents: vec![picture(9), picture(10)],
        reference_slots: vec![3, 5],
        ..cond
    })
}

fn start<'a>(model: &'a QwenImage21, session: &'a Session, conds: &[Cond]) -> Box<dyn DiffusionRun + 'a> {
    let conditioned: Vec<Conditioned<'_>> = conds.iter().map(Conditioned::whole).collect();
    model.start(session, &conditioned, &Scene::empty(LatentShape::sized(&LATENT).unwrap())).unwrap()
}

fn latent(session: &Session, seed: u64) -> Tensor {
    session.lane().unwrap().tensor(LATENT, &random_normal(seed, LATENT.iter().product())).unwrap()
}

/// Three steps of both conditionings, as bits.
fn steps(model: &QwenImage21, session: &Session, is_batch: bool, altered: &[Alteration]) -> Vec<Vec<u32>> {
    let run = start(model, session, &conds());
    let mut all = Vec::new();
    for (seed, time) in [(5, 0.9), (6, 0.5), (7, 0.2)] {
        let x = latent(session, seed);
        let both = [0, 1].map(|cond| Evaluation { altered, ..Evaluation::new(cond, &x, time) });
        let outputs = if is_batch {
            run.forward(&both).unwrap()
        } else {
            both.iter().flat_map(|one| run.forward(std::slice::from_ref(one)).unwrap()).collect()
        };
        all.extend(outputs.iter().map(|out| out.to_vec().unwrap().iter().map(|v| v.to_bits()).collect()));
    }
    all
}

#[test]
fn what_is_kept_changes_no_bit_wherever_blocks_are() {
    let model = model();
    let manifest = || model.manifest(&checkpoint(MODEL)).unwrap();
    let expected = steps(&model, &open_on_cpu(manifest()), true, &[]);
    for is_batch in [false, true] {
        assert!(steps(&model, &open_on_cpu(manifest()), is_batch, KEPT) == expected);
    }
    for (text, remote) in
        [("sim:0,1%;cpu,99%", RemotePolicy::Stream), ("sim:0,50%;sim:1,50%", RemotePolicy::InPlace)]
    {
        let residency = Residency::new(machine(&["2gb@5gbps", "2gb@5gbps"]));
        let plan = plan(&manifest(), residency.devices(), DeviceId::sim(0), text, remote);
        let session = open(&residency, manifest(), plan);
        assert!(steps(&model, &session, true, KEPT) == expected, "{text} {remote:?}");
    }
}

#[test]
fn later_steps_do_less() {
    let model = model();
    let counted = Counted::new(model.manifest(&checkpoint(MODEL)).unwrap());
    let session = &counted.session;
    let x = latent(session, 5);
    let run = start(&model, session, &conds());
    let every = counted.step(&*run, &x, &[]);
    let [first, second, third] = [0; 3].map(|_| counted.step(&*run, &x, KEPT));
    // Of 68 tokens 24 are computed in later steps.
    println!("{every} in every step, {first} in the first, {third} later");
    assert!(third <= second && every <= first && third * 2 < every, "{first} {second} {third} {every}");
}
