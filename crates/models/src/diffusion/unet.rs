//! The UNet of Stable Diffusion's line: residual units and transformers on the way to a small picture and back, where each
//! block on the way out also sees what its counterpart on the way in made. Formulas and names are those of the authors' code
//! (CompVis/latent-diffusion, `openaimodel.py`). It is no family by itself: those that have it say what differs in a
//! `Kind`.

mod adapter;
mod altered;
mod attention;
mod config;
mod control;
mod control_lora;
mod frames;
mod given;
mod grounding;
mod kind;
mod layers;
mod names;
mod run;
mod signs;
mod sizes;
mod state;
mod weights;
mod workflow;

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use residency::{Lease, Manifest, Session};
use sampling::ModelSampling;
use tensor::{Activation, Tensor};

use super::batches::{Batch, FEW_ROWS, Together, in_order, together};
use super::model_patches::{PatchPass, PatchPoint, Seen};
use super::modulation::waves;
use super::{Alteration, ControlResiduals};
use crate::claims::{Claims, StoredNames};
use crate::detect::{Layout, Part};
use crate::{Error, Module, Probe, Result};
use given::Given;
use state::{State, residual_at};

pub(in crate::diffusion) use adapter::{Adapter, AdapterKind, is_adapter};
pub use config::{Config, Heads, Layer, Place, Side, Unit};
pub(in crate::diffusion) use control::released_tensors as control_tensors;
pub(in crate::diffusion) use control_lora::read_control;
pub(in crate::diffusion) use grounding::GroundingNetwork;
pub use kind::FOUR_CHANNELS;
pub(in crate::diffusion) use kind::Kind;
pub(in crate::diffusion) use signs::{
    CONTROL, CONTROL_DIFFUSERS, DIFFUSERS, NATIVE, Traits, controlled_text,
};
pub(in crate::diffusion) use sizes::{Sizes, tensors};
pub(in crate::diffusion) use workflow::{autoencoder, clip_l, workflow};

/// A UNet: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Unet {
    config: Config,
    prefix: String,
    stored: Option<StoredNames>,
    kind: &'static Kind,
    sampling: ModelSampling,
}

/// What one evaluation of the model is given.
pub struct UnetInputs<'a> {
    /// The noisy latent with all that stands beside it, `[batch, channels, height, width]`.
    pub latent: &'a Tensor,
    /// The time: a place among the thousand levels, for models that count them.
    pub time: f32,
    /// The text, `[batch or 1, tokens, width]`.
    pub context: &'a Tensor,
    /// The vector that is embedded beside the time, `[batch or 1, width]`, of models that take one.
    pub vector: Option<&'a Tensor>,
}

/// One evaluation of a step.
#[derive(Clone, Copy)]
struct Member<'a> {
    /// Its conditioning, by its place among those of the run.
    cond: usize,
    latent: &'a Tensor,
    time: f32,
    given: &'a Given,
    control: Option<&'a ControlResiduals>,
    altered: &'a [Alteration],
}

/// What decides whether evaluations fit together.
#[derive(Clone, Debug, PartialEq)]
struct Shapes<'a> {
    latent: Shape,
    text: usize,
    /// Rows of the vector.
    vector: usize,
    /// Pixels of the smallest picture on the way.
    smallest: usize,
    /// The places at which control networks add something.
    controlled: Vec<Place>,
    altered: &'a [Alteration],
}

impl Together for Shapes<'_> {
    fn most_together(&self) -> usize {
        let items = self.latent.dims()[0];
        if items * self.text.min(self.smallest) <= FEW_ROWS {
            return 1;
        }
        // The time's layers are products of one row for each row of the vector.
        if self.vector > FEW_ROWS { usize::MAX } else { FEW_ROWS / self.vector }
    }
}

