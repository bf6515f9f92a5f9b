//! Several stagings of one model at once: for several patch sets and several devices, each with copies and a ring of its
//! own, and with the bits that it has alone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Barrier;

use meta::{DeviceId, Encoding};
use patch::PatchSet;
use placement::{Plan, RemotePolicy};
use residency::{Cancel, ModelId, Opening, Residency, Retention, Session};
use support::*;
use tensor::{Activation, Tensor};

/// All resident, some streamed, all streamed.
const ALLOCATIONS: [&str; 3] = ["", "sim:0,40%;cpu,60%", "sim:0,0%;cpu,100%"];

fn never() -> Cancel {
    Cancel::default()
}

fn with(patches: &PatchSet) -> Opening {
    Opening { patches: Some(patches.clone()), ..Opening::default() }
}

fn open(residency: &Residency, id: ModelId, opening: Opening) -> Session {
    residency.open_as(id, opening, &never()).unwrap()
}

/// One block of the test model.
fn step(session: &Session, block: usize, x: &Tensor) -> Tensor {
    let lease = session.lease(block).unwrap();
    let x = lease.bring(x).unwrap();
    let inner = lease.linear_then(&format!("blocks.{block}.up"), &x, Some(Activation::Silu)).unwrap();
    x.add(&lease.linear(&format!("blocks.{block}.down"), &inner).unwrap()).unwrap()
}

/// Runs sessions block by block, each in turn, twice through the model.
fn together(sessions: &[&Session]) -> Vec<Vec<f32>> {
    let start = |session: &&Session| session.lane().unwrap().tensor([3, WIDTH], &input()).unwrap();
    let mut outputs = Vec::new();
    for _ in 0..2 {
        let mut states: Vec<Tensor> = sessions.iter().map(start).collect();
        for block in 0..BLOCKS {
            for (session, x) in sessions.iter().zip(&mut states) {
                *x = step(session, block, x);
            }
        }
        let values: Vec<Vec<f32>> = states.iter().map(|x| x.to_vec().unwrap()).collect();
        assert!(outputs.is_empty() || outputs == values, "the second time is as the first");
        outputs = values;
    }
    outputs
}

fn used_on(residency: &Residency, device: DeviceId) -> u64 {
    residency.devices().get(device).unwrap().ledger().report().used
}

/// What a model gives with a patch set, alone on its machine, and what its copies take there.
fn alone(file: &ModelFile, text: &str, patches: &PatchSet) -> (Vec<f32>, u64) {
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let id = load(&residency, file, "model", text, Retention::Default);
    residency.set_patches(id, patches.clone()).unwrap();
    let output = run(&residency, id).unwrap();
    (output, used_on(&residency, DeviceId::sim(0)))
}

#[test]
fn two_patch_sets_are_open_at_the_same_time() {
    let file = write_model(3, Encoding::F32);
    let manifest = manifest(&file, "model");
    let [none, half, full] =
        [PatchSet::new(), lora(&file, &manifest, 0.5), patches_of(&file, &manifest, "LoHa", 1.0)];
    for text in ALLOCATIONS {
        let expected = [&none, &half, &full].map(|set| alone(&file, text, set));
        let residency = Residency::new(machine(&["64mb@20gbps"]));
        let id = load(&residency, &file, "model", text, Retention::Default);
        let sessions = [&none, &half, &full].map(|set| open(&residency, id, with(set)));
        let outputs = together(&sessions.each_ref());
        for (output, (expected, _)) in outputs.iter().zip(&expected) {
            assert_eq!(output, expected, "{text}");
        }
        // Each has what it has alone, and the report says so.
        let all: u64 = expected.iter().map(|(_, bytes)| bytes).sum();
        drop(outputs);
        assert_eq!(used_on(&residency, DeviceId::sim(0)), all, "{text}");
        let report = &residency.models()[0];
        let held = report.bytes.iter().find(|(device, _)| *device == DeviceId::sim(0)).unwrap().1;
        assert_eq!((held, report.staged), (all, true), "{text}");
        assert_eq!(report.stats.copies > 0, !text.is_empty(), "streams of all rings are counted");
        assert_nothing_reserved(residency.devices());
        drop(sessions);
        residency.unload(id).unwrap();
        assert_eq!(used_on(&residency, DeviceId::sim(0)), 0, "{text}");
    }
}

#[test]
fn a_set_that_is_there_is_shared_and_an_idle_staging_is_patched_instead_of_copied() {
    let file = write_model(3, Encoding::F32);
    let manifest = manifest(&file, "model");
    let (half, full) = (lora(&file, &manifest, 0.5), lora(&file, &manifest, 1.0));
    for text in ALLOCATIONS {
        let residency = Residency::new(machine(&["64mb@20gbps"]));
        let id = load(&residency, &file, "model", text, Retention::Default);
        let first = open(&residency, id, with(&half));
        let one = used_on(&residency, DeviceId::sim(0));
        let second = open(&residency, id, with(&half));
        assert_eq!(used_on(&residency, DeviceId::sim(0)), one, "{text}: the same copies");
        drop((first, second));
        // Nobody uses them, so they get the next set.
        let output = forward(&open(&residency, id, with(&full)), &input()).unwrap();
        assert_eq!(output, alone(&file, text, &full).0, "{text}");
        assert_eq!(used_on(&residency, DeviceId::sim(0)), one, "{text}: of the same size");
    }
}

