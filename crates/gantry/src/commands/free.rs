//! `gantry free`: the memory buttons of a running server.

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::print;
use crate::cli::FreeArgs;
use crate::http;

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
    let answer = http::post(&args.server, "/free", args.token.as_deref(), &body.to_string())
        .with_context(|| format!("asking {}: is a server running there?", args.server))?;
    match answer.status {
        200 => print("asked: the server frees memory between jobs\n")?,
        401 | 403 => bail!("{} refuses: give its token with --token", args.server),
        status => bail!("{} answered {status}: {}", args.server, answer.body.trim()),
    }
    Ok(ExitCode::SUCCESS)
}
