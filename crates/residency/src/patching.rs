//! Patches in force on a model's copies.
//!
//! A resident weight is merged once, where it lies. A streamed one is merged in its slot at each arrival, by what waits
//! for it on the compute device; its source stays as the file has it. Both are the same arithmetic, so the bits are the
//! same. A weight that is kept coarser than its lane computes stays as it is, and its patches run beside it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use checkpoint::EntryBytes;
use device::{Buffer, Cancel, Device, Reservation};
use meta::{DType, DeviceId, Encoding};
use patch::{Beside, Merge, Patch, PatchSet};
use placement::Plan;
use tensor::{Lane, Tensor, Weight};

use crate::cast;
use crate::manifest::{Manifest, WeightSpec};
use crate::needs::{self, Bytes, Copies, Way};
use crate::staged::{Staged, kept_weight};
use crate::{Error, Result};

/// Bytes promised, by device.
pub(crate) type Reserved = BTreeMap<DeviceId, Reservation>;
/// Promises bytes for patches, making room for them where it is short.
pub(crate) type Reserve<'a> = dyn FnMut(&Bytes) -> Result<Reserved> + 'a;

/// What is in force on a model's copies.
#[derive(Clone, Default)]
pub(crate) struct Patching {
    set: PatchSet,
    /// Weights whose kept form cannot hold the patches, by index in the manifest.
    patched: HashMap<usize, Patched>,
    /// What is merged into the weights of streamed blocks, by block and by place in the block.
    merges: HashMap<usize, BTreeMap<usize, Merge>>,
    /// Merged weights of blocks that lie in the mapped file, by index in the manifest.
    own: HashMap<usize, Weight>,
    bytes: Bytes,
}

/// The patches of a weight that stays as it is kept.
#[derive(Clone)]
pub(crate) enum Patched {
    /// They run beside the linear layer that the weight belongs to.
    Beside(Beside),
    /// This is used instead of the weight.
    Instead(Box<Weight>),
}

/// A model's weights, and where its blocks compute.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    pub(crate) manifest: &'a Manifest,
    pub(crate) plan: &'a Plan,
    pub(crate) lanes: &'a BTreeMap<DeviceId, Lane>,
}

/// A weight whose patches are others than before, and where it is.
#[derive(Clone, Copy)]
struct Changed<'a> {
    spec: &'a WeightSpec,
    index: usize,
    block: usize,
    /// Its place in the block.
    place: usize,
    copies: Copies,
    lane: &'a Lane,
    patches: &'a [Patch],
}

impl Patching {
    /// The set that is in force.
    pub(crate) fn set(&self) -> &PatchSet {
        &self.set
    }

    /// Some bytes of each file that the patches come from.
    pub(crate) fn files(&self) -> Vec<EntryBytes> {
        self.set.files()
    }

    /// What is used beside or instead of a weight as it is kept.
    pub(crate) fn patched(&self, weight: usize) -> Option<&Patched> {
        self.patched.get(&weight)
    }

    /// Bytes of all that, by device.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// What is merged into a streamed block when it arrives, by place in the block; none if nothing is.
    pub(crate) fn merges(&self, block: usize) -> Option<&BTreeMap<usize, Merge>> {
        self.merges.get(&block).filter(|merges| !merges.is_empty())
    }

    /// The merged copy of a weight whose block lies in the mapped file.
    pub(crate) fn own(&self, index: usize) -> Option<&Weight> {
        self.own.get(&index)
    }

    /// Forgets what is there for a weight, unless it serves the new patches as well; whether it does.
    fn reuse_or_forget(&mut self, changed: &Changed<'_>) -> bool {
        self.patched.remove(&changed.index);
        self.own.remove(&changed.index);
        let Some(merges) = self.merges.get_mut(&changed.block) else { return false };
        let rescaled = merges.get(&changed.place).and_then(|merge| merge.with_strengths(changed.patches));
        match rescaled {
            Some(rescaled) => {
                merges.insert(changed.place, rescaled);
                true
            }
            None => {
                merges.remove(&changed.place);
                false
            }
        }
    }
}

