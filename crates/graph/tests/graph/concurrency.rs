//! Nodes that wait: side by side, and never in the way of the end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use graph::{
    CacheMode, Executor, Failure, Input, Map, Outcome, RunEnd, RunEvent, RunRequest, Schema, validate,
};
use serde_json::json;

use crate::stage::{PassOn, Stage, Toy, prompt, toys};

/// A node that ends only when three of them run at the same moment.
fn meeting() -> Toy {
    let barrier = Barrier::new(3);
    let schema = Schema::new("Meet", "toys").input(Input::int("value", 0, 0, 9)).output("INT");
    let toy = Toy::new(schema, move |call| {
        barrier.wait();
        Ok(Outcome::one(call.int("value")?))
    });
    toy.concurrent()
}

#[test]
fn waiting_nodes_run_side_by_side_and_start_once() {
    let mut catalogue = toys();
    catalogue.add(meeting());
    let ran = Stage::with(catalogue, CacheMode::Classic).run(json!({
        "1": {"class_type": "Meet", "inputs": {"value": 1}},
        "2": {"class_type": "Meet", "inputs": {"value": 2}},
        "3": {"class_type": "Meet", "inputs": {"value": 3}},
        "4": {"class_type": "AddAll", "inputs": {"value1": ["1", 0], "value2": ["2", 0], "value3": ["3", 0]}},
        "5": {"class_type": "Show", "inputs": {"value": ["4", 0]}},
    }));
    ran.assert_succeeded();
    assert_eq!(ran.shown("5"), "[6]");
    assert_eq!(ran.started().len(), 5);
}

#[test]
fn the_items_of_a_list_wait_side_by_side_and_keep_their_order() {
    let mut catalogue = toys();
    catalogue.add(meeting());
    let ran = Stage::with(catalogue, CacheMode::None).run(json!({
        "0": {"class_type": "List", "inputs": {"count": 3}},
        "1": {"class_type": "Meet", "inputs": {"value": ["0", 0]}},
        "5": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
    }));
    assert_eq!(ran.shown("5"), "[0,1,2]");
}

#[test]
fn others_run_meanwhile() {
    let ran = Stage::new(CacheMode::Classic).run(json!({
        "0": {"class_type": "Number", "inputs": {"value": 1}},
        "1": {"class_type": "Sleep", "inputs": {"value": ["0", 0], "ms": 60}},
        "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
        "3": {"class_type": "Add", "inputs": {"a": ["0", 0], "b": 1}},
        "4": {"class_type": "Show", "inputs": {"value": ["3", 0]}},
    }));
    let at = |line: &str| ran.log.iter().position(|told| told == line).unwrap();
    assert!(at("start 1") < at("start 3") && at("done 4") < at("done 1"));
}

#[test]
fn a_cancelled_job_does_not_wait_for_its_nodes() {
    let mut catalogue = toys();
    let deaf = Schema::new("Deaf", "toys").input(Input::int("value", 0, 0, 9)).output("INT");
    let toy = Toy::new(deaf, |call| {
        std::thread::sleep(Duration::from_millis(1500));
        // By now the run is over: nobody hears of it, and it is told so.
        assert!(call.progress(1.0, 1.0, None).is_err());
        Ok(Outcome::one(call.int("value")?))
    });
    catalogue.add(toy.concurrent());
    let mut stage = Stage::with(catalogue, CacheMode::Classic);
    let cancel = Arc::clone(&stage.cancel);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        cancel.store(true, Ordering::Relaxed);
    });
    let start = Instant::now();
    let ran = stage.run(json!({
        "1": {"class_type": "Deaf", "inputs": {"value": 1}},
        "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
    }));
    assert!(start.elapsed() < Duration::from_millis(1200), "{:?}", start.elapsed());
    assert!(matches!(&ran.report.end, RunEnd::Interrupted { identity, .. } if &*identity.node == "1"));
}

