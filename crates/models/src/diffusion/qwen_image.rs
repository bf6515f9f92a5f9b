//! Qwen-Image and Qwen-Image-Edit: a transformer whose blocks keep image and text apart and meet in attention. Formulas and
//! names are those of the authors' code (QwenLM/Qwen-Image; in diffusers `transformer_qwenimage.py`). Latents have frames,
//! of which a picture has one.

mod blocks;
mod config;
mod control;
mod downloads;
mod family;
mod model_patch;
mod references;
pub(crate) mod text;
mod weights;

use std::sync::Arc;

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use patch::KeyMap;
use residency::{Lease, Manifest, Session};
use sampling::{LatentSpec, ModelSampling};
use tensor::{Activation, Tensor};

use super::batches::together;
use super::modulation::{Everywhere, by_item, embed, time_embedding};
use super::pass::{self, Member, Members, Shapes, Transformer, for_items, text_of, wrong};
use super::patches::{Grid, PatchOrder, frames_apart, frames_together, patchify};
use super::positions::{Along, Positions};
use super::{Alteration, BlockGroup, Diffusion, DiffusionRun};
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::detect::Part;
use crate::{Module, Probe, Result};
use blocks::{Joint, NORM_EPS};
use references::References;

pub use super::latents::VIDEO_16 as LATENT;
pub use config::Config;
pub use control::CONTROL;
pub use family::FAMILY;
pub use model_patch::PATCH;

/// A Qwen-Image model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct QwenImage {
    config: Config,
    prefix: String,
}

/// What does not change within a run, on the device of the first block.
pub(in crate::diffusion) struct Given {
    /// The text in the model's width, `[batch or 1, tokens, hidden]`.
    text: Tensor,
    references: References,
    /// A picture in the model's width, in a control network, `[batch or 1, tokens, hidden]`.
    hint: Option<Tensor>,
}

