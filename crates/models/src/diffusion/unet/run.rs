//! A run: conditionings prepared once, then step after step.

use meta::Shape;
use patch::KeyMap;
use residency::Session;
use sampling::{LatentSpec, ModelSampling};
use tensor::Tensor;

use super::altered::is_known;
use super::given::Given;
use super::kind::Beside;
use super::{Member, Unet};
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::diffusion::model_patches::PatchRun;
use crate::diffusion::{Alteration, Diffusion, DiffusionRun, Evaluation};
use crate::{Probe, Result};

/// A model with its conditionings.
struct Run<'a> {
    unet: &'a Unet,
    session: &'a Session,
    given: Vec<Given>,
}

impl Diffusion for Unet {
    fn latent(&self) -> &'static LatentSpec {
        self.kind.latent
    }

    fn sampling(&self) -> ModelSampling {
        self.sampling.clone()
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        KeyMap::for_unet(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        let [nothing, picture, mask] = self.kind.takes;
        match Beside::of(self.config.in_channels, self.kind.latent.channels) {
            None | Some(Beside::Nothing) => nothing,
            Some(Beside::Picture) => picture,
            Some(Beside::MaskAndPicture) => mask,
        }
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        is_known(alteration)
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
        let given = |conditioned: &Conditioned<'_>| Given::of(self, &lease, conditioned, scene);
        let given = conds.iter().map(given).collect::<Result<_>>()?;
        Ok(Box::new(Run { unet: self, session, given }))
    }
}

impl DiffusionRun for Run<'_> {
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<Tensor>> {
        self.forward_patched(evaluations, &[])
    }

    fn forward_patched(
        &self,
        evaluations: &[Evaluation<'_>],
        patches: &[&dyn PatchRun],
    ) -> Result<Vec<Tensor>> {
        let mut members = Vec::with_capacity(evaluations.len());
        for &Evaluation { cond, latent, time, control, altered } in evaluations {
            let member = Member { cond, latent, time, given: &self.given[cond], control, altered };
            self.unet.check(&member)?;
            members.push(member);
        }
        if members.is_empty() {
            return Ok(Vec::new());
        }
        let mut patches: Vec<_> = patches.iter().map(|patch| patch.pass()).collect();
        let first = self.session.lease(0)?;
        self.unet.pass((self.session, first), &members, &mut patches, &mut Probe::none())
    }
}
