//! What runs when: numbers, the front, deleting, clearing, interrupting, cancelling.

use std::time::{Duration, Instant};

use engine::{JobStatus, Milestone, RunningNode, Submission};
use graph::{Literal, map};

use super::support::*;

#[test]
fn jobs_run_in_the_order_of_their_numbers() {
    let bench = Bench::new();
    bench.hold();
    let mut expected = Vec::new();
    for (name, number, front) in
        [("second", None, false), ("last", Some(50.0), false), ("third", None, false), ("first", None, true)]
    {
        let job = bench.submit(Submission { number, front, ..show(name) });
        expected.push((job.number, job.prompt_id));
    }
    assert_eq!(expected.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1.0, 50.0, 2.0, -3.0]);
    expected.sort_by(|a, b| a.0.total_cmp(&b.0));
    let expected: Vec<String> = expected.into_iter().map(|(_, id)| id).collect();
    assert_eq!(bench.pending(), expected);
    bench.props.permit(1);
    bench.told.until_ended(expected.last().unwrap());
    let history = bench.engine.history(None, None).unwrap();
    let ran: Vec<&str> = history.iter().map(|entry| entry.job.prompt_id.as_str()).collect();
    assert_eq!(ran[1..], expected);
}

#[test]
fn equal_numbers_run_in_the_order_of_their_ids() {
    let bench = Bench::new();
    bench.hold();
    for id in [3, 1, 2] {
        bench.submit(Submission { number: Some(7.0), prompt_id: Some(uuid(id)), ..show("x") });
    }
    assert_eq!(bench.pending(), [uuid(1), uuid(2), uuid(3)]);
    bench.props.permit(1);
}

#[test]
fn the_counter_rises_for_prompts_that_are_refused_and_not_for_chosen_numbers() {
    let bench = Bench::new();
    let refused = |submission| refusal(bench.engine.submit(submission).unwrap_err());
    assert_eq!(refused(Submission::default()), "no_prompt");
    assert_eq!(refused(Submission { prompt_id: Some("x".to_owned()), ..show("a") }), "invalid_prompt_id");
    assert_eq!(refused(prompt(&[("1", "Echo", map([("text", "a".into())]))])), "prompt_no_outputs");
    // A chosen number leaves it alone, for good prompts and bad ones.
    assert_eq!(refused(Submission { number: Some(1.0), ..Submission::default() }), "no_prompt");
    assert_eq!(bench.submit(Submission { number: Some(-2.5), ..show("a") }).number, -2.5);
    assert_eq!(bench.submit(show("a")).number, 3.0);
}

#[test]
fn what_the_client_sent_is_kept_with_its_id_and_the_time() {
    let bench = Bench::new();
    bench.hold();
    let extra_data = map([("extra_pnginfo", Literal::Map(map([("a", 1.into())])))]);
    bench.submit(Submission { client_id: Some("me".to_owned()), extra_data, ..show("a") });
    let extra_data = map([("client_id", "you".into())]);
    bench.submit(Submission { extra_data, ..show("a") });
    let pending = bench.engine.queue().pending;
    assert_eq!(pending[0].client_id.as_deref(), Some("me"));
    let keys: Vec<&str> = pending[0].extra_data.keys().map(String::as_str).collect();
    assert_eq!(keys, ["extra_pnginfo", "client_id", "create_time"]);
    assert!(pending[0].extra_data["create_time"].as_int().unwrap() > 1_700_000_000_000);
    assert_eq!(pending[1].client_id.as_deref(), Some("you"));
    bench.props.permit(1);
}

#[test]
fn deleted_jobs_never_run_and_leave_no_history() {
    let bench = Bench::new();
    let held = bench.hold();
    let jobs = ["a", "b", "c"].map(|name| bench.submit(show(name)).prompt_id);
    assert_eq!(bench.engine.remaining(), 4);
    assert_eq!(bench.engine.delete_pending(&[jobs[1].clone(), uuid(9), held.clone()]), 1);
    assert_eq!(bench.pending(), [jobs[0].clone(), jobs[2].clone()]);
    assert_eq!(bench.engine.delete_pending(&[jobs[1].clone()]), 0);
    assert_eq!(bench.told.lines().last().unwrap(), "queue 3");
    bench.props.permit(1);
    bench.told.until_ended(&jobs[2]);
    assert!(bench.engine.history_entry(&jobs[1]).unwrap().is_none());
    assert!(bench.engine.job(&jobs[1]).unwrap().is_none());
    assert_eq!(bench.engine.history(None, None).unwrap().len(), 3);
}

#[test]
fn clearing_leaves_what_runs() {
    let bench = Bench::new();
    let held = bench.hold();
    bench.submit(show("a"));
    bench.submit(show("b"));
    bench.engine.clear_pending();
    assert_eq!(bench.told.lines().last().unwrap(), "queue 1");
    let queue = bench.engine.queue();
    assert_eq!((ids(&queue.running), queue.pending.len()), (vec![held.clone()], 0));
    bench.props.permit(1);
    bench.told.until_ended(&held);
    assert!(bench.engine.history_entry(&held).unwrap().unwrap().succeeded);
}

