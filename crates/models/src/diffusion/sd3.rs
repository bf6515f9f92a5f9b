//! Stable Diffusion 3 and 3.5: a transformer whose blocks keep image and text apart and meet in attention; 3.5 normalises
//! queries and keys, and its medium size has a second attention over the image alone. Formulas and names are those of the
//! authors' code (Stability-AI/sd3.5, `mmditx.py`).

mod blocks;
mod config;
mod control;
mod downloads;
mod family;
mod image_control;
mod keys;
mod run;
mod weights;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session};
use tensor::Tensor;

use super::ControlResiduals;
use super::alterations::SkippedBlocks;
use super::batches::{Batch, FEW_ROWS, Together, in_order};
use super::known::Known;
use super::modulation::{by_item, embed, time_embedding};
use super::patches::{Grid, PatchOrder, patchify};
use super::residuals::add_to_tokens;
use super::{Alteration, BlockGroup};
use crate::claims::Claims;
use crate::detect::Part;
use crate::{Error, Module, Probe, Result};
use blocks::{Joint, NORM_EPS};

pub use config::Config;
pub use control::CONTROL;
pub use family::{FAMILY, LATENT};
pub use image_control::IMAGE_CONTROL;
pub use keys::key_map as patch_keys;

/// The layers by which a time or a pooled text becomes a vector of the model's width.
const LAYERS: [&str; 2] = ["mlp.0", "mlp.2"];

/// A Stable Diffusion 3 model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Sd3 {
    config: Config,
    prefix: String,
}

/// What one evaluation of the model is given.
pub struct Sd3Inputs<'a> {
    /// The noisy latent, `[batch, channels, height, width]`.
    pub latent: &'a Tensor,
    /// The time, 0 to 1000.
    pub time: f32,
    /// The text, `[batch or 1, tokens, width]`.
    pub context: &'a Tensor,
    /// The whole text in one vector, `[batch or 1, width]`.
    pub pooled: &'a Tensor,
}

/// What does not change within a run, on the device of the first block.
struct Prepared {
    /// The text in the model's width, `[batch or 1, tokens, hidden]`.
    text: Tensor,
    /// The pooled text in the model's width, `[batch or 1, hidden]`.
    pooled: Tensor,
    /// A picture in the model's width that is added to the latent's tokens, `[batch or 1, tokens, hidden]`: what a control
    /// network looks at.
    hint: Option<Tensor>,
}

/// What is added to the tokens of pictures, for each number of rows and columns of patches that has run.
type KnownPositions = Known<(usize, usize), Tensor>;

/// One evaluation of a step.
#[derive(Clone, Copy)]
struct Member<'a> {
    latent: &'a Tensor,
    time: f32,
    given: &'a Prepared,
    control: Option<&'a ControlResiduals>,
    altered: &'a [Alteration],
}

/// What decides whether evaluations fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shapes {
    latent: meta::Shape,
    text: usize,
    pooled: usize,
    skipped: SkippedBlocks,
}

impl Shapes {
    fn of(member: &Member<'_>) -> Shapes {
        Shapes {
            latent: *member.latent.shape(),
            text: member.given.text.dim(1),
            pooled: member.given.pooled.dim(0),
            skipped: SkippedBlocks::of(member.altered),
        }
    }
}

impl Together for Shapes {
    fn most_together(&self) -> usize {
        let items = self.latent.dims()[0];
        if items * self.text.min(Grid::sized(&self.latent).patches()) <= FEW_ROWS {
            return 1;
        }
        // Modulations are products of one row for each row of the pooled text.
        if self.pooled > FEW_ROWS { usize::MAX } else { FEW_ROWS / self.pooled }
    }
}

