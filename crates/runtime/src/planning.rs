//! The one planner: every plan that is shown or carried out is made here, from what was measured of the machine and from
//! a rehearsal of the work.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use device::Device;
use meta::{ByteSize, DType, DeviceId, DeviceKind};
use placement::{
    Coding, CodingPolicy, DeviceSpec, Disk, HostRoom, MachineProfile, Overfull, PeerLink, Plan, PlanError,
    PlanRequest, Prediction,
};
use residency::{Manifest, ModelId, Residency};
use tensor::Lane;

use crate::Result;
use crate::footprint::Footprint;
use crate::profiling;
use crate::{Runtime, Source, Work};

/// Coded blocks leave one in so many of the host's bytes free.
const HOST_LEFT_FREE: u64 = 8;
/// Rehearsals that are remembered; all are forgotten when there are more.
const MOST_FOOTPRINTS: usize = 512;

/// The share of host memory that the weights of one network may take. The rest is for other networks, pictures and whatever
/// else runs: where it is missing, the system forgets pages of files that are needed again in the next step.
pub const HOST_SHARE: f64 = 0.85;

/// A plan with what it was made from.
#[derive(Clone, Debug)]
pub struct Planned {
    pub plan: Plan,
    /// What it was made for: the work that was asked for, or the same in tiles.
    pub work: Work,
    /// The element type of activations.
    pub dtype: DType,
    /// What the work takes of each device that may compute, uncorrected by what was learnt.
    pub footprints: HashMap<DeviceId, Arc<Footprint>>,
    /// The name under which times are learnt.
    pub workload: String,
    /// How many weights have products of 8 bits where the model computes.
    pub fp8_products: usize,
    pub(crate) request: PlanRequest,
}

impl Planned {
    /// Bytes to work in that the plan leaves on the compute device.
    pub fn working_bytes(&self) -> u64 {
        self.request.working_bytes
    }

    /// Bytes of the compute device that it cannot do without: what stays there whatever the plan, two blocks that stream,
    /// and room to work in.
    pub(crate) fn least_bytes(&self) -> u64 {
        let blocks = || self.request.blocks.iter();
        let fixed: u64 = blocks().filter(|block| block.pinned).map(|block| block.bytes).sum();
        let largest = blocks().filter(|block| !block.pinned).map(|block| block.bytes).max().unwrap_or(0);
        fixed.saturating_add(largest.saturating_mul(2)).saturating_add(self.working_bytes())
    }

    /// Bytes on the compute device that the work goes on holding between its steps.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.footprints.get(&self.plan.compute).map_or(0, |footprint| footprint.held_bytes)
    }

    /// What a step would take under another plan for the same model, which is in force.
    pub fn predict(&self, in_force: &Plan) -> Result<Prediction> {
        Ok(placement::predict(&self.request, in_force)?)
    }

    /// Seconds that a step is predicted to take before the blocks are coded that are to be; those of the plan if none is.
    pub(crate) fn plain_step_s(&self) -> Result<f64> {
        match self.plan.before_coding() {
            Some(plain) => Ok(self.predict(&plain)?.seconds_per_step),
            None => Ok(self.plan.prediction.seconds_per_step),
        }
    }
}

/// What is asked of the planner besides the network.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand<'a> {
    /// The work; none before any is known, when only the weights must find a place.
    pub work: Option<&'a Work>,
    /// Bytes on the compute device beside weights and activations: factors of patches.
    pub patch_bytes: u64,
    /// Room on the compute device for others, or that it turned out to need besides.
    pub more_bytes: u64,
    /// Models that are open meanwhile: their copies do not leave.
    pub beside: &'a [ModelId],
    /// The network as it is loaded now, if it is: its copies leave before others are made.
    pub own: Option<ModelId>,
    /// Whether it is for another machine, which has as much host memory as the device `cpu` says, whatever this one has
    /// free.
    pub elsewhere: bool,
}

/// What a footprint is remembered by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FootprintKey {
    identity: super::loading::Identity,
    device: DeviceId,
    dtype: DType,
    work: Work,
}

