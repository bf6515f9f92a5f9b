//! From a handle to an open session: planned, loaded, patched; and loaded again when it has gone.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use device::OutOfMemory;
use meta::{DType, DeviceId};
use patch::PatchSet;
use placement::Amounts;
use residency::{Cancel, LoadOptions, ModelId, Residency, Retention, Session, StreamStats};
use tensor::Lane;

use super::changed_files::trusted;
use super::handles::{Lora, patch_set};
use super::planning::{Demand, Planned};
use super::stats::ModelStats;
use super::{Source, Studio, Work};
use crate::Result;

/// One network of a file: what is loaded of it once supersedes what was loaded before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    file: PathBuf,
    prefix: String,
    modified: Option<SystemTime>,
    cast: Option<DType>,
}

/// What a network was loaded from, and how: two that are equal are one loaded model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LoadKey {
    identity: Identity,
    compute: DeviceId,
    allocation: String,
}

/// A model in the registry, as it was loaded.
#[derive(Debug)]
pub(super) struct Loaded {
    id: ModelId,
    planned: Planned,
    family: String,
    /// The patches in force: files by signature, with their strengths.
    patches: Vec<(u64, u64)>,
    /// What its patches keep on the compute device.
    patch_bytes: u64,
}

/// One network in one way of loading: whoever plans, stages or patches it holds its lock, and nobody else's.
type Slot = Arc<Mutex<Option<Loaded>>>;

/// What is loaded, by what it was loaded from.
pub(super) type LoadedModels = HashMap<LoadKey, Slot>;

/// A model that is open for use.
pub(crate) struct Opened {
    pub(crate) session: Session,
    /// The work that it was planned for: what was wanted, or the same in tiles.
    pub(crate) work: Work,
    id: ModelId,
    planned: Planned,
    before: StreamStats,
}

/// What is opened: a network with its patches, for some work.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) source: &'a Source,
    /// The encoders of the same value, which say what LoRA files mean by their numbers.
    pub(crate) beside: &'a [Arc<Source>],
    pub(crate) loras: &'a [Lora],
    pub(crate) work: &'a Work,
}

impl Loaded {
    pub(super) fn id(&self) -> ModelId {
        self.id
    }
}

impl Studio {
    /// Registers a network as its loader says, before anything uses it, so that an allocation that cannot be made is
    /// told at the loader. Nothing is copied yet. What was registered of the same file before leaves as soon as
    /// nothing refers to it.
    pub(crate) fn register(&self, source: &Source) -> Result<()> {
        let slot = self.slot(&LoadKey::of(source));
        let mut loaded = lock(&slot);
        self.forget_damaged(&mut loaded, source);
        let known = loaded.as_ref().map(|known| known.id).filter(|id| self.residency.contains(*id));
        let id = match known {
            Some(id) => {
                // A loader that says nothing of staying leaves it as it is.
                if source.placing.retention != Retention::Default {
                    self.residency.set_retention(id, source.placing.retention)?;
                }
                if source.placing.eject_others {
                    self.residency.evict_from(source.placing.compute, Some(id));
                }
                source.hold(self.residency.claim(id)?);
                id
            }
            None => {
                let planned = self.plan(source, Demand { work: None, patch_bytes: 0, more_bytes: 0 })?;
                loaded.insert(self.load(source, planned, 0)?).id
            }
        };
        drop(loaded);
        self.supersede_others(source, id)
    }

    /// Opens a network and works with it. If a device runs out of memory meanwhile, it is tried once more with
    /// more room: other models leave the device, and what is placed automatically keeps less there.
    pub(crate) fn with_session<T>(
        &self,
        wanted: Wanted<'_>,
        cancel: &Cancel,
        mut work: impl FnMut(&Opened) -> Result<T>,
    ) -> Result<T> {
        let first = self.open(wanted, cancel).and_then(|opened| self.work_with(opened, &mut work));
        match first {
            Err(error) => {
                let Some(short) = error.out_of_memory() else { return Err(error) };
                tracing::warn!("{}: {short}; trying again with more room", wanted.source.name());
                self.make_room(wanted, short)?;
                self.open(wanted, cancel).and_then(|opened| self.work_with(opened, &mut work))
            }
            done => done,
        }
    }

    fn work_with<T>(&self, opened: Opened, work: &mut impl FnMut(&Opened) -> Result<T>) -> Result<T> {
        let done = trusted(&opened, work)?;
        let Opened { session, id, planned, .. } = opened;
        drop(session);
        self.learn_from(id, &planned);
        Ok(done)
    }

