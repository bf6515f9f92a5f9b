//! What a batch of evaluations has on its way through a UNet, and where the ways in and out meet.

use residency::Lease;
use tensor::Tensor;

use super::attention::{Block, Stack};
use super::config::{Config, Layer, Place, Side, Unit};
use super::frames::{self, Mixing};
use super::{Member, Shapes, altered, attention, layers};
use crate::diffusion::batches::{Batch, together};
use crate::diffusion::model_patches::Seen;
use crate::diffusion::modulation::Everywhere;
use crate::diffusion::{Alteration, ControlResiduals};
use crate::{Probe, Result};

/// The values of a batch at one point of the network.
pub(super) struct State<'a> {
    pub(super) batch: &'a Batch<Shapes<'a>, Member<'a>>,
    /// The picture, `[items, channels, height, width]`.
    pub(super) image: Tensor,
    /// Its tokens, inside of a transformer.
    tokens: Option<Tensor>,
    /// What the blocks of the way in have kept for the way out.
    kept: Vec<Tensor>,
    /// The embedded time with SiLU, `[rows, width]`.
    vector: Everywhere,
    /// The text, `[items, tokens, width]`.
    text: Everywhere,
    /// What the blocks over frames of a transformer have in common, inside of one.
    mixing: Option<Mixing>,
}

