//! What the tower needs of its file.

use meta::Shape;
use residency::{Manifest, WeightSpec};

use super::{CUT, HEADS};
use crate::Result;
use crate::claims::Claims;

/// What errors call the family.
pub(super) const FAMILY: &str = "Qwen3-VL's tower";
const FIRST: &str = "patch_embed.proj.weight";
/// The layers of the larger towers, and those of them that the language model gets more from.
const LARGE: (usize, [usize; 3]) = (27, [8, 16, 24]);

/// The sizes of a tower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Values per patch.
    pub(super) width: usize,
    /// Inner width of the feed-forward layers.
    pub(super) mlp: usize,
    pub(super) layers: usize,
    /// The layers whose results the language model gets beside the last.
    pub(super) deep: Vec<usize>,
    /// Rows and columns of the table of places.
    pub(super) side: usize,
    /// Values per token.
    pub(super) out: usize,
}

pub(super) fn read(claims: &Claims<'_>) -> Result<Sizes> {
    let [width, channels, frames, height, columns] = claims.dims(FIRST)?;
    let fits = channels * frames * height * columns == CUT.values() && width % (4 * HEADS) == 0;
    if let Some(entry) = claims.find(FIRST).filter(|_| !fits) {
        return Err(claims.wrong_shape(entry, format!("[a multiple of {}, 3, 2, 16, 16]", 4 * HEADS)));
    }
    let [mlp, _] = claims.dims("blocks.0.mlp.linear_fc1.weight")?;
    let [out, _] = claims.dims("merger.linear_fc2.weight")?;
    let [places, _] = claims.dims("pos_embed.weight")?;
    let side = places.isqrt();
    if side * side != places {
        return Err(claims.misfit("pos_embed.weight", format!("[a square number, {width}]")));
    }
    let layers = claims.count(|i| format!("blocks.{i}.attn.qkv.weight"));
    let mergers = claims.count(|i| format!("deepstack_merger_list.{i}.norm.weight"));
    let deep = match LARGE {
        (large, deep) if layers == large && mergers == deep.len() => deep.to_vec(),
        // Evenly, the last quarter left out.
        _ => (1..=mergers).map(|i| (i * layers / (mergers + 1)).saturating_sub(1)).collect(),
    };
    Ok(Sizes { width, mlp, layers, deep, side, out })
}

pub(super) fn manifest(claims: &Claims<'_>, sizes: &Sizes) -> Result<Manifest> {
    let Sizes { width, mlp, out, layers, side, .. } = *sizes;
    let mut first = claims.layer("patch_embed.proj", &[width, 3, 2, 16, 16])?;
    // A patch is one row of values, so that its convolution is a product.
    first[0] = WeightSpec { shape: Shape::from([width, CUT.values()]), ..first[0].clone() };
    first.push(claims.weight("pos_embed.weight", &[side * side, width])?);
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("patch_embed", true, first);
    for i in 0..layers {
        let name = |module: &str| format!("blocks.{i}.{module}");
        let mut weights = norm(claims, &name("norm1"), width)?;
        weights.extend(norm(claims, &name("norm2"), width)?);
        for (module, rows, columns) in [
            ("attn.qkv", 3 * width, width),
            ("attn.proj", width, width),
            ("mlp.linear_fc1", mlp, width),
            ("mlp.linear_fc2", width, mlp),
        ] {
            weights.extend(claims.layer(&name(module), &[rows, columns])?);
        }
        if let Some(index) = sizes.deep.iter().position(|layer| *layer == i) {
            let name = format!("deepstack_merger_list.{index}");
            weights.extend(merger(claims, &name, [width, 4 * width, out])?);
        }
        builder = builder.block(format!("blocks.{i}"), false, weights);
    }
    Ok(builder.block("merger", true, merger(claims, "merger", [width, width, out])?).finish()?)
}

/// A normalisation with weight and bias.
fn norm(claims: &Claims<'_>, name: &str, width: usize) -> Result<Vec<WeightSpec>> {
    claims.layer(name, &[width])
}

/// What makes one token of four patches, of which so many values are normalised together.
fn merger(claims: &Claims<'_>, name: &str, [width, normed, out]: [usize; 3]) -> Result<Vec<WeightSpec>> {
    let mut weights = norm(claims, &format!("{name}.norm"), normed)?;
    weights.extend(claims.layer(&format!("{name}.linear_fc1"), &[4 * width, 4 * width])?);
    weights.extend(claims.layer(&format!("{name}.linear_fc2"), &[out, 4 * width])?);
    Ok(weights)
}
