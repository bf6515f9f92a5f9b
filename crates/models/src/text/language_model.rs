//! Language models as text encoders: one decoder-only transformer, whose kind and sizes follow from the names and shapes
//! of its tensors. Names are those of the transformers library (`model.layers.0.self_attn.q_proj`); files with llama.cpp's
//! names are read, too.
//!
//! ```text
//! ids ── rows of the table, which stays in its file ──> layers 0 … n ──> norm
//!                   └─ parts of pictures                  └─ the results that a recipe asks for
//! ```

mod config;
mod generation;
mod positions;
mod vocabulary;
mod weights;

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session};
use tensor::{Mask, Tensor, Weight};

use super::encoder::{Batch, EncodeOptions, Layer, Outputs, TextEncoder};
use super::{TextArchitecture, TextModel};
use crate::claims::Claims;
use crate::detect::{Layout, Neighbours, Part, Sign};
use crate::{Error, Module, Probe, Result, residual};

use config::Beside;
pub use config::{LanguageKind, LanguageModelConfig};
pub use generation::Decoder;
use generation::LayerCache;
use positions::Rotation;

/// Added to the scores of hidden tokens: far below any score, and within every type of activation.
const HIDDEN: f32 = -30_000.0;

/// The architecture.
pub(super) const ARCHITECTURE: TextArchitecture = TextArchitecture {
    name: "language models (Qwen2.5, Qwen3, Qwen3-VL, Gemma 2 and 3, Mistral 3, Llama 3)",
    signs: &[
        Sign::native("layers.0.self_attn.q_proj.weight", |found| {
            let is_one = found.has("embed_tokens.weight") && found.has("layers.0.mlp.gate_proj.weight");
            is_one.then(|| named(found, Layout::Native)).flatten()
        }),
        Sign {
            tensor: "blk.0.attn_q.weight",
            layout: Layout::LlamaCpp,
            name: |found| found.has("token_embd.weight").then(|| named(found, Layout::LlamaCpp)).flatten(),
        },
    ],
    read: |checkpoint, part| {
        let model = LanguageModel::read(checkpoint, part)?;
        let tokenizer = vocabulary::tokenizer(checkpoint, model.config())?;
        Ok(TextModel { encoder: Box::new(model), tokenizer })
    },
};

/// The name of a model by its kind and its width.
fn named(found: &Neighbours<'_>, layout: Layout) -> Option<Cow<'static, str>> {
    let names = weights::names(layout);
    let has = |name: &str| found.has(&names.of(0, name));
    let table = found.dims(names.table)?;
    let beside = Beside {
        has_tekken: found.has_anywhere(config::TEKKEN),
        is_qwen3_vl: found.architecture() == Some(config::QWEN3_VL) || found.has_ending(config::DEEP_TOWER),
    };
    let kind = LanguageKind::of(has, table, beside);
    Some(Cow::Owned(format!("{} of width {}", kind.name(), table.get(1)?)))
}

/// What a layer's tokens look at.
struct Attending<'a> {
    mask: &'a Mask,
    rotation: &'a Rotation,
    /// What earlier tokens left, while text is generated.
    cache: Option<&'a mut LayerCache>,
}

/// A language model: its sizes and how it computes.
#[derive(Clone, Debug)]
pub struct LanguageModel {
    config: LanguageModelConfig,
    layout: Layout,
    prefix: String,
}

