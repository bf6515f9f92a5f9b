//! Jobs over HTTP: sent, listed, ended, remembered.

use std::time::Duration;

use serde_json::json;

use super::classes::start;
use super::client::{Socket, get, occupy_others, post, request, show, submit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_remembered_as_it_was_told() {
    let server = start().await;
    let mut socket = Socket::open(&server, "/ws?clientId=a").await;
    let prompt = json!({
        "1": { "class_type": "Number", "inputs": { "value": u64::MAX }, "_meta": { "title": "t" } },
        "9": { "class_type": "Show", "inputs": { "value": ["1", 0] } },
    });
    let body = json!({
        "prompt": prompt, "client_id": "a",
        "extra_data": { "extra_pnginfo": { "workflow": { "id": "w" } }, "api_key_comfy_org": "hidden" },
    });
    let answer = post(&server, "/api/prompt", &body).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json; charset=utf-8"));
    assert_eq!(answer.json()["number"], 0);
    assert_eq!(answer.json()["node_errors"], json!({}));
    let id = answer.json()["prompt_id"].as_str().unwrap().to_owned();
    let told = socket.until_end(&id).await;

    let history = get(&server, &format!("/history/{id}")).await.json();
    let entry = &history[&id];
    assert_eq!(entry["status"]["status_str"], "success");
    assert_eq!(entry["prompt"][2]["1"]["inputs"]["value"], u64::MAX);
    assert_eq!(entry["prompt"][2]["1"]["_meta"]["title"], "t");
    assert_eq!(entry["prompt"][3]["client_id"], "a");
    assert!(!history.to_string().contains("hidden"), "secrets are never shown");
    assert_eq!(entry["outputs"]["9"]["value"][0], u64::MAX);
    assert_eq!(entry["meta"]["9"]["display_node"], "9");
    let executed = told.iter().find(|event| event.kind() == "executed").unwrap();
    assert_eq!(executed.data()["output"], entry["outputs"]["9"]);
    assert_eq!(entry["status"]["messages"].as_array().unwrap().len(), 3);

    let jobs = get(&server, "/api/jobs?status=completed,failed,cancelled&limit=64").await.json();
    assert_eq!(jobs["pagination"], json!({ "offset": 0, "limit": 64, "total": 1, "has_more": false }));
    let job = &jobs["jobs"][0];
    assert_eq!(job["status"], "completed");
    assert_eq!(job["workflow_id"], "w");
    assert_eq!(job["preview_output"]["filename"], "a.png");
    assert!(job["create_time"].is_u64() && job["execution_end_time"].is_u64());
    let detail = get(&server, &format!("/api/jobs/{id}")).await.json();
    assert_eq!(detail["outputs"], entry["outputs"]);
    assert_eq!(get(&server, "/api/jobs/none").await.status, 404);
    assert_eq!(get(&server, "/jobs").await.status, 404, "only under /api");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_run_is_refused_with_reasons() {
    let server = start().await;
    let answer = post(&server, "/prompt", &json!({})).await;
    assert_eq!((answer.status, answer.json()["error"]["type"].clone()), (400, json!("no_prompt")));
    let unknown = json!({ "prompt": { "1": { "class_type": "Nothing", "inputs": {} } } });
    let answer = post(&server, "/prompt", &unknown).await;
    assert_eq!((answer.status, answer.json()["error"]["type"].clone()), (400, json!("missing_node_type")));
    let missing = json!({ "prompt": { "9": { "class_type": "Show", "inputs": {} } } });
    let answer = post(&server, "/prompt", &missing).await;
    assert_eq!(answer.status, 400);
    let error = &answer.json()["node_errors"]["9"];
    assert_eq!(error["errors"][0]["type"], "required_input_missing");
    assert_eq!(error["class_type"], "Show");
    let deep = format!("{{\"prompt\": {}1{}}}", "[".repeat(5000), "]".repeat(5000));
    for body in [b"{".as_slice(), b"", b"[]", b"\xff\xfe", deep.as_bytes()] {
        for path in ["/prompt", "/queue", "/history", "/free", "/api/jobs/cancel"] {
            let answer = request(&server, &format!("POST {path}"), &[("host", "localhost")], body).await;
            assert_eq!(answer.status, 400, "{path}");
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_wait_are_deleted_and_are_interrupted() {
    let server = start().await;
    let mut socket = Socket::open(&server, "/ws?clientId=a").await;
    let slow = || show(1, json!({ "steps": 500, "step_ms": 20 }));
    let running = submit(&server, Some("a"), slow()).await;
    let others = occupy_others(&server).await;
    let (second, third) = (submit(&server, Some("a"), slow()).await, submit(&server, None, slow()).await);
    while socket.next().await.unwrap().kind() != "progress" {}
    assert_eq!(get(&server, "/prompt").await.json()["exec_info"]["queue_remaining"], 3 + others);
    let queue = get(&server, "/queue").await.json();
    assert_eq!(queue["queue_running"][0][1], running);
    assert_eq!(queue["queue_pending"].as_array().unwrap().len(), 2);
    assert_eq!(queue["queue_pending"][0].as_array().unwrap().len(), 5);

    assert_eq!(post(&server, "/queue", &json!({ "delete": [&second, &running] })).await.status, 200);
    assert_eq!(
        get(&server, "/prompt").await.json()["exec_info"]["queue_remaining"],
        2 + others,
        "what runs is not deleted"
    );
    let cancel = post(&server, &format!("/api/jobs/{third}/cancel"), &json!({})).await;
    assert_eq!(cancel.json(), json!({ "cancelled": true }));
    assert_eq!(
        post(&server, "/api/jobs/cancel", &json!({ "job_ids": [&third] })).await.json()["cancelled"],
        false
    );
    assert_eq!(post(&server, "/api/jobs/cancel", &json!({ "job_ids": ["x"] })).await.status, 400);

    assert_eq!(post(&server, "/interrupt", &json!({ "prompt_id": "another" })).await.status, 200);
    let host = [("host", "localhost")];
    assert_eq!(request(&server, "POST /interrupt", &host, b"").await.status, 200);
    let told = socket.until_end(&running).await;
    assert!(told.iter().any(|event| event.kind() == "execution_interrupted"));
    let history = get(&server, "/history").await.json();
    for deleted in [&second, &third] {
        assert!(history.get(deleted).is_none(), "deleted jobs leave no history");
    }
    assert_eq!(history[&running]["status"]["status_str"], "error");
    let listed = get(&server, "/api/jobs?status=cancelled").await.json();
    assert!(listed["jobs"].as_array().unwrap().iter().any(|job| job["id"] == running), "{listed}");
    while get(&server, "/history").await.json().as_object().unwrap().len() < 1 + others {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(post(&server, "/history", &json!({ "clear": true })).await.status, 200);
    assert_eq!(get(&server, "/history").await.json(), json!({}));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_job_says_where() {
    let server = start().await;
    let mut socket = Socket::open(&server, "/ws?clientId=a").await;
    let prompt = json!({ "5": { "class_type": "Fail", "inputs": { "value": 1 } } });
    let id = submit(&server, Some("a"), prompt).await;
    let told = socket.until_end(&id).await;
    let error = told.iter().find(|event| event.kind() == "execution_error").unwrap().data();
    assert_eq!(error["node_id"], "5");
    assert_eq!(error["node_type"], "Fail");
    assert_eq!(error["exception_type"], "ValueError");
    assert!(error["exception_message"].as_str().unwrap().starts_with("it was to fail"));
    let job = get(&server, "/api/jobs?status=failed").await.json()["jobs"][0].clone();
    for key in ["node_id", "node_type", "exception_message", "exception_type"] {
        assert!(job["execution_error"][key].is_string(), "the front end's schema wants {key}");
    }
    assert!(job["execution_error"]["traceback"].is_array());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_is_sliced() {
    let server = start().await;
    let mut ids = Vec::new();
    for value in 0..4 {
        ids.push(submit(&server, None, show(value, json!({}))).await);
    }
    for _ in 0..200 {
        if get(&server, "/prompt").await.json()["exec_info"]["queue_remaining"] == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let keys = |answer: super::client::Answer| -> Vec<String> {
        answer.json().as_object().unwrap().keys().cloned().collect()
    };
    // The history has jobs in the order in which they ended, which two workers may swap.
    let ended = keys(get(&server, "/history").await);
    let (mut sorted, mut sent) = (ended.clone(), ids);
    sorted.sort();
    sent.sort();
    assert_eq!(sorted, sent);
    assert_eq!(keys(get(&server, "/history?max_items=2").await), ended[2..]);
    assert_eq!(keys(get(&server, "/history?max_items=2&offset=0").await), ended[..2]);
    assert_eq!(keys(get(&server, "/history?max_items=9&offset=3").await), ended[3..]);
    assert_eq!(get(&server, "/history?max_items=x").await.status, 400);
    assert_eq!(get(&server, "/history/none").await.json(), json!({}));
    assert_eq!(get(&server, "/api/jobs?limit=0").await.status, 400);
    server.stop().await;
}