impl Runtime {
    /// Where the blocks of a network go for this work. Work that can be done in tiles is, where a whole picture has no
    /// room.
    pub fn plan(&self, source: &Source, demand: Demand<'_>) -> Result<Planned> {
        let manifest = source.manifest()?;
        let mut planned = self.plan_as_asked(source, &manifest, demand);
        let smaller = demand
            .work
            .into_iter()
            .flat_map(|work| work.smaller_tiles().iter().filter_map(|tile| work.in_tiles(*tile)));
        for tiled in smaller {
            // The error that is told in the end is that of the smallest tiles: what they need is the least.
            if !matches!(planned, Err(crate::Error::Plan(PlanError::NoRoom { .. }))) {
                break;
            }
            planned = self.plan_as_asked(source, &manifest, Demand { work: Some(&tiled), ..demand });
        }
        planned
    }

    fn plan_as_asked(&self, source: &Source, manifest: &Manifest, demand: Demand<'_>) -> Result<Planned> {
        let compute = source.placing.compute;
        let dtype = self.activations_of(source)?;
        let profile = self.profile.measured(&self.devices)?;
        let footprints = match demand.work {
            None => HashMap::new(),
            Some(work) => self.footprints(source, manifest, work, (dtype, &profile))?,
        };
        let work = demand.work.cloned().unwrap_or(Work::Text { chunks: 0, tokens: 0 });
        let (fp8_products, fp8_bytes) = self.fp8_products(source, manifest, dtype)?;
        let how = if fp8_products > 0 { "with 8-bit products " } else { "" };
        let family = format!("{} {} {dtype} {how}", manifest.family(), stored_as(manifest));
        let workload = format!("{family}{}", work.name());
        let corrected = |id: DeviceId| {
            let seconds = footprints.get(&id).map_or(0.0, |footprint| footprint.seconds());
            seconds * profiling::of(&profile, id).correction(&workload, &family)
        };
        let own = corrected(compute);
        let factor = |id: DeviceId| if own > 0.0 && corrected(id) > 0.0 { corrected(id) / own } else { 1.0 };
        let mut specs = self.device_specs(&profile, demand.beside, factor);
        specs.retain(|spec| self.may_use(source, spec.id));
        let disk = self.disk(manifest, &specs, (compute, demand.elsewhere))?;
        let mut request = Residency::plan_request(manifest, compute, specs);
        // What a block takes where it computes, with the device's rounding.
        let device = self.devices.get(compute)?;
        request
            .blocks
            .iter_mut()
            .for_each(|block| block.bytes = device.allocation_bytes(block.bytes as usize));
        request.allocation = source.placing.allocation.clone();
        request.overfull = Overfull::Trim;
        request.disk = disk;
        // A card's copies write into the memory that its kernels read; a peer on the same card reads from it, too.
        let memory = profiling::of(&profile, compute).memory_bytes_per_s.filter(|speed| *speed > 0.0);
        if let Some(memory) = memory.filter(|_| compute.kind == DeviceKind::Cuda) {
            request.arrival_s_per_byte = 2.0 / memory;
        }
        request.copy_slowdown = profiling::of(&profile, compute).copy_slowdown();
        request.working_bytes = demand.patch_bytes.saturating_add(demand.more_bytes);
        if let Some(footprint) = footprints.get(&compute) {
            let known = profiling::of(&profile, compute);
            let correction = known.correction(&workload, &family);
            request.outside = known.outside(&workload);
            for (block, seconds) in request.blocks.iter_mut().zip(&footprint.block_seconds) {
                block.compute_seconds = seconds * correction;
            }
            request.working_bytes = request.working_bytes.saturating_add(footprint.working_bytes);
            request.activation_bytes = footprint.handed_bytes;
        }
        let decode_bytes_per_s = profiling::of(&profile, compute).decode_bytes_per_s;
        let mut plan = self.plan_coded(source, manifest, demand, (&mut request, decode_bytes_per_s))?;
        if fp8_products > 0 {
            plan.notes.push(format!(
                "8-bit products with {fp8_products} weights of {}: activations are rounded to fp8 row by row; --exact turns \
                 that off",
                ByteSize(fp8_bytes)
            ));
        }
        Ok(Planned { plan, work, dtype, footprints, workload, fp8_products, request })
    }

    /// How many weights of a network have products of 8 bits where it computes, and their bytes.
    fn fp8_products(&self, source: &Source, manifest: &Manifest, dtype: DType) -> Result<(usize, u64)> {
        let device = self.devices.get(source.placing.compute)?.description();
        let has = device.capabilities.fp8_products.contains(&dtype);
        Ok(if has { manifest.fp8_products() } else { (0, 0) })
    }

