//! A running server that commands ask: its address, its token, and what it means when it does not answer as it should.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cli::PeerArgs;
use crate::http::{self, Answer};

/// A server.
pub(crate) struct Peer<'a> {
    address: &'a str,
    token: Option<String>,
}

impl<'a> Peer<'a> {
    /// The server that the command line names.
    pub(crate) fn new(args: &'a PeerArgs) -> Result<Peer<'a>> {
        ensure!(
            args.server.starts_with("http://"),
            "--server {}: write http://HOST:PORT; a server behind https is asked through its own address",
            args.server
        );
        Ok(Peer { address: &args.server, token: args.token.read()? })
    }

    /// What is at a path, as JSON.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        let answer = http::get_as(self.address, path, self.token.as_deref());
        let answer = self.understood(answer)?;
        serde_json::from_str(&answer.body)
            .with_context(|| format!("--server {}: {path} is no JSON", self.address))
    }

    /// Posts JSON to a path.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.understood(http::post(self.address, path, self.token.as_deref(), &body.to_string()))
    }

    fn understood(&self, answer: Result<Answer>) -> Result<Answer> {
        let address = self.address;
        let answer = answer.with_context(|| {
            format!("--server {address}: no answer; see whether `gantry serve` runs there")
        })?;
        match answer.status {
            200..=299 => Ok(answer),
            401 | 403 => {
                bail!("--server {address}: it refuses; give its token with --token-file or GANTRY_TOKEN")
            }
            // It knows us, and says what is wrong.
            400 | 404 if answer.header("content-type").is_some_and(|kind| kind.contains("json")) => {
                let told: Value = serde_json::from_str(&answer.body).unwrap_or_default();
                let text = told["error"]["message"].as_str().or_else(|| told["error"].as_str());
                bail!("--server {address}: {}", text.unwrap_or(&answer.body))
            }
            status => {
                let first =
                    answer.body.lines().next().unwrap_or_default().chars().take(200).collect::<String>();
                bail!("--server {address}: this is no Gantry or ComfyUI; it answered {status} {first}")
            }
        }
    }
}
