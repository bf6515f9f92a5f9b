//! Two workers: jobs at the same time, devices for one job at a time, and one queue, cache and memory for all.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::{Engine, EngineConfig, JobStatus, NamedDevices, Submission};
use graph::{CacheMode, Literal, Map, Prompt};
use meta::DeviceId;
use residency::{FreeRequest, Retention};

use super::models::{load, names};
use super::support::*;

/// The devices that a prompt's texts name.
fn named() -> NamedDevices {
    Arc::new(|prompt: &Prompt| {
        let inputs = prompt.nodes.values().filter_map(|node| node.inputs.as_ref()).flatten();
        let words = inputs.filter_map(|(_, value)| Literal::as_text(value)).flat_map(|text| text.split(' '));
        words.filter_map(|word| word.parse().ok()).collect()
    })
}

fn two() -> EngineConfig {
    let workers = vec![DeviceId::null(0), DeviceId::null(1)];
    EngineConfig { workers, named_devices: Some(named()), ..EngineConfig::default() }
}

fn two_at(database: &Path) -> EngineConfig {
    EngineConfig { database: Some(database.to_owned()), ..two() }
}

fn running(engine: &Engine) -> Vec<String> {
    ids(&engine.queue().running)
}

/// Starts jobs that wait for a permit, one after the other; their ids.
fn start(bench: &Bench, jobs: &[&str]) -> Vec<String> {
    let before = bench.props.waiting.load(Ordering::SeqCst);
    let start = |(number, name): (usize, &&str)| {
        let id = bench.submit(wait(name)).prompt_id;
        bench.props.until_waiting(before + number + 1);
        id
    };
    jobs.iter().enumerate().map(start).collect()
}

#[test]
fn two_jobs_run_at_the_same_time_and_a_third_waits() {
    let bench = Bench::with(two());
    let both = start(&bench, &["a", "b"]);
    let third = bench.submit(wait("c")).prompt_id;
    assert_eq!(running(&bench.engine), both);
    assert_eq!(bench.pending(), std::slice::from_ref(&third));
    assert_eq!(bench.engine.remaining(), 3);
    bench.props.permit(1);
    bench.props.until_waiting(3);
    assert!(running(&bench.engine).contains(&third));
    bench.props.permit(2);
    for id in both.iter().chain([&third]) {
        bench.told.until_ended(id);
        assert!(bench.engine.history_entry(id).unwrap().unwrap().succeeded);
    }
}

#[test]
fn events_and_the_history_say_which_worker() {
    let bench = Bench::with(two());
    let both = start(&bench, &["a", "b"]);
    let mut shown: Vec<(String, String)> = bench
        .engine
        .running_nodes()
        .into_iter()
        .map(|node| (node.prompt_id, node.worker.to_string()))
        .collect();
    bench.props.permit(2);
    let mut told = Vec::new();
    for id in &both {
        bench.told.until_ended(id);
        let workers = bench.told.workers_of(id);
        assert_eq!(bench.engine.history_entry(id).unwrap().unwrap().worker.as_ref(), workers.first());
        assert_eq!(workers.len(), 1);
        told.push((id.clone(), workers[0].clone()));
    }
    shown.sort();
    told.sort();
    assert_eq!(shown, told);
    assert_ne!(told[0].1, told[1].1);
    let alone = Bench::new();
    assert_eq!(alone.run(show("x")).worker, None, "one worker needs no name");
}

#[test]
fn an_interrupt_ends_all_that_run_or_the_one_that_is_named() {
    let bench = Bench::with(two());
    let both = start(&bench, &["a", "b"]);
    assert!(bench.engine.interrupt(Some(&both[0])));
    bench.told.until_ended(&both[0]);
    assert_eq!(running(&bench.engine), both[1..]);
    let third = start(&bench, &["c"]).remove(0);
    assert!(bench.engine.interrupt(None));
    for id in [&both[0], &both[1], &third] {
        bench.told.until_ended(id);
        let record = bench.engine.job(id).unwrap().unwrap();
        assert_eq!(record.status, JobStatus::Cancelled);
    }
    assert!(!bench.engine.interrupt(None), "nothing runs");
    let next = start(&bench, &["d", "e"]);
    assert!(bench.engine.cancel(&next[1]));
    bench.told.until_ended(&next[1]);
    assert_eq!(running(&bench.engine), next[..1]);
}