impl LanguageModel {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<LanguageModel> {
        let claims = Claims::new(checkpoint, &part.prefix, weights::FAMILY);
        let config = config::read(&claims, checkpoint, part.layout)?;
        Ok(LanguageModel { config, layout: part.layout, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &LanguageModelConfig {
        &self.config
    }

    fn layer(
        &self,
        lease: &Lease<'_>,
        i: usize,
        x: &Tensor,
        attending: Attending<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let has_outer_norms = self.config.kind.has_outer_norms();
        let normed = residual::for_products(lease, &self.norm(lease, i, "input_layernorm", x, probe)?)?;
        let attended = self.attend(lease, i, &normed, attending, probe)?;
        let attended = match has_outer_norms {
            true => self.norm(lease, i, "post_attention_layernorm", &attended, probe)?,
            false => attended,
        };
        let x = residual::add(x, &attended)?;
        let before = if has_outer_norms { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
        let normed = residual::for_products(lease, &self.norm(lease, i, before, &x, probe)?)?;
        let name = |module: &str| format!("model.layers.{i}.mlp.{module}");
        let gate = lease.linear(&name("gate_proj"), &normed)?;
        probe.show(format_args!("layers.{i}.mlp.gate_proj"), &gate);
        let up = lease.linear(&name("up_proj"), &normed)?;
        probe.show(format_args!("layers.{i}.mlp.up_proj"), &up);
        let change = lease.linear(&name("down_proj"), &gate.gate(self.config.kind.activation(), &up)?)?;
        probe.show(format_args!("layers.{i}.mlp.down_proj"), &change);
        probe.show(format_args!("layers.{i}.mlp"), &change);
        let change = match has_outer_norms {
            true => self.norm(lease, i, "post_feedforward_layernorm", &change, probe)?,
            false => change,
        };
        let x = residual::add(&x, &change)?;
        probe.show(format_args!("layers.{i}"), &x);
        Ok(x)
    }

    fn attend(
        &self,
        lease: &Lease<'_>,
        i: usize,
        x: &Tensor,
        attending: Attending<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let LanguageModelConfig { heads, groups, head, .. } = self.config;
        let (batch, len) = (x.dim(0), x.dim(1));
        let mut project = |module: &str, heads: usize| -> Result<Tensor> {
            let y = lease.linear(&format!("model.layers.{i}.self_attn.{module}_proj"), x)?;
            probe.show(format_args!("layers.{i}.self_attn.{module}_proj"), &y);
            Ok(y.reshape([batch, len, heads, head])?)
        };
        let (q, k, v) = (project("q", heads)?, project("k", groups)?, project("v", groups)?);
        let Attending { mask, rotation, cache } = attending;
        let q = self.turn(lease, (i, "q_norm"), &q, rotation, probe)?;
        let k = self.turn(lease, (i, "k_norm"), &k, rotation, probe)?;
        let [k, v] = match cache {
            Some(cache) => cache.extended(&k, &v)?,
            None => [k, v],
        };
        let scale = (head as f32).sqrt().recip();
        let attended = q.attention(&k, &v, mask, scale)?.reshape([batch, len, heads * head])?;
        let out = lease.linear(&format!("model.layers.{i}.self_attn.o_proj"), &attended)?;
        probe.show(format_args!("layers.{i}.self_attn.o_proj"), &out);
        probe.show(format_args!("layers.{i}.self_attn"), &out);
        Ok(out)
    }

    /// Queries or keys, normalised where the model does so, turned by their positions.
    fn turn(
        &self,
        lease: &Lease<'_>,
        (i, norm): (usize, &str),
        x: &Tensor,
        rotation: &Rotation,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let (tables, layout) = (rotation.tables(), self.config.rope);
        if !self.config.kind.norms_heads() {
            return Ok(x.rope(tables[0], tables[1], layout)?);
        }
        let weight = self.norm_weight(lease, &format!("model.layers.{i}.self_attn.{norm}.weight"))?;
        let eps = self.config.eps;
        probe.show_step(format_args!("layers.{i}.self_attn.{norm}"), || {
            Ok(x.rms_norm(Some(&weight), eps)?.permute(&[0, 2, 1, 3])?.contiguous()?)
        })?;
        let out = x.lane().empty_as(x.dtype(), *x.shape())?;
        x.normed_rope_into(&weight, eps, tables, layout, &out)?;
        Ok(out)
    }

    /// A normalisation of a layer.
    fn norm(
        &self,
        lease: &Lease<'_>,
        i: usize,
        module: &str,
        x: &Tensor,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let y = self.normed(lease, &format!("model.layers.{i}.{module}.weight"), x)?;
        probe.show(format_args!("layers.{i}.{module}"), &y);
        Ok(y)
    }

    fn normed(&self, lease: &Lease<'_>, weight: &str, x: &Tensor) -> Result<Tensor> {
        Ok(x.rms_norm(Some(&self.norm_weight(lease, weight)?), self.config.eps)?)
    }

    /// What a normalisation multiplies by. Gemma keeps what is added to one, and adds in the type that it is kept in.
    fn norm_weight(&self, lease: &Lease<'_>, name: &str) -> Result<Weight> {
        let weight = lease.weight(name)?;
        if !self.config.adds_one {
            return Ok(weight);
        }
        let sum = lease.lane().unpack(&weight)?.affine(1.0, 1.0)?;
        let sum = weight.dtype().map_or(Ok(sum.clone()), |dtype| sum.cast(dtype))?;
        Ok(Weight::new(sum.operand().clone()))
    }

    /// The last normalisation; files that end early have none.
    fn finish(&self, session: &Session, x: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        if !self.config.has_last_norm {
            return Ok(x.clone());
        }
        let lease = session.lease(self.config.layers)?;
        let y = self.normed(&lease, weights::LAST_NORM, &lease.bring_unrounded(x)?)?;
        probe.show(format_args!("norm"), &y);
        Ok(y)
    }

    /// Which tokens each token sees in layer `i`: those before it, without what fills the chunks.
    fn mask(&self, lease: &Lease<'_>, i: usize, batch: &Batch) -> Result<Mask> {
        let (visible, len) = (batch.visible(), batch.len);
        let window = self.config.kind.window(i).filter(|window| len > *window);
        if window.is_none() && visible.iter().flatten().all(|seen| *seen) {
            return Ok(Mask::Causal);
        }
        let sees = |row: &[bool], query: usize, key: usize| {
            row[key] && key <= query && window.is_none_or(|window| query - key < window)
        };
        let mut scores = Vec::with_capacity(visible.len() * len * len);
        for row in &visible {
            for query in 0..len {
                scores.extend((0..len).map(|key| if sees(row, query, key) { 0.0 } else { HIDDEN }));
            }
        }
        Ok(Mask::Additive(lease.lane().tensor([visible.len(), 1, len, len], &scores)?))
    }

    /// How many layers have to run for what is asked for.
    fn needed(&self, layer: Layer) -> Result<usize> {
        let layers = self.config.layers;
        let needed = match layer {
            Layer::Last | Layer::All => Some(layers),
            Layer::Skip(from_end) | Layer::SkipRaw(from_end) => (layers + 1).checked_sub(from_end.max(1)),
            Layer::After(numbers) => numbers.iter().copied().max().filter(|number| *number <= layers),
        };
        needed.ok_or_else(|| Error::Input {
            what: "the layer of the text",
            expected: format!("one of the {layers} that the language model has"),
            got: format!("{layer:?}"),
        })
    }
}

impl Module for LanguageModel {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, weights::FAMILY);
        weights::manifest(&claims, &self.config, self.layout)
    }

    /// They were trained in bf16, and some outgrow f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}

impl TextEncoder for LanguageModel {
    fn key(&self) -> &'static str {
        self.config.key()
    }

    fn width(&self) -> usize {
        self.config.width
    }

    fn layers(&self) -> usize {
        self.config.layers
    }

    fn chunk_tokens(&self) -> Option<usize> {
        None
    }

    fn language_model(&self) -> Option<&LanguageModel> {
        Some(self)
    }

    fn forward(
        &self,
        session: &Session,
        batch: &Batch,
        options: EncodeOptions<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Outputs> {
        let needed = self.needed(options.layer)?;
        let rows = batch.embed_from(session, weights::TABLE, &options)?;
        let mut x = rows.to_lane(&residual::lane_beside(rows.lane())?)?;
        probe.show_step(format_args!("embed_tokens"), || Ok(x.slice(0, 0, 1)?))?;
        if self.config.kind.scales_table() {
            x = x.affine((self.config.width as f32).sqrt(), 0.0)?;
        }
        let mut rotations = positions::rotations(&self.config, x.lane(), batch, options.pictures)?;
        let mut states = Vec::new();
        let mut mask: Option<(Option<usize>, Mask)> = None;
        for i in 0..needed {
            let lease = session.lease(i)?;
            x = lease.bring_unrounded(&x)?;
            match options.layer {
                Layer::All => states.push(x.clone()),
                Layer::After(numbers) if numbers.contains(&i) => states.push(x.clone()),
                _ => {}
            }
            let window = self.config.kind.window(i);
            let rotation = &mut rotations[usize::from(window.is_some())];
            rotation.bring(lease.lane())?;
            let seen = match mask.take() {
                Some((of, Mask::Additive(scores))) if of == window => {
                    Mask::Additive(scores.to_lane(lease.lane())?)
                }
                Some((of, seen)) if of == window => seen,
                _ => self.mask(&lease, i, batch)?,
            };
            let attending = Attending { mask: &seen, rotation, cache: None };
            x = self.layer(&lease, i, &x, attending, probe)?;
            batch.add_deep(&x, i, options.pictures)?;
            mask = Some((window, seen));
        }
        let hidden = match options.layer {
            Layer::Last | Layer::Skip(_) => self.finish(session, &x, probe)?,
            Layer::SkipRaw(_) => x,
            Layer::After(_) => {
                states.push(x);
                joined(&states, 2)?
            }
            Layer::All => {
                states.push(self.finish(session, &x, probe)?);
                let [batch, len, width] = [0, 1, 2].map(|axis| states[0].dim(axis));
                let apart = states.iter().map(|state| state.reshape([batch, 1, len, width]));
                joined(&apart.collect::<Result<Vec<_>, _>>()?, 1)?
            }
        };
        Ok(Outputs { hidden, pooled: None })
    }
}

/// States side by side, wherever each was computed.
fn joined(states: &[Tensor], axis: usize) -> Result<Tensor> {
    let Some(last) = states.last() else {
        return Err(Error::Input { what: "the text", expected: "some states".into(), got: "none".into() });
    };
    let here = states.iter().map(|state| state.to_lane(last.lane())).collect::<Result<Vec<_>, _>>()?;
    Ok(Tensor::concat(&here.iter().collect::<Vec<_>>(), axis)?)
}
