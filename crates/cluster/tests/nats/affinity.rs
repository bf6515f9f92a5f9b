//! Four models, two workers that can each hold one: jobs go where their model is, and nobody waits much longer for it. The
//! queue, its claims and its choices are real; what jobs and loads take is slept.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::{Choosing, ClusterConfig, Holdings, NatsStore, WorkerEntry};
use engine::{Dispatch, Job, JobStore, WorkerName};
use graph::{Prompt, PromptNode};
use serde_json::{Value, json};

use super::server::{Server, record, soon};

/// What a job computes; everything else is said in this unit.
const JOB: Duration = Duration::from_millis(20);
/// What loading takes, in jobs.
const LOAD: u32 = 3;
const LEASE: Duration = Duration::from_secs(30);
const SIZE: u64 = 1_000_000;
const MODELS: usize = 4;

/// Numbers from 0 to 1 that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// When jobs come, and which model each loads: both at random and uniform.
fn arrivals(seed: u64, jobs: usize, jobs_per_unit: f64) -> Vec<(Duration, usize)> {
    let mut dice = Dice(seed);
    let _first_are_alike = (0..20).map(|_| dice.roll()).sum::<f64>();
    let whole = JOB.mul_f64(jobs as f64 / jobs_per_unit);
    let mut arrivals: Vec<(Duration, usize)> =
        (0..jobs).map(|_| (whole.mul_f64(dice.roll()), (dice.roll() * MODELS as f64) as usize)).collect();
    arrivals.sort();
    arrivals
}

fn model(number: usize) -> String {
    format!("model-{number}.safetensors")
}

/// What came of a run.
struct Outcome {
    loads: usize,
    /// From a job's coming until its model was there, in units.
    waits: Vec<f64>,
    dispatches: Vec<Option<Dispatch>>,
}

/// What the threads of a run share.
struct Run {
    config: ClusterConfig,
    /// When each job came, by its id.
    came: Mutex<HashMap<String, Instant>>,
    waits: Mutex<HashMap<String, f64>>,
    loads: AtomicUsize,
    is_over: AtomicBool,
}

fn run(config: ClusterConfig, arrivals: &[(Duration, usize)]) -> Outcome {
    let run = Arc::new(Run {
        config,
        came: Mutex::default(),
        waits: Mutex::default(),
        loads: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    });
    let front = NatsStore::open(&run.config).unwrap();
    let threads: Vec<_> = ["one", "two"]
        .map(|name| {
            let run = Arc::clone(&run);
            std::thread::spawn(move || work(&run, name))
        })
        .into();
    soon("both workers", || (front.workers().unwrap().len() == 2).then_some(()));
    std::thread::sleep(Duration::from_millis(300)); // the front hears of them, too
    let (begun, mut ids) = (Instant::now(), Vec::new());
    for (after, number) in arrivals {
        std::thread::sleep((begun + *after).saturating_duration_since(Instant::now()));
        let job = job(&front, *number);
        run.came.lock().unwrap().insert(job.prompt_id.clone(), Instant::now());
        ids.push(job.prompt_id.clone());
        front.submit(job).unwrap();
    }
    let until = Instant::now() + Duration::from_secs(240);
    while front.remaining() > 0 {
        assert!(Instant::now() < until, "{} jobs are left", front.remaining());
        std::thread::sleep(Duration::from_millis(20));
    }
    run.is_over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let waits = run.waits.lock().unwrap();
    Outcome {
        loads: run.loads.load(Ordering::Relaxed),
        waits: ids.iter().map(|id| waits[id]).collect(),
        dispatches: ids.iter().map(|id| front.finished(id).unwrap().unwrap().1.dispatch).collect(),
    }
}

fn job(front: &NatsStore, number: usize) -> Job {
    let mut prompt = Prompt::default();
    let inputs = Some(graph::map([("ckpt_name", model(number).as_str().into())]));
    prompt.nodes.insert("1".into(), PromptNode { inputs, ..PromptNode::default() });
    let prompt_id = uuid::Uuid::new_v4().to_string();
    Job { number: front.take_number(None, false), prompt_id, prompt: Arc::new(prompt), ..Job::default() }
}

