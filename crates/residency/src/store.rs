//! The registry of loaded models: it owns them, finds room for their copies, and lets them go.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use device::{Cancel, OutOfMemory, Registry};
use meta::{DType, DeviceId};
use patch::PatchSet;
use placement::{BlockSpec, DeviceSpec, Plan, PlanRequest};
use tensor::Lane;

use crate::claim::{self, ModelClaim, Models, Reference};
use crate::coding;
use crate::layout::BlockLayout;
use crate::model::LoadedModel;
use crate::needs::{self, Bytes};
use crate::patching::Reserved;
use crate::reading;
use crate::session::Session;
use crate::staging::Staging;
use crate::{
    CodingReport, CodingTime, Error, Manifest, ModelId, ModelReport, Result, Retention, SideCars,
    SnapshotSeries, StepProfile,
};

/// Snapshots that are kept.
const SNAPSHOTS: usize = 1000;

/// All loaded models, on the devices of one machine.
///
/// Whatever only asks answers at once: no lock that it takes is held while copies are made, changed or freed.
pub struct Residency {
    devices: Registry,
    models: Arc<Models>,
    next_id: AtomicU64,
    clock: AtomicU64,
    snapshots: SnapshotSeries,
    pub(crate) missing_kept: AtomicU64,
    cars: Option<Arc<SideCars>>,
}

/// How a model is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions {
    /// Whether it stays when models are asked to leave.
    pub retention: Retention,
    /// The type of its activations, f32 on devices that have not this one; the device's preferred one if not given.
    pub dtype: Option<DType>,
    /// Before it loads, every other model leaves its compute device (their registration stays).
    pub eject_others: bool,
    /// When blocks are coded that its plan wants coded.
    pub coding: CodingTime,
}

/// How a model is opened. What is not said is as for any other session.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// The plan for the device on which it is to compute, unless there are copies for that device already; the plan under
    /// which the model was loaded if it is not given.
    pub plan: Option<Plan>,
    /// The patch set; the one of [`Residency::set_patches`] if it is not given.
    pub patches: Option<PatchSet>,
}

impl Residency {
    /// An empty registry.
    pub fn new(devices: Registry) -> Residency {
        Residency {
            devices,
            models: Arc::default(),
            next_id: AtomicU64::new(1),
            clock: AtomicU64::new(1),
            snapshots: SnapshotSeries::new(SNAPSHOTS),
            missing_kept: AtomicU64::new(0),
            cars: None,
        }
    }

    /// The same, which keeps coded blocks in files for the next start.
    #[must_use]
    pub fn keeping_coded(self, cars: SideCars) -> Residency {
        Residency { cars: Some(Arc::new(cars)), ..self }
    }

