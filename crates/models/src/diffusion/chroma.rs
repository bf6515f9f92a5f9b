//! Chroma: the blocks of FLUX.1 schnell without their modulations, all of which one small network gives. Radiance has no
//! autoencoder: its tokens are patches of pixels, and each of them paints its patch. Formulas and names are those of the
//! authors' code (lodestone-rock/flow, `src/models/chroma/model.py` and `model_dct.py`).

mod approximator;
mod config;
mod downloads;
mod family;
mod pixels;
mod weights;

use std::sync::Arc;

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use patch::KeyMap;
use residency::{Lease, Manifest, Session};
use sampling::{LatentSpec, ModelSampling};
use tensor::Tensor;

use super::batches::together;
use super::kept_heads::LastTokens;
use super::modulation::Everywhere;
use super::pass::{self, Member, Members, Shapes, Transformer, for_items, text_of, wrong};
use super::patches::{Grid, PatchOrder, patchify};
use super::positions::{Along, Positions};
use super::streams::{NORM_EPS, StreamBlock};
use super::tokens::Tokens;
use super::{Alteration, BlockGroup, Diffusion, DiffusionRun};
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Guidance, Scene};
use crate::detect::Part;
use crate::{Module, Probe, Result};
use approximator::{ROWS, beside_time, changes};
use pixels::Painting;

pub use config::{Config, Pixels};
pub use family::FAMILY;
pub(super) use family::{RELEASED, SMALL, TEXT, paints_pixels, tensors_of_pixels};

/// A Chroma model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Chroma {
    config: Config,
    prefix: String,
}

/// What does not change within a run, on the device of the first block.
pub(in crate::diffusion) struct Given {
    /// The text in the model's width, `[batch or 1, tokens, hidden]`.
    text: Tensor,
    /// What the modulations are made from beside the time.
    beside_time: Tensor,
}

/// The activations between blocks, of evaluations that run as one batch.
pub(in crate::diffusion) struct State {
    tokens: Tokens,
    /// Every modulation there is, `[evaluations, rows, hidden]`.
    changes: Everywhere,
    positions: Arc<Positions>,
    painting: Option<Painting>,
}