impl QwenImage {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<QwenImage> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY))?;
        Ok(QwenImage { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The vector of a time, `[1, hidden]`.
    fn time(&self, lease: &Lease<'_>, time: f32, probe: &mut Probe<'_>) -> Result<Tensor> {
        let waves = time_embedding(lease.lane(), 1000.0 * time)?;
        let layers = ["timestep_embedder.linear_1", "timestep_embedder.linear_2"];
        let vector = embed(lease, ("time_text_embed", layers), &waves, probe)?;
        if !self.config.is_layered {
            return Ok(vector);
        }
        // What layered models are told beside the time: that these are layers.
        let table = lease.weight("time_text_embed.addition_t_embedding.weight")?;
        let row = lease.lane().embedding(&table, &lease.lane().ids([1], &[0])?)?;
        Ok(vector.add(&row)?)
    }

    /// The tokens of a latent and of the pictures to look at, in the model's width.
    fn image(
        &self,
        lease: &Lease<'_>,
        latent: &Tensor,
        given: &Given,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let frames = latent.dim(2);
        let patches = patchify(&frames_apart(&lease.bring(latent)?)?)?;
        let (tokens, width) = (patches.dim(1), patches.dim(2));
        let mut all = vec![patches.reshape([latent.dim(0), frames * tokens, width])?];
        for patches in given.references.patches() {
            let shape = [latent.dim(0), patches.dim(1), patches.dim(2)];
            all.push(lease.bring(patches)?.broadcast(shape)?);
        }
        let image = lease.linear("img_in", &together(&all.iter().collect::<Vec<_>>(), 1)?)?;
        probe.show(format_args!("img_in"), &image);
        match &given.hint {
            Some(hint) => Ok(image.add(&lease.bring(hint)?)?),
            None => Ok(image),
        }
    }
}

/// The tokens of a latent `[batch, channels, frames, height, width]`.
fn tokens_of(latent: &Shape) -> usize {
    latent.dims()[2] * Grid::of_frame(latent).patches()
}

impl Transformer for QwenImage {
    type Given = Given;
    type State = Joint;

    fn prepare(
        &self,
        lease: &Lease<'_>,
        conditioned: &Conditioned<'_>,
        scene: &Scene<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Given> {
        let text = text_of(lease, conditioned.cond, scene.shape.batch, self.config.context_width)?;
        let text = text.rms_norm(Some(&lease.weight("txt_norm.weight")?), NORM_EPS)?;
        probe.show(format_args!("txt_norm"), &text);
        let text = lease.linear("txt_in", &text)?;
        probe.show(format_args!("txt_in"), &text);
        let references = References::new(&self.config, lease, conditioned.cond, scene)?;
        Ok(Given { text, references, hint: None })
    }

    fn check_latent(&self, latent: &Tensor) -> Result<()> {
        let channels = self.config.channels;
        if latent.rank() == 5 && latent.dim(1) == channels && !latent.dims().contains(&0) {
            return Ok(());
        }
        wrong("the latent", format!("[batch, {channels}, frames, height, width]"), latent)
    }

    fn shapes(&self, latent: &Shape, given: &Given) -> Shapes {
        let References { shapes, places, timeless, .. } = &given.references;
        Shapes::new(latent, tokens_of(latent), given.text.dim(1))
            .with_references(shapes.iter().copied(), *places)
            .with_vectors(if *timeless { 2 } else { 1 })
    }

    /// Rows and columns are counted from the middle of the picture; the text stands on the diagonal behind it.
    fn positions(&self, latent: &Shape, given: &Given) -> Positions {
        let (grid, frames) = (Grid::of_frame(latent), latent.dims()[2]);
        let mut positions = Positions::new(&self.config.axes, config::THETA);
        let behind = (grid.rows / 2).max(grid.columns / 2) as f64;
        positions.push_text(given.text.dim(1), &[Along::Rows(behind); 3]);
        let from_middle = |grid: &Grid, row: f64, column: f64| {
            let (row, column) = (row - (grid.rows / 2) as f64, column - (grid.columns / 2) as f64);
            [Along::Rows(row), Along::Columns(column)]
        };
        let [rows, columns] = from_middle(&grid, 0.0, 0.0);
        positions.push([frames, grid.rows, grid.columns], &[Along::Frames(0.0), rows, columns]);
        for (shape, [index, row, column]) in given.references.placed(&grid) {
            let grid = Grid::of_frame(shape);
            let [rows, columns] = from_middle(&grid, row, column);
            let frames = shape.dims()[2];
            let index = if frames > 1 { Along::Frames(0.0) } else { Along::At(index) };
            positions.push([frames, grid.rows, grid.columns], &[index, rows, columns]);
        }
        positions
    }

    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Members<'_, QwenImage>,
        positions: Arc<Positions>,
        probe: &mut Probe<'_>,
    ) -> Result<Joint> {
        let (mut images, mut texts, mut times) = (Vec::new(), Vec::new(), Vec::new());
        for Member { latent, time, given, .. } in batch.members() {
            images.push(self.image(lease, latent, given, probe)?);
            texts.push(for_items(&lease.bring(&given.text)?, latent.dim(0))?);
            times.push(self.time(lease, *time, probe)?);
        }
        let timeless = batch.first().given.references.timeless;
        if timeless {
            times.push(self.time(lease, 0.0, &mut Probe::none())?);
        }
        let all = |parts: &[Tensor]| together(&parts.iter().collect::<Vec<_>>(), 0);
        positions.show(lease.lane(), probe)?;
        Ok(Joint {
            image: all(&images)?,
            text: all(&texts)?,
            vector: Everywhere::new(all(&times)?.activate(Activation::Silu)?),
            timeless_from: timeless.then(|| tokens_of(batch.first().latent.shape())),
            positions,
        })
    }

    fn block(&self, lease: &Lease<'_>, block: usize, state: Joint, probe: &mut Probe<'_>) -> Result<Joint> {
        state.bring(lease)?.block(&self.config, lease, block - 1, probe)
    }

    fn leave(
        &self,
        lease: &Lease<'_>,
        state: &Joint,
        latent: &Shape,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let (grid, frames) = (Grid::of_frame(latent), latent.dims()[2]);
        let image = lease.bring(&state.image.slice(1, 0, tokens_of(latent))?)?;
        let vector = lease.bring(&state.times()?)?;
        let change = by_item(&lease.linear("norm_out.linear", &vector)?, image.dim(0))?.chunk(2, 2)?;
        // The last layer has scale before shift.
        let image = image.modulated_norm(&change[0], &change[1], NORM_EPS)?;
        probe.show(format_args!("norm_out"), &image);
        let image = lease.linear("proj_out", &image)?;
        probe.show(format_args!("proj_out"), &image);
        let (batch, width) = (image.dim(0), image.dim(2));
        let image = image.reshape([batch * frames, grid.patches(), width])?;
        frames_together(&grid.unpatchify(&image, PatchOrder::ChannelsFirst)?, frames)
    }

    fn group(&self, block: usize) -> Option<(BlockGroup, usize)> {
        Some((BlockGroup::Double, block - 1))
    }

    fn controlled(&self, state: &Joint) -> Result<Option<Tensor>> {
        Ok(Some(state.image.clone()))
    }
}

impl Diffusion for QwenImage {
    fn latent(&self) -> &'static LatentSpec {
        &LATENT
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::exponential_flow(1.15)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        KeyMap::native(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        &[CondInput::ReferenceLatents]
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        matches!(alteration, Alteration::SkipBlock { .. })
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        let text = Array::zeros(&[1, shape.tokens.max(1), self.config.context_width]);
        let reference = |[height, width]: &[usize; 2]| {
            Arc::new(sampling::Latent::zeros(&[1, LATENT.channels, 1, *height, *width]))
        };
        Cond { reference_latents: shape.references.iter().map(reference).collect(), ..Cond::text(text, None) }
    }

    fn start<'a>(
        &'a self,
        session: &'a Session,
        conds: &[Conditioned<'_>],
        scene: &Scene<'_>,
    ) -> Result<Box<dyn DiffusionRun + 'a>> {
        pass::start(self, session, conds, scene)
    }
}

impl Module for QwenImage {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    /// The residual streams outgrow f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}
