//! Loaded models: what the registry owns.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use device::{Cancel, Registry};
use meta::{DType, DeviceId};
use patch::PatchSet;
use placement::Plan;

use crate::manifest::Manifest;
use crate::retention::Retention;
use crate::staged::{self, HostSource, Staged};
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
    /// Bytes of its copies by device, on the host those that lie in the mapped file too; empty while it is only
    /// registered.
    pub bytes: Vec<(DeviceId, u64)>,
    /// Where everything goes.
    pub plan: Plan,
    /// Whether its copies are on their devices now.
    pub staged: bool,
    /// When a session was last opened.
    pub last_used: SystemTime,
    /// What streaming did since the copies were made.
    pub stats: StreamStats,
    /// Where the time of its latest step went, if it has made one.
    pub profile: Option<StepProfile>,
}

/// A model in the registry.
pub(crate) struct LoadedModel {
    id: ModelId,
    manifest: Manifest,
    plan: Plan,
    dtype: Option<DType>,
    source: HostSource,
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
    pub(crate) fn new(
        id: ModelId,
        manifest: Manifest,
        plan: Plan,
        source: HostSource,
        options: LoadOptions,
    ) -> LoadedModel {
        let LoadOptions { retention, dtype, .. } = options;
        let state = State { retention, staged: None, patches: PatchSet::new(), last_used: SystemTime::now() };
        LoadedModel {
            id,
            manifest,
            plan,
            dtype,
            source,
            state: Mutex::new(state),
            used_at: AtomicU64::new(0),
        }
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

    /// Bytes that staging takes of each device.
    pub(crate) fn needs(&self) -> Result<std::collections::BTreeMap<DeviceId, u64>> {
        staged::needs(&self.manifest, &self.plan, self.source)
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

    pub(crate) fn staged(&self) -> Option<Arc<Staged>> {
        self.lock().staged.clone()
    }

    /// Makes the copies, out of bytes that were reserved.
    pub(crate) fn stage(
        &self,
        devices: &Registry,
        mut reserved: std::collections::BTreeMap<DeviceId, device::Reservation>,
        cancel: &Cancel,
    ) -> Result<Arc<Staged>> {
        let mut staged = Staged::new(&self.manifest, &self.plan, devices, &mut reserved, self.dtype, cancel)?;
        let patches = self.lock().patches.clone();
        staged.patch(&self.manifest, &self.plan, &patches, cancel)?;
        // Copies of a file that changed while they were made are worth nothing.
        self.manifest.verify()?;
        let staged = Arc::new(staged);
        self.lock().staged = Some(Arc::clone(&staged));
        Ok(staged)
    }

    /// Puts a patch set in force. Copies that exist are changed where the sets differ, unless a session
    /// uses them; the number of weights touched.
    pub(crate) fn patch(&self, patches: PatchSet, cancel: &Cancel) -> Result<usize> {
        let mut state = self.lock();
        let mut touched = 0;
        if let Some(shared) = &mut state.staged {
            let staged = Arc::get_mut(shared).ok_or_else(|| {
                Error::Device(device::Error::Device {
                    device: self.plan.compute,
                    action: format!("patching {}", self.manifest.name()),
                    reason: "a session is using it".into(),
                })
            })?;
            let patched = staged.patch(&self.manifest, &self.plan, &patches, cancel);
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
                    state.staged = None;
                    return Err(error);
                }
            };
        }
        state.patches = patches;
        Ok(touched)
    }

    /// Forgets the copies, unless a session uses them; whether they are gone.
    pub(crate) fn evict(&self) -> bool {
        let mut state = self.lock();
        if state.staged.as_ref().is_some_and(|staged| Arc::strong_count(staged) > 1) {
            return false;
        }
        state.staged = None;
        true
    }

    /// Bytes that its copies have on a device, and whether nobody uses them.
    pub(crate) fn evictable_bytes(&self, device: DeviceId) -> u64 {
        let idle = self.lock().staged.as_ref().is_some_and(|staged| Arc::strong_count(staged) == 1);
        let needs = staged::needs(&self.manifest, &self.plan, self.source).unwrap_or_default();
        if idle { needs.get(&device).copied().unwrap_or(0) } else { 0 }
    }

    pub(crate) fn report(&self) -> ModelReport {
        let state = self.lock();
        let bytes = match &state.staged {
            None => Vec::new(),
            Some(_) => staged::holds(&self.manifest, &self.plan, self.source).into_iter().collect(),
        };
        ModelReport {
            id: self.id,
            name: self.manifest.name().to_owned(),
            family: self.manifest.family().to_owned(),
            retention: state.retention,
            bytes,
            plan: self.plan.clone(),
            staged: state.staged.is_some(),
            last_used: state.last_used,
            stats: state.staged.as_ref().map(|staged| staged.stats()).unwrap_or_default(),
            profile: state.staged.as_ref().and_then(|staged| staged.recorder().latest()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
