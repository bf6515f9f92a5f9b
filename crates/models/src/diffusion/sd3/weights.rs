//! What a Stable Diffusion 3 model needs of its file, block by block in order of use, with the shape that every tensor
//! must have.

use meta::Shape;
use residency::{Manifest, WeightSpec};

use super::Config;
use super::config::{FAMILY, HEAD};
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::modulation::TIME_VALUES;
use crate::diffusion::patches::PATCH;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance(claims, config)?);
    for i in 0..config.blocks {
        builder = builder.block(format!("joint_blocks.{i}"), false, joint_block(claims, config, i)?);
    }
    Ok(builder.block("final_layer", true, exit(claims, config)?).finish()?)
}

pub(super) fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let (hidden, channels) = (config.hidden, config.channels);
    let positions = config.positions_side * config.positions_side;
    // Positions are rows of a table.
    let patches = patch_layer(claims, "x_embedder.proj", [hidden, channels])?;
    let mut table = claims.weight("pos_embed", &[1, positions, hidden])?;
    table.shape = Shape::from([positions, hidden]);
    let mut weights = patches;
    weights.push(table);
    for (name, width) in [("t_embedder", TIME_VALUES), ("y_embedder", config.pooled_width)] {
        weights.extend(claims.layer(&format!("{name}.mlp.0"), &[hidden, width])?);
        weights.extend(claims.layer(&format!("{name}.mlp.2"), &[hidden, hidden])?);
    }
    weights.extend(claims.layer("context_embedder", &[hidden, config.context_width])?);
    Ok(weights)
}

/// A layer over patches: a product is a convolution that steps from patch to patch.
pub(super) fn patch_layer(
    claims: &Claims<'_>,
    name: &str,
    [hidden, channels]: [usize; 2],
) -> Result<Vec<WeightSpec>> {
    let mut patches = claims.layer(name, &[hidden, channels, PATCH, PATCH])?;
    patches[0].shape = Shape::from([hidden, channels * PATCH * PATCH]);
    Ok(patches)
}

pub(super) fn joint_block(claims: &Claims<'_>, config: &Config, index: usize) -> Result<Vec<WeightSpec>> {
    let mut weights = Vec::new();
    for side in ["context_block", "x_block"] {
        let name = |layer: &str| format!("joint_blocks.{index}.{side}.{layer}");
        // The text of the last block is read and not changed.
        let ends = config.ends_text_at(index) && side == "context_block";
        let is_dual = side == "x_block" && index < config.dual_blocks;
        let parts = if ends {
            2
        } else if is_dual {
            9
        } else {
            6
        };
        weights.extend(claims.layer(&name("adaLN_modulation.1"), &[parts * config.hidden, config.hidden])?);
        weights.extend(attention(claims, config, &name("attn"), !ends)?);
        if is_dual {
            weights.extend(attention(claims, config, &name("attn2"), true)?);
        }
        if !ends {
            weights.extend(claims.layer(&name("mlp.fc1"), &[config.mlp, config.hidden])?);
            weights.extend(claims.layer(&name("mlp.fc2"), &[config.hidden, config.mlp])?);
        }
    }
    Ok(weights)
}

pub(super) fn attention(
    claims: &Claims<'_>,
    config: &Config,
    name: &str,
    projects: bool,
) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer(&format!("{name}.qkv"), &[3 * hidden, hidden])?;
    if config.normed_heads {
        weights.push(claims.weight(&format!("{name}.ln_q.weight"), &[HEAD])?);
        weights.push(claims.weight(&format!("{name}.ln_k.weight"), &[HEAD])?);
    }
    if projects {
        weights.extend(claims.layer(&format!("{name}.proj"), &[hidden, hidden])?);
    }
    Ok(weights)
}

fn exit(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer("final_layer.adaLN_modulation.1", &[2 * hidden, hidden])?;
    weights.extend(claims.layer("final_layer.linear", &[config.out_channels * PATCH * PATCH, hidden])?);
    Ok(weights)
}
