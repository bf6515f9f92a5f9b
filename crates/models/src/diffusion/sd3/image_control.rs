//! Control networks for Stable Diffusion 3.5 as Stability published them (`sd3.5`, `dit_embedder.py`): blocks over the
//! image alone, without text. They use the first layer of the model that they control, or its layers for the pooled text.

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session, WeightSpec};
use tensor::{Activation, Tensor};

use super::blocks::image_block;
use super::config::{self, Config, HEAD};
use super::{FAMILY, LATENT, LAYERS, embed, weights};
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondShape, Scene};
use crate::control::{ControlFamily, ControlNetwork, ControlRun, Controlled, HintForm, HintSpec, in_rows};
use crate::detect::{Part, Sign};
use crate::diffusion::modulation::{Everywhere, TIME_VALUES, time_embedding};
use crate::diffusion::patches::{Grid, patchify};
use crate::diffusion::{ControlResiduals, Evaluation};
use crate::{Error, Module, Probe, Result};

/// Control networks without text for Stable Diffusion 3.5.
pub const IMAGE_CONTROL: ControlFamily = ControlFamily {
    name: "ControlNet for Stable Diffusion 3.5",
    signs: &[Sign::native("controlnet_blocks.0.weight", |found| {
        let is_ours = found.has("pos_embed_input.proj.weight")
            && found.has("transformer_blocks.0.adaLN_modulation.1.bias");
        is_ours.then_some(Cow::Borrowed("ControlNet for Stable Diffusion 3.5"))
    })],
    read: |checkpoint, part| Ok(Box::new(ImageControl::read(checkpoint, part)?)),
    released: None,
};

/// What `control_type` says of the pictures that a network was trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PictureKind {
    Plain,
    Canny,
    Depth,
}

/// A control network: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
struct ImageControl {
    config: Config,
    prefix: String,
    kind: PictureKind,
    /// Whether the pooled text goes through the model's layers before its own, and every block sees what came in.
    takes_pooled_layers: bool,
    /// What is taken of the model that it controls, once that is known.
    from_base: Vec<WeightSpec>,
}

/// What does not change within a run.
struct Prepared {
    /// The pooled text in the network's width, `[batch or 1, hidden]`.
    pooled: Tensor,
    /// The picture in the network's width, `[batch or 1, tokens, hidden]`.
    hint: Tensor,
}

/// A network with its pictures and conditionings.
struct Run<'a> {
    network: &'a ImageControl,
    session: &'a Session,
    prepared: Vec<Prepared>,
}

impl ImageControl {
    fn read(checkpoint: &Checkpoint, part: &Part) -> Result<ImageControl> {
        let claims = Claims::new(checkpoint, &part.prefix, IMAGE_CONTROL.name);
        let [hidden, channels, _, _] = claims.dims("pos_embed_input.proj.weight")?;
        let [rows, pooled_width] = claims.dims("y_embedder.mlp.0.weight")?;
        let [mlp, _] = claims.dims("transformer_blocks.0.mlp.fc1.weight")?;
        if hidden % HEAD != 0
            && let Some(entry) = claims.find("pos_embed_input.proj.weight")
        {
            return Err(claims.wrong_shape(entry, format!("[a multiple of {HEAD}, {channels}, 2, 2]")));
        }
        let config = Config {
            channels,
            out_channels: channels,
            hidden,
            heads: hidden / HEAD,
            mlp,
            context_width: 0,
            pooled_width,
            blocks: claims.count(|i| format!("transformer_blocks.{i}.attn.qkv.weight")),
            dual_blocks: 0,
            normed_heads: claims.find("transformer_blocks.0.attn.ln_q.weight").is_some(),
            positions_side: 0,
            ends_text: false,
        };
        let kind = match claims.find("control_type").and_then(|entry| checkpoint.values(entry)) {
            Some(values) if values.first().is_some_and(|kind| kind.round() == 1.0) => PictureKind::Canny,
            Some(values) if values.first().is_some_and(|kind| kind.round() == 2.0) => PictureKind::Depth,
            _ => PictureKind::Plain,
        };
        Ok(ImageControl {
            config,
            prefix: part.prefix.clone(),
            kind,
            takes_pooled_layers: rows == pooled_width,
            from_base: Vec::new(),
        })
    }

