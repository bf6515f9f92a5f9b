//! Plain graphs, lists, lazy inputs, blockers and failures.

use std::sync::atomic::Ordering;

use graph::{CacheMode, Call, Inputs, RunEnd, Value};
use serde_json::json;

use crate::stage::{Stage, toys};

const MODES: [CacheMode; 3] = [CacheMode::Classic, CacheMode::Lru(100), CacheMode::None];

#[test]
fn a_class_can_be_called_by_hand() {
    let toys = toys();
    let call = Call::alone("Add", Inputs::default().with("a", 2_i64).with("b", 3_i64));
    let outcome = toys.get("Add").unwrap().run(&call).unwrap();
    let graph::Outputs::Slots(slots) = outcome.outputs else { panic!("it is not blocked") };
    assert!(matches!(&slots[0], graph::Slot::One(Value::Literal(value)) if value.as_int() == Some(5)));
    assert_eq!(&*call.child("x"), "1.0.0.x");
    call.progress(1.0, 2.0, None).unwrap();
    let call = Call::alone("Add", Inputs::default().with("a", true).with("b", "x"));
    let failure = toys.get("Add").unwrap().run(&call).unwrap_err();
    assert_eq!(failure.to_string(), "the input \"b\" must be a whole number, but is 'x'");
}

#[test]
fn what_an_output_needs_runs_once_and_in_order() {
    for mode in MODES {
        let ran = Stage::new(mode).run(json!({
            "out": {"class_type": "Show", "inputs": {"value": ["sum", 0]}},
            "sum": {"class_type": "Add", "inputs": {"a": ["one", 0], "b": ["twice", 0]}},
            "twice": {"class_type": "Add", "inputs": {"a": ["one", 0], "b": ["one", 0]}},
            "one": {"class_type": "Number", "inputs": {"value": 1}},
            "idle": {"class_type": "Number", "inputs": {"value": 2}},
        }));
        ran.assert_succeeded();
        assert_eq!(
            ran.log,
            [
                "cached ",
                "start one",
                "done one",
                "start twice",
                "done twice",
                "start sum",
                "done sum",
                "start out",
                "show out {\"value\":[3]}",
                "done out"
            ]
        );
        assert_eq!(ran.shown("out"), "[3]");
        assert_eq!(&*ran.report.identities["out"].class, "Show");
    }
}

#[test]
fn outputs_come_as_early_as_they_can() {
    let ran = Stage::new(CacheMode::None).run(json!({
        "z": {"class_type": "Show", "inputs": {"value": ["z2", 0]}},
        "z2": {"class_type": "Add", "inputs": {"a": ["z1", 0], "b": 0}},
        "z1": {"class_type": "Add", "inputs": {"a": ["z0", 0], "b": 0}},
        "z0": {"class_type": "Number", "inputs": {"value": 1}},
        "a": {"class_type": "Show", "inputs": {"value": ["a1", 0]}},
        "a1": {"class_type": "Number", "inputs": {"value": 2}},
    }));
    // The number that is shown at once goes before the one that is three steps away.
    assert_eq!(ran.started(), ["a1", "a", "z0", "z1", "z2", "z"]);
}

#[test]
fn undeclared_links_are_delivered_and_undeclared_constants_are_not() {
    let ran = Stage::new(CacheMode::Classic).run(json!({
        "1": {"class_type": "Number", "inputs": {"value": 5}},
        "2": {"class_type": "AddAll", "inputs": {"value1": 1, "value2": ["1", 0], "value3": 100}},
        "3": {"class_type": "Show", "inputs": {"value": ["2", 0]}},
    }));
    assert_eq!(ran.shown("3"), "[6]");
}

#[test]
fn a_wrapped_list_is_a_value_and_no_link() {
    let ran = Stage::new(CacheMode::Classic).run(json!({
        "1": {"class_type": "Show", "inputs": {"value": {"__value__": ["1", 0]}}},
        "2": {"class_type": "Show", "inputs": {"value": {"__value__": [1, 2, 3]}}},
    }));
    assert_eq!((ran.shown("1"), ran.shown("2")), ("[[\"1\",0]]".to_owned(), "[[1,2,3]]".to_owned()));
}

