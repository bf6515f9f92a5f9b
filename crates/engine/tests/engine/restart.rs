//! What a process that ends leaves, however it ends.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use engine::{Engine, Error, Event, EventSink, JobFilter, JobStatus, Submission};
use testkit::ScratchDir;

use super::classes::{Props, catalogue};
use super::support::*;

/// Where a child process finds its database.
const DATABASE: &str = "GANTRY_TEST_DATABASE";

/// Not a test by itself: what the child process of the tests below does until it is killed. It runs two
/// jobs, begins a third, queues two more, and says so.
#[test]
#[ignore = "runs as a child process of other tests"]
fn child_process() {
    let database = PathBuf::from(std::env::var_os(DATABASE).unwrap());
    let bench = Bench::at(&database);
    if bench.engine.remaining() == 0 {
        for name in ["one", "two"] {
            bench.run(show(name));
        }
        bench.submit(Submission {
            prompt_id: Some(uuid(1)),
            client_id: Some("me".to_owned()),
            ..wait("three")
        });
        bench.props.until_waiting(1);
        bench.submit(Submission { prompt_id: Some(uuid(2)), front: true, ..show("four") });
        bench.submit(Submission { prompt_id: Some(uuid(3)), number: Some(2.5), ..show("five") });
    } else {
        // What was running is first in the queue again; it waits for a permit that never comes.
        bench.props.until_waiting(1);
    }
    println!("\nready");
    loop {
        std::thread::park();
    }
}

/// Runs the child until it is ready, and kills it.
fn run_and_kill(database: &Path) {
    let mut child = child(database);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.map_while(Result::ok).any(|line| line == "ready");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ready, "the child ended early");
}

fn child(database: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "restart::child_process", "--ignored", "--nocapture"]).env(DATABASE, database);
    command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap()
}

fn start(database: &Path) -> Result<Engine, Error> {
    struct Deaf;
    impl EventSink for Deaf {
        fn event(&self, _: Event) {}
    }
    let catalogue = catalogue(&Arc::<Props>::default());
    Engine::start(config(database), Arc::new(catalogue), Arc::new(runtime()), Arc::new(Deaf))
}

#[test]
fn a_killed_process_loses_no_accepted_job_and_no_record() {
    let folder = ScratchDir::new().unwrap();
    let database = folder.join("deep/er/queue.db");
    run_and_kill(&database);
    let bench = Bench::at(&database);
    let finished = bench.engine.history(Some(2), Some(0)).unwrap();
    assert_eq!(finished.len(), 2);
    assert!(finished.iter().all(|entry| entry.succeeded && entry.messages.len() == 3));
    let told = bench.told.lines();
    assert!(!told.iter().any(|line| line == "ended -"), "these did not run again: {told:?}");
    // The job that was running keeps its number, and with it its place: 2, after the -3 of the front.
    bench.props.until_waiting(1);
    let queue = bench.engine.queue();
    assert_eq!(ids(&queue.running), [uuid(1)]);
    assert!(queue.running[0].was_requeued);
    assert_eq!(queue.running[0].client_id.as_deref(), Some("me"));
    assert_eq!(ids(&queue.pending), [uuid(3)]);
    assert!(!queue.pending[0].was_requeued);
    assert!(bench.engine.history_entry(&uuid(2)).unwrap().unwrap().succeeded, "the front ran first");
    // New jobs come after the old ones.
    assert_eq!(bench.submit(show("six")).number, 4.0);
    bench.props.permit(1);
    bench.told.until_ended(&uuid(3));
    let entry = bench.engine.history_entry(&uuid(1)).unwrap().unwrap();
    assert!(entry.succeeded && entry.job.was_requeued);
}

