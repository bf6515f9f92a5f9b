//! Shapes of jobs.

use std::sync::Arc;

use engine::{JobFailure, NodeIdentity};
use graph::{Prompt, PromptNode, map};

use super::*;

fn job() -> Job {
    let extra = serde_json::from_str(
        r#"{"client_id":"c","create_time":1700000000123,"extra_pnginfo":{"workflow":{"id":"w-1"}}}"#,
    );
    let inputs = map([("seed", Literal::Int(u64::MAX.into()))]);
    let nodes = [("3".into(), PromptNode::new("KSampler", inputs))].into_iter().collect();
    Job {
        number: 4.0,
        prompt_id: "p".to_owned(),
        prompt: Arc::new(Prompt { nodes }),
        extra_data: extra.unwrap(),
        secrets: map([("api_key_comfy_org", Literal::from("hidden"))]),
        outputs: vec!["3".into()],
        client_id: Some("c".to_owned()),
        was_requeued: false,
    }
}

fn literal(json: &str) -> Literal {
    serde_json::from_str(json).unwrap()
}

fn failed() -> Milestone {
    Milestone::Failed(Box::new(JobFailure {
        node: "3".into(),
        class: "KSampler".to_owned(),
        kind: "ValueError".to_owned(),
        message: "no".to_owned(),
        executed: Vec::new(),
        trace: Vec::new(),
        inputs: Map::new(),
        outputs: Vec::new(),
    }))
}

fn entry(outputs: &str, last: Milestone) -> HistoryEntry {
    let outputs = literal(outputs);
    let outputs = outputs.as_map().unwrap().iter();
    let message = |at_ms, milestone| Message { at_ms, milestone };
    let who = |id: &str| NodeIdentity { node: id.into(), display: id.into(), parent: None, real: id.into() };
    HistoryEntry {
        job: job(),
        outputs: outputs.map(|(id, shown)| (id.as_str().into(), shown.as_map().unwrap().clone())).collect(),
        identities: [("3".into(), who("3"))].into_iter().collect(),
        succeeded: last == Milestone::Succeeded,
        messages: vec![message(10, Milestone::Started), message(25, last)],
        worker: None,
        dispatch: None,
    }
}

fn record(entry: HistoryEntry, status: JobStatus) -> JobRecord {
    JobRecord { job: Arc::new(entry.job.clone()), status, entry: Some(Arc::new(entry)) }
}

#[test]
fn of_several_workers_the_one_that_ran_it_is_named() {
    let alone = entry("{}", Milestone::Succeeded);
    let several = HistoryEntry { worker: Some("cuda:1".to_owned()), ..alone.clone() };
    assert_eq!(history_entry(&alone).get("worker"), None);
    assert_eq!(history_entry(&several)["worker"], "cuda:1");
    assert_eq!(listed(&record(several, JobStatus::Completed))["worker"], "cuda:1");
    let why = engine::Dispatch {
        reason: "held".to_owned(),
        models: vec!["a".to_owned()],
        waited_s: 2.0,
        first_come_s: Some(3.5),
        load_s: 0.0,
        elsewhere_s: None,
        passed_over: 4,
    };
    let sent = HistoryEntry { dispatch: Some(why), ..alone.clone() };
    assert_eq!(history_entry(&alone).get("dispatch"), None);
    assert_eq!(
        history_entry(&sent)["dispatch"],
        json!({ "reason": "held", "models": ["a"], "waited_s": 2.0, "first_come_s": 3.5, "load_s": 0.0,
            "elsewhere_s": null, "passed_over": 4 })
    );
}

#[test]
fn an_item_has_five_parts_and_no_secrets() {
    assert_eq!(
        item(&job()).to_string(),
        concat!(
            r#"[4,"p",{"3":{"inputs":{"seed":18446744073709551615},"class_type":"KSampler"}},"#,
            r#"{"client_id":"c","create_time":1700000000123,"extra_pnginfo":{"workflow":{"id":"w-1"}}},["3"]]"#
        )
    );
}

