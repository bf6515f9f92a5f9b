//! From a handle to an open session: planned, loaded, patched; and loaded again when it has gone.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use device::{Device, OutOfMemory};
use meta::DeviceId;
use placement::{Amounts, BlockMode, DeviceSpec, Overfull, Plan};
use residency::{Cancel, LoadOptions, Manifest, ModelId, Residency, Retention, Session, StreamStats};
use tensor::Lane;

use super::changed_files::trusted;
use super::handles::{Lora, patch_set};
use super::stats::ModelStats;
use super::{Cast, Network, Source, Studio};
use crate::Result;

/// Bytes per second of a link, good enough to place blocks by.
const NOMINAL_LINK: f64 = 20e9;

/// How much a network is to work on at once: a latent of this height and width, and tokens of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkSize {
    pub(crate) batch: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) text: usize,
}

impl WorkSize {
    /// One picture of 1024 by 1024 pixels.
    pub(crate) const USUAL: WorkSize = WorkSize { batch: 1, height: 128, width: 128, text: 256 };
}

/// What a network was loaded from, and how: two that are equal are one loaded model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LoadKey {
    file: PathBuf,
    modified: Option<SystemTime>,
    prefix: String,
    cast: Option<Cast>,
    compute: DeviceId,
    allocation: String,
}

/// A model in the registry, as it was loaded.
#[derive(Debug)]
pub(super) struct Loaded {
    id: ModelId,
    plan: Plan,
    family: String,
    /// Operations of one evaluation at the size that was planned for.
    operations: u64,
    /// The room to work in that the plan leaves.
    working_bytes: u64,
    /// The patches in force: files by signature, with their strengths.
    patches: Vec<(u64, u64)>,
}

/// What is loaded, by what it was loaded from.
pub(super) type LoadedModels = HashMap<LoadKey, Loaded>;

/// A model that is open for use.
pub(crate) struct Opened {
    pub(crate) session: Session,
    id: ModelId,
    /// Whether its times say how fast the device is: a diffusion model that waits for no copies.
    tells_speed: bool,
    before: StreamStats,
    compute: DeviceId,
    operations: u64,
}

/// What is opened: a network with its patches, at a size.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) source: &'a Source,
    /// The encoders of the same value, which say what LoRA files mean by their numbers.
    pub(crate) beside: &'a [Arc<Source>],
    pub(crate) loras: &'a [Lora],
    pub(crate) size: WorkSize,
}

impl Loaded {
    pub(super) fn id(&self) -> ModelId {
        self.id
    }
}

impl Studio {
    /// Registers a network as its loader says, before anything uses it, so that a plan that cannot be made is
    /// told at the loader. Nothing is copied yet.
    pub(crate) fn register(&self, source: &Source) -> Result<()> {
        let mut loaded = self.loaded();
        let key = LoadKey::of(source);
        self.forget_damaged(&mut loaded, &key);
        if let Some(known) = loaded.get(&key).filter(|known| self.is_loaded(known.id)) {
            self.residency.set_retention(known.id, source.placing.retention)?;
            if source.placing.eject_others {
                self.residency.evict_from(source.placing.compute, Some(known.id));
            }
            return Ok(());
        }
        let new = self.load(source, WorkSize::USUAL, 0)?;
        loaded.insert(key, new);
        Ok(())
    }

    /// Opens a network and works with it. If a device runs out of memory meanwhile, it is tried once more with
    /// more room: other models leave the device, and what is placed automatically keeps less there.
    pub(crate) fn with_session<T>(
        &self,
        wanted: Wanted<'_>,
        cancel: &Cancel,
        mut work: impl FnMut(&Opened) -> Result<T>,
    ) -> Result<T> {
        let first = self.open(wanted, cancel).and_then(|opened| trusted(&opened, &mut work));
        match first {
            Err(error) => {
                let Some(short) = error.out_of_memory() else { return Err(error) };
                tracing::warn!("{}: {short}; trying again with more room", wanted.source.name());
                self.make_room(wanted, short)?;
                self.open(wanted, cancel).and_then(|opened| trusted(&opened, &mut work))
            }
            done => done,
        }
    }