#[test]
fn a_job_that_is_lost_twice_is_recorded_as_failed() {
    let folder = ScratchDir::new().unwrap();
    let database = folder.join("queue.db");
    run_and_kill(&database);
    run_and_kill(&database);
    let bench = Bench::at(&database);
    bench.told.until_ended(&uuid(3));
    let record = bench.engine.job(&uuid(1)).unwrap().unwrap();
    assert_eq!(record.status, JobStatus::Failed);
    let entry = record.entry.unwrap();
    let failure = entry.failure().unwrap();
    assert!(failure.message.contains("ended twice"), "{}", failure.message);
    assert_eq!((&*failure.node, failure.kind.as_str()), ("", "ProcessEnded"));
    assert!(entry.job.was_requeued && !entry.succeeded);
    assert_eq!(bench.engine.remaining(), 0);
    assert_eq!(bench.engine.jobs(&JobFilter::default()).unwrap().total, 5);
}

#[test]
fn an_engine_that_is_dropped_puts_its_job_back() {
    let folder = ScratchDir::new().unwrap();
    let database = folder.join("queue.db");
    // More often than a job may be lost: an orderly end does not count.
    let id = Bench::at(&database).hold();
    for _ in 0..3 {
        let bench = Bench::at(&database);
        bench.props.until_waiting(1);
        let queue = bench.engine.queue();
        assert_eq!(ids(&queue.running)[..], *std::slice::from_ref(&id));
        assert!(queue.running[0].was_requeued);
        drop(bench.engine);
        assert!(!bench.told.lines().iter().any(|line| line.starts_with("ended")));
    }
    let bench = Bench::at(&database);
    bench.props.permit(1);
    bench.told.until_ended(&id);
    assert!(bench.engine.history_entry(&id).unwrap().unwrap().succeeded);
}

#[test]
fn a_job_that_the_user_interrupted_is_not_put_back() {
    let folder = ScratchDir::new().unwrap();
    let database = folder.join("queue.db");
    let bench = Bench::at(&database);
    let id = bench.hold();
    bench.engine.interrupt(None);
    drop(bench.engine);
    let bench = Bench::at(&database);
    assert_eq!(bench.engine.job(&id).unwrap().unwrap().status, JobStatus::Cancelled);
    assert_eq!(bench.engine.remaining(), 0);
}

#[test]
fn deleted_jobs_stay_deleted() {
    let folder = ScratchDir::new().unwrap();
    let database = folder.join("queue.db");
    let bench = Bench::at(&database);
    let held = bench.hold();
    let jobs = ["a", "b", "c"].map(|name| bench.submit(show(name)).prompt_id);
    bench.engine.delete_pending(&[jobs[1].clone()]);
    drop(bench.engine);
    let bench = Bench::at(&database);
    bench.props.until_waiting(1);
    let queue = bench.engine.queue();
    let all: Vec<String> = ids(&queue.running).into_iter().chain(ids(&queue.pending)).collect();
    assert_eq!(all, [held, jobs[0].clone(), jobs[2].clone()]);
    bench.engine.clear_pending();
    drop(bench.engine);
    assert_eq!(start(&database).unwrap().remaining(), 1);
}

#[test]
fn a_second_engine_on_the_same_database_is_refused() {
    let folder = ScratchDir::new().unwrap();
    let database = folder.join("queue.db");
    let first = start(&database).unwrap();
    let error = start(&database).err().unwrap();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    assert!(error.to_string().contains("queue.db") && error.to_string().contains("in use"), "{error}");
    drop(first);
    assert!(start(&database).is_ok());
}

#[test]
fn a_damaged_database_is_moved_aside_and_kept() {
    let folder = ScratchDir::new().unwrap();
    let database = folder.join("queue.db");
    let garbage = b"this was a database once ".repeat(1000);
    std::fs::write(&database, &garbage).unwrap();
    let bench = Bench::at(&database);
    assert!(bench.run(show("a")).succeeded);
    drop(bench.engine);
    let aside: Vec<PathBuf> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.to_string_lossy().contains(".damaged-"))
        .collect();
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert_eq!(std::fs::read(&aside[0]).unwrap(), garbage);
    assert_eq!(start(&database).unwrap().history(None, None).unwrap().len(), 1);
}

