//! `gantry free`: the memory buttons of a running server.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use serde_json::json;

use super::{print, print_json};
use crate::asking::Peer;
use crate::cli::FreeArgs;

pub(super) fn run(args: &FreeArgs) -> Result<ExitCode> {
    ensure!(
        args.unload_models || args.free_memory || args.force,
        "say what to free: --unload-models, --free-memory or --force"
    );
    let body = json!({
        "unload_models": args.unload_models || args.force,
        "free_memory": args.free_memory,
        "force": args.force,
    });
    Peer::new(&args.peer)?.post("/free", &body)?;
    if args.output.json {
        print_json(&json!({ "asked": body }))?;
    } else {
        print("asked: the server frees memory between jobs\n")?;
    }
    Ok(ExitCode::SUCCESS)
}
