//! What a Qwen-Image model needs of its file, block by block in order of use, with the shape that every tensor must have.

use residency::{Manifest, WeightSpec};

use super::config::{Config, FAMILY};
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::modulation::TIME_VALUES;
use crate::diffusion::patches::PATCH;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance(claims, config)?);
    for i in 0..config.blocks {
        let name = format!("transformer_blocks.{i}");
        let weights = block(claims, config, &name)?;
        builder = builder.block(name, false, weights);
    }
    Ok(builder.block("out", true, exit(claims, config)?).finish()?)
}

pub(super) fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer("img_in", &[hidden, config.channels * PATCH * PATCH])?;
    let time = "time_text_embed.timestep_embedder";
    weights.extend(claims.layer(&format!("{time}.linear_1"), &[hidden, TIME_VALUES])?);
    weights.extend(claims.layer(&format!("{time}.linear_2"), &[hidden, hidden])?);
    if config.is_layered {
        weights.push(claims.weight("time_text_embed.addition_t_embedding.weight", &[2, hidden])?);
    }
    weights.push(claims.weight("txt_norm.weight", &[config.context_width])?);
    weights.extend(claims.layer("txt_in", &[hidden, config.context_width])?);
    Ok(weights)
}

pub(super) fn block(claims: &Claims<'_>, config: &Config, block: &str) -> Result<Vec<WeightSpec>> {
    let (hidden, mlp) = (config.hidden, config.mlp);
    let name = |layer: &str| format!("{block}.{layer}");
    let mut weights = Vec::new();
    let sides = [
        ("img", ["to_q", "to_k", "to_v"], ["norm_q", "norm_k"], "to_out.0"),
        ("txt", ["add_q_proj", "add_k_proj", "add_v_proj"], ["norm_added_q", "norm_added_k"], "to_add_out"),
    ];
    for (side, heads, norms, out) in sides {
        weights.extend(claims.layer(&name(&format!("{side}_mod.1")), &[6 * hidden, hidden])?);
        for layer in heads.into_iter().chain([out]) {
            weights.extend(claims.layer(&name(&format!("attn.{layer}")), &[hidden, hidden])?);
        }
        for norm in norms {
            weights.push(claims.weight(&name(&format!("attn.{norm}.weight")), &[config.head_size])?);
        }
        weights.extend(claims.layer(&name(&format!("{side}_mlp.net.0.proj")), &[mlp, hidden])?);
        weights.extend(claims.layer(&name(&format!("{side}_mlp.net.2")), &[hidden, mlp])?);
    }
    Ok(weights)
}

fn exit(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer("norm_out.linear", &[2 * hidden, hidden])?;
    weights.extend(claims.layer("proj_out", &[config.channels * PATCH * PATCH, hidden])?);
    Ok(weights)
}
