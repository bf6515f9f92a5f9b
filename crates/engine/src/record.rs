//! What a job's run leaves: how it ended, why, and its record.

use std::sync::Arc;

use graph::{Identity, Literal, Map, NodeFailure, NodeId, RunEnd, RunReport};
use indexmap::IndexMap;

use crate::job::{Job, JobStatus};
use crate::message::{JobFailure, Message, Milestone, NodeIdentity};
use crate::place::JobPlace;

/// Levels of lists and objects that are kept of an input of a node that failed. Readers of JSON stop at 128.
const INPUT_LEVELS: usize = 64;

/// What a job leaves when it ends.
#[derive(Clone, Debug)]
pub struct Record {
    /// Completed, failed or cancelled.
    pub status: JobStatus,
    /// What its nodes show.
    pub outputs: IndexMap<NodeId, Map>,
    /// Who those nodes are.
    pub identities: IndexMap<NodeId, NodeIdentity>,
    /// Start, cached nodes and end, as they were told.
    pub messages: Vec<Message>,
    /// Which worker ran it, where there are several, by its device.
    pub worker: Option<String>,
}

/// How a job was lost that was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The process ended.
    ProcessEnded,
    /// Its worker did not renew the claim.
    LeaseRanOut,
}

impl Loss {
    /// What happened, after "when".
    pub(crate) fn what(self) -> &'static str {
        match self {
            Loss::ProcessEnded => "the process ended",
            Loss::LeaseRanOut => "its worker was lost",
        }
    }
}

impl Record {
    /// The record of a run.
    pub(crate) fn new(report: RunReport, messages: Vec<Message>, place: &JobPlace) -> Record {
        let identities = report.identities.iter();
        Record {
            status: match report.end {
                RunEnd::Succeeded => JobStatus::Completed,
                RunEnd::Failed(_) => JobStatus::Failed,
                RunEnd::Interrupted { .. } => JobStatus::Cancelled,
            },
            outputs: report.outputs,
            identities: identities.map(|(id, identity)| (Arc::clone(id), (&**identity).into())).collect(),
            messages,
            worker: place.is_one_of_several().then(|| place.worker.to_string()),
        }
    }

    /// The record of a job that was lost twice.
    pub(crate) fn abandoned(now_ms: u64, loss: Loss) -> Record {
        let (kind, what) = match loss {
            Loss::ProcessEnded => ("ProcessEnded", "the process ended twice"),
            Loss::LeaseRanOut => ("WorkerLost", "two workers were lost"),
        };
        let text = format!(
            "{what} while this job was running, so it is not run a third time; the log of those runs may say why. \
             Queue it again to try once more"
        );
        let failure = JobFailure {
            node: "".into(),
            class: String::new(),
            kind: kind.to_owned(),
            message: text,
            executed: Vec::new(),
            trace: Vec::new(),
            inputs: Map::new(),
            outputs: Vec::new(),
        };
        Record {
            status: JobStatus::Failed,
            outputs: IndexMap::new(),
            identities: IndexMap::new(),
            messages: vec![Message { at_ms: now_ms, milestone: Milestone::Failed(Box::new(failure)) }],
            worker: None,
        }
    }

    /// How long the job ran, in milliseconds, as far as its messages say.
    #[must_use]
    pub fn duration_ms(&self) -> i64 {
        match self.messages.as_slice() {
            [first, .., last] => last.at_ms.cast_signed().saturating_sub(first.at_ms.cast_signed()),
            _ => 0,
        }
    }
}

/// How a job ended.
pub(crate) fn end(job: &Job, end: &RunEnd) -> Milestone {
    match end {
        RunEnd::Succeeded => Milestone::Succeeded,
        RunEnd::Failed(failed) => Milestone::Failed(Box::new(failure(job, failed))),
        RunEnd::Interrupted { identity, executed } => Milestone::Interrupted {
            node: Arc::clone(&identity.real),
            class: class_of(job, identity).to_owned(),
            executed: executed.clone(),
        },
    }
}

/// Why a node of a job failed.
pub(crate) fn failure(job: &Job, failure: &NodeFailure) -> JobFailure {
    let identity = &failure.identity;
    let inputs = failure.inputs.iter().map(|(name, value)| (name.clone(), shallow(value, INPUT_LEVELS)));
    JobFailure {
        node: Arc::clone(&identity.real),
        class: class_of(job, identity).to_owned(),
        kind: if failure.is_out_of_memory { "OOMError".to_owned() } else { failure.kind.clone() },
        message: failure.message.clone(),
        executed: failure.executed.clone(),
        trace: trace(job, identity),
        inputs: inputs.collect(),
        outputs: failure.outputs.clone(),
    }
}

/// From the user's node down to the one that failed, which may be part of its expansion.
fn trace(job: &Job, identity: &Identity) -> Vec<String> {
    let mut lines = vec![format!("in node {} ({})\n", identity.real, class_of(job, identity))];
    if identity.node != identity.real {
        lines.push(format!("in node {} ({}), which runs in its place\n", identity.node, identity.class));
    }
    lines
}

/// The class of the user's node that a node stands for.
fn class_of<'a>(job: &'a Job, identity: &'a Identity) -> &'a str {
    let class = job.prompt.nodes.get(&identity.real).and_then(|node| node.class_type.as_deref());
    class.unwrap_or(&identity.class)
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
    use graph::map;

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
        let message = |at_ms: u64| Message { at_ms, milestone: Milestone::Started };
        let record = |times: &[u64]| Record {
            status: JobStatus::Completed,
            outputs: IndexMap::new(),
            identities: IndexMap::new(),
            messages: times.iter().map(|time| message(*time)).collect(),
            worker: None,
        };
        assert_eq!(record(&[10, 11, 25]).duration_ms(), 15);
        assert_eq!(record(&[10]).duration_ms(), 0);
    }
}
