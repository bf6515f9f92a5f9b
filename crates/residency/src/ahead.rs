//! Files that are read before their models are opened: while one model computes, the disk brings what the next ones will be
//! copied from into the system's page cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use checkpoint::{Advice, EntryBytes};
use device::Cancel;
use meta::DeviceId;

use crate::claim::{self, Models};
use crate::model::LoadedModel;
use crate::{ModelId, Residency};

/// What the system reads at most when it is told once.
const TOLD_BYTES: usize = 512 << 10;
/// What is told in a row, before whoever else waits for the disk has a turn.
const TURN_BYTES: u64 = 16 << 20;
/// The turn of others.
const PAUSE: Duration = Duration::from_millis(4);
/// The share of the memory that the host has left which may be filled with what nobody has opened yet.
const SHARE: f64 = 0.8;

/// Files that are being read ahead. It goes on until this is dropped.
pub struct ReadingAhead {
    ended: Cancel,
    models: Vec<ModelId>,
    /// Of how many of the models the system has been told everything.
    done: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl ReadingAhead {
    /// The models of whose files nothing is left to ask for: the system has them, or reads them now.
    pub fn done(&self) -> &[ModelId] {
        &self.models[..self.done.load(Ordering::Acquire).min(self.models.len())]
    }
}

impl Drop for ReadingAhead {
    fn drop(&mut self) {
        self.ended.cancel();
        if let Some(thread) = self.thread.take() {
            // It only tells the system what to read, and has nothing to say.
            let _ = thread.join();
        }
    }
}

impl Residency {
    /// Starts to read ahead what registered models that have no copies will be copied from, one after the other and in
    /// the order of use, as far as the host has room for it. None if there is nothing to read.
    pub fn read_ahead(&self, ids: &[ModelId]) -> Option<ReadingAhead> {
        let mut room = self.room_for_files()?;
        let (mut models, mut files) = (Vec::new(), Vec::new());
        for id in ids {
            let Some(bytes) = self.unread(*id) else { continue };
            let wanted: u64 = bytes.iter().map(|bytes| bytes.len() as u64).sum();
            let Some(rest) = room.checked_sub(wanted) else { break };
            room = rest;
            models.push(*id);
            files.push(bytes);
        }
        if models.is_empty() {
            return None;
        }
        let (ended, done) = (Cancel::default(), Arc::new(AtomicUsize::new(0)));
        let (own_ended, own_done) = (ended.clone(), Arc::clone(&done));
        let others = self.shared_models();
        let work = move || {
            // What a job waits for goes first.
            while is_moving_in(&others) {
                if own_ended.is_cancelled() {
                    return;
                }
                std::thread::sleep(PAUSE);
            }
            for bytes in &files {
                if !tell(bytes, &own_ended) {
                    return;
                }
                own_done.fetch_add(1, Ordering::Release);
            }
        };
        let thread = Builder::new().name("reading-ahead".to_owned()).spawn(work).ok();
        Some(ReadingAhead { ended, models, done, thread })
    }

    /// How much of files the host has memory for, beside those that models with copies use.
    fn room_for_files(&self) -> Option<u64> {
        let free = self.devices().get(DeviceId::CPU).ok()?.memory().ok()?.free;
        // The system counts pages of files as free, whoever uses them.
        let on_host = |(device, bytes): &(DeviceId, u64)| if *device == DeviceId::CPU { *bytes } else { 0 };
        let used: u64 = self.models().iter().flat_map(|model| &model.bytes).map(on_host).sum();
        Some((free.saturating_sub(used) as f64 * SHARE) as u64)
    }

    /// The bytes of a model that has no copies and will have some: what a plan reads from the disk in every step goes past
    /// the page cache.
    fn unread(&self, id: ModelId) -> Option<Vec<EntryBytes>> {
        let model = self.model(id).ok()?;
        if !model.copies().is_empty() || model.main().plan().reading.is_some() {
            return None;
        }
        Some(model.manifest().weights().iter().map(|weight| weight.bytes.clone()).collect())
    }
}

/// Whether copies of a model are still on their way to where they stay.
fn is_moving_in(models: &Models) -> bool {
    let models: Vec<Arc<LoadedModel>> = claim::lock(models).values().cloned().collect();
    models.iter().flat_map(|model| model.copies()).any(|staged| staged.is_moving_in())
}

/// Tells the system to read all of these; whether it was not ended before.
fn tell(all: &[EntryBytes], ended: &Cancel) -> bool {
    let mut told = 0;
    for bytes in all {
        for start in (0..bytes.len()).step_by(TOLD_BYTES) {
            if ended.is_cancelled() {
                return false;
            }
            let part = bytes.slice(start..bytes.len().min(start + TOLD_BYTES));
            told += part.len() as u64;
            // Advice that is not taken costs nothing.
            let _ = part.advise(Advice::WillNeed);
            if told >= TURN_BYTES {
                told = 0;
                std::thread::sleep(PAUSE);
            }
        }
    }
    true
}
