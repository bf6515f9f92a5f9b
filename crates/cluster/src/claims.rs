//! Taking a job: which one, from which subject, and what becomes of those whose workers were lost.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use async_nats::jetstream::{AckKind, Message};
use engine::{Abandoned, Choice, Claim, Dispatch, Job, JobFailure, JobStatus, Milestone, Record, WorkerName};
use futures_util::StreamExt;

use crate::connection::Choosing;
use crate::error::Error;
use crate::scene::{View, Viewer};
use crate::state::{Known, Mirror, Phase, State};
use crate::store::{Found, LOOK_INTERVAL, NatsStore, PAUSE, acknowledge};

/// Workers that may be lost with a job before it counts as failed.
const MOST_LOSSES: u32 = 3;
/// How often a claim is tried that somebody else's change was faster than.
const MOST_TRIES: usize = 3;
/// Says in a message which pool it was sent to.
pub(crate) const POOL_HEADER: &str = "Gantry-Pool";
/// How long the server may take to say whether there is a job.
const FETCH_PATIENCE: Duration = Duration::from_secs(5);

/// What jobs have in common that load the same: a part of their subject.
pub(crate) fn key_of(models: &[String]) -> String {
    if models.is_empty() {
        return "any".to_owned();
    }
    blake3::hash(models.join("\n").as_bytes()).to_hex()[..16].to_owned()
}

/// A job that a worker would take.
struct Pick {
    id: String,
    models: Vec<String>,
    dispatch: Option<Dispatch>,
}

/// Jobs that are out of the question, one by one or by what they load.
#[derive(Default)]
struct Out {
    ids: HashSet<String>,
    models: HashSet<Vec<String>>,
}

impl Out {
    fn has(&self, known: &Known) -> bool {
        self.ids.contains(&known.job.prompt_id) || self.models.contains(&known.state.models)
    }
}

impl NatsStore {
    /// Claims a job that the worker should take and may take.
    pub(crate) fn next_claim(
        &self,
        worker: &WorkerName,
        choose: &mut dyn FnMut(&Job) -> Choice,
    ) -> Result<Option<Claim>, Error> {
        let mut out = Out::default();
        for key in self.keys_of_lost() {
            let Some(message) = self.fetch(&key)? else { continue };
            if let Some(claim) = self.claim_message(message, worker, None, choose)? {
                return Ok(claim);
            }
        }
        while let Some(pick) = self.pick(&mut out, choose) {
            let Some(message) = self.fetch(&key_of(&pick.models))? else {
                // Others have all of its kind already, or their messages are still on their way.
                out.models.insert(pick.models);
                continue;
            };
            if let Some(claim) = self.claim_message(message, worker, Some(pick), choose)? {
                return Ok(claim);
            }
        }
        Ok(None)
    }

    /// Makes a message a claim: the claim, or nothing for now, or none if the job is over.
    fn claim_message(
        &self,
        message: Message,
        worker: &WorkerName,
        pick: Option<Pick>,
        choose: &mut dyn FnMut(&Job) -> Choice,
    ) -> Result<Option<Option<Claim>>, Error> {
        let text = String::from_utf8_lossy(&message.payload).into_owned();
        let Ok(job) = engine::read_job(&text) else {
            tracing::error!("a message of the queue is no job and is dropped");
            self.threads.block_on(acknowledge(&message, AckKind::Term));
            return Ok(None);
        };
        // Jobs that load the same come in the order in which they were sent, so it may be another one.
        let is_picked = pick.as_ref().is_some_and(|pick| pick.id == job.prompt_id);
        if !is_picked && choose(&job) != Choice::Take {
            self.threads.block_on(acknowledge(&message, AckKind::Nak(Some(PAUSE))));
            return Ok(Some(None));
        }
        let dispatch = pick.and_then(|pick| pick.dispatch).map(|dispatch| {
            let mirror = self.shared.mirror();
            let known = mirror.jobs.get(&job.prompt_id);
            Dispatch {
                waited_s: known.map_or(0.0, |known| known.came.elapsed().as_secs_f64()),
                first_come_s: known.and_then(|known| known.state.first_come_s),
                ..dispatch
            }
        });
        match self.threads.block_on(self.take(&message, (job, text), worker, dispatch)) {
            Ok(taken) => Ok(taken.map(|claim| {
                self.held().insert(claim.sequence, message);
                Some(claim)
            })),
            Err(error) => {
                // Else nobody gets it before the lease runs out.
                self.threads.block_on(acknowledge(&message, AckKind::Nak(None)));
                Err(error)
            }
        }
    }

