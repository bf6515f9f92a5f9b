//! Control networks for FLUX.1: the first blocks of the model once more, with a picture added to the latent's tokens; what
//! each gives goes through a layer of its own. Some look at pixels (XLabs' code, `src/flux/controlnet.py`), others at
//! latents (diffusers, `FluxControlNetModel`), for several kinds of pictures or with a mask.

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use residency::{Lease, Manifest, Session};
use tensor::{Activation, ConvolutionShape, Tensor};

use super::batches::{Member, Shapes};
use super::blocks::{Apart, Joined};
use super::conditioning::Given;
use super::config::{self, Config};
use super::prepared::Prepared;
use super::run::KnownPositions;
use super::{FAMILY, Flux, LATENT, weights};
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondShape, Conditioned, Scene};
use crate::control::{
    ControlFamily, ControlNetwork, ControlRun, Controlled, HintForm, HintSpec, ReleasedControl, in_rows,
    in_turns,
};
use crate::detect::{Layout, Neighbours, Part, Sign};
use crate::diffusion::batches::{Batch, in_order};
use crate::diffusion::patches::{Grid, PATCH, patchify};
use crate::diffusion::stream_keys;
use crate::diffusion::{ControlResiduals, Evaluation};
use crate::{Error, Module, Probe, Result};

/// Blocks of the released models, over which the results of a network are spread.
const MODEL_DOUBLE: usize = 19;
const MODEL_SINGLE: usize = 38;
/// The layers that look at pixels: their numbers, and how far each steps.
const HINT_LAYERS: [(usize, usize); 8] = [(0, 1), (2, 1), (4, 2), (6, 1), (8, 2), (10, 1), (12, 2), (14, 1)];

/// Control networks for FLUX.1.
pub const CONTROL: ControlFamily = ControlFamily {
    name: "ControlNet for FLUX.1",
    signs: &[
        Sign::native("controlnet_blocks.0.weight", |found| {
            let is_ours = found.has("double_blocks.0.img_attn.norm.key_norm.scale");
            is_ours.then_some(Cow::Borrowed("ControlNet for FLUX.1"))
        }),
        Sign { tensor: "controlnet_blocks.0.weight", layout: Layout::Diffusers, name: of_diffusers },
    ],
    read: |checkpoint, part| Ok(Box::new(FluxControl::read(checkpoint, part)?)),
    released: Some(ReleasedControl { controls: FAMILY.name, tensors: released_tensors }),
};

/// Blocks of the network that looks at pixels, as it was released, and channels of what it makes of them.
const RELEASED_BLOCKS: usize = 2;
const RELEASED_HINT: usize = 16;

/// The tensors of the released network that looks at pixels, beside a model of these: its first layers and blocks.
fn released_tensors(model: &[(String, Shape)]) -> Vec<(String, Shape)> {
    let blocks: Vec<String> = (0..RELEASED_BLOCKS).map(|index| format!("double_blocks.{index}.")).collect();
    let is_kept = |name: &str| {
        let entrance = ["img_in.", "time_in.", "vector_in.", "guidance_in.", "txt_in."];
        entrance.iter().any(|layer| name.starts_with(layer))
            || blocks.iter().any(|block| name.starts_with(block))
    };
    let mut all: Vec<(String, Shape)> = model.iter().filter(|(name, _)| is_kept(name)).cloned().collect();
    let hidden = all.iter().find(|(name, _)| name == "img_in.bias").map_or(0, |(_, shape)| shape.count());
    let mut layer = |name: String, weight: Shape| {
        all.push((format!("{name}.weight"), weight));
        all.push((format!("{name}.bias"), Shape::from([weight.dims()[0]])));
    };
    for index in 0..RELEASED_BLOCKS {
        layer(format!("controlnet_blocks.{index}"), Shape::from([hidden, hidden]));
    }
    layer("pos_embed_input".into(), Shape::from([hidden, RELEASED_HINT * PATCH * PATCH]));
    for (index, _) in HINT_LAYERS {
        let from = if index == 0 { 3 } else { RELEASED_HINT };
        layer(format!("input_hint_block.{index}"), Shape::from([RELEASED_HINT, from, 3, 3]));
    }
    all
}

