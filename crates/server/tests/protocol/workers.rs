//! Two jobs at the same time, as clients see them.

use std::time::Duration;

use serde_json::{Value, json};
use server::Server;

use super::classes::start;
use super::client::{Received, Socket, get, post, show, submit};

/// Waits until an answer is as it is to be.
async fn until(server: &Server, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..2000 {
        let answer = get(server, path).await.json();
        if is_so(&answer) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{path} does not come to be as it is to be");
}

fn steps(number: u64) -> Value {
    show(number, json!({ "steps": 400, "step_ms": 5, "with_pictures": true }))
}

/// Whether all events that are of a job are of this one.
fn is_all_of(events: &[Received], id: &str) -> bool {
    let ids = events.iter().filter_map(|event| event.data().get("prompt_id"));
    ids.into_iter().all(|found| found == id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_are_told_of_their_own_jobs_in_order() {
    let server = start().await;
    let (mut a, mut b) =
        (Socket::open(&server, "/ws?clientId=a").await, Socket::open(&server, "/ws?clientId=b").await);
    let prompt = |number| show(number, json!({ "steps": 20, "step_ms": 10 }));
    let ids = [submit(&server, Some("a"), prompt(1)).await, submit(&server, Some("b"), prompt(2)).await];
    let queue = until(&server, "/queue", |queue| queue["queue_running"].as_array().unwrap().len() == 2).await;
    assert_eq!(queue["queue_pending"], json!([]));
    for (socket, id) in [(&mut a, &ids[0]), (&mut b, &ids[1])] {
        let told = socket.until_end(id).await;
        assert!(is_all_of(&told, id), "{told:?}");
        let values: Vec<f64> = told
            .iter()
            .filter(|event| event.kind() == "progress")
            .map(|event| event.data()["value"].as_f64().unwrap())
            .collect();
        assert!(values.is_sorted() && values.last() == Some(&20.0), "{values:?}");
        let of_job = told.iter().map(Received::kind).filter(|kind| kind.starts_with("execution_"));
        let order = ["execution_start", "execution_cached", "execution_success"];
        assert_eq!(of_job.collect::<Vec<_>>(), order);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_are_shown_each_with_its_worker_and_picture() {
    let server = start().await;
    let ids = [submit(&server, None, steps(1)).await, submit(&server, None, steps(2)).await];
    let waiting = submit(&server, None, steps(3)).await;
    let has_two = |now: &Value| {
        let workers = now["stats"]["workers"].as_array().unwrap();
        workers.iter().all(|worker| worker["running"]["nodes"][0]["value"].as_f64().unwrap_or(0.0) > 1.0)
    };
    let now = until(&server, "/gantry/now", has_two).await;
    let workers = now["stats"]["workers"].as_array().unwrap();
    let devices: Vec<&Value> = workers.iter().map(|worker| &worker["device"]).collect();
    assert_eq!(devices, ["null:0", "null:1"]);
    for worker in workers {
        assert_eq!(worker["running"]["worker"], worker["device"]);
        let id = worker["running"]["prompt_id"].as_str().unwrap();
        assert!(ids.iter().any(|known| known == id));
        let path = format!("/gantry/preview?prompt_id={id}");
        let mut answer = get(&server, &path).await;
        for _ in 0..200 {
            if answer.status == 200 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            answer = get(&server, &path).await;
        }
        assert_eq!(answer.status, 200, "each has a picture of its own");
    }
    let now = get(&server, "/gantry/now").await.json();
    let previews = now["previews"].as_object().unwrap();
    assert!(ids.iter().all(|id| previews[id].as_u64().unwrap() >= 1), "{previews:?}");
    assert_eq!(now["stats"]["waiting"], 1);
    assert_eq!(now["queue"][0]["prompt_id"], json!(waiting));
    assert_eq!(get(&server, &format!("/gantry/preview?prompt_id={waiting}")).await.status, 204);
    // Without an id all that run end, and only those.
    post(&server, "/interrupt", &json!({})).await;
    for id in &ids {
        let path = format!("/history/{id}");
        let entry = until(&server, &path, |entry| entry.get(id).is_some()).await;
        assert!(entry[id]["worker"].as_str().unwrap().starts_with("null:"), "{entry}");
    }
    until(&server, "/queue", |queue| queue["queue_running"][0][1] == json!(waiting)).await;
    post(&server, "/interrupt", &json!({ "prompt_id": ids[0] })).await;
    let queue = get(&server, "/queue").await.json();
    assert_eq!(queue["queue_running"][0][1], json!(waiting), "that one has ended before");
    post(&server, "/interrupt", &json!({ "prompt_id": waiting })).await;
    until(&server, "/queue", |queue| queue["queue_running"] == json!([])).await;
    // What each ran is counted.
    let metrics = String::from_utf8(get(&server, "/metrics").await.body).unwrap();
    let figure = |name: &str, device: &str| -> f64 {
        let start = format!("gantry_worker_{name}{{worker=\"{device}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("{start} is not in {metrics}")).parse().unwrap()
    };
    let both = ["null:0", "null:1"];
    assert_eq!(both.map(|device| figure("jobs_running", device)), [0.0; 2], "{metrics}");
    assert_eq!(both.map(|device| figure("jobs_total", device)).iter().sum::<f64>(), 3.0, "{metrics}");
    assert!(both.iter().all(|device| figure("job_seconds_total", device) > 0.0), "{metrics}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_comes_back_learns_of_both_its_jobs() {
    let server = start().await;
    for number in 1..=2 {
        submit(&server, Some("a"), steps(number)).await;
    }
    until(&server, "/gantry/stats", |stats| {
        let workers = stats["workers"].as_array().unwrap();
        workers.iter().all(|worker| !worker["running"]["nodes"][0].is_null())
    })
    .await;
    let mut socket = Socket::open(&server, "/ws?clientId=a").await;
    let mut kinds = Vec::new();
    for _ in 0..3 {
        kinds.push(socket.next().await.unwrap().kind());
    }
    assert_eq!(kinds, ["status", "executing", "executing"]);
    server.stop().await;
}
