//! One thing that was looked at: how it stands, a sentence, and what to do.

use serde::Serialize;
use serde_json::{Value, json};

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Status {
    /// Nothing to do.
    #[serde(rename = "works")]
    Works,
    /// Gantry runs, but something could be better or is missing.
    #[serde(rename = "attention")]
    Attention,
    /// Something that is needed fails.
    #[serde(rename = "does not work")]
    DoesNotWork,
}

impl Status {
    /// The word for people.
    pub(super) fn word(self) -> &'static str {
        match self {
            Status::Works => "works",
            Status::Attention => "attention",
            Status::DoesNotWork => "does not work",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    /// A word that does not change, for programs.
    #[serde(rename = "check")]
    pub(super) name: &'static str,
    pub(super) status: Status,
    /// A sentence.
    pub(super) says: String,
    /// More lines, such as one for each file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) lines: Vec<String>,
    /// What to do; nothing if all is well.
    pub(super) what_to_do: Option<String>,
    /// Numbers and names, for programs.
    pub(super) facts: Value,
}

impl Check {
    pub(super) fn works(name: &'static str, says: impl Into<String>) -> Check {
        Check {
            name,
            status: Status::Works,
            says: says.into(),
            lines: Vec::new(),
            what_to_do: None,
            facts: json!({}),
        }
    }

    pub(super) fn attention(
        name: &'static str,
        says: impl Into<String>,
        what_to_do: impl Into<String>,
    ) -> Check {
        let check = Check::works(name, says);
        Check { status: Status::Attention, what_to_do: Some(what_to_do.into()), ..check }
    }

    pub(super) fn broken(
        name: &'static str,
        says: impl Into<String>,
        what_to_do: impl Into<String>,
    ) -> Check {
        let check = Check::works(name, says);
        Check { status: Status::DoesNotWork, what_to_do: Some(what_to_do.into()), ..check }
    }

    pub(super) fn with_facts(self, facts: Value) -> Check {
        Check { facts, ..self }
    }

    pub(super) fn with_lines(self, lines: Vec<String>) -> Check {
        Check { lines, ..self }
    }

    pub(super) fn with_advice(self, what_to_do: impl Into<String>) -> Check {
        Check { what_to_do: Some(what_to_do.into()), ..self }
    }
}
