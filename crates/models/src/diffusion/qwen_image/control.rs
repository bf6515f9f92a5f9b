//! Control networks for Qwen-Image (InstantX; in diffusers `QwenImageControlNetModel`): the first blocks of the model once
//! more, with a latent of a picture added to the tokens; what each gives goes through a layer of its own.

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Manifest, Session};
use tensor::Tensor;

use super::{Config, FAMILY, Given, LATENT, QwenImage, config, weights};
use crate::claims::Claims;
use crate::conditioning::{Cond, CondShape, Conditioned, Scene};
use crate::control::{ControlFamily, ControlNetwork, ControlRun, Controlled, HintForm, HintSpec, in_rows};
use crate::detect::{Part, Sign};
use crate::diffusion::pass::{ControlPass, KnownPositions, Transformer};
use crate::diffusion::patches::{PATCH as SIDE, patchify};
use crate::diffusion::{ControlResiduals, Diffusion, Evaluation};
use crate::{Module, Probe, Result};

/// Blocks of the released models, over which the results of a network are spread.
const MODEL_BLOCKS: usize = 60;

/// Control networks for Qwen-Image.
pub const CONTROL: ControlFamily = ControlFamily {
    name: "ControlNet for Qwen-Image",
    signs: &[Sign::native("controlnet_blocks.0.weight", |found| {
        let is_ours =
            found.has("controlnet_x_embedder.weight") && found.has("transformer_blocks.0.img_mod.1.weight");
        is_ours.then_some(Cow::Borrowed("ControlNet for Qwen-Image"))
    })],
    read: |checkpoint, part| Ok(Box::new(QwenControl::read(checkpoint, part)?)),
    released: None,
};

/// A control network: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
struct QwenControl {
    model: QwenImage,
    /// Channels of what it looks at: the latent's, and one for a mask.
    hint_channels: usize,
}

/// A network with its pictures and conditionings.
struct Run<'a> {
    network: &'a QwenControl,
    session: &'a Session,
    given: Vec<Given>,
    positions: KnownPositions,
}

impl QwenControl {
    fn read(checkpoint: &Checkpoint, part: &Part) -> Result<QwenControl> {
        let claims = Claims::new(checkpoint, &part.prefix, CONTROL.name);
        let [_, columns] = claims.dims("controlnet_x_embedder.weight")?;
        let config = Config::read(&claims)?;
        Ok(QwenControl {
            model: QwenImage { config, prefix: part.prefix.clone() },
            hint_channels: columns / (SIDE * SIDE),
        })
    }
}

impl Module for QwenControl {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.model.prefix, CONTROL.name);
        let (config, hidden) = (&self.model.config, self.model.config.hidden);
        let mut entrance = weights::entrance(&claims, config)?;
        let shape = [hidden, self.hint_channels * SIDE * SIDE];
        entrance.extend(claims.layer("controlnet_x_embedder", &shape)?);
        let mut builder = Manifest::builder(claims.file(), config::FAMILY).block("in", true, entrance);
        for index in 0..config.blocks {
            let name = format!("transformer_blocks.{index}");
            let mut block = weights::block(&claims, config, &name)?;
            block.extend(claims.layer(&format!("controlnet_blocks.{index}"), &[hidden, hidden])?);
            builder = builder.block(name, false, block);
        }
        Ok(builder.finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        self.model.activations()
    }
}

impl ControlNetwork for QwenControl {
    fn controls(&self) -> &'static [&'static str] {
        &[FAMILY.name]
    }

    fn hint(&self) -> HintSpec {
        HintSpec {
            form: HintForm::Latent(&LATENT),
            preparing: |value| value,
            takes_mask: self.hint_channels > LATENT.channels,
        }
    }

    fn latent_channels(&self) -> usize {
        self.model.config.channels
    }

    fn has_frames(&self) -> bool {
        true
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        self.model.blank(&CondShape { tokens: shape.tokens, ..CondShape::default() })
    }

    fn start<'a>(
        &'a self,
        session: &'a Session,
        controlled: &[Controlled<'_>],
        scene: &Scene<'_>,
    ) -> Result<Box<dyn ControlRun + 'a>> {
        let lease = session.lease(0)?;
        let prepare = |controlled: &Controlled<'_>| -> Result<Given> {
            // It does not see the pictures that the model looks at.
            let cond = Cond { reference_latents: Vec::new(), ..controlled.cond.clone() };
            let given = self.model.prepare(&lease, &Conditioned::whole(&cond), scene, &mut Probe::none())?;
            let axes = controlled.hint_axes(self.hint_channels)?;
            let hint = lease.lane().tensor(axes, &controlled.hint.values)?;
            let hint = lease.linear("controlnet_x_embedder", &patchify(&hint)?)?;
            Ok(Given { hint: Some(hint), ..given })
        };
        let given = controlled.iter().map(prepare).collect::<Result<_>>()?;
        Ok(Box::new(Run { network: self, session, given, positions: KnownPositions::default() }))
    }
}

impl ControlRun for Run<'_> {
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<ControlResiduals>> {
        let pass = ControlPass {
            model: &self.network.model,
            session: self.session,
            given: &self.given,
            positions: &self.positions,
        };
        let results = pass.results(evaluations, |index| format!("controlnet_blocks.{index}"))?;
        let spread = |results: &Vec<Tensor>| ControlResiduals {
            input: in_rows(results, MODEL_BLOCKS),
            ..ControlResiduals::default()
        };
        Ok(results.iter().map(spread).collect())
    }
}
