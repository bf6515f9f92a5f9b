//! `/system_stats` and `/features`: what this machine and this server are.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use device::MemoryInfo;
use engine::DeviceReport;
use meta::{DeviceId, DeviceKind};
use serde_json::{Value, json};

use super::ask;
use crate::app::App;
use crate::config::ServerConfig;
use crate::speaks::COMFYUI_VERSION;
use crate::wire::rejection::Answer;
use crate::wire::reply;

pub(super) async fn stats(State(app): State<Arc<App>>) -> Answer {
    let config = Arc::clone(&app.config);
    ask(&app, move |engine| {
        let report = engine.worker().report();
        let host = report.devices.iter().find(|device| device.id == DeviceId::CPU);
        let host = host.and_then(|device| device.memory.clone().ok()).unwrap_or_default();
        reply::json(&json!({
            "system": system(&config, host),
            "devices": in_order(&report.devices, report.compute).map(shown).collect::<Vec<_>>(),
        }))
    })
    .await
}

fn system(config: &ServerConfig, host: MemoryInfo) -> Value {
    let process = &config.process;
    json!({
        "os": process.os,
        "ram_total": host.total,
        "ram_free": host.free,
        "comfyui_version": COMFYUI_VERSION,
        "required_frontend_version": process.front_end_version,
        "installed_templates_version": null,
        "required_templates_version": null,
        "python_version": format!("none (gantry {})", process.version),
        "pytorch_version": format!("none (gantry {})", process.version),
        "embedded_python": false,
        "argv": argv(config),
        "comfy_package_versions": [],
        "deploy_environment": "local",
    })
}

/// The command line, less the token if somebody wrote it there.
fn argv(config: &ServerConfig) -> Vec<String> {
    let argv = config.process.argv.iter();
    match &config.token {
        Some(token) => argv.map(|word| word.replace(token.as_str(), "…")).collect(),
        None => argv.cloned().collect(),
    }
}

/// The device that computes, then the other accelerators; the host only if it computes.
fn in_order(devices: &[DeviceReport], compute: DeviceId) -> impl Iterator<Item = &DeviceReport> {
    let first = devices.iter().filter(move |device| device.id == compute);
    let others = devices.iter();
    first.chain(others.filter(move |device| device.id != compute && device.id.kind != DeviceKind::Cpu))
}

fn shown(device: &DeviceReport) -> Value {
    let memory = device.memory.clone().unwrap_or_default();
    let id = device.id;
    json!({
        "name": format!("{id} {}", device.name),
        "type": id.kind.name(),
        "index": (id.kind != DeviceKind::Cpu).then_some(id.ordinal),
        "vram_total": memory.total,
        "vram_free": memory.free.saturating_add(memory.cached),
        "torch_vram_total": device.ledger.used.saturating_add(memory.cached),
        "torch_vram_free": memory.cached,
    })
}

pub(super) async fn features(State(app): State<Arc<App>>) -> Response {
    reply::json(&flags(&app.config))
}

/// What this server can do, as clients ask for it. `assets` is not offered though the routes are there: the front end would
/// show the list of files in the place of the jobs. `supports_progress_text_metadata` must not be here: clients would then
/// expect frames that there are not.
pub(super) fn flags(config: &ServerConfig) -> Value {
    json!({
        "supports_preview_metadata": true,
        "supports_model_type_tags": false,
        "max_upload_size": config.max_upload_bytes,
        "extension": { "manager": { "supports_v4": false } },
        "node_replacements": true,
        "assets": false,
    })
}
