//! Whatever only asks answers at once, whatever is loaded, patched or unloaded meanwhile; and copies are made once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use meta::{DeviceId, Encoding};
use residency::{Cancel, ModelId, Residency, Retention};
use support::*;

/// Something that was done, and how long that took.
#[derive(Debug)]
struct Done {
    what: &'static str,
    began: Instant,
    took: Duration,
}

fn timed<T>(what: &'static str, log: &mut Vec<Done>, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = work();
    log.push(Done { what, began, took: began.elapsed() });
    result
}

/// Asks until it is told to stop.
fn poll(residency: &Residency, stop: &AtomicBool) -> Vec<Done> {
    let mut answers = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        timed("ask", &mut answers, || {
            let models = residency.models();
            assert!(models.iter().all(|model| !model.name.is_empty()));
            residency.contains(ModelId(1));
            residency.snapshots().latest();
        });
        std::thread::sleep(Duration::from_millis(1));
    }
    answers
}

/// Loads, patches, patches again, evicts, loads and unloads.
fn keep_busy(residency: &Residency, file: &ModelFile, text: &str, log: &mut Vec<Done>) {
    let id = load(residency, file, "model", text, Retention::Keep);
    let open = || residency.open(id, &Cancel::default()).unwrap();
    let session = timed("load", log, open);
    forward(&session, &input()).unwrap();
    drop(session);
    for strength in [0.5, 0.8] {
        let set = patches_of(file, &manifest(file, "model"), "LoHa", strength);
        assert_eq!(timed("patch", log, || residency.set_patches(id, set).unwrap()), BLOCKS);
    }
    run(residency, id).unwrap();
    timed("evict", log, || residency.evict_from(DeviceId::sim(0), None));
    drop(timed("load", log, open));
    run(residency, id).unwrap();
    timed("unload", log, || residency.unload(id).unwrap());
}

#[test]
fn asking_takes_no_time_while_models_load_patch_and_unload() {
    let file = write_model(1, Encoding::F32);
    // Slow enough that each of these takes several times as long as an answer may.
    let residency = Residency::new(machine(&["64mb@0.003gbps@0.1gflops"]));
    let (stop, mut busy) = (AtomicBool::new(false), Vec::new());
    let answers = std::thread::scope(|scope| {
        let asking = scope.spawn(|| poll(&residency, &stop));
        keep_busy(&residency, &file, "", &mut busy);
        keep_busy(&residency, &file, "sim:0,20%;cpu,80%", &mut busy);
        stop.store(true, Ordering::Relaxed);
        asking.join().unwrap()
    });
    let mut times: Vec<Duration> = answers.iter().map(|answer| answer.took).collect();
    times.sort();
    let (p99, longest) = (times[times.len() * 99 / 100], times[times.len() - 1]);
    println!("{} answers, p99 {p99:?}, longest {longest:?}", times.len());
    assert!(p99 < Duration::from_millis(50), "p99 of {} answers: {p99:?}, longest {longest:?}", times.len());
    let long: Vec<&Done> = busy.iter().filter(|done| done.took > Duration::from_millis(60)).collect();
    for what in ["load", "patch"] {
        assert!(long.iter().any(|done| done.what == what), "{busy:?}");
    }
    // A call that waits for another ends with it, so what counts is how many were answered meanwhile.
    for done in long {
        let inside = |answer: &&Done| answer.began > done.began && answer.began < done.began + done.took;
        let count = answers.iter().filter(inside).count();
        assert!(count as u128 >= done.took.as_millis() / 20, "{count} answers during {done:?}");
    }
}

/// Several that open a model at once share one set of copies.
#[test]
fn copies_are_made_once_however_many_open_the_model() {
    let file = write_model(2, Encoding::F32);
    for text in ["", "sim:0,50%;cpu,50%"] {
        let residency = Residency::new(machine(&["64mb@0.02gbps"]));
        let id = load(&residency, &file, "model", text, Retention::Default);
        let together = Barrier::new(4);
        let outputs: Vec<bool> = std::thread::scope(|scope| {
            let opening: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        together.wait();
                        let session = residency.open(id, &Cancel::default()).unwrap();
                        let lane = session.lane().unwrap().device().id();
                        lane == DeviceId::sim(0)
                    })
                })
                .collect();
            opening.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(outputs, [true; 4]);
        let report = residency.devices().get(DeviceId::sim(0)).unwrap().ledger().report();
        assert_eq!((report.peak, report.reserved), (report.used, 0), "{text}: never more than one set");
        let held = residency.models()[0].bytes.iter().find(|(id, _)| *id == DeviceId::sim(0)).unwrap().1;
        assert_eq!(report.used, held);
    }
}