impl Chroma {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Chroma> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY))?;
        Ok(Chroma { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Through one of the networks that paint pixels.
    fn paint(&self, lease: &Lease<'_>, index: usize, state: State) -> Result<State> {
        let painting = match (&self.config.pixels, &state.painting) {
            (Some(pixels), Some(painting)) => {
                let image = lease.bring(&state.tokens.image()?)?;
                Some(painting.block(pixels, (lease, index), &image)?)
            }
            _ => None,
        };
        Ok(State { painting, ..state })
    }
}

impl Transformer for Chroma {
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
        let text = lease.linear("txt_in", &text)?;
        probe.show(format_args!("txt_in"), &text);
        let guidance = match conditioned.cond.guidance {
            Guidance::Scale(scale) => scale,
            Guidance::Usual | Guidance::Off => 0.0,
        };
        Ok(Given { text, beside_time: beside_time(lease.lane(), guidance)? })
    }

    fn check_latent(&self, latent: &Tensor) -> Result<()> {
        let channels = self.config.channels;
        if latent.rank() == 4 && latent.dim(1) == channels && !latent.dims().contains(&0) {
            return Ok(());
        }
        wrong("the latent", format!("[batch, {channels}, height, width]"), latent)
    }

    fn shapes(&self, latent: &Shape, given: &Given) -> Shapes {
        let [rows, columns] = self.config.grid(latent.dims()[2], latent.dims()[3]);
        Shapes::new(latent, rows * columns, given.text.dim(1)).with_vectors(ROWS)
    }

    /// The text stands at zero, the picture counts rows and columns.
    fn positions(&self, latent: &Shape, given: &Given) -> Positions {
        let [rows, columns] = self.config.grid(latent.dims()[2], latent.dims()[3]);
        let mut positions = Positions::new(&self.config.axes, config::THETA);
        positions.push_text(given.text.dim(1), &[Along::At(0.0); 3]);
        let picture = [Along::At(0.0), Along::Rows(0.0), Along::Columns(0.0)];
        positions.push([1, rows, columns], &picture);
        positions
    }

    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Members<'_, Chroma>,
        positions: Arc<Positions>,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let (mut images, mut texts, mut all_changes) = (Vec::new(), Vec::new(), Vec::new());
        for Member { latent, time, given, .. } in batch.members() {
            let latent = lease.bring(latent)?;
            let image = match &self.config.pixels {
                None => lease.linear("img_in", &patchify(&latent)?)?,
                Some(pixels) => lease.linear("img_in_patch", &pixels.patches(&latent)?)?,
            };
            probe.show(format_args!("img_in"), &image);
            images.push(image);
            texts.push(for_items(&lease.bring(&given.text)?, latent.dim(0))?);
            all_changes.push(changes(&self.config, lease, (*time, &given.beside_time), probe)?);
        }
        let all = |parts: &[Tensor]| together(&parts.iter().collect::<Vec<_>>(), 0);
        positions.show(lease.lane(), probe)?;
        let tokens = Tokens::Apart { image: all(&images)?, text: all(&texts)? };
        let painting = match &self.config.pixels {
            None => None,
            Some(_) => {
                let noisy = batch.members().map(|member| (member.latent, member.time));
                Some(Painting::new(lease, &noisy.collect::<Vec<_>>(), batch.first().altered)?)
            }
        };
        Ok(State { tokens, changes: Everywhere::new(all(&all_changes)?), positions, painting })
    }

    fn block(
        &self,
        lease: &Lease<'_>,
        block: usize,
        mut state: State,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let Some((group, index)) = self.config.kind_of(block) else {
            return self.paint(lease, self.config.painting_block(block), state);
        };
        let tokens = state.tokens.bring(lease)?;
        let items = tokens.image()?.dim(0);
        let changes = state.changes.on(lease)?;
        let rotation = state.positions.on(lease.lane())?;
        let (sizes, attending) = (self.config.sizes(), &state.positions.attending);
        let stream = |name| StreamBlock { sizes, lease, name, rotation, attending, last: LastTokens::Usual };
        let tokens = match group {
            BlockGroup::Double => {
                let change = |side: usize| self.config.double_change(&changes, (index, side), items);
                let sides = [change(0)?, change(1)?];
                stream(format!("double_blocks.{index}")).double(tokens, [&sides[0], &sides[1]], probe)?
            }
            BlockGroup::Single => {
                let change = self.config.single_change(&changes, index, items)?;
                stream(format!("single_blocks.{index}")).single(tokens, &change, probe)?
            }
        };
        Ok(State { tokens, ..state })
    }

    fn leave(
        &self,
        lease: &Lease<'_>,
        state: &State,
        latent: &Shape,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        if let (Some(pixels), Some(painting)) = (&self.config.pixels, &state.painting) {
            return painting.picture(pixels, lease, latent);
        }
        let grid = Grid::sized(latent);
        let image = lease.bring(&state.tokens.image()?)?;
        let changes = lease.bring(state.changes.first())?;
        let [shift, scale] = self.config.last_change(&changes, image.dim(0))?;
        let image = lease.linear("final_layer.linear", &image.modulated_norm(&scale, &shift, NORM_EPS)?)?;
        probe.show(format_args!("final_layer"), &image);
        grid.unpatchify(&image, PatchOrder::ChannelsFirst)
    }

    fn group(&self, block: usize) -> Option<(BlockGroup, usize)> {
        self.config.kind_of(block)
    }

    fn controlled(&self, state: &State) -> Result<Option<Tensor>> {
        Ok(Some(state.tokens.image()?))
    }
}

impl Diffusion for Chroma {
    fn latent(&self) -> &'static LatentSpec {
        if self.config.pixels.is_some() { &pixels::LATENT } else { &super::latents::FLUX_KL }
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::exponential_flow(1.15)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        super::stream_keys::key_map(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        &[CondInput::Guidance]
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        match alteration {
            Alteration::SkipBlock { .. } => true,
            Alteration::PatchesAtOnce(_) => self.config.pixels.is_some(),
            _ => false,
        }
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

impl Module for Chroma {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    /// The residual streams outgrow f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}