impl Unet {
    /// Reads the model's sizes from a part of a file.
    pub(in crate::diffusion) fn read(
        checkpoint: &Checkpoint,
        part: &Part,
        kind: &'static Kind,
    ) -> Result<Unet> {
        let is_diffusers = part.layout == Layout::Diffusers;
        let stored = is_diffusers.then(|| names::of_diffusers(checkpoint, &part.prefix));
        let claims = Claims::new(checkpoint, &part.prefix, kind.family).stored_as(stored.as_ref());
        let config = Config::read(&claims, kind.heads)?;
        kind.check(&claims, &config)?;
        let sampling = (kind.sampling)(&claims, &config);
        Ok(Unet { config, prefix: part.prefix.clone(), stored, kind, sampling })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Evaluates the model with a look at what its modules compute.
    pub fn forward_probed(
        &self,
        session: &Session,
        inputs: &UnetInputs<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let lease = session.lease(0)?;
        let UnetInputs { latent, time, context, vector } = *inputs;
        let given = Given::new(self, &lease, latent.dim(0), (context, vector), probe)?;
        let member = Member { cond: 0, latent, time, given: &given, control: None, altered: &[] };
        self.check(&member)?;
        let mut outputs = self.pass((session, lease), &[member], &mut [], probe)?;
        // A pass gives one result for each evaluation.
        Ok(outputs.swap_remove(0))
    }

    /// One pass over the units, which begins with a lease of the first block; one result for each evaluation, in their
    /// order.
    fn pass(
        &self,
        (session, first): (&Session, Lease<'_>),
        evaluations: &[Member<'_>],
        patches: &mut [Box<dyn PatchPass + '_>],
        probe: &mut Probe<'_>,
    ) -> Result<Vec<Tensor>> {
        let batches = Batch::all_of(evaluations, |member| self.shapes(member));
        let mut states: Vec<State<'_>> = {
            let lease = first;
            batches.iter().map(|batch| self.enter(&lease, batch, probe)).collect::<Result<_>>()?
        };
        let mut transformers = 0..;
        for (index, unit) in self.config.units.iter().enumerate() {
            let lease = session.lease(index + 1)?;
            for state in &mut states {
                state.begin(&self.config, &lease, unit, probe)?;
            }
            if let Layer::Transformer { .. } = unit.layer {
                let point = PatchPoint::Block(transformers.next().unwrap_or_default());
                if !patches.is_empty() {
                    let seen: Vec<Seen> = states.iter().filter_map(State::seen).collect();
                    patches.iter_mut().try_for_each(|patch| patch.behind(point, &seen))?;
                }
            }
            for state in &mut states {
                state.finish(&self.config, &lease, unit, probe)?;
            }
        }
        let lease = session.lease(self.config.units.len() + 1)?;
        let mut outputs = Vec::with_capacity(evaluations.len());
        for state in states {
            let image = lease.bring(&state.image)?;
            let activated = layers::activated_norm(&lease, "out.0", &image, probe)?;
            let output = layers::convolution(&lease, "out.2", &activated, 1)?;
            probe.show(format_args!("out"), &output);
            outputs.extend(state.batch.apart(&output, state.batch.first().latent.dim(0))?);
        }
        Ok(in_order(outputs))
    }

    /// From inputs to the first picture: the first block of the manifest.
    fn enter<'a>(
        &self,
        lease: &Lease<'_>,
        batch: &'a Batch<Shapes<'a>, Member<'a>>,
        probe: &mut Probe<'_>,
    ) -> Result<State<'a>> {
        let (mut images, mut texts, mut vectors) = (Vec::new(), Vec::new(), Vec::new());
        let mut embedded: Option<(f32, Tensor)> = None;
        for Member { latent, time, given, .. } in batch.members() {
            let latent = lease.bring(latent)?;
            images.push(match &given.beside {
                Some(beside) => Tensor::concat(&[&latent, &lease.bring(beside)?], 1)?,
                None => latent,
            });
            // The evaluations of a step have one time.
            let known = embedded.take().filter(|(of, _)| of == time);
            let (_, of_time) = match known {
                Some(known) => embedded.insert(known),
                None => embedded.insert((*time, self.embed_time(lease, *time, probe)?)),
            };
            vectors.push(match &given.vector {
                Some(vector) => of_time.add(&lease.bring(vector)?)?,
                None => of_time.clone(),
            });
            let text = lease.bring(&given.text)?;
            let items = images[0].dim(0);
            texts.push(text.broadcast([items, text.dim(1), text.dim(2)])?.contiguous()?);
        }
        let joined = |parts: &[Tensor]| together(&parts.iter().collect::<Vec<_>>(), 0);
        let image = layers::convolution(lease, "input_blocks.0.0", &joined(&images)?, 1)?;
        probe.show(format_args!("input_blocks.0.0"), &image);
        for (index, member) in batch.members().enumerate() {
            if let Some(hint) = &member.given.hint {
                let items = member.latent.dim(0);
                image.slice(0, index * items, items)?.add_in_place(&lease.bring(hint)?)?;
            }
        }
        let vector = joined(&vectors)?.activate(Activation::Silu)?;
        State::new(lease, batch, image, vector, joined(&texts)?)
    }

    /// A time in the width that the residual units take, `[1, width]`.
    fn embed_time(&self, lease: &Lease<'_>, time: f32, probe: &mut Probe<'_>) -> Result<Tensor> {
        let channels = self.config.channels;
        let waves = lease.lane().tensor([1, channels], &waves(time, channels))?;
        let inner = lease.linear_then("time_embed.0", &waves, Some(Activation::Silu))?;
        let embedded = lease.linear("time_embed.2", &inner)?;
        probe.show(format_args!("time_embed"), &embedded);
        Ok(embedded)
    }

    fn shapes<'a>(&self, member: &Member<'a>) -> Shapes<'a> {
        let halvings = self.config.halvings();
        let least = |side: usize| (0..halvings).fold(side, |side, _| side.div_ceil(2));
        let controlled =
            |place: &Place| member.control.is_some_and(|control| residual_at(control, *place).is_some());
        Shapes {
            latent: *member.latent.shape(),
            text: member.given.text.dim(1),
            vector: member.given.vector.as_ref().map_or(1, |vector| vector.dim(0)),
            smallest: altered::smallest(
                member.altered,
                least(member.latent.dim(2)) * least(member.latent.dim(3)),
            ),
            controlled: self.config.places().filter(controlled).collect(),
            altered: member.altered,
        }
    }

    /// Whether the model can be evaluated so.
    fn check(&self, member: &Member<'_>) -> Result<()> {
        let Member { latent, given, altered, .. } = member;
        let beside = given.beside.as_ref().map_or(0, |beside| beside.dim(1));
        let channels = self.config.in_channels.saturating_sub(beside);
        if latent.rank() != 4 || latent.dim(1) != channels || latent.dims().contains(&0) {
            return wrong("the latent", format!("[batch, {channels}, height, width]"), latent);
        }
        match altered.iter().find(|alteration| !altered::is_known(alteration)) {
            None => Ok(()),
            Some(unknown) => Err(Error::Input {
                what: "a change inside of the model",
                expected: "one that a UNet has a place for".into(),
                got: unknown.to_string(),
            }),
        }
    }

    fn claims<'a>(&'a self, checkpoint: &'a Checkpoint) -> Claims<'a> {
        Claims::new(checkpoint, &self.prefix, self.kind.family).stored_as(self.stored.as_ref())
    }
}

impl Module for Unet {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&self.claims(checkpoint), &self.config, self.kind.family)
    }

    /// It was trained in f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::F16, DType::BF16, DType::F32]
    }
}

fn wrong<T>(what: &'static str, expected: String, got: &Tensor) -> Result<T> {
    Err(Error::Input { what, expected, got: format!("of shape {}", got.shape()) })
}
