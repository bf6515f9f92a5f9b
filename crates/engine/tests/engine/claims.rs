//! Claims: whose a job is, for how long, and what becomes of it when its worker is lost.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::{
    Abandoned, Choice, Claim, EngineConfig, Error, HistoryEntry, Job, JobFilter, JobPage, JobRecord,
    JobStatus, JobStore, QueueView, Record, SqliteStore, Wake, WorkerName,
};
use indexmap::IndexMap;
use testkit::ScratchDir;

use super::support::*;

const LONG: Duration = Duration::from_secs(600);

fn store() -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(None, 100).unwrap())
}

fn job(id: u32) -> Job {
    Job { number: f64::from(id), prompt_id: uuid(id), ..Job::default() }
}

fn completed() -> Record {
    let (outputs, identities) = (IndexMap::new(), IndexMap::new());
    Record { status: JobStatus::Completed, outputs, identities, messages: Vec::new(), worker: None }
}

#[test]
fn jobs_are_claimed_in_their_order_and_by_one_worker_each() {
    let store = store();
    for id in [2, 1, 3] {
        store.submit(job(id)).unwrap();
    }
    let workers = [WorkerName::new(), WorkerName::new()];
    let claims = [0, 1, 0].map(|worker| store.claim(&workers[worker], LONG).unwrap().unwrap());
    assert_eq!(claims.each_ref().map(|claim| claim.job.prompt_id.clone()), [uuid(1), uuid(2), uuid(3)]);
    assert!(store.claim(&workers[1], LONG).unwrap().is_none());
    assert_eq!((store.remaining(), store.queue().running.len()), (3, 3));
    assert!(store.heartbeat(&claims[1], LONG).unwrap());
    assert!(store.finish(&claims[1], &completed()).unwrap());
    assert!(!store.heartbeat(&claims[1], LONG).unwrap(), "it ended");
    assert_eq!(store.remaining(), 2);
    assert_eq!(store.find(&uuid(2)).unwrap().unwrap().status, JobStatus::Completed);
}

#[test]
fn what_a_worker_made_after_its_lease_ran_out_is_not_recorded() {
    let store = store();
    store.submit(job(1)).unwrap();
    let (slow, quick) = (WorkerName::new(), WorkerName::new());
    let late = store.claim(&slow, Duration::ZERO).unwrap().unwrap();
    assert!(store.redeliver().unwrap().is_empty(), "it waits again");
    let claim = store.claim(&quick, LONG).unwrap().unwrap();
    assert!(claim.job.was_requeued);
    assert!(!store.heartbeat(&late, LONG).unwrap());
    assert!(!store.finish(&late, &completed()).unwrap());
    store.release(&late).unwrap();
    assert_eq!(store.queue().running.len(), 1, "the other one still has it");
    assert!(store.finished(&uuid(1)).unwrap().is_none());
    assert!(store.finish(&claim, &completed()).unwrap());
    assert!(store.finished(&uuid(1)).unwrap().is_some());
}

#[test]
fn a_job_of_a_lost_worker_runs_on_another_once() {
    let store = store();
    let dead = WorkerName::new();
    store.submit(job(8)).unwrap();
    store.claim(&dead, Duration::from_millis(30)).unwrap().unwrap();
    let config = EngineConfig { lease: Duration::from_millis(60), ..EngineConfig::default() };
    let bench = Bench::on(Arc::clone(&store) as Arc<dyn JobStore>, config);
    bench.told.until_ended(&uuid(8));
    let entry = bench.engine.history_entry(&uuid(8)).unwrap().unwrap();
    assert!(entry.job.was_requeued && entry.succeeded);
    assert_eq!(bench.engine.remaining(), 0);
}

#[test]
fn a_job_that_is_lost_with_two_workers_is_recorded_as_failed_and_told() {
    let store = store();
    store.submit(job(8)).unwrap();
    for _ in 0..2 {
        store.redeliver().unwrap();
        store.claim(&WorkerName::new(), Duration::ZERO).unwrap().unwrap();
    }
    let bench = Bench::on(Arc::clone(&store) as Arc<dyn JobStore>, EngineConfig::default());
    bench.told.until_ended(&uuid(8));
    assert_eq!(bench.told.lines(), ["failed", "queue 0", "ended -"]);
    let record = bench.engine.job(&uuid(8)).unwrap().unwrap();
    assert_eq!(record.status, JobStatus::Failed);
    let entry = record.entry.unwrap();
    let failure = entry.failure().unwrap();
    assert_eq!(failure.kind, "WorkerLost");
    assert!(failure.message.contains("two workers were lost"), "{}", failure.message);
}

#[test]
fn a_worker_that_lives_keeps_its_claim_for_as_long_as_the_job_takes() {
    let store = store();
    let lease = Duration::from_millis(400);
    let bench =
        Bench::on(Arc::clone(&store) as Arc<dyn JobStore>, EngineConfig { lease, ..EngineConfig::default() });
    let id = bench.hold();
    for _ in 0..12 {
        std::thread::sleep(lease / 4);
        assert!(store.redeliver().unwrap().is_empty());
        assert!(store.claim(&WorkerName::new(), LONG).unwrap().is_none());
    }
    bench.props.permit(1);
    bench.told.until_ended(&id);
    let entry = bench.engine.history_entry(&id).unwrap().unwrap();
    assert!(entry.succeeded && !entry.job.was_requeued);
}

