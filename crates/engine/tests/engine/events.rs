//! The exact order of what is told.

use engine::{Event, JobEvent, Milestone, Submission};
use graph::map;

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
        "began",
        "cached 0",
        "started 1",
        "progress 1 1",
        "progress 1 2",
        "finished 1",
        "started 2",
        "executed 2 true",
        "finished 2",
        "succeeded",
        "queue 0",
        "ended 2",
    ];
    assert_eq!(bench.told.lines(), expected);
    let entry = bench.run(two_nodes());
    let again = bench.told.lines().split_off(expected.len());
    let expected = [
        "queue 1",
        "queue 1",
        "began",
        "cached 2",
        "executed 2 true",
        "finished 2",
        "succeeded",
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
    let expected = ["queue 1", "queue 1", "began", "cached 0", "started 1", "failed", "queue 0", "ended 1"];
    assert_eq!(bench.told.lines(), expected);
}

#[test]
fn an_interrupted_job_is_told_in_order() {
    let bench = Bench::new();
    let id = bench.hold();
    bench.engine.interrupt(None);
    bench.told.until_ended(&id);
    let expected =
        ["queue 1", "queue 1", "began", "cached 0", "started 1", "interrupted", "queue 0", "ended 1"];
    assert_eq!(bench.told.lines(), expected);
}

#[test]
fn events_carry_the_job_and_its_client() {
    let bench = Bench::new();
    let submission = Submission { client_id: Some("me".to_owned()), prompt_id: Some(uuid(4)), ..show("a") };
    bench.run(submission);
    bench.told.until("the start", |event| match event {
        Event::Job { prompt_id, client_id, event: JobEvent::Message(message), .. } => {
            message.milestone == Milestone::Started
                && **prompt_id == *uuid(4)
                && client_id.as_deref() == Some("me")
                && message.at_ms > 0
        }
        _ => false,
    });
}

#[test]
fn what_is_told_is_what_is_kept() {
    let bench = Bench::new();
    let entry = bench.run(two_nodes());
    let milestones: Vec<&Milestone> = entry.messages.iter().map(|message| &message.milestone).collect();
    assert_eq!(milestones, [&Milestone::Started, &Milestone::Cached(Vec::new()), &Milestone::Succeeded]);
    for message in &entry.messages {
        bench.told.until("the message", |event| match event {
            Event::Job { event: JobEvent::Message(told), .. } => told == message,
            _ => false,
        });
    }
    let who = &entry.identities["2"];
    assert_eq!((&*who.node, &*who.display, &who.parent, &*who.real), ("2", "2", &None, "2"));
    let text = entry.outputs.get("2").unwrap().get("text").unwrap();
    assert_eq!(text.as_list().unwrap()[0].as_text(), Some("done"));
}
