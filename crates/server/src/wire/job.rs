//! Jobs as clients see them: in the queue, in the history and in the list of jobs.

use engine::{HistoryEntry, Job, JobPage, JobRecord, JobStatus, Message, Milestone};
use graph::{Literal, Map, NodeId};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};

use super::{message, number};

/// `[number, id, prompt, extra_data, outputs]`. Secrets are kept apart from `extra_data` and never shown.
pub(crate) fn item(job: &Job) -> Value {
    json!([number(job.number), job.prompt_id, job.prompt.to_literal(), job.extra_data, texts(&job.outputs)])
}

/// `{id: entry}` for all of them, in order.
pub(crate) struct History<'a>(pub(crate) &'a [HistoryEntry]);

impl Serialize for History<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for entry in self.0 {
            map.serialize_entry(&entry.job.prompt_id, &history_entry(entry))?;
        }
        map.end()
    }
}

/// One entry of the history.
pub(crate) fn history_entry(entry: &HistoryEntry) -> Value {
    let mut shown = json!({
        "prompt": item(&entry.job),
        "outputs": by_node(&entry.outputs),
        "status": status(entry),
        "meta": identities(entry),
    });
    add_worker(&mut shown, entry);
    shown
}

/// Who ran it, where there were several, and why.
fn add_worker(shown: &mut Value, entry: &HistoryEntry) {
    if let Some(worker) = &entry.worker {
        shown["worker"] = json!(worker);
    }
    if let Some(why) = &entry.dispatch {
        shown["dispatch"] = json!({
            "reason": why.reason,
            "models": why.models,
            "waited_s": why.waited_s,
            "first_come_s": why.first_come_s,
            "load_s": why.load_s,
            "elsewhere_s": why.elsewhere_s,
            "passed_over": why.passed_over,
        });
    }
}

fn status(entry: &HistoryEntry) -> Value {
    let id = &entry.job.prompt_id;
    let told = |told: &Message| json!([message::name(&told.milestone), message::data(id, told)]);
    json!({
        "status_str": if entry.succeeded { "success" } else { "error" },
        "completed": entry.succeeded,
        "messages": entry.messages.iter().map(told).collect::<Vec<_>>(),
    })
}

fn identities(entry: &HistoryEntry) -> Value {
    let shown = entry.identities.iter().map(|(id, who)| (id.to_string(), message::identity(who)));
    Value::Object(shown.collect())
}

fn by_node<'a>(maps: impl IntoIterator<Item = (&'a NodeId, &'a Map)>) -> Value {
    Value::Object(maps.into_iter().map(|(id, map)| (id.to_string(), json!(map))).collect())
}

fn texts(ids: &[NodeId]) -> Vec<&str> {
    ids.iter().map(AsRef::as_ref).collect()
}

/// The state of a job in the list of jobs.
pub(crate) fn status_name(status: JobStatus) -> &'static str {
    match status {
        JobStatus::Pending => "pending",
        JobStatus::InProgress => "in_progress",
        JobStatus::Completed => "completed",
        JobStatus::Failed => "failed",
        JobStatus::Cancelled => "cancelled",
    }
}

/// All states, in the order in which they are named to people.
pub(crate) const STATUSES: [JobStatus; 5] = [
    JobStatus::Pending,
    JobStatus::InProgress,
    JobStatus::Completed,
    JobStatus::Failed,
    JobStatus::Cancelled,
];

/// A part of the list of jobs.
pub(crate) fn page(page: &JobPage, offset: usize, limit: Option<usize>) -> Value {
    json!({
        "jobs": page.jobs.iter().map(listed).collect::<Vec<_>>(),
        "pagination": {
            "offset": offset,
            "limit": limit,
            "total": page.total,
            "has_more": offset.saturating_add(page.jobs.len()) < page.total,
        },
    })
}