#[test]
fn nothing_is_told_after_the_end() {
    let (told, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut catalogue = toys();
    let late = Schema::new("Late", "toys").input(Input::int("value", 0, 0, 9)).output_node();
    let count = Arc::clone(&ended);
    let toy = Toy::new(late, move |call| {
        call.show_text("in time");
        while call.check().is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        call.show_text("too late");
        count.fetch_add(1, Ordering::Relaxed);
        Ok(Outcome::default())
    });
    catalogue.add(toy.concurrent());
    let mut prompt = prompt(json!({"1": {"class_type": "Late", "inputs": {"value": 1}}}));
    let outputs = validate(&catalogue, &mut prompt, None).unwrap().outputs;
    let (cancel, heard) = (Arc::new(AtomicBool::new(false)), Arc::clone(&told));
    let stop = Arc::clone(&cancel);
    Executor::new(Arc::new(catalogue), CacheMode::Classic).run(RunRequest {
        prompt_id: "job".to_owned(),
        prompt: Arc::new(prompt),
        outputs,
        extra: Map::new(),
        secrets: Map::new(),
        cancel,
        worker: None,
        observer: Arc::new(move |event: RunEvent| {
            if let RunEvent::Text { .. } = event {
                heard.fetch_add(1, Ordering::Relaxed);
                stop.store(true, Ordering::Relaxed);
            }
        }),
    });
    while ended.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

#[test]
fn a_failure_ends_the_run_and_stops_the_others() {
    let stopped = Arc::new(AtomicUsize::new(0));
    let mut catalogue = toys();
    let quick = Schema::new("Quick", "toys").input(Input::int("value", 0, 0, 9)).output("INT");
    let toy = Toy::new(quick, |call| {
        std::thread::sleep(Duration::from_millis(20));
        if call.int("value")? == 1 { panic!("a bug") } else { Err(Failure::value("too quick")) }
    });
    catalogue.add(toy.concurrent());
    let slow = Schema::new("Slow", "toys").input(Input::int("value", 0, 0, 9)).output("INT");
    let count = Arc::clone(&stopped);
    let toy = Toy::new(slow, move |call| {
        loop {
            std::thread::sleep(Duration::from_millis(2));
            call.check().inspect_err(|_| {
                count.fetch_add(1, Ordering::Relaxed);
            })?;
        }
    });
    catalogue.add(toy.concurrent());
    for (value, text) in [(0, "too quick"), (1, "a bug")] {
        let mut stage = Stage::with(catalogue.clone(), CacheMode::Classic);
        let ran = stage.run(json!({
            "1": {"class_type": "Slow", "inputs": {"value": 1}},
            "2": {"class_type": "Quick", "inputs": {"value": value}},
            "3": {"class_type": "Add", "inputs": {"a": ["1", 0], "b": ["2", 0]}},
            "4": {"class_type": "Show", "inputs": {"value": ["3", 0]}},
        }));
        assert!(ran.failure().message.contains(text), "{}", ran.failure().message);
        assert_eq!(&*ran.failure().identity.node, "2");
        assert_eq!(ran.failure().inputs.len(), 1);
    }
    let start = Instant::now();
    while stopped.load(Ordering::Relaxed) < 2 {
        assert!(start.elapsed() < Duration::from_secs(10), "the slow nodes were not stopped");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn more_waiting_calls_than_threads_all_end() {
    let mut catalogue = toys();
    let pass = Schema::new("Pass", "toys").input(Input::socket("value", "*")).output("*");
    catalogue.add(Toy::new(pass, |call| Ok(Outcome::one_value(call.value("value")?))).concurrent());
    let ran = Stage::with(catalogue, CacheMode::None).run(json!({
        "0": {"class_type": "List", "inputs": {"count": 600}},
        "1": {"class_type": "Pass", "inputs": {"value": ["0", 0]}},
        "2": {"class_type": "Sum", "inputs": {"values": ["1", 0]}},
        "5": {"class_type": "Show", "inputs": {"value": ["2", 0]}},
    }));
    assert_eq!(ran.shown("5"), format!("[{}]", 599 * 600 / 2));
}

#[test]
fn a_blocked_waiting_node_is_skipped() {
    let ran = Stage::new(CacheMode::Classic).run(json!({
        "0": {"class_type": "Number", "inputs": {"value": 1}},
        "1": {"class_type": "Stop", "inputs": {"value": ["0", 0], "stop": true, "message": "so"}},
        "2": {"class_type": "Sleep", "inputs": {"value": ["1", 0], "ms": 1}},
        "3": {"class_type": "Show", "inputs": {"value": ["2", 0]}},
    }));
    ran.assert_succeeded();
    assert!(ran.log.contains(&"blocked 2 Execution Blocked: so".to_owned()));
    assert!(ran.report.outputs.is_empty());
}

/// A node that runs alone and does not look whether its job is to end: the job ends, and the next one waits for the node.
#[test]
fn a_deaf_node_keeps_neither_its_job_nor_the_next_one_from_ending_right() {
    let running = Arc::new(AtomicUsize::new(0));
    let mut catalogue = toys();
    let deaf = Schema::new("Deaf", "toys").input(Input::int("ms", 0, 0, 9999)).output("INT");
    let count = Arc::clone(&running);
    catalogue.add(Toy::new(deaf, move |call| {
        assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "nodes run one after the other");
        std::thread::sleep(Duration::from_millis(call.int("ms")?.unsigned_abs()));
        count.fetch_sub(1, Ordering::SeqCst);
        Ok(Outcome::one(call.int("ms")?))
    }));
    let mut stage = Stage::with(catalogue, CacheMode::Classic);
    let prompt = |ms: i64| {
        json!({
            "1": {"class_type": "Deaf", "inputs": {"ms": ms}},
            "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
        })
    };
    let cancel = Arc::clone(&stage.cancel);
    let start = Instant::now();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        cancel.store(true, Ordering::Relaxed);
    });
    let ran = stage.run(prompt(2000));
    assert!(start.elapsed() < Duration::from_millis(1000), "{:?}", start.elapsed());
    assert!(matches!(&ran.report.end, RunEnd::Interrupted { identity, .. } if &*identity.node == "1"));
    stage.cancel = Arc::default();
    let ran = stage.run(prompt(1));
    ran.assert_succeeded();
    assert_eq!(ran.shown("2"), "[1]");
    assert!(start.elapsed() > Duration::from_millis(1990), "{:?}", start.elapsed());
}
