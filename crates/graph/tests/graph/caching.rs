//! What is kept between prompts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use graph::{CacheMode, Catalogue, Input, Object, Outcome, Schema};
use serde_json::{Value as Json, json};

use crate::stage::{Stage, Toy, toys};

fn chain(first: i64, last: i64) -> Json {
    json!({
        "1": {"class_type": "Number", "inputs": {"value": first}},
        "2": {"class_type": "Add", "inputs": {"a": ["1", 0], "b": last}},
        "3": {"class_type": "Show", "inputs": {"value": ["2", 0]}},
    })
}

#[test]
fn an_equal_prompt_runs_nothing_and_shows_the_same() {
    for mode in [CacheMode::Classic, CacheMode::Lru(100)] {
        let mut stage = Stage::new(mode);
        assert_eq!(stage.run(chain(1, 2)).started(), ["1", "2", "3"]);
        let again = stage.run(chain(1, 2));
        assert_eq!(again.log, ["cached 1,2,3", "show 3 {\"value\":[3]}", "done 3"]);
        assert_eq!(again.shown("3"), "[3]");
        stage.executor.reset();
        assert_eq!(stage.run(chain(1, 2)).started(), ["1", "2", "3"]);
    }
}

#[test]
fn only_what_changed_runs() {
    let mut stage = Stage::new(CacheMode::Classic);
    stage.run(chain(1, 2));
    let ran = stage.run(chain(1, 3));
    assert_eq!(ran.cached(), ["1"]);
    assert_eq!(ran.started(), ["2", "3"]);
    assert_eq!(ran.shown("3"), "[4]");
}

#[test]
fn without_a_cache_everything_runs_every_time_and_once() {
    let mut stage = Stage::new(CacheMode::None);
    for _ in 0..2 {
        let ran = stage.run(chain(1, 2));
        assert_eq!((ran.cached().len(), ran.started()), (0, vec!["1", "2", "3"]));
    }
}

#[test]
fn classic_forgets_what_the_next_prompt_has_not() {
    let mut stage = Stage::new(CacheMode::Classic);
    stage.run(chain(1, 2));
    stage.run(chain(4, 2));
    assert_eq!(stage.run(chain(1, 2)).started(), ["1", "2", "3"]);
}

#[test]
fn executors_beside_each_other_share_what_is_kept() {
    for mode in [CacheMode::Classic, CacheMode::Lru(100)] {
        let mut one = Stage::new(mode);
        let mut other = one.beside();
        one.run(chain(1, 2));
        assert_eq!(other.run(chain(1, 2)).cached(), ["1", "2", "3"], "what the one made");
        other.executor.reset();
        assert!(one.run(chain(1, 2)).cached().is_empty(), "forgotten for both");
        other.run(chain(4, 2));
        let left = one.run(chain(1, 2)).cached().len();
        assert_eq!(left, if mode == CacheMode::Classic { 0 } else { 3 }, "a prompt came that has it not");
    }
}

#[test]
fn what_a_running_prompt_has_stays_while_others_begin() {
    let inner = Arc::new(Mutex::new(None::<Stage>));
    let mut catalogue = toys();
    let schema = Schema::new("Meanwhile", "toys").input(Input::int("value", 0, 0, 9)).output("INT");
    let others = Arc::clone(&inner);
    catalogue.add(Toy::new(schema, move |call| {
        // Another executor runs prompts of its own while this one is in the midst of its prompt.
        let mut other = others.lock().unwrap();
        for first in 5..8 {
            other.as_mut().unwrap().run(chain(first, 2));
        }
        Ok(Outcome::one(call.int("value")?))
    }));
    let mut stage = Stage::with(catalogue, CacheMode::Classic);
    *inner.lock().unwrap() = Some(stage.beside());
    let prompt = |value: i64| {
        let mut prompt = chain(1, 2);
        prompt["4"] = json!({"class_type": "Meanwhile", "inputs": {"value": value}});
        prompt["5"] = json!({"class_type": "Show", "inputs": {"value": ["4", 0]}});
        prompt
    };
    stage.run(prompt(1));
    let again = stage.run(prompt(2));
    assert_eq!(again.cached(), ["1", "2", "3"], "what the others began with dropped nothing of it");
    assert_eq!(again.started(), ["4", "5"]);
}

