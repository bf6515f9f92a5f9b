//! Krea 2: text and image as one sequence through blocks with gated attention, all of which share one modulation. Formulas
//! and names are those of the authors' files (in diffusers `transformer_krea2.py`). Latents have frames, of which a picture
//! has one.

mod blocks;
mod config;
mod downloads;
mod family;
mod fusion;
mod keys;
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
use super::modulation::{Everywhere, Modulation, by_item, one_more, time_embedding};
use super::pass::{self, Member, Members, Shapes, Transformer, text_of, wrong};
use super::patches::{Grid, PatchOrder, frames_apart, frames_together, patchify};
use super::positions::{Along, Positions};
use super::references::ReferencePlaces;
use super::{Alteration, BlockGroup, Diffusion, DiffusionRun};
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::detect::Part;
use crate::{Module, Probe, Result};
use blocks::{Block, NORM_EPS};
use references::References;

pub use super::latents::VIDEO_16 as LATENT;
pub use config::{Config, TextConfig};
pub use family::FAMILY;
pub use keys::key_map as patch_keys;

/// A Krea 2 model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Krea2 {
    config: Config,
    prefix: String,
}

/// What does not change within a run, on the device of the first block.
pub(in crate::diffusion) struct Given {
    /// The text in the model's width, `[batch or 1, tokens, hidden]`.
    text: Tensor,
    references: References,
}

/// The activations between blocks, of evaluations that run as one batch.
pub(in crate::diffusion) struct State {
    /// The tokens of the text, of the image and of the pictures to look at, `[items, tokens, hidden]`.
    tokens: Tensor,
    /// How many of them are text, and how many image.
    counts: [usize; 2],
    /// The embedded times, one row for each evaluation; behind them the end of time, if pictures are read as at it.
    times: Tensor,
    /// What all blocks are moved by, of as many rows.
    change: Everywhere,
    timeless: bool,
    positions: Arc<Positions>,
}

