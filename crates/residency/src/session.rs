//! Sessions and leases: how a model's forward pass gets its weights, block by block.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use checkpoint::EntryBytes;
use device::Cancel;
use meta::{DeviceId, DeviceKind};
use placement::{BlockPlan, Plan};
use tensor::{Activation, AsLayerInput, Lane, LayerInput, Tensor, Weight};

use crate::claim::Reference;
use crate::manifest::{Layer, Manifest};
use crate::model::LoadedModel;
use crate::patching::{Patched, Patching, merge_exactly};
use crate::staged::Staged;
use crate::staging::Use;
use crate::{CodingReport, Error, Result, StreamStats};

/// The use of a model whose copies are on their devices. They stay there while a session lives.
pub struct Session {
    /// The patches in force; they stay while the session lives.
    patching: Arc<Patching>,
    staged: Arc<Staged>,
    staging: Use,
    model: Arc<LoadedModel>,
    cancel: Cancel,
    /// Where blocks compute; their work ends when the job is cancelled.
    lanes: BTreeMap<DeviceId, Lane>,
    /// Of each file that is read while the session lives, some bytes.
    files: Vec<EntryBytes>,
    // Dropped last: when the model is no longer in use, its copies are no longer held here.
    _reference: Reference,
}

impl Session {
    pub(crate) fn new(
        model: Arc<LoadedModel>,
        (staging, staged): (Use, Arc<Staged>),
        cancel: Cancel,
        reference: Reference,
    ) -> Session {
        staged.begin_session(&cancel);
        let lanes = staged.lanes().iter().map(|(id, lane)| (*id, lane.with_cancel(&cancel))).collect();
        let patching = staged.patching();
        let manifest = model.manifest();
        let on_host = staging.staging().plan().blocks.iter().enumerate();
        // What is on its way to a device is read while the session lives, too.
        let is_moving_in = staged.is_moving_in();
        let is_read =
            |block: &BlockPlan| is_moving_in || block.home.kind == DeviceKind::Cpu || block.is_kept_coded();
        let on_host = on_host.filter(|(_, block)| is_read(block));
        let mut files = Manifest::files_of(on_host.flat_map(|(index, _)| manifest.weights_of(index)));
        files.extend(Manifest::files_of(manifest.tables()));
        files.extend(patching.files());
        files.extend(staged.files().iter().cloned());
        Session { patching, staged, staging, model, cancel, lanes, files, _reference: reference }
    }

    /// An error if a file that weights were read from while the session lived changed meanwhile, or had parts that could
    /// not be read. What came of the session may be trusted only after this.
    pub fn verify(&self) -> Result<()> {
        self.files.iter().try_for_each(|bytes| self.manifest().verify_file(bytes))
    }

    /// The model's manifest.
    pub fn manifest(&self) -> &Manifest {
        self.model.manifest()
    }

    /// Where everything of it is, and where it computes.
    pub fn plan(&self) -> &Plan {
        self.staging.staging().plan()
    }

    /// The lane on which the first block computes, where activations start.
    pub fn lane(&self) -> Result<&Lane> {
        self.lane_of(0)
    }

    /// How the blocks are kept that the plan wants coded; none if there are none.
    pub fn coding(&self) -> Option<CodingReport> {
        self.staged.coding()
    }

    /// What streaming did since the copies were made.
    pub fn stats(&self) -> StreamStats {
        self.staged.stats()
    }