fn of_diffusers(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let is_other = found.has("transformer_blocks.0.img_mlp.net.0.proj.weight");
    if is_other || !found.has("controlnet_x_embedder.weight") {
        return None;
    }
    Some(Cow::Borrowed(if found.has("controlnet_mode_embedder.weight") {
        "union ControlNet for FLUX.1"
    } else {
        "ControlNet for FLUX.1"
    }))
}

/// A control network: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct FluxControl {
    flux: Flux,
    layout: Layout,
    /// Channels of what it looks at.
    hint_channels: usize,
    /// Kinds of pictures that it knows apart; none if it has no names for them.
    kinds: usize,
}

/// A network with its pictures and conditionings.
struct Run<'a> {
    network: &'a FluxControl,
    session: &'a Session,
    prepared: Vec<Prepared>,
    positions: KnownPositions,
}

impl FluxControl {
    /// Reads the network's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<FluxControl> {
        let claims = claims(checkpoint, &part.prefix, part.layout);
        let config = Config::without_end(&claims, checkpoint.metadata())?;
        let [_, columns] = claims.dims("pos_embed_input.weight")?;
        let kinds = match claims.find("controlnet_mode_embedder.weight") {
            Some(_) => claims.dims::<2>("controlnet_mode_embedder.weight")?[0],
            None => 0,
        };
        Ok(FluxControl {
            flux: Flux { config, prefix: part.prefix.clone() },
            layout: part.layout,
            hint_channels: columns / (PATCH * PATCH),
            kinds,
        })
    }

    fn looks_at_pixels(&self) -> bool {
        self.layout == Layout::Native
    }

    /// The picture in the model's width, `[items, tokens, hidden]`.
    fn hint_tokens(
        &self,
        lease: &Lease<'_>,
        controlled: &Controlled<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let channels = if self.looks_at_pixels() { 3 } else { self.hint_channels };
        let axes = controlled.hint_axes(channels)?;
        let mut hint = lease.lane().tensor(axes, &controlled.hint.values)?;
        if self.looks_at_pixels() {
            hint = hint.affine(2.0, -1.0)?;
            for (index, stride) in HINT_LAYERS {
                let name = format!("input_hint_block.{index}");
                let (weight, bias) =
                    (lease.weight(&format!("{name}.weight"))?, lease.find(&format!("{name}.bias"))?);
                let shape = ConvolutionShape::uniform(2, stride, 1);
                hint = hint.convolution(&weight, bias.as_ref(), &shape)?;
                probe.show(format_args!("{name}"), &hint);
                let is_last = Some(&(index, stride)) == HINT_LAYERS.last();
                hint = if is_last { hint } else { hint.activate(Activation::Silu)? };
            }
        }
        let tokens = lease.linear("pos_embed_input", &patchify(&hint)?)?;
        probe.show(format_args!("pos_embed_input"), &tokens);
        Ok(tokens)
    }

    /// What does not change within a run, through the first layers once.
    fn prepare(
        &self,
        lease: &Lease<'_>,
        controlled: &Controlled<'_>,
        scene: &Scene<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Prepared> {
        // It sees neither reference pictures nor what stands beside the latent or before the text.
        let own = controlled.cond.clone();
        let cond = Cond { reference_latents: Vec::new(), concat_latent: None, in_front: None, ..own };
        let conditioned = Conditioned::whole(&cond);
        let given = Given::new(&self.flux, lease.lane(), &conditioned, scene)?;
        let inputs = given.inputs(&given.context);
        self.flux.check_given(scene.shape.batch, &inputs)?;
        let mut prepared = Prepared::new(&self.flux, lease, &inputs, probe)?;
        // All tokens are looked at alike.
        prepared.biased.clear();
        if let Some(kind) = controlled.picture_kind.filter(|_| self.kinds > 0) {
            prepared.text = self.with_kind(lease, &prepared.text, kind)?;
        }
        prepared.hint = Some(self.hint_tokens(lease, controlled, probe)?);
        Ok(prepared)
    }

    /// The text with a token in front that says what kind of picture there is.
    fn with_kind(&self, lease: &Lease<'_>, text: &Tensor, kind: usize) -> Result<Tensor> {
        if kind >= self.kinds {
            return Err(Error::Input {
                what: "the kind of control picture",
                expected: format!("one of the {} that the network has", self.kinds),
                got: format!("number {kind}"),
            });
        }
        let ids = lease.lane().ids([1, 1], &[kind as i32])?;
        let token = lease.lane().embedding(&lease.weight("controlnet_mode_embedder.weight")?, &ids)?;
        let token = token.broadcast([text.dim(0), 1, text.dim(2)])?;
        Ok(Tensor::concat(&[&token, text], 1)?)
    }

    /// One pass over the blocks; for each evaluation what every block gave, of the first kind and of the second.
    fn pass(
        &self,
        session: &Session,
        first: Lease<'_>,
        evaluations: &[Member<'_>],
        positions: &KnownPositions,
        probe: &mut Probe<'_>,
    ) -> Result<[Vec<Vec<Tensor>>; 2]> {
        let config = &self.flux.config;
        let batches = Batch::all_of(evaluations, Shapes::of);
        let mut apart: Vec<Apart> = {
            let lease = first;
            let enter = |batch: &Batch<Shapes, Member<'_>>| {
                self.flux.enter(&lease, batch, positions.of(config, batch)?, probe)
            };
            batches.iter().map(enter).collect::<Result<_>>()?
        };
        let mut given = [vec![Vec::new(); evaluations.len()], vec![Vec::new(); evaluations.len()]];
        for index in 0..config.double_blocks {
            let lease = session.lease(1 + index)?;
            let through = |state: Apart| state.bring(&lease)?.double_block(config, &lease, index, probe);
            apart = apart.into_iter().map(through).collect::<Result<_>>()?;
            let results = apart.iter().map(|state| {
                let result = lease.linear(&format!("controlnet_blocks.{index}"), state.image())?;
                probe.show(format_args!("controlnet_blocks.{index}"), &result);
                Ok(result)
            });
            keep(&mut given[0], &batches, results)?;
        }
        if config.single_blocks == 0 {
            return Ok(given);
        }
        let mut joined: Vec<Joined> = apart.into_iter().map(Apart::join).collect::<Result<_>>()?;
        for index in 0..config.single_blocks {
            let lease = session.lease(1 + config.double_blocks + index)?;
            let through = |state: Joined| state.bring(&lease)?.single_block(config, &lease, index, probe);
            joined = joined.into_iter().map(through).collect::<Result<_>>()?;
            let results = joined.iter().zip(&batches).map(|(state, batch)| {
                let image = state.image_tokens(Grid::of(batch.first().latent).patches())?;
                let result = lease.linear(&format!("controlnet_single_blocks.{index}"), &image)?;
                probe.show(format_args!("controlnet_single_blocks.{index}"), &result);
                Ok(result)
            });
            keep(&mut given[1], &batches, results)?;
        }
        Ok(given)
    }

    /// What the model that is controlled gets of an evaluation's results.
    fn spread(&self, double: &[Tensor], single: &[Tensor]) -> ControlResiduals {
        let spread = if self.looks_at_pixels() { in_turns } else { in_rows };
        ControlResiduals {
            input: spread(double, MODEL_DOUBLE),
            middle: Vec::new(),
            output: spread(single, MODEL_SINGLE),
        }
    }

    /// Evaluates the network once, with a look at what its modules compute.
    pub fn forward_probed(
        &self,
        session: &Session,
        controlled: &Controlled<'_>,
        (latent, time): (&Tensor, f32),
        probe: &mut Probe<'_>,
    ) -> Result<ControlResiduals> {
        let lease = session.lease(0)?;
        let shape = sampling::LatentShape {
            batch: latent.dim(0),
            channels: latent.dim(1),
            frames: 1,
            height: latent.dim(2),
            width: latent.dim(3),
        };
        let given = self.prepare(&lease, controlled, &Scene::empty(shape), probe)?;
        let member = Member { latent, sigma: time, given: &given, control: None, altered: &[] };
        let [double, single] = self.pass(session, lease, &[member], &KnownPositions::default(), probe)?;
        Ok(self.spread(&double[0], &single[0]))
    }
}

