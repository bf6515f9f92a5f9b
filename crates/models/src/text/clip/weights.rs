//! What a CLIP text model needs of its file, under either of the two names that its tensors go by.

use residency::Manifest;
use tensor::Activation;

use super::{ClipConfig, HEAD, QUICK_GELU_WIDTH};
use crate::Result;
use crate::claims::Claims;
use crate::clip_layers::{Names, module, renamed};

/// What errors call the family.
pub(super) const FAMILY: &str = "CLIP";
/// What the names of its layers begin with.
pub(super) const STACK: &str = "text_model.encoder";
/// The tables of tokens and positions.
pub(super) const TOKENS: &str = "text_model.embeddings.token_embedding.weight";
pub(super) const POSITIONS: &str = "text_model.embeddings.position_embedding.weight";
/// The projection of the pooled result, and its transpose as OpenCLIP keeps it.
pub(super) const PROJECTION: &str = "text_projection.weight";
pub(super) const OPEN_PROJECTION: &str = "text_projection";

/// The stored name of a tensor outside the layers.
fn outer(names: Names, name: &'static str) -> &'static str {
    match (names, name) {
        (Names::OpenClip, TOKENS) => "token_embedding.weight",
        (Names::OpenClip, POSITIONS) => "positional_embedding",
        (Names::OpenClip, "text_model.final_layer_norm") => "ln_final",
        (_, name) => name,
    }
}

/// Who named the tensors of a file.
pub(super) fn names_of(claims: &Claims<'_>) -> Names {
    if claims.find(TOKENS).is_some() { Names::Clip } else { Names::OpenClip }
}

pub(super) fn read_config(claims: &Claims<'_>, names: Names) -> Result<ClipConfig> {
    let [vocabulary, width] = claims.dims(outer(names, TOKENS))?;
    let [positions, _] = claims.dims(outer(names, POSITIONS))?;
    let [mlp, _] = claims.dims(&format!("{}.weight", names.module(STACK, 0, "mlp.fc1")))?;
    if let Some(entry) = claims.find(outer(names, TOKENS)).filter(|_| width == 0 || width % HEAD != 0) {
        return Err(claims.wrong_shape(entry, format!("a width that is a multiple of {HEAD}")));
    }
    let layers = claims.count(|i| format!("{}.weight", names.module(STACK, i, "layer_norm1")));
    let quick = names == Names::Clip && width <= QUICK_GELU_WIDTH;
    let activation = if quick { Activation::QuickGelu } else { Activation::Gelu };
    Ok(ClipConfig { vocabulary, positions, width, mlp, layers, activation })
}

pub(super) fn manifest(claims: &Claims<'_>, config: &ClipConfig, names: Names) -> Result<Manifest> {
    let tables = vec![
        renamed(claims.weight(outer(names, TOKENS), &[config.vocabulary, config.width])?, TOKENS),
        renamed(claims.weight(outer(names, POSITIONS), &[config.positions, config.width])?, POSITIONS),
    ];
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("embeddings", true, tables);
    let stack = config.stack();
    for i in 0..config.layers {
        builder = builder.block(format!("layers.{i}"), false, stack.weights(claims, names, i)?);
    }
    let head = "text_model.final_layer_norm";
    let mut end = module(claims, outer(names, head), head, &[config.width])?;
    let square = [config.width, config.width];
    if let Some(name) = [PROJECTION, OPEN_PROJECTION].into_iter().find(|name| claims.find(name).is_some()) {
        end.push(claims.weight(name, &square)?);
    }
    Ok(builder.block("head", true, end).finish()?)
}