    /// Whether a plan for a network may use a device: those of other workers only if the user names them.
    fn may_use(&self, source: &Source, device: DeviceId) -> bool {
        let placing = &source.placing;
        device == placing.compute
            || device == DeviceId::CPU
            || !self.settings.workers.contains(&device)
            || placing.allocation.allocation().devices().contains(&device)
    }

    /// The disk, for a network that is larger than what weights may take of host memory.
    fn disk(
        &self,
        manifest: &Manifest,
        specs: &[DeviceSpec],
        (compute, elsewhere): (DeviceId, bool),
    ) -> Result<Option<Disk>> {
        let host = specs.iter().find(|spec| spec.id == DeviceId::CPU && compute != DeviceId::CPU);
        let Some(host) = host else { return Ok(None) };
        // What the ledger has is Gantry's; what the system has is what others leave. A system that tells nothing tells 0.
        let free = self.devices.get(DeviceId::CPU)?.memory()?.free;
        let held = self.residency.bytes_held(&[]).get(&DeviceId::CPU).copied().unwrap_or(0);
        let system = if free > 0 && !elsewhere { free.saturating_add(held) } else { u64::MAX };
        let host_bytes = (host.available_bytes.min(system) as f64 * HOST_SHARE) as u64;
        if manifest.bytes() <= host_bytes {
            return Ok(None);
        }
        let name = Residency::disk_name(manifest);
        let measure = || Residency::disk_bytes_per_s(manifest);
        let measured = name.and_then(|name| self.profile.disk(&name, measure));
        let readable = Residency::readable(manifest);
        Ok(measured.map(|bytes_per_s| Disk { host_bytes, bytes_per_s, readable }))
    }

    /// The plan, with blocks coded as the settings say. What blocks would be coded is told by their values, which may be on a
    /// disk: unless coding is forced, nobody looks where steps are as fast without it or do not repeat.
    fn plan_coded(
        &self,
        source: &Source,
        manifest: &Manifest,
        demand: Demand<'_>,
        (request, decode_bytes_per_s): (&mut PlanRequest, Option<f64>),
    ) -> Result<Plan> {
        let policy = self.settings.coding;
        // A plan that is in force may have coded blocks, whatever this one has.
        request.coding.decode_bytes_per_s = decode_bytes_per_s;
        let wants = match policy {
            CodingPolicy::Off => false,
            CodingPolicy::Auto => decode_bytes_per_s.is_some() && demand.work.is_some_and(Work::repeats),
            CodingPolicy::Force => true,
        };
        if !wants || source.placing.compute == DeviceId::CPU {
            return Ok(placement::plan(request)?);
        }
        if policy == CodingPolicy::Auto
            && let Ok(plain) = placement::plan(request)
            && plain.ring.is_none()
        {
            return Ok(plain);
        }
        request.coding = Coding {
            policy,
            coded_bytes: self.coded_sizes(source, manifest)?,
            decode_bytes_per_s,
            host: Some(self.host_room(source, manifest, demand.own)?),
        };
        Ok(placement::plan(request)?)
    }

    /// The bytes that a network's blocks have when they are coded.
    fn coded_sizes(&self, source: &Source, manifest: &Manifest) -> Result<Vec<Option<u64>>> {
        let identity = super::loading::Identity::of(source);
        let known = self.coded_bytes.lock().unwrap_or_else(PoisonError::into_inner).get(&identity).cloned();
        let sizes = match known {
            Some(known) => known,
            None => {
                let found: Arc<[Option<u64>]> = self.residency.coded_bytes_known(manifest).into();
                let mut kept = self.coded_bytes.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() >= MOST_FOOTPRINTS {
                    kept.clear();
                }
                Arc::clone(kept.entry(identity).or_insert(found))
            }
        };
        // A slot takes what the device gives for it, as a block does.
        let device = self.devices.get(source.placing.compute)?;
        let taken = |bytes: &Option<u64>| bytes.map(|bytes| device.allocation_bytes(bytes as usize));
        Ok(sizes.iter().map(taken).collect())
    }

