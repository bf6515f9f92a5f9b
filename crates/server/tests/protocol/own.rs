//! Our own routes, and those that say what this server is.

use std::time::Instant;

use runtime::Folders;
use serde_json::json;

use super::classes::{config, start, start_in, start_with};
use super::client::{Socket, get, occupy_others, post, request, show, submit};

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
    assert_eq!(post(&server, "/gantry/plan", &json!({ "file": "a" })).await.status, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_are_made_only_for_files_in_model_folders() {
    let server = start().await;
    for file in ["/etc/passwd", "../../etc/passwd", "none.safetensors"] {
        assert_eq!(post(&server, "/gantry/plan", &json!({ "file": file })).await.status, 404, "{file}");
    }
    assert_eq!(post(&server, "/gantry/plan", &json!({})).await.status, 400);
    assert_eq!(post(&server, "/gantry/plan", &json!({ "file": "a", "compute": "gpu" })).await.status, 400);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_gets_the_queue_the_picture_and_what_failed() {
    let mut config = config();
    let read = |id: meta::DeviceId| {
        (id.ordinal == 0).then_some(server::Reading { busy_percent: Some(40), celsius: None })
    };
    config.sensors = Some(std::sync::Arc::new(read));
    let server = start_with(config).await;
    let mut socket = Socket::open(&server, "/ws?clientId=a").await;
    assert_eq!(get(&server, "/gantry/preview").await.status, 204);
    let failing = json!({ "5": { "class_type": "Fail", "inputs": { "value": 1 } } });
    let failed = submit(&server, Some("a"), failing).await;
    let slow = show(1, json!({ "steps": 500, "step_ms": 20, "with_pictures": true }));
    let running = submit(&server, Some("a"), slow).await;
    occupy_others(&server).await;
    let waiting = submit(&server, None, show(2, json!({}))).await;
    while socket.next().await.unwrap().kind() != "progress" {}
    // The picture of a step is told behind its number.
    let now = loop {
        let now = get(&server, "/gantry/now").await.json();
        if now["preview"].is_u64() {
            break now;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    assert_eq!(now["queue"][0]["prompt_id"], waiting);
    assert_eq!(
        (&now["errors"][0]["prompt_id"], &now["errors"][0]["class"]),
        (&json!(failed), &json!("Fail"))
    );
    assert!(now["preview"].as_u64().unwrap() >= 1);
    assert_eq!(
        (&now["devices"][0]["busy_percent"], &now["devices"][0]["celsius"]),
        (&json!(40), &json!(null))
    );
    let picture = get(&server, "/gantry/preview").await;
    assert_eq!((picture.header("content-type"), &picture.body[..2]), (Some("image/jpeg"), &b"\xff\xd8"[..]));
    let told = post(&server, "/gantry/loaders", &json!({ "file": "m", "alloc": "cpu,*" })).await.json();
    assert_eq!(told, json!({ "clients": 1 }));
    let plan = loop {
        let event = socket.next().await.unwrap();
        if event.kind() == "gantry_plan" {
            break event;
        }
    };
    assert_eq!(plan.data(), &json!({ "file": "m", "alloc": "cpu,*", "compute": null }));
    assert_eq!(post(&server, "/gantry/loaders", &json!({})).await.status, 400);
    assert_eq!(
        post(&server, &format!("/api/jobs/{running}/cancel"), &json!({})).await.json()["cancelled"],
        true
    );
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_allocation_is_told_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models/diffusion_models");
    std::fs::create_dir_all(&models).unwrap();
    // The smallest safetensors file: a header without entries.
    std::fs::write(models.join("a.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let server = start_in(config(), Folders::at(folder.path())).await;

    let files = get(&server, "/gantry/files").await.json();
    assert_eq!(files["folders"][0]["folder"], "diffusion_models");
    assert_eq!(files["folders"][0]["files"], json!([{ "name": "a.safetensors", "bytes": 10 }]));
    let place = files["folders"][0]["places"][0].as_str().unwrap();
    assert!(place.contains("models"), "where such files belong: {place}");

    let question = json!({ "file": "a.safetensors", "alloc": "null:0,1gb;cuda:7,*" });
    let answer = post(&server, "/gantry/plan", &question).await;
    assert_eq!(answer.status, 422);
    let fault = answer.json();
    assert_eq!(fault["place"]["text"], "null:0,1gb;cuda:7,*");
    assert_eq!((&fault["place"]["start"], &fault["place"]["end"]), (&json!(11), &json!(17)));
    assert_eq!(fault["place"]["problem"], "there is no device cuda:7 here");
    let devices: Vec<String> = (0..crate::WORKERS).map(|ordinal| format!("null:{ordinal}")).collect();
    assert_eq!(fault["place"]["hint"], format!("available: {}", devices.join(", ")));
    let bytes = |device: &String| json!({ "device": device, "bytes": 1 << 30 });
    assert_eq!(fault["available"], json!(devices.iter().map(bytes).collect::<Vec<_>>()));
    assert!(fault["error"].as_str().unwrap().contains("^^^^^^ there is no device cuda:7"));
    let while_typing = post(&server, "/gantry/plan?faults=200", &question).await;
    assert_eq!((while_typing.status, while_typing.json()), (200, fault));
    // A file without a model, and a size that is none.
    let empty = post(&server, "/gantry/plan", &json!({ "file": "a.safetensors" })).await;
    assert_eq!(empty.status, 422);
    assert!(empty.json()["error"].as_str().unwrap().contains("a.safetensors"), "{}", empty.json());
    let sizes = post(&server, "/gantry/plan", &json!({ "file": "a.safetensors", "size": "large" })).await;
    assert!(sizes.json()["error"].as_str().unwrap().contains("such as 1024x768"), "{}", sizes.json());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_running_job_is_told() {
    let server = start().await;
    assert!(get(&server, "/gantry/stats").await.json()["running"].is_null());
    let id = submit(&server, None, show(1, json!({ "steps": 1000, "step_ms": 5 }))).await;
    occupy_others(&server).await;
    let _waits = submit(&server, None, show(2, json!({}))).await;
    let mut stats = json!({});
    for _ in 0..400 {
        stats = get(&server, "/gantry/stats?jobs=0").await.json();
        if stats["running"]["nodes"][0]["value"].as_f64() > Some(2.0) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let running = &stats["running"];
    assert_eq!(
        (&running["prompt_id"], &stats["waiting"], &stats["jobs"]),
        (&json!(id), &json!(1), &json!([]))
    );
    assert_eq!(
        (&running["nodes"][0]["class"], &running["nodes"][0]["max"]),
        (&json!("Show"), &json!(1000.0))
    );
    assert!(running["nodes"][0]["seconds_per_step"].as_f64().unwrap() >= 0.005);
    assert_eq!(post(&server, "/interrupt", &json!({})).await.status, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_after_a_number_are_told() {
    let server = start().await;
    let mut numbers = Vec::new();
    post(&server, "/free", &json!({ "unload_models": true })).await;
    for _ in 0..400 {
        let told = get(&server, "/gantry/snapshots").await.json();
        numbers = told["snapshots"].as_array().unwrap().iter().map(|shot| shot["number"].clone()).collect();
        if numbers.len() >= 4 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let later = get(&server, &format!("/gantry/snapshots?after={}", numbers[1])).await.json();
    let all = get(&server, &format!("/gantry/now?jobs=0&after={}", numbers[1])).await.json();
    assert_eq!(all["snapshots"], later["snapshots"]);
    assert_eq!(all["devices"], get(&server, "/gantry/devices").await.json()["devices"]);
    assert_eq!(all["models"], get(&server, "/gantry/models").await.json()["models"]);
    assert_eq!(all["stats"], get(&server, "/gantry/stats?jobs=0").await.json());
    let later: Vec<_> =
        later["snapshots"].as_array().unwrap().iter().map(|shot| shot["number"].clone()).collect();
    assert_eq!(later[..2], numbers[2..4]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_that_are_no_numbers_are_told_as_errors() {
    let server = start().await;
    for (path, key, value) in [
        ("/gantry/snapshots?after=x", "after", "x"),
        ("/gantry/now?jobs=-1", "jobs", "-1"),
        ("/gantry/now?after=1.5&jobs=1", "after", "1.5"),
        ("/gantry/stats?jobs=99999999999999999999", "jobs", "99999999999999999999"),
    ] {
        let answer = get(&server, path).await;
        assert_eq!(answer.status, 400, "{path}");
        let text = format!("\"{key}\" must be a whole number that is not negative, not \"{value}\"");
        assert_eq!(answer.json(), json!({ "error": text }), "{path}");
    }
    let plan = post(&server, "/gantry/plan?faults=yes", &json!({ "file": "x" })).await;
    assert_eq!((plan.status, plan.json()["error"].is_string()), (400, true));
    server.stop().await;
}
