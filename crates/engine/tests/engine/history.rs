//! What is kept of jobs that ended.

use engine::{EngineConfig, JobStatus, Submission};
use graph::{Literal, map};

use super::support::*;

fn texts(entries: &[engine::HistoryEntry]) -> Vec<String> {
    let text = |entry: &engine::HistoryEntry| {
        entry.outputs["1"]["text"].as_list().unwrap()[0].as_text().unwrap().to_owned()
    };
    entries.iter().map(text).collect()
}

#[test]
fn history_is_paged_from_either_end() {
    let bench = Bench::new();
    for name in ["a", "b", "c", "d", "e"] {
        bench.run(show(name));
    }
    let page = |max, offset| texts(&bench.engine.history(max, offset).unwrap());
    assert_eq!(page(None, None), ["a", "b", "c", "d", "e"]);
    assert_eq!(page(Some(2), None), ["d", "e"]);
    assert_eq!(page(Some(9), None), ["a", "b", "c", "d", "e"]);
    assert_eq!(page(Some(2), Some(1)), ["b", "c"]);
    assert_eq!(page(Some(2), Some(0)), ["a", "b"]);
    assert_eq!(page(None, Some(3)), ["d", "e"]);
    assert_eq!(page(Some(2), Some(9)), Vec::<String>::new());
    assert_eq!(page(Some(0), None), Vec::<String>::new());
}

#[test]
fn finished_jobs_are_forgotten_by_id_or_all() {
    let bench = Bench::new();
    let jobs = ["a", "b", "c"].map(|name| bench.run(show(name)).job.prompt_id);
    bench.engine.forget(Some(&[jobs[1].clone(), uuid(1)])).unwrap();
    assert_eq!(texts(&bench.engine.history(None, None).unwrap()), ["a", "c"]);
    assert!(bench.engine.history_entry(&jobs[1]).unwrap().is_none());
    bench.engine.forget(None).unwrap();
    assert!(bench.engine.history(None, None).unwrap().is_empty());
}

#[test]
fn the_oldest_are_dropped_above_the_limit() {
    let bench = Bench::with(EngineConfig { history_limit: 3, ..EngineConfig::default() });
    for name in ["a", "b", "c", "d", "e"] {
        bench.run(show(name));
    }
    assert_eq!(texts(&bench.engine.history(None, None).unwrap()), ["c", "d", "e"]);
}

#[test]
fn an_id_that_is_used_again_has_the_later_record() {
    let bench = Bench::new();
    bench.run(Submission { prompt_id: Some(uuid(1)), ..show("first") });
    bench.run(show("other"));
    let second = bench.submit(Submission { prompt_id: Some(uuid(1)), ..wait("second") });
    bench.props.until_waiting(1);
    // Meanwhile it is listed once, as what runs now.
    let page = bench.engine.jobs(&Default::default()).unwrap();
    assert_eq!(page.total, 2);
    assert_eq!(page.jobs.iter().filter(|record| record.job.prompt_id == uuid(1)).count(), 1);
    bench.props.permit(1);
    until("it ended", || bench.engine.remaining() == 0);
    assert_eq!(second.prompt_id, uuid(1));
    assert_eq!(texts(&bench.engine.history(None, None).unwrap()), ["other", "second"]);
}

#[test]
fn a_failure_is_kept_with_all_that_clients_read() {
    let bench = Bench::new();
    let echo = map([("text", "in".into())]);
    let entry = bench.run(prompt(&[
        ("1", "Echo", echo),
        ("2", "Show", map([("text", link("1"))])),
        ("3", "Fail", map([("how", "value".into())])),
    ]));
    assert!(!entry.succeeded);
    let failure = entry.failure().unwrap();
    assert_eq!((&*failure.node, failure.class.as_str()), ("3", "Fail"));
    assert_eq!((failure.message.as_str(), failure.kind.as_str()), ("this value cannot be", "ValueError"));
    assert_eq!(failure.trace, ["in node 3 (Fail)\n"]);
    assert_eq!(failure.inputs["how"].as_list().unwrap()[0].as_text(), Some("value"));
    assert!(entry.end().unwrap().at_ms >= entry.began_ms().unwrap());
    assert_eq!(bench.engine.job(&entry.job.prompt_id).unwrap().unwrap().status, JobStatus::Failed);
}

#[test]
fn a_node_that_panics_fails_its_job_only() {
    let bench = Bench::new();
    let entry = bench.run(fail("panic"));
    let failure = entry.failure().unwrap();
    assert_eq!(&*failure.node, "1");
    assert!(failure.message.contains("a node panics"));
    assert!(bench.run(show("after")).succeeded);
}

#[test]
fn the_prompt_is_kept_with_its_constants_converted() {
    let bench = Bench::new();
    let steps = map([("steps", "3".into())]);
    let entry = bench.run(prompt(&[("1", "Steps", steps), ("2", "Show", map([("text", link("1"))]))]));
    let inputs = entry.job.prompt.nodes["1"].inputs.as_ref().unwrap();
    assert_eq!(inputs["steps"], Literal::Int(3));
    assert_eq!(entry.job.outputs.iter().map(|id| &**id).collect::<Vec<_>>(), ["2"]);
}

#[test]
fn secrets_reach_the_nodes_and_not_the_file() {
    let folder = testkit::ScratchDir::new().unwrap();
    let bench = Bench::at(&folder.join("secrets.db"));
    let secret = "hush-9f8e7d";
    let with_secrets = |fails: bool| {
        let extra_data = map([
            ("api_key_comfy_org", secret.into()),
            ("auth_token_comfy_org", format!("{secret}-token").into()),
            ("kept", "plain-1a2b3c".into()),
        ]);
        Submission { extra_data, ..prompt(&[("1", "Tattle", map([("fails", fails.into())]))]) }
    };
    bench.hold();
    let jobs = [false, true].map(|fails| bench.submit(with_secrets(fails)).prompt_id);
    let pending = bench.engine.queue().pending;
    assert!(pending.iter().all(|job| job.extra_data.keys().eq(["kept", "create_time"])));
    assert_eq!(pending[0].secrets.len(), 2);
    assert!(!format!("{pending:?}").contains(secret));
    bench.props.permit(1);
    jobs.iter().for_each(|id| bench.told.until_ended(id));
    // The node had them: what it showed was told, and only then hidden.
    bench.told.until("the secret", |event| format!("{event:?}").contains(secret));
    let entry = bench.engine.history_entry(&jobs[1]).unwrap().unwrap();
    assert!(entry.failure().is_some() && entry.job.secrets.is_empty());
    assert!(!format!("{:?}", bench.engine.history(None, None).unwrap()).contains(secret));
    drop(bench);
    let mut found = 0;
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(!has(secret));
        found += usize::from(has("plain-1a2b3c"));
    }
    assert!(found > 0, "the file has what is no secret");
}
