//! Workers are killed at random, the front and the queue's server, too, while many clients send jobs: every job ends once,
//! in the history or given up with a reason, no picture is lost, and what is told of each job is told in order.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::{ClusterConfig, NatsStore};
use serde_json::{Value, json};

use crate::http;
use crate::listener::{Address, Listener, Told};
use crate::machines::{Machines, Nats};
use crate::{slow_picture, view_of};

const CLIENT: &str = "chaos";
/// How long a client waits for its job, kills and all.
const PATIENCE: Duration = Duration::from_secs(180);
const WORKERS: [&str; 3] = ["one", "two", "three"];

/// How much of everything.
struct Plan {
    jobs: usize,
    clients: usize,
    worker_kills: usize,
    front_kills: usize,
    server_kills: usize,
    /// What a job sleeps.
    job_s: f64,
}

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

/// What clients share.
struct Clients {
    address: Address,
    plan: Plan,
    next: AtomicUsize,
    ended: AtomicUsize,
    /// What became of each job: its entry of the history.
    entries: Mutex<BTreeMap<String, Value>>,
    /// Pictures that could not be had.
    lost: Mutex<Vec<String>>,
    /// Answers that were not had, because something was away.
    retries: AtomicUsize,
}

impl Clients {
    /// Asks until there is an answer of that status: the front may be away, or the queue behind it.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> http::Answer {
        let until = Instant::now() + PATIENCE;
        let mut last = String::new();
        while Instant::now() < until {
            let there = *self.address.lock().unwrap();
            let answer = there.map(|there| http::ask(there, method, path, "application/json", body));
            match answer {
                Some(Ok(answer)) if answer.status == 200 => return answer,
                Some(Ok(answer)) => last = format!("{}: {}", answer.status, answer.text()),
                Some(Err(error)) => last = error.to_string(),
                None => "there is no front".clone_into(&mut last),
            }
            self.retries.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("{method} {path}: no answer in {PATIENCE:?}; the last: {last}");
    }

    /// One client: sends a job, waits for its end, looks at its picture, and sends the next one.
    fn run(&self) {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.plan.jobs {
                return;
            }
            let id = uuid();
            // No two are the same, so that no worker knows the picture already.
            let seconds = self.plan.job_s + number as f64 * 1e-6;
            let body = json!({
                "prompt": slow_picture(seconds, "chaos"), "prompt_id": id, "client_id": CLIENT,
            });
            // An id that the client chose can be sent again when the answer was lost.
            self.ask("POST", "/prompt", body.to_string().as_bytes());
            let entry = self.wait(&id);
            if entry["status"]["status_str"] == "success" {
                let picture = self.ask("GET", &view_of(&entry, "3"), b"");
                if picture.body.get(1..4) != Some(b"PNG") {
                    let (bytes, view) = (picture.body.len(), view_of(&entry, "3"));
                    self.lost.lock().unwrap().push(format!("{id}: {bytes} bytes from {view}"));
                }
            }
            self.entries.lock().unwrap().insert(id, entry);
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn wait(&self, id: &str) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut answer = self.ask("GET", &format!("/history/{id}"), b"").json();
            if let Some(entry) = answer.get_mut(id) {
                return entry.take();
            }
            if Instant::now() > until {
                let queue = self.ask("GET", "/queue", b"").text();
                let job = self.ask("GET", &format!("/api/jobs/{id}"), b"").text();
                panic!("job {id} does not end: {job}\nthe queue: {queue:.2000}");
            }
            std::thread::sleep(Duration::from_millis(150));
        }
    }
}

fn uuid() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let random = || RandomState::new().build_hasher().finish();
    let (a, b) = (random(), random());
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xfff,
        b >> 52,
        b & 0xffff_ffff_ffff
    )
}

