//! The process ends without warning while one job runs and others wait.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::http;
use crate::prompts::{empty_latent, text_to_image};
use crate::server::{Ended, Server};

/// Jobs that wait.
const WAITING: usize = 12;

#[test]
fn no_job_and_no_record_is_lost() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let finished = server.queue(&empty_latent("finished"));
    let record = server.wait(&finished).entry;
    let mut long = text_to_image(128, 40);
    long["9"]["inputs"]["filename_prefix"] = json!("long");
    let running = server.queue(&long);
    server.until("the long job", |server| server.jobs().0 == [running.as_str()]);
    let waiting: Vec<String> =
        (0..WAITING).map(|number| server.queue(&empty_latent(&format!("waiting-{number}")))).collect();
    assert_eq!(server.jobs(), (vec![running.clone()], waiting.clone()), "the long job still runs");
    server.kill();

    let server = Server::start(folder.path(), &[]);
    assert_eq!(server.get(&format!("/history/{finished}"))[&finished], record);
    let order: Vec<&String> = [&running].into_iter().chain(&waiting).collect();
    let ends: Vec<Ended> = order.iter().map(|id| server.wait(id)).collect();
    ends.iter().for_each(Ended::expect_success);
    let starts: Vec<u64> =
        ends.iter().map(|end| end.message("execution_start")["timestamp"].as_u64().unwrap()).collect();
    assert!(starts.is_sorted(), "the jobs run in the order they were queued in: {starts:?}");
    assert_eq!(server.get("/history").as_object().unwrap().len(), WAITING + 2);
    assert_eq!(server.jobs(), (Vec::new(), Vec::new()));
    // Each ran to its end once: every one leaves a file of its own.
    let saved = std::fs::read_dir(folder.join("output")).unwrap();
    let saved = saved.filter(|entry| {
        entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "latent")
    });
    assert_eq!(saved.count(), WAITING + 2);
    assert_eq!(ends[0].files("9", "latents").len(), 1);
    // The one that was running is marked, and no other.
    let is_marked = |id: &str| server.get(&format!("/api/jobs/{id}"))["was_requeued"] == json!(true);
    assert!(is_marked(&running));
    assert!(!waiting.iter().chain([&finished]).any(|id| is_marked(id)));
    let list: Value = server.get("/api/jobs");
    let marked = list["jobs"].as_array().unwrap().iter().filter(|job| job["was_requeued"] == json!(true));
    assert_eq!(marked.map(|job| job["id"].as_str().unwrap()).collect::<Vec<_>>(), [running.as_str()]);
}

/// The process ends while two clients queue jobs and jobs end: what a client was told to be accepted is there.
#[test]
fn what_was_accepted_is_there_whenever_the_process_ends() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let address = server.address();
    let accepted: Vec<String> = std::thread::scope(|scope| {
        let clients = [0, 1].map(|client| scope.spawn(move || queue_until_it_ends(address, client)));
        std::thread::sleep(Duration::from_millis(300));
        server.kill();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    assert!(accepted.len() > 10, "{accepted:?}");
    let server = Server::start(folder.path(), &[]);
    for id in &accepted {
        server.wait(id).expect_success();
    }
    println!("{} jobs were accepted before the process ended, and all ran", accepted.len());
}

/// Queues jobs one after the other until nobody answers; the ids of those that were accepted.
fn queue_until_it_ends(address: SocketAddr, client: u32) -> Vec<String> {
    let mut accepted = Vec::new();
    loop {
        let prompt = empty_latent(&format!("client-{client}-{}", accepted.len()));
        let body = json!({ "prompt": prompt }).to_string();
        match http::ask(address, "POST", "/prompt", "application/json", body.as_bytes()) {
            Ok(answer) if answer.status == 200 => {
                accepted.push(answer.json()["prompt_id"].as_str().unwrap().to_owned());
            }
            Ok(answer) => panic!("{}", answer.text()),
            Err(_) => return accepted,
        }
    }
}
