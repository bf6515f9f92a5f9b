//! The shared queue against a real nats-server, where one is installed; otherwise each test says so and ends.
#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::collections::HashMap;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::{ClusterConfig, Error, NatsStore, SharedFiles};
use engine::{Event, EventSink, Job, JobEvent, JobStatus, JobStore, Milestone, Record, WorkerName};
use runtime::folders::Place;
use runtime::{FileExchange, Folders};
use testkit::ScratchDir;

const LEASE: Duration = Duration::from_millis(900);

/// A server of its own, on loopback, with its files in a scratch folder.
struct Server {
    port: u16,
    folder: ScratchDir,
    extra: Vec<String>,
    child: Child,
}

impl Server {
    fn start(extra: &[&str]) -> Option<Server> {
        if Command::new("nats-server").arg("--version").output().is_err() {
            eprintln!("nats-server is not installed (apt-get install nats-server): this test is left out");
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = ScratchDir::new().unwrap();
        let extra: Vec<String> = extra.iter().map(|word| (*word).to_owned()).collect();
        let child = spawn(port, &folder, &extra);
        Some(Server { port, folder, extra, child })
    }

    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(self.port, &self.folder, &self.extra);
    }

    fn config(&self, pool: &str) -> ClusterConfig {
        let address = format!("nats://127.0.0.1:{}", self.port);
        ClusterConfig { lease: LEASE, ..ClusterConfig::new(&address, pool) }
    }