    /// The next job that the worker should take and may take, but for those that are out of the question.
    fn pick(&self, out: &mut Out, choose: &mut dyn FnMut(&Job) -> Choice) -> Option<Pick> {
        let own = self.own().clone();
        let viewer = own.as_deref().and_then(|name| self.viewer(name, out));
        let (workers, mirror) = (self.shared.workers(), self.shared.mirror());
        let view = viewer.map(|(viewer, grace)| View::of(&mirror, &workers, &viewer, grace));
        let mut view = view.filter(|view| view.own.is_some());
        loop {
            let (id, dispatch) = match &mut view {
                None => (first(&mirror, out)?, None),
                Some(view) => {
                    view.drop_jobs(|id| mirror.jobs.get(id).is_none_or(|known| out.has(known)));
                    let (id, dispatch) = view.choice()?;
                    (id, Some(dispatch))
                }
            };
            let known = mirror.jobs.get(&id)?;
            match choose(&known.job) {
                Choice::Take => {
                    let models = known.state.models.clone();
                    let dispatch = dispatch.map(|dispatch| Dispatch { models, ..dispatch });
                    return Some(Pick { models: known.state.models.clone(), id, dispatch });
                }
                Choice::Leave => drop(out.ids.insert(id)),
                Choice::Stop => return None,
            }
        }
    }

    /// What this worker holds, where that counts for the choice, and how long others are waited for.
    fn viewer<'a>(&self, name: &'a str, out: &Out) -> Option<(Viewer<'a>, Duration)> {
        let Choosing::Affinity(grace) = self.choosing else { return None };
        if !needs_models(&self.shared.mirror(), out) {
            return None;
        }
        let ask = self.holdings.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some((Viewer { name, holdings: ask() }, grace))
    }

    /// The keys of jobs that run for so long that their workers may be lost; none between two looks.
    fn keys_of_lost(&self) -> Vec<String> {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.elapsed() < LOOK_INTERVAL {
            return Vec::new();
        }
        *looked = Instant::now();
        drop(looked);
        let mirror = self.shared.mirror();
        let old = mirror.claimed().filter(|known| known.seen.elapsed() >= self.lease);
        old.map(|known| key_of(&known.state.models)).collect::<HashSet<_>>().into_iter().collect()
    }

    /// The next message of jobs that load the same, if there is one.
    fn fetch(&self, key: &str) -> Result<Option<Message>, Error> {
        let fetched = self.threads.block_on(self.next_message(key));
        if fetched.is_err() {
            // It may be the consumer that is gone.
            self.connection.forget_consumer(key);
        }
        fetched
    }

    async fn next_message(&self, key: &str) -> Result<Option<Message>, Error> {
        let failed = |why: String| Error::Request { what: "deliver a job", why };
        let consumer = self.connection.consumer(key).await?;
        let batch = consumer.fetch().max_messages(1).messages().await;
        let mut batch = batch.map_err(|error| failed(error.to_string()))?;
        // A server that goes away after it was asked never says that there is nothing.
        let next = tokio::time::timeout(FETCH_PATIENCE, batch.next()).await;
        let next = next.map_err(|_| failed(format!("no answer in {} s", FETCH_PATIENCE.as_secs())))?;
        next.transpose().map_err(|error| failed(error.to_string()))
    }

    /// Makes a delivered message a claim; none if its job is over, or was given up.
    async fn take(
        &self,
        message: &Message,
        (job, text): (Job, String),
        worker: &WorkerName,
        dispatch: Option<Dispatch>,
    ) -> Result<Option<Claim>, Error> {
        let id = job.prompt_id.clone();
        let sequence = sequence_of(message);
        let claimed = |mut state: State| {
            state.phase = Phase::Claimed;
            state.attempt += 1;
            state.sequence = Some(sequence);
            state.worker = Some(worker.0.to_string());
            state.dispatch.clone_from(&dispatch);
            state
        };
        let mut attempt = None;
        // Most often the copy is right; where it is old, the server refuses the change.
        let is_waiting = |(state, _): &(State, u64)| state.phase == Phase::Waiting;
        let seen = self.seen(&id).filter(is_waiting).filter(|_| self.foreign_pool(message).is_none());
        if let Some((state, revision)) = seen {
            let state = claimed(state);
            attempt = self.change(&id, &state, revision).await.is_ok().then_some(state.attempt);
        }
        let mut tries = 0;
        let attempt = loop {
            if let Some(attempt) = attempt {
                break attempt;
            }
            let found = self.found(&id).await?;
            let Some((state, revision)) = self.takeable(&id, found, text.clone(), message).await? else {
                return Ok(None);
            };
            let state = claimed(state);
            tries += 1;
            // The front may keep the state only now of a job whose message is here already.
            match self.change(&id, &state, revision).await {
                Err(error) if tries == MOST_TRIES => return Err(error),
                kept => attempt = kept.is_ok().then_some(state.attempt),
            }
        };
        let job = Job { was_requeued: attempt > 1, ..job };
        Ok(Some(Claim { sequence, attempt, worker: worker.clone(), job: Arc::new(job) }))
    }

    /// The pool that a message was sent to, if it is another one.
    fn foreign_pool(&self, message: &Message) -> Option<String> {
        let sent_to = message.headers.as_ref()?.get(POOL_HEADER)?.as_str();
        (sent_to != self.connection.pool).then(|| sent_to.to_owned())
    }

    /// The state from which a job may be claimed whose message was delivered; none if it is over or given up.
    async fn takeable(
        &self,
        id: &str,
        (state, revision): Found,
        text: String,
        message: &Message,
    ) -> Result<Option<(State, u64)>, Error> {
        let mut state = match state {
            None if revision == 0 => State::waiting(text),
            Some(state) if state.phase == Phase::Waiting => state,
            Some(state) if state.phase == Phase::Claimed && state.sequence == Some(sequence_of(message)) => {
                state
            }
            // It was taken out of the queue, or ended, and only the acknowledgement was lost; or it was sent twice.
            _ => {
                acknowledge(message, AckKind::Ack).await;
                return Ok(None);
            }
        };
        if state.phase == Phase::Claimed {
            state.losses += 1;
            let lost = state.worker.as_deref().unwrap_or("unknown");
            tracing::warn!("worker {lost} has not renewed its claim of job {id} in time");
        }
        let foreign =
            self.foreign_pool(message).map(|theirs| GivenUp::foreign(&theirs, &self.connection.pool));
        let lost = (state.losses >= MOST_LOSSES)
            .then(|| GivenUp::lost(state.losses, state.worker.as_deref().unwrap_or("unknown")));
        if let Some(why) = foreign.or(lost) {
            tracing::error!("job {id} is given up: {}", why.reason);
            self.give_up(id, state, revision, why).await?;
            acknowledge(message, AckKind::Ack).await;
            return Ok(None);
        }
        Ok(Some((state, revision)))
    }

    /// Records a job as failed that cannot run, and keeps the reason. The reason first: a job that ended so has one.
    async fn give_up(&self, id: &str, mut state: State, revision: u64, why: GivenUp) -> Result<(), Error> {
        let GivenUp { kind, reason } = why;
        let record = failed_record(kind, reason.clone());
        let kept = self.connection.states.put(format!("dead.{id}"), reason.into()).await;
        kept.map_err(|error| Error::request("keep a dead letter", error))?;
        state.phase = Phase::Finished;
        state.worker = None; // the last worker, if it comes back, must not take this end for its own
        state.record = Some(engine::record_text(id, &record));
        self.change(id, &state, revision).await?;
        if let Ok(job) = engine::read_job(&state.job) {
            self.abandon(Abandoned { job: Arc::new(job), record });
        }
        self.shared.wake();
        Ok(())
    }
}