    /// The right to use a block's weights now, where it computes. The copies of the blocks after it
    /// start at the same moment. Blocks are leased in order of use; others are found too, but stall.
    pub fn lease(&self, block: usize) -> Result<Lease<'_>> {
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        self.check_intact()?;
        let lane = self.lane_of(block)?;
        let (wanted, moving_in) = (lane.stream().record_timed()?, self.staged.is_moving_in());
        self.wait_until_here(block)?;
        let acquired = self.staged.acquire(self.manifest(), block, (&self.patching, lane.stream()));
        if acquired.is_err() {
            // A file that lost what was to be read of it says more than that it could not be read.
            self.check_intact()?;
        }
        let (weights, slot) = acquired?;
        let arrival = slot.map(|slot| self.staged.arrival_marks(slot)).unwrap_or_default();
        let lease = Lease { session: self, block, lane, weights, slot };
        self.staged.recorder().lease(block, lane.stream(), (wanted, moving_in), arrival)?;
        if let Some(slot) = slot {
            self.staged.merge_arrived(&self.patching, block, slot, &lease.weights)?;
        }
        Ok(lease)
    }

    /// Waits until a block that stays where it computes is there. If it cannot be brought there, the next session tries anew.
    fn wait_until_here(&self, block: usize) -> Result<()> {
        let waited = self.staged.wait_until_here(block, &self.cancel);
        if matches!(waited, Ok(false)) {
            return Ok(());
        }
        // A file that lost what was to be read of it says more than that it could not be read.
        let intact = self.check_intact();
        if intact.is_err() || waited.as_ref().is_err_and(|_| !self.cancel.is_cancelled()) {
            self.staging.staging().forget_failed(&self.staged);
        }
        intact?;
        waited.map(drop)
    }

    fn lane_of(&self, block: usize) -> Result<&Lane> {
        let missing = || Error::NoSuchBlock {
            model: self.manifest().name().to_owned(),
            index: block,
            blocks: self.manifest().blocks().len(),
        };
        if block >= self.manifest().blocks().len() {
            return Err(missing());
        }
        let id = self.staged.runs_on(block, self.plan().compute);
        self.lanes.get(&id).ok_or_else(missing)
    }

    /// An error if a file that the session reads is known to be damaged. It asks no system, so every lease does.
    pub(crate) fn check_intact(&self) -> Result<()> {
        let name = || self.manifest().name().to_owned();
        let check =
            |bytes: &EntryBytes| bytes.check_intact().map_err(|source| Error::File { name: name(), source });
        self.files.iter().try_for_each(check)
    }
}

/// The right to use one block's weights. Dropping it lets the slot be filled again.
pub struct Lease<'a> {
    session: &'a Session,
    block: usize,
    lane: &'a Lane,
    weights: Vec<Weight>,
    slot: Option<usize>,
}

/// Some outputs of a linear layer.
pub struct LinearPart<'a> {
    /// Which of them.
    pub rows: Range<usize>,
    /// Applied to them.
    pub activation: Option<Activation>,
    /// Where they are written, `[…, rows]`; a view of another tensor or a whole one.
    pub out: &'a Tensor,
}

