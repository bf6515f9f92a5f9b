//! FLUX.2 with keys and values of reference latents that are computed in the first step of a run alone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use meta::DeviceId;
use models::conditioning::{Cond, Conditioned, Scene};
use models::diffusion::flux2::Flux2;
use models::diffusion::{Alteration, BlockGroup, Diffusion, DiffusionRun, Evaluation};
use models::{Module, detect};
use placement::RemotePolicy;
use residency::{Residency, Session};
use sampling::{Latent, LatentShape};
use support::transformers::texts;
use support::*;
use tensor::Tensor;
use testkit::{Report, random_normal};

const MODEL: &str = "flux2_tiny";
const LATENT: [usize; 4] = [1, 128, 4, 4];
const KEPT: &[Alteration] = &[Alteration::KeepReferences];
/// Sums in another order, because there are fewer tokens.
const TOLERANCE: f64 = 1e-5;

fn model() -> Flux2 {
    let file = checkpoint(MODEL);
    Flux2::read(&file, &detect(&file).parts[0]).unwrap()
}

/// Two texts, each with two pictures to look at.
fn conds(method: Option<&str>) -> [Cond; 2] {
    let picture = |seed| Arc::new(Latent::new(vec![1, 128, 4, 5], random_normal(seed, 2560)).unwrap());
    texts([1, 12, 384]).map(|cond| Cond {
        reference_latents: vec![picture(9), picture(10)],
        reference_method: method.map(str::to_owned),
        ..cond
    })
}

fn start<'a>(model: &'a Flux2, session: &'a Session, conds: &[Cond]) -> Box<dyn DiffusionRun + 'a> {
    let conditioned: Vec<Conditioned<'_>> = conds.iter().map(Conditioned::whole).collect();
    model.start(session, &conditioned, &Scene::empty(LatentShape::sized(&LATENT).unwrap())).unwrap()
}

fn latent(session: &Session, seed: u64) -> Tensor {
    session.lane().unwrap().tensor(LATENT, &random_normal(seed, LATENT.iter().product())).unwrap()
}

/// One evaluation.
fn of(run: &dyn DiffusionRun, cond: usize, x: &Tensor, time: f32, altered: &[Alteration]) -> Vec<f32> {
    run.forward(&[Evaluation { altered, ..Evaluation::new(cond, x, time) }]).unwrap()[0].to_vec().unwrap()
}

#[test]
fn the_first_step_is_whole_and_later_ones_read_what_it_computed() {
    let model = model();
    let session = open_on_cpu(model.manifest(&checkpoint(MODEL)).unwrap());
    let (one, two) = (latent(&session, 5), latent(&session, 6));
    let (plain, still) = (conds(None), conds(Some("index_timestep_zero")));
    let run = start(&model, &session, &plain);
    let first = of(&*run, 0, &one, 0.9, KEPT);
    // The first step is that of a model whose references are read as at the end of time, to the bit.
    let whole = start(&model, &session, &still);
    assert_eq!(first, of(&*whole, 0, &one, 0.9, &[]));
    assert_ne!(first, of(&*start(&model, &session, &plain), 0, &one, 0.9, &[]));
    // For the same latent at the same time, what was recorded is what would be computed.
    Report::new("the same step again", &of(&*run, 0, &one, 0.9, KEPT), &first).assert(TOLERANCE);
    // For others it is not, for references look at the image; and each conditioning has its own.
    let later = of(&*run, 0, &two, 0.4, KEPT);
    assert!(!Report::new("later", &later, &of(&*whole, 0, &two, 0.4, &[])).passes(TOLERANCE));
    let other = of(&*run, 1, &two, 0.4, KEPT);
    assert_eq!(other, of(&*whole, 1, &two, 0.4, &[]));
    // A new run begins anew, and evaluations that pass over blocks neither record nor read.
    assert_eq!(of(&*start(&model, &session, &plain), 0, &two, 0.4, KEPT), of(&*whole, 0, &two, 0.4, &[]));
    let skip = Alteration::SkipBlock { group: BlockGroup::Single, index: 0 };
    let both = [Alteration::KeepReferences, skip.clone()];
    assert_eq!(of(&*run, 0, &two, 0.4, &both), of(&*whole, 0, &two, 0.4, &[skip]));
    assert_eq!(of(&*run, 0, &two, 0.4, KEPT), later);
}

#[test]
fn without_references_nothing_changes() {
    let model = model();
    let session = open_on_cpu(model.manifest(&checkpoint(MODEL)).unwrap());
    let run = start(&model, &session, &texts([1, 12, 384]));
    let x = latent(&session, 5);
    assert_eq!(of(&*run, 0, &x, 0.5, KEPT), of(&*run, 0, &x, 0.5, &[]));
}

/// Three steps of both conditionings, as bits.
fn steps(model: &Flux2, session: &Session, is_batch: bool) -> Vec<Vec<u32>> {
    let run = start(model, session, &conds(None));
    let mut all = Vec::new();
    for (seed, time) in [(5, 0.9), (6, 0.5), (7, 0.2)] {
        let x = latent(session, seed);
        let both = [0, 1].map(|cond| Evaluation { altered: KEPT, ..Evaluation::new(cond, &x, time) });
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
fn placement_and_company_change_no_bit() {
    let model = model();
    let manifest = || model.manifest(&checkpoint(MODEL)).unwrap();
    let expected = steps(&model, &open_on_cpu(manifest()), true);
    assert!(steps(&model, &open_on_cpu(manifest()), false) == expected);
    for (text, remote) in [
        ("sim:0,1%;cpu,99%", RemotePolicy::Stream),
        ("sim:0,50%;sim:1,50%", RemotePolicy::Stream),
        ("sim:0,50%;sim:1,50%", RemotePolicy::InPlace),
    ] {
        let residency = Residency::new(machine(&["2gb@5gbps", "2gb@5gbps"]));
        let plan = plan(&manifest(), residency.devices(), DeviceId::sim(0), text, remote);
        let session = open(&residency, manifest(), plan);
        assert!(steps(&model, &session, true) == expected, "{text} {remote:?}");
    }
}

#[test]
fn later_steps_do_less() {
    let model = model();
    let counted = Counted::new(model.manifest(&checkpoint(MODEL)).unwrap());
    let session = &counted.session;
    let x = latent(session, 5);
    let (with, without) = (conds(None), texts([1, 12, 384]));
    let bare = counted.step(&*start(&model, session, &without), &x, &[]);
    let run = start(&model, session, &with);
    let every = counted.step(&*run, &x, &[]);
    let [first, second, third] = [0; 3].map(|_| counted.step(&*run, &x, KEPT));
    // 512 tokens of text and 16 of the picture stay, 40 of the references go; attention still looks at them.
    // The second step makes tables of positions, which the third has.
    assert!(third <= second && second < every && every <= first, "{first} {second} {third} {every}");
    let saved = (first - third) as f64 / (first - bare) as f64;
    println!("{saved:.3} of what references cost is saved: {bare} without, {first} first, {third} later");
    assert!(saved > 0.8, "{saved} of what references cost: {bare} {third} {first}");
}