/// One job of the list. Keys without a value are left out: the web front end drops the whole list if one
/// item does not fit its schema.
pub(crate) fn listed(record: &JobRecord) -> Value {
    let job = &record.job;
    let created = job.extra_data.get("create_time").and_then(Literal::as_float).unwrap_or(0.0);
    let mut shown = json!({
        "id": job.prompt_id,
        "status": status_name(record.status),
        "priority": number(job.number),
        "create_time": number(created),
        "outputs_count": 0,
    });
    if let Some(entry) = &record.entry {
        add_end(&mut shown, entry);
    }
    if let Some(id) = workflow_id(&job.extra_data) {
        shown["workflow_id"] = json!(id);
    }
    if job.was_requeued {
        shown["was_requeued"] = json!(true);
    }
    shown
}

fn add_end(shown: &mut Value, entry: &HistoryEntry) {
    let times = [
        ("execution_start_time", entry.began_ms()),
        ("execution_end_time", entry.end().map(|end| end.at_ms)),
    ];
    for (key, time) in times {
        if let Some(time) = time {
            shown[key] = json!(time);
        }
    }
    if let Some(end) = entry.end().filter(|end| matches!(end.milestone, Milestone::Failed(_))) {
        shown[message::ERROR] = message::data(&entry.job.prompt_id, end);
    }
    add_worker(shown, entry);
    let summary = OutputSummary::of(entry);
    shown["outputs_count"] = json!(summary.count);
    shown["previewable_outputs_count"] = json!(summary.previewable);
    if let Some(preview) = summary.preview {
        shown["preview_output"] = preview;
    }
}

/// One job with everything that is known of it.
pub(crate) fn detailed(record: &JobRecord) -> Value {
    let mut shown = listed(record);
    if let Some(entry) = &record.entry {
        shown["outputs"] = by_node(&entry.outputs);
        shown["execution_status"] = status(entry);
    }
    shown["workflow"] =
        json!({ "prompt": record.job.prompt.to_literal(), "extra_data": record.job.extra_data });
    shown
}

fn workflow_id(extra_data: &Map) -> Option<&str> {
    extra_data.get("extra_pnginfo")?.get("workflow")?.get("id")?.as_text()
}

/// How many things a job shows, and the one that stands for it.
struct OutputSummary {
    count: usize,
    previewable: usize,
    preview: Option<Value>,
}

impl OutputSummary {
    fn of(entry: &HistoryEntry) -> OutputSummary {
        let (mut count, mut previewable) = (0, 0);
        let (mut saved, mut first) = (None, None);
        for (node, shown) in &entry.outputs {
            for (media, item) in items(shown) {
                count += 1;
                if !is_previewable(media, item) {
                    continue;
                }
                previewable += 1;
                let is_saved = item.get("type").and_then(Literal::as_text) == Some("output");
                let place = if is_saved { &mut saved } else { &mut first };
                place.get_or_insert((node, media, item));
            }
        }
        let preview = saved.or(first).map(|(node, media, item)| {
            let mut preview = json!(item);
            preview["nodeId"] = json!(node.as_ref());
            preview["mediaType"] = json!(media);
            preview
        });
        OutputSummary { count, previewable, preview }
    }
}

/// The things that a node shows, each with the key it is under. `animated` is a flag and no thing.
pub(crate) fn items(shown: &Map) -> impl Iterator<Item = (&str, &Map)> {
    let lists = shown.iter().filter(|(media, _)| *media != "animated");
    lists.flat_map(|(media, list)| {
        let items = list.as_list().unwrap_or_default();
        items.iter().filter_map(|item| Some((media.as_str(), item.as_map()?)))
    })
}

fn is_previewable(media: &str, item: &Map) -> bool {
    let text = |key: &str| item.get(key).and_then(Literal::as_text).unwrap_or_default();
    let format = text("format");
    let name = text("filename").to_ascii_lowercase();
    ["images", "video", "audio", "3d", "text"].contains(&media)
        || format.starts_with("video/")
        || format.starts_with("audio/")
        || [".obj", ".fbx", ".gltf", ".glb"].iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests;
