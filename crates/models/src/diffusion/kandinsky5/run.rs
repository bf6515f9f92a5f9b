//! A run: conditionings prepared once, then step after step.

use meta::Shape;
use patch::KeyMap;
use residency::Session;
use sampling::{LatentSpec, ModelSampling};
use tensor::Tensor;

use super::given::Prepared;
use super::{Kandinsky5, Member, Places};
use crate::Result;
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::diffusion::latents::{FLUX_KL, VIDEO_KL_16};
use crate::diffusion::{Alteration, Diffusion, DiffusionRun, Evaluation, Placed};

/// How far levels are shifted, unless a node says otherwise: those of videos and those of pictures.
const SHIFTS: [f64; 2] = [10.0, 3.0];

/// A model with its conditionings.
struct Run<'a> {
    model: &'a Kandinsky5,
    session: &'a Session,
    prepared: Vec<Prepared>,
    places: Places,
}

impl Diffusion for Kandinsky5 {
    fn latent(&self) -> &'static LatentSpec {
        if self.config.makes_videos() { &VIDEO_KL_16 } else { &FLUX_KL }
    }

    fn sampling(&self) -> ModelSampling {
        let [videos, pictures] = SHIFTS;
        ModelSampling::flow(if self.config.makes_videos() { videos } else { pictures }, 1000.0)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        KeyMap::native(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        if self.config.makes_videos() { &[CondInput::ConcatLatent, CondInput::ConcatMask] } else { &[] }
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        matches!(alteration, Alteration::Placed(_))
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        let pooled = Array::zeros(&[1, self.config.pooled_width]);
        Cond::text(Array::zeros(&[1, shape.tokens.max(1), self.config.context_width]), Some(pooled))
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
        for Evaluation { cond, latent, time, altered, .. } in evaluations {
            let given = &self.prepared[*cond];
            let member = Member { latent, time: *time, given, placed: Placed::of(altered) };
            self.model.check(&member)?;
            members.push(member);
        }
        if members.is_empty() {
            return Ok(Vec::new());
        }
        self.model.pass(self.session, &members, &self.places)
    }
}
