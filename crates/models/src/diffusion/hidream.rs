//! HiDream-I1: a transformer whose image feed-forwards are several experts each. Every block reads a state of a language
//! model beside the text that goes through all of them. Formulas and names are those of the authors' code
//! (HiDream-ai/HiDream-I1, `hi_diffusers/models/transformers/transformer_hidream_image.py`).

mod blocks;
mod config;
mod downloads;
mod experts;
mod family;
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
use super::patches::{Grid, PatchOrder, patchify_as};
use super::positions::{Along, Positions};
use super::{Alteration, BlockGroup, Diffusion, DiffusionRun};
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::detect::Part;
use crate::{Error, Module, Probe, Result};
use blocks::{Block, NORM_EPS, State};

pub use config::Config;
pub use family::FAMILY;

/// Tokens of a prompt that is not long.
const USUAL_TOKENS: usize = 128;

/// A HiDream model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct HiDream {
    config: Config,
    prefix: String,
}

/// What does not change within a run, on the device of the first block.
pub(in crate::diffusion) struct Given {
    /// What goes through all blocks, in the model's width, `[batch or 1, tokens, hidden]`: T5's tokens and the last state
    /// of the language model.
    text: Tensor,
    /// The last state of the language model in the model's width, `[1, tokens, hidden]`.
    last_state: Tensor,
    /// Its states, `[1, states, tokens, width]`.
    states: Tensor,
    /// The pooled text in the model's width, `[batch or 1, hidden]`.
    pooled: Tensor,
}

