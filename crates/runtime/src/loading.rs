//! From a handle to an open session: planned, loaded, patched; and loaded again when it has gone.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use device::OutOfMemory;
use meta::{DType, DeviceId};
use patch::PatchSet;
use placement::{Amounts, CodingPolicy, PlanError};
use residency::{
    Cancel, CodingTime, LoadOptions, ModelId, Products, Residency, Retention, Session, SideCars, StreamStats,
};
use tensor::Lane;

use crate::caller::Caller;
use crate::changed_files::trusted;
use crate::planning::{Demand, Planned};
use crate::stats::{ModelStats, PredictedSteps, StepKind};
use crate::turns::devices_of;
use crate::weight_patches::{WeightPatch, patch_set, signatures};
use crate::{Error, Result, Runtime, Source, Work};

/// The most names of tensors that a line of the log has.
const UNUSED_SHOWN: usize = 4;

/// One network of a file: what is loaded of it once supersedes what was loaded before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    file: PathBuf,
    prefix: String,
    modified: Option<SystemTime>,
    cast: Option<DType>,
    products: Products,
    /// The model that it has weights of, if it has.
    base: Option<Box<Identity>>,
}

/// What a network was loaded from, and how: two that are equal are one loaded model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LoadKey {
    identity: Identity,
    compute: DeviceId,
    allocation: String,
}

/// A model in the registry, as it was loaded.
#[derive(Debug)]
pub(crate) struct Loaded {
    id: ModelId,
    planned: Planned,
    family: String,
    /// The patches in force, by their signatures.
    patches: Vec<u64>,
    /// What its patches keep on the compute device.
    patch_bytes: u64,
    /// Whether it was planned beside others that were open.
    is_beside: bool,
    /// Whether its loader left the device to the worker.
    follows: bool,
}

/// What a network is opened beside.
#[derive(Clone, Copy, Default)]
struct Beside<'a> {
    /// Models that are open already.
    open: &'a [ModelId],
    /// Bytes on its compute device that others need.
    more_bytes: u64,
}

/// One network in one way of loading: whoever plans, stages or patches it holds its lock, and nobody else's.
type Slot = Arc<Mutex<Option<Loaded>>>;

/// What is loaded, by what it was loaded from.
pub(crate) type LoadedModels = HashMap<LoadKey, Slot>;

/// A model that is open for use.
pub struct Opened {
    /// Where its weights are leased from.
    pub session: Session,
    /// The work that it was planned for: what was wanted, or the same in tiles.
    pub work: Work,
    id: ModelId,
    planned: Planned,
    before: StreamStats,
    /// The job that it is open for.
    job: Option<Arc<str>>,
}

/// What is opened: a network with its patches, for some work.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The network.
    pub source: &'a Source,
    /// The encoders of the same value, which say what LoRA files mean by their numbers.
    pub beside: &'a [Arc<Source>],
    /// What is patched into it.
    pub loras: &'a [WeightPatch],
    /// What it is to do.
    pub work: &'a Work,
}

impl<'a> Wanted<'a> {
    /// The same of another source, if there is one.
    fn from(&self, source: Option<&'a Source>) -> Wanted<'a> {
        Wanted { source: source.unwrap_or(self.source), ..*self }
    }
}

impl Loaded {
    pub(crate) fn id(&self) -> ModelId {
        self.id
    }
}

impl Runtime {
    /// Registers a network as its loader says, before anything uses it, so that an allocation that cannot be made is
    /// told at the loader. Nothing is copied yet. What was registered of the same file before leaves as soon as
    /// nothing refers to it.
    pub fn register(&self, source: &Source) -> Result<()> {
        self.with_room(source, || self.register_now(source))
    }

    /// Does what needs room on a network's devices. Where there is none, another job may be at work there: what it works
    /// with is free when its turn ends, so it is done again then.
    pub(crate) fn with_room<T>(&self, source: &Source, plan: impl Fn() -> Result<T>) -> Result<T> {
        match plan() {
            Err(Error::Plan(PlanError::NoRoom { .. })) => {
                let _turn = self.turns.take(devices_of(source).collect(), &Cancel::NEVER)?;
                plan()
            }
            done => done,
        }
    }

