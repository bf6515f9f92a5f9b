//! A run: conditionings prepared once, then step after step.

use meta::Shape;
use patch::KeyMap;
use residency::{Lease, Session};
use sampling::{LatentSpec, ModelSampling};
use tensor::Tensor;

use super::config::POOL_HEADS;
use super::latent::LATENT;
use super::{KnownAngles, Member, Mochi, Prepared, wrong};
use crate::Result;
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::diffusion::{Diffusion, DiffusionRun, Evaluation};

/// How far levels are shifted, unless a node says otherwise.
const SHIFT: f64 = 6.0;

/// A model with its conditionings.
struct Run<'a> {
    model: &'a Mochi,
    session: &'a Session,
    prepared: Vec<Prepared>,
    angles: KnownAngles,
}

impl Diffusion for Mochi {
    fn latent(&self) -> &'static LatentSpec {
        &LATENT
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::flow(SHIFT, 1.0)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        KeyMap::native(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        &[]
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
        let prepare =
            |conditioned: &Conditioned<'_>| self.prepare(&lease, conditioned.cond, scene.shape.batch);
        let prepared = conds.iter().map(prepare).collect::<Result<_>>()?;
        Ok(Box::new(Run { model: self, session, prepared, angles: KnownAngles::default() }))
    }
}

impl Mochi {
    /// The words of a text, without what fills it up: no layer sees that.
    fn prepare(&self, lease: &Lease<'_>, cond: &Cond, batch: usize) -> Result<Prepared> {
        let text = cond.text_on(lease.lane())?;
        let width = self.config.context_width;
        if text.dim(2) != width || text.dim(1) == 0 || (text.dim(0) != 1 && text.dim(0) != batch) {
            return wrong("the text", format!("[{batch} or 1, tokens, {width}]"), &text);
        }
        let words = cond.attention_mask.as_ref().map_or(text.dim(1), |counts| {
            counts.iter().filter(|counts| **counts).count().clamp(1, text.dim(1))
        });
        let text = text.slice(1, 0, words)?.contiguous()?;
        Ok(Prepared { pooled: self.pooled(lease, &text)?, text: lease.linear("t5_yproj", &text)? })
    }

    /// All of a text in one vector, `[items, hidden]`: its mean attends to itself and to the words.
    fn pooled(&self, lease: &Lease<'_>, text: &Tensor) -> Result<Tensor> {
        let (items, words, width) = (text.dim(0), text.dim(1), text.dim(2));
        let size = width / POOL_HEADS;
        let mean = text.mean(&[1])?.reshape([items, 1, width])?;
        let all = Tensor::concat(&[&mean, text], 1)?;
        let both = lease.linear("t5_y_embedder.to_kv", &all)?;
        // Heads are wider than the attention of devices takes, but there is one query only.
        let heads = |x: &Tensor, tokens: usize| -> Result<Tensor> {
            let x = x.reshape([items, tokens, POOL_HEADS, size])?.permute(&[0, 2, 1, 3])?;
            Ok(x.contiguous()?.reshape([items * POOL_HEADS, tokens, size])?)
        };
        let half = |start: usize| both.slice(2, start, width)?.contiguous();
        let q = heads(&lease.linear("t5_y_embedder.to_q", &mean)?, 1)?;
        let (k, v) = (heads(&half(0)?, 1 + words)?, heads(&half(width)?, 1 + words)?);
        let scores = q.matmul(&k.transpose(1, 2)?, 1.0 / (size as f32).sqrt())?.softmax()?;
        let pooled = scores.matmul(&v, 1.0)?.reshape([items, width])?;
        Ok(lease.linear("t5_y_embedder.to_out", &pooled)?)
    }
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
