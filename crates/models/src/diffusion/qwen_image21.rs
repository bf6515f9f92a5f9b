//! Qwen-Image 2.1: text, pictures to look at among its words, and the image as one sequence. All that stands before the
//! image looks back only and is read as at the end of time; one modulation, without shifts, moves all blocks. Formulas and
//! names are those of the authors' code (in diffusers `transformer_qwenimage21.py`). Pictures have transparency.

mod blocks;
mod config;
mod downloads;
mod family;
mod keys;
mod latent;
mod prefix;
mod sequence;
pub(crate) mod text;
mod weights;

use std::sync::Arc;

use checkpoint::Checkpoint;
use device::op::UnaryKind;
use meta::{DType, Shape};
use patch::KeyMap;
use residency::{Lease, Manifest, Session};
use sampling::{Latent, LatentShape, LatentSpec, ModelSampling};
use tensor::{Activation, Tensor};

use super::batches::together;
use super::kept_heads::KeptHeads;
use super::modulation::{Everywhere, Modulation, by_item, one_more, time_embedding};
use super::pass::{self, Member, Members, Shapes, Transformer, for_items, text_of, wrong};
use super::patches::{Grid, tokens_as_values, values_as_tokens};
use super::positions::{Along, Positions};
use super::references::ReferencePlaces;
use super::{Alteration, BlockGroup, Diffusion, DiffusionRun};
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::detect::Part;
use crate::{Error, Module, Probe, Result};
use blocks::{Block, NORM_EPS};
use prefix::Prefix;
use sequence::{Piece, Segment};

pub use config::Config;
pub use family::FAMILY;
pub use keys::key_map as patch_keys;
pub use latent::LATENT;

/// A Qwen-Image 2.1 model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct QwenImage21 {
    config: Config,
    prefix: String,
}

/// What does not change within a run, on the device of the first block.
pub(in crate::diffusion) struct Given {
    /// What stands before the image, in the model's width, `[batch or 1, tokens, hidden]`.
    before: Tensor,
    /// Tokens of the text.
    words: usize,
    /// The shapes of pictures to look at, `[batch or 1, channels, height, width]`, and the words before which they stand.
    references: Vec<Shape>,
    slots: Vec<usize>,
    /// Keys and values of what stands before the image, if they are kept.
    kept: Arc<KeptHeads>,
}

/// The activations between blocks, of evaluations that run as one batch.
pub(in crate::diffusion) struct State {
    /// `[items, tokens, hidden]`: what stands before the image, then the image.
    tokens: Tensor,
    /// How many stand before the image, and how many of them are computed.
    prefix_tokens: usize,
    before: usize,
    prefix: Prefix,
    segments: Vec<Segment>,
    /// The embedded times after SiLU, one row for each evaluation.
    times: Tensor,
    /// Scales and gates of both halves of every block, of as many rows, and of one for the end of time behind them.
    change: Everywhere,
    positions: Arc<Positions>,
}