impl<'a> Places<'a> {
    /// The weights that change when a set takes the place of another.
    fn changed(&self, patches: &'a PatchSet, before: &PatchSet) -> Result<Vec<Changed<'a>>> {
        let Places { manifest, plan, lanes } = *self;
        let mut all = Vec::new();
        for name in patches.changed_since(before) {
            let Some(index) = manifest.index_of(name) else { continue };
            let Some(block) = manifest.block_of(index) else { continue };
            let planned = &plan.blocks[block];
            let copies = Copies::of(planned);
            let device = if copies == Copies::Streamed { plan.compute } else { planned.runs_on };
            let lane = lanes.get(&device).ok_or_else(|| Error::NoSuchBlock {
                model: manifest.name().to_owned(),
                index: block,
                blocks: manifest.blocks().len(),
            })?;
            all.push(Changed {
                spec: &manifest.weights()[index],
                index,
                block,
                place: index - manifest.blocks()[block].weights.start,
                copies,
                lane,
                patches: patches.patches(name),
            });
        }
        Ok(all)
    }
}

/// Bytes that these weights' patches take of each device.
fn bytes_for<'a>(changed: impl IntoIterator<Item = &'a Changed<'a>>) -> Result<Bytes> {
    let mut bytes = Bytes::new();
    for changed in changed {
        let more = needs::patch_bytes(changed.spec, changed.copies, changed.lane, changed.patches)?;
        *bytes.entry(changed.lane.device().id()).or_default() += more;
    }
    Ok(bytes)
}

/// Bytes that a set takes of each device.
pub(crate) fn bytes_of(places: &Places<'_>, patches: &PatchSet) -> Result<Bytes> {
    bytes_for(&places.changed(patches, &PatchSet::new())?)
}

impl Staged {
    /// Makes the copies those of another patch set: what did not change is not touched. Nobody may use them meanwhile.
    /// The number of weights touched.
    pub(crate) fn patch(
        &self,
        manifest: &Manifest,
        plan: &Plan,
        patches: &PatchSet,
        reserve: &mut Reserve<'_>,
        cancel: &Cancel,
    ) -> Result<usize> {
        let before = self.patching();
        let places = Places { manifest, plan, lanes: self.lanes() };
        let changed = places.changed(patches, before.set())?;
        if changed.is_empty() {
            return Ok(0);
        }
        // What is not used again goes before its place is asked for.
        let bytes = bytes_of(&places, patches)?;
        let mut next = Patching { set: patches.clone(), bytes, ..(*before).clone() };
        let to_stage: Vec<&Changed<'_>> =
            changed.iter().filter(|changed| !next.reuse_or_forget(changed)).collect();
        let was_patched = |changed: &&Changed<'_>| !before.set().patches(&changed.spec.name).is_empty();
        let restore: Vec<bool> = to_stage.iter().map(was_patched).collect();
        self.put_in_force(next.clone());
        drop(before);
        let wanted = bytes_for(to_stage.iter().copied())?;
        let mut reserved = reserve(&wanted)?;
        for (changed, restore) in to_stage.into_iter().zip(restore) {
            cancel.check()?;
            self.stage_patches(&mut next, changed, restore, (&mut reserved, cancel))?;
        }
        let merged = changed.iter().filter(|changed| Way::of(changed.spec, changed.lane) == Way::Merged);
        self.refill(&merged.map(|changed| changed.block).collect());
        self.put_in_force(next);
        Ok(changed.len())
    }

