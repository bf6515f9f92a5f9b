//! Z-Image and Lumina Image 2: text and image are refined apart, then run through one stack of blocks as one sequence.
//! Formulas and names are those of the authors' code (Alpha-VLLM/Lumina-Image-2.0, `models/model.py`; Tongyi-MAI/Z-Image,
//! `src/zimage/transformer.py`). The two differ in their modulation, their positions and what sequences are filled up to.

mod blocks;
mod config;
mod downloads;
mod family;
mod keys;
mod model_patch;
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
use super::model_patches::{PatchPoint, Seen};
use super::modulation::{Everywhere, by_item, embed, time_embedding};
use super::pass::{self, Member, Members, Shapes, Transformer, for_items, text_of, wrong};
use super::patches::{Grid, PatchOrder, patchify_as};
use super::positions::{Along, Positions};
use super::tokens::Tokens;
use super::{Alteration, BlockGroup, Diffusion, DiffusionRun, Placed};
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::detect::Part;
use crate::{Module, Probe, Result};
use blocks::{BLOCK_EPS, Block, State};

pub use config::{Config, Generation};
pub use family::FAMILY;
pub use keys::key_map as patch_keys;
pub use model_patch::PATCH;

/// Added to the variance of the last normalisation.
const LAST_EPS: f32 = 1e-6;

/// A Z-Image or Lumina 2 model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct ZImage {
    config: Config,
    prefix: String,
}

/// A text on the device of the first block, in the model's width, `[batch or 1, tokens, hidden]`.
pub(in crate::diffusion) struct Given {
    text: Tensor,
}

