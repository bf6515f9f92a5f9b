//! `gantry ps`: what a running server does and holds.

use std::process::ExitCode;

use anyhow::Result;
use meta::ByteSize;
use serde_json::{Value, json};

use super::{print, print_json};
use crate::asking::Peer;
use crate::cli::PsArgs;
use crate::table::Table;

pub(super) fn run(args: &PsArgs) -> Result<ExitCode> {
    let peer = Peer::new(&args.peer)?;
    let jobs = peer.get("/api/jobs?status=in_progress,pending")?;
    let models = peer.get("/gantry/models")?;
    let devices = peer.get("/gantry/devices")?;
    let stats = peer.get("/gantry/stats?jobs=0")?;
    if args.output.json {
        print_json(&json!({
            "running": stats["running"],
            "workers": stats["workers"],
            "jobs": jobs["jobs"],
            "models": models["models"].as_array().map(|all| all.iter().map(held).collect::<Vec<_>>()),
            "devices": devices["devices"],
        }))?;
    } else {
        print(&to_text(&jobs, &stats, &models, &devices))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is held of a model, without its plan.
fn held(model: &Value) -> Value {
    let key = |name: &str| model[name].clone();
    json!({ "id": key("id"), "name": key("name"), "family": key("family"), "retention": key("retention"),
        "staged": key("staged"), "bytes": key("bytes") })
}

fn to_text(jobs: &Value, stats: &Value, models: &Value, devices: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let size = |value: &Value| ByteSize(value.as_u64().unwrap_or(0)).to_string();
    let mut text = String::new();
    let jobs = list(&jobs["jobs"]);
    if jobs.is_empty() {
        text += "no job runs or waits\n";
    } else {
        let mut table = Table::new(&["job", "state"]);
        for job in &jobs {
            table.row(&[&word(&job["id"]), &state(job, &list(&stats["workers"]))]);
        }
        text += &table.to_string();
    }
    let models = list(&models["models"]);
    if models.is_empty() {
        text += "\nno model is loaded\n";
    } else {
        let mut table = Table::new(&["model", "family", "memory", "when freed"]);
        for model in &models {
            let places = model["bytes"].as_object().into_iter().flatten();
            let places: Vec<String> =
                places.map(|(device, bytes)| format!("{device} {}", size(bytes))).collect();
            let places = if places.is_empty() { "in its file".to_owned() } else { places.join(", ") };
            table.row(&[&word(&model["name"]), &word(&model["family"]), &places, &word(&model["retention"])]);
        }
        text += &format!("\n{table}");
    }
    let mut table = Table::new(&["device", "in use", "of", "name"]);
    for device in &list(&devices["devices"]) {
        let (used, budget) = (size(&device["used_bytes"]), size(&device["budget_bytes"]));
        table.row(&[&word(&device["id"]), &used, &budget, &word(&device["name"])]);
    }
    text + &format!("\n{table}")
}

/// Whether a job runs, and where, if there are several workers.
fn state(job: &Value, workers: &[Value]) -> String {
    if job["status"] != "in_progress" {
        return "waits".to_owned();
    }
    let own = workers.iter().find(|worker| worker["running"]["prompt_id"] == job["id"]);
    match own.and_then(|worker| worker["device"].as_str()) {
        Some(device) if workers.len() > 1 => format!("runs on {device}"),
        _ => "runs".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_and_what_is_held_is_told() {
        let jobs =
            json!({ "jobs": [{ "id": "a", "status": "in_progress" }, { "id": "b", "status": "pending" }] });
        let models = json!({ "models": [{ "name": "m", "family": "F", "retention": "keep",
            "bytes": { "cpu": 1 << 20 } }] });
        let devices = json!({ "devices": [{ "id": "cpu", "name": "n", "used_bytes": 1 << 20, "budget_bytes": 1 << 30 }] });
        let one = json!({ "workers": [{ "device": "cpu", "running": { "prompt_id": "a" } }] });
        let text = to_text(&jobs, &one, &models, &devices);
        for line in
            ["a    runs", "b    waits", "m      F       cpu 1.00 MB  keep", "cpu     1.00 MB  1.00 GB  n"]
        {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        let two = json!({ "workers": [{ "device": "cuda:0", "running": null },
            { "device": "cuda:1", "running": { "prompt_id": "a" } }] });
        let text = to_text(&jobs, &two, &models, &devices);
        assert!(text.lines().any(|found| found == "a    runs on cuda:1"), "{text}");
        let none = to_text(&json!({ "jobs": [] }), &two, &json!({ "models": [] }), &devices);
        assert!(none.starts_with("no job runs or waits\n\nno model is loaded\n"), "{none}");
    }
}