    /// Unloads a network that a node is done with, unless it was loaded to stay. Its next use loads it again.
    pub(crate) fn let_go(&self, source: &Source) -> Result<()> {
        if source.placing.retention == Retention::Keep {
            return Ok(());
        }
        let slot = self.slot(&LoadKey::of(source));
        let known = lock(&slot).take().filter(|known| self.residency.contains(known.id));
        known.map_or(Ok(()), |known| Ok(self.residency.unload(known.id)?))
    }

    /// Notes what one step took.
    pub(crate) fn note_evaluation(&self, opened: &Opened, started: Instant) {
        let seconds = started.elapsed().as_secs_f64();
        let now = opened.session.stats();
        let streamed = StreamStats {
            copies: now.copies.saturating_sub(opened.before.copies),
            bytes: now.bytes.saturating_sub(opened.before.bytes),
            stalls: now.stalls.saturating_sub(opened.before.stalls),
            stalled: now.stalled.saturating_sub(opened.before.stalled),
        };
        self.stats.evaluated(opened.id, seconds, streamed);
    }

    fn open(&self, wanted: Wanted<'_>, cancel: &Cancel) -> Result<Opened> {
        let source = wanted.source;
        let slot = self.slot(&LoadKey::of(source));
        let mut loaded = lock(&slot);
        self.forget_damaged(&mut loaded, source);
        let bits = |lora: &Lora| (lora.file.signature(), lora.strength.to_bits());
        let patches: Vec<(u64, u64)> = wanted.loras.iter().map(bits).collect();
        let known = loaded.take().filter(|known| self.residency.contains(known.id));
        let changed = known.as_ref().is_none_or(|known| known.patches != patches);
        let set = if changed { Some(patch_set(source, wanted.beside, wanted.loras)?) } else { None };
        let patch_bytes = match (&set, &known) {
            (Some(set), _) => self.patch_bytes(source, set)?,
            (None, known) => known.as_ref().map_or(0, |known| known.patch_bytes),
        };
        let known = self.planned_for(wanted, known, patch_bytes)?;
        // From here on an error leaves the model registered, to be used or freed later.
        let known = loaded.insert(known);
        known.patch_bytes = patch_bytes;
        if known.patches != patches || set.is_some() {
            self.residency.set_patches_unless(known.id, set.unwrap_or_default(), cancel)?;
            known.patches = patches;
        }
        let session = self.residency.open(known.id, cancel)?;
        self.stats.begin(ModelStats::new(known.id, source.name(), known.family.clone(), &known.planned.plan));
        Ok(Opened {
            before: session.stats(),
            session,
            work: known.planned.work.clone(),
            id: known.id,
            planned: known.planned.clone(),
        })
    }

    /// The model loaded under a plan that holds for the work. One whose copies are made stays as it is while it leaves
    /// room enough.
    fn planned_for(&self, wanted: Wanted<'_>, known: Option<Loaded>, patch_bytes: u64) -> Result<Loaded> {
        let source = wanted.source;
        let mut fresh = self.plan(source, Demand { work: Some(wanted.work), patch_bytes, more_bytes: 0 })?;
        let Some(mut known) = known else { return self.load(source, fresh, patch_bytes) };
        let in_force = &known.planned.plan;
        let same = in_force.blocks == fresh.plan.blocks && in_force.ring == fresh.plan.ring;
        let roomy = in_force.devices.iter().all(|usage| {
            let needed = fresh.plan.device(usage.device).map_or(0, |fresh| fresh.working_bytes);
            usage.working_bytes >= needed
        });
        // A model that has no copies yet is registered anew, so that what is shown is what will be.
        if (same || roomy) && self.residency.is_staged(known.id) {
            let mut plan = if same { fresh.plan.clone() } else { in_force.clone() };
            plan.prediction = fresh.predict(&plan)?;
            fresh.plan = plan;
            known.planned = fresh;
            return Ok(known);
        }
        let retention = self.residency.retention(known.id)?;
        self.residency.unload(known.id)?;
        let loaded = self.load(source, fresh, patch_bytes)?;
        self.residency.set_retention(loaded.id, retention)?;
        Ok(loaded)
    }