#[test]
fn lru_keeps_what_it_has_room_for() {
    let mut stage = Stage::new(CacheMode::Lru(6));
    stage.run(chain(1, 2));
    stage.run(chain(4, 2));
    assert!(stage.run(chain(1, 2)).started().is_empty());
    stage.run(chain(5, 2));
    // The prompt with 4 was used longest ago, so it went.
    assert!(stage.run(chain(1, 2)).started().is_empty());
    assert_eq!(stage.run(chain(4, 2)).started(), ["1", "2", "3"]);
}

#[test]
fn names_of_nodes_do_not_matter() {
    let mut stage = Stage::new(CacheMode::Classic);
    stage.run(chain(1, 2));
    let ran = stage.run(json!({
        "c": {"class_type": "Show", "inputs": {"value": ["b", 0]}},
        "b": {"class_type": "Add", "inputs": {"b": 2, "a": ["a", 0]}},
        "a": {"class_type": "Number", "inputs": {"value": 1}},
    }));
    assert_eq!(ran.cached(), ["c", "b", "a"]);
    assert_eq!(ran.shown("c"), "[3]");
}

#[test]
fn equal_nodes_of_one_prompt_run_once_unless_they_know_their_names() {
    let twins = json!({
        "1": {"class_type": "Number", "inputs": {"value": 1}},
        "2": {"class_type": "Number", "inputs": {"value": 1}},
        "3": {"class_type": "Add", "inputs": {"a": ["1", 0], "b": ["2", 0]}},
        "4": {"class_type": "Show", "inputs": {"value": ["3", 0]}},
    });
    let ran = Stage::new(CacheMode::Classic).run(twins.clone());
    assert_eq!((ran.started().len(), ran.shown("4").as_str()), (3, "[2]"));
    assert_eq!(Stage::new(CacheMode::None).run(twins).started().len(), 4);
    let ran = Stage::new(CacheMode::Classic).run(json!({
        "0": {"class_type": "Number", "inputs": {"value": 1}},
        "1": {"class_type": "Sleep", "inputs": {"value": ["0", 0], "ms": 0}},
        "2": {"class_type": "Sleep", "inputs": {"value": ["0", 0], "ms": 0}},
        "3": {"class_type": "Add", "inputs": {"a": ["1", 0], "b": ["2", 0]}},
        "4": {"class_type": "Show", "inputs": {"value": ["3", 0]}},
    }));
    assert_eq!(ran.started().len(), 5);
}

#[test]
fn a_fingerprint_says_whether_a_node_changed() {
    for (how, runs_again) in [("never", false), ("always", true), ("broken", true)] {
        let graph = json!({
            "1": {"class_type": "Changing", "inputs": {"how": how}},
            "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
        });
        let mut stage = Stage::new(CacheMode::Classic);
        stage.run(graph.clone());
        assert_eq!(!stage.run(graph).started().is_empty(), runs_again, "{how}");
    }
}

#[test]
fn what_ended_well_before_a_failure_stays() {
    let graph = |how: &str| {
        json!({
            "1": {"class_type": "Number", "inputs": {"value": 5}},
            "2": {"class_type": "Fail", "inputs": {"value": ["1", 0], "how": how}},
            "3": {"class_type": "Show", "inputs": {"value": ["2", 0]}},
        })
    };
    let mut stage = Stage::new(CacheMode::Classic);
    stage.run(graph("error"));
    assert_eq!(stage.run(graph("error")).cached(), ["1"]);
}

