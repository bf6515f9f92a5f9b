//! One front and two workers as programs, on a real nats-server: a picture arrives, nothing is lost when a worker is
//! killed or the front starts anew, and refusals say what to do. Where no nats-server is installed, the tests say so and end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chaos;
#[path = "../serve/http.rs"]
mod http;
mod listener;
mod machines;
#[path = "../serve/prompts.rs"]
#[expect(dead_code, reason = "the tests of the server use all of it")]
mod prompts;

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use machines::{Machines, Nats, program, until};

/// A picture that takes so many seconds to be made.
fn slow_picture(seconds: f64, prefix: &str) -> Value {
    json!({
        "1": { "class_type": "StubImage",
            "inputs": { "content": "NOISE", "height": 16, "width": 16, "batch_size": 1 } },
        "2": { "class_type": "TestSleep", "inputs": { "value": ["1", 0], "seconds": seconds } },
        "3": { "class_type": "SaveImage", "inputs": { "images": ["2", 0], "filename_prefix": prefix } },
    })
}

/// The first picture of an entry of the history, as `/view` names it.
fn view_of(entry: &Value, node: &str) -> String {
    let image = &entry["outputs"][node]["images"][0];
    let text = |key: &str| image[key].as_str().unwrap_or_else(|| panic!("{entry}")).to_owned();
    format!("/view?filename={}&subfolder={}&type={}", text("filename"), text("subfolder"), text("type"))
}

#[test]
fn a_picture_arrives_and_kills_lose_nothing() {
    let Some(nats) = Nats::start(&[]) else { return };
    let mut machines = Machines::new(&nats);
    machines.start_front();
    let readiness = machines.ask("GET", "/readyz", b"");
    assert_eq!(
        (readiness.status, readiness.text().contains("gantry worker")),
        (503, true),
        "{}",
        readiness.text()
    );
    machines.start_worker("one");
    machines.start_worker("two");
    until("both workers", || machines.workers().len() == 2);
    assert_eq!(machines.ask("GET", "/readyz", b"").status, 200);
    let metrics = machines.ask("GET", "/metrics", b"").text();
    assert!(metrics.contains("gantry_workers 2"), "{metrics}");

    // A picture, from a worker through the front.
    let entry = machines.run(&slow_picture(0.0, "first"));
    let picture = machines.ask("GET", &view_of(&entry, "3"), b"");
    assert_eq!((picture.status, &picture.body[1..4]), (200, &b"PNG"[..]), "{}", picture.text());

    // The same picture, uploaded to the front, is what a worker loads.
    machines.upload("sent.png", &picture.body);
    let entry = machines.run(&json!({
        "1": { "class_type": "LoadImage", "inputs": { "image": "sent.png" } },
        "2": { "class_type": "SaveImage", "inputs": { "images": ["1", 0], "filename_prefix": "back" } },
    }));
    assert_eq!(machines.ask("GET", &view_of(&entry, "2"), b"").status, 200);

    // A worker is killed while it works: the other one ends its job, and it ended once.
    let id = machines.queue(&slow_picture(3.0, "killed"));
    let busy = machines.until_somebody_runs(&id);
    machines.kill_worker(&busy);
    let entry = machines.wait(&id);
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    assert_ne!(entry["worker"], json!(busy), "{entry}");
    assert_eq!(machines.ask("GET", &view_of(&entry, "3"), b"").status, 200);

    // A new front knows all.
    machines.restart_front();
    assert_eq!(machines.get("/history").as_object().unwrap().len(), 3);
    assert_eq!(machines.ask("GET", &view_of(&entry, "3"), b"").status, 200);

    // Interrupted through the front, wherever it runs.
    let id = machines.queue(&slow_picture(60.0, "never"));
    machines.until_somebody_runs(&id);
    machines.ask("POST", "/interrupt", b"");
    let ended = machines.wait(&id);
    assert!(ended.to_string().contains("execution_interrupted"), "{ended}");

    // Asked to end, a worker ends its job first.
    let id = machines.queue(&slow_picture(1.5, "last"));
    let busy = machines.until_somebody_runs(&id);
    machines.drain_worker(&busy);
    let entry = machines.wait(&id);
    assert_eq!(
        (&entry["worker"], &entry["status"]["status_str"]),
        (&json!(busy), &json!("success")),
        "{entry}"
    );
    until("nobody works", || machines.workers().is_empty());
}

