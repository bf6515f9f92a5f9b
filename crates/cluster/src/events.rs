//! What jobs tell, from the worker that runs them to every front, and what fronts tell all workers. Nothing of it is kept.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use engine::{
    Event, EventSink, JobEvent, JobFailure, JobStatus, JobStore, Message, Milestone, Progress, Record,
};
use futures_util::StreamExt;
use graph::{Identity, Map, Picture};
use residency::FreeRequest;
use serde::{Deserialize, Serialize};

use crate::store::NatsStore;

/// Bytes of a picture in one message; servers take a megabyte unless they are told otherwise.
const PART: usize = 512 << 10;
/// Between two looks at the queue.
const TICK: Duration = Duration::from_millis(100);
/// How long a job's last events may come after its record. Then they are taken from the record.
const LATE: Duration = Duration::from_secs(2);
/// Ends that are remembered, so that none is told twice.
const REMEMBERED: usize = 20_000;

/// What a front asks of all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order<'a> {
    /// End this job, or all that run.
    Interrupt(Option<&'a str>),
    /// Free memory between jobs.
    Free(FreeRequest),
}

#[derive(Serialize, Deserialize)]
enum OrderText {
    Interrupt(Option<String>),
    Free { unload_models: bool, free_memory: bool, force: bool },
}

/// An event as it travels: this as a line of JSON, then bytes of a picture.
#[derive(Serialize, Deserialize)]
struct Told {
    worker: String,
    prompt_id: String,
    client_id: Option<String>,
    what: What,
}

#[derive(Serialize, Deserialize)]
enum What {
    Notice(String),
    /// A part of the picture of the next event.
    Part,
    /// A record that has this message alone.
    Message(String),
    Started(Node),
    Progress {
        node: Node,
        value: f64,
        max: f64,
        is_plain: bool,
        picture: Option<(usize, usize, bool)>,
    },
    Text(Node, String),
    Executed(Node, Option<Map>),
    Finished(Node),
    /// A record whose one message is this failure.
    Blocked(String),
    Ended(Option<String>),
}

#[derive(Serialize, Deserialize)]
struct Node {
    node: String,
    display: String,
    parent: Option<String>,
    real: String,
    class: String,
}

impl Node {
    fn of(identity: &Identity) -> Node {
        Node {
            node: identity.node.to_string(),
            display: identity.display.to_string(),
            parent: identity.parent.as_deref().map(str::to_owned),
            real: identity.real.to_string(),
            class: identity.class.clone(),
        }
    }

    fn identity(self) -> Arc<Identity> {
        Arc::new(Identity {
            node: self.node.into(),
            display: self.display.into(),
            parent: self.parent.map(Into::into),
            real: self.real.into(),
            class: self.class,
        })
    }
}

impl NatsStore {
    /// Tells fronts what happened at a worker, in order.
    pub fn tell(&self, worker: &str, event: &Event) {
        let (prompt_id, client_id, event) = match event {
            Event::Queue { .. } => return, // every front sees the queue itself
            Event::Notice(line) => {
                let what = What::Notice(format!("{worker}: {line}"));
                return self.publish(
                    &Told { worker: worker.to_owned(), prompt_id: String::new(), client_id: None, what },
                    &[],
                );
            }
            Event::Job { prompt_id, client_id, event, .. } => (prompt_id, client_id, event),
        };
        let told = |what: What| Told {
            worker: worker.to_owned(),
            prompt_id: prompt_id.to_string(),
            client_id: client_id.as_deref().map(str::to_owned),
            what,
        };
        if let JobEvent::Progress(Progress { picture: Some(picture), .. }) = event {
            for part in picture.rgb.chunks(PART) {
                self.publish(&told(What::Part), part);
            }
        }
        self.publish(&told(written(prompt_id, event)), &[]);
    }

    fn publish(&self, told: &Told, bytes: &[u8]) {
        // Texts and numbers can always be written.
        let mut payload = serde_json::to_vec(told).unwrap_or_default();
        payload.push(b'\n');
        payload.extend_from_slice(bytes);
        self.send_out("events", payload);
    }

    fn send_out(&self, to: &str, payload: Vec<u8>) {
        let subject = format!("gantry.{}.{to}", self.connection.pool);
        let sent = self.threads.block_on(self.connection.client.publish(subject, payload.into()));
        if let Err(error) = sent {
            tracing::warn!("an event was not told: {error}");
        }
    }

