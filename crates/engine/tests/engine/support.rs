//! An engine whose events are written down, and prompts for it.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use device::{Device, NullBackend, Registry};
use engine::{
    AcceptedJob, Engine, EngineConfig, Event, EventSink, HistoryEntry, Job, JobEvent, JobStore, Milestone,
    Refused, SqliteStore, Submission,
};
use graph::{Literal, Map, Prompt, PromptNode, map};
use meta::DeviceId;
use runtime::Runtime;

use super::classes::{Props, catalogue};

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// An engine, its nodes' levers, and what it told.
pub(crate) struct Bench {
    pub(crate) engine: Engine,
    pub(crate) props: Arc<Props>,
    pub(crate) told: Arc<Told>,
    pub(crate) runtime: Arc<Runtime>,
}

impl Bench {
    /// An engine in memory.
    pub(crate) fn new() -> Bench {
        Bench::with(EngineConfig::default())
    }

    /// An engine with a database.
    pub(crate) fn at(database: &Path) -> Bench {
        Bench::with(config(database))
    }

    pub(crate) fn with(config: EngineConfig) -> Bench {
        let store = SqliteStore::open(config.database.as_deref(), config.history_limit).unwrap();
        Bench::on(Arc::new(store), config)
    }

    /// An engine on a store that others may have, too.
    pub(crate) fn on(store: Arc<dyn JobStore>, config: EngineConfig) -> Bench {
        let (props, told) = (Arc::<Props>::default(), Arc::<Told>::default());
        let (sink, runtime) = (Arc::clone(&told) as Arc<dyn EventSink>, Arc::new(runtime()));
        let catalogue = Arc::new(catalogue(&props));
        let engine = Engine::with_store(config, store, catalogue, Arc::clone(&runtime), sink).unwrap();
        Bench { engine, props, told, runtime }
    }

    /// Queues a prompt.
    pub(crate) fn submit(&self, submission: Submission) -> AcceptedJob {
        self.engine.submit(submission).unwrap()
    }

    /// Queues a prompt and waits for its end.
    pub(crate) fn run(&self, submission: Submission) -> HistoryEntry {
        let id = self.submit(submission).prompt_id;
        self.told.until_ended(&id);
        self.engine.history_entry(&id).unwrap().unwrap()
    }

    /// Starts a job that waits for a permit, so that what comes after it stays in the queue.
    pub(crate) fn hold(&self) -> String {
        let id = self.submit(wait("hold")).prompt_id;
        self.props.until_waiting(1);
        id
    }

    pub(crate) fn pending(&self) -> Vec<String> {
        ids(&self.engine.queue().pending)
    }
}

pub(crate) fn config(database: &Path) -> EngineConfig {
    EngineConfig { database: Some(database.to_owned()), ..EngineConfig::default() }
}

pub(crate) fn ids(jobs: &[Arc<Job>]) -> Vec<String> {
    jobs.iter().map(|job| job.prompt_id.clone()).collect()
}