/// A worker that holds one model.
fn work(run: &Run, name: &str) {
    let store = NatsStore::open(&run.config).unwrap();
    let rate = SIZE as f64 / (LOAD * JOB).as_secs_f64();
    let held = Arc::new(Mutex::new(None::<String>));
    let asked = Arc::clone(&held);
    store.set_holdings(move || Holdings {
        models: asked.lock().unwrap().iter().cloned().collect(),
        load_bytes_per_s: rate,
    });
    let files: BTreeMap<String, u64> = (0..MODELS).map(|number| (model(number), SIZE)).collect();
    let entry = || WorkerEntry {
        name: name.to_owned(),
        seats: 1,
        capacity_bytes: SIZE,
        load_bytes_per_s: rate,
        models: held.lock().unwrap().iter().cloned().collect(),
        files: BTreeMap::from([("checkpoints".to_owned(), files.clone())]),
        ..WorkerEntry::default()
    };
    store.announce(&entry()).unwrap();
    let (worker, mut told) = (WorkerName(name.into()), Instant::now());
    while !run.is_over.load(Ordering::Relaxed) {
        if told.elapsed() > Duration::from_secs(2) {
            store.announce(&entry()).unwrap();
            told = Instant::now();
        }
        let Some(claim) = store.claim(&worker, LEASE).unwrap() else {
            std::thread::sleep(JOB / 10);
            continue;
        };
        let inputs = claim.job.prompt.nodes["1"].inputs.as_ref().unwrap();
        let wanted = inputs["ckpt_name"].as_text().unwrap().to_owned();
        if held.lock().unwrap().as_ref() != Some(&wanted) {
            std::thread::sleep(LOAD * JOB);
            run.loads.fetch_add(1, Ordering::Relaxed);
            *held.lock().unwrap() = Some(wanted);
            store.announce(&entry()).unwrap();
        }
        let came = run.came.lock().unwrap()[&claim.job.prompt_id];
        let waited = came.elapsed().as_secs_f64() / JOB.as_secs_f64();
        run.waits.lock().unwrap().insert(claim.job.prompt_id.clone(), waited);
        std::thread::sleep(JOB);
        assert!(store.finish(&claim, &record()).unwrap());
    }
}

/// The same jobs, first come, first served, and with affinity.
fn both(server: &Server, pool: &str, arrivals: &[(Duration, usize)]) -> (Outcome, Outcome) {
    let config = |kind: &str, choosing: Choosing| ClusterConfig {
        choosing,
        ..server.config(&format!("{pool}-{kind}"), LEASE)
    };
    let plain = run(config("plain", Choosing::FirstCome), arrivals);
    (plain, run(config("affinity", Choosing::Affinity(JOB)), arrivals))
}

#[test]
fn jobs_go_where_their_model_is_and_nobody_waits_twice_as_long() {
    let Some(server) = Server::start(&[]) else { return };
    let arrivals = arrivals(7, 200, 1.4);
    let (plain, kept) = both(&server, "busy", &arrivals);
    println!("{} loads first come, {} with affinity", plain.loads, kept.loads);
    let share = kept.loads as f64 / plain.loads as f64;
    assert!(share <= 0.3, "{} loads, {} first come, first served", kept.loads, plain.loads);
    // What a busy machine adds to a sleep is no wait of the queue's.
    let slack = 10.0;
    for (at, (wait, plain)) in kept.waits.iter().zip(&plain.waits).enumerate() {
        assert!(*wait <= 2.0 * plain + slack, "job {at} waited {wait} units, first come {plain}");
    }
    assert!(plain.dispatches.iter().all(Option::is_none), "nothing was chosen");
    let dispatches: Vec<&Dispatch> = kept.dispatches.iter().flatten().collect();
    assert_eq!(dispatches.len(), arrivals.len(), "every record says why its worker took the job");
    let held = dispatches.iter().filter(|why| why.reason == "held").count();
    assert!(held > arrivals.len() / 2, "{held} jobs went where their model was");
    assert!(dispatches.iter().any(|why| why.passed_over > 0 && why.first_come_s.is_some_and(|it| it > 0.0)));
    assert!(
        dispatches.iter().all(|why| why.models.len() == 1 && (why.reason != "held" || why.load_s == 0.0))
    );
}

