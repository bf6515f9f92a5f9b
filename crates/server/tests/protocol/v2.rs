//! Comfy's API v2, ComfyUI's list of files and its replaced classes.

use std::sync::Arc;
use std::time::Duration;

use runtime::Folders;
use serde_json::{Value, json};
use server::{FilesConfig, Server};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::classes::{config, start, start_in};
use super::client::{Answer, get, post, read, request, show};

const HOST: (&str, &str) = ("host", "127.0.0.1:8188");

/// A server whose output folder has the picture that `Show` tells of.
async fn start_with_files() -> (Server, TempDir) {
    let base = tempfile::tempdir().unwrap();
    let folders = Folders::at(base.path());
    for folder in [&folders.input, &folders.output, &folders.temp] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::write(folders.output.join("a.png"), b"not really a picture").unwrap();
    let mut config = config();
    config.files = Arc::new(FilesConfig { folders: folders.clone(), ..FilesConfig::default() });
    (start_in(config, folders).await, base)
}

async fn send(server: &Server, start: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let headers = [&[HOST], headers].concat();
    request(server, start, &headers, body).await
}

async fn submit(server: &Server, body: &Value, key: &str) -> Answer {
    send(server, "POST /api/v2/jobs", &[("idempotency-key", key)], body.to_string().as_bytes()).await
}