/// A runtime on devices that only count.
pub(crate) fn runtime() -> Runtime {
    let device = |ordinal| Device::new(Arc::new(NullBackend::new(ordinal, 1 << 30)), 1 << 30);
    let devices = Registry::new([device(0), device(1)]);
    Runtime::new(runtime::Folders::default(), devices, DeviceId::null(0), Default::default())
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What an engine told, in order.
#[derive(Default)]
pub(crate) struct Told {
    events: Mutex<Vec<Event>>,
    more: Condvar,
}

impl EventSink for Told {
    fn event(&self, event: Event) {
        self.events.lock().unwrap().push(event);
        self.more.notify_all();
    }
}

impl Told {
    /// Waits for an event.
    pub(crate) fn until(&self, what: &str, is_it: impl Fn(&Event) -> bool) {
        let begun = Instant::now();
        let mut events = self.events.lock().unwrap();
        while !events.iter().any(&is_it) {
            assert!(begun.elapsed() < PATIENCE, "waited too long for {what}: {events:?}");
            events = self.more.wait_timeout(events, Duration::from_millis(100)).unwrap().0;
        }
    }

    pub(crate) fn until_ended(&self, id: &str) {
        self.until("the end of a job", |event| match event {
            Event::Job { prompt_id, event: JobEvent::Ended { .. }, .. } => &**prompt_id == id,
            _ => false,
        });
    }

    /// What was told so far, a short line each.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.events.lock().unwrap().iter().map(line).collect()
    }

    /// The workers that told of a job, each once.
    pub(crate) fn workers_of(&self, id: &str) -> Vec<String> {
        let events = self.events.lock().unwrap();
        let worker = |event: &Event| match event {
            Event::Job { prompt_id, place: Some(place), .. } if &**prompt_id == id => {
                Some(place.worker.to_string())
            }
            _ => None,
        };
        let mut workers: Vec<String> = events.iter().filter_map(worker).collect();
        workers.dedup();
        workers
    }

    pub(crate) fn notices(&self) -> Vec<String> {
        let notice = |event: &Event| match event {
            Event::Notice(text) => Some(text.clone()),
            _ => None,
        };
        self.events.lock().unwrap().iter().filter_map(notice).collect()
    }
}

fn line(event: &Event) -> String {
    match event {
        Event::Queue { remaining } => format!("queue {remaining}"),
        Event::Notice(text) => format!("notice {text}"),
        Event::Job { event, .. } => match event {
            JobEvent::Message(message) => match &message.milestone {
                Milestone::Started => "began".to_owned(),
                Milestone::Cached(nodes) => format!("cached {}", nodes.len()),
                Milestone::Succeeded => "succeeded".to_owned(),
                Milestone::Failed(_) => "failed".to_owned(),
                Milestone::Interrupted { .. } => "interrupted".to_owned(),
            },
            JobEvent::Started(identity) => format!("started {}", identity.node),
            JobEvent::Progress(progress) => format!("progress {} {}", progress.identity.node, progress.value),
            JobEvent::Text(identity, text) => format!("text {} {text}", identity.node),
            JobEvent::Executed(identity, ui) => format!("executed {} {}", identity.node, ui.is_some()),
            JobEvent::Finished(identity) => format!("finished {}", identity.node),
            JobEvent::Blocked(_) => "blocked".to_owned(),
            JobEvent::Ended { last } => format!("ended {}", last.as_deref().unwrap_or("-")),
        },
    }
}

/// A prompt of nodes: id, class and inputs.
pub(crate) fn prompt(nodes: &[(&str, &str, Map)]) -> Submission {
    let nodes =
        nodes.iter().map(|(id, class, inputs)| ((*id).into(), PromptNode::new(class, inputs.clone())));
    Submission { prompt: Some(Prompt { nodes: nodes.collect() }), ..Submission::default() }
}

/// A prompt of one node that shows a text.
pub(crate) fn show(text: &str) -> Submission {
    prompt(&[("1", "Show", map([("text", text.into())]))])
}

/// A prompt of one node that waits for a permit.
pub(crate) fn wait(name: &str) -> Submission {
    prompt(&[("1", "Wait", map([("name", name.into())]))])
}

/// A prompt of one node that fails.
pub(crate) fn fail(how: &str) -> Submission {
    prompt(&[("1", "Fail", map([("how", how.into())]))])
}

/// A link to an output of a node.
pub(crate) fn link(node: &str) -> Literal {
    Literal::List(vec![node.into(), Literal::Int(0)])
}

/// A UUID that ends in a number, so that ids have an order.
pub(crate) fn uuid(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// The kind of error with which a prompt is refused.
pub(crate) fn refusal(refused: Refused) -> String {
    match refused {
        Refused::Invalid(rejected) => rejected.error.kind,
        Refused::Storage(error) => panic!("{error}"),
    }
}