/// Hands each evaluation its part of what the batches gave.
fn keep(
    given: &mut [Vec<Tensor>],
    batches: &[Batch<Shapes, Member<'_>>],
    results: impl Iterator<Item = Result<Tensor>>,
) -> Result<()> {
    let mut parts = Vec::with_capacity(given.len());
    for (batch, result) in batches.iter().zip(results) {
        parts.extend(batch.apart(&result?, batch.first().latent.dim(0))?);
    }
    given.iter_mut().zip(in_order(parts)).for_each(|(given, part)| given.push(part));
    Ok(())
}

fn claims<'a>(checkpoint: &'a Checkpoint, prefix: &'a str, layout: Layout) -> Claims<'a> {
    let claims = Claims::new(checkpoint, prefix, CONTROL.name);
    if layout == Layout::Native { claims } else { claims.named_by(stream_keys::diffusers_names) }
}

impl Module for FluxControl {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let (claims, config) = (claims(checkpoint, &self.flux.prefix, self.layout), &self.flux.config);
        let hidden = config.hidden;
        let mut entrance = weights::entrance(&claims, config)?;
        entrance.extend(claims.layer("pos_embed_input", &[hidden, self.hint_channels * PATCH * PATCH])?);
        if self.kinds > 0 {
            entrance.push(claims.weight("controlnet_mode_embedder.weight", &[self.kinds, hidden])?);
        }
        if self.looks_at_pixels() {
            for (index, _) in HINT_LAYERS {
                let from = if index == 0 { 3 } else { self.hint_channels };
                let shape = [self.hint_channels, from, 3, 3];
                entrance.extend(claims.layer(&format!("input_hint_block.{index}"), &shape)?);
            }
        }
        let mut builder = Manifest::builder(claims.file(), config::FAMILY).block("in", true, entrance);
        for index in 0..config.double_blocks {
            let name = format!("double_blocks.{index}");
            let mut block = weights::double_block(&claims, config, &name)?;
            block.extend(claims.layer(&format!("controlnet_blocks.{index}"), &[hidden, hidden])?);
            builder = builder.block(name, false, block);
        }
        for index in 0..config.single_blocks {
            let name = format!("single_blocks.{index}");
            let mut block = weights::single_block(&claims, config, &name)?;
            block.extend(claims.layer(&format!("controlnet_single_blocks.{index}"), &[hidden, hidden])?);
            builder = builder.block(name, false, block);
        }
        Ok(builder.finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        self.flux.activations()
    }
}

impl ControlNetwork for FluxControl {
    fn controls(&self) -> &'static [&'static str] {
        &[FAMILY.name]
    }

    fn hint(&self) -> HintSpec {
        if self.looks_at_pixels() {
            return HintSpec::pixels(3);
        }
        HintSpec {
            form: HintForm::Latent(&LATENT),
            preparing: |value| value,
            takes_mask: self.hint_channels > LATENT.channels,
        }
    }

    fn latent_channels(&self) -> usize {
        self.flux.config.in_channels
    }

    fn picture_kinds(&self) -> usize {
        self.kinds
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        let text = Array::zeros(&[1, shape.tokens.max(1), self.flux.config.context_width]);
        Cond::text(text, Some(Array::zeros(&[1, self.flux.config.pooled_width])))
    }

    fn start<'a>(
        &'a self,
        session: &'a Session,
        controlled: &[Controlled<'_>],
        scene: &Scene<'_>,
    ) -> Result<Box<dyn ControlRun + 'a>> {
        let lease = session.lease(0)?;
        let prepare =
            |controlled: &Controlled<'_>| self.prepare(&lease, controlled, scene, &mut Probe::none());
        let prepared = controlled.iter().map(prepare).collect::<Result<_>>()?;
        Ok(Box::new(Run { network: self, session, prepared, positions: KnownPositions::default() }))
    }
}

impl ControlRun for Run<'_> {
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<ControlResiduals>> {
        let mut members = Vec::with_capacity(evaluations.len());
        for Evaluation { cond, latent, time, .. } in evaluations {
            self.network.flux.check_latent(latent, None)?;
            members.push(Member {
                latent,
                sigma: *time,
                given: &self.prepared[*cond],
                control: None,
                altered: &[],
            });
        }
        if members.is_empty() {
            return Ok(Vec::new());
        }
        let first = self.session.lease(0)?;
        let [double, single] =
            self.network.pass(self.session, first, &members, &self.positions, &mut Probe::none())?;
        let spread = |(double, single): (&Vec<Tensor>, &Vec<Tensor>)| self.network.spread(double, single);
        Ok(double.iter().zip(&single).map(spread).collect())
    }
}