/// A store that takes a claim away when it is told to, as one does whose worker could not be reached for a while.
struct Fickle {
    store: Arc<SqliteStore>,
    takes_away: AtomicBool,
}

impl JobStore for Fickle {
    fn take_number(&self, chosen: Option<f64>, front: bool) -> f64 {
        self.store.take_number(chosen, front)
    }
    fn submit(&self, job: Job) -> Result<(), Error> {
        self.store.submit(job)
    }
    fn claim_chosen(
        &self,
        worker: &WorkerName,
        lease: Duration,
        choose: &mut dyn FnMut(&Job) -> Choice,
    ) -> Result<Option<Claim>, Error> {
        self.store.claim_chosen(worker, lease, choose)
    }
    fn heartbeat(&self, claim: &Claim, lease: Duration) -> Result<bool, Error> {
        if !self.takes_away.load(Ordering::SeqCst) {
            return self.store.heartbeat(claim, lease);
        }
        assert!(self.store.heartbeat(claim, Duration::ZERO)?);
        self.store.redeliver()?;
        self.store.claim(&WorkerName(Arc::from("another")), LONG)?;
        Ok(false)
    }
    fn release(&self, claim: &Claim) -> Result<(), Error> {
        self.store.release(claim)
    }
    fn finish(&self, claim: &Claim, record: &Record) -> Result<bool, Error> {
        self.store.finish(claim, record)
    }
    fn redeliver(&self) -> Result<Vec<Abandoned>, Error> {
        self.store.redeliver()
    }
    fn cancel(&self, ids: Option<&[String]>) -> Result<usize, Error> {
        self.store.cancel(ids)
    }
    fn remaining(&self) -> usize {
        self.store.remaining()
    }
    fn queue(&self) -> QueueView {
        self.store.queue()
    }
    fn find(&self, id: &str) -> Result<Option<JobRecord>, Error> {
        self.store.find(id)
    }
    fn list(&self, filter: &JobFilter) -> Result<JobPage, Error> {
        self.store.list(filter)
    }
    fn history(&self, max: Option<usize>, offset: Option<usize>) -> Result<Vec<HistoryEntry>, Error> {
        self.store.history(max, offset)
    }
    fn finished(&self, id: &str) -> Result<Option<(JobStatus, HistoryEntry)>, Error> {
        self.store.finished(id)
    }
    fn forget(&self, ids: Option<&[String]>) -> Result<(), Error> {
        self.store.forget(ids)
    }
    fn watch(&self, wake: Wake) {
        self.store.watch(wake);
    }
}

#[test]
fn a_worker_that_lost_its_claim_ends_the_job_and_says_nothing_of_it() {
    let store = store();
    let fickle = Arc::new(Fickle { store: Arc::clone(&store), takes_away: AtomicBool::new(false) });
    let config = EngineConfig { lease: Duration::from_millis(90), ..EngineConfig::default() };
    let bench = Bench::on(Arc::clone(&fickle) as Arc<dyn JobStore>, config);
    let id = bench.hold();
    fickle.takes_away.store(true, Ordering::SeqCst);
    until("the job has ended here", || bench.engine.running_nodes().is_empty());
    let told = bench.told.lines();
    assert!(!told.iter().any(|line| line.starts_with("ended") || line == "interrupted"), "{told:?}");
    assert!(bench.engine.history_entry(&id).unwrap().is_none());
    assert_eq!(bench.engine.job(&id).unwrap().unwrap().status, JobStatus::InProgress, "the other one has it");
    // The next job runs here.
    fickle.takes_away.store(false, Ordering::SeqCst);
    assert!(bench.run(show("next")).succeeded);
}

/// A database as the first version of the schema had it, with a job that waits and one that was running.
fn write_old_database(path: &Path) {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.execute_batch(include_str!("../../src/sqlite/schema_1.sql")).unwrap();
    connection.pragma_update(None, "application_id", 0x4741_4e54).unwrap();
    connection.pragma_update(None, "user_version", 1).unwrap();
    for (number, is_running) in [(1, true), (2, false)] {
        let row =
            "INSERT INTO job (prompt_id, number, counter, outputs, is_running) VALUES (?1, ?2, ?2, '[]', ?3)";
        connection.execute(row, rusqlite::params![uuid(number), number, is_running]).unwrap();
        let body = "INSERT INTO body (sequence, prompt, extra_data) VALUES (?1, '{}', '{}')";
        connection.execute(body, [connection.last_insert_rowid()]).unwrap();
    }
}

#[test]
fn a_queue_of_the_version_before_claims_is_taken_over() {
    let folder = ScratchDir::new().unwrap();
    let database = folder.join("queue.db");
    write_old_database(&database);
    let store = SqliteStore::open(Some(&database), 100).unwrap();
    let pending = store.queue().pending;
    assert_eq!(ids(&pending), [uuid(1), uuid(2)]);
    assert_eq!([pending[0].was_requeued, pending[1].was_requeued], [true, false]);
    drop(store);
    // The loss was counted once, and not again by a start that found nothing claimed.
    let store = SqliteStore::open(Some(&database), 100).unwrap();
    assert_eq!(ids(&store.queue().pending), [uuid(1), uuid(2)]);
    drop(store.claim(&WorkerName::new(), LONG).unwrap().unwrap());
    drop(store);
    let store = SqliteStore::open(Some(&database), 100).unwrap();
    assert_eq!(ids(&store.queue().pending), [uuid(2)], "lost for the second time");
    assert_eq!(store.find(&uuid(1)).unwrap().unwrap().status, JobStatus::Failed);
}
