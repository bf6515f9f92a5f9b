//! Loaded models: what the registry owns.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::SystemTime;

use device::{Cancel, Registry};
use meta::{DType, DeviceId};
use patch::PatchSet;
use placement::Plan;

use crate::claim::Usage;
use crate::manifest::Manifest;
use crate::needs::{Bytes, HostSource, Needs};
use crate::patching::{self, Places, Reserve, Reserved};
use crate::retention::Retention;
use crate::staged::{self, Staged};
use crate::{Error, LoadOptions, Result, StepProfile, StreamStats};

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
}

/// A model in the registry.
///
/// Two locks: `changing` is held while copies are made, changed or forgotten, by whoever does that; `state` only for a
/// moment at a time, so that whoever asks about a model never waits for its copies.
pub(crate) struct LoadedModel {
    id: ModelId,
    manifest: Manifest,
    plan: Plan,
    dtype: Option<DType>,
    source: HostSource,
    needs: Needs,
    usage: Arc<Usage>,
    changing: Mutex<()>,
    state: Mutex<State>,
    /// Counts uses of all models, so that the least recent is the smallest.
    used_at: AtomicU64,
}

struct State {
    retention: Retention,
    staged: Option<Arc<Staged>>,
    patches: PatchSet,
    last_used: SystemTime,
}

impl LoadedModel {
    /// A model whose copies are not made yet. A plan for another model is refused.
    pub(crate) fn new(
        id: ModelId,
        manifest: Manifest,
        plan: Plan,
        devices: &Registry,
        options: LoadOptions,
    ) -> Result<LoadedModel> {
        let source = HostSource::of(&plan, devices)?;
        let LoadOptions { retention, dtype, .. } = options;
        let state = State { retention, staged: None, patches: PatchSet::new(), last_used: SystemTime::now() };
        Ok(LoadedModel {
            id,
            needs: Needs::of(&manifest, &plan, source, devices)?,
            manifest,
            plan,
            dtype,
            source,
            usage: Arc::default(),
            changing: Mutex::new(()),
            state: Mutex::new(state),
            used_at: AtomicU64::new(0),
        })
    }

    pub(crate) fn id(&self) -> ModelId {
        self.id
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Bytes that its copies take of each device.
    pub(crate) fn needs(&self) -> &Needs {
        &self.needs
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

    /// The right to make or change its copies; waits for whoever has it.
    pub(crate) fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, if nobody has it.
    fn try_change(&self) -> Option<MutexGuard<'_, ()>> {
        match self.changing.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn staged(&self) -> Option<Arc<Staged>> {
        self.lock().staged.clone()
    }

    /// Bytes that the patches in force take of each device.
    pub(crate) fn patch_bytes(&self, devices: &Registry) -> Result<Bytes> {
        let patches = self.lock().patches.clone();
        if patches.is_empty() {
            return Ok(Bytes::new());
        }
        let lanes = staged::lanes(&self.plan, devices, self.dtype)?;
        patching::bytes_of(&Places { manifest: &self.manifest, plan: &self.plan, lanes: &lanes }, &patches)
    }

    /// Makes the copies, out of bytes that were reserved. Whoever calls has the right to change them.
    pub(crate) fn stage(
        &self,
        devices: &Registry,
        mut reserved: Reserved,
        cancel: &Cancel,
    ) -> Result<Arc<Staged>> {
        let places = (devices, self.source);
        let staged = Staged::new(&self.manifest, &self.plan, places, &mut reserved, self.dtype, cancel)?;
        let patches = self.lock().patches.clone();
        // What the patches take was reserved with the rest.
        staged.patch(
            &self.manifest,
            &self.plan,
            &patches,
            &mut |_| Ok(std::mem::take(&mut reserved)),
            cancel,
        )?;
        // Copies of a file that changed while they were made are worth nothing.
        self.manifest.verify()?;
        let staged = Arc::new(staged);
        self.lock().staged = Some(Arc::clone(&staged));
        Ok(staged)
    }

    /// Puts a patch set in force. Copies that exist are changed where the sets differ, unless a session uses them; the
    /// number of weights touched. Whoever calls has the right to change them.
    pub(crate) fn patch(
        &self,
        patches: PatchSet,
        reserve: &mut Reserve<'_>,
        cancel: &Cancel,
    ) -> Result<usize> {
        let mut touched = 0;
        if let Some(staged) = self.staged() {
            if self.usage.sessions() > 0 {
                return Err(Error::Device(device::Error::Device {
                    device: self.plan.compute,
                    action: format!("patching {}", self.manifest.name()),
                    reason: "a session is using it".into(),
                }));
            }
            let patched = staged.patch(&self.manifest, &self.plan, &patches, reserve, cancel);
            // Weights are staged again from their file, with what is read from others.
            let patched = patched.and_then(|touched| {
                self.manifest.verify()?;
                let verify = |bytes: &checkpoint::EntryBytes| self.manifest.verify_file(bytes);
                patches.files().iter().try_for_each(verify).map(|()| touched)
            });
            touched = match patched {
                Ok(touched) => touched,
                Err(error) => {
                    // Half patched is worse than not there: the next use stages it anew.
                    drop(staged);
                    self.forget_copies();
                    return Err(error);
                }
            };
        }
        self.lock().patches = patches;
        Ok(touched)
    }

    /// Forgets the copies, unless a session uses them or somebody is making or changing them; whether they are gone.
    pub(crate) fn evict(&self) -> bool {
        let Some(_changing) = self.try_change() else { return false };
        if self.usage.sessions() > 0 {
            return false;
        }
        self.forget_copies();
        true
    }

    /// Forgets the copies; a session that uses them keeps them until it ends.
    pub(crate) fn forget_copies(&self) {
        let gone = self.lock().staged.take();
        drop(gone);
    }

    /// Bytes that its copies and patches have on a device, if nobody uses them.
    pub(crate) fn evictable_bytes(&self, device: DeviceId) -> u64 {
        let Some(_changing) = self.try_change() else { return 0 };
        if self.usage.sessions() > 0 {
            return 0;
        }
        let state = self.lock();
        let Some(staged) = &state.staged else { return 0 };
        let patches = staged.patching().bytes().get(&device).copied().unwrap_or(0);
        self.needs.kept.get(&device).copied().unwrap_or(0) + patches
    }

    pub(crate) fn report(&self) -> ModelReport {
        let (name, family) = (self.manifest.name().to_owned(), self.manifest.family().to_owned());
        let (plan, mut bytes) = (self.plan.clone(), Bytes::new());
        let state = self.lock();
        if let Some(staged) = &state.staged {
            bytes = self.needs.held();
            for (device, patches) in staged.patching().bytes() {
                *bytes.entry(*device).or_default() += patches;
            }
        }
        ModelReport {
            id: self.id,
            name,
            family,
            retention: state.retention,
            bytes: bytes.into_iter().collect(),
            plan,
            staged: state.staged.is_some(),
            superseded: self.usage.is_superseded(),
            last_used: state.last_used,
            stats: state.staged.as_ref().map(|staged| staged.stats()).unwrap_or_default(),
            profile: state.staged.as_ref().and_then(|staged| staged.recorder().latest()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
