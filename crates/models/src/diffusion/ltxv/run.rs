//! A run: conditionings prepared once, then step after step.

use meta::Shape;
use patch::KeyMap;
use residency::{Lease, Session};
use sampling::{Latent, LatentShape, LatentSpec, ModelSampling};
use tensor::{Activation, Tensor};

use super::latent::LATENT;
use super::{KnownAngles, Ltxv, Member, Prepared, wrong};
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::diffusion::{Diffusion, DiffusionRun, Evaluation, Kept};
use crate::{Error, Result};

/// How far levels are shifted, unless a node says otherwise.
const SHIFT: f64 = 2.37;
/// Frames of a second, unless a node says otherwise.
const FRAME_RATE: f32 = 25.0;

/// A model with its conditionings.
struct Run<'a> {
    model: &'a Ltxv,
    session: &'a Session,
    prepared: Vec<Prepared>,
    angles: KnownAngles,
}

impl Diffusion for Ltxv {
    fn latent(&self) -> &'static LatentSpec {
        &LATENT
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::exponential_flow(SHIFT)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        KeyMap::native(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        &[CondInput::FrameRate, CondInput::Keyframes, CondInput::ConcatMask]
    }

    fn kept(&self) -> Kept {
        Kept::Clean
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
        let lease = session.lease(0)?;
        let prepare = |conditioned: &Conditioned<'_>| self.prepare(&lease, conditioned, scene);
        let prepared = conds.iter().map(prepare).collect::<Result<_>>()?;
        Ok(Box::new(Run { model: self, session, prepared, angles: KnownAngles::default() }))
    }
}

impl Ltxv {
    /// What a conditioning says, through the layers that read it.
    fn prepare(
        &self,
        lease: &Lease<'_>,
        conditioned: &Conditioned<'_>,
        scene: &Scene<'_>,
    ) -> Result<Prepared> {
        let cond = conditioned.cond;
        let text = cond.text_on(lease.lane())?;
        let (batch, width) = (scene.shape.batch, self.config.context_width);
        if text.dim(2) != width || (text.dim(0) != 1 && text.dim(0) != batch) {
            return wrong("the text", format!("[{batch} or 1, tokens, {width}]"), &text);
        }
        let first = Some(Activation::GeluTanh);
        let inner = lease.linear_then("caption_projection.linear_1", &text, first)?;
        let mask = cond.concat_mask.as_deref().or(scene.mask);
        let times = match (mask, conditioned.window) {
            (None, _) => None,
            (Some(mask), None) => Some(times_of(mask)?),
            (Some(mask), Some(window)) => Some(times_of(&mask.clone().cropped(window)?)?),
        };
        let frame_rate = cond.frame_rate.filter(|rate| *rate > 0.0).unwrap_or(FRAME_RATE);
        Ok(Prepared {
            text: lease.linear("caption_projection.linear_2", &inner)?,
            mask: hidden_tokens(lease, cond)?,
            timed_items: mask.map_or(Ok(1), |mask| LatentShape::of(mask).map(|shape| shape.batch))?,
            times,
            keyframes: cond.keyframes.clone(),
            frame_rate,
        })
    }
}

/// What is added to the scores of a text's tokens, where some of them do not count.
fn hidden_tokens(lease: &Lease<'_>, cond: &Cond) -> Result<Option<Tensor>> {
    let Some(counts) = cond.attention_mask.as_ref().filter(|counts| counts.contains(&false)) else {
        return Ok(None);
    };
    if counts.len() != cond.tokens() {
        return Err(Error::Input {
            what: "the mask of the text",
            expected: format!("{} tokens, as the text has", cond.tokens()),
            got: counts.len().to_string(),
        });
    }
    let biases = counts.iter().map(|counts| if *counts { 0.0 } else { f32::NEG_INFINITY });
    let biases: Vec<f32> = biases.collect();
    Ok(Some(lease.lane().tensor([1, 1, 1, biases.len()], &biases)?))
}

/// How much of each frame is made new, or of each token where a frame has several values: that of the first channel, for
/// each item.
fn times_of(mask: &Latent) -> Result<Vec<f32>> {
    let shape = LatentShape::of(mask)?;
    let (plane, volume) = (shape.plane(), shape.frames * shape.plane());
    let items = mask.values().chunks_exact(shape.channels * volume).map(|item| &item[..volume]);
    let is_even =
        |item: &[f32]| item.chunks_exact(plane).all(|frame| frame.iter().all(|value| *value == frame[0]));
    if items.clone().all(is_even) {
        return Ok(items.flat_map(|item| item.iter().step_by(plane)).copied().collect());
    }
    Ok(items.flatten().copied().collect())
}

impl DiffusionRun for Run<'_> {
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<Tensor>> {
        let mut members = Vec::with_capacity(evaluations.len());
        for Evaluation { cond, latent, time, .. } in evaluations {
            let member = Member { latent, time: *time, given: &self.prepared[*cond] };
            self.model.check(&member)?;
            members.push(member);
        }
        if members.is_empty() {
            return Ok(Vec::new());
        }
        self.model.pass(self.session, &members, &self.angles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_by_frame_where_frames_are_even() {
        let mask = Latent::new(vec![1, 1, 2, 1, 2], vec![0.0, 0.0, 1.0, 1.0]).unwrap();
        assert_eq!(times_of(&mask).unwrap(), [0.0, 1.0]);
        let mask = Latent::new(vec![1, 2, 1, 1, 2], vec![0.0, 0.5, 9.0, 9.0]).unwrap();
        assert_eq!(times_of(&mask).unwrap(), [0.0, 0.5]);
    }
}