/// Kills what the plan says, evenly over its jobs; what was killed, by what it was.
fn wreak(machines: &mut Machines, nats: &mut Nats, clients: &Clients) -> BTreeMap<&'static str, usize> {
    let plan = &clients.plan;
    let mut moments: Vec<(usize, &str)> = Vec::new();
    for (what, times) in
        [("worker", plan.worker_kills), ("front", plan.front_kills), ("server", plan.server_kills)]
    {
        moments.extend((0..times).map(|at| ((2 * at + 1) * plan.jobs / (2 * times + 1), what)));
    }
    moments.sort_unstable();
    let (mut dice, mut killed) = (Dice(42), BTreeMap::new());
    for (ended, what) in moments {
        let until = Instant::now() + PATIENCE;
        while clients.ended.load(Ordering::Relaxed) < ended {
            assert!(
                Instant::now() < until,
                "{} jobs ended, {ended} should have",
                clients.ended.load(Ordering::Relaxed)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        // Not always at the moment at which a job ends.
        std::thread::sleep(Duration::from_millis(dice.roll(300) as u64));
        match what {
            "worker" => {
                let name = WORKERS[dice.roll(WORKERS.len())];
                machines.kill_worker_called(name);
                machines.start_worker(name);
            }
            "front" => {
                *clients.address.lock().unwrap() = None;
                machines.kill_front();
                machines.start_front();
                *clients.address.lock().unwrap() = machines.front_address();
            }
            _ => nats.restart(),
        }
        *killed.entry(what).or_default() += 1;
    }
    killed
}

/// Runs a plan and checks all of it; the figures.
fn run(plan: Plan) -> Option<Value> {
    let mut nats = Nats::start(&[])?;
    let mut machines = Machines::new(&nats);
    machines.start_front();
    WORKERS.iter().for_each(|name| machines.start_worker(name));
    let address: Address = Arc::new(Mutex::new(machines.front_address()));
    let listener = Listener::start(&address, CLIENT);
    let clients = Arc::new(Clients {
        address,
        plan,
        next: AtomicUsize::new(0),
        ended: AtomicUsize::new(0),
        entries: Mutex::default(),
        lost: Mutex::default(),
        retries: AtomicUsize::new(0),
    });
    let begun = Instant::now();
    let threads: Vec<_> = (0..clients.plan.clients)
        .map(|_| {
            let clients = Arc::clone(&clients);
            std::thread::spawn(move || clients.run())
        })
        .collect();
    let killed = wreak(&mut machines, &mut nats, &clients);
    let failures: Vec<String> = threads
        .into_iter()
        .filter_map(|thread| thread.join().err())
        .map(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a client failed".to_owned()))
        .collect();
    assert!(
        failures.is_empty(),
        "{} clients failed: {}\n{}",
        failures.len(),
        failures[0],
        machines.end_of_logs()
    );
    let seconds = begun.elapsed().as_secs_f64();
    // What is told last is on its way.
    std::thread::sleep(Duration::from_secs(3));
    let told = listener.stop();
    let figures = check(&clients, &machines, &nats, &told);
    // A front that has nothing of its own gives all pictures.
    machines.restart_front();
    for (id, entry) in clients.entries.lock().unwrap().iter() {
        if entry["status"]["status_str"] == "success" {
            let picture = machines.ask("GET", &view_of(entry, "3"), b"");
            assert_eq!((picture.status, picture.body.get(1..4)), (200, Some(&b"PNG"[..])), "{id}: {entry}");
        }
    }
    Some(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "what": "a front and three workers as programs (debug build), nats-server on loopback; kill -9",
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "jobs": clients.plan.jobs,
        "clients": clients.plan.clients,
        "killed": killed,
        "seconds": seconds,
        "retries_of_clients": clients.retries.load(Ordering::Relaxed),
        "ended": figures,
    }))
}