#[test]
fn a_session_keeps_its_patches_when_others_come_in_force() {
    let file = write_model(3, Encoding::F32);
    let (half, full) = {
        let manifest = manifest(&file, "model");
        (lora(&file, &manifest, 0.5), lora(&file, &manifest, 1.0))
    };
    for text in ALLOCATIONS {
        let residency = Residency::new(machine(&["64mb@20gbps"]));
        let id = load(&residency, &file, "model", text, Retention::Default);
        residency.set_patches(id, half.clone()).unwrap();
        let before = residency.open(id, &never()).unwrap();
        assert_eq!(residency.set_patches(id, full.clone()).unwrap(), 0, "the copies are in use");
        let after = residency.open(id, &never()).unwrap();
        let outputs = together(&[&before, &after]);
        assert_eq!(outputs, [alone(&file, text, &half).0, alone(&file, text, &full).0], "{text}");
    }
}

fn plan_for(file: &ModelFile, residency: &Residency, device: DeviceId, text: &str) -> Plan {
    plan(&manifest(file, "model"), residency.devices(), device, text, RemotePolicy::Auto)
}

#[test]
fn two_devices_compute_with_one_model_at_the_same_time() {
    let file = write_model(6, Encoding::BF16);
    let patches = lora(&file, &manifest(&file, "model"), 1.0);
    for (here, there) in [("", ""), ("sim:0,50%;cpu,50%", "sim:1,20%;cpu,80%"), ("", "sim:1,0%;cpu,100%")] {
        let machine = || machine(&["64mb@20gbps", "64mb@10gbps"]);
        let expected = {
            let residency = Residency::new(machine());
            let id = load(&residency, &file, "model", here, Retention::Default);
            let plain = run(&residency, id).unwrap();
            residency.set_patches(id, patches.clone()).unwrap();
            [plain, run(&residency, id).unwrap()]
        };
        let residency = Residency::new(machine());
        let id = load(&residency, &file, "model", here, Retention::Default);
        let elsewhere = Opening {
            plan: Some(plan_for(&file, &residency, DeviceId::sim(1), there)),
            patches: Some(patches.clone()),
        };
        let sessions = [open(&residency, id, Opening::default()), open(&residency, id, elsewhere.clone())];
        let lanes = sessions.each_ref().map(|session| session.lane().unwrap().device().id());
        assert_eq!(lanes, [DeviceId::sim(0), DeviceId::sim(1)]);
        assert_eq!(sessions[1].plan().compute, DeviceId::sim(1));
        assert_eq!(together(&sessions.each_ref()), expected, "{here} and {there}");
        // Both use the file's own bytes; each device has its copies.
        let used = [0, 1].map(|ordinal| used_on(&residency, DeviceId::sim(ordinal)));
        assert!(used.iter().all(|bytes| *bytes > 0), "{used:?}");
        // The second one's copies go with an eviction from its device, and only those.
        let [first, second] = sessions;
        drop(second);
        assert_eq!(residency.evict_from(DeviceId::sim(1), None), [id]);
        let left = [0, 1].map(|ordinal| used_on(&residency, DeviceId::sim(ordinal)));
        assert_eq!(left, [used[0], 0]);
        drop(first);
        assert_eq!(forward(&open(&residency, id, elsewhere), &input()).unwrap(), expected[1]);
    }
}

#[test]
fn each_staging_is_made_once_however_many_open_it() {
    let file = write_model(2, Encoding::F32);
    let sets = [PatchSet::new(), lora(&file, &manifest(&file, "model"), 1.0)];
    let residency = Residency::new(machine(&["64mb@0.05gbps"]));
    let id = load(&residency, &file, "model", "sim:0,50%;cpu,50%", Retention::Default);
    let at_once = Barrier::new(8);
    let sessions: Vec<Session> = std::thread::scope(|scope| {
        let opening: Vec<_> = (0..8)
            .map(|index: usize| {
                let (at_once, residency, sets) = (&at_once, &residency, &sets);
                scope.spawn(move || {
                    at_once.wait();
                    open(residency, id, with(&sets[index % 2]))
                })
            })
            .collect();
        opening.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let alone: u64 = sets.iter().map(|set| alone(&file, "sim:0,50%;cpu,50%", set).1).sum();
    assert_eq!(used_on(&residency, DeviceId::sim(0)), alone, "two sets of copies");
    assert_eq!(sessions.len(), 8);
    assert_nothing_reserved(residency.devices());
}

/// Room for one set of copies and a half: the second staging waits for nothing and is refused while the first is in use,
/// and takes its place when it is not.
#[test]
fn a_staging_makes_room_for_another_of_the_same_model() {
    let file = write_model(2, Encoding::F32);
    let set = patches_of(&file, &manifest(&file, "model"), "LoRA", 1.0);
    let residency = Residency::new(machine(&["2mb@20gbps", "64mb@20gbps"]));
    let id = load(&residency, &file, "model", "sim:0,100%", Retention::Keep);
    let elsewhere = Opening {
        plan: Some(plan_for(&file, &residency, DeviceId::sim(1), "sim:0,60%;sim:1,40%")),
        ..with(&set)
    };
    let first = open(&residency, id, Opening::default());
    let error = residency.open_as(id, elsewhere.clone(), &never()).err().unwrap().to_string();
    assert!(error.starts_with("sim:0 is out of memory"), "{error}");
    assert_nothing_reserved(residency.devices());
    assert_eq!(used_on(&residency, DeviceId::sim(1)), 0);
    drop(first);
    let second = open(&residency, id, elsewhere);
    assert!(forward(&second, &input()).is_ok());
    assert!(residency.contains(id));
    let error = residency.open(id, &never()).err().unwrap().to_string();
    assert!(error.starts_with("sim:0 is out of memory"), "{error}");
    drop(second);
    assert!(run(&residency, id).is_ok(), "the first has its room again");
}