    /// Registers a network under a plan, in place of what was registered of the same file and is no longer used.
    fn load(&self, source: &Source, planned: Planned, patch_bytes: u64) -> Result<Loaded> {
        for note in &planned.plan.notes {
            tracing::info!("{}: {note}", source.name());
        }
        let manifest = source.manifest()?;
        let placing = &source.placing;
        let options = LoadOptions {
            retention: placing.retention,
            dtype: Some(planned.dtype),
            eject_others: placing.eject_others,
        };
        let family = manifest.family().to_owned();
        let id = self.residency.load(manifest, planned.plan.clone(), options)?;
        source.hold(self.residency.claim(id)?);
        Ok(Loaded { id, planned, family, patches: Vec::new(), patch_bytes })
    }

    /// What else is registered of the same file and role leaves as soon as nothing refers to it. Where the later
    /// loader said nothing of staying, what the earlier said passes on.
    fn supersede_others(&self, source: &Source, id: ModelId) -> Result<()> {
        for earlier in self.others(source) {
            self.residency.supersede(earlier, id)?;
        }
        let residency = &self.residency;
        let gone = |slot: &Slot| {
            // A slot that somebody holds is in use.
            let Ok(loaded) = slot.try_lock() else { return false };
            loaded.as_ref().is_none_or(|known| !residency.contains(known.id))
        };
        self.loaded().retain(|_, slot| Arc::strong_count(slot) > 1 || !gone(slot));
        Ok(())
    }

    /// The other registrations of a network: with another allocation, device or precision, or of a file that was
    /// replaced.
    fn others(&self, source: &Source) -> Vec<ModelId> {
        let own = LoadKey::of(source);
        let loaded = self.loaded();
        let same = loaded.iter().filter(|(key, _)| **key != own && key.is_of(&own.identity));
        // A slot that somebody holds is in use, and is looked at when its loader runs next.
        same.filter_map(|(_, slot)| slot.try_lock().ok()?.as_ref().map(|known| known.id)).collect()
    }

    /// After a device ran out of memory: others leave it, and a network that is placed automatically is loaded
    /// with more room to work in.
    fn make_room(&self, wanted: Wanted<'_>, short: &OutOfMemory) -> Result<()> {
        let slot = self.slot(&LoadKey::of(wanted.source));
        let mut loaded = lock(&slot);
        let known = loaded.take().filter(|known| self.residency.contains(known.id));
        self.residency.evict_from(short.device, known.as_ref().map(|known| known.id));
        self.devices.trim()?;
        let Some(known) = known else { return Ok(()) };
        if !is_automatic(wanted.source) {
            *loaded = Some(known);
            return Ok(());
        }
        let retention = self.residency.retention(known.id)?;
        self.residency.unload(known.id)?;
        let more_bytes = short.wanted.saturating_sub(short.available).max(known.planned.working_bytes() / 4);
        let demand = Demand { work: Some(wanted.work), patch_bytes: known.patch_bytes, more_bytes };
        let planned = self.plan(wanted.source, demand)?;
        let new = self.load(wanted.source, planned, known.patch_bytes)?;
        self.residency.set_retention(new.id, retention)?;
        *loaded = Some(new);
        Ok(())
    }

    /// Bytes that patches keep on the compute device.
    fn patch_bytes(&self, source: &Source, set: &PatchSet) -> Result<u64> {
        if set.is_empty() {
            return Ok(0);
        }
        let lane = Lane::new(self.devices.get(source.placing.compute)?, self.activations_of(source)?)?;
        Ok(Residency::patch_bytes(&source.manifest()?, set, &lane)?)
    }

    fn slot(&self, key: &LoadKey) -> Slot {
        Arc::clone(self.loaded().entry(key.clone()).or_default())
    }

    fn loaded(&self) -> MutexGuard<'_, LoadedModels> {
        lock(&self.loaded)
    }
}

impl Identity {
    pub(super) fn of(source: &Source) -> Identity {
        Identity {
            file: source.file.path().to_owned(),
            prefix: source.prefix.clone(),
            modified: source.modified,
            cast: source.cast,
        }
    }
}

impl LoadKey {
    fn of(source: &Source) -> LoadKey {
        LoadKey {
            identity: Identity::of(source),
            compute: source.placing.compute,
            allocation: source.placing.allocation.as_str().to_owned(),
        }
    }

    /// Whether it is of the same network of the same file, however it was loaded and whatever the file held then.
    fn is_of(&self, identity: &Identity) -> bool {
        (&self.identity.file, &self.identity.prefix) == (&identity.file, &identity.prefix)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_automatic(source: &Source) -> bool {
    source.placing.allocation.allocation().amounts == Amounts::Automatic
}
