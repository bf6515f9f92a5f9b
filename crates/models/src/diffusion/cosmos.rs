//! Cosmos Predict 2: a transformer over the tokens of a picture or a video, each block of which attends to the video, then
//! to the text. The time moves every block through two narrow layers of its own and one that all share; frames may have
//! times of their own, so that those that are given are shown clean. Formulas and names are those of the authors' code
//! (nvidia-cosmos/cosmos-predict2, `cosmos_predict2/networks`).

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

use super::batches::{Batch, FEW_ROWS, Together, in_order};
use super::known::Known;
use super::modulation::waves;
use super::positions::{Along, Positions};
use super::timed_change::{Change, NORM_EPS};
use super::video::{VideoGrid, patchify_video};
use crate::claims::Claims;
use crate::detect::Part;
use crate::{Error, Module, Result};
use blocks::{Entered, State, moved};
use given::Prepared;

pub use config::Config;
pub use family::FAMILY;

/// A Cosmos Predict 2 model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Cosmos {
    config: Config,
    prefix: String,
}

/// One evaluation of a step.
#[derive(Clone, Copy)]
struct Member<'a> {
    latent: &'a Tensor,
    time: f32,
    given: &'a Prepared,
}

/// What decides whether evaluations fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shapes {
    latent: Shape,
    text: usize,
    /// Times of one item.
    times: usize,
}

impl Together for Shapes {
    fn most_together(&self) -> usize {
        let items = self.latent.dims()[0];
        let fewest = VideoGrid::sized(&self.latent).tokens().min(self.text);
        // Modulations have one row for each time of each item in every block.
        match items * self.times {
            _ if items * fewest <= FEW_ROWS => 1,
            few if few <= FEW_ROWS => FEW_ROWS / few.max(1),
            _ => usize::MAX,
        }
    }
}

/// Where tokens stand, for each number of frames, rows and columns that has run.
type Places = Known<[usize; 3], Arc<Positions>>;

impl Cosmos {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Cosmos> {
        let claims = Claims::new(checkpoint, &part.prefix, config::FAMILY);
        Ok(Cosmos { config: Config::read(&claims, checkpoint.metadata())?, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// One pass over the blocks; one result for each evaluation, in their order.
    fn pass(&self, session: &Session, evaluations: &[Member<'_>], places: &Places) -> Result<Vec<Tensor>> {
        let shapes = |Member { latent, given, .. }: &Member<'_>| Shapes {
            latent: *latent.shape(),
            text: given.text.dim(1),
            times: given.times_of_an_item(),
        };
        let batches = Batch::all_of(evaluations, shapes);
        let mut states: Vec<State> = {
            let lease = session.lease(0)?;
            batches.iter().map(|batch| self.enter(&lease, batch, places)).collect::<Result<_>>()?
        };
        for index in 0..self.config.blocks {
            let lease = session.lease(1 + index)?;
            let through = |state: State| state.block(&self.config, &lease, index);
            states = states.into_iter().map(through).collect::<Result<_>>()?;
        }
        let lease = session.lease(1 + self.config.blocks)?;
        let mut outputs = Vec::with_capacity(evaluations.len());
        for (batch, state) in batches.iter().zip(states) {
            let output = self.leave(&lease, &state, &batch.shapes().latent)?;
            outputs.extend(batch.apart(&output, batch.first().latent.dim(0))?);
        }
        Ok(in_order(outputs))
    }

    /// From latents to tokens: the first block of the manifest. What comes in is little beside what follows, so the
    /// evaluations of a batch enter one by one and meet behind.
    fn enter(&self, lease: &Lease<'_>, batch: &Batch<Shapes, Member<'_>>, places: &Places) -> Result<State> {
        let grid = VideoGrid::sized(&batch.shapes().latent);
        let size = [grid.frames, grid.rows, grid.columns];
        let positions = places.of(&size, || {
            let mut positions = Positions::turning(self.config.frequencies());
            positions.push(size, &[Along::Frames(0.0), Along::Rows(0.0), Along::Columns(0.0)]);
            Ok(Arc::new(positions))
        })?;
        let entered = batch.members().map(|member| self.enter_one(lease, member));
        State::new(&entered.collect::<Result<Vec<_>>>()?, positions)
    }

    fn enter_one(&self, lease: &Lease<'_>, Member { latent, time, given }: &Member<'_>) -> Result<Entered> {
        let items = latent.dim(0);
        let text = lease.bring(&given.text)?;
        let text = text.broadcast(text.shape().with(0, items))?.contiguous()?;
        let latent = given.shown(lease, &lease.bring(latent)?)?;
        let (time, shared) = self.times(lease, given, *time, items)?;
        Ok(Entered {
            tokens: lease.linear("x_embedder.proj.1", &patchify_video(&latent)?)?,
            text,
            time,
            shared,
        })
    }

    /// A time, or one for each frame, for so many items: `[items, times, hidden]` behind its activation, and what all
    /// blocks are moved by alike, `[items, times, 3 · hidden]`.
    fn times(
        &self,
        lease: &Lease<'_>,
        given: &Prepared,
        time: f32,
        items: usize,
    ) -> Result<(Tensor, Tensor)> {
        let hidden = self.config.hidden;
        let times: Vec<f32> = match &given.made {
            None => vec![time],
            Some(shares) => shares.iter().map(|share| share * time).collect(),
        };
        let values: Vec<f32> = times.iter().flat_map(|time| waves(*time, hidden)).collect();
        let waves = lease.lane().tensor([times.len(), hidden], &values)?;
        let inner = lease.linear_then("t_embedder.1.linear_1", &waves, Some(Activation::Silu))?;
        let shared = lease.linear("t_embedder.1.linear_2", &inner)?;
        let weight = lease.weight("t_embedding_norm.weight")?;
        let time = waves.rms_norm(Some(&weight), NORM_EPS)?.activate(Activation::Silu)?;
        let rows = given.times_of_an_item();
        let spread = |x: &Tensor| -> Result<Tensor> {
            let x = x.reshape([x.dim(0) / rows, rows, x.dim(1)])?;
            Ok(x.broadcast(x.shape().with(0, items))?.contiguous()?)
        };
        Ok((spread(&time)?, spread(&shared)?))
    }

    /// From tokens to a latent of this shape: the last block of the manifest.
    fn leave(&self, lease: &Lease<'_>, state: &State, latent: &Shape) -> Result<Tensor> {
        let tokens = lease.bring(state.tokens())?;
        let [time, shared] = state.times().map(|times| lease.bring(times));
        let shared = shared?.slice(2, 0, 2 * self.config.hidden)?;
        let change = Change::of(moved(lease, "final_layer.adaln_modulation", &time?, &shared)?, 2);
        let tokens = lease.linear("final_layer.linear", &change.normed(&tokens, 0)?)?;
        VideoGrid::sized(latent).unpatchify(&tokens)
    }

    /// Whether a latent, with what it is given, is one for this model.
    fn check(&self, Member { latent, given, .. }: &Member<'_>) -> Result<()> {
        let channels = self.config.channels;
        if latent.rank() != 5 || latent.dims().contains(&0) || latent.dim(1) != channels {
            return wrong("the latent", format!("[batch, {channels}, frames, height, width]"), latent);
        }
        given.check(latent)
    }
}

impl Module for Cosmos {
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
