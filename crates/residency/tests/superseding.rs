//! One loader, one registration: what takes the place of an earlier model, and when that one leaves.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use meta::Encoding;
use residency::{Cancel, FreeRequest, ModelClaim, ModelId, Residency, Retention};
use support::*;

const UNLOAD: FreeRequest = FreeRequest { unload_models: true, free_memory: false, force: false };
/// Ten ways to place one file.
const ALLOCATIONS: [&str; 10] = [
    "",
    "sim:0,0%;cpu,100%",
    "sim:0,50%;cpu,50%",
    "sim:0,50%;sim:1,50%",
    "sim:0,20%;cpu,80%",
    "sim:0,100%",
    "sim:0,30%;sim:1,30%;cpu,40%",
    "sim:0,80%;cpu,20%",
    "sim:0,40%;sim:1,60%",
    "sim:0,60%;cpu,40%",
];

fn ids(residency: &Residency) -> Vec<ModelId> {
    residency.models().iter().map(|model| model.id).collect()
}

fn two_machines() -> Residency {
    Residency::new(machine(&["64mb@20gbps", "64mb@20gbps"]))
}

/// What a loader does: registers, claims for its output, and takes the place of what it registered before.
fn loader(
    residency: &Residency,
    file: &ModelFile,
    text: &str,
    retention: Retention,
    before: Option<ModelId>,
) -> ModelClaim {
    let id = load(residency, file, "model", text, retention);
    let claim = residency.claim(id).unwrap();
    if let Some(before) = before {
        residency.supersede(before, id).unwrap();
    }
    claim
}

#[test]
fn ten_allocations_in_turn_are_one_registration_and_its_bytes_once() {
    let file = write_model(1, Encoding::BF16);
    let residency = two_machines();
    let expected = {
        let alone = two_machines();
        let id = load(&alone, &file, "model", "", Retention::Keep);
        run(&alone, id).unwrap()
    };
    let mut output: Option<ModelClaim> = None;
    for text in ALLOCATIONS {
        // The cached output of the loader is replaced when it has run again.
        let before = output.as_ref().map(ModelClaim::id);
        let next = loader(&residency, &file, text, Retention::Keep, before);
        let id = next.id();
        output = Some(next);
        assert_eq!(ids(&residency), [id], "{text}");
        assert_eq!(run(&residency, id).unwrap(), expected, "{text}");
        let alone = two_machines();
        let only = load(&alone, &file, "model", text, Retention::Keep);
        run(&alone, only).unwrap();
        assert_eq!(used(residency.devices()), used(alone.devices()), "{text}: its bytes once");
    }
    let report = residency.free(UNLOAD, &mut || {}).unwrap();
    assert_eq!(report.summary(), "nothing to unload; 1 kept: keep_loaded (model)");
}

#[test]
fn two_loaders_of_one_file_are_two_until_one_goes() {
    let file = write_model(2, Encoding::BF16);
    let residency = two_machines();
    let first = loader(&residency, &file, "", Retention::Keep, None);
    let copy_of_first = first.clone();
    let second = loader(&residency, &file, "sim:0,0%;cpu,100%", Retention::Default, Some(first.id()));
    assert_eq!(ids(&residency), [first.id(), second.id()]);
    let superseded: Vec<bool> = residency.models().iter().map(|model| model.superseded).collect();
    assert_eq!(superseded, [true, false]);
    let retentions: Vec<Retention> = residency.models().iter().map(|model| model.retention).collect();
    assert_eq!(retentions[1], Retention::Keep, "what the earlier loader said passes on");
    for claim in [&first, &second] {
        run(&residency, claim.id()).unwrap();
    }
    drop(first);
    assert_eq!(residency.models().len(), 2, "a cached output still means it");
    drop(copy_of_first);
    assert_eq!(ids(&residency), [second.id()]);
    assert_eq!(run(&residency, second.id()).unwrap().len(), 3 * WIDTH);
}

#[test]
fn the_later_word_rules_and_a_running_job_is_not_disturbed() {
    let file = write_model(3, Encoding::BF16);
    let residency = two_machines();
    let first = load(&residency, &file, "model", "", Retention::Keep);
    let session = residency.open(first, &Cancel::default()).unwrap();
    let expected = forward(&session, &input()).unwrap();
    let second = load(&residency, &file, "model", "sim:0,40%;cpu,60%", Retention::Eject);
    residency.supersede(first, second).unwrap();
    assert_eq!(ids(&residency), [first, second]);
    assert_eq!(residency.models()[1].retention, Retention::Eject);
    assert_eq!(forward(&session, &input()).unwrap(), expected);
    drop(session);
    assert_eq!(ids(&residency), [second]);
    assert!(!residency.contains(first) && residency.contains(second));
    assert_eq!(used(residency.devices()), [0, 0, 0], "and its bytes are back");
}

#[test]
fn one_that_is_asked_for_again_takes_its_place_back() {
    let file = write_model(4, Encoding::BF16);
    let residency = two_machines();
    let first = loader(&residency, &file, "", Retention::Keep, None);
    let second = loader(&residency, &file, "sim:0,40%;cpu,60%", Retention::Keep, Some(first.id()));
    residency.supersede(second.id(), first.id()).unwrap();
    assert_eq!(ids(&residency).len(), 2);
    let gone = second.id();
    drop(second);
    assert_eq!(ids(&residency), [first.id()]);
    // What has left already, or is the same, is no error.
    residency.supersede(gone, first.id()).unwrap();
    residency.supersede(first.id(), first.id()).unwrap();
    assert!(residency.supersede(first.id(), gone).is_err(), "nothing can be replaced by what is not there");
    assert_eq!(ids(&residency), [first.id()]);
    assert!(residency.claim(gone).is_err());
}

#[test]
fn a_press_takes_superseded_models_whatever_they_were_and_counts_none_as_kept() {
    let file = write_model(5, Encoding::BF16);
    let residency = two_machines();
    let first = loader(&residency, &file, "", Retention::Keep, None);
    let second = loader(&residency, &file, "sim:0,40%;cpu,60%", Retention::Keep, Some(first.id()));
    run(&residency, first.id()).unwrap();
    let report = residency.free(UNLOAD, &mut || {}).unwrap();
    assert_eq!(report.summary(), "1 unloaded: model; 1 kept: keep_loaded (model)");
    assert_eq!(report.kept.iter().map(|note| note.id).collect::<Vec<_>>(), [second.id()]);
    assert_eq!((ids(&residency), residency.missing_kept()), (vec![second.id()], 0));
    drop(first);
    drop(second);
    assert_eq!(residency.models().len(), 1, "a claim that goes takes no model with it that nobody replaced");
}
