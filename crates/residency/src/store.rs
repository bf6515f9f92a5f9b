//! The registry of loaded models: it owns them, finds room for their copies, and lets them go.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::{Cancel, OutOfMemory, Registry, Reservation};
use meta::{DType, DeviceId};
use patch::PatchSet;
use placement::{BlockSpec, DeviceSpec, Plan, PlanRequest};

use crate::layout::BlockLayout;
use crate::model::LoadedModel;
use crate::session::Session;
use crate::staged::HostSource;
use crate::{Error, Manifest, ModelId, ModelReport, Result, Retention, SnapshotSeries, staged};

/// Snapshots that are kept.
const SNAPSHOTS: usize = 1000;

/// All loaded models, on the devices of one machine.
pub struct Residency {
    devices: Registry,
    models: Mutex<BTreeMap<ModelId, Arc<LoadedModel>>>,
    next_id: AtomicU64,
    clock: AtomicU64,
    snapshots: SnapshotSeries,
    pub(crate) missing_kept: AtomicU64,
}

/// How a model is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions {
    /// Whether it stays when models are asked to leave.
    pub retention: Retention,
    /// The type of its activations; the device's preferred one if not given.
    pub dtype: Option<DType>,
    /// Before it loads, every other model leaves its compute device (their registration stays).
    pub eject_others: bool,
}

impl Residency {
    /// An empty registry.
    pub fn new(devices: Registry) -> Residency {
        Residency {
            devices,
            models: Mutex::default(),
            next_id: AtomicU64::new(1),
            clock: AtomicU64::new(1),
            snapshots: SnapshotSeries::new(SNAPSHOTS),
            missing_kept: AtomicU64::new(0),
        }
    }

    /// The machine's devices.
    pub fn devices(&self) -> &Registry {
        &self.devices
    }

    /// Memory over time.
    pub fn snapshots(&self) -> &SnapshotSeries {
        &self.snapshots
    }

    /// How often a kept model was missing after a free request. It should be 0.
    pub fn missing_kept(&self) -> u64 {
        self.missing_kept.load(Ordering::Relaxed)
    }

    /// What the planner needs to know of a model: its blocks as they lie on a device. `seconds` gives
    /// a block's time from its operations.
    pub fn plan_request(
        manifest: &Manifest,
        compute: DeviceId,
        devices: Vec<DeviceSpec>,
        seconds: impl Fn(u64) -> f64,
    ) -> PlanRequest {
        let block = |(index, block): (usize, &crate::BlockSpec)| BlockSpec {
            name: block.name.clone(),
            bytes: BlockLayout::new(manifest, index).len() as u64,
            compute_seconds: seconds(block.flops),
            pinned: block.fixed,
        };
        PlanRequest::new(manifest.blocks().iter().enumerate().map(block).collect(), devices, compute)
    }

    /// Registers a model under a plan. Its copies are made when it is first opened. A plan that asks for
    /// more than a device's budget is refused here, before any byte moves.
    pub fn load(&self, manifest: Manifest, plan: Plan, options: LoadOptions) -> Result<ModelId> {
        let source = HostSource::of(&plan, &self.devices)?;
        for (device, bytes) in staged::needs(&manifest, &plan, source)? {
            let report = self.devices.get(device)?.ledger().report();
            if bytes > report.budget {
                return Err(Error::Device(device::Error::OutOfMemory(OutOfMemory {
                    device,
                    wanted: bytes,
                    available: report.budget,
                    budget: report.budget,
                    used: report.used,
                    reserved: report.reserved,
                })));
            }
        }
        if options.eject_others {
            self.evict_from(plan.compute, None);
        }
        let id = ModelId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let model = LoadedModel::new(id, manifest, plan, source, options);
        self.lock().insert(id, Arc::new(model));
        Ok(id)
    }

    /// Makes a model's copies if they are not there, and opens it for use.
    pub fn open(&self, id: ModelId, cancel: &Cancel) -> Result<Session> {
        let model = self.model(id)?;
        model.touch(self.clock.fetch_add(1, Ordering::Relaxed));
        let staged = match model.staged() {
            Some(staged) => staged,
            None => model.stage(&self.devices, self.reserve(&model)?, cancel)?,
        };
        Ok(Session::new(model, staged, cancel.clone()))
    }

