//! A run: conditionings prepared once, then step after step.

use meta::Shape;
use patch::KeyMap;
use residency::Session;
use sampling::{LatentSpec, ModelSampling};
use tensor::Tensor;

use super::{KnownPositions, Member, Prepared, Sd3, keys};
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::diffusion::{Alteration, BlockGroup, Diffusion, DiffusionRun, Evaluation};
use crate::{Probe, Result};

/// A model with its conditionings.
struct Run<'a> {
    model: &'a Sd3,
    session: &'a Session,
    prepared: Vec<Prepared>,
    positions: KnownPositions,
}

impl Diffusion for Sd3 {
    fn latent(&self) -> &'static LatentSpec {
        &super::LATENT
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::flow(3.0, 1000.0)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        keys::key_map(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        &[]
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        matches!(alteration, Alteration::SkipBlock { group: BlockGroup::Double, .. })
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        let text = Array::zeros(&[1, shape.tokens.max(1), self.config.context_width]);
        Cond::text(text, Some(Array::zeros(&[1, self.config.pooled_width])))
    }

    fn start<'a>(
        &'a self,
        session: &'a Session,
        conds: &[Conditioned<'_>],
        scene: &Scene<'_>,
    ) -> Result<Box<dyn DiffusionRun + 'a>> {
        let lane = session.lane()?;
        let lease = session.lease(0)?;
        let prepare = |Conditioned { cond, .. }: &Conditioned<'_>| {
            let given = (cond.text_on(lane)?, cond.pooled_on(lane, self.config.pooled_width)?);
            self.prepare(&lease, scene.shape.batch, (&given.0, &given.1), &mut Probe::none())
        };
        let prepared = conds.iter().map(prepare).collect::<Result<_>>()?;
        Ok(Box::new(Run { model: self, session, prepared, positions: KnownPositions::default() }))
    }
}

impl DiffusionRun for Run<'_> {
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<Tensor>> {
        let mut members = Vec::with_capacity(evaluations.len());
        for Evaluation { cond, latent, time, control, altered } in evaluations {
            self.model.check_latent(latent)?;
            let given = &self.prepared[*cond];
            members.push(Member { latent, time: *time, given, control: *control, altered });
        }
        if members.is_empty() {
            return Ok(Vec::new());
        }
        self.model.pass(self.session, self.session.lease(0)?, &members, &self.positions, &mut Probe::none())
    }
}