#[test]
fn refusals_say_what_to_do() {
    let Some(nats) = Nats::start(&["--user", "gantry", "--pass", "right"]) else { return };
    let worker = |more: &[&str]| {
        let output = program().args(["worker", "--cpu"]).args(more).output().unwrap();
        assert!(!output.status.success(), "{more:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let queue = nats.address();
    let wrong = worker(&["--queue", &queue, "--queue-user", "gantry", "--queue-password", "wrong"]);
    assert!(wrong.contains("refuses these credentials"), "{wrong}");
    let nobody = worker(&["--queue", "nats://127.0.0.1:9"]);
    assert!(nobody.contains("cannot be reached") && nobody.contains("nats-server"), "{nobody}");
    let pool =
        worker(&["--queue", &queue, "--queue-user", "gantry", "--queue-password", "right", "--pool", "a.b"]);
    assert!(pool.contains("is no name"), "{pool}");
    assert!(worker(&[]).contains("--queue says where the jobs are"));
    assert!(worker(&["--queue", &queue, "--name", "a b"]).contains("use letters, digits"));
    let mut empty: Command = program();
    empty.args(["workers", "--queue", &queue, "--queue-user", "gantry", "--pool", "foreign"]);
    let empty = empty.env("GANTRY_QUEUE_PASSWORD", "right").output().unwrap();
    let told = String::from_utf8_lossy(&empty.stdout).into_owned();
    assert!(
        told.contains("no worker of pool foreign is there"),
        "{told}{}",
        String::from_utf8_lossy(&empty.stderr)
    );
}

#[test]
fn a_pools_jobs_are_its_own() {
    let Some(nats) = Nats::start(&[]) else { return };
    let mut machines = Machines::new(&nats);
    machines.start_front();
    machines.start_worker_of("foreign", "other");
    let id = machines.queue(&slow_picture(0.0, "x"));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(
        machines.get("/queue")["queue_pending"].as_array().unwrap().len(),
        1,
        "nobody of its pool is there"
    );
    machines.start_worker("own");
    assert_eq!(machines.wait(&id)["status"]["status_str"], "success");
}

/// A process that stands still, as one does whose machine or driver hangs: its job runs elsewhere, and when it goes on it
/// learns that.
#[test]
fn the_job_of_a_worker_that_hangs_runs_elsewhere() {
    let Some(nats) = Nats::start(&[]) else { return };
    let mut machines = Machines::new(&nats);
    machines.start_front();
    machines.start_worker("one");
    machines.start_worker("two");
    until("both workers", || machines.workers().len() == 2);
    let id = machines.queue(&slow_picture(1.0, "hung"));
    let hung = machines.until_somebody_runs(&id);
    machines.signal(&hung, "STOP");
    let entry = machines.wait(&id);
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    assert_ne!(entry["worker"], json!(hung), "{entry}");
    machines.signal(&hung, "CONT");
    until("it says that it lost the job", || {
        let log = machines.log(hung.rsplit_once('-').unwrap().0);
        log.contains("went to another worker")
    });
    let others = machines.log(entry["worker"].as_str().unwrap().rsplit_once('-').unwrap().0);
    assert!(others.contains("has not renewed its claim"), "{others}");
    assert_eq!(machines.get(&format!("/history/{id}"))[&id], entry, "it ended once");
}

/// A worker that cannot write what it made: the job fails and says why, and the worker goes on.
#[test]
fn a_full_disk_at_a_worker_is_told() {
    let Some(nats) = Nats::start(&[]) else { return };
    let mut machines = Machines::new(&nats);
    machines.start_front();
    machines.start_worker_with_room("small", 64 << 10);
    let picture = |side: usize| {
        json!({
            "1": { "class_type": "StubImage",
                "inputs": { "content": "NOISE", "height": side, "width": side, "batch_size": 1 } },
            "3": { "class_type": "SaveImage", "inputs": { "images": ["1", 0], "filename_prefix": "large" } },
        })
    };
    let entry = machines.wait(&machines.queue(&picture(512)));
    assert_eq!(entry["status"]["status_str"], "error", "{entry}");
    assert!(entry.to_string().contains("there is no room for it on this machine"), "{entry}");
    machines.run(&picture(16));
}

/// The queue's server goes away while a front and a worker are there.
#[test]
fn a_front_says_that_its_queue_is_away_and_goes_on_when_it_is_back() {
    let Some(mut nats) = Nats::start(&[]) else { return };
    let mut machines = Machines::new(&nats);
    machines.start_front();
    machines.start_worker("one");
    machines.run(&slow_picture(0.0, "before"));
    nats.stop();
    let body = json!({ "prompt": slow_picture(0.0, "away") }).to_string();
    let refused = machines.ask("POST", "/prompt", body.as_bytes());
    assert!(
        refused.status >= 500 && refused.text().contains("the queue did not take a job"),
        "{}",
        refused.text()
    );
    let readiness = machines.ask("GET", "/readyz", b"");
    assert!(
        readiness.status == 503 && readiness.text().contains("the queue did not"),
        "{}",
        readiness.text()
    );
    assert_eq!(machines.ask("GET", "/healthz", b"").status, 200, "the front itself is well");
    nats.restart();
    until("the front is ready again", || machines.ask("GET", "/readyz", b"").status == 200);
    machines.run(&slow_picture(0.0, "after"));
}

/// Two workers have the files of a model and a third has not: who loaded it gets all jobs of it.
#[test]
fn jobs_go_to_the_worker_that_holds_their_model() {
    let Some(nats) = Nats::start(&[]) else { return };
    let mut machines = Machines::new(&nats);
    machines.start_front();
    for name in ["one", "two"] {
        machines.put_demo_model(name);
        machines.start_worker(name);
    }
    machines.start_worker("bare");
    until("all workers", || machines.workers().len() == 3);
    let list = "/object_info/UNETLoader";
    until("the front lists the file", || machines.get(list).to_string().contains("own-flux"));
    let picture = |seed: u32| {
        let mut prompt = prompts::text_to_image(64, 1);
        prompt["6"]["inputs"]["seed"] = json!(seed);
        // The demo model comes with every worker.
        let text = prompt.to_string().replace("\"demo-", "\"own-");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let first = machines.run(&picture(1));
    assert_eq!(first["dispatch"]["reason"], "held nowhere", "{first}");
    assert!(first["dispatch"]["load_s"].as_f64().unwrap() > 0.0, "{first}");
    let files = ["own-ae", "own-clip-l", "own-flux", "own-t5"].map(|name| format!("{name}.safetensors"));
    assert_eq!(first["dispatch"]["models"], json!(files));
    assert!(!first["worker"].as_str().unwrap().starts_with("bare"), "{first}");
    let others: Vec<Value> = (2..7).map(|seed| machines.run(&picture(seed))).collect();
    // On a machine that has other things to do, the holder may be too late once.
    let held = others.iter().filter(|entry| entry["dispatch"]["reason"] == "held").count();
    assert!(held >= 4, "{:?}", others.iter().map(|entry| &entry["dispatch"]).collect::<Vec<_>>());
    let workers = machines.workers();
    let holder = workers.iter().find(|worker| worker["name"] == first["worker"]).unwrap();
    assert!(holder["models"].to_string().contains("own-flux"), "{holder}");
    assert!(holder["load_bytes_per_s"].as_f64().unwrap() > 0.0, "{holder}");
    let id = machines.queue(&picture(9));
    machines.wait(&id);
    let listed = machines.get(&format!("/api/jobs/{id}"));
    assert_eq!(listed["dispatch"]["reason"], "held", "{listed}");
}

/// `gantry bench queue` in small: its record is whole.
#[test]
fn the_queue_is_measured() {
    if Nats::start(&[]).is_none() {
        return;
    }
    let output =
        program().args(["bench", "queue", "--cpu", "--clients", "2", "--prompts", "20", "--json"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["version", "date", "device", "device_name", "detail", "nats_server"] {
        assert!(report[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {report:#}");
    }
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{report:#}");
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap();
        assert_eq!(row["prompts"], 20);
        assert!(number("jobs_per_s") > 0.0 && number("jobs_per_s") <= number("posted_per_s"), "{row:#}");
        assert!(row["post_prompt_ms"]["p99"].as_f64().unwrap() > 0.0, "{row:#}");
    }
}