/// An object that is counted while it lives.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>) -> Counted {
        alive.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(alive))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Object for Counted {
    fn describe(&self) -> String {
        "counted".to_owned()
    }
}

/// A class whose outputs are counted while they live; `most` has the greatest number at its calls.
fn counting(alive: &Arc<AtomicUsize>, most: &Arc<AtomicUsize>) -> Catalogue {
    let mut catalogue = toys();
    let schema = Schema::new("Count", "toys")
        .input(Input::int("value", 0, 0, 1000))
        .input(Input::socket("last", "COUNTED").optional())
        .output("COUNTED");
    let (alive, most) = (Arc::clone(alive), Arc::clone(most));
    catalogue.add(Toy::new(schema, move |_| {
        most.fetch_max(alive.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(Outcome::object(Counted::new(&alive)))
    }));
    catalogue
}

fn counted_chain(length: usize, first: i64) -> Json {
    let mut prompt = json!({
        "0": {"class_type": "Count", "inputs": {"value": first}},
        "out": {"class_type": "Show", "inputs": {"value": [(length - 1).to_string(), 0]}},
    });
    for at in 1..length {
        prompt[at.to_string()] =
            json!({"class_type": "Count", "inputs": {"value": at, "last": [(at - 1).to_string(), 0]}});
    }
    prompt
}

#[test]
fn without_a_cache_a_value_lives_until_its_last_reader_is_done() {
    let (alive, most) = (Arc::default(), Arc::default());
    let mut stage = Stage::with(counting(&alive, &most), CacheMode::None);
    stage.run(counted_chain(20, 1)).assert_succeeded();
    // The one that is read, while the next is made.
    assert_eq!(most.load(Ordering::Relaxed), 1);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn classic_lets_go_before_it_makes_anew() {
    let (alive, most) = (Arc::default(), Arc::default());
    let mut stage = Stage::with(counting(&alive, &most), CacheMode::Classic);
    stage.run(counted_chain(20, 1)).assert_succeeded();
    assert_eq!((alive.load(Ordering::Relaxed), most.load(Ordering::Relaxed)), (20, 19));
    stage.run(counted_chain(20, 2)).assert_succeeded();
    assert_eq!((alive.load(Ordering::Relaxed), most.load(Ordering::Relaxed)), (20, 19));
    stage.executor.reset();
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

/// Something that stands for a file, which may have changed.
#[derive(Debug)]
struct OfAFile(Arc<AtomicBool>);

impl Object for OfAFile {
    fn describe(&self) -> String {
        "of a file".to_owned()
    }

    fn is_current(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn what_does_not_stand_for_its_file_any_more_is_made_anew() {
    let (current, made) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let mut catalogue = toys();
    let schema = Schema::new("Load", "toys").output("FILE");
    let (file, count) = (Arc::clone(&current), Arc::clone(&made));
    catalogue.add(Toy::new(schema, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        file.store(true, Ordering::Relaxed);
        Ok(Outcome::object(OfAFile(Arc::clone(&file))))
    }));
    let schema = Schema::new("Use", "toys")
        .input(Input::int("value", 0, 0, 9))
        .input(Input::socket("file", "FILE"))
        .output("INT");
    catalogue.add(Toy::new(schema, |call| Ok(Outcome::one(call.int("value")?))));
    let mut stage = Stage::with(catalogue, CacheMode::Classic);
    let prompt = |value: i64| {
        json!({
            "load": {"class_type": "Load", "inputs": {}},
            "use": {"class_type": "Use", "inputs": {"value": value, "file": ["load", 0]}},
            "out": {"class_type": "Show", "inputs": {"value": ["use", 0]}},
        })
    };
    let mut run = |value: i64| {
        stage.run(prompt(value)).assert_succeeded();
        made.load(Ordering::Relaxed)
    };
    assert_eq!([run(1), run(2)], [1, 1]);
    current.store(false, Ordering::Relaxed);
    assert_eq!([run(3), run(4)], [2, 2]);
}
