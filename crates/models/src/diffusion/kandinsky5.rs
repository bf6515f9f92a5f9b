//! Kandinsky 5: a transformer over the tokens of a video or a picture. A few blocks refine the text, then every block
//! attends to the video and to that text; a time, joined with all of the text in one vector, moves both. Pictures that a
//! video begins with stand in place of its first frames, and a channel beside the latent says where. Formulas and names are
//! those of the authors' code (kandinskylab/kandinsky-5, `kandinsky/models/dit.py`).

mod blocks;
mod config;
mod downloads;
mod family;
mod given;
mod run;
pub(crate) mod text;
mod weights;

use std::sync::Arc;

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use residency::{Lease, Manifest, Session};
use tensor::{Activation, Tensor};

use super::Placed;
use super::batches::{Batch, FEW_ROWS, Together, in_order};
use super::known::Known;
use super::modulation::{Modulation, by_item, embed, waves};
use super::patches::{Grid, PatchOrder, frames_apart, frames_together, patchify_as};
use super::positions::{Along, Positions};
use super::video::VideoGrid;
use crate::claims::Claims;
use crate::detect::Part;
use crate::{Error, Module, Probe, Result};
use blocks::{Entered, NORM_EPS, State};
use given::Prepared;

pub use config::Config;
pub use family::FAMILY;

/// The slowest waves of positions turn once in about so many.
const THETA: f64 = 10_000.0;

/// A Kandinsky 5 model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Kandinsky5 {
    config: Config,
    prefix: String,
}

/// One evaluation of a step.
#[derive(Clone, Copy)]
struct Member<'a> {
    latent: &'a Tensor,
    time: f32,
    given: &'a Prepared,
    /// Where its tokens stand, if it is not where they stood in training.
    placed: Option<Placed>,
}

/// What decides whether evaluations fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shapes {
    /// With frames, whatever the latent has.
    latent: Shape,
    text: usize,
    placed: Option<Placed>,
}

impl Together for Shapes {
    fn most_together(&self) -> usize {
        let items = self.latent.dims()[0];
        let fewest = VideoGrid::sized(&self.latent).tokens().min(self.text);
        // Modulations have one row for each item in every block.
        match items {
            _ if items * fewest <= FEW_ROWS => 1,
            few if few <= FEW_ROWS => FEW_ROWS / few.max(1),
            _ => usize::MAX,
        }
    }
}

/// Where tokens stand, for each size of a latent and each length of a text that has run.
#[derive(Default)]
struct Places {
    videos: Known<([usize; 3], Option<Placed>), Arc<Positions>>,
    texts: Known<usize, Arc<Positions>>,
}