    /// The picture and the pooled text through their layers.
    fn prepare(&self, lease: &Lease<'_>, controlled: &Controlled<'_>) -> Result<Prepared> {
        let (lane, probe) = (lease.lane(), &mut Probe::none());
        let axes = controlled.hint_axes(self.config.channels)?;
        let hint = lane.tensor(axes, &controlled.hint.values)?;
        let hint = lease.linear("pos_embed_input.proj", &patchify(&hint)?)?;
        let width = match self.from_base.first() {
            Some(weight) if self.takes_pooled_layers => weight.shape.dims()[1],
            _ => self.config.pooled_width,
        };
        let mut pooled = controlled.cond.pooled_on(lane, width)?;
        if pooled.dim(1) != width {
            return Err(Error::Input {
                what: "the pooled text",
                expected: format!("[1 or batch, {width}]"),
                got: format!("of shape {}", pooled.shape()),
            });
        }
        if self.takes_pooled_layers {
            pooled = embed(lease, ("orig_y_embedder", LAYERS), &pooled, probe)?;
        }
        Ok(Prepared { pooled: embed(lease, ("y_embedder", LAYERS), &pooled, probe)?, hint })
    }

    /// The latent in the network's width with the picture added, and the vector that moves all blocks.
    fn enter(
        &self,
        lease: &Lease<'_>,
        (latent, time): (&Tensor, f32),
        given: &Prepared,
    ) -> Result<(Tensor, Everywhere)> {
        let mut image = lease.linear("x_embedder.proj", &patchify(&lease.bring(latent)?)?)?;
        if !self.takes_pooled_layers {
            let grid = Grid::of(latent);
            image = image.add(&positions(lease, self.config.hidden, grid.rows, grid.columns)?)?;
        }
        let time =
            embed(lease, ("t_embedder", LAYERS), &time_embedding(lease.lane(), time)?, &mut Probe::none())?;
        let vector = time.add(&lease.bring(&given.pooled)?)?.activate(Activation::Silu)?;
        Ok((image.add(&lease.bring(&given.hint)?)?, Everywhere::new(vector)))
    }
}

/// Waves of the rows and columns of patches, `[1, tokens, hidden]`: over the shorter side they run from 0 to 15, and the
/// middle is the same for all sizes.
fn positions(lease: &Lease<'_>, hidden: usize, rows: usize, columns: usize) -> Result<Tensor> {
    const CENTRE: f32 = 7.5;
    let small = rows.min(columns) as f32;
    let at = |index: usize, count: usize| {
        let reach = count as f32 / small * CENTRE;
        let steps = count.saturating_sub(1).max(1) as f32;
        CENTRE - reach + 2.0 * reach * index as f32 / steps
    };
    let quarter = hidden / 4;
    let frequency = |index: usize| 1.0 / 10_000f32.powf(index as f32 / quarter as f32);
    let waves = |place: f32| {
        let angles: Vec<f32> = (0..quarter).map(|index| place * frequency(index)).collect();
        angles.iter().map(|a| a.sin()).chain(angles.iter().map(|a| a.cos())).collect::<Vec<f32>>()
    };
    let (down, right): (Vec<Vec<f32>>, Vec<Vec<f32>>) = (
        (0..rows).map(|row| waves(at(row, rows))).collect(),
        (0..columns).map(|column| waves(at(column, columns))).collect(),
    );
    let token = |place: usize| right[place % columns].iter().chain(&down[place / columns]).copied();
    let values: Vec<f32> = (0..rows * columns).flat_map(token).collect();
    Ok(lease.lane().tensor([1, rows * columns, hidden], &values)?)
}

impl Module for ImageControl {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, IMAGE_CONTROL.name);
        let Config { hidden, channels, mlp, pooled_width, blocks, .. } = self.config;
        let mut entrance = self.from_base.clone();
        if self.takes_pooled_layers {
            entrance.extend(weights::patch_layer(&claims, "x_embedder.proj", [hidden, channels])?);
        }
        entrance.extend(weights::patch_layer(&claims, "pos_embed_input.proj", [hidden, channels])?);
        for (name, width) in [("t_embedder", TIME_VALUES), ("y_embedder", pooled_width)] {
            entrance.extend(claims.layer(&format!("{name}.mlp.0"), &[hidden, width])?);
            entrance.extend(claims.layer(&format!("{name}.mlp.2"), &[hidden, hidden])?);
        }
        let mut builder = Manifest::builder(claims.file(), config::FAMILY).block("in", true, entrance);
        for index in 0..blocks {
            let name = |layer: &str| format!("transformer_blocks.{index}.{layer}");
            let mut block = claims.layer(&name("adaLN_modulation.1"), &[6 * hidden, hidden])?;
            block.extend(weights::attention(&claims, &self.config, &name("attn"), true)?);
            block.extend(claims.layer(&name("mlp.fc1"), &[mlp, hidden])?);
            block.extend(claims.layer(&name("mlp.fc2"), &[hidden, mlp])?);
            block.extend(claims.layer(&format!("controlnet_blocks.{index}"), &[hidden, hidden])?);
            builder = builder.block(format!("transformer_blocks.{index}"), false, block);
        }
        Ok(builder.finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}