#[test]
fn a_database_whose_tables_are_torn_is_moved_aside() {
    let folder = ScratchDir::new().unwrap();
    let database = folder.join("queue.db");
    drop(start(&database).unwrap());
    // The first page says what tables there are, and is left whole; all others are overwritten.
    let mut bytes = std::fs::read(&database).unwrap();
    bytes[4096..].fill(0xa5);
    std::fs::write(&database, bytes).unwrap();
    let engine = start(&database).unwrap();
    assert!(engine.history(None, None).unwrap().is_empty());
    let aside = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name());
    assert!(aside.into_iter().any(|name| name.to_string_lossy().contains(".damaged-")));
}

#[test]
fn a_torn_history_is_found_after_an_end_that_was_not_orderly() {
    let folder = ScratchDir::new().unwrap();
    let database = folder.join("queue.db");
    let bench = Bench::at(&database);
    bench.run(show("a"));
    drop(bench.engine);
    let root = "SELECT rootpage FROM sqlite_schema WHERE name = 'history'";
    let page = rusqlite::Connection::open(&database).unwrap().query_row(root, [], |row| row.get::<_, i64>(0));
    let start_of_page = usize::try_from(page.unwrap() - 1).unwrap() * 4096;
    let mut bytes = std::fs::read(&database).unwrap();
    bytes[start_of_page..start_of_page + 4096].fill(0xa5);
    std::fs::write(&database, bytes).unwrap();
    // An orderly end leaves no log.
    std::fs::write(folder.join("queue.db-wal"), "").unwrap();
    assert!(start(&database).unwrap().history(None, None).unwrap().is_empty());
    let aside = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name());
    assert!(aside.into_iter().any(|name| name.to_string_lossy().contains(".damaged-")));
}

#[test]
fn files_of_newer_versions_and_of_other_programs_are_refused_and_left_alone() {
    let folder = ScratchDir::new().unwrap();
    let (newer, foreign) = (folder.join("newer.db"), folder.join("foreign.db"));
    drop(start(&newer).unwrap());
    let connection = rusqlite::Connection::open(&newer).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let error = start(&newer).err().unwrap();
    assert!(matches!(error, Error::Newer { found: 99, .. }), "{error}");
    rusqlite::Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE theirs (a)").unwrap();
    let error = start(&foreign).err().unwrap();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    let tables = rusqlite::Connection::open(&foreign).unwrap().query_row(
        "SELECT count(*) FROM sqlite_schema",
        [],
        |row| row.get::<_, i64>(0),
    );
    assert_eq!(tables.unwrap(), 1);
}

#[test]
fn a_job_that_cannot_be_read_is_left_where_it_is() {
    let folder = ScratchDir::new().unwrap();
    let database = folder.join("queue.db");
    let bench = Bench::at(&database);
    bench.hold();
    let broken = bench.submit(show("broken")).prompt_id;
    bench.submit(Submission { prompt_id: Some(uuid(7)), ..show("good") });
    drop(bench.engine);
    let connection = rusqlite::Connection::open(&database).unwrap();
    let change =
        "UPDATE body SET prompt = '{' WHERE sequence = (SELECT sequence FROM job WHERE prompt_id = ?1)";
    assert_eq!(connection.execute(change, [&broken]).unwrap(), 1);
    drop(connection);
    let bench = Bench::at(&database);
    bench.props.permit(1);
    bench.told.until_ended(&uuid(7));
    assert!(bench.engine.job(&broken).unwrap().is_none());
    drop(bench.engine);
    let connection = rusqlite::Connection::open(&database).unwrap();
    let left = connection.query_row("SELECT prompt_id FROM job", [], |row| row.get::<_, String>(0));
    assert_eq!(left.unwrap(), broken);
}
