//! All evaluations of a step in one pass over FLUX: the same bits as one by one, and every block leased once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use meta::DeviceId;
use models::Module;
use models::detect;
use models::diffusion::flux::{Flux, FluxInputs, ReferencePlaces};
use placement::RemotePolicy;
use residency::{Cancel, LoadOptions, Manifest, Residency, Session};
use support::*;
use tensor::{Lane, Tensor};
use testkit::random_normal;

fn flux(name: &str) -> (Flux, Manifest) {
    let checkpoint = checkpoint(name);
    let flux = Flux::read(&checkpoint, &detect(&checkpoint)).unwrap();
    let manifest = flux.manifest(&checkpoint).unwrap();
    (flux, manifest)
}

/// What one evaluation is made of.
#[derive(Clone, Copy)]
struct Case {
    /// Items, height and width of the latent.
    latent: [usize; 3],
    /// Items and tokens of the text.
    text: [usize; 2],
    /// Rows of the pooled text.
    pooled: usize,
    sigma: f32,
    guidance: Option<f32>,
    /// Height and width of reference latents.
    references: &'static [[usize; 2]],
    places: ReferencePlaces,
}

const PLAIN: Case = Case {
    latent: [1, 8, 12],
    text: [1, 20],
    pooled: 1,
    sigma: 0.6,
    guidance: Some(3.5),
    references: &[],
    places: ReferencePlaces::Offset,
};

/// An evaluation on a device.
struct Given {
    case: Case,
    latent: Tensor,
    context: Tensor,
    pooled: Tensor,
    references: Vec<Tensor>,
}

impl Given {
    fn new(lane: &Lane, case: Case, seed: u64) -> Given {
        let random = |dims: [usize; 4], seed: u64| {
            lane.tensor(dims, &random_normal(seed, dims.iter().product())).unwrap()
        };
        let [items, height, width] = case.latent;
        let [texts, tokens] = case.text;
        let reference = |(i, [height, width]): (usize, &[usize; 2])| {
            random([1, 16, *height, *width], 100 * seed + 10 + i as u64)
        };
        Given {
            case,
            latent: random([items, 16, height, width], 100 * seed),
            context: random([1, texts, tokens, 4096], 100 * seed + 1).reshape([texts, tokens, 4096]).unwrap(),
            pooled: random([1, 1, case.pooled, 768], 100 * seed + 2).reshape([case.pooled, 768]).unwrap(),
            references: case.references.iter().enumerate().map(reference).collect(),
        }
    }

    fn inputs(&self) -> FluxInputs<'_> {
        FluxInputs {
            guidance: self.case.guidance,
            references: &self.references,
            reference_places: self.case.places,
            ..FluxInputs::new(&self.latent, self.case.sigma, &self.context, &self.pooled)
        }
    }
}

/// Steps with evaluations that fit together and with such that do not.
fn steps() -> Vec<(&'static str, Vec<Case>)> {
    let other = Case { sigma: 0.3, guidance: None, ..PLAIN };
    let few = |tokens: usize| Case { text: [1, tokens], ..PLAIN };
    let two = Case { latent: [2, 6, 10], ..PLAIN };
    let seen = Case { references: &[[4, 4], [6, 2]], ..PLAIN };
    vec![
        ("two alike", vec![PLAIN; 2]),
        ("levels and guidance of their own", vec![PLAIN, other, Case { guidance: Some(1.0), ..PLAIN }]),
        ("eight tokens", vec![few(8); 2]),
        ("nine tokens", vec![few(9); 3]),
        ("a small image", vec![Case { latent: [1, 4, 8], ..PLAIN }; 2]),
        ("one row more than a small image", vec![Case { latent: [1, 6, 6], ..PLAIN }; 2]),
        ("an odd size", vec![Case { latent: [1, 7, 9], ..PLAIN }; 2]),
        ("more than eight", vec![PLAIN; 11]),
        ("two items, one text", vec![two; 3]),
        ("two items, two texts", vec![Case { text: [2, 20], pooled: 2, ..two }; 3]),
        ("nine items", vec![Case { latent: [9, 4, 4], text: [9, 4], pooled: 9, ..PLAIN }; 2]),
        ("references", vec![seen, PLAIN, seen, Case { places: ReferencePlaces::Index, ..seen }]),
        ("lengths and sizes", vec![PLAIN, few(31), Case { latent: [1, 4, 12], ..PLAIN }, few(31), PLAIN]),
    ]
}