impl Sd3 {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Sd3> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY))?;
        Ok(Sd3 { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Evaluates the model with a look at what its modules compute: the direction from image to noise.
    pub fn forward_probed(
        &self,
        session: &Session,
        inputs: &Sd3Inputs<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let lease = session.lease(0)?;
        let given = self.prepare(&lease, inputs.latent.dim(0), (inputs.context, inputs.pooled), probe)?;
        self.check_latent(inputs.latent)?;
        let member =
            Member { latent: inputs.latent, time: inputs.time, given: &given, control: None, altered: &[] };
        let mut outputs = self.pass(session, lease, &[member], &KnownPositions::default(), probe)?;
        // A pass gives one result for each evaluation.
        Ok(outputs.swap_remove(0))
    }

    /// Text and pooled text through the first layers, once for a run of batches of so many items.
    fn prepare(
        &self,
        lease: &Lease<'_>,
        batch: usize,
        (context, pooled): (&Tensor, &Tensor),
        probe: &mut Probe<'_>,
    ) -> Result<Prepared> {
        let (text_width, pooled_width) = (self.config.context_width, self.config.pooled_width);
        let repeats = |tensor: &Tensor| tensor.dim(0) == 1 || tensor.dim(0) == batch;
        if context.rank() != 3 || context.dim(2) != text_width || !repeats(context) {
            return wrong("the text", format!("[{batch} or 1, tokens, {text_width}]"), context);
        }
        if pooled.rank() != 2 || pooled.dim(1) != pooled_width || !repeats(pooled) {
            return wrong("the pooled text", format!("[{batch} or 1, {pooled_width}]"), pooled);
        }
        let text = lease.linear("context_embedder", &lease.bring(context)?)?;
        probe.show(format_args!("context_embedder"), &text);
        let pooled = embed(lease, ("y_embedder", LAYERS), &lease.bring(pooled)?, probe)?;
        Ok(Prepared { text, pooled, hint: None })
    }

    /// One pass over the blocks, which begins with a lease of the first; one result for each evaluation, in their order.
    fn pass(
        &self,
        session: &Session,
        first: Lease<'_>,
        evaluations: &[Member<'_>],
        positions: &KnownPositions,
        probe: &mut Probe<'_>,
    ) -> Result<Vec<Tensor>> {
        let batches = Batch::all_of(evaluations, Shapes::of);
        let last = session.manifest().blocks().len() - 1;
        let mut states: Vec<Joint> = {
            let lease = first;
            let enter = |batch: &Batch<Shapes, Member<'_>>| self.enter(&lease, batch, positions, probe);
            batches.iter().map(enter).collect::<Result<_>>()?
        };
        for block in 1..last {
            let lease = session.lease(block)?;
            let through = |(state, batch): (Joint, &Batch<Shapes, Member<'_>>)| {
                if batch.shapes().skipped.has(BlockGroup::Double, block - 1) {
                    return Ok(state);
                }
                let state = state.bring(&lease)?.block(&self.config, &lease, block - 1, probe)?;
                let given = batch.members().map(|member| member.control?.output.get(block - 1)?.as_ref());
                add_to_tokens(&lease, state.image(), 0, given)?;
                Ok(state)
            };
            states = states.into_iter().zip(&batches).map(through).collect::<Result<_>>()?;
        }
        let lease = session.lease(last)?;
        let mut outputs = Vec::with_capacity(evaluations.len());
        for (batch, state) in batches.iter().zip(states) {
            let latent = batch.first().latent;
            let output = self.leave(&lease, &state, &Grid::of(latent), probe)?;
            outputs.extend(batch.apart(&output, latent.dim(0))?);
        }
        Ok(in_order(outputs))
    }

    /// From inputs to tokens: the first block of the manifest.
    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Batch<Shapes, Member<'_>>,
        positions: &KnownPositions,
        probe: &mut Probe<'_>,
    ) -> Result<Joint> {
        let grid = Grid::of(batch.first().latent);
        let positions = positions.of(&(grid.rows, grid.columns), || self.positions(lease, &grid))?;
        let (mut images, mut texts, mut vectors) = (Vec::new(), Vec::new(), Vec::new());
        for Member { latent, time, given, .. } in batch.members() {
            let image = lease.linear("x_embedder.proj", &patchify(&lease.bring(latent)?)?)?;
            probe.show(format_args!("x_embedder"), &image);
            let image = image.add(&positions)?;
            images.push(match &given.hint {
                Some(hint) => image.add(&lease.bring(hint)?)?,
                None => image,
            });
            let time = embed(lease, ("t_embedder", LAYERS), &time_embedding(lease.lane(), *time)?, probe)?;
            vectors.push(time.add(&lease.bring(&given.pooled)?)?);
            let text = lease.bring(&given.text)?;
            texts.push(text.broadcast([latent.dim(0), text.dim(1), text.dim(2)])?.contiguous()?);
        }
        Joint::new(&images, &texts, &vectors)
    }

    /// What is added to the tokens of a picture: the middle of the table of positions, `[1, tokens, hidden]`.
    fn positions(&self, lease: &Lease<'_>, grid: &Grid) -> Result<Tensor> {
        let side = self.config.positions_side;
        if grid.rows > side || grid.columns > side {
            return Err(Error::Input {
                what: "the latent",
                expected: format!(
                    "at most {side} patches high and wide, as many as the model has positions for"
                ),
                got: format!("{} x {} patches", grid.rows, grid.columns),
            });
        }
        let (top, left) = ((side - grid.rows) / 2, (side - grid.columns) / 2);
        let place = |at: usize| ((top + at / grid.columns) * side + left + at % grid.columns) as i32;
        let ids: Vec<i32> = (0..grid.patches()).map(place).collect();
        let ids = lease.lane().ids([1, grid.patches()], &ids)?;
        Ok(lease.lane().embedding(&lease.weight("pos_embed")?, &ids)?)
    }

    /// From tokens to a latent: the last block of the manifest.
    fn leave(&self, lease: &Lease<'_>, state: &Joint, grid: &Grid, probe: &mut Probe<'_>) -> Result<Tensor> {
        let image = lease.bring(state.image())?;
        let change = lease.linear("final_layer.adaLN_modulation.1", &lease.bring(state.vector())?)?;
        let change = by_item(&change, image.dim(0))?.chunk(2, 2)?;
        let image = image.modulated_norm(&change[1], &change[0], NORM_EPS)?;
        let image = lease.linear("final_layer.linear", &image)?;
        probe.show(format_args!("final_layer"), &image);
        grid.unpatchify(&image, PatchOrder::ChannelsLast)
    }

    fn check_latent(&self, latent: &Tensor) -> Result<()> {
        let channels = self.config.channels;
        if latent.rank() == 4 && latent.dim(1) == channels && !latent.dims().contains(&0) {
            return Ok(());
        }
        wrong("the latent", format!("[batch, {channels}, height, width]"), latent)
    }
}

impl Module for Sd3 {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    /// The residual streams of the large model outgrow f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}

fn wrong<T>(what: &'static str, expected: String, got: &Tensor) -> Result<T> {
    Err(Error::Input { what, expected, got: format!("of shape {}", got.shape()) })
}
