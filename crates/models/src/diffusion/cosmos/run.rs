//! A run: conditionings prepared once, then step after step.

use meta::Shape;
use patch::KeyMap;
use residency::Session;
use sampling::{LatentSpec, ModelSampling};
use tensor::Tensor;

use super::given::Prepared;
use super::{Cosmos, Member, Places};
use crate::Result;
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::diffusion::latents::VIDEO_16;
use crate::diffusion::{Diffusion, DiffusionRun, Evaluation, Kept};

/// The lowest and the highest level of noise.
const LEVELS: (f64, f64) = (0.002, 80.0);

/// A model with its conditionings.
struct Run<'a> {
    model: &'a Cosmos,
    session: &'a Session,
    prepared: Vec<Prepared>,
    places: Places,
}

impl Diffusion for Cosmos {
    fn latent(&self) -> &'static LatentSpec {
        &VIDEO_16
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::added_flow(LEVELS)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        KeyMap::native(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        &[CondInput::ConcatMask]
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
        let prepare = |conditioned: &Conditioned<'_>| Prepared::new(self, &lease, conditioned, scene);
        let prepared = conds.iter().map(prepare).collect::<Result<_>>()?;
        Ok(Box::new(Run { model: self, session, prepared, places: Places::default() }))
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
        self.model.pass(self.session, &members, &self.places)
    }
}
