//! Who is told what, and in which order.

use std::sync::mpsc;

use super::super::client::Client;
use super::*;

struct Desk {
    dispatcher: Dispatcher,
    roster: Arc<Roster>,
}

impl Desk {
    fn new() -> Desk {
        let roster = Arc::new(Roster::default());
        let dispatcher = Dispatcher::new(Arc::clone(&roster), Arc::default(), Arc::default(), 512);
        Desk { dispatcher, roster }
    }

    fn tell(&mut self, client: Option<&str>, event: JobEvent) {
        let event =
            Event::Job { prompt_id: "p".into(), client_id: client.map(Into::into), place: None, event };
        self.dispatcher.obey(Command::Event(Instant::now(), event, None));
    }
}

fn message(milestone: Milestone) -> JobEvent {
    JobEvent::Message(JobMessage { at_ms: 1, milestone })
}

fn interrupted() -> Milestone {
    Milestone::Interrupted { node: "1".into(), class: "C".to_owned(), executed: Vec::new() }
}

fn identity(node: &str) -> Arc<Identity> {
    let node: graph::NodeId = node.into();
    Arc::new(Identity {
        node: node.clone(),
        display: node.clone(),
        parent: None,
        real: node,
        class: "C".to_owned(),
    })
}

fn tick(node: &str, value: f64, with_picture: bool) -> JobEvent {
    let picture = with_picture.then(|| Picture { width: 2, height: 2, rgb: vec![9; 12], is_result: true });
    JobEvent::Progress(Progress { identity: identity(node), value, max: 4.0, picture, is_plain: false })
}

/// The types of the frames that wait for a client, those of binary ones as `#1`, without its first status.
fn kinds(client: &Client) -> Vec<String> {
    frames(client).iter().map(|(kind, _)| kind.clone()).collect()
}

fn frames(client: &Client) -> Vec<(String, serde_json::Value)> {
    client.push(axum::extract::ws::Message::text("end"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut all = Vec::new();
    loop {
        for frame in runtime.block_on(client.take()).unwrap() {
            match frame {
                axum::extract::ws::Message::Text(text) if text.as_str() == "end" => return all,
                axum::extract::ws::Message::Text(text) => {
                    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
                    if value["data"]["sid"].is_null() {
                        all.push((value["type"].as_str().unwrap().to_owned(), value["data"].clone()));
                    }
                }
                frame => all.push((format!("#{}", frame.into_data()[3]), serde_json::Value::Null)),
            }
        }
    }
}

#[test]
fn a_job_is_told_to_its_sender_in_order() {
    let mut desk = Desk::new();
    let (sender, other) = (desk.roster.connect(Some("a".to_owned())), desk.roster.connect(None));
    desk.tell(Some("a"), message(Milestone::Started));
    desk.tell(Some("a"), message(Milestone::Cached(Vec::new())));
    desk.tell(Some("a"), JobEvent::Started(identity("1")));
    desk.tell(Some("a"), tick("1", 1.0, false));
    desk.tell(Some("a"), JobEvent::Executed(identity("1"), None));
    desk.tell(Some("a"), JobEvent::Finished(identity("1")));
    desk.tell(Some("a"), message(Milestone::Succeeded));
    desk.dispatcher.obey(Command::Event(Instant::now(), Event::Queue { remaining: 0 }, None));
    desk.tell(Some("a"), JobEvent::Ended { last: None });
    let told = [
        "execution_start",
        "execution_cached",
        "progress_state",
        "executing",
        "progress_state",
        "progress",
        "executed",
        "progress_state",
        "execution_success",
        "status",
        "executing",
    ];
    assert_eq!(kinds(&sender), told);
    assert_eq!(kinds(&other), ["status"]);
}

#[test]
fn a_job_of_nobody_shows_its_progress_to_everybody() {
    let mut desk = Desk::new();
    let clients = [desk.roster.connect(None), desk.roster.connect(None)];
    desk.tell(None, message(Milestone::Started));
    desk.tell(None, JobEvent::Started(identity("1")));
    desk.tell(None, tick("1", 1.0, false));
    desk.tell(None, JobEvent::Text(identity("1"), "so far".to_owned()));
    desk.tell(None, message(interrupted()));
    desk.tell(None, JobEvent::Ended { last: None });
    for client in clients {
        let told = ["progress_state", "progress_state", "progress", "#3", "execution_interrupted"];
        assert_eq!(kinds(&client), told);
    }
}

#[test]
fn previews_come_as_each_client_knows_them() {
    let mut desk = Desk::new();
    let (old, new) = (desk.roster.connect(None), desk.roster.connect(None));
    new.set_takes_metadata(true);
    desk.tell(None, tick("1", 1.0, true));
    desk.tell(None, tick("1", 2.0, true));
    assert_eq!(kinds(&old), ["progress_state", "progress", "#1", "progress_state", "progress", "#1"]);
    assert_eq!(kinds(&new), ["progress_state", "#4", "progress", "progress_state", "#4", "progress"]);
}

#[test]
fn fast_ticks_are_put_together_and_the_last_one_arrives() {
    let mut desk = Desk::new();
    let client = desk.roster.connect(Some("a".to_owned()));
    desk.tell(Some("a"), JobEvent::Started(identity("1")));
    for step in 0..1000 {
        desk.tell(Some("a"), tick("1", f64::from(step) / 500.0, false));
    }
    desk.tell(Some("a"), JobEvent::Finished(identity("1")));
    let told = frames(&client);
    assert!(told.len() < 100, "{} frames", told.len());
    let last = told.iter().rev().find(|(kind, _)| kind == "progress").unwrap();
    assert_eq!(last.1["value"], 999.0 / 500.0);
    assert_eq!(told.last().unwrap().1["nodes"]["1"]["state"], "finished");
}

#[test]
fn what_is_held_back_is_told_when_nothing_follows() {
    let roster = Arc::new(Roster::default());
    let dispatcher = Dispatcher::new(Arc::clone(&roster), Arc::default(), Arc::default(), 512);
    let client = roster.connect(None);
    let (send, receive) = mpsc::channel();
    let thread = std::thread::spawn(move || dispatcher.run(&receive));
    for value in [1.0, 2.0] {
        let event = Event::Job {
            prompt_id: "p".into(),
            client_id: None,
            place: None,
            event: tick("1", value, false),
        };
        send.send(Command::Event(Instant::now(), event, None)).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(kinds(&client), ["progress_state", "progress", "progress_state", "progress"]);
    drop(send);
    thread.join().unwrap();
}

#[test]
fn a_large_job_is_told_in_little() {
    let mut desk = Desk::new();
    let client = desk.roster.connect(Some("a".to_owned()));
    for node in 0..2000 {
        desk.tell(Some("a"), JobEvent::Started(identity(&node.to_string())));
        desk.tell(Some("a"), JobEvent::Finished(identity(&node.to_string())));
    }
    desk.tell(Some("a"), message(Milestone::Succeeded));
    let told = frames(&client);
    assert_eq!(told.iter().filter(|(kind, _)| kind == "executing").count(), 2000, "none of these is lost");
    let last = told.iter().rfind(|(kind, _)| kind == "progress_state").unwrap();
    assert_eq!(last.1["nodes"].as_object().unwrap().len(), 2000);
    let bytes: usize = told.iter().map(|(_, data)| data.to_string().len()).sum();
    assert!(bytes < 40 << 20, "{bytes} bytes");
    assert_eq!(told.last().unwrap().0, "execution_success");
}