    fn open(&self, pool: &str) -> NatsStore {
        NatsStore::open(&self.config(pool)).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16, folder: &ScratchDir, extra: &[String]) -> Child {
    let mut command = Command::new("nats-server");
    command.args(["-a", "127.0.0.1", "-js", "-p", &port.to_string(), "-sd"]).arg(folder.path()).args(extra);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "nats-server does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

fn job(store: &NatsStore) -> Job {
    let prompt_id = uuid::Uuid::new_v4().to_string();
    Job { number: store.take_number(None, false), prompt_id, ..Job::default() }
}

fn record() -> Record {
    let (outputs, identities) = Default::default();
    Record { status: JobStatus::Completed, outputs, identities, messages: Vec::new(), worker: None }
}

/// Asks until there is an answer.
fn soon<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(15);
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_job_sent_to_one_machine_runs_on_another_and_all_know() {
    let Some(server) = Server::start(&[]) else { return };
    let (front, worker, foreign) = (server.open("a"), server.open("a"), server.open("b"));
    let job = job(&front);
    let id = job.prompt_id.clone();
    front.submit(job.clone()).unwrap();
    front.submit(job).unwrap();
    soon("the worker hears of the job", || (worker.remaining() == 1).then_some(()));
    let name = WorkerName::new();
    let claim = soon("the job is delivered", || worker.claim(&name, LEASE).unwrap());
    assert_eq!(claim.job.prompt_id, id);
    assert!(worker.claim(&name, LEASE).unwrap().is_none(), "sent twice under one id, it is one job");
    assert!(foreign.claim(&name, LEASE).unwrap().is_none(), "another pool's");
    soon("the front sees it run", || (front.queue().running.len() == 1).then_some(()));
    assert!(worker.heartbeat(&claim, LEASE).unwrap());
    assert!(worker.finish(&claim, &record()).unwrap());
    let (status, _) = soon("the front has the record", || front.finished(&id).unwrap());
    assert_eq!(status, JobStatus::Completed);
    assert_eq!((front.remaining(), front.history(None, None).unwrap().len()), (0, 1));
    front.forget(None).unwrap();
    soon("the worker forgets it, too", || worker.find(&id).unwrap().is_none().then_some(()));
}

#[test]
fn what_is_cancelled_does_not_run_and_what_is_released_does() {
    let Some(server) = Server::start(&[]) else { return };
    let (store, name) = (server.open("a"), WorkerName::new());
    let (cancelled, kept) = (job(&store), job(&store));
    let kept_id = kept.prompt_id.clone();
    let ids = [cancelled.prompt_id.clone()];
    store.submit(cancelled).unwrap();
    store.submit(kept).unwrap();
    assert_eq!(store.cancel(Some(&ids)).unwrap(), 1);
    let claim = soon("the other is delivered", || store.claim(&name, LEASE).unwrap());
    assert_eq!(claim.job.prompt_id, kept_id);
    for _ in 0..4 {
        let claim = match store.find(&kept_id).unwrap().unwrap().status {
            JobStatus::InProgress => claim.clone(),
            _ => soon("it is delivered again", || store.claim(&name, LEASE).unwrap()),
        };
        store.release(&claim).unwrap();
    }
    let claim = soon("orderly releases are no losses", || store.claim(&name, LEASE).unwrap());
    assert!(store.finish(&claim, &record()).unwrap());
}

#[test]
fn a_job_whose_workers_hang_is_given_up_after_three_with_a_reason() {
    let Some(server) = Server::start(&[]) else { return };
    let (store, other) = (server.open("a"), server.open("a"));
    let job = job(&store);
    let id = job.prompt_id.clone();
    store.submit(job).unwrap();
    let mut claims = Vec::new();
    for _ in 0..3 {
        // Nobody renews it, as a worker that hangs or was killed.
        claims.push(soon("it is delivered again", || store.claim(&WorkerName::new(), LEASE).unwrap()));
    }
    assert!(claims[2].job.was_requeued);
    assert!(!store.heartbeat(&claims[0], LEASE).unwrap(), "the first worker learns that it lost the job");
    assert!(!store.finish(&claims[0], &record()).unwrap(), "and what it made is not kept");
    let abandoned = soon("it is given up", || {
        assert!(other.claim(&WorkerName::new(), LEASE).unwrap().is_none());
        other.redeliver().unwrap().pop()
    });
    assert_eq!(abandoned.job.prompt_id, id);
    let reason = store.dead_letter(&id).unwrap().unwrap();
    assert!(reason.starts_with("3 workers were lost while this job was running"), "{reason}");
    assert_eq!(soon("all see it", || store.finished(&id).unwrap()).0, JobStatus::Failed);
    assert!(!store.finish(&claims[2], &record()).unwrap());
}

#[test]
fn refusals_say_what_to_do() {
    let Some(server) = Server::start(&["--user", "gantry", "--pass", "right"]) else { return };
    let refusal = |config: &ClusterConfig| NatsStore::open(config).err().unwrap();
    let with = |password: &str| {
        let user = Some(("gantry".to_owned(), password.to_owned()));
        ClusterConfig { user, ..server.config("a") }
    };
    let wrong = refusal(&with("wrong"));
    assert!(matches!(wrong, Error::Credentials { .. }), "{wrong}");
    assert!(wrong.to_string().contains("refuses these credentials"), "{wrong}");
    NatsStore::open(&with("right")).unwrap();
    let nobody = refusal(&ClusterConfig::new("nats://127.0.0.1:9", "a")).to_string();
    assert!(
        nobody.contains("cannot be reached") && nobody.contains("check that nats-server runs"),
        "{nobody}"
    );
    let pool = refusal(&ClusterConfig { pool: "a.b".to_owned(), ..with("right") }).to_string();
    assert!(pool.contains("\"a.b\" is no name"), "{pool}");
}

/// Writes down what it is told of jobs.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl EventSink for Notes {
    fn event(&self, event: Event) {
        let Event::Job { prompt_id, event, .. } = event else { return };
        let what = match event {
            JobEvent::Message(message) if message.milestone == Milestone::Started => "start".to_owned(),
            JobEvent::Message(_) => "end".to_owned(),
            JobEvent::Progress(progress) => {
                let picture = progress.picture.unwrap();
                assert!(picture.rgb.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
                format!("{} of {}: {}", progress.value, progress.max, picture.rgb.len())
            }
            JobEvent::Ended { .. } => "over".to_owned(),
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(format!("{} {what}", &prompt_id[..4]));
    }
}

#[test]
fn fronts_are_told_in_order_and_of_ends_that_nobody_told() {
    let Some(server) = Server::start(&[]) else { return };
    let (front, worker) = (Arc::new(server.open("a")), server.open("a"));
    let notes = Arc::new(Notes::default());
    front.relay(Arc::clone(&notes) as Arc<dyn EventSink>).unwrap();
    let told = |id: &str, event: JobEvent| {
        worker.tell("w", &Event::Job { prompt_id: id.into(), client_id: None, place: None, event });
    };
    let message = |milestone| JobEvent::Message(engine::Message { at_ms: 1, milestone });
    let identity = Arc::new(graph::Identity {
        node: "1".into(),
        display: "1".into(),
        parent: None,
        real: "1".into(),
        class: "A".to_owned(),
    });
    // A picture that no single message can have.
    let rgb: Vec<u8> = (0..3 * 800 * 800).map(|at| (at % 251) as u8).collect();
    let picture = Some(graph::Picture { width: 800, height: 800, rgb, is_result: true });
    told("aaaa", message(Milestone::Started));
    let progress = engine::Progress { identity, value: 2.0, max: 5.0, picture, is_plain: false };
    told("aaaa", JobEvent::Progress(progress));
    let late = Event::Job {
        prompt_id: "aaaa".into(),
        client_id: None,
        place: None,
        event: message(Milestone::Succeeded),
    };
    worker.tell("a worker that lost the job", &late);
    told("aaaa", message(Milestone::Succeeded));
    told("aaaa", JobEvent::Ended { last: None });
    // A job whose worker told nothing of its end.
    let silent = Job { prompt_id: "bbbb0000".to_owned(), ..job(&front) };
    front.submit(silent).unwrap();
    let claim = soon("it is delivered", || worker.claim(&WorkerName::new(), LEASE).unwrap());
    let end = engine::Message { at_ms: 1, milestone: Milestone::Succeeded };
    assert!(worker.finish(&claim, &Record { messages: vec![end], ..record() }).unwrap());
    soon("its end is told", || (notes.0.lock().unwrap().len() == 6).then_some(()));
    let expected = ["aaaa start", "aaaa 2 of 5: 1920000", "aaaa end", "aaaa over", "bbbb end", "bbbb over"];
    assert_eq!(*notes.0.lock().unwrap(), expected);
}

#[test]
fn files_are_brought_and_changed_ones_brought_again() {
    let Some(server) = Server::start(&[]) else { return };
    let machine =
        |folder: &ScratchDir| SharedFiles::new(Arc::new(server.open("a")), Folders::at(folder.path()), None);
    let (here, there) = (ScratchDir::new().unwrap(), ScratchDir::new().unwrap());
    let (one, two) = (machine(&here), machine(&there));
    assert!(!two.bring(Place::Input, "a b/ö.png").unwrap(), "nobody has it");
    for bytes in [vec![7_u8; 3 << 20], vec![8; 5]] {
        std::fs::create_dir_all(here.join("input/a b")).unwrap();
        std::fs::write(here.join("input/a b/ö.png"), &bytes).unwrap();
        one.share(Place::Input, "a b/ö.png").unwrap();
        assert!(two.bring(Place::Input, "a b/ö.png").unwrap());
        assert_eq!(std::fs::read(there.join("input/a b/ö.png")).unwrap(), bytes);
    }
    assert!(two.bring(Place::Input, "../x").is_err(), "it leaves its folder");
}

/// Workers claim, and now and then vanish with what they have; the server is killed twice meanwhile.
#[test]
fn every_job_ends_once_though_workers_vanish_and_the_server_restarts() {
    const JOBS: usize = 120;
    let Some(mut server) = Server::start(&[]) else { return };
    let front = Arc::new(server.open("a"));
    let (done, turn, is_over) =
        (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (store, done, turn, is_over) =
                (server.open("a"), done.clone(), turn.clone(), is_over.clone());
            std::thread::spawn(move || {
                let mut ended: HashMap<String, usize> = HashMap::new();
                while !is_over.load(Ordering::Relaxed) {
                    let Ok(Some(claim)) = store.claim(&WorkerName::new(), LEASE) else {
                        std::thread::sleep(Duration::from_millis(20));
                        continue;
                    };
                    if turn.fetch_add(1, Ordering::Relaxed) % 12 == 5 {
                        continue; // lost with its worker
                    }
                    if store.finish(&claim, &record()).unwrap() {
                        *ended.entry(claim.job.prompt_id.clone()).or_default() += 1;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
                ended
            })
        })
        .collect();
    for number in 0..JOBS {
        let job = job(&front);
        soon("the job is taken", || front.submit(job.clone()).ok());
        if number == JOBS / 3 || number == 2 * JOBS / 3 {
            server.restart();
        }
    }
    let until = Instant::now() + Duration::from_secs(60);
    while front.remaining() > 0 {
        assert!(Instant::now() < until, "{} jobs are left", front.remaining());
        std::thread::sleep(Duration::from_millis(50));
    }
    is_over.store(true, Ordering::Relaxed);
    let ended: Vec<HashMap<String, usize>> =
        workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    let mut times: HashMap<&String, usize> = HashMap::new();
    ended.iter().flatten().for_each(|(id, count)| *times.entry(id).or_default() += count);
    assert!(times.values().all(|count| *count == 1), "a job ended twice");
    let history = front.history(None, None).unwrap();
    assert_eq!(history.len(), JOBS);
    let failed = history.iter().filter(|entry| !entry.succeeded);
    let failed: Vec<&str> = failed.map(|entry| entry.job.prompt_id.as_str()).collect();
    assert_eq!(times.len() + failed.len(), JOBS);
    assert!(failed.iter().all(|id| front.dead_letter(id).unwrap().is_some()), "a failure without its reason");
}
