//! `gantry bench server`: the server as a program on this machine: how soon it answers, what it takes while it does
//! nothing, how long it takes to accept a prompt, and what a node costs whose output is known. ComfyUI beside it in the
//! same run where an install is given.

pub(super) mod measuring;
pub(super) mod program;

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Result, ensure};
use meta::{ByteSize, Moment};
use serde::Serialize;

use crate::bench::show;
use crate::cli::BenchArgs;
use crate::machine::Machine;
use crate::table::Table;
use measuring::{Measured, measure};
use program::Program;

/// The most clients and prompts that can be asked for: more would measure the machine's limits, not the server's.
const MOST: usize = 10_000;

#[derive(Serialize)]
struct Report {
    version: &'static str,
    date: String,
    device: String,
    device_name: String,
    detail: String,
    clients: usize,
    prompts: usize,
    servers: Vec<Measured>,
    /// The peer's numbers over ours.
    ratios: Option<Ratios>,
}

/// ComfyUI's over ours: more than 1 is better for us.
#[derive(Serialize)]
struct Ratios {
    start: f64,
    idle_bytes: Option<f64>,
    post_prompt_p50: f64,
    post_prompt_p99: f64,
    cached_node: f64,
}

pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    for (flag, value) in [("--clients", args.clients), ("--prompts", args.prompts)] {
        ensure!((1..=MOST).contains(&value), "{flag} {value}: give a number of 1 to {MOST}");
    }
    let mut servers = vec![measure(&Program::gantry()?, args.clients, args.prompts)?];
    if let Some(folder) = &args.with_comfy {
        servers.push(measure(&Program::comfy(folder, &args.python)?, args.clients, args.prompts)?);
    }
    let description = machine.cpu().description();
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        date: Moment::utc(SystemTime::now()).date(),
        device: description.id.to_string(),
        device_name: description.name.clone(),
        detail: description.detail.clone(),
        clients: args.clients,
        prompts: args.prompts,
        ratios: ratios(&servers),
        servers,
    };
    show(args, &report, Report::to_text)
}

fn ratios(servers: &[Measured]) -> Option<Ratios> {
    let [ours, theirs] = servers else { return None };
    Some(Ratios {
        start: theirs.start_s / ours.start_s,
        idle_bytes: theirs.idle_bytes.zip(ours.idle_bytes).map(|(theirs, ours)| theirs as f64 / ours as f64),
        post_prompt_p50: theirs.post_prompt_ms.p50 / ours.post_prompt_ms.p50,
        post_prompt_p99: theirs.post_prompt_ms.p99 / ours.post_prompt_ms.p99,
        cached_node: theirs.cached_node_us / ours.cached_node_us,
    })
}

impl Report {
    fn to_text(&self) -> String {
        let head = [
            "server",
            "start ms",
            "idle",
            "after",
            "prompt p50 ms",
            "p99 ms",
            "in server p50",
            "p99",
            "prompts/s",
            "cached node us",
        ];
        let mut table = Table::new(&head);
        for server in &self.servers {
            let bytes = |value: Option<u64>| value.map_or("-".into(), |value| ByteSize(value).to_string());
            let inside = |pick: fn(&measuring::Spread) -> f64| {
                server.in_server_ms.as_ref().map_or("-".into(), |spread| format!("{:.3}", pick(spread)))
            };
            table.row(&[
                &server.name,
                &format!("{:.1}", server.start_s * 1e3),
                &bytes(server.idle_bytes),
                &bytes(server.after_bytes),
                &format!("{:.3}", server.post_prompt_ms.p50),
                &format!("{:.3}", server.post_prompt_ms.p99),
                &inside(|spread| spread.p50),
                &inside(|spread| spread.p99),
                &format!("{:.0}", server.prompts_per_s),
                &format!("{:.2}", server.cached_node_us),
            ]);
        }
        format!(
            "{}: {}; {} prompts from {} clients at once\n\n{table}",
            self.device_name, self.detail, self.prompts, self.clients
        )
    }
}
