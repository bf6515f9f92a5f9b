//! What a CLIP text model needs of its file, under either of the two names that its tensors go by.

use meta::Shape;
use residency::{Manifest, WeightSpec};
use tensor::Activation;

use super::{ClipConfig, HEAD, QUICK_GELU_WIDTH};
use crate::Result;
use crate::claims::Claims;

/// What errors call the family.
pub(super) const FAMILY: &str = "CLIP";
/// The tables of tokens and positions.
pub(super) const TOKENS: &str = "text_model.embeddings.token_embedding.weight";
pub(super) const POSITIONS: &str = "text_model.embeddings.position_embedding.weight";
/// The projection of the pooled result, and its transpose as OpenCLIP keeps it.
pub(super) const PROJECTION: &str = "text_projection.weight";
pub(super) const OPEN_PROJECTION: &str = "text_projection";

/// Who named the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// OpenAI, by way of transformers.
    Clip,
    /// OpenCLIP, with queries, keys and values in one matrix.
    OpenClip,
}

impl Names {
    pub(super) fn of(claims: &Claims<'_>) -> Names {
        if claims.find(TOKENS).is_some() { Names::Clip } else { Names::OpenClip }
    }

    /// The stored name of a tensor outside the layers.
    fn outer(self, name: &'static str) -> &'static str {
        match (self, name) {
            (Names::OpenClip, TOKENS) => "token_embedding.weight",
            (Names::OpenClip, POSITIONS) => "positional_embedding",
            (Names::OpenClip, "text_model.final_layer_norm") => "ln_final",
            (_, name) => name,
        }
    }

    /// The stored name of a module of a layer.
    fn module(self, layer: usize, module: &str) -> String {
        let stored = match module {
            _ if self == Names::Clip => return format!("text_model.encoder.layers.{layer}.{module}"),
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

pub(super) fn read_config(claims: &Claims<'_>, names: Names) -> Result<ClipConfig> {
    let [vocabulary, width] = claims.dims(names.outer(TOKENS))?;
    let [positions, _] = claims.dims(names.outer(POSITIONS))?;
    let [mlp, _] = claims.dims(&format!("{}.weight", names.module(0, "mlp.fc1")))?;
    if let Some(entry) = claims.find(names.outer(TOKENS)).filter(|_| width == 0 || width % HEAD != 0) {
        return Err(claims.wrong_shape(entry, format!("a width that is a multiple of {HEAD}")));
    }
    let layers = claims.count(|i| format!("{}.weight", names.module(i, "layer_norm1")));
    let quick = names == Names::Clip && width <= QUICK_GELU_WIDTH;
    let activation = if quick { Activation::QuickGelu } else { Activation::Gelu };
    Ok(ClipConfig { vocabulary, positions, width, mlp, layers, activation })
}

pub(super) fn manifest(claims: &Claims<'_>, config: &ClipConfig, names: Names) -> Result<Manifest> {
    let tables = vec![
        renamed(claims.weight(names.outer(TOKENS), &[config.vocabulary, config.width])?, TOKENS),
        renamed(claims.weight(names.outer(POSITIONS), &[config.positions, config.width])?, POSITIONS),
    ];
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("embeddings", true, tables);
    for i in 0..config.layers {
        builder = builder.block(format!("layers.{i}"), false, layer(claims, config, names, i)?);
    }
    let head = "text_model.final_layer_norm";
    let mut end = module(claims, names.outer(head), head, &[config.width])?;
    let square = [config.width, config.width];
    if let Some(name) = [PROJECTION, OPEN_PROJECTION].into_iter().find(|name| claims.find(name).is_some()) {
        end.push(claims.weight(name, &square)?);
    }
    Ok(builder.block("head", true, end).finish()?)
}

fn layer(claims: &Claims<'_>, config: &ClipConfig, names: Names, i: usize) -> Result<Vec<WeightSpec>> {
    let (width, mlp) = (config.width, config.mlp);
    let mut weights = Vec::new();
    let mut add = |name: &str, shape: &[usize]| -> Result<()> {
        weights.extend(module(claims, &names.module(i, name), &Names::Clip.module(i, name), shape)?);
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
            let whole = claims.weight(&names.module(i, "attn.in_proj_weight"), &[3 * width, width])?;
            let bias = claims.weight(&names.module(i, "attn.in_proj_bias"), &[3 * width])?;
            for (third, part) in parts.into_iter().enumerate() {
                let name = Names::Clip.module(i, part);
                weights.push(cut(&whole, third, [width, width].into(), format!("{name}.weight")));
                weights.push(cut(&bias, third, [width].into(), format!("{name}.bias")));
            }
        }
    }
    Ok(weights)
}

/// The weight and bias of a module, under the name that the model knows.
fn module(claims: &Claims<'_>, stored: &str, name: &str, shape: &[usize]) -> Result<Vec<WeightSpec>> {
    let specs = claims.layer(stored, shape)?;
    let rename = |spec: WeightSpec| {
        let end = spec.name[stored.len()..].to_owned();
        renamed(spec, &format!("{name}{end}"))
    };
    Ok(specs.into_iter().map(rename).collect())
}

fn renamed(spec: WeightSpec, name: &str) -> WeightSpec {
    WeightSpec { name: name.to_owned(), ..spec }
}

/// One third of the rows of a tensor.
fn cut(whole: &WeightSpec, third: usize, shape: Shape, name: String) -> WeightSpec {
    let len = whole.bytes.len() / 3;
    let bytes = whole.bytes.slice(third * len..(third + 1) * len);
    WeightSpec { name, shape, bytes, ..whole.clone() }
}
