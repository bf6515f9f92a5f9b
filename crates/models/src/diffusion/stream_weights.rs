//! The weights of blocks of two kinds ([`super::streams`]) as files have them.

use meta::Shape;
use residency::WeightSpec;

use super::streams::StreamSizes;
use crate::Result;
use crate::claims::Claims;

/// The weights of a block that keeps image and text apart, but for what moves it.
pub(super) fn double_block(claims: &Claims<'_>, sizes: StreamSizes, block: &str) -> Result<Vec<WeightSpec>> {
    let (hidden, mlp) = (sizes.hidden(), sizes.mlp);
    let mut weights = Vec::new();
    for side in ["img", "txt"] {
        let name = |layer: &str| format!("{block}.{side}_{layer}");
        weights.extend(claims.layer(&name("attn.qkv"), &[3 * hidden, hidden])?);
        weights.push(claims.weight(&name("attn.norm.query_norm.scale"), &[sizes.heads.size])?);
        weights.push(claims.weight(&name("attn.norm.key_norm.scale"), &[sizes.heads.size])?);
        weights.extend(claims.layer(&name("attn.proj"), &[hidden, hidden])?);
        weights.extend(claims.layer(&name("mlp.0"), &[sizes.mlp_rows(), hidden])?);
        weights.extend(claims.layer(&name("mlp.2"), &[hidden, mlp])?);
    }
    Ok(weights)
}

/// The weights of a block over both, but for what moves it.
pub(super) fn single_block(claims: &Claims<'_>, sizes: StreamSizes, block: &str) -> Result<Vec<WeightSpec>> {
    let (hidden, mlp) = (sizes.hidden(), sizes.mlp);
    let name = |layer: &str| format!("{block}.{layer}");
    let mut weights = claims.layer(&name("linear1"), &[3 * hidden + sizes.mlp_rows(), hidden])?;
    weights.push(claims.weight(&name("norm.query_norm.scale"), &[sizes.heads.size])?);
    weights.push(claims.weight(&name("norm.key_norm.scale"), &[sizes.heads.size])?);
    weights.extend(claims.layer(&name("linear2"), &[hidden, hidden + mlp])?);
    Ok(weights)
}

/// The blocks of a model that was released.
pub(super) struct ReleasedStreams {
    pub(super) hidden: usize,
    pub(super) head: usize,
    /// Columns of the second layer of the feed-forward.
    pub(super) mlp: usize,
    /// Rows of its first layer.
    pub(super) mlp_rows: usize,
    /// How many keep image and text apart, and how many do not.
    pub(super) blocks: [usize; 2],
    pub(super) has_bias: bool,
    /// Whether every block has modulations of its own.
    pub(super) is_modulated: bool,
}

impl ReleasedStreams {
    /// Those of the first released models of this kind, and of those that were made from them.
    pub(super) const FIRST: ReleasedStreams = ReleasedStreams {
        hidden: 3072,
        head: 128,
        mlp: 12_288,
        mlp_rows: 12_288,
        blocks: [19, 38],
        has_bias: true,
        is_modulated: true,
    };

    /// The same in a size that two processor cores can run.
    pub(super) const SMALL: ReleasedStreams = ReleasedStreams {
        hidden: 256,
        head: 64,
        mlp: 1024,
        mlp_rows: 1024,
        blocks: [4, 8],
        has_bias: true,
        is_modulated: true,
    };

    /// Adds the tensors of the blocks one after the other as in published files; of each kind at most so many.
    pub(super) fn add_blocks(&self, all: &mut Vec<(String, Shape)>, most: usize) {
        let ReleasedStreams { hidden, head, mlp, mlp_rows, blocks: [doubles, singles], has_bias, .. } = *self;
        for (block, side) in (0..doubles.min(most)).flat_map(|i| [(i, "img"), (i, "txt")]) {
            let name = |part: &str| format!("double_blocks.{block}.{side}_{part}");
            if self.is_modulated {
                linear(all, &name("mod.lin"), [6 * hidden, hidden], has_bias);
            }
            linear(all, &name("attn.qkv"), [3 * hidden, hidden], has_bias);
            linear(all, &name("attn.proj"), [hidden, hidden], has_bias);
            linear(all, &name("mlp.0"), [mlp_rows, hidden], has_bias);
            linear(all, &name("mlp.2"), [hidden, mlp], has_bias);
            add_norms(all, &name("attn.norm"), head);
        }
        for block in 0..singles.min(most) {
            let name = |part: &str| format!("single_blocks.{block}.{part}");
            if self.is_modulated {
                linear(all, &name("modulation.lin"), [3 * hidden, hidden], has_bias);
            }
            linear(all, &name("linear1"), [3 * hidden + mlp_rows, hidden], has_bias);
            linear(all, &name("linear2"), [hidden, hidden + mlp], has_bias);
            add_norms(all, &name("norm"), head);
        }
    }
}

fn add_norms(all: &mut Vec<(String, Shape)>, name: &str, head: usize) {
    for norm in ["query_norm", "key_norm"] {
        all.push((format!("{name}.{norm}.scale"), Shape::from([head])));
    }
}

/// Adds the tensors of a layer.
pub(super) fn linear(all: &mut Vec<(String, Shape)>, name: &str, shape: [usize; 2], has_bias: bool) {
    all.push((format!("{name}.weight"), Shape::from(shape)));
    if has_bias {
        all.push((format!("{name}.bias"), Shape::from([shape[0]])));
    }
}
