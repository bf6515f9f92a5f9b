//! How messages and the identities of nodes are kept: as JSON, under the names that they were first kept by, so that a
//! database is read by every version.

use graph::{Literal, Map, NodeId, map};
use indexmap::IndexMap;

use crate::message::{JobFailure, Message, Milestone, NodeIdentity};

/// A message as a row has it: its name and its data.
pub(super) type Kept = (String, Map);

/// A message of a job.
pub(super) fn kept(prompt_id: &str, message: &Message) -> Kept {
    let of_job = || map([("prompt_id", prompt_id.into())]);
    let (name, mut data) = match &message.milestone {
        Milestone::Started => ("execution_start", of_job()),
        Milestone::Cached(nodes) => {
            ("execution_cached", map([("nodes", ids(nodes)), ("prompt_id", prompt_id.into())]))
        }
        Milestone::Succeeded => ("execution_success", of_job()),
        Milestone::Failed(failure) => ("execution_error", failure_map(prompt_id, failure)),
        Milestone::Interrupted { node, class, executed } => {
            let mut data = of_job();
            data.insert("node_id".to_owned(), (&**node).into());
            data.insert("node_type".to_owned(), class.as_str().into());
            data.insert("executed".to_owned(), ids(executed));
            ("execution_interrupted", data)
        }
    };
    data.insert("timestamp".to_owned(), message.at_ms.into());
    (name.to_owned(), data)
}

fn failure_map(prompt_id: &str, failure: &JobFailure) -> Map {
    map([
        ("prompt_id", prompt_id.into()),
        ("node_id", (&*failure.node).into()),
        ("node_type", failure.class.as_str().into()),
        ("executed", ids(&failure.executed)),
        ("exception_message", format!("{}\n", failure.message).into()),
        ("exception_type", failure.kind.as_str().into()),
        ("traceback", failure.trace.clone().into()),
        ("current_inputs", Literal::Map(failure.inputs.clone())),
        ("current_outputs", ids(&failure.outputs)),
    ])
}

fn ids(nodes: &[NodeId]) -> Literal {
    Literal::List(nodes.iter().map(|node| (&**node).into()).collect())
}

/// The message that a row has; none for one that this version does not know.
pub(super) fn read((name, data): &Kept) -> Option<Message> {
    let text = |key: &str| data.get(key).and_then(Literal::as_text).unwrap_or_default();
    let list = |key: &str| {
        let texts = data.get(key).and_then(Literal::as_list).unwrap_or_default();
        texts.iter().filter_map(Literal::as_text).collect::<Vec<&str>>()
    };
    let nodes = |key: &str| list(key).into_iter().map(Into::into).collect::<Vec<NodeId>>();
    let milestone = match name.as_str() {
        "execution_start" => Milestone::Started,
        "execution_cached" => Milestone::Cached(nodes("nodes")),
        "execution_success" => Milestone::Succeeded,
        "execution_error" => Milestone::Failed(Box::new(JobFailure {
            node: text("node_id").into(),
            class: text("node_type").to_owned(),
            kind: text("exception_type").to_owned(),
            message: without_newline(text("exception_message")).to_owned(),
            executed: nodes("executed"),
            trace: list("traceback").into_iter().map(str::to_owned).collect(),
            inputs: data.get("current_inputs").and_then(Literal::as_map).cloned().unwrap_or_default(),
            outputs: nodes("current_outputs"),
        })),
        "execution_interrupted" => Milestone::Interrupted {
            node: text("node_id").into(),
            class: text("node_type").to_owned(),
            executed: nodes("executed"),
        },
        _ => return None,
    };
    let at_ms = data.get("timestamp").and_then(Literal::as_int).and_then(|time| u64::try_from(time).ok());
    Some(Message { at_ms: at_ms.unwrap_or(0), milestone })
}

/// A line without its end.
fn without_newline(line: &str) -> &str {
    line.strip_suffix('\n').unwrap_or(line)
}