impl HiDream {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<HiDream> {
        let claims = Claims::new(checkpoint, &part.prefix, config::FAMILY);
        Ok(HiDream { config: Config::read(&claims, checkpoint.metadata())?, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The states of the language model on the device, `[1, states, tokens, width]`.
    fn states(&self, lease: &Lease<'_>, cond: &Cond) -> Result<Tensor> {
        let missing = || Error::Input {
            what: "the text",
            expected: "with the states of a language model: encode it for HiDream".into(),
            got: "without".into(),
        };
        let array = cond.second_text.as_ref().ok_or_else(missing)?;
        let axes: [usize; 4] =
            array.axes("the states of a language model", "batch, states, tokens and width")?;
        let last = self.config.states.iter().max().copied().unwrap_or(0);
        if axes[0] != 1 || axes[1] <= last || axes[3] != self.config.state_width {
            return Err(Error::Input {
                what: "the states of a language model",
                expected: format!("[1, more than {last}, tokens, {}]", self.config.state_width),
                got: format!("of shape {axes:?}"),
            });
        }
        Ok(lease.lane().tensor(axes, &array.values)?)
    }
}

impl Transformer for HiDream {
    type Given = Given;
    type State = State;

    fn prepare(
        &self,
        lease: &Lease<'_>,
        conditioned: &Conditioned<'_>,
        scene: &Scene<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Given> {
        let (cond, batch) = (conditioned.cond, scene.shape.batch);
        let text = text_of(lease, cond, batch, self.config.context_width)?;
        let states = self.states(lease, cond)?;
        let projected =
            |index: usize, x: &Tensor| lease.linear(&format!("caption_projection.{index}.linear"), x);
        let text = projected(self.config.blocks(), &text)?;
        let last = self.config.blocks() - 1;
        let last_state = states.slice(1, self.config.states[last], 1)?;
        let last_state = last_state.reshape([1, states.dim(2), states.dim(3)])?;
        let last_state = projected(last, &last_state)?;
        let beside = last_state.broadcast([text.dim(0), last_state.dim(1), last_state.dim(2)])?;
        let text = Tensor::concat(&[&text, &beside], 1)?;
        let pooled = cond.pooled_on(lease.lane(), self.config.pooled_width)?;
        if pooled.dim(1) != self.config.pooled_width || !(pooled.dim(0) == 1 || pooled.dim(0) == batch) {
            let expected = format!("[{batch} or 1, {}]", self.config.pooled_width);
            return wrong("the pooled text", expected, &pooled);
        }
        let pooled = embed(lease, ("p_embedder.pooled_embedder", ["linear_1", "linear_2"]), &pooled, probe)?;
        Ok(Given { text, last_state, states, pooled })
    }

    fn check_latent(&self, latent: &Tensor) -> Result<()> {
        let channels = self.config.channels;
        if latent.rank() == 4 && latent.dim(1) == channels && !latent.dims().contains(&0) {
            return Ok(());
        }
        wrong("the latent", format!("[batch, {channels}, height, width]"), latent)
    }

    fn shapes(&self, latent: &Shape, given: &Given) -> Shapes {
        Shapes::new(latent, Grid::sized(latent).patches(), given.last_state.dim(1).min(given.text.dim(1)))
            .with_references([*given.states.shape(), *given.text.shape()], Default::default())
            .with_vectors(given.pooled.dim(0))
    }

    /// The picture comes first and counts rows and columns; all of the text stands at zero.
    fn positions(&self, latent: &Shape, given: &Given) -> Positions {
        let grid = Grid::sized(latent);
        let mut positions = Positions::new(&config::AXES, config::THETA);
        let picture = [Along::At(0.0), Along::Rows(0.0), Along::Columns(0.0)];
        positions.push([1, grid.rows, grid.columns], &picture);
        positions.push_text(given.text.dim(1) + given.last_state.dim(1), &[Along::At(0.0); 3]);
        positions
    }

    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Members<'_, HiDream>,
        positions: Arc<Positions>,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let (mut images, mut texts, mut vectors) = (Vec::new(), Vec::new(), Vec::new());
        let (mut states, mut last_states) = (Vec::new(), Vec::new());
        for Member { latent, time, given, .. } in batch.members() {
            let patches = patchify_as(&lease.bring(latent)?, PatchOrder::ChannelsLast)?;
            images.push(lease.linear("x_embedder.proj", &patches)?);
            texts.push(for_items(&lease.bring(&given.text)?, latent.dim(0))?);
            let waves = time_embedding(lease.lane(), *time)?;
            let time =
                embed(lease, ("t_embedder.timestep_embedder", ["linear_1", "linear_2"]), &waves, probe)?;
            vectors.push(time.add(&lease.bring(&given.pooled)?)?);
            states.push(lease.bring(&given.states)?);
            last_states.push(for_items(&lease.bring(&given.last_state)?, latent.dim(0))?);
        }
        let all = |parts: &[Tensor]| together(&parts.iter().collect::<Vec<_>>(), 0);
        Ok(State {
            image: all(&images)?,
            text: Some(all(&texts)?),
            states: Everywhere::new(all(&states)?),
            last_state: Everywhere::new(all(&last_states)?),
            vector: Everywhere::new(all(&vectors)?.activate(Activation::Silu)?),
            positions,
        })
    }

    fn block(&self, lease: &Lease<'_>, block: usize, state: State, _: &mut Probe<'_>) -> Result<State> {
        let own =
            Block { config: &self.config, lease, name: self.config.block_name(block), index: block - 1 };
        match self.config.kind_of(block).0 {
            BlockGroup::Double => state.double(&own),
            BlockGroup::Single => state.single(&own),
        }
    }

    fn leave(&self, lease: &Lease<'_>, state: &State, latent: &Shape, _: &mut Probe<'_>) -> Result<Tensor> {
        let grid = Grid::sized(latent);
        let image = lease.bring(&state.image.slice(1, 0, grid.patches())?)?;
        let vector = lease.bring(state.vector.first())?;
        let change = lease.linear("final_layer.adaLN_modulation.1", &vector)?;
        let change = by_item(&change, image.dim(0))?.chunk(2, 2)?;
        let image = image.modulated_norm(&change[1], &change[0], NORM_EPS)?;
        let image = lease.linear("final_layer.linear", &image)?;
        // The model gives the direction from noise to image.
        Ok(grid.unpatchify(&image, PatchOrder::ChannelsLast)?.affine(-1.0, 0.0)?)
    }

    fn group(&self, block: usize) -> Option<(BlockGroup, usize)> {
        Some(self.config.kind_of(block))
    }
}

impl Diffusion for HiDream {
    fn latent(&self) -> &'static LatentSpec {
        &super::latents::FLUX_KL
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::flow(1.0, 1000.0)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        KeyMap::native(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        &[]
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        matches!(alteration, Alteration::SkipBlock { .. })
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        let tokens = shape.tokens.max(1);
        let states = self.config.states.iter().max().copied().unwrap_or(0) + 1;
        let second = Array::zeros(&[1, states, tokens.max(USUAL_TOKENS), self.config.state_width]);
        let text = Array::zeros(&[1, tokens, self.config.context_width]);
        let pooled = Array::zeros(&[1, self.config.pooled_width]);
        Cond { second_text: Some(Arc::new(second)), ..Cond::text(text, Some(pooled)) }
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

impl Module for HiDream {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    /// The residual streams outgrow f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}
