//! What is told and kept of a job's run: the data of the `execution_*` events, and its record.

use std::sync::Arc;

use graph::{Identity, Literal, Map, NodeFailure, NodeId, RunEnd, RunReport, map};
use indexmap::IndexMap;

use crate::job::{Job, JobStatus, Message};

/// Levels of lists and objects that are kept of an input of a node that failed. Readers of JSON stop at 128.
const INPUT_LEVELS: usize = 64;

/// What a job leaves when it ends.
pub(crate) struct Record {
    /// Completed, failed or cancelled.
    pub(crate) status: JobStatus,
    pub(crate) outputs: IndexMap<NodeId, Map>,
    pub(crate) meta: IndexMap<NodeId, Map>,
    pub(crate) messages: Vec<Message>,
}

impl Record {
    /// The record of a run.
    pub(crate) fn new(report: RunReport, messages: Vec<Message>) -> Record {
        let identities = report.identities.iter();
        Record {
            status: match report.end {
                RunEnd::Succeeded => JobStatus::Completed,
                RunEnd::Failed(_) => JobStatus::Failed,
                RunEnd::Interrupted { .. } => JobStatus::Cancelled,
            },
            outputs: report.outputs,
            meta: identities.map(|(id, identity)| (Arc::clone(id), identity_map(identity))).collect(),
            messages,
        }
    }

    /// The record of a job during which the process ended twice.
    pub(crate) fn abandoned(job: &Job, now_ms: u64) -> Record {
        let text = "the process ended twice while this job was running, so it is not run a third time; \
                    the log of those runs may say why. Queue it again to try once more";
        let mut data = failure_map(job, "", "", "ProcessEnded", text);
        data.insert("timestamp".to_owned(), now_ms.into());
        Record {
            status: JobStatus::Failed,
            outputs: IndexMap::new(),
            meta: IndexMap::new(),
            messages: vec![Message { name: "execution_error".to_owned(), data: Literal::Map(data) }],
        }
    }

    /// How long the job ran, in milliseconds, as far as its messages say.
    pub(crate) fn duration_ms(&self) -> i64 {
        let time = |message: &Message| {
            let time = message.data.get("timestamp").and_then(Literal::as_int)?;
            i64::try_from(time).ok()
        };
        match self.messages.as_slice() {
            [first, .., last] => {
                time(last).zip(time(first)).map_or(0, |(end, start)| end.saturating_sub(start))
            }
            _ => 0,
        }
    }
}

/// The name and the data of the event that ends a job.
pub(crate) fn end(job: &Job, end: &RunEnd) -> (&'static str, Map) {
    match end {
        RunEnd::Succeeded => ("execution_success", of_job(job)),
        RunEnd::Failed(failed) => ("execution_error", failure(job, failed)),
        RunEnd::Interrupted { identity, executed } => {
            let mut data = of_job(job);
            data.insert("node_id".to_owned(), (&*identity.real).into());
            data.insert("node_type".to_owned(), class_of(job, identity).into());
            data.insert("executed".to_owned(), ids(executed));
            ("execution_interrupted", data)
        }
    }
}

/// The data of `execution_start`, and of all that say no more than which job.
pub(crate) fn of_job(job: &Job) -> Map {
    map([("prompt_id", job.prompt_id.as_str().into())])
}

/// The data of `execution_cached`.
pub(crate) fn cached(job: &Job, nodes: &[NodeId]) -> Map {
    map([("nodes", ids(nodes)), ("prompt_id", job.prompt_id.as_str().into())])
}

/// The data of `execution_error`.
pub(crate) fn failure(job: &Job, failure: &NodeFailure) -> Map {
    let identity = &failure.identity;
    let kind = if failure.is_out_of_memory { "OOMError" } else { &failure.kind };
    let mut data = failure_map(job, &identity.real, class_of(job, identity), kind, &failure.message);
    data.insert("executed".to_owned(), ids(&failure.executed));
    data.insert("traceback".to_owned(), traceback(job, identity));
    let inputs = failure.inputs.iter().map(|(name, value)| (name.clone(), shallow(value, INPUT_LEVELS)));
    data.insert("current_inputs".to_owned(), Literal::Map(inputs.collect()));
    data.insert("current_outputs".to_owned(), ids(&failure.outputs));
    data
}