#[test]
fn lists_are_taken_apart_and_put_together() {
    let ran = Stage::new(CacheMode::Classic).run(json!({
        "items": {"class_type": "List", "inputs": {"count": 4}},
        "short": {"class_type": "List", "inputs": {"count": 2}},
        "plus": {"class_type": "Add", "inputs": {"a": ["items", 0], "b": ["short", 0]}},
        "sum": {"class_type": "Sum", "inputs": {"values": ["plus", 0]}},
        "all": {"class_type": "Show", "inputs": {"value": ["plus", 0]}},
        "one": {"class_type": "Show", "inputs": {"value": ["sum", 0]}},
    }));
    // The short list 0, 1 goes on as 0, 1, 1, 1.
    assert_eq!(ran.shown("all"), "[0,2,3,4]");
    assert_eq!(ran.shown("one"), "[9]");
}

#[test]
fn an_empty_list_gives_one_call_without_it() {
    let ran = Stage::new(CacheMode::Classic).run(json!({
        "items": {"class_type": "List", "inputs": {"count": 0}},
        "out": {"class_type": "Show", "inputs": {"value": ["items", 0]}},
        "sum": {"class_type": "Sum", "inputs": {"values": ["items", 0]}},
        "two": {"class_type": "Show", "inputs": {"value": ["sum", 0]}},
    }));
    assert!(ran.failure().message.contains("\"value\" is missing"), "{}", ran.failure().message);
}

#[test]
fn a_lazy_input_is_evaluated_only_if_it_is_wanted() {
    for mode in MODES {
        let ran = Stage::new(mode).run(json!({
            "out": {"class_type": "Show", "inputs": {"value": ["switch", 0]}},
            "switch": {"class_type": "Switch", "inputs": {"condition": ["truth", 0], "yes": ["a", 0], "no": ["b", 0]}},
            "truth": {"class_type": "Truth", "inputs": {"value": ["cond", 0]}},
            "cond": {"class_type": "Number", "inputs": {"value": 0}},
            "a": {"class_type": "Fail", "inputs": {"value": ["cond", 0], "how": "error"}},
            "b": {"class_type": "Add", "inputs": {"a": ["cond", 0], "b": 4}},
        }));
        assert_eq!(ran.shown("out"), "[4]");
        // The switch is started, asks, and is started again when it has what it asked for.
        assert_eq!(ran.started(), ["cond", "truth", "switch", "b", "switch", "out"]);
    }
}

#[test]
fn asking_for_an_input_that_is_not_there_fails() {
    let ran = Stage::new(CacheMode::Classic).run(json!({
        "out": {"class_type": "Show", "inputs": {"value": ["switch", 0]}},
        "one": {"class_type": "Number", "inputs": {"value": 0}},
        "switch": {"class_type": "Switch", "inputs": {"condition": false, "yes": ["one", 0]}},
    }));
    assert_eq!(ran.failure().kind, "NodeInputError");
    assert_eq!(&*ran.failure().identity.node, "switch");
}

#[test]
fn a_blocker_skips_what_follows_and_the_run_goes_on() {
    let graph = |message: &str| {
        json!({
            "1": {"class_type": "Number", "inputs": {"value": 5}},
            "2": {"class_type": "Stop", "inputs": {"value": ["1", 0], "stop": true, "message": message}},
            "3": {"class_type": "Add", "inputs": {"a": ["2", 0], "b": 1}},
            "4": {"class_type": "Show", "inputs": {"value": ["3", 0]}},
            "5": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
        })
    };
    let ran = Stage::new(CacheMode::Classic).run(graph(""));
    ran.assert_succeeded();
    assert!(!ran.report.outputs.contains_key("4"));
    assert_eq!(ran.shown("5"), "[5]");
    assert!(!ran.log.iter().any(|line| line.starts_with("blocked")));
    let ran = Stage::new(CacheMode::Classic).run(graph("no more"));
    ran.assert_succeeded();
    let blocked: Vec<&String> = ran.log.iter().filter(|line| line.starts_with("blocked")).collect();
    assert_eq!(blocked, ["blocked 3 Execution Blocked: no more"]);
}

