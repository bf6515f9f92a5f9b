//! Nodes that are replaced by graphs of nodes.

use std::sync::{Arc, Mutex};

use graph::{CacheMode, GraphInput, Hidden, Input, Link, Outcome, RunEnd, Schema, Slot, Value};
use serde_json::{Value as Json, json};

use crate::stage::{Stage, Thing, Toy, constant, node, toys};

const MODES: [CacheMode; 3] = [CacheMode::Classic, CacheMode::Lru(1000), CacheMode::None];

#[allow(clippy::needless_pass_by_value, reason = "callers write the inputs in place")]
fn of(class: &str, inputs: Json) -> Json {
    json!({
        "1": {"class_type": class, "inputs": inputs},
        "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
    })
}

#[test]
fn an_expansion_runs_in_its_nodes_place() {
    for mode in MODES {
        let ran = Stage::new(mode).run(of("Triple", json!({"value": 5})));
        ran.assert_succeeded();
        assert_eq!(ran.shown("2"), "[15]");
        assert_eq!(ran.started(), ["1", "1.0.0.twice", "1.0.0.thrice", "2"]);
        assert!(ran.log.contains(&"done 1".to_owned()));
    }
}

#[test]
fn an_expansion_of_a_list_has_its_own_nodes_for_each_item() {
    let ran = Stage::new(CacheMode::Classic).run(json!({
        "0": {"class_type": "List", "inputs": {"count": 3}},
        "1": {"class_type": "Triple", "inputs": {"value": ["0", 0]}},
        "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
    }));
    assert_eq!(ran.shown("2"), "[0,3,6]");
    assert!(ran.started().contains(&"1.2.0.thrice"));
}

#[test]
fn a_loop_runs_to_its_end_and_its_result_is_kept() {
    for mode in MODES {
        let mut stage = Stage::new(mode);
        let graph = of("Repeat", json!({"times": 200, "value": 0}));
        let ran = stage.run(graph.clone());
        ran.assert_succeeded();
        assert_eq!(ran.shown("2"), "[200]");
        let again = stage.run(graph);
        assert_eq!(again.started().is_empty(), mode != CacheMode::None);
        assert_eq!(again.shown("2"), "[200]");
    }
}

#[test]
fn classic_keeps_what_the_last_expansion_left_while_its_node_is_there() {
    let mut stage = Stage::new(CacheMode::Classic);
    stage.run(of("Triple", json!({"value": 5})));
    // Another value expands anew; coming back to the first one finds nothing.
    assert_eq!(stage.run(of("Triple", json!({"value": 6}))).started().len(), 4);
    assert_eq!(stage.run(of("Triple", json!({"value": 5}))).started().len(), 4);
    // A longer loop uses what the shorter one left: the sums are the same.
    stage.run(of("Repeat", json!({"times": 2, "value": 0})));
    let ran = stage.run(of("Repeat", json!({"times": 3, "value": 0})));
    assert_eq!(ran.shown("2"), "[3]");
    assert_eq!(ran.started().iter().filter(|id| id.ends_with("more")).count(), 1);
}

#[test]
fn events_show_the_node_that_expanded_or_the_one_it_names() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let mut catalogue = toys();
    let spy = Schema::new("Spy", "toys").input(Input::int("value", 0, 0, 9)).output("INT");
    let heard = Arc::clone(&told);
    catalogue.add(Toy::new(spy, move |call| {
        let identity = &call.identity;
        heard.lock().unwrap().push(format!("{} {:?} {}", identity.display, identity.parent, identity.real));
        assert_eq!(call.job.graph.display_of(&identity.node), identity.display);
        Ok(Outcome::one(call.int("value")?))
    }));
    let outer = Schema::new("Outer", "toys").input(Input::int("depth", 0, 0, 9)).output("INT");
    catalogue.add(Toy::new(outer, |call| {
        let depth = call.int("depth")?;
        let child = call.child("c");
        let new = if depth == 0 {
            let mut spy = node("Spy", [("value", constant(3_i64))]);
            spy.display = Some("elsewhere".into());
            spy
        } else {
            node("Outer", [("depth", constant(depth - 1))])
        };
        let plain = (call.child("p"), node("Spy", [("value", constant(depth))]));
        let slots = [Slot::Link(Link::new(Arc::clone(&child), 0)), Slot::Link(Link::new(call.child("p"), 0))];
        Ok(Outcome::slots(slots).expanding([(child, new), plain].into_iter().collect()))
    }));
    let ran = Stage::with(catalogue, CacheMode::None).run(of("Outer", json!({"depth": 1})));
    ran.assert_succeeded();
    let mut told = told.lock().unwrap().clone();
    told.sort();
    assert_eq!(told, ["1 Some(\"1\") 1", "1 Some(\"1.0.0.c\") 1", "elsewhere Some(\"1.0.0.c\") 1"]);
}

#[test]
fn values_in_memory_travel_into_an_expansion_and_are_not_kept() {
    let mut catalogue = toys();
    let wrap = Schema::new("Wrap", "toys").input(Input::int("value", 0, 0, 9)).output("THING");
    catalogue.add(Toy::new(wrap, |call| {
        let child = call.child("pass");
        let inputs = [
            ("value", GraphInput::Value(Value::object(Thing(call.int("value")?)))),
            ("stop", constant(false)),
            ("message", constant("")),
        ];
        let nodes = [(Arc::clone(&child), node("Stop", inputs))];
        Ok(Outcome::slots([Slot::Link(Link::new(child, 0))]).expanding(nodes.into_iter().collect()))
    }));
    let mut stage = Stage::with(catalogue, CacheMode::Classic);
    assert_eq!(stage.run(of("Wrap", json!({"value": 4}))).shown("2"), "[\"thing 4\"]");
    assert!(stage.run(of("Wrap", json!({"value": 4}))).started().is_empty());
}