    fn register_now(&self, source: &Source) -> Result<()> {
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
                if let Some(known) = loaded.as_mut() {
                    known.follows = source.placing.follows;
                }
                id
            }
            None => {
                tell_unused(source)?;
                let planned = self.plan(source, Demand::default())?;
                loaded.insert(self.load(source, planned, 0)?).id
            }
        };
        drop(loaded);
        self.upcoming.named(id);
        self.supersede_others(source, id)
    }

    /// Opens a network and works with it, while no other job has a network open on its devices. If a device runs out of
    /// memory meanwhile, it is tried once more with more room: other models leave the device, and what is placed
    /// automatically keeps less there.
    pub fn with_session<T>(
        &self,
        wanted: Wanted<'_>,
        caller: &Caller,
        mut work: impl FnMut(&Opened) -> Result<T>,
    ) -> Result<T> {
        self.with_sessions(wanted, &[], caller, |opened, _| work(opened))
    }

    /// The same for a network that works together with others, which are open as long as it is and leave it the room that
    /// it needs.
    pub fn with_sessions<T>(
        &self,
        wanted: Wanted<'_>,
        others: &[Wanted<'_>],
        caller: &Caller,
        mut work: impl FnMut(&Opened, &[Opened]) -> Result<T>,
    ) -> Result<T> {
        let here = caller.device.unwrap_or(self.compute);
        let own = wanted.source.on(here);
        let wanted = wanted.from(own.as_deref());
        let theirs: Vec<Option<Arc<Source>>> = others.iter().map(|other| other.source.on(here)).collect();
        let others: Vec<Wanted<'_>> =
            others.iter().zip(&theirs).map(|(other, source)| other.from(source.as_deref())).collect();
        let all = std::iter::once(&wanted).chain(&others);
        let devices = all.flat_map(|wanted| devices_of(wanted.source)).collect();
        let _turn = self.turns.take(devices, &caller.cancel)?;
        let mut attempt = || {
            let (opened, others) = self.open_all(wanted, &others, caller)?;
            let _beside = self.upcoming.read_beside(&self.residency);
            self.work_with(opened, others, &mut work)
        };
        match attempt() {
            Err(error) => {
                let Some(short) = error.out_of_memory() else { return Err(error) };
                tracing::warn!("{}: {short}; trying again with more room", wanted.source.name());
                self.make_room(wanted, short)?;
                attempt()
            }
            done => done,
        }
    }

    fn work_with<T>(
        &self,
        opened: Opened,
        others: Vec<Opened>,
        work: &mut impl FnMut(&Opened, &[Opened]) -> Result<T>,
    ) -> Result<T> {
        let done = trusted(std::iter::once(&opened).chain(&others), || work(&opened, &others))?;
        for Opened { session, id, planned, .. } in std::iter::once(opened).chain(others) {
            drop(session);
            if let Some((bytes, time)) = self.residency.take_load_time(id) {
                self.stats.loaded(bytes, time.as_secs_f64());
            }
            self.learn_from(id, &planned);
        }
        Ok(done)
    }

    /// Opens a network, and others that work together with it. The others come first: what they leave is at least what the
    /// network cannot do without, and the network is planned for the rest.
    fn open_all(
        &self,
        wanted: Wanted<'_>,
        others: &[Wanted<'_>],
        caller: &Caller,
    ) -> Result<(Opened, Vec<Opened>)> {
        if others.is_empty() {
            return Ok((self.open(wanted, Beside::default(), caller)?, Vec::new()));
        }
        let compute = wanted.source.placing.compute;
        let alone = Demand { work: Some(wanted.work), ..Demand::default() };
        let alone = self.plan(wanted.source, alone)?;
        let (mut opened, mut open): (Vec<Opened>, Vec<ModelId>) = (Vec::new(), Vec::new());
        for other in others {
            let is_there = other.source.placing.compute == compute;
            let more_bytes = if is_there { alone.least_bytes() } else { 0 };
            let other = self.open(*other, Beside { open: &open, more_bytes }, caller)?;
            open.push(other.id);
            opened.push(other);
        }
        // They work one after the other: each needs its own room, and what the others hold meanwhile.
        let there =
            || opened.iter().map(|other| &other.planned).filter(|other| other.plan.compute == compute);
        let held: u64 = there().map(Planned::held_bytes).sum();
        let most = there().map(|other| other.working_bytes() + held - other.held_bytes()).max().unwrap_or(0);
        let more_bytes = held.max(most.saturating_sub(alone.working_bytes()));
        let wanted = self.open(wanted, Beside { open: &open, more_bytes }, caller)?;
        Ok((wanted, opened))
    }

    /// Unloads a network that a node is done with, unless it was loaded to stay. Its next use loads it again.
    pub fn let_go(&self, source: &Source, caller: &Caller) -> Result<()> {
        let own = source.on(caller.device.unwrap_or(self.compute));
        let source = own.as_deref().unwrap_or(source);
        if source.placing.retention == Retention::Keep {
            return Ok(());
        }
        let slot = self.slot(&LoadKey::of(source));
        let known = lock(&slot).take().filter(|known| self.residency.contains(known.id));
        known.map_or(Ok(()), |known| Ok(self.residency.unload(known.id)?))
    }

    /// Notes what one step took.
    pub fn note_evaluation(&self, opened: &Opened, started: Instant) {
        let seconds = started.elapsed().as_secs_f64();
        let (now, kind) = (opened.session.stats(), StepKind::of(&opened.session));
        let streamed = StreamStats {
            copies: now.copies.saturating_sub(opened.before.copies),
            bytes: now.bytes.saturating_sub(opened.before.bytes),
            decoded_bytes: now.decoded_bytes.saturating_sub(opened.before.decoded_bytes),
            stalls: now.stalls.saturating_sub(opened.before.stalls),
            stalled: now.stalled.saturating_sub(opened.before.stalled),
        };
        self.stats.evaluated((opened.id, opened.job.as_ref()), kind, seconds, streamed);
    }

    fn open(&self, wanted: Wanted<'_>, beside: Beside<'_>, caller: &Caller) -> Result<Opened> {
        let (source, cancel) = (wanted.source, &caller.cancel);
        let slot = self.slot(&LoadKey::of(source));
        let mut loaded = lock(&slot);
        self.forget_damaged(&mut loaded, source);
        let patches = signatures(source, wanted.loras);
        let known = loaded.take().filter(|known| self.residency.contains(known.id));
        let changed = known.as_ref().is_none_or(|known| known.patches != patches);
        let set = if changed { Some(patch_set(source, wanted.beside, wanted.loras)?) } else { None };
        let patch_bytes = match (&set, &known) {
            (Some(set), _) => self.patch_bytes(source, set)?,
            (None, known) => known.as_ref().map_or(0, |known| known.patch_bytes),
        };
        let known = self.planned_for(wanted, known, patch_bytes, beside)?;
        // From here on an error leaves the model registered, to be used or freed later.
        let known = loaded.insert(known);
        known.patch_bytes = patch_bytes;
        if known.patches != patches || set.is_some() {
            self.residency.set_patches_unless(known.id, set.unwrap_or_default(), cancel)?;
            known.patches = patches;
        }
        let session = self.residency.open(known.id, cancel)?;
        for note in self.residency.side_cars().map(SideCars::take_notes).unwrap_or_default() {
            tracing::warn!("{note}");
        }
        let predicted = PredictedSteps {
            plain_s: known.planned.plain_step_s()?,
            coded_s: known.planned.plan.prediction.seconds_per_step,
        };
        let stats = ModelStats {
            job: caller.job.clone(),
            fp8_products: known.planned.fp8_products,
            ..ModelStats::new(known.id, source.name(), known.family.clone(), known.planned.plan.compute)
        };
        self.stats.begin(stats, predicted, StepKind::of(&session));
        Ok(Opened {
            before: session.stats(),
            session,
            work: known.planned.work.clone(),
            id: known.id,
            planned: known.planned.clone(),
            job: caller.job.clone(),
        })
    }

    /// The model loaded under a plan that holds for the work. One whose copies are made stays as it is while it leaves
    /// room enough.
    fn planned_for(
        &self,
        wanted: Wanted<'_>,
        known: Option<Loaded>,
        patch_bytes: u64,
        beside: Beside<'_>,
    ) -> Result<Loaded> {
        let source = wanted.source;
        let Beside { open, more_bytes } = beside;
        let is_beside = !open.is_empty() || more_bytes > 0;
        let own = known.as_ref().map(|known| known.id);
        let demand =
            Demand { work: Some(wanted.work), patch_bytes, more_bytes, beside: open, own, elsewhere: false };
        let mut fresh = self.plan(source, demand)?;
        let Some(mut known) = known else {
            return Ok(Loaded { is_beside, ..self.load(source, fresh, patch_bytes)? });
        };
        let in_force = &known.planned.plan;
        let same = in_force.blocks == fresh.plan.blocks && in_force.ring == fresh.plan.ring;
        // What was planned beside others is not what is best alone, nor the other way round.
        let is_alone = !known.is_beside && !is_beside;
        let roomy = is_alone
            && in_force.devices.iter().all(|usage| {
                let needed = fresh.plan.device(usage.device).map_or(0, |fresh| fresh.working_bytes);
                usage.working_bytes >= needed
            });
        // A model that has no copies yet is registered anew, so that what is shown is what will be.
        if (same || roomy) && self.residency.is_staged(known.id) {
            let mut plan = if same { fresh.plan.clone() } else { in_force.clone() };
            plan.prediction = fresh.predict(&plan)?;
            fresh.plan = plan;
            known.planned = fresh;
            known.is_beside = is_beside;
            return Ok(known);
        }
        let retention = self.residency.retention(known.id)?;
        self.residency.unload(known.id)?;
        let loaded = self.load(source, fresh, patch_bytes)?;
        self.residency.set_retention(loaded.id, retention)?;
        Ok(Loaded { is_beside, ..loaded })
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
            coding: self.coding_time(),
        };
        let family = manifest.family().to_owned();
        let id = self.residency.load(manifest, planned.plan.clone(), options)?;
        source.hold(self.residency.claim(id)?);
        let follows = placing.follows;
        Ok(Loaded { id, planned, family, patches: Vec::new(), patch_bytes, is_beside: false, follows })
    }

    /// What is coded because that helps does not hold up the load; where coding is forced, every step is to run with it.
    fn coding_time(&self) -> CodingTime {
        match self.settings.coding {
            CodingPolicy::Force => CodingTime::First,
            CodingPolicy::Off | CodingPolicy::Auto => CodingTime::Beside,
        }
    }

    /// What else is registered of the same file and role leaves as soon as nothing refers to it. Where the later
    /// loader said nothing of staying, what the earlier said passes on.
    fn supersede_others(&self, source: &Source, id: ModelId) -> Result<()> {
        let (others, elsewhere) = self.others(source);
        for earlier in others {
            self.residency.supersede(earlier, id)?;
        }
        // What the loader says of staying holds on every worker's device; one that has left meanwhile does not mind.
        for id in elsewhere.into_iter().filter(|_| source.placing.retention != Retention::Default) {
            self.residency.set_retention(id, source.placing.retention).or_else(gone)?;
        }
        let residency = &self.residency;
        let is_gone = |slot: &Slot| {
            // A slot that somebody holds is in use.
            let Ok(loaded) = slot.try_lock() else { return false };
            loaded.as_ref().is_none_or(|known| !residency.contains(known.id))
        };
        self.loaded().retain(|_, slot| Arc::strong_count(slot) > 1 || !is_gone(slot));
        Ok(())
    }

    /// The other registrations of a network: with another allocation, device or precision, or of a file that was
    /// replaced; and what the same loader means on the devices of other workers.
    fn others(&self, source: &Source) -> (Vec<ModelId>, Vec<ModelId>) {
        let own = LoadKey::of(source);
        let loaded = self.loaded();
        let same = loaded.iter().filter(|(key, _)| **key != own && key.is_of(&own.identity));
        let other = |(key, slot): (&LoadKey, &Slot)| {
            // A slot that somebody holds is in use, and is looked at when its loader runs next.
            let loaded = slot.try_lock().ok()?;
            let known = loaded.as_ref()?;
            let is_elsewhere = source.placing.follows && known.follows && key.differs_in_device_from(&own);
            Some((is_elsewhere, known.id))
        };
        let (elsewhere, others): (Vec<_>, Vec<_>) =
            same.filter_map(other).partition(|(is_elsewhere, _)| *is_elsewhere);
        let ids = |found: Vec<(bool, ModelId)>| found.into_iter().map(|(_, id)| id).collect();
        (ids(others), ids(elsewhere))
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
        let demand = Demand {
            work: Some(wanted.work),
            patch_bytes: known.patch_bytes,
            more_bytes,
            ..Demand::default()
        };
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
    pub(crate) fn of(source: &Source) -> Identity {
        Identity {
            file: source.file.path().to_owned(),
            prefix: source.part.prefix.clone(),
            modified: source.modified,
            cast: source.cast,
            products: source.products,
            base: source.base().cloned().map(Box::new),
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

    /// Whether it is the same but for the device.
    fn differs_in_device_from(&self, other: &LoadKey) -> bool {
        (&self.identity, &self.allocation) == (&other.identity, &other.allocation)
    }

    /// Whether it is of the same network of the same file, however it was loaded and whatever the file held then.
    fn is_of(&self, identity: &Identity) -> bool {
        (&self.identity.file, &self.identity.prefix) == (&identity.file, &identity.prefix)
    }
}

/// A model that has left is no error here.
fn gone(error: residency::Error) -> residency::Result<()> {
    match error {
        residency::Error::NoSuchModel { .. } => Ok(()),
        error => Err(error),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs what is strange about a network's file, and its tensors that nothing reads: a file may hold more than its family knows, and then computes
/// something else than who made it meant.
fn tell_unused(source: &Source) -> Result<()> {
    let unused = source.unused()?;
    if let Some(text) = unused_text(&unused, &source.part.name) {
        tracing::warn!("{}: {text}", source.name());
    }
    for warning in source.file.warnings() {
        tracing::warn!("{}: {warning}", source.name());
    }
    Ok(())
}

/// How many tensors are not used, and the first of them; none if all are.
fn unused_text(unused: &[&str], network: &str) -> Option<String> {
    let first = unused.iter().take(UNUSED_SHOWN).copied().collect::<Vec<_>>().join(", ");
    let more = if unused.len() > UNUSED_SHOWN { ", …" } else { "" };
    match unused.len() {
        0 => None,
        1 => Some(format!("1 tensor is not used by {network}: {first}")),
        count => Some(format!("{count} tensors are not used by {network}: {first}{more}")),
    }
}

fn is_automatic(source: &Source) -> bool {
    source.placing.allocation.allocation().amounts == Amounts::Automatic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_used_is_told_in_one_line() {
        assert_eq!(unused_text(&[], "CLIP-L"), None);
        let text = |unused: &[&str]| unused_text(unused, "CLIP-L").unwrap();
        assert_eq!(text(&["logit_scale"]), "1 tensor is not used by CLIP-L: logit_scale");
        assert_eq!(text(&["a", "b"]), "2 tensors are not used by CLIP-L: a, b");
        assert_eq!(text(&["a", "b", "c", "d", "e"]), "5 tensors are not used by CLIP-L: a, b, c, d, …");
    }
}
