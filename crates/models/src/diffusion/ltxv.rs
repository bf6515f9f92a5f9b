//! LTX-Video 0.9: a transformer over the tokens of a video, one for each value of a latent that the autoencoder has made
//! small already. Every block attends to the video, whose tokens know their seconds and pixels, then to the text. Tokens
//! may have times of their own, so that frames are given clean, and frames behind the video lead it. Formulas and names are
//! those of the authors' code (Lightricks/LTX-Video, `ltx_video/models/transformers`).

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
use meta::{DType, Shape};
use residency::{Lease, Manifest, Session};
use tensor::{Activation, Tensor};

use super::batches::{Batch, FEW_ROWS, Together, in_order};
use super::known::Known;
use super::modulation::{TIME_VALUES, waves};
use super::timed_change::Change;
use crate::claims::Claims;
use crate::detect::Part;
use crate::{Error, Module, Result};
use blocks::{Entered, State};
use positions::{Placing, TokenAngles};

pub use config::Config;
pub use family::FAMILY;
pub use latent::LATENT;

/// What the model's time is multiplied with before it becomes waves.
const TIME_SCALE: f32 = 1000.0;

/// An LTX-Video model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Ltxv {
    config: Config,
    prefix: String,
}

/// What an evaluation is given beside its latent and time, on the device of the first block.
struct Prepared {
    /// The text in the model's width, `[batch or 1, tokens, hidden]`.
    text: Tensor,
    /// What is added to the scores of its tokens, `[1, 1, 1, tokens]`.
    mask: Option<Tensor>,
    /// What the time is multiplied with for each frame or each token, of so many items one after the other.
    times: Option<Vec<f32>>,
    timed_items: usize,
    keyframes: Vec<f32>,
    frame_rate: f32,
}

/// One evaluation of a step.
#[derive(Clone, Copy)]
struct Member<'a> {
    latent: &'a Tensor,
    time: f32,
    given: &'a Prepared,
}

/// What decides whether evaluations fit together.
#[derive(Clone, Debug, PartialEq)]
struct Shapes {
    latent: Shape,
    text: usize,
    is_masked: bool,
    times: usize,
    placing: Placing,
}

impl Shapes {
    fn of(Member { latent, given, .. }: &Member<'_>) -> Shapes {
        Shapes {
            latent: *latent.shape(),
            text: given.text.dim(1),
            is_masked: given.mask.is_some(),
            times: given.times.as_ref().map_or(0, Vec::len),
            placing: Placing {
                size: [latent.dim(2), latent.dim(3), latent.dim(4)],
                keyframes: given.keyframes.clone(),
                frame_rate: given.frame_rate,
            },
        }
    }
}

impl Together for Shapes {
    fn most_together(&self) -> usize {
        // Times go through their layers one evaluation after the other.
        let fewest = self.placing.size.iter().product::<usize>().min(self.text);
        if self.latent.dims()[0] * fewest <= FEW_ROWS { 1 } else { usize::MAX }
    }
}

/// The positions of tokens, for each kind of latent that has run.
type KnownAngles = Known<Placing, Arc<TokenAngles>>;

impl Ltxv {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Ltxv> {
        let claims = Claims::new(checkpoint, &part.prefix, config::FAMILY);
        Ok(Ltxv { config: Config::read(&claims, checkpoint.metadata())?, prefix: part.prefix.clone() })
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
        let batches = Batch::all_of(evaluations, Shapes::of);
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
            let output = leave(&lease, &state, batch.shapes().placing.size)?;
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
        let placing = &batch.shapes().placing;
        let angles = known.of(placing, || Ok(Arc::new(TokenAngles::new(&self.config, placing))))?;
        let entered = batch.members().map(|member| self.enter_one(lease, member));
        State::new(&entered.collect::<Result<Vec<_>>>()?, angles)
    }

    fn enter_one(&self, lease: &Lease<'_>, member: &Member<'_>) -> Result<Entered> {
        let Member { latent, time, given } = member;
        let (items, channels) = (latent.dim(0), latent.dim(1));
        let tokens = latent.dim(2) * latent.dim(3) * latent.dim(4);
        let flat =
            lease.bring(latent)?.reshape([items, channels, tokens])?.permute(&[0, 2, 1])?.contiguous()?;
        let each = |x: &Tensor| -> Result<Tensor> {
            let x = lease.bring(x)?;
            Ok(x.broadcast(x.shape().with(0, items))?.contiguous()?)
        };
        let (time, change) = times(lease, given, *time, items)?;
        Ok(Entered {
            tokens: lease.linear("patchify_proj", &flat)?,
            text: each(&given.text)?,
            mask: given.mask.as_ref().map(each).transpose()?,
            time,
            change,
        })
    }

    /// Whether a latent, with what it is given, is one for this model.
    fn check(&self, Member { latent, given, .. }: &Member<'_>) -> Result<()> {
        let channels = self.config.channels;
        if latent.rank() != 5 || latent.dims().contains(&0) || latent.dim(1) != channels {
            return wrong("the latent", format!("[batch, {channels}, frames, height, width]"), latent);
        }
        let (keyframes, frames) = (given.keyframes.len(), latent.dim(2));
        if keyframes >= frames {
            let expected = format!("more frames than the {keyframes} that lead it");
            return wrong("the latent", expected, latent);
        }
        Ok(())
    }
}

/// A time, or one for each frame or token, for so many items: `[items, times, hidden]`, and the modulations of all blocks.
fn times(lease: &Lease<'_>, given: &Prepared, time: f32, items: usize) -> Result<(Tensor, Tensor)> {
    let times: Vec<f32> = match &given.times {
        None => vec![time],
        Some(parts) => parts.iter().map(|part| part * time).collect(),
    };
    let values: Vec<f32> = times.iter().flat_map(|time| waves(time * TIME_SCALE, TIME_VALUES)).collect();
    let inner = lease.lane().tensor([times.len(), TIME_VALUES], &values)?;
    let name = "adaln_single.emb.timestep_embedder";
    let inner = lease.linear_then(&format!("{name}.linear_1"), &inner, Some(Activation::Silu))?;
    let time = lease.linear(&format!("{name}.linear_2"), &inner)?;
    let change = lease.linear("adaln_single.linear", &time.activate(Activation::Silu)?)?;
    // One row, or rows for the frames or tokens of one item or of each.
    let rows = times.len() / given.timed_items.max(1);
    let spread = |x: &Tensor| -> Result<Tensor> {
        let x = x.reshape([x.dim(0) / rows, rows, x.dim(1)])?;
        Ok(x.broadcast(x.shape().with(0, items))?.contiguous()?)
    };
    Ok((spread(&time)?, spread(&change)?))
}

/// From tokens to a latent of this size: the last block of the manifest.
fn leave(lease: &Lease<'_>, state: &State, [frames, height, width]: [usize; 3]) -> Result<Tensor> {
    let tokens = lease.bring(state.tokens())?;
    let time = lease.bring(state.time())?;
    let change = Change::new(lease, "scale_shift_table", &Tensor::concat(&[&time, &time], 2)?, 2)?;
    let tokens = lease.linear("proj_out", &change.normed(&tokens, 0)?)?;
    let (items, channels) = (tokens.dim(0), tokens.dim(2));
    let latent = tokens.permute(&[0, 2, 1])?.reshape([items, channels, frames, height, width])?;
    Ok(latent.contiguous()?)
}

impl Module for Ltxv {
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