    /// Tells a sink what jobs of all workers tell, in the order of each job, and how long the queue is.
    ///
    /// # Errors
    /// The server does not answer, or the system has no more threads.
    pub fn relay(self: &Arc<NatsStore>, sink: Arc<dyn EventSink>) -> Result<(), crate::Error> {
        let payloads = self.subscribe("events")?;
        let store = Arc::downgrade(self);
        let relay = move || {
            let mut relay = Relay { sink, ..Relay::new() };
            loop {
                match payloads.recv_timeout(TICK) {
                    Ok(payload) => relay.take(&payload),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                let Some(store) = store.upgrade() else { return };
                relay.look(&store);
            }
        };
        let thread = std::thread::Builder::new().name("relay".to_owned()).spawn(relay);
        thread.map(drop).map_err(crate::Error::Threads)
    }

    /// Calls a function with what fronts ask of all workers.
    ///
    /// # Errors
    /// The server does not answer, or the system has no more threads.
    pub fn obey(&self, act: impl Fn(Order<'_>) + Send + 'static) -> Result<(), crate::Error> {
        let payloads = self.subscribe("orders")?;
        let obey = move || {
            for payload in payloads {
                match serde_json::from_slice(&payload) {
                    Ok(OrderText::Interrupt(id)) => act(Order::Interrupt(id.as_deref())),
                    Ok(OrderText::Free { unload_models, free_memory, force }) => {
                        act(Order::Free(FreeRequest { unload_models, free_memory, force }));
                    }
                    Err(error) => tracing::warn!("an order cannot be read: {error}"),
                }
            }
        };
        let thread = std::thread::Builder::new().name("orders".to_owned()).spawn(obey);
        thread.map(drop).map_err(crate::Error::Threads)
    }

    fn subscribe(&self, to: &str) -> Result<Receiver<Vec<u8>>, crate::Error> {
        let subject = format!("gantry.{}.{to}", self.connection.pool);
        let client = self.connection.client.clone();
        let subscribed = self.threads.block_on(async {
            let subscribed = client.subscribe(subject).await;
            // What is published from now on is heard.
            drop(client.flush().await);
            subscribed
        });
        let mut messages = subscribed.map_err(|error| crate::Error::request("tell its events", error))?;
        let (sender, receiver) = mpsc::channel();
        self.threads.spawn(async move {
            while let Some(message) = messages.next().await {
                if sender.send(message.payload.to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok(receiver)
    }
}

impl engine::RemoteWorkers for NatsStore {
    fn interrupt(&self, id: Option<&str>) -> bool {
        let is_meant = |job: &Arc<engine::Job>| id.is_none_or(|id| job.prompt_id == id);
        if !self.queue().running.iter().any(is_meant) {
            return false;
        }
        let order = OrderText::Interrupt(id.map(str::to_owned));
        self.send_out("orders", serde_json::to_vec(&order).unwrap_or_default());
        true
    }

    fn free(&self, request: FreeRequest) {
        let FreeRequest { unload_models, free_memory, force } = request;
        let order = OrderText::Free { unload_models, free_memory, force };
        self.send_out("orders", serde_json::to_vec(&order).unwrap_or_default());
    }
}

fn written(prompt_id: &str, event: &JobEvent) -> What {
    match event {
        JobEvent::Message(message) => What::Message(message_text(prompt_id, message.clone())),
        JobEvent::Started(identity) => What::Started(Node::of(identity)),
        JobEvent::Progress(progress) => What::Progress {
            node: Node::of(&progress.identity),
            value: progress.value,
            max: progress.max,
            is_plain: progress.is_plain,
            picture: progress.picture.as_ref().map(|it| (it.width, it.height, it.is_result)),
        },
        JobEvent::Text(identity, line) => What::Text(Node::of(identity), line.clone()),
        JobEvent::Executed(identity, ui) => What::Executed(Node::of(identity), ui.clone()),
        JobEvent::Finished(identity) => What::Finished(Node::of(identity)),
        JobEvent::Blocked(why) => {
            let milestone = Milestone::Failed(why.clone());
            What::Blocked(message_text(prompt_id, Message { at_ms: engine::now_ms(), milestone }))
        }
        JobEvent::Ended { last } => What::Ended(last.as_deref().map(str::to_owned)),
    }
}

/// A message in the one form in which the engine writes messages.
fn message_text(prompt_id: &str, message: Message) -> String {
    let (outputs, identities) = Default::default();
    let record =
        Record { status: JobStatus::Completed, outputs, identities, messages: vec![message], worker: None };
    engine::record_text(prompt_id, &record)
}

fn read_message(prompt_id: &str, text: &str) -> Option<Message> {
    engine::read_record(prompt_id, text).ok()?.messages.pop()
}

fn read_failure(prompt_id: &str, text: &str) -> Option<Box<JobFailure>> {
    match read_message(prompt_id, text)?.milestone {
        Milestone::Failed(why) => Some(why),
        _ => None,
    }
}

/// Tells a sink what workers tell.
struct Relay {
    sink: Arc<dyn EventSink>,
    /// Who runs each job: what another says of it comes too late.
    owners: HashMap<String, String>,
    /// Bytes of the picture of a worker's next event.
    pictures: HashMap<String, Vec<u8>>,
    /// Ends that were told, in their order.
    told: HashSet<String>,
    order: VecDeque<String>,
    /// Jobs with a record whose end was not told yet, and since when.
    late: VecDeque<(String, Instant)>,
    remaining: Option<usize>,
}

/// A sink that nobody listens to.
struct Nobody;

impl EventSink for Nobody {
    fn event(&self, _: Event) {}
}

impl Relay {
    fn new() -> Relay {
        Relay {
            sink: Arc::new(Nobody),
            owners: HashMap::new(),
            pictures: HashMap::new(),
            told: HashSet::new(),
            order: VecDeque::new(),
            late: VecDeque::new(),
            remaining: None,
        }
    }

    fn take(&mut self, payload: &[u8]) {
        let end = payload.iter().position(|byte| *byte == b'\n').unwrap_or(payload.len());
        let Ok(told) = serde_json::from_slice::<Told>(&payload[..end]) else {
            tracing::warn!("an event cannot be read");
            return;
        };
        let bytes = payload.get(end + 1..).unwrap_or_default();
        if let What::Part = told.what {
            return self.pictures.entry(told.worker).or_default().extend_from_slice(bytes);
        }
        if let What::Notice(line) = told.what {
            return self.sink.event(Event::Notice(line));
        }
        let Told { worker, prompt_id, client_id, what } = told;
        let rgb = self.pictures.remove(&worker);
        let Some(event) = read(&prompt_id, what, rgb) else { return };
        let is_start =
            matches!(&event, JobEvent::Message(message) if message.milestone == Milestone::Started);
        if is_start {
            self.owners.insert(prompt_id.clone(), worker);
            self.told.remove(&prompt_id);
        } else if self.told.contains(&prompt_id)
            || self.owners.get(&prompt_id).is_some_and(|owner| *owner != worker)
        {
            return;
        }
        if let JobEvent::Ended { .. } = event {
            self.remember(&prompt_id);
        }
        let (prompt_id, client_id) = (prompt_id.into(), client_id.map(Into::into));
        self.sink.event(Event::Job { prompt_id, client_id, place: None, event });
    }

    fn remember(&mut self, id: &str) {
        self.owners.remove(id);
        self.told.insert(id.to_owned());
        self.order.push_back(id.to_owned());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.told.remove(&oldest);
        }
    }

    /// Tells how long the queue is, and the ends of jobs of which nothing was heard: events are not kept, records are.
    fn look(&mut self, store: &NatsStore) {
        let remaining = store.remaining();
        if self.remaining.replace(remaining) != Some(remaining) {
            self.sink.event(Event::Queue { remaining });
        }
        let now = Instant::now();
        self.late.extend(store.shared.take_ended().into_iter().map(|id| (id, now)));
        // They are in the order in which they ended.
        while self.late.front().is_some_and(|(_, since)| now.duration_since(*since) >= LATE)
            && let Some((id, _)) = self.late.pop_front()
        {
            if !self.told.contains(&id) {
                self.tell_end(store, &id);
            }
        }
    }

    fn tell_end(&mut self, store: &NatsStore, id: &str) {
        let Ok(Some((_, entry))) = store.finished(id) else { return };
        let client_id: Option<Arc<str>> = entry.job.client_id.as_deref().map(Into::into);
        let tell = |event: JobEvent| {
            let (prompt_id, client_id) = (id.into(), client_id.clone());
            self.sink.event(Event::Job { prompt_id, client_id, place: None, event });
        };
        entry
            .messages
            .iter()
            .filter(|message| message.milestone.is_end())
            .cloned()
            .for_each(|end| tell(JobEvent::Message(end)));
        tell(JobEvent::Ended { last: None });
        self.remember(id);
    }
}

fn read(prompt_id: &str, what: What, rgb: Option<Vec<u8>>) -> Option<JobEvent> {
    Some(match what {
        What::Notice(_) | What::Part => return None,
        What::Message(text) => JobEvent::Message(read_message(prompt_id, &text)?),
        What::Started(node) => JobEvent::Started(node.identity()),
        What::Progress { node, value, max, is_plain, picture } => {
            let picture = picture.zip(rgb).map(|((width, height, is_result), rgb)| Picture {
                width,
                height,
                rgb,
                is_result,
            });
            // A part may be lost when the connection is.
            let picture = picture.filter(|it| it.rgb.len() == 3 * it.width * it.height);
            JobEvent::Progress(Progress { identity: node.identity(), value, max, picture, is_plain })
        }
        What::Text(node, line) => JobEvent::Text(node.identity(), line),
        What::Executed(node, ui) => JobEvent::Executed(node.identity(), ui),
        What::Finished(node) => JobEvent::Finished(node.identity()),
        What::Blocked(text) => JobEvent::Blocked(read_failure(prompt_id, &text)?),
        What::Ended(last) => JobEvent::Ended { last: last.map(Into::into) },
    })
}