#[test]
fn the_history_has_status_and_messages() {
    let entries = [entry(r#"{"3":{"images":[]}}"#, Milestone::Succeeded)];
    let shown = serde_json::to_value(History(&entries)).unwrap();
    assert_eq!(shown["p"]["status"]["status_str"], "success");
    assert_eq!(shown["p"]["status"]["completed"], true);
    assert_eq!(shown["p"]["status"]["messages"][1][0], "execution_success");
    assert_eq!(shown["p"]["status"]["messages"][0][1]["timestamp"], 10);
    assert_eq!(shown["p"]["outputs"]["3"], json!({ "images": [] }));
    assert_eq!(shown["p"]["meta"]["3"]["node_id"], "3");
    assert_eq!(shown["p"]["prompt"][1], "p");
}

#[test]
fn a_waiting_job_has_the_keys_that_the_front_end_checks() {
    let record = JobRecord { job: Arc::new(job()), status: JobStatus::Pending, entry: None };
    assert_eq!(
        listed(&record).to_string(),
        r#"{"id":"p","status":"pending","priority":4,"create_time":1700000000123,"outputs_count":0,"workflow_id":"w-1"}"#
    );
    assert!(detailed(&record)["workflow"]["prompt"]["3"].is_object());
}

#[test]
fn what_was_saved_stands_for_a_job() {
    let outputs = r#"{
        "1": {"images": [{"filename": "t.png", "type": "temp"}], "animated": [true]},
        "2": {"latents": [{"filename": "x.latent", "type": "output"}]},
        "3": {"images": [{"filename": "a.png", "subfolder": "", "type": "output"}, {"filename": "b.png", "type": "output"}]}
    }"#;
    let shown = listed(&record(entry(outputs, Milestone::Succeeded), JobStatus::Completed));
    assert_eq!(shown["outputs_count"], 4);
    assert_eq!(shown["previewable_outputs_count"], 3);
    assert_eq!(
        shown["preview_output"].to_string(),
        r#"{"filename":"a.png","subfolder":"","type":"output","nodeId":"3","mediaType":"images"}"#
    );
    assert_eq!(shown["execution_start_time"], 10);
    assert_eq!(shown["execution_end_time"], 25);
}

#[test]
fn files_are_known_by_format_and_ending() {
    for (outputs, expected) in [
        (r#"{"1":{"gifs":[{"filename":"a.mp4","format":"video/h264-mp4"}]}}"#, 1),
        (r#"{"1":{"result":[{"filename":"A.GLB"}]}}"#, 1),
        (r#"{"1":{"result":[{"filename":"a.txt"}, "text", 7], "n": 3}}"#, 0),
    ] {
        let shown = listed(&record(entry(outputs, Milestone::Succeeded), JobStatus::Completed));
        assert_eq!(shown["previewable_outputs_count"], expected, "{outputs}");
        assert_eq!(shown.get("preview_output").is_some(), expected == 1);
    }
}

#[test]
fn an_ended_job_says_how() {
    let failed = listed(&record(entry("{}", failed()), JobStatus::Failed));
    assert_eq!(failed["execution_error"]["timestamp"], 25);
    assert_eq!(failed["execution_error"]["exception_message"], "no\n");
    assert_eq!(failed["status"], "failed");
    let interrupted =
        Milestone::Interrupted { node: "3".into(), class: "KSampler".to_owned(), executed: Vec::new() };
    let cancelled = listed(&record(entry("{}", interrupted), JobStatus::Cancelled));
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(cancelled["execution_end_time"], 25);
    assert!(cancelled.get("execution_error").is_none());
}

#[test]
fn a_page_says_whether_there_is_more() {
    let jobs = vec![record(entry("{}", Milestone::Succeeded), JobStatus::Completed)];
    let shown = page(&JobPage { jobs, total: 3 }, 1, Some(1));
    assert_eq!(shown["pagination"].to_string(), r#"{"offset":1,"limit":1,"total":3,"has_more":true}"#);
    let all = page(&JobPage::default(), 0, None);
    assert_eq!(all["pagination"].to_string(), r#"{"offset":0,"limit":null,"total":0,"has_more":false}"#);
}