    /// Unloads a network that a node is done with, unless it was loaded to stay. Its next use loads it again.
    pub(crate) fn let_go(&self, source: &Source) -> Result<()> {
        let mut loaded = self.loaded();
        if source.placing.retention == Retention::Keep {
            return Ok(());
        }
        match loaded.remove(&LoadKey::of(source)).filter(|known| self.is_loaded(known.id)) {
            Some(known) => Ok(self.residency.unload(known.id)?),
            None => Ok(()),
        }
    }

    /// Notes what one evaluation took.
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
        if opened.tells_speed {
            self.stats.learn(opened.compute, opened.operations, seconds);
        }
    }

    fn open(&self, wanted: Wanted<'_>, cancel: &Cancel) -> Result<Opened> {
        let mut loaded = self.loaded();
        let key = LoadKey::of(wanted.source);
        self.forget_damaged(&mut loaded, &key);
        if !loaded.get(&key).is_some_and(|known| self.is_loaded(known.id)) {
            let new = self.load(wanted.source, wanted.size, 0)?;
            loaded.insert(key.clone(), new);
        }
        let need = wanted.source.working_bytes(wanted.size, self.element_bytes(wanted.source)?);
        if let Some(known) = loaded.get(&key)
            && known.working_bytes < need
            && is_automatic(wanted.source)
            && let Some(larger) = self.planned_anew(wanted, known)?
        {
            loaded.insert(key.clone(), larger);
        }
        let known = loaded.get_mut(&key).expect("it was put there if it was missing");
        let bits = |lora: &Lora| (lora.file.signature(), lora.strength.to_bits());
        let patches: Vec<(u64, u64)> = wanted.loras.iter().map(bits).collect();
        if known.patches != patches {
            let set = patch_set(wanted.source, wanted.beside, wanted.loras)?;
            self.residency.set_patches_unless(known.id, set, cancel)?;
            known.patches = patches;
        }
        let session = self.residency.open(known.id, cancel)?;
        // Patches and placing do not depend on the size, the times do.
        let operations = wanted.source.operations(wanted.size)?;
        let prediction = &known.plan.prediction;
        let share = operations as f64 / known.operations.max(1) as f64;
        let predicted_s = if operations == known.operations {
            prediction.seconds_per_step
        } else {
            prediction.copy_s.max(prediction.compute_s * share + prediction.hop_s)
        };
        let opened = Opened {
            before: session.stats(),
            session,
            id: known.id,
            tells_speed: matches!(wanted.source.network, Network::Flux(..))
                && known.plan.blocks.iter().all(|block| block.mode == BlockMode::Resident),
            compute: known.plan.compute,
            operations,
        };
        self.stats.begin(ModelStats {
            id: known.id,
            name: wanted.source.name(),
            family: known.family.clone(),
            compute: known.plan.compute,
            predicted_s,
            measured_s: 0.0,
            last_s: 0.0,
            evaluations: 0,
            bytes_streamed: 0,
            stalls: 0,
            stalled: Duration::ZERO,
        });
        Ok(opened)
    }

    /// Loads a network for a size, with so much room to work in besides.
    fn load(&self, source: &Source, size: WorkSize, more_bytes: u64) -> Result<Loaded> {
        let manifest = source.manifest(size)?;
        let element_bytes = self.element_bytes(source)?;
        let working_bytes = source.working_bytes(size, element_bytes).saturating_add(more_bytes);
        let plan =
            self.plan(source, &manifest, working_bytes, source.activation_bytes(size, element_bytes))?;
        for note in &plan.notes {
            tracing::info!("{}: {note}", source.name());
        }
        let placing = &source.placing;
        let options =
            LoadOptions { retention: placing.retention, dtype: None, eject_others: placing.eject_others };
        let (family, operations) = (manifest.family().to_owned(), source.operations(size)?);
        let id = self.residency.load(manifest, plan.clone(), options)?;
        Ok(Loaded { id, plan, family, operations, working_bytes, patches: Vec::new() })
    }

    /// The network planned for more room than it was: loaded anew, or none if the plan stays the same.
    fn planned_anew(&self, wanted: Wanted<'_>, known: &Loaded) -> Result<Option<Loaded>> {
        let manifest = wanted.source.manifest(wanted.size)?;
        let element_bytes = self.element_bytes(wanted.source)?;
        let working_bytes = wanted.source.working_bytes(wanted.size, element_bytes);
        let activations = wanted.source.activation_bytes(wanted.size, element_bytes);
        let plan = self.plan(wanted.source, &manifest, working_bytes, activations)?;
        if plan.blocks == known.plan.blocks && plan.ring == known.plan.ring {
            return Ok(None);
        }
        self.residency.unload(known.id)?;
        self.load(wanted.source, wanted.size, 0).map(Some)
    }

    fn plan(&self, source: &Source, manifest: &Manifest, working: u64, activations: u64) -> Result<Plan> {
        let speed = self.stats.speed(source.placing.compute);
        let compute = source.placing.compute;
        let mut request = Residency::plan_request(manifest, compute, self.device_specs(), |operations| {
            operations as f64 / speed
        });
        request.allocation = source.placing.allocation.clone();
        request.overfull = Overfull::Trim;
        let workspace = self.devices.get(compute)?.workspace_bytes();
        request.working_bytes = working.saturating_add(workspace);
        request.activation_bytes = activations;
        Ok(placement::plan(&request)?)
    }

    /// Every device, with what is free on it or would be if no other model had copies there.
    fn device_specs(&self) -> Vec<DeviceSpec> {
        let models = self.residency.models();
        let held = |id: DeviceId| -> u64 {
            let here = models.iter().flat_map(|model| &model.bytes).filter(|(device, _)| *device == id);
            here.map(|(_, bytes)| bytes).sum()
        };
        let spec = |device: &Device| {
            let report = device.ledger().report();
            DeviceSpec {
                id: device.id(),
                total_bytes: report.budget,
                available_bytes: report.available().saturating_add(held(device.id())).min(report.budget),
                link_bytes_per_s: NOMINAL_LINK,
                compute_factor: 1.0,
                reaches: Vec::new(),
            }
        };
        self.devices.iter().map(spec).collect()
    }

    /// After a device ran out of memory: others leave it, and a network that is placed automatically is loaded
    /// with more room to work in.
    fn make_room(&self, wanted: Wanted<'_>, short: &OutOfMemory) -> Result<()> {
        let mut loaded = self.loaded();
        let key = LoadKey::of(wanted.source);
        let known = loaded.remove(&key).filter(|known| self.is_loaded(known.id));
        self.residency.evict_from(short.device, known.as_ref().map(|known| known.id));
        self.devices.trim()?;
        let Some(known) = known else { return Ok(()) };
        if !is_automatic(wanted.source) {
            loaded.insert(key, known);
            return Ok(());
        }
        self.residency.unload(known.id)?;
        let more = short.wanted.saturating_sub(short.available).max(known.working_bytes / 4);
        loaded.insert(key, self.load(wanted.source, wanted.size, more)?);
        Ok(())
    }

    fn element_bytes(&self, source: &Source) -> Result<usize> {
        Ok(Lane::preferred(self.devices.get(source.placing.compute)?)?.dtype().bytes())
    }

    fn is_loaded(&self, id: ModelId) -> bool {
        self.residency.models().iter().any(|model| model.id == id)
    }

    fn loaded(&self) -> MutexGuard<'_, LoadedModels> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoadKey {
    pub(super) fn file(&self) -> &std::path::Path {
        &self.file
    }

    fn of(source: &Source) -> LoadKey {
        LoadKey {
            file: source.file.path().to_owned(),
            modified: source.modified,
            prefix: source.prefix.clone(),
            cast: source.cast,
            compute: source.placing.compute,
            allocation: source.placing.allocation.as_str().to_owned(),
        }
    }
}

fn is_automatic(source: &Source) -> bool {
    source.placing.allocation.allocation().amounts == Amounts::Automatic
}
