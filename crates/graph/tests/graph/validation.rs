//! What validation says of prompts, error by error.

use graph::{
    Catalogue, ErrorDetail, Failure, Input, Literal, Outcome, Rejected, Schema, Validates, Verdict, validate,
};
use serde_json::{Value as Json, json};

use crate::stage::{Toy, check, facts_of, literal, prompt, toys};

fn rejected(json: Json) -> Box<Rejected> {
    check(json).unwrap_err()
}

/// A node of a class, shown.
#[allow(clippy::needless_pass_by_value, reason = "callers write the inputs in place")]
fn of(class: &str, inputs: Json) -> Json {
    json!({
        "1": {"class_type": class, "inputs": inputs},
        "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
    })
}

fn errors_in(catalogue: &Catalogue, json: Json, node: &str) -> Vec<ErrorDetail> {
    let rejected = validate(catalogue, &mut prompt(json), None).unwrap_err();
    assert_eq!(rejected.error.kind, "prompt_outputs_failed_validation");
    rejected.node_errors[node].errors.clone()
}

/// The only error of node 1.
fn error(class: &str, inputs: Json) -> ErrorDetail {
    let mut errors = errors_in(&toys(), of(class, inputs), "1");
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.remove(0)
}

/// The inputs of node 1 after validation.
fn converted(class: &str, inputs: Json) -> String {
    let mut prompt = prompt(of(class, inputs));
    validate(&toys(), &mut prompt, None).unwrap();
    serde_json::to_string(prompt.nodes["1"].inputs.as_ref().unwrap()).unwrap()
}

#[test]
fn unknown_and_missing_classes_are_told_first() {
    let it = rejected(json!({
        "1": {"class_type": "Nowhere", "inputs": {}, "_meta": {"title": "My node"}},
        "2": {"inputs": {}},
    }));
    assert_eq!((it.error.kind.as_str(), it.error.details.as_str()), ("missing_node_type", "Node ID '#1'"));
    let info = literal(json!({"node_id": "1", "class_type": "Nowhere", "node_title": "My node"}));
    assert_eq!(Literal::Map(facts_of(&it.error)), info);
    assert!(it.node_errors.is_empty());
    let it = rejected(json!({"2": {"inputs": {}}}));
    let info = literal(json!({"node_id": "2", "class_type": null, "node_title": null}));
    assert_eq!(Literal::Map(facts_of(&it.error)), info);
    let it = rejected(json!({"2": 7}));
    assert_eq!(it.error.kind, "missing_node_type");
}

#[test]
fn a_prompt_needs_an_output() {
    assert_eq!(rejected(json!({})).error.kind, "prompt_no_outputs");
    assert_eq!(
        rejected(json!({"1": {"class_type": "Number", "inputs": {}}})).error.kind,
        "prompt_no_outputs"
    );
}

#[test]
fn targets_choose_among_the_outputs() {
    let two = || {
        prompt(json!({
            "1": {"class_type": "Number", "inputs": {"value": 1}},
            "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
            "3": {"class_type": "Show", "inputs": {"value": ["9", 0]}},
        }))
    };
    let targets = |ids: &[&str]| -> Vec<String> { ids.iter().map(|id| (*id).to_owned()).collect() };
    let accepted = validate(&toys(), &mut two(), Some(&targets(&["2", "1", "x"]))).unwrap();
    assert_eq!((accepted.outputs.len(), accepted.node_errors.len()), (1, 0));
    for none in [&[][..], &["1"], &["x"]] {
        let it = validate(&toys(), &mut two(), Some(&targets(none))).unwrap_err();
        assert_eq!(it.error.kind, "prompt_no_outputs");
    }
    // Without targets the good output runs, and the bad one is told.
    let accepted = validate(&toys(), &mut two(), None).unwrap();
    assert_eq!(accepted.outputs.iter().map(|id| &**id).collect::<Vec<_>>(), ["2"]);
    let problems = &accepted.node_errors["3"];
    assert_eq!(problems.errors[0].kind, "exception_during_validation");
    assert_eq!((problems.class_type.as_str(), &*problems.dependent_outputs[0]), ("Show", "3"));
}

