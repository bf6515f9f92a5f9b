//! The free flow: which models leave when the user presses a button, and that the memory is really back.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use crate::model::LoadedModel;
use crate::{ModelId, Residency, Result, Retention};

/// What a free request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeRequest {
    /// Let models go.
    pub unload_models: bool,
    /// Let models go and forget cached node outputs.
    pub free_memory: bool,
    /// Let kept models go too.
    pub force: bool,
}

/// Requests that wait for the worker. They add up; the worker takes them between two jobs.
#[derive(Debug, Default)]
pub struct FreeFlags(Mutex<FreeRequest>);

impl FreeFlags {
    /// Adds a request to what waits.
    pub fn request(&self, request: FreeRequest) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.unload_models |= request.unload_models;
        waiting.free_memory |= request.free_memory;
        waiting.force |= request.force;
    }

    /// Takes what waits, if anything does.
    pub fn take(&self) -> Option<FreeRequest> {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        (waiting != FreeRequest::default()).then_some(waiting)
    }
}

/// A model and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelNote {
    /// Its id.
    pub id: ModelId,
    /// Its name.
    pub name: String,
    /// Why it stayed or went.
    pub retention: Retention,
}

/// What a free request did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeReport {
    /// Models that left.
    pub unloaded: Vec<ModelNote>,
    /// Models that stayed.
    pub kept: Vec<ModelNote>,
    /// Kept models that should be there and are not.
    pub missing: Vec<ModelNote>,
}

impl FreeReport {
    /// One line for the user: what left, what stayed and why.
    pub fn summary(&self) -> String {
        let names =
            |notes: &[ModelNote]| notes.iter().map(|note| note.name.as_str()).collect::<Vec<_>>().join(", ");
        let mut text = match self.unloaded.as_slice() {
            [] => "nothing to unload".to_owned(),
            gone => format!("{} unloaded: {}", gone.len(), names(gone)),
        };
        for (retention, why) in
            [(Retention::Keep, "keep_loaded"), (Retention::Default, "another was marked to go first")]
        {
            let stayed: Vec<ModelNote> =
                self.kept.iter().filter(|note| note.retention == retention).cloned().collect();
            if !stayed.is_empty() {
                text += &format!("; {} kept: {why} ({})", stayed.len(), names(&stayed));
            }
        }
        text
    }
}

impl Residency {
    /// Does what a request asks, in the order in which users rely on it: models, then the executor's
    /// cached outputs (`reset_executor`), then the caches of every device and the host's memory. A
    /// snapshot is taken before and after each.
    ///
    /// Which models go: if any is marked to go first, exactly those; else every one without a mark.
    /// Kept models go only when forced. One that another took the place of goes in any case.
    pub fn free(&self, request: FreeRequest, reset_executor: &mut dyn FnMut()) -> Result<FreeReport> {
        self.snapshots().take("free: before", self.devices());
        let mut report = FreeReport::default();
        let kept_before = self.notes(|retention| retention == Retention::Keep);
        if request.unload_models || request.free_memory || request.force {
            report.unloaded = self.leaving(request.force);
            for note in &report.unloaded {
                self.unload(note.id)?;
            }
        }
        self.snapshots().take("free: models unloaded", self.devices());
        if request.free_memory {
            reset_executor();
        }
        self.snapshots().take("free: executor reset", self.devices());
        let trimmed = self.devices().trim();
        self.snapshots().take("free: caches emptied", self.devices());
        report.kept = self.notes(|_| true);
        if !request.force {
            let here = |note: &&ModelNote| !report.kept.iter().any(|kept| kept.id == note.id);
            report.missing = kept_before.iter().filter(here).cloned().collect();
            self.missing_kept.fetch_add(report.missing.len() as u64, Ordering::Relaxed);
        }
        trimmed?;
        Ok(report)
    }

    /// The models that a request lets go.
    fn leaving(&self, force: bool) -> Vec<ModelNote> {
        if force {
            return self.notes_of(|_| true);
        }
        let marked = self.notes(|retention| retention == Retention::Eject);
        let mut leaving = self.superseded();
        leaving.extend(match marked.is_empty() {
            true => self.notes(|retention| retention == Retention::Default),
            false => marked,
        });
        leaving
    }

    /// Models of this retention whose place nobody took.
    fn notes(&self, wanted: impl Fn(Retention) -> bool) -> Vec<ModelNote> {
        self.notes_of(|model| !model.usage().is_superseded() && wanted(model.retention()))
    }

    fn superseded(&self) -> Vec<ModelNote> {
        self.notes_of(|model| model.usage().is_superseded())
    }

    fn notes_of(&self, wanted: impl Fn(&LoadedModel) -> bool) -> Vec<ModelNote> {
        let note = |model: &LoadedModel| ModelNote {
            id: model.id(),
            name: model.manifest().name().to_owned(),
            retention: model.retention(),
        };
        self.lock().values().filter(|model| wanted(model)).map(|model| note(model)).collect()
    }
}
