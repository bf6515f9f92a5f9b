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
    ensure!(
        args.server.starts_with("http://"),
        "--server {}: write http://HOST:PORT; a server behind https is asked through its own address",
        args.server
    );
    let body = json!({
        "unload_models": args.unload_models || args.force,
        "free_memory": args.free_memory,
        "force": args.force,
    });
    let answer =
        http::post(&args.server, "/free", args.token.as_deref(), &body.to_string()).with_context(|| {
            format!("--server {}: no answer; see whether `gantry serve` runs there", args.server)
        })?;
    match answer.status {
        200 => print("asked: the server frees memory between jobs\n")?,
        401 | 403 => bail!("--server {}: it refuses; give its token with --token", args.server),
        status => {
            let first = answer.body.lines().next().unwrap_or_default().chars().take(200).collect::<String>();
            bail!("--server {}: this is no Gantry or ComfyUI; it answered {status} {first}", args.server)
        }
    }
    Ok(ExitCode::SUCCESS)
}