#[test]
fn constants_are_converted_in_place() {
    assert_eq!(converted("Add", json!({"a": "32", "b": 5.7})), r#"{"a":32,"b":5}"#);
    assert_eq!(converted("Add", json!({"a": {"__value__": "7"}, "b": true})), r#"{"a":7,"b":1}"#);
    assert_eq!(converted("Text", json!({"text": true})), r#"{"text":"True"}"#);
    assert_eq!(converted("Text", json!({"text": 1.0})), r#"{"text":"1.0"}"#);
    assert_eq!(converted("Text", json!({"text": {"__value__": [1, "a"]}})), r#"{"text":"[1, 'a']"}"#);
    // A list stays in its wrapper, or it would be taken for a link.
    let wrapped = json!({"condition": 1, "yes": {"__value__": ["1", 0]}});
    assert_eq!(converted("Switch", wrapped), r#"{"condition":true,"yes":{"__value__":["1",0]}}"#);
    let switch = json!({"condition": "false", "yes": 1});
    assert_eq!(converted("Switch", switch), r#"{"condition":true,"yes":1}"#);
    let other = json!({"condition": "", "yes": 1, "unknown": "7"});
    assert_eq!(converted("Switch", other), r#"{"condition":false,"yes":1,"unknown":"7"}"#);
}

#[test]
fn a_missing_input_is_named() {
    let it = error("Number", json!({}));
    assert_eq!((it.kind.as_str(), it.details.as_str()), ("required_input_missing", "value"));
    assert_eq!(Literal::Map(facts_of(&it)), literal(json!({"input_name": "value"})));
}

#[test]
fn a_list_must_be_a_link() {
    let it = error("Number", json!({"value": [1, 2, 3]}));
    assert_eq!((it.kind.as_str(), it.details.as_str()), ("bad_linked_input", "value"));
    let config = json!(["INT", {"default": 0, "min": -1000, "max": 1000}]);
    let info = literal(json!({"input_name": "value", "input_config": config, "received_value": [1, 2, 3]}));
    assert_eq!(Literal::Map(facts_of(&it)), info);
    assert_eq!(error("Number", json!({"value": []})).kind, "bad_linked_input");
}

#[test]
fn linked_types_must_match() {
    let it = errors_in(
        &toys(),
        json!({
            "0": {"class_type": "Text", "inputs": {"text": ""}},
            "1": {"class_type": "Number", "inputs": {"value": ["0", 0]}},
            "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
        }),
        "1",
    );
    assert_eq!(it[0].kind, "return_type_mismatch");
    assert!(["value", "STRING", "INT"].iter().all(|part| it[0].details.contains(part)), "{}", it[0].details);
    let info = &facts_of(&it[0]);
    assert_eq!((&info["received_type"], &info["linked_node"]), (&"STRING".into(), &literal(json!(["0", 0]))));
    assert!(info.contains_key("input_config"));
}

#[test]
fn values_that_cannot_be_converted_are_told() {
    let it = error("Number", json!({"value": "many"}));
    assert_eq!(it.kind, "invalid_input_type");
    assert!(it.details.starts_with("value, many, "), "{}", it.details);
    let facts = facts_of(&it);
    let keys: Vec<&str> = facts.keys().map(String::as_str).collect();
    assert_eq!(keys, ["input_name", "input_config", "received_value", "exception_message"]);
    for bad in [json!(null), json!({}), json!("1.5"), json!({"__value__": [1]})] {
        assert_eq!(error("Number", json!({"value": bad})).kind, "invalid_input_type");
    }
}

#[test]
fn ranges_are_kept() {
    assert_eq!(error("Number", json!({"value": -1001})).kind, "value_smaller_than_min");
    let it = error("Number", json!({"value": "1001"}));
    assert_eq!((it.kind.as_str(), it.details.as_str()), ("value_bigger_than_max", "value"));
    assert_eq!(facts_of(&it)["received_value"], Literal::Int(1001));
    assert_eq!(error("Number", json!({"value": 1e300})).kind, "value_bigger_than_max");
    // A seed goes up to 2^64 - 1, and no further.
    let mut catalogue = toys();
    let seed = Schema::new("Seed", "toys").input(Input::seed("seed")).output("INT");
    catalogue.add(Toy::new(seed, |_| Ok(Outcome::one(0_i64))));
    validate(&catalogue, &mut prompt(of("Seed", json!({"seed": u64::MAX}))), None).unwrap();
    let errors = errors_in(&catalogue, of("Seed", json!({"seed": "18446744073709551616"})), "1");
    assert_eq!(errors[0].kind, "value_bigger_than_max");
}

#[test]
fn a_choice_must_be_in_its_list() {
    let it = error("Changing", json!({"how": "sometimes"}));
    assert_eq!(it.kind, "value_not_in_list");
    assert!(it.details.contains("'sometimes'") && it.details.contains("'always'"), "{}", it.details);
    assert!(!it.details.contains("did you mean"), "{}", it.details);
    let slip = error("Changing", json!({"how": "allways"}));
    assert!(slip.details.ends_with("did you mean 'always'?"), "{}", slip.details);
    let config = literal(json!([["never", "always", "broken"], {}]));
    assert_eq!(facts_of(&it)["input_config"], config);
    let mut catalogue = toys();
    let many = Input::choice("which", 0..30);
    catalogue.add(Toy::new(Schema::new("Many", "toys").input(many).output("*"), |_| Ok(Outcome::one(0_i64))));
    let it = errors_in(&catalogue, of("Many", json!({"which": 30})), "1");
    assert_eq!(facts_of(&it[0])["input_config"], Literal::Null);
    assert!(it[0].details.contains("30 values"), "{}", it[0].details);
    let it = errors_in(&catalogue, of("Many", json!({"which": [1, 2, 3]})), "1");
    assert_eq!(facts_of(&it[0])["input_config"], literal(json!(["COMBO", {}])));
    // Python's 1.0 and True are in a list that has 1.
    for good in [json!(1), json!(1.0), json!(true)] {
        validate(&catalogue, &mut prompt(of("Many", json!({"which": good}))), None).unwrap();
    }
}

#[test]
fn several_choices_are_checked_one_by_one_and_remote_ones_not() {
    let mut catalogue = toys();
    let add = |catalogue: &mut Catalogue, class: &str, input: Input| {
        catalogue
            .add(Toy::new(Schema::new(class, "toys").input(input).output("*"), |_| Ok(Outcome::one(0_i64))));
    };
    add(&mut catalogue, "Several", Input::choice("which", ["a", "b", "c"]).with("multiselect", true));
    add(&mut catalogue, "Remote", Input::choice("which", ["a"]).with("remote_combo", true));
    for good in [json!(["a", "b"]), json!({"__value__": ["a", "b", "c"]}), json!(["a"]), json!([])] {
        validate(&catalogue, &mut prompt(of("Several", json!({"which": good}))), None).unwrap();
    }
    let it = errors_in(&catalogue, of("Several", json!({"which": ["a", "x", "c"]})), "1");
    assert_eq!(
        (it[0].kind.as_str(), &facts_of(&it[0])["received_value"]),
        ("value_not_in_list", &"x".into())
    );
    validate(&catalogue, &mut prompt(of("Remote", json!({"which": "z"}))), None).unwrap();
}

#[test]
fn faulty_shapes_are_exceptions_of_the_output_or_of_the_linked_node() {
    for bad in [json!(["gone", 0]), json!(["1", 9]), json!(["1", -1]), json!([1, 0]), json!(["1", "0"])] {
        let it = rejected(json!({
            "1": {"class_type": "Number", "inputs": {"value": 1}},
            "2": {"class_type": "Show", "inputs": {"value": bad}},
        }));
        let error = &it.node_errors["2"].errors[0];
        assert_eq!(error.kind, "exception_during_validation", "{bad}");
        assert_eq!(facts_of(error)["traceback"], Literal::List(Vec::new()));
        assert!(facts_of(error).contains_key("exception_type"));
    }
    let it = rejected(json!({"2": {"class_type": "Show"}}));
    assert_eq!(it.node_errors["2"].errors[0].kind, "exception_during_validation");
    // The same faults one step further up are filed with the node that has them.
    for faulty in
        [json!({"class_type": "Number"}), json!({"class_type": "Number", "inputs": {"value": ["gone", 0]}})]
    {
        let it = rejected(json!({"1": faulty, "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}}}));
        assert_eq!(it.node_errors.keys().map(|id| &**id).collect::<Vec<_>>(), ["1"]);
        let error = &it.node_errors["1"].errors[0];
        assert_eq!(error.kind, "exception_during_inner_validation");
        let facts = facts_of(error);
        let keys: Vec<&str> = facts.keys().map(String::as_str).collect();
        let expected =
            ["input_name", "input_config", "exception_message", "exception_type", "traceback", "linked_node"];
        assert_eq!(keys, expected);
        assert_eq!(it.error.details, "", "the fault is not the output's own");
    }
}

#[test]
fn a_cycle_is_told_on_each_of_its_nodes() {
    let it = rejected(json!({
        "1": {"class_type": "Add", "inputs": {"a": ["2", 0], "b": 1}},
        "2": {"class_type": "Add", "inputs": {"a": ["1", 0], "b": ["3", 0]}},
        "3": {"class_type": "Number", "inputs": {"value": 1}},
        "4": {"class_type": "Add", "inputs": {"a": ["4", 0], "b": ["1", 0]}},
        "5": {"class_type": "Show", "inputs": {"value": ["4", 0]}},
    }));
    let mut nodes: Vec<&str> = it.node_errors.keys().map(|id| &**id).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["1", "2", "4"]);
    let error = &it.node_errors["2"].errors[0];
    assert_eq!((error.kind.as_str(), &facts_of(error)["node_id"]), ("dependency_cycle", &"2".into()));
    assert_eq!(facts_of(error)["cycle_nodes"], literal(json!(["1", "2"])));
    assert_eq!(facts_of(&it.node_errors["4"].errors[0])["cycle_nodes"], literal(json!(["4"])));
    assert_eq!(&*it.node_errors["2"].dependent_outputs[0], "5");
}

#[test]
fn each_faulty_node_names_the_outputs_that_need_it() {
    let it = rejected(json!({
        "bad": {"class_type": "Number", "inputs": {"value": 5000}},
        "mid": {"class_type": "Add", "inputs": {"a": ["bad", 0], "b": "x"}},
        "o1": {"class_type": "Show", "inputs": {"value": ["mid", 0]}},
        "o2": {"class_type": "Show", "inputs": {"value": ["bad", 0]}},
        "o3": {"class_type": "Show", "inputs": {}},
    }));
    let dependents = |id: &str| it.node_errors[id].dependent_outputs.join(",");
    assert_eq!(
        (dependents("bad"), dependents("mid"), dependents("o3")),
        ("o1,o2".into(), "o1".into(), "o3".into())
    );
    assert_eq!(it.node_errors.len(), 3, "outputs that are only linked to faults have none of their own");
    let own = &it.node_errors["o3"].errors[0];
    assert_eq!(it.error.details, format!("{}: {}", own.message, own.details));
    assert_eq!(it.node_errors["mid"].errors.len(), 1);
}

fn custom(validates: Validates, check: fn(&graph::Given<'_>) -> Result<Verdict, Failure>) -> Catalogue {
    let mut catalogue = toys();
    let schema = Schema::new("Custom", "toys")
        .input(Input::int("x", 0, 0, 10))
        .input(Input::int("y", 0, 0, 10))
        .input(Input::socket("z", "THING").optional())
        .output("INT");
    catalogue.add(Toy::new(schema, |_| Ok(Outcome::one(0_i64))).checking(validates, check));
    catalogue
}

#[test]
fn a_class_checks_the_inputs_that_it_names() {
    let validates = Validates { inputs: vec!["x"], ..Validates::default() };
    let catalogue = custom(validates, |given| {
        assert_eq!(given.constants.len(), 1);
        Ok(match given.constants["x"].as_int() {
            Some(50) => Verdict::Bad,
            Some(60) => Verdict::Because("sixty is too much".to_owned()),
            _ => Verdict::Good,
        })
    });
    // Its range is the class's business now, and y's is not.
    validate(&catalogue, &mut prompt(of("Custom", json!({"x": 40, "y": 1}))), None).unwrap();
    let it = errors_in(&catalogue, of("Custom", json!({"x": 40, "y": 11})), "1");
    assert_eq!((it.len(), it[0].kind.as_str()), (1, "value_bigger_than_max"));
    let it = errors_in(&catalogue, of("Custom", json!({"x": "50", "y": 1})), "1");
    assert_eq!((it[0].kind.as_str(), it[0].details.as_str()), ("custom_validation_failed", "x"));
    assert_eq!(Literal::Map(facts_of(&it[0])), literal(json!({"input_name": "x"})));
    let it = errors_in(&catalogue, of("Custom", json!({"x": 60, "y": 1})), "1");
    assert_eq!(it[0].details, "x - sixty is too much");
}

#[test]
fn a_class_that_checks_everything_has_one_error_per_input() {
    let catalogue = custom(Validates { everything: true, ..Validates::default() }, |given| {
        Ok(if given.constants["y"] == Literal::Int(7) { Verdict::Bad } else { Verdict::Good })
    });
    validate(&catalogue, &mut prompt(of("Custom", json!({"x": 400, "y": 300}))), None).unwrap();
    let it = errors_in(
        &catalogue,
        json!({
            "0": {"class_type": "Thing", "inputs": {"value": 1}},
            "1": {"class_type": "Custom", "inputs": {"x": 1, "y": 7, "z": ["0", 0], "w": 1}},
            "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
        }),
        "1",
    );
    let details: Vec<&str> = it.iter().map(|error| error.details.as_str()).collect();
    assert_eq!(details, ["x", "y", "z"]);
}

#[test]
fn a_class_that_checks_types_sees_them_instead_of_the_usual_check() {
    let validates = Validates { types: true, ..Validates::default() };
    let catalogue = custom(validates, |given| match given.types.get("z").map(String::as_str) {
        Some("INT") => Ok(Verdict::Because("no numbers".to_owned())),
        Some("STRING") => Err(Failure::value("cannot say")),
        _ => Ok(Verdict::Good),
    });
    let linked = |class: &str, name: &str| {
        json!({
            "0": {"class_type": class, "inputs": {name: 1}},
            "1": {"class_type": "Custom", "inputs": {"x": ["0", 0], "y": 2, "z": ["0", 0]}},
            "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
        })
    };
    validate(&catalogue, &mut prompt(linked("Thing", "value")), None).unwrap();
    let it = errors_in(&catalogue, linked("Number", "value"), "1");
    assert_eq!((it.len(), it[0].details.as_str()), (1, "input_types - no numbers"));
    let it = errors_in(&catalogue, linked("Text", "text"), "1");
    assert_eq!(
        (it[0].kind.as_str(), it[0].details.as_str()),
        ("exception_during_inner_validation", "cannot say")
    );
    assert_eq!(facts_of(&it[0])["exception_type"], Literal::from("ValueError"));
}

#[test]
fn each_node_is_checked_once() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let mut catalogue = toys();
    let schema = Schema::new("Counted", "toys").input(Input::int("x", 0, 0, 10)).output("INT");
    let validates = Validates { everything: true, ..Validates::default() };
    catalogue.add(Toy::new(schema, |_| Ok(Outcome::one(0_i64))).checking(validates, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(Verdict::Good)
    }));
    let mut prompt = prompt(json!({
        "1": {"class_type": "Counted", "inputs": {"x": 1}},
        "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
        "3": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
        "4": {"class_type": "Add", "inputs": {"a": ["1", 0], "b": ["1", 0]}},
        "5": {"class_type": "Show", "inputs": {"value": ["4", 0]}},
    }));
    validate(&catalogue, &mut prompt, None).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 1);
}
