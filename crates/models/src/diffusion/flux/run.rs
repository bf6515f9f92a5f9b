//! A run: conditionings prepared once, then step after step.

use std::sync::Arc;

use meta::Shape as WeightShape;
use patch::KeyMap;
use residency::Session;
use sampling::{LatentSpec, ModelSampling};
use tensor::Tensor;

use super::batches::{Member, Shapes};
use super::conditioning::Given;
use super::positions::positions;
use super::prepared::Prepared;
use super::{Config, Flux};
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::diffusion::batches::Batch;
use crate::diffusion::known::Known;
use crate::diffusion::patches::Grid;
use crate::diffusion::positions::Positions;
use crate::diffusion::stream_keys;
use crate::diffusion::{Alteration, Diffusion, DiffusionRun, Evaluation, Placed};
use crate::{Probe, Result};

/// A model with its conditionings.
struct Run<'a> {
    flux: &'a Flux,
    session: &'a Session,
    prepared: Vec<Prepared>,
    positions: KnownPositions,
}

/// The positions of tokens, for each kind of evaluation that has run.
#[derive(Default)]
pub(super) struct KnownPositions(Known<Shapes, Arc<Positions>>);

impl KnownPositions {
    /// The positions of a batch's tokens.
    pub(super) fn of(&self, config: &Config, batch: &Batch<Shapes, Member<'_>>) -> Result<Arc<Positions>> {
        let Member { latent, given, .. } = batch.first();
        self.0.of(batch.shapes(), || {
            let placed = batch.shapes().placed.unwrap_or(Placed::COUNTED);
            Ok(Arc::new(positions(config, &Grid::of(latent), given, &placed)))
        })
    }
}

impl Diffusion for Flux {
    fn latent(&self) -> &'static LatentSpec {
        &super::LATENT
    }

    fn sampling(&self) -> ModelSampling {
        // Schnell was distilled without a shift, the others expect the one of their training.
        if self.is_schnell() { ModelSampling::flow(1.0, 1.0) } else { ModelSampling::exponential_flow(1.15) }
    }

    fn patch_keys(&self, weights: &[(String, WeightShape)]) -> KeyMap {
        stream_keys::key_map(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        use CondInput::{AttentionBias, ConcatLatent, ConcatMask, Guidance, InFront, ReferenceLatents};
        let Config { in_channels, out_channels, guidance, .. } = self.config;
        match (in_channels / out_channels.max(1), guidance) {
            (0 | 1, true) => &[Guidance, ReferenceLatents, AttentionBias, InFront],
            (0 | 1, false) => &[ReferenceLatents, AttentionBias, InFront],
            (2, true) => &[Guidance, ConcatLatent, ReferenceLatents, AttentionBias, InFront],
            (2, false) => &[ConcatLatent, ReferenceLatents, AttentionBias, InFront],
            (_, true) => &[Guidance, ConcatLatent, ConcatMask, ReferenceLatents, AttentionBias, InFront],
            (_, false) => &[ConcatLatent, ConcatMask, ReferenceLatents, AttentionBias, InFront],
        }
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        matches!(alteration, Alteration::SkipBlock { .. } | Alteration::Placed(_))
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        let text = Array::zeros(&[1, shape.tokens.max(1), self.config.context_width]);
        let pooled = Array::zeros(&[1, self.config.pooled_width]);
        let reference = |[height, width]: &[usize; 2]| {
            Arc::new(sampling::Latent::zeros(&[1, super::LATENT.channels, *height, *width]))
        };
        Cond {
            reference_latents: shape.references.iter().map(reference).collect(),
            in_front: (shape.in_front > 0)
                .then(|| Arc::new(Array::zeros(&[1, shape.in_front, self.config.hidden]))),
            ..Cond::text(text, Some(pooled))
        }
    }

    fn start<'a>(
        &'a self,
        session: &'a Session,
        conds: &[Conditioned<'_>],
        scene: &Scene<'_>,
    ) -> Result<Box<dyn DiffusionRun + 'a>> {
        let lane = session.lane()?;
        let lease = session.lease(0)?;
        let prepare = |conditioned: &Conditioned<'_>| {
            let given = Given::new(self, lane, conditioned, scene)?;
            let inputs = given.inputs(&given.context);
            self.check_given(scene.shape.batch, &inputs)?;
            Prepared::new(self, &lease, &inputs, &mut Probe::none())
        };
        let prepared = conds.iter().map(prepare).collect::<Result<_>>()?;
        Ok(Box::new(Run { flux: self, session, prepared, positions: KnownPositions::default() }))
    }
}

impl DiffusionRun for Run<'_> {
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<Tensor>> {
        let mut members = Vec::with_capacity(evaluations.len());
        for Evaluation { cond, latent, time, control, altered } in evaluations {
            let given = &self.prepared[*cond];
            self.flux.check_latent(latent, given.concat.as_ref())?;
            members.push(Member { latent, sigma: *time, given, control: *control, altered });
        }
        if members.is_empty() {
            return Ok(Vec::new());
        }
        let first = self.session.lease(0)?;
        self.flux.pass_prepared(self.session, first, &members, &self.positions, &mut Probe::none())
    }
}