#[test]
fn a_job_goes_only_to_a_machine_that_has_its_model_file() {
    let Some(server) = Server::start(&[]) else { return };
    let stores = ["with", "without"].map(|name| {
        let store = server.open("files", LEASE);
        store.set_holdings(Holdings::default);
        let files = BTreeMap::from([(model(usize::from(name == "without")), SIZE)]);
        let files = BTreeMap::from([("checkpoints".to_owned(), files)]);
        let entry = WorkerEntry { name: name.to_owned(), seats: 1, files, ..WorkerEntry::default() };
        store.announce(&entry).unwrap();
        store
    });
    let [with, without] = &stores;
    soon("both know both", || (with.workers().unwrap().len() == 2).then_some(()));
    std::thread::sleep(Duration::from_millis(300));
    with.submit(job(with, 0)).unwrap();
    soon("the other hears of it", || (without.remaining() == 1).then_some(()));
    for _ in 0..20 {
        assert!(without.claim(&WorkerName("without".into()), LEASE).unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    let claim = soon("it is taken", || with.claim(&WorkerName("with".into()), LEASE).unwrap());
    assert!(with.finish(&claim, &record()).unwrap());
}

/// The figures at several loads, for docs/results. Takes some minutes:
/// `cargo test -p cluster --test nats -- --ignored --nocapture affinity_at`
#[test]
#[ignore = "takes minutes; writes docs/results/cluster-affinity.json"]
fn affinity_at_several_loads() {
    let server = Server::start(&[]).expect("nats-server is installed (apt-get install nats-server)");
    let mut rows: Vec<Value> = Vec::new();
    for (at, jobs_per_unit) in [0.6, 1.0, 1.4, 2.0].into_iter().enumerate() {
        let arrivals = arrivals(11 + at as u64, 300, jobs_per_unit);
        let (plain, kept) = both(&server, &format!("load-{at}"), &arrivals);
        let per_100 = |loads: usize| loads as f64 * 100.0 / arrivals.len() as f64;
        let mean = |waits: &[f64]| waits.iter().sum::<f64>() / waits.len() as f64;
        let most = |waits: &[f64]| waits.iter().copied().fold(0.0, f64::max);
        let over = kept.waits.iter().zip(&plain.waits).map(|(kept, plain)| kept - 2.0 * plain);
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for why in kept.dispatches.iter().flatten() {
            *reasons.entry(&why.reason).or_default() += 1;
        }
        rows.push(json!({
            "jobs": arrivals.len(),
            "jobs_per_job_time": jobs_per_unit,
            "over_first_come_capacity": jobs_per_unit / (2.0 / (1.0 + 0.75 * f64::from(LOAD))),
            "loads_per_100_jobs": { "first_come": per_100(plain.loads), "affinity": per_100(kept.loads) },
            "loads_ratio": kept.loads as f64 / plain.loads as f64,
            "mean_wait": { "first_come": mean(&plain.waits), "affinity": mean(&kept.waits) },
            "longest_wait": { "first_come": most(&plain.waits), "affinity": most(&kept.waits) },
            "most_over_twice_first_come": over.fold(f64::NEG_INFINITY, f64::max),
            "reasons": reasons,
        }));
        println!("{}", rows[at]);
    }
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "what": "four models, two workers that can each hold one; real queue, jobs and loads are slept; waits are \
                 until the model is there, in units of a job",
        "job_ms": JOB.as_millis() as u64,
        "load_in_jobs": LOAD,
        "rows": rows,
    });
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/cluster-affinity.json");
    std::fs::write(path, format!("{report:#}\n")).unwrap();
}