impl Kandinsky5 {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Kandinsky5> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY))?;
        Ok(Kandinsky5 { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// One pass over the blocks; one result for each evaluation, in their order.
    fn pass(&self, session: &Session, evaluations: &[Member<'_>], places: &Places) -> Result<Vec<Tensor>> {
        let shapes = |Member { latent, given, placed, .. }: &Member<'_>| Shapes {
            latent: with_frames(latent.shape()),
            text: given.text.dim(1),
            placed: *placed,
        };
        let batches = Batch::all_of(evaluations, shapes);
        let mut states: Vec<State> = {
            let lease = session.lease(0)?;
            batches.iter().map(|batch| self.enter(&lease, batch, places)).collect::<Result<_>>()?
        };
        let texts = self.config.text_blocks;
        for place in 0..texts + self.config.blocks {
            let lease = session.lease(1 + place)?;
            let through = |state: State| match place.checked_sub(texts) {
                None => state.text_block(&self.config, &lease, place),
                Some(index) => state.block(&self.config, &lease, index),
            };
            states = states.into_iter().map(through).collect::<Result<_>>()?;
        }
        let lease = session.lease(1 + texts + self.config.blocks)?;
        let mut outputs = Vec::with_capacity(evaluations.len());
        for (batch, state) in batches.iter().zip(states) {
            let output = leave(&lease, &state, &batch.shapes().latent)?;
            let (items, shape) = (batch.first().latent.dim(0), *batch.first().latent.shape());
            let output = output.reshape(shape.with(0, output.dim(0)))?;
            outputs.extend(batch.apart(&output, items)?);
        }
        Ok(in_order(outputs))
    }

    /// From latents to tokens: the first block of the manifest. What comes in is little beside what follows, so the
    /// evaluations of a batch enter one by one and meet behind.
    fn enter(&self, lease: &Lease<'_>, batch: &Batch<Shapes, Member<'_>>, places: &Places) -> Result<State> {
        let Shapes { latent, text, placed } = batch.shapes();
        let size = [latent.dims()[2], latent.dims()[3], latent.dims()[4]];
        let make = || Ok(Arc::new(self.positions(latent, *placed)));
        let video = places.videos.of(&(size, *placed), make)?;
        let text = places.texts.of(text, || {
            let mut positions = Positions::new(&[self.config.head], THETA);
            positions.push_text(*text, &[Along::Rows(0.0)]);
            Ok(Arc::new(positions))
        })?;
        let entered = batch.members().map(|member| self.enter_one(lease, member));
        State::new(&entered.collect::<Result<Vec<_>>>()?, [video, text])
    }

    /// Where the tokens of a latent of this shape stand. Rows and columns may stand closer than frames, unless a node says
    /// where they do.
    fn positions(&self, latent: &Shape, placed: Option<Placed>) -> Positions {
        let grid = VideoGrid::sized(latent);
        let closer = self.config.closer([grid.height, grid.width]);
        let steps = match placed {
            None => [1.0, 1.0 / closer, 1.0 / closer],
            Some(placed) => placed.scale.map(|scale| f64::from(scale.0)),
        };
        let starts = placed.map_or([0.0; 3], |placed| placed.shift.map(|shift| f64::from(shift.0)));
        let mut positions = Positions::new(&self.config.axes(), THETA);
        let [frames, rows, columns] = [0, 1, 2].map(|axis| (starts[axis], steps[axis]));
        let along = [
            Along::Spread { side: 0, start: frames.0, step: frames.1 },
            Along::Spread { side: 1, start: rows.0, step: rows.1 },
            Along::Spread { side: 2, start: columns.0, step: columns.1 },
        ];
        positions.push([grid.frames, grid.rows, grid.columns], &along);
        positions
    }

    fn enter_one(
        &self,
        lease: &Lease<'_>,
        Member { latent, time, given, .. }: &Member<'_>,
    ) -> Result<Entered> {
        let items = latent.dim(0);
        let each = |x: &Tensor| -> Result<Tensor> {
            let x = lease.bring(x)?;
            Ok(x.broadcast(x.shape().with(0, items))?.contiguous()?)
        };
        let waves = lease.lane().tensor([1, self.config.hidden], &waves(*time, self.config.hidden))?;
        let time = embed(lease, ("time_embeddings", ["in_layer", "out_layer"]), &waves, &mut Probe::none())?;
        let vector = time.add(&lease.bring(&given.pooled)?)?.activate(Activation::Silu)?;
        let latent = lease.bring(latent)?.reshape(with_frames(latent.shape()))?;
        let latent = given.shown(lease, &latent)?;
        let frames = latent.dim(2);
        let tokens = patchify_as(&frames_apart(&latent)?, PatchOrder::ChannelsLast)?;
        let tokens = tokens.reshape([items, frames * tokens.dim(1), tokens.dim(2)])?;
        Ok(Entered {
            tokens: lease.linear("visual_embeddings.in_layer", &tokens)?,
            text: each(&given.text)?,
            vector: each(&vector)?,
        })
    }

    /// Whether a latent, with what it is given, is one for this model.
    fn check(&self, Member { latent, given, .. }: &Member<'_>) -> Result<()> {
        let channels = self.config.channels;
        let rank = if self.config.makes_videos() { 5 } else { 4 };
        let shape = with_frames(latent.shape());
        if latent.rank() != rank || latent.dims().contains(&0) || latent.dim(1) != channels {
            let frames = if rank == 5 { "frames, " } else { "" };
            return wrong("the latent", format!("[batch, {channels}, {frames}height, width]"), latent);
        }
        given.check(&shape)
    }
}

/// From tokens to a latent of this shape: the last block of the manifest.
fn leave(lease: &Lease<'_>, state: &State, latent: &Shape) -> Result<Tensor> {
    let tokens = lease.bring(state.tokens())?;
    let change = lease.linear("out_layer.modulation.out_layer", &lease.bring(state.vector())?)?;
    let change = Modulation::of_exit(&by_item(&change, tokens.dim(0))?)?;
    let tokens = lease.linear("out_layer.out_layer", &change.normed(&tokens, NORM_EPS)?)?;
    let (grid, frames) = (Grid::of_frame(latent), latent.dims()[2]);
    let tokens = tokens.reshape([tokens.dim(0) * frames, grid.patches(), tokens.dim(2)])?;
    frames_together(&grid.unpatchify(&tokens, PatchOrder::ChannelsFirst)?, frames)
}

/// The shape of a latent with frames; a picture is a video of one.
fn with_frames(latent: &Shape) -> Shape {
    match *latent.dims() {
        [batch, channels, height, width] => Shape::from([batch, channels, 1, height, width]),
        _ => *latent,
    }
}

impl Module for Kandinsky5 {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}

fn wrong<T>(what: &'static str, expected: String, got: &Tensor) -> Result<T> {
    Err(Error::Input { what, expected, got: format!("of shape {}", got.shape()) })
}