fn bits(tensor: &Tensor) -> (Vec<usize>, Vec<u32>) {
    (tensor.dims().to_vec(), tensor.to_vec().unwrap().iter().map(|value| value.to_bits()).collect())
}

/// Bits of every step's results, evaluated together or one by one.
fn evaluate(flux: &Flux, session: &Session, together: bool) -> Vec<Vec<(Vec<usize>, Vec<u32>)>> {
    let lane = session.lane().unwrap();
    let evaluate = |(_, cases): (&str, Vec<Case>)| {
        let given: Vec<Given> = (0..).zip(cases).map(|(seed, case)| Given::new(lane, case, seed)).collect();
        let inputs: Vec<FluxInputs<'_>> = given.iter().map(Given::inputs).collect();
        if together {
            return flux.forward_all(session, &inputs).unwrap().iter().map(bits).collect();
        }
        inputs.iter().map(|inputs| bits(&flux.forward(session, inputs).unwrap())).collect::<Vec<_>>()
    };
    steps().into_iter().map(evaluate).collect()
}

fn assert_same(got: &[Vec<(Vec<usize>, Vec<u32>)>], want: &[Vec<(Vec<usize>, Vec<u32>)>], what: &str) {
    for ((name, _), (got, want)) in steps().iter().zip(got.iter().zip(want)) {
        for (index, (got, want)) in got.iter().zip(want).enumerate() {
            assert_eq!(got.0, want.0, "{what}, {name}, evaluation {index}");
            let other = got.1.iter().zip(&want.1).filter(|(got, want)| got != want).count();
            assert_eq!(other, 0, "{what}, {name}, evaluation {index}: {other} of {} values", want.1.len());
        }
        assert_eq!(got.len(), want.len(), "{what}, {name}");
        assert!(
            want.iter().enumerate().all(|(i, one)| !want[..i].contains(one)),
            "{name}: inputs do not matter"
        );
    }
}

#[test]
fn an_evaluation_gives_the_same_bits_alone_and_beside_others() {
    for model in ["flux_dev_micro", "flux_schnell_micro", "flux_dev_micro_fp8_scaled", "flux_dev_micro-Q8_0"]
    {
        let (flux, manifest) = flux(model);
        let session = open_on_cpu(manifest);
        let alone = evaluate(&flux, &session, false);
        assert_same(&evaluate(&flux, &session, true), &alone, model);
    }
}

/// At full width sums are cut into pieces, and there is work for many threads.
#[test]
fn blocks_of_full_width_give_the_same_bits_alone_and_beside_others() {
    let (flux, manifest) = flux("flux_dev_d1s1");
    let session = open_on_cpu(manifest);
    let case = Case { latent: [1, 16, 20], text: [1, 40], ..PLAIN };
    let given = [1, 2, 3].map(|seed| Given::new(session.lane().unwrap(), case, seed));
    let inputs = given.each_ref().map(Given::inputs);
    let together = flux.forward_all(&session, &inputs).unwrap();
    for (inputs, output) in inputs.iter().zip(&together) {
        assert!(bits(output) == bits(&flux.forward(&session, inputs).unwrap()));
    }
}

#[test]
fn a_step_gives_the_same_bits_resident_streamed_and_split() {
    let placements = [
        ("", RemotePolicy::Auto),
        ("sim:0,50%;cpu,50%", RemotePolicy::Auto),
        ("sim:0,75%;sim:1,25%", RemotePolicy::Stream),
        ("sim:0,75%;sim:1,25%", RemotePolicy::InPlace),
    ];
    let mut alone = None;
    for (text, remote) in placements {
        let (flux, manifest) = flux("flux_dev_micro");
        let residency = Residency::new(machine(&["64mb@20gbps", "64mb@20gbps"]));
        let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), text, remote);
        let session = open(&residency, manifest, plan);
        let alone = alone.get_or_insert_with(|| evaluate(&flux, &session, false));
        for _ in 0..2 {
            assert_same(&evaluate(&flux, &session, true), alone, &format!("{text} {remote:?}"));
        }
    }
}

