//! What comes in, and the queue as it is shown.

use std::sync::Arc;

use graph::{ErrorDetail, Facts, Map, NodeErrors, Prompt, Rejected};
use uuid::Uuid;

use crate::job::Job;

/// A prompt as a client sends it.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    /// The prompt; `None` if there was none.
    pub prompt: Option<Prompt>,
    /// Its id, if the client chose one.
    pub prompt_id: Option<String>,
    /// Its place in the queue, if the client chose one.
    pub number: Option<f64>,
    /// Before all others.
    pub front: bool,
    /// What the client sent along, secrets included.
    pub extra_data: Map,
    /// Who sends it.
    pub client_id: Option<String>,
    /// Only these output nodes.
    pub targets: Option<Vec<String>>,
}

/// A prompt that was queued.
#[derive(Clone, Debug)]
pub struct AcceptedJob {
    /// Its id.
    pub prompt_id: String,
    /// Its place in the queue.
    pub number: f64,
    /// What is wrong with the parts that do not run.
    pub node_errors: NodeErrors,
}

/// A prompt that was not queued.
#[derive(Debug)]
pub enum Refused {
    /// It cannot run; `no_prompt` and `invalid_prompt_id` too.
    Invalid(Box<Rejected>),
    /// The database cannot take it.
    Storage(crate::Error),
}

/// The queue as it stands.
#[derive(Clone, Debug, Default)]
pub struct QueueView {
    /// What runs.
    pub running: Vec<Arc<Job>>,
    /// What waits, first to run first.
    pub pending: Vec<Arc<Job>>,
}

impl Refused {
    /// There is no prompt.
    pub(crate) fn no_prompt() -> Refused {
        Refused::because(
            "no_prompt",
            "The request has no prompt",
            "send the workflow under \"prompt\"".to_owned(),
        )
    }

    fn because(kind: &str, message: &str, details: String) -> Refused {
        let error =
            ErrorDetail { kind: kind.to_owned(), message: message.to_owned(), details, facts: Facts::new() };
        Refused::Invalid(Box::new(Rejected { error, node_errors: NodeErrors::new() }))
    }
}

/// The id of a job: the client's, if it is a UUID in its usual spelling, or a new one.
pub(crate) fn checked_id(chosen: Option<String>) -> Result<String, Refused> {
    let Some(id) = chosen else { return Ok(Uuid::new_v4().to_string()) };
    match Uuid::try_parse(&id) {
        Ok(uuid) if uuid.to_string() == id => Ok(id),
        _ => {
            let details = format!("{id:?} is no UUID in lower case with hyphens; leave it out to get one");
            Err(Refused::because("invalid_prompt_id", "The prompt_id is not a UUID", details))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_in_their_usual_spelling() {
        let good = "0b0e1f5a-3c1d-4f7e-9a3b-2f6d8c9e0a11";
        assert_eq!(checked_id(Some(good.to_owned())).unwrap(), good);
        let bad = ["", "x", "0B0E1F5A-3c1d-4f7e-9a3b-2f6d8c9e0a11", "0b0e1f5a3c1d4f7e9a3b2f6d8c9e0a11"];
        for id in bad {
            let Err(Refused::Invalid(rejected)) = checked_id(Some(id.to_owned())) else {
                panic!("{id} passes")
            };
            assert_eq!(rejected.error.kind, "invalid_prompt_id");
        }
        let new = checked_id(None).unwrap();
        assert_eq!(checked_id(Some(new.clone())).unwrap(), new);
    }
}
