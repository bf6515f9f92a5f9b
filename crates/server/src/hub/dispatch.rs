//! The hub's thread: events become frames, in order, for those they are for.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use engine::{Event, JobEvent, Message as JobMessage, Milestone, Progress};
use graph::{Identity, Map, Picture};
use serde_json::json;

use super::frame::{self, EncodedPicture};
use super::progress::{JobProgress, Tick};
use super::roster::Roster;
use super::{Audience, Command};
use crate::stats::Stats;
use crate::wire::message;

/// What the thread knows.
pub(super) struct Dispatcher {
    roster: Arc<Roster>,
    stats: Arc<Stats>,
    waiting_preview_bytes: Arc<AtomicUsize>,
    preview_side: usize,
    /// The jobs that run, by their ids.
    jobs: HashMap<Arc<str>, Told>,
}

/// A job that runs, as far as it was told.
struct Told {
    progress: JobProgress,
    /// Who sent it.
    sender: Option<Arc<str>>,
}

impl Dispatcher {
    pub(super) fn new(
        roster: Arc<Roster>,
        stats: Arc<Stats>,
        waiting_preview_bytes: Arc<AtomicUsize>,
        preview_side: usize,
    ) -> Dispatcher {
        Dispatcher { roster, stats, waiting_preview_bytes, preview_side, jobs: HashMap::new() }
    }

