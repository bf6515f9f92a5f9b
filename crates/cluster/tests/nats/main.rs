//! The shared queue against a real nats-server, where one is installed; otherwise each test says so and ends.
#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod affinity;
mod server;
mod trust;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::{ClusterConfig, Error, NatsStore, SharedFiles};
use engine::{Event, EventSink, Job, JobEvent, JobStatus, JobStore, Milestone, Record, WorkerName};
use runtime::folders::Place;
use runtime::{FileExchange, Folders};
use testkit::ScratchDir;

use server::{Server, record, soon};

const LEASE: Duration = Duration::from_millis(900);

fn job(store: &NatsStore) -> Job {
    let prompt_id = uuid::Uuid::new_v4().to_string();
    Job { number: store.take_number(None, false), prompt_id, ..Job::default() }
}

#[test]
fn a_job_sent_to_one_machine_runs_on_another_and_all_know() {
    let Some(server) = Server::start(&[]) else { return };
    let (front, worker, foreign) =
        (server.open("a", LEASE), server.open("a", LEASE), server.open("b", LEASE));
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
    let (store, name) = (server.open("a", LEASE), WorkerName::new());
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
    let (store, other) = (server.open("a", LEASE), server.open("a", LEASE));
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
fn a_job_that_was_taken_out_may_be_sent_again_under_its_id() {
    let Some(server) = Server::start(&[]) else { return };
    let (store, name) = (server.open("a", LEASE), WorkerName::new());
    let job = job(&store);
    let id = job.prompt_id.clone();
    for is_looked_for in [false, true] {
        store.submit(job.clone()).unwrap();
        assert_eq!(store.cancel(Some(std::slice::from_ref(&id))).unwrap(), 1);
        if is_looked_for {
            // The message of then is taken out of the queue by whoever gets it.
            assert!(store.claim(&name, LEASE).unwrap().is_none());
        }
    }
    store.submit(job).unwrap();
    let claim = soon("it is delivered", || store.claim(&name, LEASE).unwrap());
    assert_eq!(claim.job.prompt_id, id);
    assert!(store.finish(&claim, &record()).unwrap());
    assert!(store.claim(&name, LEASE).unwrap().is_none(), "it is one job");
    assert_eq!(store.history(None, None).unwrap().len(), 1);
}

#[test]
fn so_many_jobs_are_remembered_as_are_to_be() {
    let Some(server) = Server::start(&[]) else { return };
    let store = NatsStore::open(&ClusterConfig { history: 5, ..server.config("a", LEASE) }).unwrap();
    let mut ids = Vec::new();
    for _ in 0..12 {
        let job = job(&store);
        ids.push(job.prompt_id.clone());
        store.submit(job).unwrap();
        let claim = soon("it is delivered", || store.claim(&WorkerName::new(), LEASE).unwrap());
        assert!(store.finish(&claim, &record()).unwrap());
    }
    let remembered = || {
        let history = store.history(None, None).unwrap();
        let left: Vec<String> = history.into_iter().map(|entry| entry.job.prompt_id).collect();
        (left == ids[7..]).then_some(())
    };
    soon("the latest are left", remembered);
    assert_eq!(server.open("a", LEASE).history(None, None).unwrap().len(), 5, "whoever comes sees the same");
}

/// A server may pass what one pool is sent on to another.
#[test]
fn a_job_that_was_sent_to_another_pool_is_given_up_with_a_reason() {
    let Some(server) = Server::start(&[]) else { return };
    let store = server.open("a", LEASE);
    let foreign = job(&store);
    let threads = tokio::runtime::Runtime::new().unwrap();
    threads.block_on(async {
        let client = async_nats::connect(&server.config("a", LEASE).address).await.unwrap();
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Gantry-Pool", "b");
        let text = engine::job_text(&foreign);
        client.publish_with_headers("gantry.a.jobs.any", headers, text.into()).await.unwrap();
        client.flush().await.unwrap();
    });
    // Nobody knows of it until a job of its kind is looked for.
    let own = job(&store);
    store.submit(own.clone()).unwrap();
    let claim = soon("the own one is claimed", || store.claim(&WorkerName::new(), LEASE).unwrap());
    assert_eq!(claim.job.prompt_id, own.prompt_id);
    let reason = soon("the foreign one is given up", || store.dead_letter(&foreign.prompt_id).unwrap());
    assert!(reason.contains("was sent to pool b and came to pool a"), "{reason}");
    assert_eq!(soon("it is recorded", || store.finished(&foreign.prompt_id).unwrap()).0, JobStatus::Failed);
}

#[test]
fn refusals_say_what_to_do() {
    let Some(server) = Server::start(&["--user", "gantry", "--pass", "right"]) else { return };
    let refusal = |config: &ClusterConfig| NatsStore::open(config).err().unwrap();
    let with = |password: &str| {
        let user = Some(("gantry".to_owned(), password.to_owned()));
        ClusterConfig { user, ..server.config("a", LEASE) }
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
    let (front, worker) = (Arc::new(server.open("a", LEASE)), server.open("a", LEASE));
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
    let machine = |folder: &ScratchDir| {
        SharedFiles::new(Arc::new(server.open("a", LEASE)), Folders::at(folder.path()), None)
    };
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
    let front = Arc::new(server.open("a", LEASE));
    let (done, turn, is_over) =
        (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (store, done, turn, is_over) =
                (server.open("a", LEASE), done.clone(), turn.clone(), is_over.clone());
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