#[test]
fn outputs_of_an_expansion_run_too() {
    let mut catalogue = toys();
    let peek = Schema::new("Peek", "toys").input(Input::int("value", 0, 0, 9)).output("INT");
    catalogue.add(Toy::new(peek, |call| {
        let nodes = [(call.child("show"), node("Show", [("value", constant(call.int("value")?))]))];
        Ok(Outcome::one(call.int("value")?).expanding(nodes.into_iter().collect()))
    }));
    for mode in MODES {
        let ran = Stage::with(catalogue.clone(), mode).run(of("Peek", json!({"value": 4})));
        ran.assert_succeeded();
        assert_eq!((ran.shown("2"), ran.shown("1.0.0.show")), ("[4]".to_owned(), "[4]".to_owned()));
        assert_eq!(&*ran.report.identities["1.0.0.show"].real, "1");
    }
}

#[test]
fn a_cycle_in_an_expansion_is_blamed_on_the_node_that_expanded() {
    for mode in MODES {
        let ran = Stage::new(mode).run(of("Ring", json!({"value": 1})));
        assert_eq!(ran.failure().kind, "graph.DependencyCycleError");
        assert_eq!((&*ran.failure().identity.node, &*ran.failure().identity.class), ("1", "Ring"));
    }
}

#[test]
fn a_failure_in_an_expansion_is_the_users_nodes() {
    let mut catalogue = toys();
    let bad = Schema::new("Bad", "toys").input(Input::int("how", 0, 0, 9)).output("INT");
    catalogue.add(Toy::new(bad, |call| {
        let child = call.child("c");
        let new = match call.int("how")? {
            0 => node("Fail", [("value", constant(1_i64)), ("how", constant("error"))]),
            1 => node("Nowhere", []),
            _ => node("Add", [("a", GraphInput::Link(Link::new("gone", 0))), ("b", constant(0_i64))]),
        };
        let id = if call.int("how")? == 3 { "2".into() } else { Arc::clone(&child) };
        Ok(Outcome::slots([Slot::Link(Link::new(child, 0))]).expanding([(id, new)].into_iter().collect()))
    }));
    let kinds = ["ValueError", "KeyError", "NodeNotFoundError", "DuplicateNodeError"];
    for (how, kind) in kinds.into_iter().enumerate() {
        let ran = Stage::with(catalogue.clone(), CacheMode::Classic).run(of("Bad", json!({"how": how})));
        let failure = ran.failure();
        assert_eq!((failure.kind.as_str(), &*failure.identity.real), (kind, "1"));
        assert_eq!(&*failure.identity.node == "1.0.0.c", how == 0);
    }
}

#[test]
fn raw_links_and_the_graph_let_a_node_clone_others() {
    let mut catalogue = toys();
    let again = Schema::new("Again", "toys")
        .input(Input::socket("source", "INT").with("rawLink", true))
        .input(Input::int("plus", 0, 0, 9))
        .hidden("graph", Hidden::DynamicPrompt)
        .output("INT");
    catalogue.add(Toy::new(again, |call| {
        let link = &call.inputs.raw_links["source"];
        assert!(call.inputs.first("source").is_none());
        let mut clone = call.job.graph.node(&link.node).unwrap();
        clone.inputs.insert("b".to_owned(), constant(call.int("plus")?));
        clone.display = Some(Arc::clone(&link.node));
        let child = call.child("clone");
        let nodes = [(Arc::clone(&child), clone)];
        Ok(Outcome::slots([Slot::Link(Link::new(child, 0))]).expanding(nodes.into_iter().collect()))
    }));
    for mode in MODES {
        let ran = Stage::with(catalogue.clone(), mode).run(json!({
            "0": {"class_type": "Number", "inputs": {"value": 4}},
            "1": {"class_type": "Add", "inputs": {"a": ["0", 0], "b": 1}},
            "2": {"class_type": "Again", "inputs": {"source": ["1", 0], "plus": 5}},
            "3": {"class_type": "Show", "inputs": {"value": ["2", 0]}},
        }));
        assert_eq!(ran.shown("3"), "[9]");
        // The clone is linked to node 0, which ran before and does not run again.
        assert_eq!(ran.started(), ["0", "1", "2", "2.0.0.clone", "3"]);
    }
}

#[test]
fn a_loop_can_be_interrupted_and_names_the_users_node() {
    let mut catalogue = toys();
    let quit = Schema::new("Quit", "toys").input(Input::int("value", 0, 0, 9)).output("INT");
    catalogue.add(Toy::new(quit, |call| {
        let child = call.child("c");
        let new = node("Fail", [("value", constant(1_i64)), ("how", constant("interrupt"))]);
        let nodes = [(Arc::clone(&child), new)];
        Ok(Outcome::slots([Slot::Link(Link::new(child, 0))]).expanding(nodes.into_iter().collect()))
    }));
    let ran = Stage::with(catalogue, CacheMode::None).run(of("Quit", json!({"value": 1})));
    assert!(matches!(&ran.report.end, RunEnd::Interrupted { identity, .. } if &*identity.real == "1"));
}