impl ZImage {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<ZImage> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY))?;
        Ok(ZImage { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Tokens of a picture, and those that fill them up.
    fn image_tokens(&self, latent: &Shape) -> [usize; 2] {
        let patches = Grid::sized(latent).patches();
        [patches, self.config.filling(patches)]
    }

    /// A picture's tokens, filled up.
    fn image(&self, lease: &Lease<'_>, latent: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let image = patchify_as(&lease.bring(latent)?, PatchOrder::ChannelsLast)?;
        let image = lease.linear("x_embedder", &image)?;
        probe.show(format_args!("x_embedder"), &image);
        filled(lease, image, self.image_tokens(latent.shape())[1], "x_pad_token")
    }
}

/// Tokens `[batch, tokens, hidden]` with so many copies of a learned one behind them.
fn filled(lease: &Lease<'_>, tokens: Tensor, filling: usize, name: &str) -> Result<Tensor> {
    if filling == 0 {
        return Ok(tokens);
    }
    let ids = lease.lane().ids([1, filling], &vec![0; filling])?;
    let rows = lease.lane().embedding(&lease.weight(name)?, &ids)?;
    let rows = rows.broadcast([tokens.dim(0), filling, tokens.dim(2)])?;
    Ok(Tensor::concat(&[&tokens, &rows], 1)?)
}

impl Transformer for ZImage {
    type Given = Given;
    type State = State;

    fn prepare(
        &self,
        lease: &Lease<'_>,
        conditioned: &Conditioned<'_>,
        scene: &Scene<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Given> {
        let text = text_of(lease, conditioned.cond, scene.shape.batch, self.config.context_width)?;
        let text = text.rms_norm(Some(&lease.weight("cap_embedder.0.weight")?), BLOCK_EPS)?;
        let text = lease.linear("cap_embedder.1", &text)?;
        probe.show(format_args!("cap_embedder"), &text);
        let filling = self.config.filling(text.dim(1));
        Ok(Given { text: filled(lease, text, filling, "cap_pad_token")? })
    }

    fn check_latent(&self, latent: &Tensor) -> Result<()> {
        let channels = self.config.channels;
        if latent.rank() == 4 && latent.dim(1) == channels && !latent.dims().contains(&0) {
            return Ok(());
        }
        wrong("the latent", format!("[batch, {channels}, height, width]"), latent)
    }

    fn shapes(&self, latent: &Shape, given: &Given) -> Shapes {
        Shapes::new(latent, Grid::sized(latent).patches(), given.text.dim(1))
    }

    /// The text counts its tokens from one; the picture stands behind it and counts rows and columns; what fills it up
    /// stands at zero.
    fn positions(&self, latent: &Shape, given: &Given) -> Positions {
        self.positions_placed(latent, given, &Placed::COUNTED)
    }

    /// Rows and columns are moved; the index, which counts on from the text, is not.
    fn positions_placed(&self, latent: &Shape, given: &Given, placed: &Placed) -> Positions {
        let (grid, texts) = (Grid::sized(latent), given.text.dim(1));
        let mut positions = Positions::new(&self.config.axes, self.config.theta);
        positions.push_text(texts, &[Along::Rows(1.0), Along::At(0.0), Along::At(0.0)]);
        let [_, rows, columns] = Along::picture(0.0, placed);
        let picture = [Along::At((texts + 1) as f64), rows, columns];
        positions.push([1, grid.rows, grid.columns], &picture);
        positions.push_text(self.image_tokens(latent)[1], &[Along::At(0.0); 3]);
        positions
    }

    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Members<'_, ZImage>,
        positions: Arc<Positions>,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let (mut images, mut texts, mut times) = (Vec::new(), Vec::new(), Vec::new());
        for Member { latent, time, given, .. } in batch.members() {
            images.push(self.image(lease, latent, probe)?);
            texts.push(for_items(&lease.bring(&given.text)?, latent.dim(0))?);
            // The model's own time runs the other way.
            let waves = time_embedding(lease.lane(), (1.0 - time) * self.config.time_scale())?;
            times.push(embed(lease, ("t_embedder", ["mlp.0", "mlp.2"]), &waves, probe)?);
        }
        let all = |parts: &[Tensor]| together(&parts.iter().collect::<Vec<_>>(), 0);
        positions.show(lease.lane(), probe)?;
        let time = all(&times)?;
        Ok(State {
            tokens: Tokens::Apart { image: all(&images)?, text: all(&texts)? },
            silu: Everywhere::new(time.activate(Activation::Silu)?),
            time: Everywhere::new(time),
            positions,
        })
    }

    fn block(&self, lease: &Lease<'_>, block: usize, state: State, probe: &mut Probe<'_>) -> Result<State> {
        let name = self.config.block_name(block);
        let own = Block { config: &self.config, lease, name: &name };
        if block <= self.config.context_refiners {
            return state.refine_text(&own, probe);
        }
        if block <= self.config.context_refiners + self.config.noise_refiners {
            return state.refine_image(&own, probe);
        }
        state.layer(&own, probe)
    }

    fn leave(
        &self,
        lease: &Lease<'_>,
        state: &State,
        latent: &Shape,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let grid = Grid::sized(latent);
        let image = lease.bring(&state.tokens.image()?.slice(1, 0, grid.patches())?)?;
        let scale = lease.linear("final_layer.adaLN_modulation.1", &lease.bring(state.silu.first())?)?;
        let scale = by_item(&scale, image.dim(0))?;
        let shift = lease.lane().full([1, 1, image.dim(2)], 0.0)?.contiguous()?;
        let image = image.modulated_norm(&scale, &shift, LAST_EPS)?;
        let image = lease.linear("final_layer.linear", &image)?;
        probe.show(format_args!("final_layer"), &image);
        // The model gives the direction from noise to image.
        Ok(grid.unpatchify(&image, PatchOrder::ChannelsLast)?.affine(-1.0, 0.0)?)
    }

    fn group(&self, block: usize) -> Option<(BlockGroup, usize)> {
        let first = 1 + self.config.context_refiners + self.config.noise_refiners;
        Some((BlockGroup::Double, block.checked_sub(first)?))
    }

    fn controlled(&self, state: &State) -> Result<Option<Tensor>> {
        Ok(Some(state.tokens.image()?))
    }

    fn patch_point(&self, block: usize) -> Option<PatchPoint> {
        let index = block.checked_sub(1 + self.config.context_refiners)?;
        Some(match index.checked_sub(self.config.noise_refiners) {
            None => PatchPoint::Refiner(index),
            Some(index) => PatchPoint::Block(index),
        })
    }

    fn seen(&self, state: &State, size: [usize; 2]) -> Result<Option<Seen>> {
        let [image, text] = state.tokens.sides()?;
        Ok(Some(Seen {
            time: Some(state.time.first().clone()),
            places: Some((Arc::clone(&state.positions), text.dim(1))),
            ..Seen::tokens(size, image)
        }))
    }
}

impl Diffusion for ZImage {
    fn latent(&self) -> &'static LatentSpec {
        &super::latents::FLUX_KL
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::flow(self.config.generation.shift(), 1.0)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        keys::key_map(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        &[]
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        matches!(alteration, Alteration::SkipBlock { .. } | Alteration::Placed(_))
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        Cond::text(Array::zeros(&[1, shape.tokens.max(1), self.config.context_width]), None)
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

impl Module for ZImage {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    /// The residual streams outgrow f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}
