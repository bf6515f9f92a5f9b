//! `gantry stop`: ends jobs of a running server.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::{print, print_json};
use crate::asking::Peer;
use crate::cli::StopArgs;

pub(super) fn run(args: &StopArgs) -> Result<ExitCode> {
    let peer = Peer::new(&args.peer)?;
    let jobs = peer.get("/api/jobs?status=in_progress,pending")?;
    let (running, waiting) = split(&jobs);
    let wanted = if args.all {
        [running, waiting].concat()
    } else if args.jobs.is_empty() {
        running
    } else {
        let known = [running, waiting].concat();
        if let Some(id) = args.jobs.iter().find(|id| !known.contains(id)) {
            bail!("no job {id} runs or waits; `gantry ps` shows those that do");
        }
        args.jobs.clone()
    };
    for id in &wanted {
        peer.post(&format!("/api/jobs/{id}/cancel"), &json!({}))?;
    }
    if args.output.json {
        print_json(&json!({ "stopped": wanted }))?;
    } else if wanted.is_empty() {
        print("no job runs\n")?;
    } else {
        print(&wanted.iter().map(|id| format!("stopped {id}\n")).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The ids of the jobs that run, and of those that wait.
fn split(jobs: &Value) -> (Vec<String>, Vec<String>) {
    let of = |status: &str| {
        let all = jobs["jobs"].as_array().into_iter().flatten();
        all.filter(|job| job["status"] == status)
            .filter_map(|job| Some(job["id"].as_str()?.to_owned()))
            .collect()
    };
    (of("in_progress"), of("pending"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_and_waiting_jobs_are_told_apart() {
        let jobs =
            json!({ "jobs": [{ "id": "a", "status": "pending" }, { "id": "b", "status": "in_progress" }] });
        assert_eq!(split(&jobs), (vec!["b".to_owned()], vec!["a".to_owned()]));
    }
}
