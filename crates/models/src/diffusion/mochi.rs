//! Mochi: a transformer over the tokens of a video and of a text, which attend together while each has layers of its own,
//! those of the text narrower. Positions turn by angles that were learned. Formulas and names are those of the authors'
//! code (genmoai/mochi, `genmo/mochi_preview/dit/joint_model`).

mod blocks;
mod config;
mod downloads;
mod family;
mod latent;
mod positions;
mod run;
pub(crate) mod text;
mod weights;

use std::sync::Arc;

use checkpoint::Checkpoint;
use device::op::UnaryKind;
use meta::{DType, Shape};
use residency::{Lease, Manifest, Session};
use tensor::{Activation, Tensor};

use super::batches::{Batch, FEW_ROWS, Together, in_order};
use super::known::Known;
use super::modulation::{embed, time_embedding};
use super::video::{VideoGrid, patchify_video};
use crate::claims::Claims;
use crate::detect::Part;
use crate::{Error, Module, Probe, Result};
use blocks::{Entered, State};
use positions::TokenAngles;

pub use config::Config;
pub use family::FAMILY;
pub use latent::LATENT;

/// What the model's time is multiplied with before it becomes waves.
const TIME_SCALE: f32 = 1000.0;
/// Added to the variance of the last tokens.
const NORM_EPS: f32 = 1e-6;

/// A Mochi model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Mochi {
    config: Config,
    prefix: String,
}

/// What an evaluation is given beside its latent and time, on the device of the first block.
struct Prepared {
    /// The words in the width of the text's layers, `[batch or 1, tokens, width]`.
    text: Tensor,
    /// All of the text in one vector, `[batch or 1, hidden]`.
    pooled: Tensor,
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

/// The positions of tokens, for each number of frames, rows and columns that has run.
type KnownAngles = Known<[usize; 3], Arc<TokenAngles>>;

impl Mochi {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Mochi> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY))?;
        Ok(Mochi { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// One pass over the blocks; one result for each evaluation, in their order.
    fn pass(
        &self,
        session: &Session,
        evaluations: &[Member<'_>],
        known: &KnownAngles,
    ) -> Result<Vec<Tensor>> {
        let shapes =
            |member: &Member<'_>| Shapes { latent: *member.latent.shape(), text: member.given.text.dim(1) };
        let batches = Batch::all_of(evaluations, shapes);
        let mut states: Vec<State> = {
            let lease = session.lease(0)?;
            batches.iter().map(|batch| self.enter(&lease, batch, known)).collect::<Result<_>>()?
        };
        for index in 0..self.config.blocks {
            let lease = session.lease(1 + index)?;
            let through = |state: State| state.block(&self.config, &lease, index);
            states = states.into_iter().map(through).collect::<Result<_>>()?;
        }
        let lease = session.lease(1 + self.config.blocks)?;
        let mut outputs = Vec::with_capacity(evaluations.len());
        for (batch, state) in batches.iter().zip(states) {
            let output = leave(&lease, &state, &batch.shapes().latent)?;
            outputs.extend(batch.apart(&output, batch.first().latent.dim(0))?);
        }
        Ok(in_order(outputs))
    }

    /// From latents to tokens: the first block of the manifest. What comes in is little beside what follows, so the
    /// evaluations of a batch enter one by one and meet behind.
    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Batch<Shapes, Member<'_>>,
        known: &KnownAngles,
    ) -> Result<State> {
        let grid = VideoGrid::sized(&batch.shapes().latent);
        let size = [grid.frames, grid.rows, grid.columns];
        let angles = known.of(&size, || Ok(Arc::new(TokenAngles::new(&self.config, size))))?;
        let entered = batch.members().map(|member| enter_one(lease, member));
        State::new(&entered.collect::<Result<Vec<_>>>()?, angles)
    }

    /// Whether a latent is one for this model.
    fn check(&self, Member { latent, .. }: &Member<'_>) -> Result<()> {
        let channels = self.config.channels;
        if latent.rank() != 5 || latent.dims().contains(&0) || latent.dim(1) != channels {
            return wrong("the latent", format!("[batch, {channels}, frames, height, width]"), latent);
        }
        Ok(())
    }
}

fn enter_one(lease: &Lease<'_>, Member { latent, time, given }: &Member<'_>) -> Result<Entered> {
    let items = latent.dim(0);
    let each = |x: &Tensor| -> Result<Tensor> {
        let x = lease.bring(x)?;
        Ok(x.broadcast(x.shape().with(0, items))?.contiguous()?)
    };
    // The model's time runs from noise to video.
    let waves = time_embedding(lease.lane(), (1.0 - time) * TIME_SCALE)?;
    let time = embed(lease, ("t_embedder", ["mlp.0", "mlp.2"]), &waves, &mut Probe::none())?;
    let vector = time.add(&lease.bring(&given.pooled)?)?.activate(Activation::Silu)?;
    Ok(Entered {
        tokens: lease.linear("x_embedder.proj", &patchify_video(&lease.bring(latent)?)?)?,
        text: each(&given.text)?,
        vector: each(&vector)?,
    })
}

/// From tokens to a latent: the last block of the manifest. The model gives the direction from noise to video, so it is
/// turned around.
fn leave(lease: &Lease<'_>, state: &State, latent: &Shape) -> Result<Tensor> {
    let tokens = lease.bring(state.tokens())?;
    let change = lease.linear("final_layer.mod", &lease.bring(state.vector())?)?;
    let (items, hidden) = (change.dim(0), change.dim(1) / 2);
    let change = change.reshape([items, 1, 2 * hidden])?;
    let (shift, scale) = (change.slice(2, 0, hidden)?, change.slice(2, hidden, hidden)?);
    let tokens = lease.linear("final_layer.linear", &tokens.modulated_norm(&scale, &shift, NORM_EPS)?)?;
    Ok(VideoGrid::sized(latent).unpatchify(&tokens)?.unary(UnaryKind::Neg)?)
}

impl Module for Mochi {
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
