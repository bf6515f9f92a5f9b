//! Whether the server's port is free, and who answers there if it is not.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use serde_json::{Value, json};

use super::check::Check;
use crate::http;

/// How long whoever is there may take for each part of an answer.
const PATIENCE: Duration = Duration::from_millis(1500);

pub(super) fn check(port: u16) -> Check {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Check::works("port", format!("Port {port} is free: the server can listen there."))
            .with_facts(json!({ "port": port, "free": true, "server": null })),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => taken(port),
        Err(error) => Check::broken(
            "port",
            format!("Port {port} cannot be used: {error}."),
            format!("Give another one: gantry serve --port {}.", other(port)),
        )
        .with_facts(json!({ "port": port, "free": false, "server": null })),
    }
}

fn other(port: u16) -> u16 {
    port.checked_add(1).unwrap_or(8189)
}

fn taken(port: u16) -> Check {
    let who = who_answers(port);
    let facts = json!({ "port": port, "free": false, "server": who.word(), "version": who.version() });
    let another = format!("gantry serve --port {}", other(port));
    let check = match &who {
        Answering::Gantry(version) => {
            Check::works("port", format!("Gantry {version} is serving at http://127.0.0.1:{port}/ already."))
        }
        Answering::ComfyUi(version) => Check::attention(
            "port",
            format!("ComfyUI {version} is serving at port {port}."),
            format!("Stop it, or use another port: {another}."),
        ),
        Answering::Locked => Check::attention(
            "port",
            format!("A server that asks for a password or a token is at port {port}."),
            format!("If it is not yours, use another port: {another}."),
        ),
        Answering::Other => Check::attention(
            "port",
            format!("Another program has port {port}, and it is neither Gantry nor ComfyUI."),
            format!("Use another port: {another}."),
        ),
    };
    check.with_facts(facts)
}

/// Who has the port.
enum Answering {
    Gantry(String),
    ComfyUi(String),
    Locked,
    Other,
}

impl Answering {
    fn word(&self) -> &'static str {
        match self {
            Answering::Gantry(_) => "Gantry",
            Answering::ComfyUi(_) => "ComfyUI",
            Answering::Locked => "locked",
            Answering::Other => "unknown",
        }
    }

    fn version(&self) -> Option<&str> {
        match self {
            Answering::Gantry(version) | Answering::ComfyUi(version) => Some(version),
            Answering::Locked | Answering::Other => None,
        }
    }
}

fn who_answers(port: u16) -> Answering {
    let Ok(answer) = http::get(&format!("http://127.0.0.1:{port}"), "/system_stats", PATIENCE) else {
        return Answering::Other;
    };
    if matches!(answer.status, 401 | 403) {
        return Answering::Locked;
    }
    let Ok(stats) = serde_json::from_str::<Value>(&answer.body) else { return Answering::Other };
    let text = |key: &str| stats["system"][key].as_str().map(str::to_owned);
    // Gantry says what it has in the place of Python.
    let ours = text("python_version").and_then(|python| {
        let version = python.split_once("(gantry ")?.1;
        Some(version.trim_end_matches(')').to_owned())
    });
    match (ours, text("comfyui_version")) {
        (Some(version), _) => Answering::Gantry(version),
        (None, Some(version)) => Answering::ComfyUi(version),
        (None, None) => Answering::Other,
    }
}
