//! The hub's thread: events become frames, in order, for those they are for.

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
    /// The job that runs and who sent it.
    job: Option<(JobProgress, Option<Arc<str>>)>,
}

impl Dispatcher {
    pub(super) fn new(
        roster: Arc<Roster>,
        stats: Arc<Stats>,
        waiting_preview_bytes: Arc<AtomicUsize>,
        preview_side: usize,
    ) -> Dispatcher {
        Dispatcher { roster, stats, waiting_preview_bytes, preview_side, job: None }
    }

    /// Works until nobody can send any more.
    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        loop {
            let deadline = self.job.as_ref().and_then(|(progress, _)| progress.deadline());
            let next = match deadline {
                None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => commands.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match next {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => self.tell_held(false),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Send(to, kind, data) => self.roster.deliver(&to, frame::raw(&kind, &data)),
            Command::Event(_, Event::Queue { remaining }, _) => self.roster.tell_remaining(remaining),
            Command::Event(_, Event::Notice(line), _) => {
                self.roster
                    .deliver(&Audience::Everyone, frame::text("notification", &json!({ "value": line })));
            }
            Command::Event(at, Event::Job { prompt_id, client_id, event }, totals) => {
                self.stats.record(at, &prompt_id, &event, totals.as_ref());
                self.enter(&prompt_id, client_id, &event);
                self.tell(&prompt_id, event);
            }
        }
    }

    /// Sees to it that the job that is told of is the current one.
    fn enter(&mut self, prompt_id: &Arc<str>, client_id: Option<Arc<str>>, event: &JobEvent) {
        let is_start = matches!(event, JobEvent::Message(message) if message.milestone == Milestone::Started);
        let is_other = self.job.as_ref().is_none_or(|(progress, _)| progress.prompt_id() != prompt_id);
        if is_start || is_other {
            self.tell_held(true);
            self.roster.set_running(None);
            self.job = Some((JobProgress::new(Arc::clone(prompt_id)), client_id));
        }
    }

    fn tell(&mut self, prompt_id: &str, event: JobEvent) {
        match event {
            JobEvent::Message(message) => self.message(&message, prompt_id),
            JobEvent::Started(identity) => self.started(&identity, prompt_id),
            JobEvent::Progress(progress) => self.progress(progress, prompt_id),
            JobEvent::Text(identity, line) => {
                self.roster.deliver(&self.watchers(), frame::node_text(&identity.node, &line));
            }
            JobEvent::Executed(identity, ui) => self.executed(&identity, ui.as_ref(), prompt_id),
            JobEvent::Finished(identity) => self.finished(&identity),
            JobEvent::Blocked(why) => {
                self.tell_held(false);
                self.to_sender(|| frame::text(message::ERROR, &message::failure(prompt_id, &why)));
            }
            JobEvent::Ended { .. } => {
                self.tell_held(true);
                self.roster.set_running(None);
                self.to_sender(|| frame::ended(prompt_id));
                self.job = None;
            }
        }
    }

    /// One of the `execution_*` events. Everything before it must be told.
    fn message(&mut self, told: &JobMessage, prompt_id: &str) {
        self.tell_held(true);
        let to = match (self.sender(), &told.milestone) {
            (None, Milestone::Interrupted { .. }) => Some(Audience::Everyone),
            (sender, _) => sender,
        };
        if let Some(to) = to {
            let data = message::data(prompt_id, told);
            self.roster.deliver(&to, frame::text(message::name(&told.milestone), &data));
        }
    }

    fn started(&mut self, identity: &Identity, prompt_id: &str) {
        self.tell_held(false);
        if let Some((progress, _)) = &mut self.job {
            progress.start(identity);
        }
        self.tell_snapshot_if_due();
        if let Some(Audience::Client(sender)) = self.sender() {
            self.roster.set_running(Some((sender, identity.display.to_string())));
        }
        self.to_sender(|| frame::executing(identity, prompt_id));
    }

    fn executed(&mut self, identity: &Identity, ui: Option<&Map>, prompt_id: &str) {
        self.tell_held(false);
        self.to_sender(|| frame::executed(identity, ui, prompt_id));
    }

    fn finished(&mut self, identity: &Identity) {
        self.tell_held(false);
        if let Some((progress, _)) = &mut self.job {
            progress.finish(identity);
        }
        self.tell_snapshot_if_due();
    }

    fn progress(&mut self, progress: Progress, prompt_id: &str) {
        let Progress { identity, value, max, picture, is_plain } = progress;
        if let Some(picture) = &picture {
            self.waiting_preview_bytes.fetch_sub(picture.rgb.len(), Ordering::Relaxed);
        }
        let now = Instant::now();
        let tick = Tick { identity, value, max, is_plain };
        let Some((job, _)) = &mut self.job else { return };
        if !job.holds(&tick.identity.node)
            && let Some(other) = job.take_held(now)
        {
            self.tell_tick(&other, None, prompt_id);
        }
        let Some((job, _)) = &mut self.job else { return };
        // A tick with a picture is always told: the picture is what takes time, not the tick.
        if job.tick(tick.clone(), now) || picture.is_some() {
            job.take_held(now);
            self.tell_tick(&tick, picture.as_ref(), prompt_id);
        }
    }

    /// The snapshot, then the preview and the older event in the order that each client knows.
    fn tell_tick(&mut self, tick: &Tick, picture: Option<&Picture>, prompt_id: &str) {
        self.tell_snapshot_if_due();
        let to = self.watchers();
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

    /// Tells what was held back; with `all`, the nodes too, however many they are.
    fn tell_held(&mut self, all: bool) {
        let Some((progress, _)) = &mut self.job else { return };
        let prompt_id = Arc::clone(progress.prompt_id());
        if let Some(tick) = progress.take_held(Instant::now()) {
            self.tell_tick(&tick, None, &prompt_id);
        }
        if all && self.job.as_ref().is_some_and(|(progress, _)| progress.is_changed()) {
            self.tell_snapshot();
        } else {
            self.tell_snapshot_if_due();
        }
    }

    fn tell_snapshot_if_due(&mut self) {
        let is_due = self.job.as_ref().is_some_and(|(progress, _)| progress.is_due(Instant::now()));
        if is_due {
            self.tell_snapshot();
        }
    }

    fn tell_snapshot(&mut self) {
        let to = self.watchers();
        let is_reached = self.roster.is_reached(&to);
        let Some((progress, _)) = &mut self.job else { return };
        if is_reached {
            let data = progress.snapshot(Instant::now());
            self.roster.deliver(&to, frame::raw("progress_state", &data));
        } else {
            progress.skip();
        }
    }

    /// Who sent the job.
    fn sender(&self) -> Option<Audience> {
        let (_, sender) = self.job.as_ref()?;
        sender.as_ref().map(|id| Audience::Client(id.to_string()))
    }

    /// Who sees a job's progress: its sender, or everybody if nobody in particular sent it.
    fn watchers(&self) -> Audience {
        self.sender().unwrap_or(Audience::Everyone)
    }

    fn to_sender(&self, frame: impl FnOnce() -> axum::extract::ws::Message) {
        if let Some(sender) = self.sender() {
            self.roster.deliver(&sender, frame());
        }
    }
}

#[cfg(test)]
mod tests;