    /// Works until nobody can send any more.
    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        loop {
            let deadline = self.jobs.values().filter_map(|job| job.progress.deadline()).min();
            let next = match deadline {
                None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => commands.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match next {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => self.tell_all_due(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Tells what was held back of every job whose time has come.
    fn tell_all_due(&mut self) {
        let now = Instant::now();
        let due = self.jobs.iter().filter(|(_, job)| job.progress.deadline().is_some_and(|at| at <= now));
        let due: Vec<Arc<str>> = due.map(|(id, _)| Arc::clone(id)).collect();
        due.iter().for_each(|id| self.tell_held(id, false));
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Send(to, kind, data) => self.roster.deliver(&to, frame::raw(&kind, &data)),
            Command::Event(_, Event::Queue { remaining }, _) => self.roster.tell_remaining(remaining),
            Command::Event(_, Event::Notice(line), _) => {
                self.roster
                    .deliver(&Audience::Everyone, frame::text("notification", &json!({ "value": line })));
            }
            Command::Event(at, Event::Job { prompt_id, client_id, place, event }, totals) => {
                self.stats.record(at, (&prompt_id, place.as_ref()), &event, totals.as_ref());
                self.enter(&prompt_id, client_id, &event);
                self.tell(&prompt_id, event);
            }
        }
    }

    /// Sees to it that the job that is told of is among those that run.
    fn enter(&mut self, prompt_id: &Arc<str>, sender: Option<Arc<str>>, event: &JobEvent) {
        let is_start = matches!(event, JobEvent::Message(message) if message.milestone == Milestone::Started);
        if is_start || !self.jobs.contains_key(prompt_id) {
            self.tell_held(prompt_id, true);
            self.roster.set_running(prompt_id, None);
            let progress = JobProgress::new(Arc::clone(prompt_id));
            self.jobs.insert(Arc::clone(prompt_id), Told { progress, sender });
        }
    }

    fn tell(&mut self, prompt_id: &str, event: JobEvent) {
        match event {
            JobEvent::Message(message) => self.message(&message, prompt_id),
            JobEvent::Started(identity) => self.started(&identity, prompt_id),
            JobEvent::Progress(progress) => self.progress(progress, prompt_id),
            JobEvent::Text(identity, line) => {
                self.roster.deliver(&self.watchers(prompt_id), frame::node_text(&identity.node, &line));
            }
            JobEvent::Executed(identity, ui) => self.executed(&identity, ui.as_ref(), prompt_id),
            JobEvent::Finished(identity) => self.finished(&identity, prompt_id),
            JobEvent::Blocked(why) => {
                self.tell_held(prompt_id, false);
                self.to_sender(prompt_id, || frame::text(message::ERROR, &message::failure(prompt_id, &why)));
            }
            JobEvent::Ended { .. } => {
                self.tell_held(prompt_id, true);
                self.roster.set_running(prompt_id, None);
                self.to_sender(prompt_id, || frame::ended(prompt_id));
                self.jobs.remove(prompt_id);
            }
        }
    }

    /// One of the `execution_*` events. Everything before it must be told.
    fn message(&mut self, told: &JobMessage, prompt_id: &str) {
        self.tell_held(prompt_id, true);
        let to = match (self.sender(prompt_id), &told.milestone) {
            (None, Milestone::Interrupted { .. }) => Some(Audience::Everyone),
            (sender, _) => sender,
        };
        if let Some(to) = to {
            let data = message::data(prompt_id, told);
            self.roster.deliver(&to, frame::text(message::name(&told.milestone), &data));
        }
    }

    fn started(&mut self, identity: &Identity, prompt_id: &str) {
        self.tell_held(prompt_id, false);
        if let Some(job) = self.jobs.get_mut(prompt_id) {
            job.progress.start(identity);
        }
        self.tell_snapshot_if_due(prompt_id);
        if let Some(Audience::Client(sender)) = self.sender(prompt_id) {
            self.roster.set_running(prompt_id, Some((sender, identity.display.to_string())));
        }
        self.to_sender(prompt_id, || frame::executing(identity, prompt_id));
    }

    fn executed(&mut self, identity: &Identity, ui: Option<&Map>, prompt_id: &str) {
        self.tell_held(prompt_id, false);
        self.to_sender(prompt_id, || frame::executed(identity, ui, prompt_id));
    }

    fn finished(&mut self, identity: &Identity, prompt_id: &str) {
        self.tell_held(prompt_id, false);
        if let Some(job) = self.jobs.get_mut(prompt_id) {
            job.progress.finish(identity);
        }
        self.tell_snapshot_if_due(prompt_id);
    }

    fn progress(&mut self, progress: Progress, prompt_id: &str) {
        let Progress { identity, value, max, picture, is_plain } = progress;
        if let Some(picture) = &picture {
            self.waiting_preview_bytes.fetch_sub(picture.rgb.len(), Ordering::Relaxed);
        }
        let now = Instant::now();
        let tick = Tick { identity, value, max, is_plain };
        let Some(job) = self.jobs.get_mut(prompt_id) else { return };
        if !job.progress.holds(&tick.identity.node)
            && let Some(other) = job.progress.take_held(now)
        {
            self.tell_tick(&other, None, prompt_id);
        }
        let Some(job) = self.jobs.get_mut(prompt_id) else { return };
        // A tick with a picture is always told: the picture is what takes time, not the tick.
        if job.progress.tick(tick.clone(), now) || picture.is_some() {
            job.progress.take_held(now);
            self.tell_tick(&tick, picture.as_ref(), prompt_id);
        }
    }

    /// The snapshot, then the preview and the older event in the order that each client knows.
    fn tell_tick(&mut self, tick: &Tick, picture: Option<&Picture>, prompt_id: &str) {
        self.tell_snapshot_if_due(prompt_id);
        let to = self.watchers(prompt_id);
        let clients = self.roster.reached(&to);
        if clients.is_empty() {
            return;
        }
        let encoded = picture.and_then(|picture| EncodedPicture::new(picture, self.preview_side));
        let plain = encoded.as_ref().map(EncodedPicture::plain);
        let told = encoded.as_ref().map(|encoded| encoded.with_metadata(&tick.identity, prompt_id));
        let line =
            (!tick.is_plain).then(|| frame::progress(tick.value, tick.max, prompt_id, &tick.identity.node));
        for client in clients {
            let (before, after) = match client.takes_metadata() {
                true => (told.clone(), None),
                false => (None, plain.clone()),
            };
            for frame in before.into_iter().chain(line.clone()).chain(after) {
                client.push(frame);
            }
        }
    }

    /// Tells what was held back of a job; with `all`, the nodes too, however many they are.
    fn tell_held(&mut self, prompt_id: &str, all: bool) {
        let Some(job) = self.jobs.get_mut(prompt_id) else { return };
        if let Some(tick) = job.progress.take_held(Instant::now()) {
            self.tell_tick(&tick, None, prompt_id);
        }
        if all && self.jobs.get(prompt_id).is_some_and(|job| job.progress.is_changed()) {
            self.tell_snapshot(prompt_id);
        } else {
            self.tell_snapshot_if_due(prompt_id);
        }
    }

    fn tell_snapshot_if_due(&mut self, prompt_id: &str) {
        let is_due = self.jobs.get(prompt_id).is_some_and(|job| job.progress.is_due(Instant::now()));
        if is_due {
            self.tell_snapshot(prompt_id);
        }
    }

    fn tell_snapshot(&mut self, prompt_id: &str) {
        let to = self.watchers(prompt_id);
        let is_reached = self.roster.is_reached(&to);
        let Some(job) = self.jobs.get_mut(prompt_id) else { return };
        if is_reached {
            let data = job.progress.snapshot(Instant::now());
            self.roster.deliver(&to, frame::raw("progress_state", &data));
        } else {
            job.progress.skip();
        }
    }

    /// Who sent a job.
    fn sender(&self, prompt_id: &str) -> Option<Audience> {
        let sender = self.jobs.get(prompt_id)?.sender.as_ref();
        sender.map(|id| Audience::Client(id.to_string()))
    }

    /// Who sees a job's progress: its sender, or everybody if nobody in particular sent it.
    fn watchers(&self, prompt_id: &str) -> Audience {
        self.sender(prompt_id).unwrap_or(Audience::Everyone)
    }

    fn to_sender(&self, prompt_id: &str, frame: impl FnOnce() -> axum::extract::ws::Message) {
        if let Some(sender) = self.sender(prompt_id) {
            self.roster.deliver(&sender, frame());
        }
    }
}

#[cfg(test)]
mod tests;