#[test]
fn a_device_is_one_jobs_at_a_time() {
    let bench = Bench::with(two());
    let first = start(&bench, &["null:1"]).remove(0);
    let second = bench.submit(wait("null:1")).prompt_id;
    let third = start(&bench, &["anywhere"]).remove(0);
    assert_eq!(running(&bench.engine), [first.clone(), third.clone()]);
    assert_eq!(bench.pending(), std::slice::from_ref(&second), "its device is the first one's");
    assert!(bench.engine.interrupt(Some(&first)));
    bench.props.until_waiting(3);
    assert_eq!(bench.told.workers_of(&second), ["null:1"]);
    // One that names both devices waits for both, and what comes later waits for it.
    let wide = bench.submit(wait("null:0 null:1")).prompt_id;
    let last = bench.submit(wait("anywhere")).prompt_id;
    assert!(bench.engine.interrupt(Some(&third)));
    bench.told.until_ended(&third);
    assert_eq!(bench.pending(), [wide.clone(), last.clone()]);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(running(&bench.engine), std::slice::from_ref(&second));
    assert!(bench.engine.interrupt(Some(&second)));
    bench.props.until_waiting(4);
    assert_eq!((running(&bench.engine), bench.pending()), (vec![wide.clone()], vec![last.clone()]));
    bench.props.permit(2);
    bench.told.until_ended(&wide);
    bench.told.until_ended(&last);
}

#[test]
fn memory_is_freed_once_when_no_job_runs_and_before_another_begins() {
    let bench = Bench::with(two());
    let residency = Arc::clone(&bench.runtime.residency);
    let models = [("marked", Retention::Eject), ("plain", Retention::Default), ("kept", Retention::Keep)];
    let _files = load(&residency, &models);
    let both = start(&bench, &["a", "b"]);
    bench.engine.free(FreeRequest { unload_models: true, free_memory: true, force: false });
    let next = bench.submit(wait("c")).prompt_id;
    assert!(bench.engine.interrupt(Some(&both[0])));
    bench.told.until_ended(&both[0]);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(names(&residency), ["marked", "plain", "kept"], "a job runs");
    assert_eq!(bench.pending(), std::slice::from_ref(&next), "nothing begins before memory is freed");
    assert!(bench.engine.interrupt(Some(&both[1])));
    bench.props.until_waiting(3);
    assert_eq!(names(&residency), ["plain", "kept"], "one request, whatever the number of workers");
    bench.props.permit(1);
    bench.told.until_ended(&next);
    assert_eq!(bench.told.notices().len(), 1);
}

#[test]
fn a_shortage_beside_another_job_unloads_nothing() {
    let bench = Bench::with(two());
    let residency = Arc::clone(&bench.runtime.residency);
    let _files = load(&residency, &[("plain", Retention::Default)]);
    let other = start(&bench, &["a"]).remove(0);
    bench.run(fail("memory"));
    assert_eq!(names(&residency), ["plain"], "another job may use it");
    bench.props.permit(1);
    bench.told.until_ended(&other);
    bench.run(fail("memory"));
    assert!(names(&residency).is_empty());
}

#[test]
fn outputs_are_cached_for_both() {
    // A cache in which other prompts leave the outputs of this one alone.
    let bench = Bench::with(EngineConfig { cache: CacheMode::Lru(100), ..two() });
    let count = || prompt(&[("1", "Count", Map::new())]);
    bench.run(count());
    // One worker is busy, so the other runs it.
    for _ in 0..2 {
        let held = start(&bench, &["a"]).remove(0);
        bench.run(count());
        bench.props.permit(1);
        bench.told.until_ended(&held);
    }
    assert_eq!(bench.props.counted.load(Ordering::SeqCst), 1);
}

#[test]
fn a_panic_on_one_worker_leaves_the_other_alone() {
    let bench = Bench::with(two());
    let held = start(&bench, &["a"]).remove(0);
    assert!(!bench.run(fail("panic")).succeeded);
    assert!(bench.run(show("after")).succeeded);
    bench.props.permit(1);
    bench.told.until_ended(&held);
    assert!(bench.engine.history_entry(&held).unwrap().unwrap().succeeded);
}

#[test]
fn both_running_jobs_go_on_at_the_next_start() {
    let folder = testkit::ScratchDir::new().unwrap();
    let database = folder.path().join("queue.db");
    let bench = Bench::with(two_at(&database));
    let both = start(&bench, &["a", "b"]);
    drop(bench);
    let bench = Bench::with(two_at(&database));
    bench.props.until_waiting(2);
    let mut again = running(&bench.engine);
    again.sort();
    let mut expected = both.clone();
    expected.sort();
    assert_eq!(again, expected);
    bench.props.permit(2);
    for id in &both {
        bench.told.until_ended(id);
        assert!(bench.engine.history_entry(id).unwrap().unwrap().job.was_requeued);
    }
}

#[test]
fn claims_of_both_are_renewed_while_short_jobs_come_and_go() {
    let lease = Duration::from_millis(300);
    let bench = Bench::with(EngineConfig { lease, ..two() });
    let held = start(&bench, &["a"]).remove(0);
    for number in 0..40 {
        bench.run(Submission { client_id: None, ..show(&number.to_string()) });
        std::thread::sleep(lease / 12);
    }
    bench.props.permit(1);
    bench.told.until_ended(&held);
    let entry = bench.engine.history_entry(&held).unwrap().unwrap();
    assert!(entry.succeeded && !entry.job.was_requeued, "nobody else took it");
}
