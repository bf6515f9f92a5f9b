//! What a vision tower needs of its file, under either of the two names that its tensors go by.

use residency::Manifest;
use tensor::Activation;

use super::{COLOURS, ClipVisionConfig, TowerKind};
use crate::Result;
use crate::claims::Claims;
use crate::clip_layers::{Names, module, renamed};

/// What errors call the family.
pub(super) const FAMILY: &str = "CLIP vision";
/// What the names of its layers begin with.
pub(super) const STACK: &str = "vision_model.encoder";
/// The first layer.
pub(super) const PATCHES: &str = "vision_model.embeddings.patch_embedding";
/// The token for the whole picture.
pub(super) const CLASS: &str = "vision_model.embeddings.class_embedding";
/// The table of positions.
pub(super) const POSITIONS: &str = "vision_model.embeddings.position_embedding.weight";
/// The norm before the layers, as the first publication spelt it.
pub(super) const FIRST_NORM: &str = "vision_model.pre_layrnorm";
/// The norm behind the layers.
pub(super) const LAST_NORM: &str = "vision_model.post_layernorm";
/// The projection of the whole picture, and its transpose as OpenCLIP keeps it.
pub(super) const PROJECTION: &str = "visual_projection.weight";
pub(super) const OPEN_PROJECTION: &str = "proj";
/// The way to a language model's tokens.
pub(super) const PROJECTOR: &str = "multi_modal_projector";

/// Towers up to this width were trained with the quick GELU.
const QUICK_GELU_WIDTH: usize = 1024;
/// The width of towers that have 12 heads; all others have 16.
const BASE_WIDTH: usize = 768;

/// The stored name of what is not in a layer.
fn outer(names: Names, name: &'static str) -> &'static str {
    match (names, name) {
        (Names::OpenClip, PATCHES) => "conv1",
        (Names::OpenClip, CLASS) => "class_embedding",
        (Names::OpenClip, POSITIONS) => "positional_embedding",
        (Names::OpenClip, FIRST_NORM) => "ln_pre",
        (Names::OpenClip, LAST_NORM) => "ln_post",
        (_, name) => name,
    }
}

/// Who named the tensors of a file.
pub(super) fn names_of(claims: &Claims<'_>) -> Names {
    if claims.find(POSITIONS).is_some() { Names::Clip } else { Names::OpenClip }
}

pub(super) fn read_config(claims: &Claims<'_>, names: Names) -> Result<ClipVisionConfig> {
    let first = format!("{}.weight", outer(names, PATCHES));
    let [width, colours, patch, _] = claims.dims(&first)?;
    let [tokens, _] = claims.dims(outer(names, POSITIONS))?;
    let [mlp, _] = claims.dims(&format!("{}.weight", names.module(STACK, 0, "mlp.fc1")))?;
    let heads = if width == BASE_WIDTH { 12 } else { 16 };
    if let Some(entry) = claims.find(&first).filter(|_| width % heads != 0 || colours != COLOURS) {
        let expected = format!("{COLOURS} colours and a width that is a multiple of {heads}");
        return Err(claims.wrong_shape(entry, expected));
    }
    let has_class = claims.find(outer(names, CLASS)).is_some();
    let kind = if has_class { TowerKind::Clip } else { TowerKind::SigLip };
    let patches = tokens - usize::from(has_class);
    let grid = patches.isqrt();
    if let Some(entry) = claims.find(outer(names, POSITIONS)).filter(|_| grid == 0 || grid * grid != patches)
    {
        return Err(claims.wrong_shape(entry, "one row for each patch of a square".to_owned()));
    }
    // One that was published looks at a picture whose last pixels fill no patch.
    let side = if kind == TowerKind::SigLip && (grid, patch) == (27, 14) { 384 } else { grid * patch };
    let activation = match kind {
        TowerKind::SigLip => Activation::GeluTanh,
        TowerKind::Clip if width <= QUICK_GELU_WIDTH => Activation::QuickGelu,
        TowerKind::Clip => Activation::Gelu,
    };
    Ok(ClipVisionConfig {
        side,
        patch,
        tokens,
        width,
        mlp,
        layers: claims.count(|i| format!("{}.weight", names.module(STACK, i, "layer_norm1"))),
        heads,
        activation,
        kind,
        projection: projection(claims)?,
        projector: projector(claims)?,
    })
}

/// Values behind the projection, whichever way it is kept.
fn projection(claims: &Claims<'_>) -> Result<Option<usize>> {
    if claims.find(PROJECTION).is_some() {
        let [values, _] = claims.dims(PROJECTION)?;
        return Ok(Some(values));
    }
    if claims.find(OPEN_PROJECTION).is_some() {
        let [_, values] = claims.dims(OPEN_PROJECTION)?;
        return Ok(Some(values));
    }
    Ok(None)
}

fn projector(claims: &Claims<'_>) -> Result<Option<usize>> {
    let name = format!("{PROJECTOR}.linear_1.weight");
    if claims.find(&name).is_none() {
        return Ok(None);
    }
    let [values, _] = claims.dims(&name)?;
    Ok(Some(values))
}

pub(super) fn manifest(claims: &Claims<'_>, config: &ClipVisionConfig, names: Names) -> Result<Manifest> {
    let ClipVisionConfig { width, patch, tokens, .. } = *config;
    let own = |name: &'static str, shape: &[usize]| module(claims, outer(names, name), name, shape);
    let mut first = own(PATCHES, &[width, COLOURS, patch, patch])?;
    first.push(renamed(claims.weight(outer(names, POSITIONS), &[tokens, width])?, POSITIONS));
    if config.kind == TowerKind::Clip {
        first.push(renamed(claims.weight(outer(names, CLASS), &[width])?, CLASS));
        first.extend(own(FIRST_NORM, &[width])?);
    }
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("embeddings", true, first);
    let stack = config.stack();
    for i in 0..config.layers {
        builder = builder.block(format!("layers.{i}"), false, stack.weights(claims, names, i)?);
    }
    let mut last = own(LAST_NORM, &[width])?;
    if let Some(values) = config.projection {
        last.push(match claims.find(PROJECTION) {
            Some(_) => claims.weight(PROJECTION, &[values, width])?,
            None => claims.weight(OPEN_PROJECTION, &[width, values])?,
        });
    }
    if let Some(values) = config.projector {
        last.extend(claims.layer(&format!("{PROJECTOR}.linear_1"), &[values, width])?);
        last.extend(claims.layer(&format!("{PROJECTOR}.linear_2"), &[values, values])?);
    }
    Ok(builder.block("head", true, last).finish()?)
}
