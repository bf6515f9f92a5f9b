//! Nodes that spend their time waiting run on threads of their own, and report when they are done.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::class::{Call, Failure, NodeClass, Outcome};
use crate::event::Identity;
use crate::executor::calls::Gathered;
use crate::guard::guarded;
use crate::wanted::Wanted;

/// More calls than these wait for one to end.
const MOST_THREADS: usize = 256;
/// How soon a cancelled job ends while all its nodes wait.
const CANCEL_POLL: Duration = Duration::from_millis(5);

/// The threads of a run.
pub(super) struct Crew {
    nodes: HashMap<usize, Away>,
    waiting: VecDeque<(usize, Arc<dyn NodeClass>, Call)>,
    threads: usize,
    sender: Sender<Report>,
    receiver: Receiver<Report>,
}

/// A node whose calls are on threads.
struct Away {
    identity: Arc<Identity>,
    gathered: Gathered,
    outcomes: Vec<Option<Outcome>>,
    missing: usize,
}

/// A call to make on a thread, or one whose outcome is known.
pub(super) enum CrewCall {
    Make(Call),
    Done(Outcome),
}

struct Report {
    node: usize,
    call: usize,
    result: Result<Outcome, Failure>,
}

/// A node that came back.
pub(super) struct Returned {
    pub(super) node: usize,
    pub(super) gathered: Gathered,
    pub(super) result: Result<Vec<Outcome>, Failure>,
}

impl Default for Crew {
    fn default() -> Crew {
        let (sender, receiver) = channel();
        Crew { nodes: HashMap::new(), waiting: VecDeque::new(), threads: 0, sender, receiver }
    }
}

impl Crew {
    /// Sends a node's calls out. If there is none to make, the node is back at once.
    pub(super) fn send(
        &mut self,
        node: usize,
        class: &Arc<dyn NodeClass>,
        gathered: Gathered,
        calls: Vec<CrewCall>,
    ) -> Result<Option<Returned>, Failure> {
        let mut outcomes: Vec<Option<Outcome>> = Vec::with_capacity(calls.len());
        let mut identity = None;
        for call in calls {
            match call {
                CrewCall::Make(call) => {
                    identity = Some(Arc::clone(&call.identity));
                    outcomes.push(None);
                    self.waiting.push_back((node, Arc::clone(class), call));
                }
                CrewCall::Done(outcome) => outcomes.push(Some(outcome)),
            }
        }
        let Some(identity) = identity else {
            let outcomes = outcomes.into_iter().flatten().collect();
            return Ok(Some(Returned { node, gathered, result: Ok(outcomes) }));
        };
        let missing = outcomes.iter().filter(|outcome| outcome.is_none()).count();
        self.nodes.insert(node, Away { identity, gathered, outcomes, missing });
        self.fill().map(|()| None)
    }

    fn fill(&mut self) -> Result<(), Failure> {
        while self.threads < MOST_THREADS
            && let Some((node, class, call)) = self.waiting.pop_front()
        {
            let sender = self.sender.clone();
            let work = move || {
                let job = Wanted::by(&call.job);
                let result = call.check().and_then(|()| job.during(|| guarded(|| class.run(&call))));
                // Nobody listens any more if the run has ended.
                let _ = sender.send(Report { node, call: call.index, result });
            };
            let thread = std::thread::Builder::new().name("node".to_owned()).spawn(work);
            thread.map_err(|error| {
                Failure::error("RuntimeError", format!("no thread for the node: {error}"))
            })?;
            self.threads += 1;
        }
        Ok(())
    }

    /// One of the nodes that are away.
    pub(super) fn someone(&self) -> Option<&Arc<Identity>> {
        self.nodes.iter().min_by_key(|(place, _)| **place).map(|(_, away)| &away.identity)
    }

    /// A node that came back, if one did.
    pub(super) fn returned(&mut self) -> Option<Returned> {
        while let Ok(report) = self.receiver.try_recv() {
            if let Some(returned) = self.take(report) {
                return Some(returned);
            }
        }
        None
    }

    /// Waits until a node comes back; `None` if the job is to end.
    pub(super) fn wait(&mut self, cancel: &AtomicBool) -> Option<Returned> {
        while !cancel.load(Ordering::Relaxed) {
            match self.receiver.recv_timeout(CANCEL_POLL) {
                Ok(report) => {
                    if let Some(returned) = self.take(report) {
                        return Some(returned);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        None
    }

    fn take(&mut self, report: Report) -> Option<Returned> {
        self.threads -= 1;
        let started = self.fill();
        let node = report.node;
        let away = self.nodes.get_mut(&node)?;
        let failure = match report.result.and_then(|outcome| started.map(|()| outcome)) {
            Ok(outcome) => {
                away.outcomes[report.call] = Some(outcome);
                away.missing -= 1;
                if away.missing > 0 {
                    return None;
                }
                None
            }
            Err(failure) => Some(failure),
        };
        let away = self.nodes.remove(&node)?;
        let outcomes = away.outcomes.into_iter().flatten().collect();
        let result = failure.map_or(Ok(outcomes), Err);
        Some(Returned { node, gathered: away.gathered, result })
    }
}
