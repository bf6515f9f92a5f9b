//! How parts of jobs and records are written: as JSON, a column each.

use std::sync::Arc;

use graph::{Literal, Map, NodeId, Prompt, PromptNode};
use indexmap::IndexMap;
use rusqlite::Row;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use super::messages;
use crate::error::Error;
use crate::job::JobStatus;
use crate::message::{Message, NodeIdentity};

/// The number of a state in the database.
pub(super) fn status_code(status: JobStatus) -> i64 {
    match status {
        JobStatus::Pending => 0,
        JobStatus::InProgress => 1,
        JobStatus::Completed => 2,
        JobStatus::Failed => 3,
        JobStatus::Cancelled => 4,
    }
}

/// The state of a finished job.
pub(super) fn finished_status(code: i64) -> JobStatus {
    match code {
        2 => JobStatus::Completed,
        4 => JobStatus::Cancelled,
        _ => JobStatus::Failed,
    }
}

/// A number column: SQLite has no `NaN`.
pub(super) fn number(column: Option<f64>) -> f64 {
    column.unwrap_or(f64::NAN)
}

/// A text column, where it lies.
pub(super) fn text<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<&'a str> {
    Ok(row.get_ref(column)?.as_str()?)
}

pub(super) fn prompt_text(prompt: &Prompt) -> String {
    written(&PromptText(prompt))
}

pub(super) fn map_text(map: &Map) -> String {
    written(map)
}

pub(super) fn ids_text(ids: &[NodeId]) -> String {
    texts(&ids.iter().map(|id| &**id).collect::<Vec<&str>>())
}

pub(super) fn texts(texts: &[&str]) -> String {
    written(&texts)
}

pub(super) fn nodes_text(nodes: &IndexMap<NodeId, Map>) -> String {
    written(&NodesText(nodes))
}

pub(super) fn messages_text(prompt_id: &str, messages: &[Message]) -> String {
    written(&messages.iter().map(|message| messages::kept(prompt_id, message)).collect::<Vec<_>>())
}

pub(super) fn identities_text(identities: &IndexMap<NodeId, NodeIdentity>) -> String {
    nodes_text(&messages::identities(identities))
}

pub(super) fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value)
        .expect("keys are text and nothing here fails to be written, so JSON can write it")
}

/// Reads the columns of the job `id`.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub(super) id: &'a str,
}

impl Reading<'_> {
    pub(super) fn prompt(self, column: &str) -> Result<Prompt, Error> {
        let literal: Literal = self.parse(column)?;
        Prompt::from_literal(&literal)
            .map_or_else(|| self.parse::<Map>(column).map(|_| Prompt::default()), Ok)
    }

    pub(super) fn map(self, column: &str) -> Result<Map, Error> {
        self.parse(column)
    }

    pub(super) fn ids(self, column: &str) -> Result<Vec<NodeId>, Error> {
        Ok(self.parse::<Vec<String>>(column)?.into_iter().map(Into::into).collect())
    }

    pub(super) fn nodes(self, column: &str) -> Result<IndexMap<NodeId, Map>, Error> {
        let nodes: IndexMap<String, Map> = self.parse(column)?;
        Ok(nodes.into_iter().map(|(id, map)| (id.into(), map)).collect())
    }

    pub(super) fn messages(self, column: &str) -> Result<Vec<Message>, Error> {
        let kept: Vec<messages::Kept> = self.parse(column)?;
        Ok(kept.iter().filter_map(messages::read).collect())
    }

    pub(super) fn identities(self, column: &str) -> Result<IndexMap<NodeId, NodeIdentity>, Error> {
        Ok(messages::read_identities(&self.nodes(column)?))
    }

    pub(super) fn parse<'de, T: Deserialize<'de>>(self, column: &'de str) -> Result<T, Error> {
        serde_json::from_str(column).map_err(|source| Error::Record { id: self.id.to_owned(), source })
    }
}

/// A prompt in the form that `Prompt::from_literal` reads, written without a copy of it.
struct PromptText<'a>(&'a Prompt);

impl Serialize for PromptText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.nodes.iter().map(|(id, node)| (&**id, NodeText(node))))
    }
}

struct NodeText<'a>(&'a PromptNode);

impl Serialize for NodeText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(inputs) = &self.0.inputs {
            map.serialize_entry("inputs", inputs)?;
        }
        if let Some(class) = &self.0.class_type {
            map.serialize_entry("class_type", class)?;
        }
        for (key, value) in &self.0.rest {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

struct NodesText<'a>(&'a IndexMap<Arc<str>, Map>);

impl Serialize for NodesText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(id, map)| (&**id, map)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::map;

    #[test]
    fn prompts_come_back_as_they_were() {
        let inputs = map([
            ("seed", Literal::Int(u64::MAX.into())),
            ("cfg", Literal::Float(7.0)),
            (
                "exact",
                Literal::List([0.1 + 0.2, 5e-324, f64::MAX, 1.0 / 3.0, -0.0].map(Literal::Float).into()),
            ),
            ("link", Literal::List(vec!["1".into(), Literal::Int(0)])),
            ("none", Literal::Null),
        ]);
        let mut node = PromptNode::new("KSampler", inputs);
        node.rest.insert("_meta".to_owned(), Literal::Map(map([("title", "zwölf".into())])));
        let odd = PromptNode { class_type: Some("A".to_owned()), inputs: None, rest: Map::new() };
        let nodes = [("9".into(), node), ("5:3".into(), odd)];
        let prompt = Prompt { nodes: nodes.into_iter().collect() };
        let reading = Reading { id: "x" };
        assert_eq!(reading.prompt(&prompt_text(&prompt)).unwrap(), prompt);
    }

    #[test]
    fn a_damaged_column_names_the_job() {
        let error = Reading { id: "job-7" }.ids("[1").unwrap_err();
        assert!(error.to_string().contains("job-7"), "{error}");
        assert!(Reading { id: "job-7" }.prompt("[]").is_err());
    }

    #[test]
    fn finished_states_have_numbers_of_their_own() {
        for status in [JobStatus::Completed, JobStatus::Failed, JobStatus::Cancelled] {
            assert_eq!(finished_status(status_code(status)), status);
        }
    }
}