    /// What a network's coded blocks may take of the host: what is free now and what its copies have, but for a part that is
    /// left to files that are read and to other programs.
    fn host_room(&self, source: &Source, manifest: &Manifest, own: Option<ModelId>) -> Result<HostRoom> {
        let memory = self.devices.get(DeviceId::CPU)?.memory()?;
        let own_bytes = own.map_or(0, |id| self.residency.bytes_held_by(id, DeviceId::CPU));
        let free = memory.free.saturating_add(own_bytes);
        let is_pinned = self.devices.get(source.placing.compute)?.copies_fast_from_pinned_only();
        // Blocks that are coded already are not plain before.
        let plain_too = is_pinned && own_bytes == 0 && !self.residency.keeps_coded(manifest);
        Ok(HostRoom { bytes: free.saturating_sub(memory.total / HOST_LEFT_FREE), plain_too })
    }

    /// What the work takes of the compute device, and of the others that may compute.
    fn footprints(
        &self,
        source: &Source,
        manifest: &Manifest,
        work: &Work,
        (dtype, profile): (DType, &MachineProfile),
    ) -> Result<HashMap<DeviceId, Arc<Footprint>>> {
        let compute = source.placing.compute;
        let host = self.devices.get(DeviceId::CPU)?;
        let may_compute = |device: &&Device| {
            let is_other = compute != DeviceId::CPU && device.id() != DeviceId::CPU;
            device.id() == compute || (is_other && self.may_use(source, device.id()))
        };
        let mut footprints = HashMap::new();
        for device in self.devices.iter().filter(may_compute) {
            let key = FootprintKey {
                identity: super::loading::Identity::of(source),
                device: device.id(),
                dtype,
                work: work.clone(),
            };
            let known = self.footprints.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
            let footprint = match known {
                Some(known) => known,
                None => {
                    let own = profiling::of(profile, device.id());
                    let found = Footprint::of(source, manifest.clone(), work, (device, host), (dtype, &own))?;
                    let mut kept = self.footprints.lock().unwrap_or_else(PoisonError::into_inner);
                    if kept.len() >= MOST_FOOTPRINTS {
                        kept.clear();
                    }
                    Arc::clone(kept.entry(key).or_insert_with(|| Arc::new(found)))
                }
            };
            footprints.insert(device.id(), footprint);
        }
        Ok(footprints)
    }

    /// The element type that a network's activations have where it computes.
    pub fn activations_of(&self, source: &Source) -> Result<DType> {
        let device = self.devices.get(source.placing.compute)?;
        let may_have = source.network.activations();
        let said = self.settings.activations.filter(|dtype| may_have.contains(dtype));
        let lane = said.map_or_else(|| Lane::choose(device, may_have), |dtype| Lane::new(device, dtype));
        Ok(lane?.dtype())
    }

    /// Every device, with what is free on it or would be if no other model had copies there but for those that stay.
    fn device_specs(
        &self,
        profile: &MachineProfile,
        beside: &[ModelId],
        factor: impl Fn(DeviceId) -> f64,
    ) -> Vec<DeviceSpec> {
        let held = self.residency.bytes_held(beside);
        let spec = |device: &Device| {
            let (id, report) = (device.id(), device.ledger().report());
            let others = self.devices.iter().map(Device::id).filter(|other| *other != id);
            let peers = others
                .filter_map(|other| Some(PeerLink { device: other, bytes_per_s: profile.peer(id, other)? }));
            DeviceSpec {
                id,
                total_bytes: report.budget,
                available_bytes: report
                    .available()
                    .saturating_add(held.get(&id).copied().unwrap_or(0))
                    .min(report.budget),
                link_bytes_per_s: profile.link(id).unwrap_or(1.0),
                compute_factor: factor(id),
                reaches: peers.collect(),
            }
        };
        self.devices.iter().map(spec).collect()
    }
}

/// How most of a model's bytes are kept.
fn stored_as(manifest: &Manifest) -> String {
    let mut bytes: HashMap<String, usize> = HashMap::new();
    for weight in manifest.weights() {
        *bytes.entry(weight.kept_as.to_string()).or_default() += weight.bytes.as_ref().len();
    }
    let most = bytes.into_iter().max_by(|a, b| a.1.cmp(&b.1).then_with(|| b.0.cmp(&a.0)));
    most.map_or_else(String::new, |(name, _)| name)
}
