//! What the tower needs of its file.

use meta::Shape;
use residency::{Manifest, WeightSpec};

use super::{CUT, HEAD};
use crate::Result;
use crate::claims::Claims;

/// What errors call the family.
pub(super) const FAMILY: &str = "Qwen2.5-VL's tower";
const FIRST: &str = "patch_embed.proj.weight";

/// The sizes of a tower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Values per patch.
    pub(super) width: usize,
    /// Inner width of the feed-forward layers.
    pub(super) mlp: usize,
    pub(super) layers: usize,
    /// Values per token.
    pub(super) out: usize,
}

pub(super) fn read(claims: &Claims<'_>) -> Result<Sizes> {
    let [width, channels, frames, height, columns] = claims.dims(FIRST)?;
    let fits = channels * frames * height * columns == CUT.values() && width % HEAD == 0;
    if let Some(entry) = claims.find(FIRST).filter(|_| !fits) {
        return Err(claims.wrong_shape(entry, format!("[a multiple of {HEAD}, 3, 2, 14, 14]")));
    }
    let [mlp, _] = claims.dims("blocks.0.mlp.gate_proj.weight")?;
    let [out, _] = claims.dims("merger.mlp.2.weight")?;
    Ok(Sizes { width, mlp, layers: claims.count(|i| format!("blocks.{i}.attn.qkv.weight")), out })
}

pub(super) fn manifest(claims: &Claims<'_>, sizes: &Sizes) -> Result<Manifest> {
    let Sizes { width, mlp, out, layers } = *sizes;
    let first = claims.weight(FIRST, &[width, 3, 2, 14, 14])?;
    // A patch is one row of values, so that its convolution is a product.
    let first = WeightSpec { shape: Shape::from([width, CUT.values()]), ..first };
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("patch_embed", true, vec![first]);
    for i in 0..layers {
        let name = |module: &str| format!("blocks.{i}.{module}");
        let mut weights = vec![
            claims.weight(&name("norm1.weight"), &[width])?,
            claims.weight(&name("norm2.weight"), &[width])?,
        ];
        for (module, rows, columns) in [
            ("attn.qkv", 3 * width, width),
            ("attn.proj", width, width),
            ("mlp.gate_proj", mlp, width),
            ("mlp.up_proj", mlp, width),
            ("mlp.down_proj", width, mlp),
        ] {
            weights.extend(claims.layer(&name(module), &[rows, columns])?);
        }
        builder = builder.block(format!("blocks.{i}"), false, weights);
    }
    let mut head = vec![claims.weight("merger.ln_q.weight", &[width])?];
    head.extend(claims.layer("merger.mlp.0", &[4 * width, 4 * width])?);
    head.extend(claims.layer("merger.mlp.2", &[out, 4 * width])?);
    Ok(builder.block("merger", true, head).finish()?)
}
