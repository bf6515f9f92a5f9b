//! The layers that CLIP's text model and its vision towers have in common, under either of the two names that their tensors
//! go by.

use meta::Shape;
use residency::{Lease, WeightSpec};
use tensor::{Activation, Mask, Tensor};

use crate::claims::Claims;
use crate::{Probe, Result};

/// Below every square root of a variance.
const NORM_EPS: f32 = 1e-5;

/// Who named the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// OpenAI, by way of transformers.
    Clip,
    /// OpenCLIP, with queries, keys and values in one matrix.
    OpenClip,
}

/// A stack of layers: what its names begin with, its sizes, and how it computes.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    /// `text_model.encoder` or `vision_model.encoder`.
    pub(crate) name: &'static str,
    /// Values per token.
    pub(crate) width: usize,
    /// Inner width of the feed-forward layers.
    pub(crate) mlp: usize,
    /// Heads of attention.
    pub(crate) heads: usize,
    /// The non-linearity of the feed-forward layers.
    pub(crate) activation: Activation,
    /// What a token may see.
    pub(crate) mask: Mask,
}

impl Names {
    /// The stored name of a module of a layer.
    pub(crate) fn module(self, stack: &str, layer: usize, module: &str) -> String {
        let stored = match module {
            _ if self == Names::Clip => return format!("{stack}.layers.{layer}.{module}"),
            "layer_norm1" => "ln_1",
            "layer_norm2" => "ln_2",
            "self_attn.out_proj" => "attn.out_proj",
            "mlp.fc1" => "mlp.c_fc",
            "mlp.fc2" => "mlp.c_proj",
            other => other,
        };
        format!("transformer.resblocks.{layer}.{stored}")
    }
}

impl Stack {
    /// The weights of a layer, by the names that transformers has for them.
    pub(crate) fn weights(&self, claims: &Claims<'_>, names: Names, i: usize) -> Result<Vec<WeightSpec>> {
        let (width, mlp) = (self.width, self.mlp);
        let mut weights = Vec::new();
        let mut add = |name: &str, shape: &[usize]| -> Result<()> {
            let (stored, own) = (names.module(self.name, i, name), Names::Clip.module(self.name, i, name));
            weights.extend(module(claims, &stored, &own, shape)?);
            Ok(())
        };
        add("layer_norm1", &[width])?;
        add("layer_norm2", &[width])?;
        add("self_attn.out_proj", &[width, width])?;
        add("mlp.fc1", &[mlp, width])?;
        add("mlp.fc2", &[width, mlp])?;
        let parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
        match names {
            Names::Clip => parts.into_iter().try_for_each(|part| add(part, &[width, width]))?,
            Names::OpenClip => {
                let stored = |module: &str| names.module(self.name, i, module);
                let whole = claims.weight(&stored("attn.in_proj_weight"), &[3 * width, width])?;
                let bias = claims.weight(&stored("attn.in_proj_bias"), &[3 * width])?;
                for (third, part) in parts.into_iter().enumerate() {
                    let name = Names::Clip.module(self.name, i, part);
                    weights.push(cut(&whole, third, [width, width].into(), format!("{name}.weight")));
                    weights.push(cut(&bias, third, [width].into(), format!("{name}.bias")));
                }
            }
        }
        Ok(weights)
    }

    /// What a layer makes of `[batch, tokens, width]`.
    pub(crate) fn layer(
        &self,
        lease: &Lease<'_>,
        i: usize,
        x: &Tensor,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let name = |module: &str| format!("{}.layers.{i}.{module}", self.name);
        let (batch, len, size) = (x.dim(0), x.dim(1), self.width / self.heads);
        let normed = norm(lease, &name("layer_norm1"), x)?;
        probe.show(format_args!("layers.{i}.layer_norm1"), &normed);
        let mut heads = Vec::with_capacity(3);
        for module in ["q_proj", "k_proj", "v_proj"] {
            let y = lease.linear(&name(&format!("self_attn.{module}")), &normed)?;
            probe.show(format_args!("layers.{i}.self_attn.{module}"), &y);
            heads.push(y.reshape([batch, len, self.heads, size])?);
        }
        let scale = 1.0 / (size as f32).sqrt();
        let attended = heads[0].attention(&heads[1], &heads[2], &self.mask, scale)?;
        let attended = attended.reshape([batch, len, self.width])?;
        let attended = lease.linear(&name("self_attn.out_proj"), &attended)?;
        probe.show(format_args!("layers.{i}.self_attn"), &attended);
        let x = x.add(&attended)?;
        let normed = norm(lease, &name("layer_norm2"), &x)?;
        probe.show(format_args!("layers.{i}.layer_norm2"), &normed);
        let inner = lease.linear_then(&name("mlp.fc1"), &normed, Some(self.activation))?;
        let change = lease.linear(&name("mlp.fc2"), &inner)?;
        probe.show(format_args!("layers.{i}.mlp"), &change);
        Ok(x.add(&change)?)
    }
}

/// Mean 0 and variance 1 over the last dimension, with the weights of a module.
pub(crate) fn norm(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let weight = lease.weight(&format!("{name}.weight"))?;
    let bias = lease.weight(&format!("{name}.bias"))?;
    Ok(x.layer_norm(Some(&weight), Some(&bias), NORM_EPS)?)
}

/// The weight and bias of a module, under the name that the model knows.
pub(crate) fn module(
    claims: &Claims<'_>,
    stored: &str,
    name: &str,
    shape: &[usize],
) -> Result<Vec<WeightSpec>> {
    let specs = claims.layer(stored, shape)?;
    let rename = |spec: WeightSpec| {
        let end = spec.name[stored.len()..].to_owned();
        renamed(spec, &format!("{name}{end}"))
    };
    Ok(specs.into_iter().map(rename).collect())
}

/// A weight under another name.
pub(crate) fn renamed(spec: WeightSpec, name: &str) -> WeightSpec {
    WeightSpec { name: name.to_owned(), ..spec }
}

/// One third of the rows of a tensor.
fn cut(whole: &WeightSpec, third: usize, shape: Shape, name: String) -> WeightSpec {
    let len = whole.bytes.len() / 3;
    let bytes = whole.bytes.slice(third * len..(third + 1) * len);
    WeightSpec { name, shape, bytes, ..whole.clone() }
}
