//! Control networks for Stable Diffusion 3 as diffusers has them (`SD3ControlNetModel`): the first blocks of the model once
//! more, with a latent of a picture added to the tokens. They see the text, but no pooled text.

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session};
use sampling::{LatentSpec, Scaling};
use tensor::Tensor;

use super::blocks::Joint;
use super::config::{self, Config, HEAD};
use super::{FAMILY, KnownPositions, LATENT, Member, Prepared, Sd3, Shapes, keys, weights};
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondShape, Scene};
use crate::control::{ControlFamily, ControlNetwork, ControlRun, Controlled, HintForm, HintSpec};
use crate::detect::{Layout, Part, Sign};
use crate::diffusion::batches::{Batch, in_order};
use crate::diffusion::patches::patchify;
use crate::diffusion::{ControlResiduals, Evaluation};
use crate::{Module, Probe, Result};

/// Control networks with text for Stable Diffusion 3.
pub const CONTROL: ControlFamily = ControlFamily {
    name: "ControlNet for Stable Diffusion 3",
    signs: &[Sign {
        tensor: "controlnet_blocks.0.weight",
        layout: Layout::Diffusers,
        name: |found| {
            let is_ours = found.has("pos_embed_input.proj.weight")
                && found.has("transformer_blocks.0.attn.add_k_proj.weight");
            is_ours.then_some(Cow::Borrowed("ControlNet for Stable Diffusion 3"))
        },
    }],
    read: |checkpoint, part| Ok(Box::new(Sd3Control::read(checkpoint, part)?)),
    released: None,
};

/// The latents of pictures for these networks were trained without the shift of the model's.
const UNSHIFTED: LatentSpec =
    LatentSpec { scaling: Scaling::Uniform { scale: 1.5305, shift: 0.0 }, ..LATENT };

/// A control network: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
struct Sd3Control {
    model: Sd3,
    /// Channels of what it looks at: the latent's, and one for a mask.
    hint_channels: usize,
}

/// A network with its pictures and conditionings.
struct Run<'a> {
    network: &'a Sd3Control,
    session: &'a Session,
    prepared: Vec<Prepared>,
    positions: KnownPositions,
}

impl Sd3Control {
    fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Sd3Control> {
        let claims = claims(checkpoint, &part.prefix);
        let [_, hint_channels, _, _] = claims.dims("pos_embed_input.proj.weight")?;
        let config = Config::without_end(&claims)?;
        Ok(Sd3Control { model: Sd3 { config, prefix: part.prefix.clone() }, hint_channels })
    }

    fn prepare(&self, lease: &Lease<'_>, controlled: &Controlled<'_>, scene: &Scene<'_>) -> Result<Prepared> {
        let lane = lease.lane();
        let width = self.model.config.pooled_width;
        let nothing = lane.tensor([1, width], &vec![0.0; width])?;
        let text = controlled.cond.text_on(lane)?;
        let prepared = self.model.prepare(lease, scene.shape.batch, (&text, &nothing), &mut Probe::none())?;
        let hint = lane.tensor(controlled.hint_axes(self.hint_channels)?, &controlled.hint.values)?;
        let hint = lease.linear("pos_embed_input.proj", &patchify(&hint)?)?;
        Ok(Prepared { hint: Some(hint), ..prepared })
    }

