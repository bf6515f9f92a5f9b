//! Loaded models: what the registry owns.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use device::Registry;
use meta::DeviceId;
use patch::PatchSet;
use placement::Plan;

use crate::claim::Usage;
use crate::manifest::Manifest;
use crate::needs::Bytes;
use crate::retention::Retention;
use crate::sidecar::SideCars;
use crate::staged::Staged;
use crate::staging::{Staging, StagingOptions, Use};
use crate::{CodingReport, LoadOptions, Opening, Result, StepProfile, StreamStats};

/// A loaded model's name in the registry. It is never given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub u64);

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What is known of a loaded model.
#[derive(Clone, Debug)]
pub struct ModelReport {
    /// Its id.
    pub id: ModelId,
    /// Its name.
    pub name: String,
    /// Its family.
    pub family: String,
    /// Whether it stays.
    pub retention: Retention,
    /// Bytes of its copies and patches by device, on the host those that lie in the mapped file too; empty while it is
    /// only registered.
    pub bytes: Vec<(DeviceId, u64)>,
    /// Where everything goes.
    pub plan: Plan,
    /// Whether its copies are on their devices now.
    pub staged: bool,
    /// Whether another model took its place: it leaves when nothing refers to it any more.
    pub superseded: bool,
    /// When a session was last opened.
    pub last_used: SystemTime,
    /// What streaming did since the copies were made.
    pub stats: StreamStats,
    /// Where the time of its latest step went, if it has made one.
    pub profile: Option<StepProfile>,
    /// How its blocks are kept that its plan wants coded; none while it is only registered, or if there are none.
    pub coding: Option<CodingReport>,
}

/// A model in the registry: its weights, and the stagings that have copies of them.
pub(crate) struct LoadedModel {
    id: ModelId,
    manifest: Manifest,
    options: StagingOptions,
    usage: Arc<Usage>,
    /// Held for a moment at a time, and never while copies are made, changed or freed.
    state: Mutex<State>,
    /// Counts uses of all models, so that the least recent is the smallest.
    used_at: AtomicU64,
}

struct State {
    retention: Retention,
    /// The patch set of sessions that say nothing of theirs.
    patches: PatchSet,
    /// The first is that of the plan under which the model was loaded, and is always there; others are forgotten with
    /// their copies.
    stagings: Vec<Arc<Staging>>,
    last_used: SystemTime,
}

impl State {
    fn main(&self) -> &Arc<Staging> {
        &self.stagings[0]
    }

    /// Forgets places for copies that have none and are in nobody's use.
    fn forget_places(&mut self) {
        let main = Arc::clone(self.main());
        self.stagings
            .retain(|staging| Arc::ptr_eq(staging, &main) || staging.is_used() || staging.staged().is_some());
    }
}

impl LoadedModel {
    /// A model whose copies are not made yet. A plan for another model is refused.
    pub(crate) fn new(
        id: ModelId,
        manifest: Manifest,
        plan: Plan,
        devices: &Registry,
        options: LoadOptions,
        cars: Option<Arc<SideCars>>,
    ) -> Result<LoadedModel> {
        let LoadOptions { retention, dtype, coding, .. } = options;
        let options = StagingOptions { dtype, coding, cars };
        let main = Staging::new(&manifest, plan, devices, options.clone(), PatchSet::new())?;
        let state = State {
            retention,
            patches: PatchSet::new(),
            stagings: vec![Arc::new(main)],
            last_used: SystemTime::now(),
        };
        let (usage, state, used_at) = (Arc::default(), Mutex::new(state), AtomicU64::new(0));
        Ok(LoadedModel { id, manifest, options, usage, state, used_at })
    }