/// The data of an `execution_error` of which only the message is known; all keys that clients read are there.
fn failure_map(job: &Job, node: &str, class: &str, kind: &str, message: &str) -> Map {
    map([
        ("prompt_id", job.prompt_id.as_str().into()),
        ("node_id", node.into()),
        ("node_type", class.into()),
        ("executed", Literal::List(Vec::new())),
        // Clients split the text from tips at a newline, which is always there.
        ("exception_message", format!("{message}\n").into()),
        ("exception_type", kind.into()),
        ("traceback", Literal::List(Vec::new())),
        ("current_inputs", Literal::Map(Map::new())),
        ("current_outputs", Literal::List(Vec::new())),
    ])
}

/// From the user's node down to the one that failed, which may be part of its expansion.
fn traceback(job: &Job, identity: &Identity) -> Literal {
    let mut lines = vec![format!("in node {} ({})\n", identity.real, class_of(job, identity))];
    if identity.node != identity.real {
        lines.push(format!("in node {} ({}), which runs in its place\n", identity.node, identity.class));
    }
    lines.into()
}

/// The class of the user's node that a node stands for.
fn class_of<'a>(job: &'a Job, identity: &'a Identity) -> &'a str {
    let class = job.prompt.nodes.get(&identity.real).and_then(|node| node.class_type.as_deref());
    class.unwrap_or(&identity.class)
}

fn identity_map(identity: &Identity) -> Map {
    map([
        ("node_id", (&*identity.node).into()),
        ("display_node", (&*identity.display).into()),
        ("parent_node", identity.parent.as_deref().into()),
        ("real_node_id", (&*identity.real).into()),
    ])
}

fn ids(nodes: &[NodeId]) -> Literal {
    Literal::List(nodes.iter().map(|node| (&**node).into()).collect())
}

/// A value with what lies deeper than `levels` left out.
fn shallow(value: &Literal, levels: usize) -> Literal {
    match (value, levels.checked_sub(1)) {
        (Literal::List(_) | Literal::Map(_), None) => "…".into(),
        (Literal::List(list), Some(levels)) => {
            Literal::List(list.iter().map(|item| shallow(item, levels)).collect())
        }
        (Literal::Map(map), Some(levels)) => {
            Literal::Map(map.iter().map(|(key, item)| (key.clone(), shallow(item, levels))).collect())
        }
        _ => value.clone(),
    }
}

/// Puts dots in the place of secrets wherever a report has one: it is told, logged and kept.
pub(crate) fn hide_secrets(report: &mut RunReport, secrets: &Map) {
    let secrets: Vec<&str> =
        secrets.values().filter_map(Literal::as_text).filter(|secret| !secret.is_empty()).collect();
    if secrets.is_empty() {
        return;
    }
    if let RunEnd::Failed(failure) = &mut report.end {
        hide_in_text(&mut failure.message, &secrets);
        failure.inputs.values_mut().for_each(|value| hide_in(value, &secrets));
    }
    report.outputs.values_mut().flat_map(Map::values_mut).for_each(|value| hide_in(value, &secrets));
}

fn hide_in(value: &mut Literal, secrets: &[&str]) {
    match value {
        Literal::Text(text) => hide_in_text(text, secrets),
        Literal::List(list) => list.iter_mut().for_each(|item| hide_in(item, secrets)),
        Literal::Map(map) => map.values_mut().for_each(|item| hide_in(item, secrets)),
        _ => {}
    }
}

fn hide_in_text(text: &mut String, secrets: &[&str]) {
    for secret in secrets {
        if text.contains(secret) {
            *text = text.replace(secret, "…");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_at_every_depth() {
        let list = Literal::List(vec!["say hush-hush twice".into(), Literal::Int(1)]);
        let mut value = Literal::Map(map([("a", list)]));
        hide_in(&mut value, &["hush-hush"]);
        assert_eq!(value.get("a").unwrap().as_list().unwrap()[0].as_text(), Some("say … twice"));
    }

    #[test]
    fn what_lies_too_deep_is_left_out() {
        let value = Literal::List(vec![Literal::List(vec![Literal::List(Vec::new()), Literal::Int(1)])]);
        let cut = Literal::List(vec![Literal::List(vec!["…".into(), Literal::Int(1)])]);
        assert_eq!(shallow(&value, 2), cut);
        assert_eq!(shallow(&value, 3), value);
    }

    #[test]
    fn durations_are_from_the_first_message_to_the_last() {
        let message = |time: u64| Message {
            name: "execution_start".to_owned(),
            data: Literal::Map(map([("timestamp", time.into())])),
        };
        let record = |times: &[u64]| Record {
            status: JobStatus::Completed,
            outputs: IndexMap::new(),
            meta: IndexMap::new(),
            messages: times.iter().map(|time| message(*time)).collect(),
        };
        assert_eq!(record(&[10, 11, 25]).duration_ms(), 15);
        assert_eq!(record(&[10]).duration_ms(), 0);
    }
}
