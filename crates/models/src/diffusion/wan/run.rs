//! A run: conditionings prepared once, then step after step.

use std::sync::Arc;

use meta::Shape;
use patch::KeyMap;
use residency::Session;
use sampling::{Latent, LatentSpec, ModelSampling};
use tensor::Tensor;

use super::conditioning::Given;
use super::{KnownPositions, Member, Prepared, Speech, Wan};
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene, VideoControl};
use crate::diffusion::latents::{VIDEO_16, VIDEO_48};
use crate::diffusion::{Alteration, Diffusion, DiffusionRun, Evaluation, Kept, Placed};
use crate::{Probe, Result};

/// How far levels are shifted, unless a node says otherwise.
const SHIFT: f64 = 8.0;

/// A model with its conditionings.
struct Run<'a> {
    model: &'a Wan,
    session: &'a Session,
    prepared: Vec<Prepared>,
    positions: KnownPositions,
}

impl Wan {
    /// Whether it is told a time for each frame, and keeps frames as they are: the model of forty-eight channels.
    pub(super) fn times_frames(&self) -> bool {
        self.config.channels == VIDEO_48.channels
    }
}

impl Diffusion for Wan {
    fn latent(&self) -> &'static LatentSpec {
        if self.times_frames() { &VIDEO_48 } else { &VIDEO_16 }
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::flow(SHIFT, 1000.0)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        KeyMap::native(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        use CondInput::{
            Audio, Camera, ConcatLatent, ConcatMask, Faces, FramesBefore, FramesBehind, Poses,
            ReferenceLatents, VideoControls, Vision,
        };
        let config = &self.config;
        if config.audio.is_some() {
            return &[Audio, ReferenceLatents];
        }
        if config.face.is_some() {
            return &[ConcatLatent, ConcatMask, Vision, Poses, Faces];
        }
        if config.speech.is_some() {
            return &[Audio, ReferenceLatents, ConcatLatent, FramesBefore];
        }
        if config.control.is_some() {
            return &[VideoControls];
        }
        let has_beside = config.in_channels > config.channels;
        match (config.vision.is_some(), config.reference_channels.is_some(), config.camera.is_some()) {
            (true, true, _) => &[ConcatLatent, ConcatMask, Vision, ReferenceLatents],
            (true, _, true) => &[ConcatLatent, ConcatMask, Vision, Camera],
            (true, false, false) => &[ConcatLatent, ConcatMask, Vision],
            (false, true, _) => &[ConcatLatent, ConcatMask, ReferenceLatents],
            (false, _, true) => &[ConcatLatent, ConcatMask, Camera],
            (false, false, false) if has_beside => &[ConcatLatent, ConcatMask],
            (false, false, false) => &[FramesBehind],
        }
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        matches!(alteration, Alteration::Placed(_))
    }

    fn kept(&self) -> Kept {
        if self.times_frames() { Kept::Clean } else { Kept::Noised }
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        let text = Array::zeros(&[1, shape.tokens.max(1), self.config.context_width]);
        let latent = |channels: usize, [frames, height, width]: [usize; 3]| {
            Arc::new(Latent::zeros(&[1, channels, frames, height, width]))
        };
        let channels = self.config.channels;
        let control = |size: &[usize; 3]| VideoControl {
            frames: latent(2 * channels, *size),
            mask: latent(self.config.control.map_or(0, |control| control.channels - 2 * channels), *size),
            strength: 1.0,
        };
        let vision = self.config.vision.filter(|_| shape.vision > 0);
        let heard = self.config.audio.map(|audio| audio.heard);
        let heard = heard.or(self.config.speech.map(Speech::heard)).filter(|_| shape.heard > 0);
        Cond {
            vision: vision.map(|vision| Arc::new(Array::zeros(&[1, shape.vision, vision.width]))),
            audio: heard.map(|values| Arc::new(Array::zeros(&[1, shape.heard, values]))),
            poses: shape.poses.map(|size| latent(channels, size)),
            faces: shape.faces.map(|size| latent(3, size)),
            frames_before: shape.before.map(|size| latent(channels, size)),
            reference_latents: shape.references.iter().map(|[h, w]| latent(channels, [1, *h, *w])).collect(),
            frames_behind: shape.behind.map(|size| latent(channels, size)),
            controls: shape.controls.iter().map(control).collect(),
            camera: self.config.camera.zip(shape.camera).map(|(camera, size)| latent(camera.channels, size)),
            ..Cond::text(text, None)
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
            Prepared::new(self, &lease, &given.inputs(), &mut Probe::none())
        };
        let prepared = conds.iter().map(prepare).collect::<Result<_>>()?;
        Ok(Box::new(Run { model: self, session, prepared, positions: KnownPositions::default() }))
    }
}

impl DiffusionRun for Run<'_> {
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<Tensor>> {
        let mut members = Vec::with_capacity(evaluations.len());
        for Evaluation { cond, latent, time, altered, .. } in evaluations {
            let placed = Placed::of(altered).unwrap_or(Placed::COUNTED);
            let member = Member { latent, time: *time, given: &self.prepared[*cond], placed };
            self.model.check(&member)?;
            members.push(member);
        }
        if members.is_empty() {
            return Ok(Vec::new());
        }
        self.model.pass(self.session, self.session.lease(0)?, &members, &self.positions, &mut Probe::none())
    }
}