    /// One pass over the blocks; for each evaluation what every block gave.
    fn pass(
        &self,
        session: &Session,
        evaluations: &[Member<'_>],
        positions: &KnownPositions,
    ) -> Result<Vec<Vec<Tensor>>> {
        let (config, probe) = (&self.model.config, &mut Probe::none());
        let batches = Batch::all_of(evaluations, Shapes::of);
        let mut states: Vec<Joint> = {
            let lease = session.lease(0)?;
            let enter = |batch: &_| self.model.enter(&lease, batch, positions, probe);
            batches.iter().map(enter).collect::<Result<_>>()?
        };
        let mut given = vec![Vec::new(); evaluations.len()];
        for index in 0..config.blocks {
            let lease = session.lease(1 + index)?;
            let through = |state: Joint| state.bring(&lease)?.block(config, &lease, index, probe);
            states = states.into_iter().map(through).collect::<Result<_>>()?;
            let mut parts = Vec::with_capacity(evaluations.len());
            for (batch, state) in batches.iter().zip(&states) {
                let result = lease.linear(&format!("controlnet_blocks.{index}"), state.image())?;
                parts.extend(batch.apart(&result, batch.first().latent.dim(0))?);
            }
            given.iter_mut().zip(in_order(parts)).for_each(|(given, part)| given.push(part));
        }
        Ok(given)
    }

    /// What the model that is controlled gets of an evaluation's results: each for as many blocks as there are more of in
    /// a model of this width, the last for one less.
    fn spread(&self, results: &[Tensor]) -> ControlResiduals {
        let each = self.model.config.hidden / HEAD / results.len().max(1);
        let last = results.len().saturating_sub(1);
        let repeated = |(index, result): (usize, &Tensor)| {
            let count = if index == last { each.saturating_sub(1) } else { each };
            std::iter::repeat_n(Some(result.clone()), count)
        };
        let output = results.iter().enumerate().flat_map(repeated).collect();
        ControlResiduals { output, ..ControlResiduals::default() }
    }
}

fn claims<'a>(checkpoint: &'a Checkpoint, prefix: &'a str) -> Claims<'a> {
    Claims::new(checkpoint, prefix, CONTROL.name).named_by(keys::diffusers_names)
}

impl Module for Sd3Control {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let (claims, config) = (claims(checkpoint, &self.model.prefix), &self.model.config);
        let hidden = config.hidden;
        let mut entrance = weights::entrance(&claims, config)?;
        entrance.extend(weights::patch_layer(&claims, "pos_embed_input.proj", [hidden, self.hint_channels])?);
        let mut builder = Manifest::builder(claims.file(), config::FAMILY).block("in", true, entrance);
        for index in 0..config.blocks {
            let mut block = weights::joint_block(&claims, config, index)?;
            block.extend(claims.layer(&format!("controlnet_blocks.{index}"), &[hidden, hidden])?);
            builder = builder.block(format!("joint_blocks.{index}"), false, block);
        }
        Ok(builder.finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        self.model.activations()
    }
}

impl ControlNetwork for Sd3Control {
    fn controls(&self) -> &'static [&'static str] {
        &[FAMILY.name]
    }

    fn hint(&self) -> HintSpec {
        HintSpec {
            form: HintForm::Latent(&UNSHIFTED),
            preparing: |value| value,
            takes_mask: self.hint_channels > LATENT.channels,
        }
    }

    fn latent_channels(&self) -> usize {
        self.model.config.channels
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        Cond::text(Array::zeros(&[1, shape.tokens.max(1), self.model.config.context_width]), None)
    }

    fn start<'a>(
        &'a self,
        session: &'a Session,
        controlled: &[Controlled<'_>],
        scene: &Scene<'_>,
    ) -> Result<Box<dyn ControlRun + 'a>> {
        let lease = session.lease(0)?;
        let prepare = |controlled: &Controlled<'_>| self.prepare(&lease, controlled, scene);
        let prepared = controlled.iter().map(prepare).collect::<Result<_>>()?;
        Ok(Box::new(Run { network: self, session, prepared, positions: KnownPositions::default() }))
    }
}

impl ControlRun for Run<'_> {
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<ControlResiduals>> {
        let mut members = Vec::with_capacity(evaluations.len());
        for Evaluation { cond, latent, time, .. } in evaluations {
            self.network.model.check_latent(latent)?;
            members.push(Member {
                latent,
                time: *time,
                given: &self.prepared[*cond],
                control: None,
                altered: &[],
            });
        }
        let given = self.network.pass(self.session, &members, &self.positions)?;
        Ok(given.iter().map(|results| self.network.spread(results)).collect())
    }
}
