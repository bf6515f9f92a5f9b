//! What a Z-Image or Lumina 2 model needs of its file, block by block in order of use, with the shape that every tensor
//! must have.

use residency::{Manifest, WeightSpec};

use super::config::{Config, FAMILY};
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::modulation::TIME_VALUES;
use crate::diffusion::patches::PATCH;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance(claims, config)?);
    for i in 1..=config.context_refiners + config.noise_refiners + config.layers {
        let name = config.block_name(i);
        let weights = block(claims, config, &name, i > config.context_refiners)?;
        builder = builder.block(name, false, weights);
    }
    Ok(builder.block("final_layer", true, exit(claims, config)?).finish()?)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer("x_embedder", &[hidden, config.channels * PATCH * PATCH])?;
    weights.push(claims.weight("cap_embedder.0.weight", &[config.context_width])?);
    weights.extend(claims.layer("cap_embedder.1", &[hidden, config.context_width])?);
    weights.extend(claims.layer("t_embedder.mlp.0", &[config.time_inner, TIME_VALUES])?);
    weights.extend(claims.layer("t_embedder.mlp.2", &[config.time_width, config.time_inner])?);
    if config.is_filled {
        weights.push(claims.weight("x_pad_token", &[1, hidden])?);
        weights.push(claims.weight("cap_pad_token", &[1, hidden])?);
    }
    Ok(weights)
}

pub(super) fn block(
    claims: &Claims<'_>,
    config: &Config,
    block: &str,
    is_moved: bool,
) -> Result<Vec<WeightSpec>> {
    let (hidden, head) = (config.hidden, config.head_size);
    let (queries, keys) = (config.heads * head, config.groups * head);
    let name = |layer: &str| format!("{block}.{layer}");
    let mut weights = Vec::new();
    if is_moved {
        let layer = name(config.generation.modulation());
        weights.extend(claims.layer(&layer, &[4 * hidden, config.time_width])?);
    }
    for norm in ["attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"] {
        weights.push(claims.weight(&name(&format!("{norm}.weight")), &[hidden])?);
    }
    weights.extend(claims.layer(&name("attention.qkv"), &[queries + 2 * keys, hidden])?);
    weights.push(claims.weight(&name("attention.q_norm.weight"), &[head])?);
    weights.push(claims.weight(&name("attention.k_norm.weight"), &[head])?);
    weights.extend(claims.layer(&name("attention.out"), &[hidden, queries])?);
    weights.extend(claims.layer(&name("feed_forward.w1"), &[config.mlp, hidden])?);
    weights.extend(claims.layer(&name("feed_forward.w3"), &[config.mlp, hidden])?);
    weights.extend(claims.layer(&name("feed_forward.w2"), &[hidden, config.mlp])?);
    Ok(weights)
}

fn exit(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer("final_layer.adaLN_modulation.1", &[hidden, config.time_width])?;
    weights.extend(claims.layer("final_layer.linear", &[config.channels * PATCH * PATCH, hidden])?);
    Ok(weights)
}
