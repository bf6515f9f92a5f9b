//! Many clients and many jobs at once: nothing is lost, nothing is out of order, and who does not read costs little.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::classes::start;
use super::client::{Socket, get, show, submit};

const CLIENTS: usize = 200;
const JOBS: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_with_many_jobs_lose_nothing() {
    let server = Arc::new(start().await);
    let mut tasks = Vec::new();
    for client in 0..CLIENTS {
        let server = Arc::clone(&server);
        tasks.push(tokio::spawn(async move {
            let id = format!("client-{client}");
            let mut socket = Socket::open(&server, &format!("/ws?clientId={id}")).await;
            let mut waiting = HashMap::new();
            for job in 0..JOBS {
                let value = (client * JOBS + job) as u64;
                waiting
                    .insert(submit(&server, Some(&id), show(value, json!({ "steps": 1 }))).await, Vec::new());
            }
            while waiting.values().any(|told: &Vec<String>| told.len() < 9) {
                let event = socket.next().await.unwrap();
                if event.kind() != "status" {
                    let prompt = event.data()["prompt_id"].as_str().unwrap();
                    waiting.get_mut(prompt).expect("only its own jobs").push(event.kind());
                }
            }
            let expected = [
                "execution_start",
                "execution_cached",
                "progress_state",
                "executing",
                "progress_state",
                "progress",
                "executed",
                "progress_state",
                "execution_success",
                "executing",
            ];
            for told in waiting.values() {
                assert_eq!(told[..9], expected[..9]);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let total =
        get(&server, "/api/jobs?status=completed&limit=1").await.json()["pagination"]["total"].clone();
    assert_eq!(total, CLIENTS * JOBS);
    Arc::try_unwrap(server).ok().unwrap().stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_nothing_does_not_hold_up_others() {
    let server = start().await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(server.addresses()[0]).await.unwrap());
    }
    assert_eq!(get(&server, "/prompt").await.status, 200);
    server.stop().await;
    let mut byte = [0];
    assert_eq!(silent[0].read(&mut byte).await.unwrap_or(0), 0, "it was closed");
}
