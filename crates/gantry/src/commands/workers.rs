//! `gantry workers`: who works for a shared queue.

use std::process::ExitCode;

use anyhow::{Context, Result};
use cluster::WorkerEntry;
use meta::ByteSize;
use serde_json::json;

use super::{print, print_json};
use crate::cli::WorkersArgs;
use crate::table::Table;

pub(super) fn run(args: &WorkersArgs) -> Result<ExitCode> {
    let store = args.queue.open()?.context("--queue says whose workers, such as nats://10.0.0.5:4222")?;
    let workers = store.workers()?;
    if args.output.json {
        print_json(&json!({ "workers": workers }))?;
    } else {
        print(&to_text(&workers, &args.queue.pool))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn to_text(workers: &[WorkerEntry], pool: &str) -> String {
    if workers.is_empty() {
        return format!("no worker of pool {pool} is there; start one with gantry worker\n");
    }
    let mut table = Table::new(&["worker", "does", "jobs", "s/job", "loads", "devices", "models", "version"]);
    for worker in workers {
        let does = match (worker.running.first(), worker.is_draining) {
            (Some(job), false) => job.clone(),
            (Some(job), true) => format!("{job}, then ends"),
            (None, true) => "ends".to_owned(),
            (None, false) => "waits".to_owned(),
        };
        let device = |device: &cluster::WorkerDevice| {
            format!("{} {} of {} free", device.id, ByteSize(device.free_bytes), ByteSize(device.total_bytes))
        };
        let loads = match worker.load_bytes_per_s {
            rate if rate > 0.0 => format!("{}/s", ByteSize(rate as u64)),
            _ => "-".to_owned(),
        };
        let devices: Vec<String> = worker.devices.iter().map(device).collect();
        table.row(&[
            &worker.name,
            &does,
            &worker.jobs_done.to_string(),
            &format!("{:.2}", worker.seconds_per_job),
            &loads,
            &devices.join(", "),
            &worker.models.join(", "),
            &worker.version,
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_do_is_told() {
        assert!(to_text(&[], "attic").starts_with("no worker of pool attic is there"));
        let busy = WorkerEntry {
            name: "a-1".to_owned(),
            running: vec!["job-7".to_owned()],
            is_draining: true,
            load_bytes_per_s: f64::from(1 << 30),
            ..WorkerEntry::default()
        };
        let text = to_text(&[busy, WorkerEntry { name: "b-2".to_owned(), ..WorkerEntry::default() }], "x");
        assert!(text.contains("job-7, then ends") && text.contains("waits"), "{text}");
        assert!(text.contains(&format!("{}/s", ByteSize(1 << 30))), "{text}");
    }
}