impl ControlNetwork for ImageControl {
    fn controls(&self) -> &'static [&'static str] {
        &[FAMILY.name]
    }

    fn hint(&self) -> HintSpec {
        let preparing = match self.kind {
            PictureKind::Plain => |value| value,
            PictureKind::Canny => |value: f32| value * 255.0 * 0.5 + 0.5,
            PictureKind::Depth => |value: f32| 1.0 - value,
        };
        HintSpec { form: HintForm::Latent(&LATENT), preparing, takes_mask: false }
    }

    fn latent_channels(&self) -> usize {
        self.config.channels
    }

    fn needs_base(&self) -> bool {
        self.from_base.is_empty()
    }

    fn on_base(&self, _own: &Checkpoint, base: (&Checkpoint, &Part)) -> Result<Box<dyn ControlNetwork>> {
        let claims = Claims::new(base.0, &base.1.prefix, IMAGE_CONTROL.name);
        let hidden = self.config.hidden;
        let from_base = if self.takes_pooled_layers {
            let [_, width] = claims.dims("y_embedder.mlp.0.weight")?;
            let mut layers = claims.layer("y_embedder.mlp.0", &[hidden, width])?;
            layers.extend(claims.layer("y_embedder.mlp.2", &[hidden, hidden])?);
            layers.iter_mut().for_each(|weight| weight.name = format!("orig_{}", weight.name));
            layers
        } else {
            weights::patch_layer(&claims, "x_embedder.proj", [hidden, self.config.channels])?
        };
        Ok(Box::new(ImageControl { from_base, ..self.clone() }))
    }

    fn blank(&self, _shape: &CondShape) -> Cond {
        Cond::text(Array::zeros(&[1, 1, 1]), None)
    }

    fn start<'a>(
        &'a self,
        session: &'a Session,
        controlled: &[Controlled<'_>],
        _scene: &Scene<'_>,
    ) -> Result<Box<dyn ControlRun + 'a>> {
        let lease = session.lease(0)?;
        let prepare = |controlled: &Controlled<'_>| self.prepare(&lease, controlled);
        let prepared = controlled.iter().map(prepare).collect::<Result<_>>()?;
        Ok(Box::new(Run { network: self, session, prepared }))
    }
}

impl ControlRun for Run<'_> {
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<ControlResiduals>> {
        let (network, config) = (self.network, &self.network.config);
        let mut states: Vec<(Tensor, Everywhere)> = {
            let lease = self.session.lease(0)?;
            let enter = |evaluation: &Evaluation<'_>| {
                let Evaluation { cond, latent, time, .. } = *evaluation;
                network.enter(&lease, (latent, time), &self.prepared[cond])
            };
            evaluations.iter().map(enter).collect::<Result<_>>()?
        };
        let mut given = vec![Vec::new(); evaluations.len()];
        for index in 0..config.blocks {
            let lease = self.session.lease(1 + index)?;
            for ((image, vector), given) in states.iter_mut().zip(&mut given) {
                *image = lease.bring(image)?;
                let moved = vector.on(&lease)?;
                let name = format!("transformer_blocks.{index}");
                let out = image_block(config, &lease, name, (image, &moved), &mut Probe::none())?;
                given.push(lease.linear(&format!("controlnet_blocks.{index}"), &out)?);
                if !network.takes_pooled_layers {
                    *image = out;
                }
            }
        }
        // The layers of a released model are as many as its heads.
        let spread = |results: &Vec<Tensor>| ControlResiduals {
            output: in_rows(results, config.heads.div_ceil(config.blocks.max(1)) * config.blocks),
            ..ControlResiduals::default()
        };
        Ok(given.iter().map(spread).collect())
    }
}