/// Every job ended once, nothing is lost, and all was told in order.
fn check(clients: &Clients, machines: &Machines, nats: &Nats, told: &Told) -> Value {
    let entries = clients.entries.lock().unwrap();
    assert_eq!(entries.len(), clients.plan.jobs, "a job has no end");
    assert!(clients.lost.lock().unwrap().is_empty(), "pictures are lost: {:?}", clients.lost.lock().unwrap());
    let history = machines.get("/history");
    let history = history.as_object().unwrap();
    let known: HashSet<&String> = entries.keys().collect();
    assert_eq!(history.keys().collect::<HashSet<_>>(), known, "the history has other jobs");
    let queue = machines.get("/queue");
    assert_eq!((&queue["queue_running"], &queue["queue_pending"]), (&json!([]), &json!([])));
    let store = NatsStore::open(&ClusterConfig::new(&nats.address(), "default")).unwrap();
    let (mut succeeded, mut given_up, mut ran_again) = (0, 0, 0);
    for (id, entry) in entries.iter() {
        assert_eq!(&history[id], entry, "job {id} changed after its end");
        let ends = entry["status"]["messages"].as_array().unwrap().iter();
        let ends = ends.filter(|message| is_end(message[0].as_str().unwrap())).count();
        assert_eq!(ends, 1, "job {id}: {entry}");
        if entry["status"]["status_str"] == "success" {
            succeeded += 1;
        } else {
            let reason = store.dead_letter(id).unwrap();
            assert!(reason.is_some_and(|reason| reason.contains("workers were lost")), "job {id}: {entry}");
            given_up += 1;
        }
        let parts = told.get(id).map_or(0, |told| check_order(id, told));
        ran_again += usize::from(parts > 1);
    }
    json!({
        "succeeded": succeeded,
        "given_up_with_reason": given_up,
        "told_to_have_run_again": ran_again,
        "with_events": told.len(),
        "events": told.values().map(Vec::len).sum::<usize>(),
    })
}

fn is_end(name: &str) -> bool {
    matches!(name, "execution_success" | "execution_error" | "execution_interrupted")
}

/// What is told of a job: each time it runs, its start, its nodes in their order, and the end once. How often it ran.
fn check_order(id: &str, told: &[(String, Option<String>)]) -> usize {
    let (mut parts, mut ends, mut last_node) = (0, 0, 0);
    for (name, node) in told {
        let is_start = name == "execution_start";
        if is_start {
            (parts, last_node) = (parts + 1, 0);
        }
        ends += usize::from(is_end(name));
        // After its end, only that it is over is told.
        let is_over = name == "executing" && node.is_none();
        assert!(ends == 0 || is_end(name) || is_over, "job {id} was told on after its end: {told:?}");
        if let Some(node) = node.as_ref().filter(|_| ["executing", "executed"].contains(&name.as_str())) {
            let node: usize = node.parse().unwrap();
            assert!(node >= last_node, "job {id}: node {node} after {last_node}: {told:?}");
            last_node = node;
        }
    }
    assert!(ends <= 1, "job {id} was told to end {ends} times: {told:?}");
    parts
}

#[test]
fn every_job_ends_once_whatever_is_killed() {
    let plan = Plan { jobs: 90, clients: 15, worker_kills: 6, front_kills: 1, server_kills: 1, job_s: 0.15 };
    if let Some(figures) = run(plan) {
        println!("{figures}");
    }
}

/// The long form: `cargo test -p gantry --test cluster -- --ignored --nocapture many_jobs`
#[test]
#[ignore = "takes minutes; writes docs/results/cluster-chaos.json"]
fn many_jobs_end_once_whatever_is_killed() {
    let plan =
        Plan { jobs: 2000, clients: 100, worker_kills: 50, front_kills: 2, server_kills: 2, job_s: 0.1 };
    let figures = run(plan).expect("nats-server is installed (apt-get install nats-server)");
    println!("{figures:#}");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/cluster-chaos.json");
    std::fs::write(path, format!("{figures:#}\n")).unwrap();
}