#[test]
fn a_block_is_streamed_once_a_step_however_many_evaluations_there_are() {
    let (flux, manifest) = flux("flux_dev_micro");
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let plan =
        plan(&manifest, residency.devices(), DeviceId::sim(0), "sim:0,25%;cpu,75%", RemotePolicy::Auto);
    let session = open(&residency, manifest, plan);
    let lane = session.lane().unwrap();
    let streamed = |cases: &[Case]| {
        let given: Vec<Given> = (0..).zip(cases).map(|(seed, case)| Given::new(lane, *case, seed)).collect();
        let inputs: Vec<FluxInputs<'_>> = given.iter().map(Given::inputs).collect();
        let before = session.stats();
        flux.forward_all(&session, &inputs).unwrap();
        let after = session.stats();
        (after.copies - before.copies, after.bytes - before.bytes)
    };
    // The first pass fills the ring.
    streamed(&[PLAIN]);
    let once = streamed(&[PLAIN]);
    assert!(once.0 > 2 && once.1 > 0, "{once:?}");
    for (name, cases) in steps() {
        assert_eq!(streamed(&cases), once, "{name}");
    }
    assert_eq!(streamed(&[]), (0, 0), "nothing is asked for nothing");
}

#[test]
fn a_step_ends_at_the_next_block_when_it_is_cancelled() {
    let (flux, manifest) = flux("flux_dev_micro");
    let residency = Residency::new(machine(&[]));
    let plan = plan(&manifest, residency.devices(), DeviceId::CPU, "", RemotePolicy::Auto);
    let id = residency.load(manifest, plan, LoadOptions::default()).unwrap();
    let cancel = Cancel::default();
    let session = residency.open(id, &cancel).unwrap();
    let given = [1, 2].map(|seed| Given::new(session.lane().unwrap(), PLAIN, seed));
    let inputs = given.each_ref().map(Given::inputs);
    assert_eq!(flux.forward_all(&session, &inputs).unwrap().len(), 2);
    cancel.cancel();
    assert!(flux.forward_all(&session, &inputs).unwrap_err().to_string().contains("cancel"));
}

#[test]
fn an_evaluation_that_does_not_fit_is_named_before_anything_is_computed() {
    let (flux, manifest) = flux("flux_dev_micro");
    let session = open_on_cpu(manifest);
    let lane = session.lane().unwrap();
    let good = Given::new(lane, PLAIN, 1);
    let bad = Given { pooled: lane.full([1, 5], 0.0).unwrap(), ..Given::new(lane, PLAIN, 2) };
    let error = flux.forward_all(&session, &[good.inputs(), bad.inputs()]).unwrap_err().to_string();
    assert!(error.starts_with("the pooled text is of shape [1, 5]"), "{error}");
}

#[test]
fn a_step_of_two_works_in_the_room_of_two_items() {
    let (flux, manifest) = flux("flux_dev_micro");
    let session = open_on_cpu(manifest);
    let lane = session.lane().unwrap();
    let ledger = lane.device().ledger();
    let case = Case { latent: [1, 48, 64], text: [1, 128], ..PLAIN };
    let peak = |count: u64| {
        let before = ledger.report().used;
        ledger.take_peak();
        let given: Vec<Given> = (0..count).map(|seed| Given::new(lane, case, seed)).collect();
        let inputs: Vec<FluxInputs<'_>> = given.iter().map(Given::inputs).collect();
        let outputs = flux.forward_all(&session, &inputs).unwrap();
        assert_eq!(outputs.len() as u64, count);
        ledger.report().peak - before
    };
    let (one, two) = (peak(1), peak(2));
    assert!(two > one && two <= 2 * one, "{one} for one, {two} for two");
}
