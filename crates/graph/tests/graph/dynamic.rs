//! Inputs that grow and choices that bring inputs.

use graph::{
    Autogrow, CacheMode, Catalogue, ErrorDetail, GrowingNames, Input, Kind, Literal, Outcome, Schema,
    validate,
};
use serde_json::{Value as Json, json};

use crate::stage::{Stage, Toy, facts_of, literal, prompt, toys};

fn catalogue() -> Catalogue {
    let mut catalogue = toys();
    let growing = |min| {
        let names = GrowingNames::Counted { prefix: "n".to_owned(), max: 10 };
        Kind::Autogrow(Box::new(Autogrow { input: Input::int("n", 0, -1000, 1000), names, min }))
    };
    let sum = Schema::new("Grow", "toys")
        .input(Input::new("numbers", growing(2)))
        .input(Input::new("more", growing(1)).optional())
        .output("INT");
    catalogue.add(Toy::new(sum, |call| {
        let sum: Result<i64, _> = call.inputs.values.keys().map(|name| call.int(name)).sum();
        Ok(Outcome::one(sum?))
    }));
    let options = vec![
        (
            "size".to_owned(),
            vec![Input::int("width", 1, 1, 100), Input::socket("late", "*").with("lazy", true).optional()],
        ),
        ("factor".to_owned(), vec![Input::float("by", 1.0, 0.0, 8.0, 0.1)]),
    ];
    let resize =
        Schema::new("Resize", "toys").input(Input::new("how", Kind::DynamicChoice(options))).output("*");
    catalogue.add(Toy::new(resize, |call| match call.text("how")? {
        "size" => Ok(Outcome::one(call.int("how.width")?)),
        _ => Ok(Outcome::one(call.float("how.by")?)),
    }));
    catalogue
}

#[allow(clippy::needless_pass_by_value, reason = "callers write the inputs in place")]
fn of(class: &str, inputs: Json) -> Json {
    json!({
        "0": {"class_type": "Number", "inputs": {"value": 5}},
        "1": {"class_type": class, "inputs": inputs},
        "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
    })
}

fn shown(class: &str, inputs: Json) -> String {
    let ran = Stage::with(catalogue(), CacheMode::Classic).run(of(class, inputs));
    ran.assert_succeeded();
    ran.shown("2")
}

fn error(class: &str, inputs: Json) -> ErrorDetail {
    let rejected = validate(&catalogue(), &mut prompt(of(class, inputs)), None).unwrap_err();
    let problems = &rejected.node_errors["1"];
    assert_eq!(problems.errors.len(), 1, "{:?}", problems.errors);
    problems.errors[0].clone()
}

#[test]
fn growing_inputs_are_checked_converted_and_delivered() {
    assert_eq!(shown("Grow", json!({"numbers.n0": "3", "numbers.n7": ["0", 0]})), "[8]");
    assert_eq!(shown("Grow", json!({"numbers.n0": 1, "numbers.n1": 2, "more.n0": 4})), "[7]");
    // A key that is not declared is not delivered.
    assert_eq!(shown("Grow", json!({"numbers.n0": 1, "numbers.n1": 2, "numbers.n10": 4})), "[3]");
    let bad = error("Grow", json!({"numbers.n0": 1, "numbers.n1": 2000}));
    assert_eq!(bad.kind, "value_bigger_than_max");
    assert_eq!(facts_of(&bad)["input_name"], Literal::from("numbers.n1"));
    let bad = error("Grow", json!({"numbers.n0": 1}));
    assert_eq!(
        (bad.kind.as_str(), &facts_of(&bad)["input_name"]),
        ("invalid_dynamic_input", &"numbers".into())
    );
}

#[test]
fn a_choice_brings_its_inputs() {
    assert_eq!(shown("Resize", json!({"how": "size", "how.width": 7.9})), "[7]");
    assert_eq!(shown("Resize", json!({"how": "factor", "how.by": "2"})), "[2.0]");
    let bad = error("Resize", json!({"how": "size"}));
    assert_eq!((bad.kind.as_str(), bad.details.as_str()), ("required_input_missing", "width"));
    assert_eq!(facts_of(&bad)["input_name"], Literal::from("how.width"));
    let bad = error("Resize", json!({"how": "other"}));
    assert_eq!(
        (bad.kind.as_str(), &facts_of(&bad)["received_value"]),
        ("invalid_dynamic_input", &"other".into())
    );
    assert_eq!(facts_of(&bad)["input_config"], literal(json!(["COMFY_DYNAMICCOMBO_V3", {}])));
    assert_eq!(error("Resize", json!({})).kind, "required_input_missing");
}

#[test]
fn an_input_that_a_choice_brings_can_be_lazy() {
    let ran = Stage::with(catalogue(), CacheMode::Classic).run(json!({
        "0": {"class_type": "Number", "inputs": {"value": 5}},
        "1": {"class_type": "Resize", "inputs": {"how": "size", "how.width": 1, "how.late": ["0", 0]}},
        "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
    }));
    // The default is to want all lazy inputs, after the node was started.
    assert_eq!(ran.started(), ["1", "0", "1", "2"]);
}