#[test]
fn only_the_blocked_items_of_a_list_are_skipped() {
    let ran = Stage::new(CacheMode::Classic).run(json!({
        "items": {"class_type": "List", "inputs": {"count": 3}},
        "truth": {"class_type": "Truth", "inputs": {"value": ["items", 0]}},
        "stop": {"class_type": "Stop", "inputs": {"value": ["items", 0], "stop": ["truth", 0], "message": ""}},
        "plus": {"class_type": "Add", "inputs": {"a": ["stop", 0], "b": 10}},
        "out": {"class_type": "Show", "inputs": {"value": ["plus", 0]}},
        "sum": {"class_type": "Sum", "inputs": {"values": ["plus", 0]}},
        "none": {"class_type": "Show", "inputs": {"value": ["sum", 0]}},
    }));
    ran.assert_succeeded();
    assert_eq!(ran.shown("out"), "[10]");
    assert!(!ran.report.outputs.contains_key("none"), "one blocker blocks the call that takes the list");
}

#[test]
fn a_failure_says_where_and_with_what() {
    let graph = |how: &str| {
        json!({
            "1": {"class_type": "Thing", "inputs": {"value": 5}},
            "2": {"class_type": "Fail", "inputs": {"value": ["1", 0], "how": how}},
            "3": {"class_type": "Show", "inputs": {"value": ["2", 0]}},
        })
    };
    let ran = Stage::new(CacheMode::Classic).run(graph("error"));
    let failure = ran.failure();
    assert_eq!((&*failure.identity.node, &*failure.identity.class), ("2", "Fail"));
    assert_eq!((failure.kind.as_str(), failure.message.as_str()), ("ValueError", "it is broken"));
    assert_eq!(serde_json::to_string(&failure.inputs).unwrap(), r#"{"value":["thing 5"],"how":["error"]}"#);
    assert_eq!(failure.executed.iter().map(|id| &**id).collect::<Vec<_>>(), ["1"]);
    assert_eq!(failure.outputs.iter().map(|id| &**id).collect::<Vec<_>>(), ["1", "2", "3"]);
    assert_eq!(ran.log.last().unwrap(), "start 2");
    let ran = Stage::new(CacheMode::Classic).run(graph("memory"));
    assert!(ran.failure().is_out_of_memory);
    assert_eq!(ran.failure().kind, "OOMError");
    let ran = Stage::new(CacheMode::None).run(graph("panic"));
    assert!(ran.failure().message.contains("a bug"), "{}", ran.failure().message);
    assert!(ran.failure().outputs.is_empty());
    let ran = Stage::new(CacheMode::None).run(graph("interrupt"));
    assert!(matches!(&ran.report.end, RunEnd::Interrupted { identity, .. } if &*identity.node == "2"));
}

#[test]
fn a_cancelled_job_ends_before_its_next_call() {
    let mut stage = Stage::new(CacheMode::Classic);
    stage.cancel.store(true, Ordering::Relaxed);
    let ran = stage.run(json!({
        "1": {"class_type": "Number", "inputs": {"value": 5}},
        "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
    }));
    let RunEnd::Interrupted { identity, executed } = &ran.report.end else { panic!("{:?}", ran.report.end) };
    assert_eq!(&*identity.node, "1");
    assert!(executed.is_empty());
}

#[test]
fn a_link_to_a_node_that_is_not_there_fails_its_node() {
    let ran = Stage::new(CacheMode::Classic).run(json!({
        "2": {"class_type": "AddAll", "inputs": {"value1": 1, "value2": ["gone", 0]}},
        "3": {"class_type": "Show", "inputs": {"value": ["2", 0]}},
    }));
    assert_eq!((ran.failure().kind.as_str(), &*ran.failure().identity.node), ("NodeNotFoundError", "2"));
}