impl<'a> State<'a> {
    /// Behind the first convolution, which is the way in's first block.
    pub(super) fn new(
        lease: &Lease<'_>,
        batch: &'a Batch<Shapes<'a>, Member<'a>>,
        image: Tensor,
        vector: Tensor,
        text: Tensor,
    ) -> Result<State<'a>> {
        let (vector, text) = (Everywhere::new(vector), Everywhere::new(text));
        let mut state = State { batch, image, tokens: None, kept: Vec::new(), vector, text, mixing: None };
        state.close(lease, Place { side: Side::Input, block: 0 })?;
        Ok(state)
    }

    /// Through one unit.
    pub(super) fn through(
        &mut self,
        config: &Config,
        lease: &Lease<'_>,
        unit: &Unit,
        probe: &mut Probe<'_>,
    ) -> Result<()> {
        self.begin(config, lease, unit, probe)?;
        self.finish(config, lease, unit, probe)
    }

    /// The first half of a unit: that of a transformer ends where its tokens have looked at each other.
    pub(super) fn begin(
        &mut self,
        config: &Config,
        lease: &Lease<'_>,
        unit: &Unit,
        probe: &mut Probe<'_>,
    ) -> Result<()> {
        self.image = lease.bring(&self.image)?;
        if unit.opens {
            self.open(config, lease, unit.place)?;
        }
        let name = &unit.name;
        match unit.layer {
            Layer::Residual { .. } => {
                let vector = self.vector.on(lease)?;
                self.image = layers::residual(lease, name, &self.image, &vector, probe)?;
                if config.has_frames {
                    let moved_by = (&vector, self.frames());
                    self.image = frames::residual(lease, name, &self.image, moved_by, probe)?;
                }
            }
            Layer::Transformer { index, .. } => {
                let before = match self.tokens.take() {
                    Some(tokens) if index > 0 => lease.bring(&tokens)?,
                    _ => attention::enter(lease, unit, &self.image, probe)?,
                };
                let block = self.block(config, lease, unit, index);
                self.tokens = Some(block.see_each_other(&before, probe)?);
            }
            Layer::Down { .. } => self.image = layers::down(lease, name, &self.image)?,
            Layer::Up { .. } => {
                let doubled = [2 * self.image.dim(2), 2 * self.image.dim(3)];
                let size = self.kept.last().map_or(doubled, |kept| [kept.dim(2), kept.dim(3)]);
                self.image = layers::up(lease, name, &self.image, size)?;
            }
        }
        Ok(())
    }

    /// The second half of a unit.
    pub(super) fn finish(
        &mut self,
        config: &Config,
        lease: &Lease<'_>,
        unit: &Unit,
        probe: &mut Probe<'_>,
    ) -> Result<()> {
        if let Layer::Transformer { index, depth, .. } = unit.layer
            && let Some(before) = self.tokens.take()
        {
            let text = self.text.on(lease)?;
            let mut tokens = self.block(config, lease, unit, index).see_text(before, &text, probe)?;
            if config.has_frames {
                tokens = self.over_frames(config, lease, unit, [&tokens, &text], probe)?;
            }
            if index + 1 < depth {
                self.tokens = Some(tokens);
                return Ok(());
            }
            self.image = attention::leave(lease, unit, &self.image, &tokens)?;
        }
        probe.show(format_args!("{}", unit.name), &self.image);
        if unit.closes {
            self.close(lease, unit.place)?;
        }
        Ok(())
    }

    /// A block of a transformer over the values of pictures.
    fn block<'b>(&self, config: &'b Config, lease: &'b Lease<'b>, unit: &'b Unit, index: usize) -> Block<'b>
    where
        'a: 'b,
    {
        let attending = altered::of_attention(self.altered(), unit, index, self.frames());
        Block { config, lease, unit, stack: Stack::Values, attending }
    }

    /// What patches of the model see of a transformer between its halves.
    pub(super) fn seen(&self) -> Option<Seen> {
        let tokens = self.tokens.clone()?;
        let latent = self.batch.first().latent;
        let conds = self.batch.members().map(|member| member.cond).collect();
        Some(Seen { conds, ..Seen::tokens([latent.dim(2), latent.dim(3)], tokens) })
    }

    /// Lets go of what was kept, where there is no way out.
    pub(super) fn forget_kept(&mut self) {
        self.kept.clear();
    }

    /// Frames of each video: the items of an evaluation.
    fn frames(&self) -> usize {
        self.batch.first().latent.dim(0)
    }

    /// Tokens through the block over frames that is behind one over the values of pictures.
    fn over_frames(
        &mut self,
        config: &Config,
        lease: &Lease<'_>,
        unit: &Unit,
        [tokens, text]: [&Tensor; 2],
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let mixing = match self.mixing.take() {
            Some(mixing) if !unit.begins_layer() => mixing,
            _ => Mixing::new(lease, unit, [self.frames(), tokens.dim(2)])?,
        };
        let mixed = mixing.block(config, lease, unit, [tokens, text], probe)?;
        self.mixing = Some(mixing);
        Ok(mixed)
    }

    /// Before a block: on the way out the picture gets what its counterpart kept.
    fn open(&mut self, config: &Config, lease: &Lease<'_>, place: Place) -> Result<()> {
        if place.side != Side::Output {
            return Ok(());
        }
        // There are at most as many blocks on the way out as on the way in.
        let Some(kept) = self.kept.pop() else { return Ok(()) };
        let kept = self.controlled(lease, place, lease.bring(&kept)?)?;
        let [image, kept] = altered::met(config, lease, self.altered(), [self.image.clone(), kept])?;
        self.image = Tensor::concat(&[&image, &kept], 1)?;
        Ok(())
    }

    /// After a block: what control networks say of it; on the way in the picture is kept.
    fn close(&mut self, lease: &Lease<'_>, place: Place) -> Result<()> {
        if place.side == Side::Output {
            return Ok(());
        }
        self.image = self.controlled(lease, place, self.image.clone())?;
        if place.side == Side::Input {
            if let Some(smaller) = altered::shrunk(self.altered(), place.block, false, &self.image)? {
                self.image = smaller;
            }
            self.kept.push(self.image.clone());
            if let Some(smaller) = altered::shrunk(self.altered(), place.block, true, &self.image)? {
                self.image = smaller;
            }
        }
        Ok(())
    }

    /// How the evaluations of the batch depart from the model as it was trained.
    fn altered(&self) -> &'a [Alteration] {
        self.batch.shapes().altered
    }

    /// A picture with what control networks add at a place.
    fn controlled(&self, lease: &Lease<'_>, place: Place, image: Tensor) -> Result<Tensor> {
        let residual = |member: &Member<'a>| member.control.and_then(|control| residual_at(control, place));
        let mut all = Vec::new();
        for residual in self.batch.members().filter_map(residual) {
            let residual = lease.bring(residual)?;
            let items = self.batch.first().latent.dim(0);
            let [_, channels, height, width] = *residual.dims() else { return Ok(image.add(&residual)?) };
            all.push(residual.broadcast([items, channels, height, width])?);
        }
        // Evaluations that are controlled at other places run in other batches.
        if all.is_empty() {
            return Ok(image);
        }
        Ok(image.add(&together(&all.iter().collect::<Vec<_>>(), 0)?)?)
    }
}

/// What is added at a place. The way out counts from the end: its first block gets what the last on the way in kept.
pub(super) fn residual_at(control: &ControlResiduals, place: Place) -> Option<&Tensor> {
    let Place { side, block } = place;
    match side {
        Side::Input => control.input.get(block)?.as_ref(),
        Side::Middle => control.middle.get(block)?.as_ref(),
        Side::Output => control.output.get(control.output.len().checked_sub(block + 1)?)?.as_ref(),
    }
}