/// Why a job cannot run.
struct GivenUp {
    kind: &'static str,
    reason: String,
}

impl GivenUp {
    fn lost(losses: u32, last: &str) -> GivenUp {
        let reason = format!(
            "{losses} workers were lost while this job was running, the last of them {last}, so it is not run again; \
             their logs may say why. Queue it again to try once more"
        );
        GivenUp { kind: "WorkerLost", reason }
    }

    fn foreign(theirs: &str, ours: &str) -> GivenUp {
        let reason = format!(
            "this job was sent to pool {theirs} and came to pool {ours}, whose workers run their own jobs only; look \
             at what the queue's server passes from one to the other"
        );
        GivenUp { kind: "ForeignPool", reason }
    }
}

impl View {
    /// Drops the jobs that are out of the question.
    fn drop_jobs(&mut self, is_out: impl Fn(&str) -> bool) {
        let keep: Vec<bool> = self.ids.iter().map(|id| !is_out(id)).collect();
        let mut kept = keep.iter();
        self.ids.retain(|_| kept.next().is_some_and(|keep| *keep));
        let mut kept = keep.iter();
        self.scene.jobs.retain(|_| kept.next().is_some_and(|keep| *keep));
    }

    /// The job that the worker takes, and why.
    fn choice(&self) -> Option<(String, Dispatch)> {
        let choice = self.scene.choose(self.own?)?;
        let dispatch = Dispatch {
            reason: choice.reason.name().to_owned(),
            models: Vec::new(),
            waited_s: 0.0,
            first_come_s: None,
            load_s: choice.load_s,
            elsewhere_s: choice.elsewhere_s,
            passed_over: choice.job,
        };
        Some((self.ids[choice.job].clone(), dispatch))
    }
}

/// Whether the first job that is in question loads something: one that does not is taken as it comes.
fn needs_models(mirror: &Mirror, out: &Out) -> bool {
    let mut next = mirror.waiting().filter(|known| !out.has(known));
    next.next().is_some_and(|first| !first.state.models.is_empty())
}

/// The first job that is in question.
fn first(mirror: &Mirror, out: &Out) -> Option<String> {
    mirror.waiting().find(|known| !out.has(known)).map(|known| known.job.prompt_id.clone())
}

fn sequence_of(message: &Message) -> i64 {
    message.info().map_or(0, |info| info.stream_sequence.cast_signed())
}

/// The record of a job that was given up.
fn failed_record(kind: &str, message: String) -> Record {
    let failure = JobFailure {
        node: "".into(),
        class: String::new(),
        kind: kind.to_owned(),
        message,
        executed: Vec::new(),
        trace: Vec::new(),
        inputs: graph::Map::new(),
        outputs: Vec::new(),
    };
    let failed = engine::Message { at_ms: engine::now_ms(), milestone: Milestone::Failed(Box::new(failure)) };
    Record {
        status: JobStatus::Failed,
        outputs: Default::default(),
        identities: Default::default(),
        messages: vec![failed],
        worker: None,
    }
}
