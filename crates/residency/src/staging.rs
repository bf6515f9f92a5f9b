//! Stagings: a model's copies under one plan with one patch set. A model may have several at once, for several devices
//! and several patch sets; each has its ring of slots.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use device::{Cancel, Registry};
use meta::{DType, DeviceId};
use patch::PatchSet;
use placement::Plan;

use crate::Result;
use crate::coder::CodingTime;
use crate::manifest::Manifest;
use crate::needs::{Bytes, HostSource, Needs};
use crate::patching::{self, Places, Reserve, Reserved};
use crate::sidecar::SideCars;
use crate::staged::{self, Staged};

/// How copies are made.
#[derive(Clone, Debug, Default)]
pub(crate) struct StagingOptions {
    /// The type of activations.
    pub(crate) dtype: Option<DType>,
    /// When blocks are coded that the plan wants coded.
    pub(crate) coding: CodingTime,
    /// Where coded blocks are kept between starts, if they are.
    pub(crate) cars: Option<Arc<SideCars>>,
}

/// A model's copies under one plan with one patch set, or the place for them.
///
/// Two locks: `changing` is held while copies are made, changed or forgotten, by whoever does that, so that those who
/// want the same copies at the same time wait for one making; `state` only for a moment at a time, so that whoever asks
/// never waits for copies.
pub(crate) struct Staging {
    plan: Plan,
    options: StagingOptions,
    source: HostSource,
    needs: Needs,
    changing: Mutex<()>,
    state: Mutex<State>,
    /// Sessions that use the copies, and whoever makes or changes them for a session to come.
    users: AtomicUsize,
}

struct State {
    staged: Option<Arc<Staged>>,
    /// The patch set that the copies have, or are to have once their one user is done.
    patches: PatchSet,
}

