//! Blocks that stay on a device are copied there while a session computes with those that are there already.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::{Duration, Instant};

use meta::Encoding;
use residency::{Cancel, Residency, Retention};
use support::*;

/// On this link each of the blocks takes a twentieth of a second.
const SLOW: &str = "64mb@1.32mbps";

#[test]
fn a_session_is_open_at_once_and_waits_for_the_block_that_it_leases() {
    let file = write_model(90, Encoding::F32);
    let quick = Residency::new(machine(&["64mb@50gbps"]));
    let expected = run(&quick, load(&quick, &file, "model", "", Retention::Default)).unwrap();
    let residency = Residency::new(machine(&[SLOW]));
    let id = load(&residency, &file, "model", "", Retention::Default);
    let start = Instant::now();
    let session = residency.open(id, &Cancel::default()).unwrap();
    assert_eq!(residency.take_load_time(id), None, "it is on its way");
    drop(session.lease(0).unwrap());
    let first = start.elapsed();
    assert_eq!(forward(&session, &input()).unwrap(), expected);
    let all = start.elapsed();
    assert!(all > Duration::from_millis(900), "{all:?}: the link is as slow as it should be");
    assert!(first < all / 4, "the first block waited for others: {first:?} of {all:?}");
    let since = Instant::now();
    let (bytes, time) = loop {
        if let Some(told) = residency.take_load_time(id) {
            break told;
        }
        assert!(since.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(bytes >= std::fs::metadata(&file.path).unwrap().len() * 9 / 10, "{bytes}");
    assert!(time > Duration::from_millis(900) && time <= start.elapsed(), "{time:?}");
    assert_eq!(residency.take_load_time(id), None, "it is told once");
    let start = Instant::now();
    assert_eq!(forward(&session, &input()).unwrap(), expected);
    assert!(start.elapsed() < all / 2, "everything is there");
}

#[test]
fn a_model_that_leaves_before_it_has_arrived_gives_everything_back() {
    let file = write_model(91, Encoding::F32);
    let residency = Residency::new(machine(&[SLOW]));
    for allocation in ["", "sim:0,60%;cpu,40%"] {
        let id = load(&residency, &file, "model", allocation, Retention::Default);
        let session = residency.open(id, &Cancel::default()).unwrap();
        drop(session.lease(1).unwrap());
        drop(session);
        let start = Instant::now();
        residency.unload(id).unwrap();
        assert!(
            start.elapsed() < Duration::from_millis(500),
            "what is on its way is waited for: {:?}",
            start.elapsed()
        );
        assert_eq!(used(residency.devices()), [0, 0]);
        assert_nothing_reserved(residency.devices());
    }
}

#[test]
fn whoever_waits_for_a_block_may_be_cancelled_and_others_go_on() {
    let file = write_model(92, Encoding::F32);
    let residency = Residency::new(machine(&[SLOW]));
    let id = load(&residency, &file, "model", "", Retention::Default);
    let cancel = Cancel::default();
    let session = residency.open(id, &cancel).unwrap();
    let start = Instant::now();
    let waited = std::thread::scope(|scope| {
        let waits = scope.spawn(|| session.lease(BLOCKS - 1).map(drop));
        std::thread::sleep(Duration::from_millis(50));
        cancel.cancel();
        waits.join().unwrap()
    });
    assert!(matches!(waited, Err(residency::Error::Cancelled | residency::Error::Device(_))), "{waited:?}");
    assert!(start.elapsed() < Duration::from_millis(600), "{:?}", start.elapsed());
    drop(session);
    assert!(residency.is_staged(id), "the copies are made for whoever comes next");
    assert!(run(&residency, id).is_ok());
}

#[test]
fn a_file_that_changes_before_all_of_it_has_arrived_is_noticed() {
    let file = write_model(93, Encoding::F32);
    let residency = Residency::new(machine(&[SLOW]));
    let id = load(&residency, &file, "model", "", Retention::Default);
    let session = residency.open(id, &Cancel::default()).unwrap();
    drop(session.lease(0).unwrap());
    std::fs::OpenOptions::new().write(true).open(&file.path).unwrap().set_len(4096).unwrap();
    let outcome = forward(&session, &input()).and_then(|_| session.verify());
    let error = outcome.unwrap_err().to_string();
    assert!(error.starts_with("model cannot be read any more"), "{error}");
    drop(session);
    assert!(run(&residency, id).is_err(), "the copies are not trusted");
    residency.unload(id).unwrap();
    assert_eq!(used(residency.devices()), [0, 0]);
}