async fn ended(server: &Server, id: &str) -> Value {
    for _ in 0..400 {
        let job = send(server, &format!("GET /api/v2/jobs/{id}"), &[], b"").await.json();
        if !["queued", "running"].contains(&job["status"].as_str().unwrap()) {
            return job;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the job {id} does not end");
}

/// Waits until a job has this status.
async fn until(server: &Server, id: &str, status: &str) {
    for _ in 0..400 {
        let job = send(server, &format!("GET /api/v2/jobs/{id}"), &[], b"").await.json();
        if job["status"] == status {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the job {id} is never {status}");
}

/// The form of an upload.
fn form(parts: &[(&str, &str)], file: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, text) in parts {
        let head = format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n");
        body.extend(head.as_bytes());
    }
    body.extend(b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"sent.txt\"\r\n\r\n");
    body.extend(file);
    body.extend(b"\r\n--b--\r\n");
    body
}

const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=b");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_runs_and_its_output_is_an_asset() {
    let (server, _base) = start_with_files().await;
    let body = json!({ "workflow": show(3, json!({})), "metadata": { "client": "acme" } });
    let made = submit(&server, &body, "k1").await;
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    let id = made.json()["id"].as_str().unwrap().to_owned();
    for key in ["created_at", "expires_at"] {
        assert!(made.json()[key].as_str().unwrap().ends_with('Z'), "{key}");
    }
    assert_eq!(made.json()["urls"]["events"], format!("/api/v2/jobs/{id}/events"));
    let job = ended(&server, &id).await;
    assert_eq!(job["status"], "succeeded");
    assert_eq!((&job["error"], &job["progress"]["value"]), (&Value::Null, &json!(1.0)));
    assert_eq!(job["metadata"], json!({ "client": "acme" }));
    let output = &job["outputs"][0];
    assert_eq!((&output["node_id"], &output["type"]), (&json!("9"), &json!("image")));
    let asset = output["id"].as_str().unwrap();
    assert_eq!(output["url"], format!("http://127.0.0.1:8188/api/v2/assets/{asset}/content"));
    let range = [("range", "bytes=4-9")];
    let part = send(&server, &format!("GET /api/v2/assets/{asset}/content"), &range, b"").await;
    assert_eq!((part.status, part.body.as_slice()), (206, b"really".as_slice()));
    let workflow = send(&server, &format!("GET /api/v2/jobs/{id}/workflow"), &[], b"").await.json();
    assert_eq!(
        (&workflow["format"], &workflow["workflow"]["9"]["class_type"]),
        (&json!("api"), &json!("Show"))
    );
    let again = submit(&server, &body, "k1").await;
    assert_eq!((again.status, again.json()["error"]["code"].clone()), (422, json!("idempotency_key_reuse")));
    let health = send(&server, "GET /api/v2/health", &[], b"").await.json();
    assert_eq!(health["status"], "ok");
    let stats = get(&server, "/system_stats").await.json();
    assert_eq!(stats["system"]["comfyui_version"], health["comfyui_version"], "said in one place");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_a_job_is_refused_with_its_code() {
    let (server, _base) = start_with_files().await;
    let reference = json!({ "__type": "core/ASSET", "info": { "id": "none" } });
    let cases = [
        (json!({}), "invalid_workflow"),
        (json!({ "workflow": { "nodes": [], "links": [], "last_node_id": 1 } }), "workflow_format_ui"),
        (json!({ "workflow": { "1": { "class_type": "Nothing", "inputs": {} } } }), "invalid_workflow"),
        (
            json!({ "workflow": { "1": { "class_type": "Show", "inputs": { "value": reference } } } }),
            "missing_asset",
        ),
        (json!({ "workflow": show(1, json!({})), "metadata": { "a": 1 } }), "metadata_invalid"),
        (json!({ "workflow": show(1, json!({})), "webhook_url": "http://x" }), "invalid_request"),
    ];
    for (body, code) in cases {
        // The same key each time: what was refused has not used it.
        let answer = submit(&server, &body, "k").await;
        assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (422, json!(code)), "{body}");
    }
    assert_eq!(send(&server, "POST /api/v2/jobs", &[], b"{").await.status, 400);
    let missing = send(&server, "GET /api/v2/jobs/none", &[], b"").await;
    assert_eq!((missing.status, missing.json()["error"]["code"].clone()), (404, json!("not_found")));
    let failing = json!({ "workflow": { "5": { "class_type": "Fail", "inputs": { "value": 1 } } } });
    let made = submit(&server, &failing, "k").await.json();
    let job = ended(&server, made["id"].as_str().unwrap()).await;
    assert_eq!((&job["status"], &job["error"]["node_id"]), (&json!("failed"), &json!("5")));
    assert_eq!(job["error"]["code"], "node_execution_error");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_a_job_to_its_end() {
    let (server, _base) = start_with_files().await;
    let workflow = show(7, json!({ "steps": 40, "step_ms": 25, "with_pictures": true }));
    let made = submit(&server, &json!({ "workflow": workflow }), "k").await.json();
    let mut stream = TcpStream::connect(server.addresses()[0]).await.unwrap();
    let path = made["urls"]["events"].as_str().unwrap();
    let text = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    // The answer ends when the job does.
    let answer = tokio::time::timeout(Duration::from_secs(30), read(&mut stream)).await.unwrap();
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let body = String::from_utf8(answer.body).unwrap();
    let events: Vec<(&str, Value)> = body
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("event: ")?.split_once("\ndata: "))
        .map(|(name, data)| (name, serde_json::from_str(data).unwrap()))
        .collect();
    let of =
        |name: &str| events.iter().filter(|event| event.0 == name).map(|event| &event.1).collect::<Vec<_>>();
    assert_eq!(of("status").last().unwrap()["status"], "succeeded");
    assert_eq!(events.last().unwrap().0, "status", "the last word is the state");
    let steps: Vec<u64> = of("progress").iter().filter_map(|progress| progress["step"].as_u64()).collect();
    assert!(steps.len() >= 2 && steps.is_sorted(), "{steps:?}");
    assert!(of("preview")[0]["data_base64"].as_str().unwrap().starts_with("/9j/"), "a JPEG");
    assert_eq!(of("output").len(), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_cancelled_and_listed() {
    // The list is that of a queue in which two jobs wait for the one that runs.
    if crate::WORKERS > 1 {
        return;
    }
    let (server, _base) = start_with_files().await;
    let slow =
        json!({ "workflow": show(1, json!({ "steps": 500, "step_ms": 20 })), "metadata": { "run": "1" } });
    let quick = json!({ "workflow": show(2, json!({})) });
    let mut ids = Vec::new();
    for (body, key) in [(&slow, "a"), (&quick, "b"), (&quick, "c")] {
        ids.push(submit(&server, body, key).await.json()["id"].as_str().unwrap().to_owned());
    }
    let waiting = send(&server, &format!("GET /api/v2/jobs/{}", ids[2]), &[], b"").await.json();
    assert_eq!(
        (&waiting["status"], waiting["queue_position"].as_u64().unwrap() >= 1),
        (&json!("queued"), true)
    );
    let withdrawn = send(&server, &format!("POST /api/v2/jobs/{}/cancel", ids[1]), &[], b"").await.json();
    assert_eq!(withdrawn["status"], "canceled");
    assert_eq!(ended(&server, &ids[1]).await["status"], "canceled", "it can still be asked after");
    // One that had not begun would leave no record.
    until(&server, &ids[0], "running").await;
    let cancelled = send(&server, &format!("POST /api/v2/jobs/{}/cancel", ids[0]), &[], b"").await;
    assert_eq!(cancelled.status, 200);
    until(&server, &ids[0], "canceled").await;
    let twice = send(&server, &format!("POST /api/v2/jobs/{}/cancel", ids[0]), &[], b"").await.json();
    assert_eq!(twice["status"], "canceled", "to cancel twice changes nothing");
    assert_eq!(ended(&server, &ids[2]).await["status"], "succeeded");
    let page = send(&server, "GET /api/v2/jobs?limit=1", &[], b"").await.json();
    assert_eq!(page["jobs"][0]["id"], ids[2]);
    let path = format!("GET /api/v2/jobs?limit=1&cursor={}", page["next_cursor"].as_str().unwrap());
    let next = send(&server, &path, &[], b"").await.json();
    assert_eq!(next["jobs"][0]["id"], ids[0]);
    assert!(next.get("next_cursor").is_none());
    let labelled = send(&server, "GET /api/v2/jobs?metadata%5Brun%5D=1", &[], b"").await.json();
    assert_eq!(labelled["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(send(&server, "GET /api/v2/jobs?cursor=x", &[], b"").await.status, 400);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_become_assets_once() {
    let (server, base) = start_with_files().await;
    let hash = format!("blake3:{}", blake3::hash(b"hello").to_hex());
    let by_hash = format!("HEAD /api/v2/assets/by-hash/{hash}");
    assert_eq!(send(&server, &by_hash, &[], b"").await.status, 404);
    let unknown = json!({ "hash": hash }).to_string();
    let missing = send(&server, "POST /api/v2/assets/from-hash", &[], unknown.as_bytes()).await;
    assert_eq!((missing.status, missing.json()["error"]["code"].clone()), (404, json!("blob_not_found")));
    let parts = [("file_path", "photo.txt"), ("expected_hash", hash.as_str()), ("tags", "mine")];
    let wrong = send(&server, "POST /api/v2/assets", &[FORM], &form(&parts, b"other")).await;
    assert_eq!((wrong.status, wrong.json()["error"]["code"].clone()), (409, json!("hash_mismatch")));
    let made = send(&server, "POST /api/v2/assets", &[FORM], &form(&parts, b"hello")).await;
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    assert_eq!((&made.json()["hash"], &made.json()["file_path"]), (&json!(hash), &json!("photo.txt")));
    assert_eq!(std::fs::read(Folders::at(base.path()).input.join("photo.txt")).unwrap(), b"hello");
    assert_eq!(send(&server, &by_hash, &[], b"").await.status, 200);
    let twin = json!({ "hash": hash, "file_path": "twin.txt" }).to_string();
    let twin = send(&server, "POST /api/v2/assets/from-hash", &[], twin.as_bytes()).await;
    assert_eq!((twin.status, twin.json()["created_new"].clone()), (201, json!(false)));
    // ComfyUI's own list has the same files.
    let list = send(&server, "GET /api/assets?tags_all=input,mine&sort=name", &[], b"").await.json();
    assert_eq!((&list["total"], &list["assets"][0]["name"]), (&json!(1), &json!("photo.txt")));
    let id = list["assets"][0]["id"].as_str().unwrap();
    assert_eq!(made.json()["id"], id);
    let tagged =
        send(&server, &format!("POST /api/assets/{id}/tags"), &[], br#"{"tags": ["b", "mine"]}"#).await;
    assert_eq!(tagged.json()["added"], json!(["b"]));
    let untagged =
        send(&server, &format!("DELETE /api/assets/{id}/tags"), &[], br#"{"tags": ["b", "input"]}"#).await;
    assert_eq!(
        (&untagged.json()["removed"], &untagged.json()["protected"]),
        (&json!(["b"]), &json!(["input"]))
    );
    let tags = send(&server, "GET /api/tags?prefix=mi", &[], b"").await.json();
    assert_eq!(tags["tags"], json!([{ "name": "mine", "count": 1 }]));
    assert_eq!(send(&server, &format!("DELETE /api/v2/assets/{id}"), &[], b"").await.status, 204);
    assert_eq!(send(&server, &format!("GET /api/assets/{id}"), &[], b"").await.status, 404);
    for path in ["../../x.txt", "/etc/x.txt"] {
        let outside =
            send(&server, "POST /api/v2/assets", &[FORM], &form(&[("file_path", path)], b"x")).await;
        assert!([400, 403].contains(&outside.status), "{path}: {}", outside.status);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn todays_flags_and_fields_are_there() {
    let server = start().await;
    let flags = get(&server, "/api/features").await.json();
    assert_eq!((&flags["node_replacements"], &flags["assets"]), (&json!(true), &json!(false)));
    assert_eq!(get(&server, "/api/node_replacements").await.json(), json!({}), "none of the classes is here");
    let class = get(&server, "/object_info/Show").await.json()["Show"].clone();
    for key in ["search_aliases", "has_intermediate_output", "api_node"] {
        assert!(!class[key].is_null(), "{key}");
    }
    let chosen = "0b5c1e9a-7a0e-4a55-9d3b-0123456789ab";
    let body = json!({ "prompt": show(1, json!({})), "prompt_id": chosen });
    assert_eq!(post(&server, "/prompt", &body).await.json()["prompt_id"], chosen);
    let body = json!({ "prompt": show(1, json!({})), "prompt_id": chosen.to_uppercase() });
    let refused = post(&server, "/prompt", &body).await;
    assert_eq!((refused.status, refused.json()["error"]["type"].clone()), (400, json!("invalid_prompt_id")));
    server.stop().await;
}