impl Krea2 {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Krea2> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY))?;
        Ok(Krea2 { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The vector of a time, `[1, hidden]`.
    fn time(&self, lease: &Lease<'_>, time: f32, probe: &mut Probe<'_>) -> Result<Tensor> {
        let waves = time_embedding(lease.lane(), 1000.0 * time)?;
        let vector =
            lease.linear("tmlp.2", &lease.linear_then("tmlp.0", &waves, Some(Activation::GeluTanh))?)?;
        probe.show(format_args!("tmlp"), &vector);
        Ok(vector)
    }

    /// The tokens of a latent, each frame by itself, and of the pictures to look at: `[items, tokens, hidden]`.
    fn image(
        &self,
        lease: &Lease<'_>,
        latent: &Tensor,
        given: &Given,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let mut all = vec![patchify(&frames_apart(&lease.bring(latent)?)?)?];
        let items = all[0].dim(0);
        for patches in &given.references.patches {
            all.push(lease.bring(patches)?.broadcast([items, patches.dim(1), patches.dim(2)])?);
        }
        let image = lease.linear("first", &together(&all.iter().collect::<Vec<_>>(), 1)?)?;
        probe.show(format_args!("first"), &image);
        Ok(image)
    }
}

impl State {
    /// How the halves of a block move tokens, by what it adds to what all are moved by.
    fn halves(&mut self, lease: &Lease<'_>, table: &str) -> Result<[Modulation; 2]> {
        let table = lease.lane().unpack(&lease.weight(table)?)?;
        let change = self.change.on(lease)?.add(&table.reshape([1, table.dim(0)])?)?;
        let items = self.tokens.dim(0);
        let both = |rows: &Tensor| -> Result<[Modulation; 2]> {
            let change = by_item(rows, items)?;
            Ok([Modulation::scale_first(&change, 0, 6)?, Modulation::scale_first(&change, 3, 6)?])
        };
        let [first, second] = both(&own_times(&change, self.timeless)?)?;
        if !self.timeless {
            return Ok([first, second]);
        }
        let looked_at = self.counts.iter().sum()..self.tokens.dim(1);
        let [still, quiet] = both(&change.slice(0, change.dim(0) - 1, 1)?)?;
        Ok([first.but_for(looked_at.clone(), still), second.but_for(looked_at, quiet)])
    }
}

/// The rows of the evaluations' own times: without that of the end of time, if there is one.
fn own_times(rows: &Tensor, timeless: bool) -> Result<Tensor> {
    Ok(if timeless { rows.slice(0, 0, rows.dim(0) - 1)? } else { rows.clone() })
}

/// A text `[batch or 1, tokens, hidden]` for every frame of every item.
fn for_frames(text: &Tensor, [items, frames]: [usize; 2]) -> Result<Tensor> {
    let [batch, tokens, hidden] = [0, 1, 2].map(|axis| text.dim(axis));
    let text = text.reshape([batch, 1, tokens, hidden])?.broadcast([items, frames, tokens, hidden])?;
    Ok(text.reshape([items * frames, tokens, hidden])?)
}

impl Transformer for Krea2 {
    type Given = Given;
    type State = State;

    fn prepare(
        &self,
        lease: &Lease<'_>,
        conditioned: &Conditioned<'_>,
        scene: &Scene<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Given> {
        let cond = conditioned.cond;
        let text = text_of(lease, cond, scene.shape.batch, self.config.context_width())?;
        let text = fusion::fuse(&self.config, lease, &text, probe)?;
        Ok(Given { text, references: References::new(lease, cond, scene)? })
    }

    fn check_latent(&self, latent: &Tensor) -> Result<()> {
        let channels = self.config.channels;
        if latent.rank() == 5 && latent.dim(1) == channels && !latent.dims().contains(&0) {
            return Ok(());
        }
        wrong("the latent", format!("[batch, {channels}, frames, height, width]"), latent)
    }

    fn shapes(&self, latent: &Shape, given: &Given) -> Shapes {
        let References { shapes, timeless, .. } = &given.references;
        Shapes::new(latent, Grid::of_frame(latent).patches(), given.text.dim(1))
            .with_references(shapes.iter().copied(), ReferencePlaces::Index)
            .with_vectors(if *timeless { 2 } else { 1 })
    }

    /// The text stands at zero; pictures count rows and columns, and those to look at have an index of their own.
    fn positions(&self, latent: &Shape, given: &Given) -> Positions {
        let mut positions = Positions::new(&self.config.axes, config::THETA);
        positions.push_text(given.text.dim(1), &[Along::At(0.0); 3]);
        for (index, shape) in std::iter::once(latent).chain(&given.references.shapes).enumerate() {
            let grid = Grid::of_frame(shape);
            let along = [Along::At(index as f64), Along::Rows(0.0), Along::Columns(0.0)];
            positions.push([1, grid.rows, grid.columns], &along);
        }
        positions
    }

    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Members<'_, Krea2>,
        positions: Arc<Positions>,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let (mut tokens, mut times) = (Vec::new(), Vec::new());
        for Member { latent, time, given, .. } in batch.members() {
            let text = for_frames(&lease.bring(&given.text)?, [latent.dim(0), latent.dim(2)])?;
            tokens.push(Tensor::concat(&[&text, &self.image(lease, latent, given, probe)?], 1)?);
            times.push(self.time(lease, *time, probe)?);
        }
        let Member { latent, given, .. } = batch.first();
        let timeless = given.references.timeless;
        if timeless {
            times.push(self.time(lease, 0.0, &mut Probe::none())?);
        }
        let all = |parts: &[Tensor]| together(&parts.iter().collect::<Vec<_>>(), 0);
        let times = all(&times)?;
        let change = lease.linear("tproj.1", &times.activate(Activation::GeluTanh)?)?;
        probe.show(format_args!("tproj"), &change);
        Ok(State {
            tokens: all(&tokens)?,
            counts: [given.text.dim(1), Grid::of_frame(latent.shape()).patches()],
            times,
            change: Everywhere::new(change),
            timeless,
            positions,
        })
    }

    fn block(
        &self,
        lease: &Lease<'_>,
        block: usize,
        mut state: State,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let name = format!("blocks.{}", block - 1);
        let halves = state.halves(lease, &format!("{name}.mod.lin"))?;
        let rotation = state.positions.on(lease.lane())?;
        let own = Block { sizes: self.config.block(), lease, name: &name };
        let tokens = own.moved(&lease.bring(&state.tokens)?, &halves, &rotation, probe)?;
        Ok(State { tokens, ..state })
    }

    fn leave(
        &self,
        lease: &Lease<'_>,
        state: &State,
        latent: &Shape,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let [texts, images] = state.counts;
        let image = lease.bring(&state.tokens.slice(1, texts, images)?)?;
        let times = by_item(&lease.bring(&own_times(&state.times, state.timeless)?)?, image.dim(0))?;
        let table = lease.lane().unpack(&lease.weight("last.modulation.lin")?)?;
        let part = |i: usize| -> Result<Tensor> {
            Ok(times.add(&table.slice(0, i, 1)?.reshape([1, 1, self.config.hidden])?)?)
        };
        let image = image.rms_norm(Some(&one_more(lease, "last.norm.scale")?), NORM_EPS)?;
        let image = lease.linear("last.linear", &image.modulate(&part(0)?, &part(1)?)?)?;
        probe.show(format_args!("last"), &image);
        let image = Grid::of_frame(latent).unpatchify(&image, PatchOrder::ChannelsFirst)?;
        frames_together(&image, latent.dims()[2])
    }

    fn group(&self, block: usize) -> Option<(BlockGroup, usize)> {
        Some((BlockGroup::Single, block - 1))
    }
}

impl Diffusion for Krea2 {
    fn latent(&self) -> &'static LatentSpec {
        &LATENT
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::exponential_flow(1.15)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        keys::key_map(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        &[CondInput::ReferenceLatents]
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        matches!(alteration, Alteration::SkipBlock { .. })
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        let text = Array::zeros(&[1, shape.tokens.max(1), self.config.context_width()]);
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

impl Module for Krea2 {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    /// It was trained in bf16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}
