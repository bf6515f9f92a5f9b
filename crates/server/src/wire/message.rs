//! How jobs begin and end, as clients are told it: the `execution_*` events.

use engine::{JobFailure, Message, Milestone, NodeIdentity};
use graph::NodeId;
use serde_json::{Value, json};

/// The name of an event whose data is a failure.
pub(crate) const ERROR: &str = "execution_error";

/// The name of the event.
pub(crate) fn name(milestone: &Milestone) -> &'static str {
    match milestone {
        Milestone::Started => "execution_start",
        Milestone::Cached(_) => "execution_cached",
        Milestone::Succeeded => "execution_success",
        Milestone::Failed(_) => ERROR,
        Milestone::Interrupted { .. } => "execution_interrupted",
    }
}

/// The data of the event.
pub(crate) fn data(prompt_id: &str, message: &Message) -> Value {
    let mut data = match &message.milestone {
        Milestone::Started | Milestone::Succeeded => json!({ "prompt_id": prompt_id }),
        Milestone::Cached(nodes) => json!({ "nodes": ids(nodes), "prompt_id": prompt_id }),
        Milestone::Failed(why) => failure(prompt_id, why),
        Milestone::Interrupted { node, class, executed } => json!({
            "prompt_id": prompt_id,
            "node_id": &**node,
            "node_type": class,
            "executed": ids(executed),
        }),
    };
    data["timestamp"] = json!(message.at_ms);
    data
}

/// The data of an error; all keys that clients read are there.
pub(crate) fn failure(prompt_id: &str, why: &JobFailure) -> Value {
    json!({
        "prompt_id": prompt_id,
        "node_id": &*why.node,
        "node_type": why.class,
        "executed": ids(&why.executed),
        // Clients split the text from tips at a newline, which is always there.
        "exception_message": format!("{}\n", why.message),
        "exception_type": why.kind,
        "traceback": why.trace,
        "current_inputs": why.inputs,
        "current_outputs": ids(&why.outputs),
    })
}

/// Who a node is.
pub(crate) fn identity(identity: &NodeIdentity) -> Value {
    json!({
        "node_id": &*identity.node,
        "display_node": &*identity.display,
        "parent_node": identity.parent.as_deref(),
        "real_node_id": &*identity.real,
    })
}

fn ids(nodes: &[NodeId]) -> Vec<&str> {
    nodes.iter().map(AsRef::as_ref).collect()
}

#[cfg(test)]
mod tests {
    use graph::{Literal, map};

    use super::*;

    fn told(milestone: Milestone) -> String {
        let message = Message { at_ms: 5, milestone };
        format!("{} {}", name(&message.milestone), data("p", &message))
    }

    #[test]
    fn events_have_their_keys_in_order() {
        assert_eq!(told(Milestone::Started), r#"execution_start {"prompt_id":"p","timestamp":5}"#);
        assert_eq!(
            told(Milestone::Cached(vec!["1".into()])),
            r#"execution_cached {"nodes":["1"],"prompt_id":"p","timestamp":5}"#
        );
        assert_eq!(told(Milestone::Succeeded), r#"execution_success {"prompt_id":"p","timestamp":5}"#);
        let interrupted =
            Milestone::Interrupted { node: "3".into(), class: "K".to_owned(), executed: vec!["1".into()] };
        assert_eq!(
            told(interrupted),
            concat!(
                r#"execution_interrupted {"prompt_id":"p","node_id":"3","node_type":"K","executed":["1"],"#,
                r#""timestamp":5}"#
            )
        );
        let why = JobFailure {
            node: "3".into(),
            class: "K".to_owned(),
            kind: "ValueError".to_owned(),
            message: "no".to_owned(),
            executed: Vec::new(),
            trace: vec!["in node 3 (K)\n".to_owned()],
            inputs: map([("seed", Literal::Int(u64::MAX.into()))]),
            outputs: vec!["2".into()],
        };
        assert_eq!(
            told(Milestone::Failed(Box::new(why))),
            concat!(
                r#"execution_error {"prompt_id":"p","node_id":"3","node_type":"K","executed":[],"#,
                r#""exception_message":"no\n","exception_type":"ValueError","traceback":["in node 3 (K)\n"],"#,
                r#""current_inputs":{"seed":18446744073709551615},"current_outputs":["2"],"timestamp":5}"#
            )
        );
    }

    #[test]
    fn a_node_says_whom_it_stands_for() {
        let node = NodeIdentity { node: "4.0".into(), display: "4".into(), parent: None, real: "4".into() };
        assert_eq!(
            identity(&node).to_string(),
            r#"{"node_id":"4.0","display_node":"4","parent_node":null,"real_node_id":"4"}"#
        );
    }
}
