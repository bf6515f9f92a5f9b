//! What is wrong with a prompt, as clients know it: `error` and `node_errors`.

use graph::{ErrorDetail, Fact, Facts, NodeErrors, Rejected};
use serde_json::{Value, json};

/// `{type, message, details, extra_info}`.
pub(crate) fn detail(error: &ErrorDetail) -> Value {
    json!({
        "type": error.kind,
        "message": error.message,
        "details": format!("{}{}", error.details, advice(error).unwrap_or_default()),
        "extra_info": facts(&error.facts),
    })
}

/// How to get a model file that is wanted and not here, if it is one that can be fetched by a short name.
fn advice(error: &ErrorDetail) -> Option<String> {
    if error.kind != "value_not_in_list" {
        return None;
    }
    let wanted = error.facts.get(&Fact::ReceivedValue)?.as_text()?;
    let name = |path: &'static str| path.rsplit('/').next();
    let file = wanted.rsplit(['/', '\\']).next()?;
    let mut sets = models::downloads::all();
    let set = sets.find(|set| set.files.iter().any(|known| name(known.address) == Some(file)))?;
    Some(format!("; `gantry pull {}` fetches it", set.name))
}

fn facts(facts: &Facts) -> Value {
    Value::Object(facts.iter().map(|(fact, value)| (key(*fact).to_owned(), json!(value))).collect())
}

/// What clients know a fact by.
fn key(fact: Fact) -> &'static str {
    match fact {
        Fact::InputName => "input_name",
        Fact::InputConfig => "input_config",
        Fact::ReceivedValue => "received_value",
        Fact::ReceivedType => "received_type",
        Fact::LinkedNode => "linked_node",
        Fact::ExceptionMessage => "exception_message",
        Fact::ExceptionType => "exception_type",
        Fact::Traceback => "traceback",
        Fact::NodeId => "node_id",
        Fact::ClassType => "class_type",
        Fact::NodeTitle => "node_title",
        Fact::CycleNodes => "cycle_nodes",
    }
}

/// `{id: {errors, dependent_outputs, class_type}}`.
pub(crate) fn node_errors(errors: &NodeErrors) -> Value {
    let shown = errors.iter().map(|(id, problems)| {
        let shown = json!({
            "errors": problems.errors.iter().map(detail).collect::<Vec<_>>(),
            "dependent_outputs": problems.dependent_outputs.iter().map(AsRef::as_ref).collect::<Vec<&str>>(),
            "class_type": problems.class_type,
        });
        (id.to_string(), shown)
    });
    Value::Object(shown.collect())
}

/// The answer to a prompt that cannot run.
pub(crate) fn rejected(rejected: &Rejected) -> Value {
    json!({ "error": detail(&rejected.error), "node_errors": node_errors(&rejected.node_errors) })
}

/// The answer to a request for a prompt that cannot be read as one.
pub(crate) fn unreadable(kind: &str, message: &str) -> Value {
    let error = ErrorDetail {
        kind: kind.to_owned(),
        message: message.to_owned(),
        details: message.to_owned(),
        facts: Facts::new(),
    };
    json!({ "error": detail(&error), "node_errors": {} })
}

#[cfg(test)]
mod tests {
    use graph::{Literal, NodeProblems};

    use super::*;

    #[test]
    fn a_file_that_can_be_fetched_names_the_command() {
        let set = models::downloads::all().next().unwrap();
        let file = set.files[0].address.rsplit('/').next().unwrap();
        let wrong = |kind: &str, value: &str| ErrorDetail {
            kind: kind.to_owned(),
            message: String::new(),
            details: "d".to_owned(),
            facts: [(Fact::ReceivedValue, Literal::from(value))].into_iter().collect(),
        };
        // Some files belong to several sets; any of them brings it.
        let told = detail(&wrong("value_not_in_list", &format!("sub/{file}")))["details"].to_string();
        assert!(told.contains("d; `gantry pull "), "{told}");
        for other in [wrong("value_not_in_list", "nobody-has.safetensors"), wrong("value_too_large", file)] {
            assert_eq!(detail(&other)["details"], "d");
        }
    }

    #[test]
    fn problems_have_the_shape_that_clients_read() {
        let error = ErrorDetail {
            kind: "value_not_in_list".to_owned(),
            message: "m".to_owned(),
            details: "d".to_owned(),
            facts: [(Fact::InputName, Literal::from("seed"))].into_iter().collect(),
        };
        let problems = NodeProblems {
            errors: vec![error.clone()],
            dependent_outputs: vec!["9".into()],
            class_type: "KSampler".to_owned(),
        };
        let all = Rejected { error, node_errors: [("3".into(), problems)].into_iter().collect() };
        let expected = concat!(
            r#"{"error":{"type":"value_not_in_list","message":"m","details":"d","extra_info":{"input_name":"seed"}},"#,
            r#""node_errors":{"3":{"errors":[{"type":"value_not_in_list","message":"m","details":"d","#,
            r#""extra_info":{"input_name":"seed"}}],"dependent_outputs":["9"],"class_type":"KSampler"}}}"#
        );
        assert_eq!(rejected(&all).to_string(), expected);
    }
}
