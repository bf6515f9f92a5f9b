//! The events of jobs: their order, who gets them, and what a socket must survive.

use serde_json::json;

use super::classes::{config, start, start_with};
use super::client::{Received, Socket, get, kinds, post, show, submit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_told_in_order() {
    let server = start().await;
    let mut socket = Socket::open(&server, "/ws?clientId=a").await;
    let first = socket.next().await.unwrap();
    assert_eq!(first.data(), &json!({ "status": { "exec_info": { "queue_remaining": 0 } }, "sid": "a" }));
    let prompt = json!({
        "1": { "class_type": "Number", "inputs": { "value": 7 } },
        "9": { "class_type": "Show", "inputs": { "value": ["1", 0], "steps": 1 } },
    });
    let id = submit(&server, Some("a"), prompt.clone()).await;
    let told = socket.until_end(&id).await;
    let expected = [
        "status",
        "status",
        "execution_start",
        "execution_cached",
        "progress_state",
        "executing",
        "progress_state",
        "progress_state",
        "executing",
        "progress_state",
        "progress",
        "executed",
        "progress_state",
        "execution_success",
        "status",
        "executing",
    ];
    assert_eq!(kinds(&told), expected);
    assert_eq!(told[5].data(), &json!({ "node": "1", "display_node": "1", "prompt_id": id }));
    assert_eq!(told[10].data(), &json!({ "value": 1, "max": 1, "prompt_id": id, "node": "9" }));
    assert_eq!(told[12].data()["nodes"]["9"]["state"], "finished");
    assert_eq!(told[14].data(), &json!({ "status": { "exec_info": { "queue_remaining": 0 } } }));
    assert_eq!(told[15].data(), &json!({ "node": null, "prompt_id": id }));
    assert!(
        get(&server, &format!("/history/{id}")).await.json()[&id].is_object(),
        "the entry is there by then"
    );

    let again = submit(&server, Some("a"), prompt).await;
    let told = socket.until_end(&again).await;
    let cached = told.iter().find(|event| event.kind() == "execution_cached").unwrap();
    assert_eq!(cached.data()["nodes"].as_array().unwrap().len(), 2);
    let executing: Vec<_> = told.iter().filter(|event| event.kind() == "executing").collect();
    assert_eq!(executing.len(), 1, "only the end");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_go_to_the_sender_and_progress_of_nobody_to_everybody() {
    let server = start().await;
    let (mut a, mut b) =
        (Socket::open(&server, "/ws?clientId=a").await, Socket::open(&server, "/api/ws").await);
    let invented = b.next().await.unwrap().data()["sid"].as_str().unwrap().to_owned();
    assert_eq!(invented.len(), 32);
    let id = submit(&server, Some("a"), show(1, json!({ "steps": 2 }))).await;
    a.until_end(&id).await;
    for _ in 0..3 {
        assert_eq!(b.next().await.unwrap().kind(), "status");
    }
    assert!(b.is_silent().await);
    submit(&server, None, show(2, json!({ "steps": 1 }))).await;
    let mut seen = Vec::new();
    while seen.iter().filter(|kind| *kind == "status").count() < 3 {
        seen.push(b.next().await.unwrap().kind());
    }
    assert!(seen.contains(&"progress_state".to_owned()) && seen.contains(&"progress".to_owned()));
    assert!(!seen.iter().any(|kind| kind.starts_with("exec")), "{seen:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn previews_come_as_the_client_asked() {
    let server = start().await;
    let (mut old, mut new) =
        (Socket::open(&server, "/ws?clientId=old").await, Socket::open(&server, "/ws?clientId=new").await);
    new.say(&json!({ "type": "feature_flags", "data": { "supports_preview_metadata": true } })).await;
    assert_eq!(new.next().await.unwrap().kind(), "status");
    let flags = new.next().await.unwrap();
    assert_eq!(flags.kind(), "feature_flags");
    assert_eq!(flags.data(), &get(&server, "/features").await.json());
    assert_eq!(flags.data()["max_upload_size"], 100 << 20);
    assert_eq!(flags.data()["assets"], false);
    new.say(&json!({ "type": "feature_flags", "data": {} })).await;
    assert!(new.is_silent().await, "only the first message counts");
    let options = || json!({ "steps": 1, "with_pictures": true });
    let id = submit(&server, Some("old"), show(1, options())).await;
    let told = old.until_end(&id).await;
    let place = |told: &[Received], kind: &str| kinds(told).iter().position(|found| found == kind).unwrap();
    assert!(place(&told, "#1") > place(&told, "progress"));
    let Received::Binary(bytes) = &told[place(&told, "#1")] else { unreachable!() };
    assert_eq!(&bytes[..10], b"\0\0\0\x01\0\0\0\x01\xff\xd8", "a JPEG");
    let id = submit(&server, Some("new"), show(2, options())).await;
    let told = new.until_end(&id).await;
    assert!(place(&told, "#4") < place(&told, "progress"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_comes_back_learns_what_runs_and_takes_over() {
    let server = start().await;
    let mut first = Socket::open(&server, "/ws?clientId=a").await;
    let id = submit(&server, Some("a"), show(1, json!({ "steps": 400, "step_ms": 10 }))).await;
    while first.next().await.unwrap().kind() != "progress" {}
    let mut second = Socket::open(&server, "/ws?clientId=a").await;
    assert_eq!(second.next().await.unwrap().data()["sid"], "a");
    let executing = second.next().await.unwrap();
    assert_eq!((executing.kind().as_str(), executing.data()), ("executing", &json!({ "node": "9" })));
    drop(first);
    assert_eq!(second.next().await.unwrap().kind(), "progress_state");
    post(&server, "/interrupt", &json!({})).await;
    second.until_end(&id).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_server_says_goodbye_and_its_port_can_be_had_again() {
    let server = start().await;
    let port = server.addresses()[0].port();
    let mut socket = Socket::open(&server, "/ws").await;
    socket.next().await.unwrap();
    let mut again = config();
    again.port = port;
    // The second one waits for the port until the first is gone.
    let waiting = tokio::spawn(start_with(again));
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    server.stop().await;
    assert!(socket.next().await.is_none());
    let second = waiting.await.unwrap();
    assert_eq!(second.addresses()[0].port(), port);
    assert_eq!(second.gui_line(), format!("To see the GUI go to: http://127.0.0.1:{port}"));
    assert_eq!(get(&second, "/prompt").await.status, 200);
    second.stop().await;
}