    /// Puts the patches of one weight in force, or puts it back as the file has it if there are none.
    fn stage_patches(
        &self,
        next: &mut Patching,
        changed: &Changed<'_>,
        restore: bool,
        (reserved, cancel): (&mut Reserved, &Cancel),
    ) -> Result<()> {
        let Changed { spec, lane, patches, .. } = *changed;
        let device = lane.device();
        let mut allocate = |bytes: usize| allocate(device, reserved, bytes);
        match (Way::of(spec, lane), changed.copies) {
            (Way::Beside, _) if !patches.is_empty() => {
                let needs_weight = patches.iter().any(Patch::needs_weight);
                let weight = needs_weight.then(|| kept_weight(lane, spec)).transpose()?;
                let beside = Beside::stage_in(lane, patches, weight.as_ref(), &mut allocate)?;
                next.patched.insert(changed.index, Patched::Beside(beside));
            }
            (Way::Instead, _) if !patches.is_empty() => {
                let exact = merge_exactly(lane, &kept_weight(lane, spec)?, patches)?;
                let weight = Weight::whole(allocate(exact.operand().extent())?, Encoding::F32, spec.shape)?;
                exact.copy_into(&Tensor::new(weight.operand().clone(), lane.clone()))?;
                next.patched.insert(changed.index, Patched::Instead(Box::new(weight)));
            }
            (Way::Beside | Way::Instead, _) => {}
            (Way::Merged, Copies::Streamed) => {
                if !patches.is_empty() {
                    let merge = Merge::stage(lane, spec.kept_as, patches, &mut allocate)?;
                    next.merges.entry(changed.block).or_default().insert(changed.place, merge);
                }
            }
            (Way::Merged, Copies::Mapped) => {
                if !patches.is_empty() {
                    let own = Weight::whole(allocate(spec.kept_bytes())?, spec.kept_as, spec.shape)?;
                    cast::write_weight(lane, spec, own.operand())?;
                    merge_once(lane, spec, patches, &own)?;
                    next.own.insert(changed.index, own);
                }
            }
            (Way::Merged, Copies::Resident) => {
                let Some(weight) = self.resident(changed.block, changed.place) else { return Ok(()) };
                self.wait_until_here(changed.block, cancel)?;
                if restore {
                    cast::write_weight(lane, spec, weight.operand())?;
                }
                if !patches.is_empty() {
                    merge_once(lane, spec, patches, weight)?;
                }
            }
        }
        Ok(())
    }

    /// Merges into a streamed block in its slot what is to be merged, unless that was done since it arrived.
    pub(crate) fn merge_arrived(
        &self,
        patching: &Patching,
        block: usize,
        slot: usize,
        weights: &[Weight],
    ) -> Result<()> {
        let (Some(merges), Some(streaming)) = (patching.merges(block), self.streaming()) else {
            return Ok(());
        };
        streaming.merge_once(slot, || {
            for (place, merge) in merges {
                merge.apply_to(&weights[*place])?;
            }
            Ok(())
        })
    }

    /// Lets streamed blocks whose patches changed arrive again.
    fn refill(&self, blocks: &BTreeSet<usize>) {
        let positions = blocks.iter().filter_map(|block| self.position(*block)).collect();
        if let Some(streaming) = self.streaming() {
            streaming.refill(&positions);
        }
    }
}

/// Merges patches into a weight where it lies. What that takes goes again at once.
fn merge_once(lane: &Lane, spec: &WeightSpec, patches: &[Patch], weight: &Weight) -> Result<()> {
    let mut allocate = |bytes: usize| lane.device().allocate(bytes);
    Ok(Merge::stage(lane, spec.kept_as, patches, &mut allocate)?.apply_to(weight)?)
}

/// A weight with its patches, in 32 bits.
pub(crate) fn merge_exactly(lane: &Lane, weight: &Weight, patches: &[Patch]) -> Result<Tensor> {
    let lane = lane.with_dtype(DType::F32)?;
    Ok(patch::apply(&lane, &lane.unpack(weight)?, patches)?)
}

/// A buffer out of what was promised, as far as it reaches.
fn allocate(device: &Device, reserved: &mut Reserved, bytes: usize) -> device::Result<Buffer> {
    let wanted = device.allocation_bytes(bytes);
    match reserved.get_mut(&device.id()).filter(|reservation| reservation.bytes() >= wanted) {
        Some(reservation) => device.allocate_from(reservation, bytes),
        None => device.allocate(bytes),
    }
}
