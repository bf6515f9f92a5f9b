//! Freeing memory between jobs, after a shortage, and when the host's memory is nearly full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine::EngineConfig;
use graph::{CacheMode, Map};
use residency::{FreeRequest, Retention};

use super::models::{load, names};
use super::support::*;

const BOTH: FreeRequest = FreeRequest { unload_models: true, free_memory: true, force: false };
const UNLOAD: FreeRequest = FreeRequest { unload_models: true, free_memory: false, force: false };

fn count() -> engine::Submission {
    prompt(&[("1", "Count", Map::new())])
}

fn counted(bench: &Bench) -> usize {
    bench.props.counted.load(Ordering::SeqCst)
}

#[test]
fn a_request_is_answered_at_once_and_done_between_jobs() {
    let bench = Bench::new();
    let residency = Arc::clone(&bench.runtime.residency);
    let _files = load(&residency, &[("kept", Retention::Keep), ("plain", Retention::Default)]);
    let held = bench.hold();
    // Requests add up. The quickest of some counts: others use this machine, too.
    let times = (0..5).map(|_| {
        let begun = Instant::now();
        bench.engine.free(BOTH);
        begun.elapsed()
    });
    let quickest = times.min().unwrap();
    assert!(quickest < Duration::from_millis(5), "{quickest:?}");
    let next = bench.submit(wait("next")).prompt_id;
    assert_eq!(names(&residency), ["kept", "plain"], "nothing goes while a job runs");
    bench.props.permit(1);
    bench.told.until_ended(&held);
    bench.props.until_waiting(2);
    assert_eq!(names(&residency), ["kept"], "it is done before the next job starts");
    assert_eq!(bench.told.notices(), ["1 unloaded: plain; 1 kept: keep_loaded (kept)"]);
    bench.props.permit(1);
    bench.told.until_ended(&next);
    assert_eq!(bench.told.notices().len(), 1, "the request is used up");
}

#[test]
fn a_request_wakes_an_idle_worker_and_is_silent_if_nothing_is_kept() {
    let bench = Bench::new();
    let residency = Arc::clone(&bench.runtime.residency);
    let _files = load(&residency, &[("plain", Retention::Default)]);
    bench.engine.free(UNLOAD);
    until("the model leaves", || names(&residency).is_empty());
    let labels =
        || residency.snapshots().latest().iter().map(|snapshot| snapshot.label.clone()).collect::<Vec<_>>();
    until("caches are empty", || labels().last().is_some_and(|label| label == "free: caches emptied"));
    assert!(bench.told.notices().is_empty());
}

#[test]
fn marked_models_go_first_and_a_second_request_takes_the_rest() {
    let bench = Bench::new();
    let residency = Arc::clone(&bench.runtime.residency);
    let models = [("marked", Retention::Eject), ("plain", Retention::Default), ("kept", Retention::Keep)];
    let _files = load(&residency, &models);
    bench.engine.free(BOTH);
    until("the marked one leaves", || names(&residency) == ["plain", "kept"]);
    bench.told.until("the notice", |event| matches!(event, engine::Event::Notice(_)));
    bench.engine.free(BOTH);
    until("the plain one leaves", || names(&residency) == ["kept"]);
    bench.engine.free(FreeRequest { force: true, ..FreeRequest::default() });
    until("all left", || names(&residency).is_empty());
}

#[test]
fn only_free_memory_forgets_cached_outputs() {
    let bench = Bench::new();
    bench.run(count());
    bench.run(count());
    assert_eq!(counted(&bench), 1, "the second run is cached");
    bench.engine.free(UNLOAD);
    bench.run(count());
    assert_eq!(counted(&bench), 1);
    bench.engine.free(BOTH);
    bench.run(count());
    assert_eq!(counted(&bench), 2);
}

#[test]
fn after_a_shortage_every_model_goes_that_is_not_kept() {
    let bench = Bench::new();
    let residency = Arc::clone(&bench.runtime.residency);
    let models = [("marked", Retention::Eject), ("plain", Retention::Default), ("kept", Retention::Keep)];
    let _files = load(&residency, &models);
    let entry = bench.run(fail("memory"));
    assert_eq!(names(&residency), ["kept"], "before the end is told");
    let failure = entry.failure().unwrap();
    assert_eq!(failure.kind, "OOMError");
    assert!(failure.message.starts_with("null:0 has 1 byte"));
    assert!(bench.run(show("after")).succeeded, "the engine goes on");
}

#[test]
fn after_a_shortage_cached_outputs_go_if_they_hold_the_host() {
    // A cache in which other prompts leave the outputs of this one alone.
    let bench = Bench::with(EngineConfig { cache: CacheMode::Lru(100), ..EngineConfig::default() });
    bench.run(count());
    bench.run(fail("memory"));
    bench.run(count());
    assert_eq!(counted(&bench), 1, "there is room enough on the host");
    // More than half of what a runtime without a CPU has.
    let held = bench.runtime.host.room(&[150 << 20]).unwrap();
    bench.run(fail("memory"));
    bench.run(count());
    assert_eq!(counted(&bench), 2);
    drop(held);
}

#[test]
fn cached_outputs_go_when_an_idle_host_is_nearly_full() {
    let used = Arc::new(AtomicU64::new(50));
    let percent = Arc::clone(&used);
    let host_memory: engine::HostMemory = Box::new(move || percent.load(Ordering::SeqCst) as f64 / 100.0);
    // A cache in which other prompts leave the outputs of this one alone.
    let cache = CacheMode::Lru(100);
    let bench =
        Bench::with(EngineConfig { cache, host_memory: Some(host_memory), ..EngineConfig::default() });
    let residency = Arc::clone(&bench.runtime.residency);
    bench.run(count());
    bench.run(count());
    assert_eq!(counted(&bench), 1);
    used.store(90, Ordering::SeqCst);
    bench.run(show("something"));
    until("the executor is reset", || {
        residency.snapshots().latest().iter().any(|snapshot| snapshot.label.starts_with("host memory"))
    });
    bench.run(count());
    assert_eq!(counted(&bench), 2);
    bench.run(count());
    assert_eq!(counted(&bench), 2, "it fires once until memory has fallen");
}