impl Lease<'_> {
    /// Where the block computes.
    pub fn lane(&self) -> &Lane {
        self.lane
    }

    /// Activations brought to where the block computes.
    pub fn bring(&self, x: &Tensor) -> Result<Tensor> {
        self.session.staged.recorder().handed(self.block, (x.shape().count() * x.dtype().bytes()) as u64);
        Ok(x.to_lane(self.lane)?)
    }

    /// The same in the type that they have, as sums keep theirs.
    pub fn bring_unrounded(&self, x: &Tensor) -> Result<Tensor> {
        self.session.staged.recorder().handed(self.block, (x.shape().count() * x.dtype().bytes()) as u64);
        Ok(x.to_device_of(self.lane)?)
    }

    /// A weight of the block, with its patches.
    pub fn weight(&self, name: &str) -> Result<Weight> {
        self.find(name)?.ok_or_else(|| self.missing(name))
    }

    /// A weight that the block may or may not have, with its patches.
    pub fn find(&self, name: &str) -> Result<Option<Weight>> {
        let index = self.session.manifest().index_of(name);
        Ok(index.map(|index| self.current(index)).transpose()?.flatten().map(Cow::into_owned))
    }

    /// Whether the block has a weight of this name.
    pub fn has(&self, name: &str) -> bool {
        self.session.manifest().index_of(name).is_some_and(|index| self.stored(index).is_some())
    }

    /// The linear layer `name`: its weight, its bias if it has one, and what runs beside it.
    pub fn linear(&self, name: &str, x: &impl AsLayerInput) -> Result<Tensor> {
        self.linear_then(name, x, None)
    }

    /// The linear layer `name`, then an activation.
    pub fn linear_then(
        &self,
        name: &str,
        x: &impl AsLayerInput,
        activation: Option<Activation>,
    ) -> Result<Tensor> {
        let (x, layer) = (x.as_layer_input(), self.layer(name)?);
        let (stored, bias) = (self.stored_weight(name, layer)?, self.bias(layer)?);
        let bias = bias.as_deref();
        match self.session.patching.patched(layer.weight) {
            None => Ok(x.linear_then(stored, bias, activation)?),
            Some(Patched::Instead(weight)) => Ok(x.linear_then(weight, bias, activation)?),
            Some(Patched::Beside(beside)) => {
                let y = x.linear_then(stored, bias, None)?;
                beside.add_to(x.values()?, &y)?;
                Ok(activation.map_or(Ok(y.clone()), |activation| y.activate(activation))?)
            }
        }
    }

    /// The linear layer `name`, then the GELU that is approximated with tanh, as the layer `next` reads it: where that
    /// rounds what it reads, the GELU is done in the same pass.
    pub fn linear_gelu_tanh(&self, name: &str, x: &impl AsLayerInput, next: &str) -> Result<LayerInput> {
        if self.rounds_rows(next, x)? {
            return Ok(LayerInput::gelu_tanh(self.linear(name, x)?, 0));
        }
        Ok(LayerInput::new(self.linear_then(name, x, Some(Activation::GeluTanh))?))
    }

    /// Whether the layer `name` rounds as many rows as these, whatever they become until it reads them.
    pub fn rounds_rows(&self, name: &str, x: &impl AsLayerInput) -> Result<bool> {
        Ok(x.as_layer_input().rows_are_rounded_for(self.stored_weight(name, self.layer(name)?)?))
    }

    /// The linear layer `name`, some of its outputs here and some there: no copy is needed to take them apart.
    pub fn linear_in_parts(&self, name: &str, x: &impl AsLayerInput, parts: &[LinearPart<'_>]) -> Result<()> {
        let (x, layer) = (x.as_layer_input(), self.layer(name)?);
        let weight = match self.session.patching.patched(layer.weight) {
            None => self.stored_weight(name, layer)?,
            Some(Patched::Instead(weight)) => weight,
            Some(Patched::Beside(_)) => {
                // What runs beside a layer is added to all of its outputs.
                let y = self.linear(name, &*x)?;
                return parts.iter().try_for_each(|part| {
                    let y = y.slice(y.rank() - 1, part.rows.start, part.rows.len())?;
                    Ok(match part.activation {
                        Some(activation) => y.activate_into(activation, part.out),
                        None => y.copy_into(part.out),
                    }?)
                });
            }
        };
        let bias = self.bias(layer)?;
        parts.iter().try_for_each(|part| {
            let bias = bias.as_deref().map(|bias| bias.rows(part.rows.clone())).transpose()?;
            let weight = weight.rows(part.rows.clone())?;
            Ok(x.linear_into(&weight, bias.as_ref(), part.activation, part.out)?)
        })
    }

    /// Which weights a layer has.
    fn layer(&self, name: &str) -> Result<Layer> {
        self.session.manifest().layer(name).ok_or_else(|| self.missing(&format!("{name}.weight")))
    }

    /// The weight of a layer as it is stored, whatever patches it has.
    fn stored_weight(&self, name: &str, layer: Layer) -> Result<&Weight> {
        self.stored(layer.weight).ok_or_else(|| self.missing(&format!("{name}.weight")))
    }

    /// The bias of a layer, with its patches, if it has one.
    fn bias(&self, layer: Layer) -> Result<Option<Cow<'_, Weight>>> {
        Ok(layer.bias.map(|index| self.current(index)).transpose()?.flatten())
    }

    /// A weight with its patches; none if it is of another block.
    fn current(&self, index: usize) -> Result<Option<Cow<'_, Weight>>> {
        let Some(stored) = self.stored(index) else { return Ok(None) };
        let patching = &self.session.patching;
        Ok(Some(match patching.patched(index) {
            None => Cow::Borrowed(stored),
            Some(Patched::Instead(weight)) => Cow::Borrowed(weight.as_ref()),
            Some(Patched::Beside(_)) => {
                let name = &self.session.manifest().weights()[index].name;
                let exact = merge_exactly(self.lane, stored, patching.set().patches(name))?;
                Cow::Owned(Weight::new(exact.operand().clone()))
            }
        }))
    }

    /// A weight as it is stored, whatever patches it has; none if it is of another block.
    fn stored(&self, index: usize) -> Option<&Weight> {
        let start = self.session.manifest().blocks()[self.block].weights.start;
        self.weights.get(index.checked_sub(start)?)
    }

    fn missing(&self, name: &str) -> Error {
        Error::NoSuchWeight {
            model: self.session.manifest().name().to_owned(),
            block: self.session.manifest().blocks()[self.block].name.clone(),
            weight: name.to_owned(),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.staged.recorder().end_step();
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.session.staged.recorder().release(self.block, self.lane.stream());
        if let Some(slot) = self.slot {
            self.session.staged.release(slot);
        }
    }
}
