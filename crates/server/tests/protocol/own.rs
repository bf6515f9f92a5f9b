//! Our own routes, and those that say what this server is.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use placement::Plan;
use serde_json::json;
use server::{PlanQuestion, Planner};

use super::classes::{config, start, start_with};
use super::client::{get, post, request, show, submit};

struct Refuses;

impl Planner for Refuses {
    fn plan(&self, _: &Path, _: &PlanQuestion) -> Result<Plan, String> {
        Err("no".to_owned())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_machine_is_shown() {
    let started = Instant::now();
    let server = start().await;
    let stats = get(&server, "/system_stats").await.json();
    assert!(started.elapsed().as_millis() < 1000, "it took {:?}", started.elapsed());
    assert!(stats["system"]["argv"].is_array());
    assert_eq!(stats["devices"][0]["type"], "null");
    assert_eq!(stats["devices"][0]["vram_total"], 1 << 30);
    let devices = get(&server, "/api/gantry/devices").await.json();
    assert_eq!(devices["devices"][0]["id"], "null:0");
    assert_eq!(get(&server, "/gantry/models").await.json(), json!({ "models": [] }));
    let host = [("host", "localhost")];
    let retention = br#"{"retention": "keep"}"#;
    assert_eq!(request(&server, "PATCH /gantry/models/7", &host, retention).await.status, 404);
    assert_eq!(request(&server, "PATCH /gantry/models/7", &host, b"{\"retention\": 3}").await.status, 400);
    assert_eq!(request(&server, "DELETE /gantry/models/7", &host, b"").await.status, 404);
    assert_eq!(request(&server, "DELETE /gantry/models/x", &host, b"").await.status, 404);
    assert_eq!(get(&server, "/gantry/snapshots").await.json(), json!({ "snapshots": [] }));
    assert_eq!(get(&server, "/gantry/openapi.json").await.json()["openapi"], "3.1.0");
    assert_eq!(post(&server, "/gantry/plan", &json!({ "file": "a" })).await.status, 501);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_are_made_only_for_files_in_model_folders() {
    let mut planning = config();
    planning.planner = Some(Arc::new(Refuses));
    let server = start_with(planning).await;
    for file in ["/etc/passwd", "../../etc/passwd", "none.safetensors"] {
        assert_eq!(post(&server, "/gantry/plan", &json!({ "file": file })).await.status, 404, "{file}");
    }
    assert_eq!(post(&server, "/gantry/plan", &json!({})).await.status, 400);
    assert_eq!(post(&server, "/gantry/plan", &json!({ "file": "a", "compute": "gpu" })).await.status, 400);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_measured() {
    let server = start().await;
    let id = submit(&server, None, show(1, json!({ "steps": 5, "step_ms": 4 }))).await;
    let mut jobs = json!([]);
    for _ in 0..200 {
        jobs = get(&server, "/gantry/stats").await.json()["jobs"].clone();
        if jobs[0].is_object() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(jobs[0]["prompt_id"], id);
    assert_eq!(jobs[0]["nodes"][0]["steps"], 5);
    assert!(jobs[0]["nodes"][0]["seconds_per_step"].as_f64().unwrap() >= 0.004);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn classes_are_described_and_kept_by_their_tag() {
    let mut compressing = config();
    compressing.compress = true;
    compressing.self_only = true;
    let server = start_with(compressing).await;
    let answer = get(&server, "/object_info").await;
    let info = answer.json();
    assert_eq!(info.as_object().unwrap().keys().collect::<Vec<_>>(), ["Number", "Show", "Fail"]);
    assert_eq!(info["Show"]["input"]["required"]["value"][1]["max"], u64::MAX);
    assert_eq!(info["Show"]["input_order"]["optional"], json!(["steps", "step_ms", "with_pictures"]));
    assert!(answer.header("content-security-policy").unwrap().contains("default-src 'self'"));
    let tag = answer.header("etag").unwrap().to_owned();
    let known = [("host", "localhost"), ("if-none-match", tag.as_str())];
    assert_eq!(request(&server, "GET /object_info", &known, b"").await.status, 304);
    assert_eq!(get(&server, "/object_info/Nothing").await.json(), json!({}));
    assert_eq!(get(&server, "/object_info/Fail").await.json()["Fail"]["output_node"], true);
    let packed = [("host", "localhost"), ("accept-encoding", "gzip")];
    let answer = request(&server, "GET /object_info", &packed, b"").await;
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    server.stop().await;
}