    pub(crate) fn id(&self) -> ModelId {
        self.id
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The staging of the plan under which it was loaded.
    pub(crate) fn main(&self) -> Arc<Staging> {
        Arc::clone(self.lock().main())
    }

    /// All its stagings.
    pub(crate) fn stagings(&self) -> Vec<Arc<Staging>> {
        self.lock().stagings.clone()
    }

    /// The copies of its stagings that have some, that of its own plan first.
    pub(crate) fn copies(&self) -> Vec<Arc<Staged>> {
        self.lock().stagings.iter().filter_map(|staging| staging.staged()).collect()
    }

    /// Who refers to it.
    pub(crate) fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    pub(crate) fn retention(&self) -> Retention {
        self.lock().retention
    }

    pub(crate) fn set_retention(&self, retention: Retention) {
        self.lock().retention = retention;
    }

    /// The smaller, the longer ago.
    pub(crate) fn used_at(&self) -> u64 {
        self.used_at.load(Ordering::Relaxed)
    }

    pub(crate) fn touch(&self, now: u64) {
        self.used_at.store(now, Ordering::Relaxed);
        self.lock().last_used = SystemTime::now();
    }

    /// The staging for a session, and the patch set that it is to have. One that has just this set on this device is
    /// shared; else one that nobody uses gets it; else there is one more.
    pub(crate) fn choose(&self, devices: &Registry, opening: Opening) -> Result<(Use, PatchSet)> {
        let mut state = self.lock();
        let Opening { plan, patches } = opening;
        let patches = patches.unwrap_or_else(|| state.patches.clone());
        let device = plan.as_ref().map_or(state.main().plan().compute, |plan| plan.compute);
        let there: Vec<&Arc<Staging>> =
            state.stagings.iter().filter(|staging| staging.plan().compute == device).collect();
        let mut same: Vec<&Arc<Staging>> =
            there.iter().copied().filter(|staging| staging.has(&patches)).collect();
        let mut idle: Vec<&Arc<Staging>> =
            there.iter().copied().filter(|staging| !staging.is_used()).collect();
        // Copies that are there are better than a place for some.
        for found in [&mut same, &mut idle] {
            found.sort_by_key(|staging| staging.staged().is_none());
        }
        if let Some(staging) = same.first().or(idle.first()) {
            let used = staging.use_it();
            staging.want(patches.clone());
            return Ok((used, patches));
        }
        let plan = plan.or_else(|| there.first().map(|staging| staging.plan().clone()));
        let plan = plan.unwrap_or_else(|| state.main().plan().clone());
        let staging =
            Arc::new(Staging::new(&self.manifest, plan, devices, self.options.clone(), patches.clone())?);
        let used = staging.use_it();
        state.forget_places();
        state.stagings.push(staging);
        Ok((used, patches))
    }

    /// Says that sessions which say nothing of their patches have this set from now on, and that the copies under the
    /// model's own plan are to have it, unless somebody uses them: then such sessions get others. The staging of those
    /// copies, and the set before.
    pub(crate) fn want(&self, patches: PatchSet) -> (Use, PatchSet) {
        let mut state = self.lock();
        let used = state.main().use_it();
        if used.staging().users() == 1 {
            used.staging().want(patches.clone());
        }
        (used, std::mem::replace(&mut state.patches, patches))
    }

    /// Takes back what [`LoadedModel::want`] said, because the copies could not be made so.
    pub(crate) fn take_back(&self, used: &Use, before: PatchSet) {
        let mut state = self.lock();
        if used.staging().users() == 1 {
            used.staging().want(before.clone());
        }
        state.patches = before;
    }

    /// Forgets the copies that nobody uses, makes or changes, but for those of one staging; whether some were forgotten.
    pub(crate) fn evict(&self, except: Option<&Arc<Staging>>) -> bool {
        let stagings = self.stagings();
        let mut others =
            stagings.iter().filter(|staging| except.is_none_or(|except| !Arc::ptr_eq(staging, except)));
        let evicted = others.by_ref().filter(|staging| staging.evict()).count();
        self.lock().forget_places();
        evicted > 0
    }

    /// Forgets all copies; a session that uses them keeps them until it ends.
    pub(crate) fn forget_copies(&self) {
        self.stagings().iter().for_each(|staging| staging.forget_copies());
        self.lock().forget_places();
    }

    /// Bytes that its copies and patches have on a device and nobody uses, but for those of one staging.
    pub(crate) fn evictable_bytes(&self, device: DeviceId, except: Option<&Arc<Staging>>) -> u64 {
        let stagings = self.stagings();
        let others =
            stagings.iter().filter(|staging| except.is_none_or(|except| !Arc::ptr_eq(staging, except)));
        others.map(|staging| staging.evictable_bytes(device)).sum()
    }

    pub(crate) fn report(&self) -> ModelReport {
        let (name, family) = (self.manifest.name().to_owned(), self.manifest.family().to_owned());
        let state = self.lock();
        let (plan, mut bytes, mut stats) =
            (state.main().plan().clone(), Bytes::new(), StreamStats::default());
        let (mut profile, mut coding) = (None, None);
        let copies = state.stagings.iter().filter_map(|staging| Some((staging, staging.staged()?)));
        let copies: Vec<(&Arc<Staging>, Arc<Staged>)> = copies.collect();
        for (staging, staged) in &copies {
            let held = staging.needs().held();
            for (device, more) in held.iter().chain(staged.patching().bytes()) {
                *bytes.entry(*device).or_default() += more;
            }
            stats += staged.stats();
            profile = profile.or_else(|| staged.recorder().latest());
            coding = coding.or_else(|| staged.coding());
        }
        ModelReport {
            id: self.id,
            name,
            family,
            retention: state.retention,
            bytes: bytes.into_iter().collect(),
            plan,
            staged: !copies.is_empty(),
            superseded: self.usage.is_superseded(),
            last_used: state.last_used,
            stats,
            profile,
            coding,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
