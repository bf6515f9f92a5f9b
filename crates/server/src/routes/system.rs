//! `/system_stats` and `/features`: what this machine and this server are.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use device::{Device, MemoryInfo};
use meta::{DeviceId, DeviceKind};
use serde_json::{Value, json};

use super::ask;
use crate::app::App;
use crate::config::ServerConfig;
use crate::wire::reply;

/// The version of ComfyUI whose protocol this is.
const COMFYUI_VERSION: &str = "0.7.0";

pub(super) async fn stats(State(app): State<Arc<App>>) -> Result<Response, Response> {
    let config = Arc::clone(&app.config);
    ask(&app, move |engine| {
        let studio = engine.studio();
        let devices: Vec<&Device> = studio.devices.iter().collect();
        let host = devices.iter().find(|device| device.id() == DeviceId::CPU);
        let host = host.and_then(|device| device.memory().ok()).unwrap_or_default();
        reply::json(&json!({
            "system": system(&config, host),
            "devices": in_order(&devices, studio.compute).map(shown).collect::<Vec<_>>(),
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
        "argv": process.argv,
    })
}

/// The device that computes, then the other accelerators; the host only if it computes.
fn in_order<'a>(devices: &'a [&Device], compute: DeviceId) -> impl Iterator<Item = &'a Device> {
    let first = devices.iter().copied().filter(move |device| device.id() == compute);
    let others = devices.iter().copied();
    first.chain(others.filter(move |device| device.id() != compute && device.id().kind != DeviceKind::Cpu))
}

fn shown(device: &Device) -> Value {
    let memory = device.memory().unwrap_or_default();
    let report = device.ledger().report();
    let id = device.id();
    json!({
        "name": format!("{id} {}", device.description().name),
        "type": id.kind.name(),
        "index": (id.kind != DeviceKind::Cpu).then_some(id.ordinal),
        "vram_total": memory.total,
        "vram_free": memory.free.saturating_add(memory.cached),
        "torch_vram_total": report.used.saturating_add(memory.cached),
        "torch_vram_free": memory.cached,
    })
}

pub(super) async fn features(State(app): State<Arc<App>>) -> Response {
    reply::json(&flags(&app.config))
}

/// What this server can do, as clients ask for it. `assets` and `supports_progress_text_metadata` must not be
/// here: clients would then expect routes and frames that there are not.
pub(super) fn flags(config: &ServerConfig) -> Value {
    json!({
        "supports_preview_metadata": true,
        "max_upload_size": config.max_upload_bytes,
    })
}
