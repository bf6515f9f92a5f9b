//! The exact order of what is told.

use engine::{Event, JobEvent, Submission};
use graph::{Literal, map};

use super::support::*;

fn two_nodes() -> Submission {
    let steps = map([("steps", 2.into())]);
    prompt(&[("1", "Steps", steps), ("2", "Show", map([("text", link("1"))]))])
}

#[test]
fn a_job_is_told_in_order_and_a_cached_one_runs_no_node() {
    let bench = Bench::new();
    bench.run(two_nodes());
    let expected = [
        "queue 1",
        "queue 1",
        "execution_start",
        "execution_cached 0",
        "started 1",
        "progress 1 1",
        "progress 1 2",
        "finished 1",
        "started 2",
        "executed 2 true",
        "finished 2",
        "execution_success",
        "queue 0",
        "ended 2",
    ];
    assert_eq!(bench.told.lines(), expected);
    let entry = bench.run(two_nodes());
    let again = bench.told.lines().split_off(expected.len());
    let expected = [
        "queue 1",
        "queue 1",
        "execution_start",
        "execution_cached 2",
        "executed 2 true",
        "finished 2",
        "execution_success",
        "queue 0",
        "ended -",
    ];
    assert_eq!(again, expected);
    let shown = entry.outputs.get("2").unwrap().get("text").unwrap();
    assert_eq!(shown.as_list().unwrap()[0].as_text(), Some("done"));
}

#[test]
fn a_failing_job_is_told_in_order() {
    let bench = Bench::new();
    bench.run(fail("value"));
    let expected = [
        "queue 1",
        "queue 1",
        "execution_start",
        "execution_cached 0",
        "started 1",
        "execution_error",
        "queue 0",
        "ended 1",
    ];
    assert_eq!(bench.told.lines(), expected);
}

#[test]
fn an_interrupted_job_is_told_in_order() {
    let bench = Bench::new();
    let id = bench.hold();
    bench.engine.interrupt(None);
    bench.told.until_ended(&id);
    let expected = [
        "queue 1",
        "queue 1",
        "execution_start",
        "execution_cached 0",
        "started 1",
        "execution_interrupted",
        "queue 0",
        "ended 1",
    ];
    assert_eq!(bench.told.lines(), expected);
}

#[test]
fn events_carry_the_job_and_its_client() {
    let bench = Bench::new();
    let submission = Submission { client_id: Some("me".to_owned()), prompt_id: Some(uuid(4)), ..show("a") };
    bench.run(submission);
    bench.told.until("the start", |event| match event {
        Event::Job { prompt_id, client_id, event: JobEvent::Message(message) } => {
            let data = message.data.as_map().unwrap();
            message.name == "execution_start"
                && **prompt_id == *uuid(4)
                && client_id.as_deref() == Some("me")
                && data.keys().eq(["prompt_id", "timestamp"])
                && data["timestamp"].as_int().is_some()
        }
        _ => false,
    });
}

#[test]
fn what_is_told_is_what_is_kept() {
    let bench = Bench::new();
    let entry = bench.run(two_nodes());
    let names: Vec<&str> = entry.messages.iter().map(|message| message.name.as_str()).collect();
    assert_eq!(names, ["execution_start", "execution_cached", "execution_success"]);
    let cached = entry.message("execution_cached").unwrap().as_map().unwrap();
    assert!(cached.keys().eq(["nodes", "prompt_id", "timestamp"]));
    for message in &entry.messages {
        assert_eq!(message.data.get("prompt_id").unwrap().as_text(), Some(entry.job.prompt_id.as_str()));
        bench.told.until("the message", |event| match event {
            Event::Job { event: JobEvent::Message(told), .. } => told == message,
            _ => false,
        });
    }
    let meta = entry.meta.get("2").unwrap();
    assert!(meta.keys().eq(["node_id", "display_node", "parent_node", "real_node_id"]));
    assert_eq!((meta["node_id"].as_text(), &meta["parent_node"]), (Some("2"), &Literal::Null));
    let text = entry.outputs.get("2").unwrap().get("text").unwrap();
    assert_eq!(text.as_list().unwrap()[0].as_text(), Some("done"));
}