    /// Where coded blocks are kept, if they are.
    pub fn side_cars(&self) -> Option<&SideCars> {
        self.cars.as_deref()
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

    /// What the planner needs to know of a model: its blocks as they lie on a device. How long they compute is for
    /// the caller to say.
    pub fn plan_request(manifest: &Manifest, compute: DeviceId, devices: Vec<DeviceSpec>) -> PlanRequest {
        let block = |(index, block): (usize, &crate::BlockSpec)| BlockSpec {
            name: block.name.clone(),
            bytes: BlockLayout::new(manifest, index).len() as u64,
            compute_seconds: 0.0,
            pinned: block.fixed,
        };
        PlanRequest::new(manifest.blocks().iter().enumerate().map(block).collect(), devices, compute)
    }

    /// For each block the bytes that it would have in host memory and on the link when it is losslessly coded, from a look
    /// at some of its values; none for one that does not shrink.
    pub fn coded_bytes(manifest: &Manifest) -> Vec<Option<u64>> {
        (0..manifest.blocks().len()).map(|block| estimated(manifest, block)).collect()
    }

    /// The same, as far as it is known from blocks that are kept from an earlier start: their values need no look.
    pub fn coded_bytes_known(&self, manifest: &Manifest) -> Vec<Option<u64>> {
        let known = self.cars.as_ref().and_then(|cars| cars.sizes(manifest)).unwrap_or_default();
        let bytes = |(index, block): (usize, &crate::BlockSpec)| {
            known.get(&block.name).copied().or_else(|| estimated(manifest, index))
        };
        manifest.blocks().iter().enumerate().map(bytes).collect()
    }

    /// For each block whether it can be read from the disk at every step, if host memory does not hold it. Only one with
    /// weights that are cast and lie in their file as no value may cannot.
    pub fn readable(manifest: &Manifest) -> Vec<bool> {
        (0..manifest.blocks().len()).map(|block| reading::is_readable(manifest.weights_of(block))).collect()
    }

    /// The system's name for the disk that a model's weights are on, or `disk` where it tells none. None if they are on no
    /// disk.
    pub fn disk_name(manifest: &Manifest) -> Option<String> {
        let files = Manifest::files_of(manifest.weights());
        let on_disk = files.iter().find(|bytes| bytes.file_stamp().is_some())?;
        Some(on_disk.disk().map_or_else(|| "disk".to_owned(), |number| format!("{number:x}")))
    }

    /// Bytes per second at which a model's weights are read from the disk, as it is measured now, for a moment. None if
    /// they are on no disk.
    pub fn disk_bytes_per_s(manifest: &Manifest) -> Option<f64> {
        reading::disk_bytes_per_s(manifest)
    }

    /// Whether coded blocks of a model are kept from an earlier start, so that nothing has to be coded.
    pub fn keeps_coded(&self, manifest: &Manifest) -> bool {
        self.cars.as_ref().is_some_and(|cars| cars.sizes(manifest).is_some())
    }

    /// Bytes of host memory into which a plan casts weights: all that staging takes of the host beside the mapped file,
    /// but for a GPU that cannot pin files.
    pub fn host_bytes(manifest: &Manifest, plan: &Plan) -> u64 {
        needs::cast_on_host(manifest, plan)
    }

    /// The most bytes that a patch set takes on a lane's device while it is in force there: what it holds, and what merging
    /// the largest weight takes for a moment. A plan that leaves so much more room to work in can be patched.
    pub fn patch_bytes(manifest: &Manifest, patches: &PatchSet, lane: &Lane) -> Result<u64> {
        needs::most_patch_bytes(manifest, patches, lane)
    }

    /// Registers a model under a plan. Its copies are made when it is first opened. A plan that asks for
    /// more than a device's budget is refused here, before any byte moves.
    pub fn load(&self, manifest: Manifest, plan: Plan, options: LoadOptions) -> Result<ModelId> {
        let (id, compute) = (ModelId(self.next_id.fetch_add(1, Ordering::Relaxed)), plan.compute);
        let model = LoadedModel::new(id, manifest, plan, &self.devices, options, self.cars.clone())?;
        self.check_budgets(&model.main())?;
        if options.eject_others {
            self.evict_from(compute, None);
        }
        self.lock().insert(id, Arc::new(model));
        Ok(id)
    }

    /// An error if a device could never hold what a staging has there.
    fn check_budgets(&self, staging: &Staging) -> Result<()> {
        for (device, bytes) in &staging.needs().kept {
            let report = self.devices.get(*device)?.ledger().report();
            if *bytes > report.budget {
                return Err(Error::Device(device::Error::OutOfMemory(OutOfMemory {
                    device: *device,
                    wanted: *bytes,
                    available: report.budget,
                    budget: report.budget,
                    used: report.used,
                    reserved: report.reserved,
                    op: None,
                })));
            }
        }
        Ok(())
    }

    /// Makes a model's copies if they are not there, and opens it for use. Whoever opens it at the same time waits for
    /// these copies.
    pub fn open(&self, id: ModelId, cancel: &Cancel) -> Result<Session> {
        self.open_as(id, Opening::default(), cancel)
    }

    /// The same on a device and with a patch set of its own. Sessions with other sets, or on other devices, may be open
    /// meanwhile: they have copies of their own.
    pub fn open_as(&self, id: ModelId, opening: Opening, cancel: &Cancel) -> Result<Session> {
        let (model, reference) = self.refer(id)?;
        model.touch(self.clock.fetch_add(1, Ordering::Relaxed));
        let (used, patches) = model.choose(&self.devices, opening)?;
        let staging = used.staging();
        self.check_budgets(staging)?;
        let changing = staging.change();
        // Somebody before us may have failed to give the copies the set that we all want.
        if !staging.has(&patches) {
            staging.want(patches);
        }
        if staging.is_behind() {
            let mut reserve = |bytes: &Bytes| self.reserve_patches(staging, bytes);
            staging.patch(model.manifest(), &mut reserve, cancel)?;
        }
        // Files of coded blocks that were damaged since are made again.
        let staged = match staging.staged().filter(|staged| staged.is_intact()) {
            Some(staged) => staged,
            None => {
                let reserved = self.reserve(model.manifest(), staging)?;
                staging.stage(model.manifest(), &self.devices, reserved, cancel)?
            }
        };
        drop(changing);
        Ok(Session::new(model, (used, staged), cancel.clone(), reference))
    }

    /// Puts a patch set in force for a model, for the sessions to come that name none; the number of weights staged again.
    /// A session that is open keeps the set that it has.
    pub fn set_patches(&self, id: ModelId, patches: PatchSet) -> Result<usize> {
        self.set_patches_unless(id, patches, &Cancel::NEVER)
    }

    /// The same, unless it is cancelled meanwhile.
    pub fn set_patches_unless(&self, id: ModelId, patches: PatchSet, cancel: &Cancel) -> Result<usize> {
        let model = self.model(id)?;
        let (used, before) = model.want(patches);
        let staging = used.staging();
        let changing = staging.change();
        let mut reserve = |bytes: &Bytes| self.reserve_patches(staging, bytes);
        let patched = staging.patch(model.manifest(), &mut reserve, cancel);
        if patched.is_err() {
            model.take_back(&used, before);
        }
        drop(changing);
        patched
    }

    /// Whether nobody found a file of the model changed or damaged so far. One that is not intact has to be loaded anew
    /// from a file that is opened anew.
    pub fn is_intact(&self, id: ModelId) -> Result<bool> {
        Ok(self.model(id)?.manifest().is_intact())
    }

    /// Whether a model is loaded.
    pub fn contains(&self, id: ModelId) -> bool {
        self.lock().contains_key(&id)
    }

    /// A claim on a model, for a handle that means it. See [`Residency::supersede`].
    pub fn claim(&self, id: ModelId) -> Result<ModelClaim> {
        Ok(ModelClaim::new(self.refer(id)?.1))
    }

    /// Says that one loader's later model takes the place of its earlier one. The earlier one leaves as soon as no session
    /// and no claim refers to it, and is nowhere counted as kept from now on. Where the later loader said nothing of
    /// staying, what the earlier said passes on.
    pub fn supersede(&self, earlier: ModelId, later: ModelId) -> Result<()> {
        let new = self.model(later)?;
        new.usage().set_superseded(false);
        if earlier == later {
            return Ok(());
        }
        // One that has left already has nothing to say any more.
        let Ok(old) = self.model(earlier) else { return Ok(()) };
        if new.retention() == Retention::Default {
            new.set_retention(old.retention());
        }
        old.usage().set_superseded(true);
        drop(old);
        claim::leave_if_superseded(&self.models, earlier);
        Ok(())
    }

    /// Whether a model's copies are on their devices now.
    pub fn is_staged(&self, id: ModelId) -> bool {
        self.model(id).is_ok_and(|model| !model.copies().is_empty())
    }

    /// Whether a model stays.
    pub fn retention(&self, id: ModelId) -> Result<Retention> {
        Ok(self.model(id)?.retention())
    }

    /// The bytes of a model's copies and how long making them took, told once, when all of them are where they stay.
    pub fn take_load_time(&self, id: ModelId) -> Option<(u64, Duration)> {
        let stagings = self.model(id).ok()?.stagings();
        let time = |staging: &Arc<Staging>| {
            let time = staging.staged()?.take_load_time()?;
            Some((staging.needs().held().values().sum(), time))
        };
        stagings.iter().find_map(time)
    }

    /// Where the time of a model's latest step went, if it has made one.
    pub fn profile(&self, id: ModelId) -> Option<StepProfile> {
        self.model(id).ok()?.copies().iter().find_map(|staged| staged.recorder().latest())
    }

    /// How a model's blocks are kept that its plan wants coded; none if there are none, or no copies.
    pub fn coding(&self, id: ModelId) -> Option<CodingReport> {
        self.model(id).ok()?.copies().iter().find_map(|staged| staged.coding())
    }

    /// Bytes that the copies of all models but for some take of each device.
    pub fn bytes_held(&self, except: &[ModelId]) -> BTreeMap<DeviceId, u64> {
        let mut held = BTreeMap::new();
        let others = self.all().into_iter().filter(|model| !except.contains(&model.id()));
        let stagings = others.flat_map(|model| model.stagings());
        for staging in stagings.filter(|staging| staging.staged().is_some()) {
            for (device, bytes) in &staging.needs().kept {
                *held.entry(*device).or_default() += bytes;
            }
        }
        held
    }

    /// Bytes that the copies of a model take of a device; 0 if it has none.
    pub fn bytes_held_by(&self, id: ModelId, device: DeviceId) -> u64 {
        let stagings = self.model(id).map_or_else(|_| Vec::new(), |model| model.stagings());
        let held = stagings.iter().filter(|staging| staging.staged().is_some());
        held.filter_map(|staging| staging.needs().kept.get(&device)).sum()
    }

    /// Says whether a model stays.
    pub fn set_retention(&self, id: ModelId, retention: Retention) -> Result<()> {
        self.model(id)?.set_retention(retention);
        Ok(())
    }

    /// Lets a model go, whatever its retention. A session that uses it keeps its copies until it ends.
    pub fn unload(&self, id: ModelId) -> Result<()> {
        let gone = self.lock().remove(&id);
        gone.ok_or(Error::NoSuchModel { id })?.forget_copies();
        Ok(())
    }

    /// Forgets the device copies of every model that has some on `device`, but for `except`.
    pub fn evict_from(&self, device: DeviceId, except: Option<ModelId>) -> Vec<ModelId> {
        let models = self.all();
        let others = models.iter().filter(|model| Some(model.id()) != except);
        let there = others.filter(|model| model.evictable_bytes(device, None) > 0);
        there.filter(|model| model.evict(None)).map(|model| model.id()).collect()
    }

    /// All loaded models, by id.
    pub fn models(&self) -> Vec<ModelReport> {
        self.all().iter().map(|model| model.report()).collect()
    }

    /// Promises to a staging what its copies need, letting other copies go where it is short: first those of models that
    /// others took the place of or that are marked to go, then the others, kept models last; of each the least recently
    /// used; and only as many as are needed. If all of them would not do, none goes.
    fn reserve(&self, manifest: &Manifest, staging: &Arc<Staging>) -> Result<Reserved> {
        let mut reserved = Reserved::new();
        let patches = staging.patch_bytes(manifest, &self.devices)?;
        let needs = staging.needs();
        let mut all: Bytes = needs.kept.clone();
        patches.keys().chain(needs.once.keys()).for_each(|device| {
            all.entry(*device).or_default();
        });
        for (id, kept) in all {
            let of = |bytes: &Bytes| bytes.get(&id).copied().unwrap_or(0);
            // What patches take and what casting takes for a moment comes out of the room to work in: a plan leaves that.
            let besides = of(&patches) + of(&needs.once);
            self.make_room(id, staging, kept.saturating_add(besides))?;
            let ledger = self.devices.get(id)?.ledger();
            reserved.insert(id, ledger.reserve(kept + besides).map_err(device::Error::from)?);
        }
        Ok(reserved)
    }

    /// The same for patches of a staging whose copies are there.
    fn reserve_patches(&self, staging: &Arc<Staging>, bytes: &Bytes) -> Result<Reserved> {
        let mut reserved = Reserved::new();
        for (id, bytes) in bytes {
            let ledger = self.devices.get(*id)?.ledger();
            if let Err(short) = ledger.reserve(*bytes) {
                self.evict_for(*id, staging, &short)?;
            }
            reserved.insert(*id, ledger.reserve(*bytes).map_err(device::Error::from)?);
        }
        Ok(reserved)
    }

    /// Looks for room for copies together with room to work in, which is then left free.
    fn make_room(&self, device: DeviceId, staging: &Arc<Staging>, bytes: u64) -> Result<()> {
        let kept = staging.needs().kept.get(&device).copied().unwrap_or(0);
        let working = staging.plan().device(device).map_or(0, |planned| planned.working_bytes);
        let wanted = bytes.max(kept.saturating_add(working));
        match self.devices.get(device)?.ledger().reserve(wanted) {
            Ok(_) => Ok(()),
            Err(short) => self.evict_for(device, staging, &short),
        }
    }

    fn evict_for(&self, device: DeviceId, except: &Arc<Staging>, short: &OutOfMemory) -> Result<()> {
        let models = self.all();
        let mut victims: Vec<(u64, &Arc<LoadedModel>)> = models
            .iter()
            .map(|model| (model.evictable_bytes(device, Some(except)), model))
            .filter(|(bytes, _)| *bytes > 0)
            .collect();
        let reclaimable: u64 = victims.iter().map(|(bytes, _)| bytes).sum();
        if short.available + reclaimable < short.wanted {
            return Err(Error::Device(device::Error::OutOfMemory(short.clone())));
        }
        let rank = |model: &LoadedModel| (!model.usage().is_superseded(), model.retention().rank());
        victims.sort_by_key(|(_, model)| (rank(model), model.used_at()));
        let mut missing = short.wanted - short.available;
        for (bytes, model) in victims {
            if missing == 0 {
                break;
            }
            if model.evict(Some(except)) {
                missing = missing.saturating_sub(bytes);
            }
        }
        Ok(())
    }

    /// A model, and one more reference to it.
    fn refer(&self, id: ModelId) -> Result<(Arc<LoadedModel>, Reference)> {
        let models = self.lock();
        let model = models.get(&id).cloned().ok_or(Error::NoSuchModel { id })?;
        let reference = Reference::new(&model, &self.models);
        Ok((model, reference))
    }

    pub(crate) fn model(&self, id: ModelId) -> Result<Arc<LoadedModel>> {
        self.lock().get(&id).cloned().ok_or(Error::NoSuchModel { id })
    }

    fn all(&self) -> Vec<Arc<LoadedModel>> {
        self.lock().values().cloned().collect()
    }

    pub(crate) fn shared_models(&self) -> Arc<Models> {
        Arc::clone(&self.models)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<ModelId, Arc<LoadedModel>>> {
        claim::lock(&self.models)
    }
}

/// The bytes of a block when it is coded, from some of its values; none of one that stays where it computes in any case.
fn estimated(manifest: &Manifest, block: usize) -> Option<u64> {
    if manifest.blocks()[block].fixed {
        return None;
    }
    coding::coded_bytes(manifest.weights_of(block), &BlockLayout::new(manifest, block))
}