/// Who nodes are, by their ids.
pub(super) fn identities(nodes: &IndexMap<NodeId, NodeIdentity>) -> IndexMap<NodeId, Map> {
    let kept = |identity: &NodeIdentity| {
        map([
            ("node_id", (&*identity.node).into()),
            ("display_node", (&*identity.display).into()),
            ("parent_node", identity.parent.as_deref().into()),
            ("real_node_id", (&*identity.real).into()),
        ])
    };
    nodes.iter().map(|(id, identity)| (id.clone(), kept(identity))).collect()
}

/// Who nodes are, as a row has it. One that says less is itself.
pub(super) fn read_identities(nodes: &IndexMap<NodeId, Map>) -> IndexMap<NodeId, NodeIdentity> {
    let read = |id: &NodeId, kept: &Map| {
        let node = |key: &str| kept.get(key).and_then(Literal::as_text).map(NodeId::from);
        NodeIdentity {
            node: node("node_id").unwrap_or_else(|| id.clone()),
            display: node("display_node").unwrap_or_else(|| id.clone()),
            parent: node("parent_node"),
            real: node("real_node_id").unwrap_or_else(|| id.clone()),
        }
    };
    nodes.iter().map(|(id, kept)| (id.clone(), read(id, kept))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(message: &Message) -> String {
        serde_json::to_string(&kept("p", message)).unwrap()
    }

    #[test]
    fn messages_are_kept_under_the_names_they_always_had() {
        let failure = JobFailure {
            node: "3".into(),
            class: "KSampler".to_owned(),
            kind: "ValueError".to_owned(),
            message: "no".to_owned(),
            executed: vec!["1".into()],
            trace: vec!["in node 3 (KSampler)\n".to_owned()],
            inputs: map([("seed", Literal::Int(7))]),
            outputs: vec!["2".into()],
        };
        let interrupted = Milestone::Interrupted {
            node: "3".into(),
            class: "KSampler".to_owned(),
            executed: vec!["1".into()],
        };
        let all = [
            (Milestone::Started, r#"["execution_start",{"prompt_id":"p","timestamp":5}]"#),
            (
                Milestone::Cached(vec!["1".into(), "2".into()]),
                r#"["execution_cached",{"nodes":["1","2"],"prompt_id":"p","timestamp":5}]"#,
            ),
            (Milestone::Succeeded, r#"["execution_success",{"prompt_id":"p","timestamp":5}]"#),
            (
                Milestone::Failed(Box::new(failure)),
                concat!(
                    r#"["execution_error",{"prompt_id":"p","node_id":"3","node_type":"KSampler","executed":["1"],"#,
                    r#""exception_message":"no\n","exception_type":"ValueError","traceback":["in node 3 (KSampler)\n"],"#,
                    r#""current_inputs":{"seed":7},"current_outputs":["2"],"timestamp":5}]"#
                ),
            ),
            (
                interrupted,
                concat!(
                    r#"["execution_interrupted",{"prompt_id":"p","node_id":"3","node_type":"KSampler","#,
                    r#""executed":["1"],"timestamp":5}]"#
                ),
            ),
        ];
        for (milestone, text) in all {
            let message = Message { at_ms: 5, milestone };
            assert_eq!(written(&message), text);
            let row: Kept = serde_json::from_str(text).unwrap();
            assert_eq!(read(&row), Some(message), "{text}");
        }
        assert_eq!(read(&("execution_dreamt".to_owned(), Map::new())), None);
    }

    #[test]
    fn identities_come_back() {
        let identity = NodeIdentity {
            node: "4.0".into(),
            display: "4".into(),
            parent: Some("4".into()),
            real: "4".into(),
        };
        let nodes: IndexMap<NodeId, NodeIdentity> = [("4.0".into(), identity)].into_iter().collect();
        assert_eq!(read_identities(&identities(&nodes)), nodes);
        let sparse: IndexMap<NodeId, Map> = [("7".into(), Map::new())].into_iter().collect();
        assert_eq!(&*read_identities(&sparse)["7"].real, "7");
    }
}