#[test]
fn interrupting_by_id_ends_only_that_job() {
    let bench = Bench::new();
    let held = bench.hold();
    let next = bench.submit(show("next")).prompt_id;
    assert!(!bench.engine.interrupt(Some(&next)), "it does not run");
    assert!(!bench.engine.interrupt(Some(&uuid(1))));
    assert!(bench.engine.interrupt(Some(&held)));
    bench.told.until_ended(&next);
    let entry = bench.engine.history_entry(&held).unwrap().unwrap();
    assert!(!entry.succeeded && entry.outputs.is_empty());
    let end = &entry.end().unwrap().milestone;
    let expected =
        Milestone::Interrupted { node: "1".into(), class: "Wait".to_owned(), executed: Vec::new() };
    assert_eq!(*end, expected);
    assert_eq!(bench.engine.job(&held).unwrap().unwrap().status, JobStatus::Cancelled);
    // The next job begins with a clear flag.
    assert!(bench.engine.history_entry(&next).unwrap().unwrap().succeeded);
    assert!(!bench.engine.interrupt(None), "nothing runs");
}

#[test]
fn interrupting_without_an_id_ends_whatever_runs() {
    let bench = Bench::new();
    let held = bench.hold();
    assert!(bench.engine.interrupt(None));
    bench.told.until_ended(&held);
    assert_eq!(bench.engine.job(&held).unwrap().unwrap().status, JobStatus::Cancelled);
}

#[test]
fn cancelling_finds_a_job_that_waits_or_runs() {
    let bench = Bench::new();
    let held = bench.hold();
    let waiting = bench.submit(show("a")).prompt_id;
    assert!(bench.engine.cancel(&waiting));
    assert!(!bench.engine.cancel(&waiting));
    assert!(bench.engine.cancel(&held));
    bench.told.until_ended(&held);
    assert!(!bench.engine.cancel(&held), "it has ended");
    assert!(bench.engine.job(&waiting).unwrap().is_none());
    assert_eq!(bench.engine.remaining(), 0);
}

#[test]
fn a_client_that_comes_back_learns_which_node_runs() {
    let bench = Bench::new();
    assert!(bench.engine.running_nodes().is_empty());
    let job = bench.submit(Submission { client_id: Some("me".to_owned()), ..wait("x") });
    bench.props.until_waiting(1);
    let running = bench.engine.running_nodes();
    let expected = RunningNode {
        prompt_id: job.prompt_id.clone(),
        client_id: Some("me".to_owned()),
        node: "1".to_owned(),
        worker: bench.runtime.compute,
    };
    assert_eq!(running, [expected]);
    bench.props.permit(1);
    bench.told.until_ended(&job.prompt_id);
    assert!(bench.engine.running_nodes().is_empty());
}

#[test]
fn jobs_from_many_threads_run_once_each() {
    let folder = testkit::ScratchDir::new().unwrap();
    let bench = Bench::at(&folder.join("queue.db"));
    let submit = |thread: usize| {
        let job = |i: usize| bench.submit(show(&format!("{thread}-{i}"))).prompt_id;
        (0..50).map(job).collect::<Vec<String>>()
    };
    let submitted: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn({
                    let submit = &submit;
                    move || submit(thread)
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let ended = || bench.told.lines().iter().filter(|line| line.starts_with("ended")).count();
    until("all have ended", || ended() == submitted.len());
    let history = bench.engine.history(None, None).unwrap();
    let mut ran: Vec<&str> = history.iter().map(|entry| entry.job.prompt_id.as_str()).collect();
    let mut expected: Vec<&str> = submitted.iter().map(String::as_str).collect();
    ran.sort_unstable();
    expected.sort_unstable();
    assert_eq!(ran, expected);
    assert!(history.iter().all(|entry| entry.succeeded));
    // What the queue tells changes by one job at most, and ends with none.
    let lines = bench.told.lines();
    let lengths: Vec<i64> =
        lines.iter().filter_map(|line| line.strip_prefix("queue ")?.parse().ok()).collect();
    assert_eq!(lengths.len(), 600);
    assert!(lengths.windows(2).all(|pair| (pair[0] - pair[1]).abs() <= 1));
    assert_eq!(lengths.last(), Some(&0));
}

#[test]
fn two_thousand_prompts_are_queued_quickly() {
    let folder = testkit::ScratchDir::new().unwrap();
    let bench = Bench::at(&folder.join("queue.db"));
    bench.hold();
    // A prompt of 50 nodes with a workflow of some kilobytes, as clients send them.
    let nodes: Vec<(String, graph::Map)> =
        (0..50).map(|i| (i.to_string(), map([("text", format!("the text of node {i}").into())]))).collect();
    let nodes: Vec<(&str, &str, graph::Map)> =
        nodes.iter().map(|(id, inputs)| (id.as_str(), "Show", inputs.clone())).collect();
    let extra_data = map([("extra_pnginfo", "x".repeat(4000).into())]);
    let submission = Submission { extra_data, ..prompt(&nodes) };
    let catalogue = bench.engine.catalogue();
    let mut times = Vec::new();
    for _ in 0..2000 {
        let submission = submission.clone();
        let mut prompt = submission.prompt.clone().unwrap();
        let begun = Instant::now();
        graph::validate(catalogue, &mut prompt, None).unwrap();
        let validated = begun.elapsed();
        let begun = Instant::now();
        bench.submit(submission);
        times.push(begun.elapsed().saturating_sub(validated));
    }
    times.sort();
    let (median, late) = (times[1000], times[1980]);
    println!(
        "2,000 prompts: median {median:?}, 99th percentile {late:?}, all {:?}",
        times.iter().sum::<Duration>()
    );
    assert_eq!(bench.engine.remaining(), 2001);
    // On a quiet machine these are some 0.1 ms and less than 1 ms.
    assert!(median < Duration::from_millis(2), "{median:?}");
    let begun = Instant::now();
    bench.engine.clear_pending();
    println!("cleared in {:?}", begun.elapsed());
    assert_eq!(bench.engine.remaining(), 1);
}