impl Staging {
    /// A place for copies that are not made yet. A plan for another model is refused.
    pub(crate) fn new(
        manifest: &Manifest,
        plan: Plan,
        devices: &Registry,
        options: StagingOptions,
        patches: PatchSet,
    ) -> Result<Staging> {
        let source = HostSource::of(&plan, devices)?;
        Ok(Staging {
            needs: Needs::of(manifest, &plan, source, devices)?,
            plan,
            options,
            source,
            changing: Mutex::new(()),
            state: Mutex::new(State { staged: None, patches }),
            users: AtomicUsize::new(0),
        })
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Bytes that the copies take of each device.
    pub(crate) fn needs(&self) -> &Needs {
        &self.needs
    }

    /// The copies, if they are there.
    pub(crate) fn staged(&self) -> Option<Arc<Staged>> {
        self.lock().staged.clone()
    }

    /// Whether its copies have a patch set, or are to have it.
    pub(crate) fn has(&self, patches: &PatchSet) -> bool {
        patches.changed_since(&self.lock().patches).next().is_none()
    }

    /// Says which patch set the copies are to have; the one before. They must be in nobody's use but the caller's.
    pub(crate) fn want(&self, patches: PatchSet) -> PatchSet {
        std::mem::replace(&mut self.lock().patches, patches)
    }

    /// Whether copies are there that have another patch set than they are to have.
    pub(crate) fn is_behind(&self) -> bool {
        let state = self.lock();
        let Some(staged) = &state.staged else { return false };
        state.patches.changed_since(staged.patching().set()).next().is_some()
    }

    /// Sessions that use it, and whoever makes or changes it for one.
    pub(crate) fn users(&self) -> usize {
        self.users.load(Ordering::SeqCst)
    }

    pub(crate) fn is_used(&self) -> bool {
        self.users() > 0
    }

    /// One more user. Whoever chooses among stagings is alone meanwhile.
    pub(crate) fn use_it(self: &Arc<Staging>) -> Use {
        self.users.fetch_add(1, Ordering::SeqCst);
        Use(Arc::clone(self))
    }

    /// The right to make or change the copies; waits for whoever has it.
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

    /// Bytes that its patches take of each device.
    pub(crate) fn patch_bytes(&self, manifest: &Manifest, devices: &Registry) -> Result<Bytes> {
        let patches = self.lock().patches.clone();
        if patches.is_empty() {
            return Ok(Bytes::new());
        }
        let lanes = staged::lanes(&self.plan, devices, self.options.dtype)?;
        patching::bytes_of(&Places { manifest, plan: &self.plan, lanes: &lanes }, &patches)
    }

    /// Makes the copies, out of bytes that were reserved. Whoever calls has the right to change them.
    pub(crate) fn stage(
        &self,
        manifest: &Manifest,
        devices: &Registry,
        mut reserved: Reserved,
        cancel: &Cancel,
    ) -> Result<Arc<Staged>> {
        let places = (devices, self.source);
        let staged = Staged::new(manifest, &self.plan, places, &mut reserved, &self.options, cancel)?;
        let patches = self.lock().patches.clone();
        // What the patches take was reserved with the rest.
        staged.patch(manifest, &self.plan, &patches, &mut |_| Ok(std::mem::take(&mut reserved)), cancel)?;
        // Copies of a file that changed while they were made are worth nothing.
        manifest.verify()?;
        let staged = Arc::new(staged);
        self.lock().staged = Some(Arc::clone(&staged));
        Ok(staged)
    }

    /// Makes copies that exist those of the patch set that they are to have; the number of weights touched. Whoever calls
    /// has the right to change them, and nobody else uses them.
    pub(crate) fn patch(
        &self,
        manifest: &Manifest,
        reserve: &mut Reserve<'_>,
        cancel: &Cancel,
    ) -> Result<usize> {
        let (staged, patches) = {
            let state = self.lock();
            let Some(staged) = state.staged.clone() else { return Ok(0) };
            (staged, state.patches.clone())
        };
        let patched = staged.patch(manifest, &self.plan, &patches, reserve, cancel).and_then(|touched| {
            // Weights are staged again from their file, with what is read from others.
            manifest.verify()?;
            let verify = |bytes: &checkpoint::EntryBytes| manifest.verify_file(bytes);
            patches.files().iter().try_for_each(verify).map(|()| touched)
        });
        if patched.is_err() {
            // Half patched is worse than not there: the next use stages it anew.
            drop(staged);
            self.forget_copies();
        }
        patched
    }

    /// Bytes that its copies and patches have on a device, if nobody uses them.
    pub(crate) fn evictable_bytes(&self, device: DeviceId) -> u64 {
        let Some(_changing) = self.try_change() else { return 0 };
        if self.is_used() {
            return 0;
        }
        let state = self.lock();
        let Some(staged) = &state.staged else { return 0 };
        let patches = staged.patching().bytes().get(&device).copied().unwrap_or(0);
        self.needs.kept.get(&device).copied().unwrap_or(0) + patches
    }

    /// Forgets the copies, unless somebody uses them, or makes or changes them; whether they are gone.
    pub(crate) fn evict(&self) -> bool {
        let Some(_changing) = self.try_change() else { return false };
        if self.is_used() {
            return false;
        }
        self.forget_copies();
        true
    }

    /// Forgets copies that could not be made whole, unless others are there meanwhile.
    pub(crate) fn forget_failed(&self, failed: &Arc<Staged>) {
        let mut state = self.lock();
        let gone = state.staged.take_if(|staged| Arc::ptr_eq(staged, failed));
        drop(state);
        drop(gone);
    }

    /// Forgets the copies; a session that uses them keeps them until it ends.
    pub(crate) fn forget_copies(&self) {
        let gone = self.lock().staged.take();
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The use of a staging. While there is one, its copies are neither evicted nor given another patch set.
pub(crate) struct Use(Arc<Staging>);

impl Use {
    pub(crate) fn staging(&self) -> &Arc<Staging> {
        &self.0
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}