impl QwenImage21 {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<QwenImage21> {
        let config = Config::read(&config::claims(checkpoint, &part.prefix))?;
        Ok(QwenImage21 { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The text in the model's width.
    fn words(&self, lease: &Lease<'_>, text: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let text = text.rms_norm(Some(&one_more(lease, "txt_in.text_norm.weight")?), NORM_EPS)?;
        let text = lease.linear_then("txt_in.in_layer", &text, Some(Activation::GeluTanh))?;
        let text = lease.linear("txt_in.out_layer", &text)?;
        probe.show(format_args!("txt_in"), &text);
        Ok(text)
    }

    /// A picture to look at on the device.
    fn reference(&self, lease: &Lease<'_>, latent: &Arc<Latent>, batch: usize) -> Result<Tensor> {
        let latent = LATENT.to_model(latent)?;
        let latent = if latent.shape().first() == Some(&1) { latent } else { latent.with_items(batch)? };
        let LatentShape { batch, channels, frames, height, width } = LatentShape::of(&latent)?;
        if frames != 1 || channels != self.config.channels {
            return Err(Error::Input {
                what: "a reference latent",
                expected: format!("a picture of {} channels", self.config.channels),
                got: format!("{frames} frames of {channels} channels"),
            });
        }
        Ok(lease.lane().tensor([batch, channels, height, width], latent.values())?)
    }

    /// The vector of a time, `[1, hidden]`.
    fn time(&self, lease: &Lease<'_>, time: f32) -> Result<Tensor> {
        let waves = time_embedding(lease.lane(), 1000.0 * time)?;
        let name = |layer: &str| format!("time_text_embed.timestep_embedder.{layer}");
        let inner = lease.linear_then(&name("linear_1"), &waves, Some(Activation::Silu))?;
        Ok(lease.linear(&name("linear_2"), &inner)?)
    }

    /// Scales and gates of both halves of every block, for times after SiLU.
    fn change(&self, lease: &Lease<'_>, times: &Tensor, probe: &mut Probe<'_>) -> Result<Everywhere> {
        let change = lease.linear("modulation.1", times)?;
        probe.show(format_args!("modulation"), &change);
        let parts = change.chunk(1, 4)?;
        let gates = [parts[1].unary(UnaryKind::Tanh)?, parts[3].unary(UnaryKind::Tanh)?];
        Ok(Everywhere::new(Tensor::concat(&[&parts[0], &gates[0], &parts[2], &gates[1]], 1)?))
    }
}

impl State {
    /// How the halves of every block move tokens: the image by the evaluations' times, all else by the end of time.
    fn halves(&mut self, lease: &Lease<'_>) -> Result<[Modulation; 2]> {
        let change = self.change.on(lease)?;
        let (last, items) = (change.dim(0) - 1, self.tokens.dim(0));
        let both = |rows: &Tensor| -> Result<[Modulation; 2]> {
            let parts = by_item(rows, items)?.chunk(2, 4)?;
            Ok([Modulation::unshifted(&parts[0], &parts[1])?, Modulation::unshifted(&parts[2], &parts[3])?])
        };
        let [first, second] = both(&change.slice(0, 0, last)?)?;
        let [still, quiet] = both(&change.slice(0, last, 1)?)?;
        Ok([first.but_for(0..self.before, still), second.but_for(0..self.before, quiet)])
    }
}

impl Given {
    /// What stands before the image.
    fn pieces(&self) -> Vec<Piece> {
        sequence::pieces(self.words, self.references.len(), &self.slots)
    }
}

impl Transformer for QwenImage21 {
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
        let text = self.words(lease, &text, probe)?;
        let (mut references, mut pictures, mut items) = (Vec::new(), Vec::new(), text.dim(0));
        for latent in &cond.reference_latents {
            let latent = self.reference(lease, latent, batch)?;
            references.push(*latent.shape());
            items = items.max(latent.dim(0));
            pictures.push(lease.linear("img_in", &values_as_tokens(&latent)?)?);
        }
        let slots = cond.reference_slots.clone();
        let mut parts = Vec::new();
        for piece in sequence::pieces(text.dim(1), references.len(), &slots) {
            let part = match piece {
                Piece::Words(words) => text.slice(1, words.start, words.len())?,
                Piece::Picture(index) => pictures[index].clone(),
            };
            parts.push(for_items(&part, items)?);
        }
        let before = together(&parts.iter().collect::<Vec<_>>(), 1)?;
        Ok(Given { before, words: text.dim(1), references, slots, kept: Arc::default() })
    }

    fn check_latent(&self, latent: &Tensor) -> Result<()> {
        let channels = self.config.channels;
        if latent.rank() == 4 && latent.dim(1) == channels && !latent.dims().contains(&0) {
            return Ok(());
        }
        wrong("the latent", format!("[batch, {channels}, height, width]"), latent)
    }

    fn shapes(&self, latent: &Shape, given: &Given) -> Shapes {
        Shapes::new(latent, Grid::of_values(latent).patches(), given.words)
            .with_references(given.references.iter().copied(), ReferencePlaces::Index)
            .with_slots(given.slots.clone())
            .with_vectors(2)
            .with_kept(given.kept.are_whole(latent.dims()[0]))
    }

    /// Words count on; a picture stands at one place of the sequence and counts rows and columns from its middle.
    fn positions(&self, latent: &Shape, given: &Given) -> Positions {
        let mut positions = Positions::new(&self.config.axes, config::THETA);
        let mut next = 0.0;
        let push_picture = |positions: &mut Positions, shape: &Shape, at: f64| {
            let Grid { rows, columns, .. } = Grid::of_values(shape);
            let first = |count: usize| -((count - count / 2) as f64);
            let along = [Along::At(at), Along::Rows(first(rows)), Along::Columns(first(columns))];
            positions.push([1, rows, columns], &along);
            rows.max(columns) as f64
        };
        for piece in given.pieces() {
            next += match piece {
                Piece::Words(words) => {
                    positions.push_text(words.len(), &[Along::Rows(next); 3]);
                    words.len() as f64
                }
                Piece::Picture(index) => push_picture(&mut positions, &given.references[index], next),
            };
        }
        push_picture(&mut positions, latent, next);
        positions
    }

    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Members<'_, QwenImage21>,
        positions: Arc<Positions>,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let prefix = Prefix::of(batch);
        let (mut tokens, mut times) = (Vec::new(), Vec::new());
        for Member { latent, time, given, .. } in batch.members() {
            let image = lease.linear("img_in", &values_as_tokens(&lease.bring(latent)?)?)?;
            probe.show(format_args!("img_in"), &image);
            tokens.push(if prefix.is_read() {
                image
            } else {
                let before = for_items(&lease.bring(&given.before)?, latent.dim(0))?;
                Tensor::concat(&[&before, &image], 1)?
            });
            times.push(self.time(lease, *time)?);
        }
        let evaluations = times.len();
        times.push(self.time(lease, 0.0)?);
        let all = |parts: &[Tensor]| together(&parts.iter().collect::<Vec<_>>(), 0);
        let times = all(&times)?;
        probe.show(format_args!("temb"), &times);
        let times = times.activate(Activation::Silu)?;
        let Member { latent, given, .. } = batch.first();
        let length = |piece: Piece| match piece {
            Piece::Words(words) => (true, words.len()),
            Piece::Picture(index) => (false, Grid::of_values(&given.references[index]).patches()),
        };
        let pieces = if prefix.is_read() { Vec::new() } else { given.pieces() };
        let pieces: Vec<(bool, usize)> = pieces.into_iter().map(length).collect();
        let prefix_tokens = given.before.dim(1);
        let images = Grid::of_values(latent.shape()).patches();
        Ok(State {
            tokens: all(&tokens)?,
            prefix_tokens,
            before: if prefix.is_read() { 0 } else { prefix_tokens },
            prefix,
            segments: sequence::segments(lease, &pieces, images)?,
            change: self.change(lease, &times, probe)?,
            times: times.slice(0, 0, evaluations)?,
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
        let name = format!("transformer_blocks.{}", block - 1);
        let halves = state.halves(lease)?;
        let tokens = lease.bring(&state.tokens)?;
        let first = state.prefix_tokens - state.before;
        let rotation = state.positions.on(lease.lane())?.slice(first, tokens.dim(1))?;
        let prefix = state.prefix.in_block(lease, block, state.before)?;
        let own = Block { config: &self.config, lease, name: &name, prefix };
        let tokens = own.over(&tokens, &halves, (&rotation, &mut state.segments), probe)?;
        Ok(State { tokens, ..state })
    }

    fn leave(
        &self,
        lease: &Lease<'_>,
        state: &State,
        latent: &Shape,
        _probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        state.prefix.finish();
        let grid = Grid::of_values(latent);
        let image = lease.bring(&state.tokens.slice(1, state.before, grid.patches())?)?;
        let scale = lease.linear("norm_out.linear", &lease.bring(&state.times)?)?;
        let scale = by_item(&scale, image.dim(0))?;
        let image = Modulation::unshifted(&scale, &scale)?.normed(&image, NORM_EPS)?;
        tokens_as_values(&lease.linear("proj_out", &image)?, [grid.height, grid.width])
    }

    fn group(&self, block: usize) -> Option<(BlockGroup, usize)> {
        Some((BlockGroup::Single, block - 1))
    }
}

impl Diffusion for QwenImage21 {
    fn latent(&self) -> &'static LatentSpec {
        &LATENT
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::exponential_flow(0.69)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        keys::key_map(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        &[CondInput::ReferenceLatents]
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        matches!(alteration, Alteration::SkipBlock { .. } | Alteration::KeepReferences)
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        let text = Array::zeros(&[1, shape.tokens.max(1), self.config.context_width]);
        let reference =
            |[height, width]: &[usize; 2]| Arc::new(Latent::zeros(&[1, LATENT.channels, *height, *width]));
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

impl Module for QwenImage21 {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&config::claims(checkpoint, &self.prefix), &self.config)
    }

    /// It was trained in bf16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}