    /// Puts a patch set in force for a model; the number of weights staged again.
    pub fn set_patches(&self, id: ModelId, patches: PatchSet) -> Result<usize> {
        self.set_patches_unless(id, patches, &Cancel::NEVER)
    }

    /// The same, unless it is cancelled meanwhile.
    pub fn set_patches_unless(&self, id: ModelId, patches: PatchSet, cancel: &Cancel) -> Result<usize> {
        self.model(id)?.patch(patches, cancel)
    }

    /// Whether nobody found a file of the model changed or damaged so far. One that is not intact has to be loaded anew
    /// from a file that is opened anew.
    pub fn is_intact(&self, id: ModelId) -> Result<bool> {
        Ok(self.model(id)?.manifest().is_intact())
    }

    /// Says whether a model stays.
    pub fn set_retention(&self, id: ModelId, retention: Retention) -> Result<()> {
        self.model(id)?.set_retention(retention);
        Ok(())
    }

    /// Lets a model go, whatever its retention. A session that uses it keeps its copies until it ends.
    pub fn unload(&self, id: ModelId) -> Result<()> {
        self.lock().remove(&id).map(drop).ok_or(Error::NoSuchModel { id })
    }

    /// Forgets the device copies of every model that has some on `device`, but for `except`.
    pub fn evict_from(&self, device: DeviceId, except: Option<ModelId>) -> Vec<ModelId> {
        let models: Vec<Arc<LoadedModel>> = self.lock().values().cloned().collect();
        let others = models.iter().filter(|model| Some(model.id()) != except);
        let there = others.filter(|model| model.evictable_bytes(device) > 0);
        there.filter(|model| model.evict()).map(|model| model.id()).collect()
    }

    /// All loaded models, by id.
    pub fn models(&self) -> Vec<ModelReport> {
        self.lock().values().map(|model| model.report()).collect()
    }

    /// Promises to a model what its copies need, letting the copies of others go where it is short:
    /// first those marked to go, then the others, kept models last; of each the least recently used;
    /// and only as many as are needed. If all of them would not do, none goes.
    fn reserve(&self, model: &LoadedModel) -> Result<BTreeMap<DeviceId, Reservation>> {
        let mut reserved = BTreeMap::new();
        for (id, bytes) in model.needs()? {
            let ledger = self.devices.get(id)?.ledger();
            // Room to work in is looked for together with the weights, and then left free.
            let working = model.plan().device(id).map_or(0, |planned| planned.working_bytes);
            if let Err(short) = ledger.reserve(bytes.saturating_add(working)) {
                self.make_room(id, model.id(), &short)?;
            }
            reserved.insert(id, ledger.reserve(bytes).map_err(device::Error::from)?);
        }
        Ok(reserved)
    }

    fn make_room(&self, device: DeviceId, except: ModelId, short: &OutOfMemory) -> Result<()> {
        let models: Vec<Arc<LoadedModel>> = self.lock().values().cloned().collect();
        let mut victims: Vec<(u64, &Arc<LoadedModel>)> = models
            .iter()
            .filter(|model| model.id() != except)
            .map(|model| (model.evictable_bytes(device), model))
            .filter(|(bytes, _)| *bytes > 0)
            .collect();
        let reclaimable: u64 = victims.iter().map(|(bytes, _)| bytes).sum();
        if short.available + reclaimable < short.wanted {
            return Err(Error::Device(device::Error::OutOfMemory(short.clone())));
        }
        victims.sort_by_key(|(_, model)| (model.retention().rank(), model.used_at()));
        let mut missing = short.wanted - short.available;
        for (bytes, model) in victims {
            if missing == 0 {
                break;
            }
            if model.evict() {
                missing = missing.saturating_sub(bytes);
            }
        }
        Ok(())
    }

    fn model(&self, id: ModelId) -> Result<Arc<LoadedModel>> {
        self.lock().get(&id).cloned().ok_or(Error::NoSuchModel { id })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<ModelId, Arc<LoadedModel>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
