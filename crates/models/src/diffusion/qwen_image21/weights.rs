//! What a Qwen-Image 2.1 model needs of its file, block by block in order of use, with the shape that every tensor must
//! have.

use residency::{Manifest, WeightSpec};

use super::config::{Config, FAMILY};
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::modulation::TIME_VALUES;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance(claims, config)?);
    for i in 0..config.blocks {
        let name = format!("transformer_blocks.{i}");
        let weights = block(claims, config, &name)?;
        builder = builder.block(name, false, weights);
    }
    let hidden = config.hidden;
    let mut last = claims.layer("norm_out.linear", &[hidden, hidden])?;
    last.extend(claims.layer("proj_out", &[config.channels, hidden])?);
    Ok(builder.block("out", true, last).finish()?)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = vec![claims.weight("txt_in.text_norm.weight", &[config.context_width])?];
    let time = "time_text_embed.timestep_embedder";
    for (name, rows, columns) in [
        ("txt_in.in_layer", hidden, config.context_width),
        ("txt_in.out_layer", hidden, hidden),
        ("img_in", hidden, config.channels),
        (&format!("{time}.linear_1"), hidden, TIME_VALUES),
        (&format!("{time}.linear_2"), hidden, hidden),
        ("modulation.1", 4 * hidden, hidden),
    ] {
        weights.extend(claims.layer(name, &[rows, columns])?);
    }
    Ok(weights)
}

fn block(claims: &Claims<'_>, config: &Config, block: &str) -> Result<Vec<WeightSpec>> {
    let (hidden, mlp) = (config.hidden, config.mlp);
    let mut weights = Vec::new();
    for norm in ["attn.norm_q", "attn.norm_k"] {
        weights.push(claims.weight(&format!("{block}.{norm}.weight"), &[config.head_size])?);
    }
    for (layer, rows, columns) in [
        ("attn.to_q", hidden, hidden),
        ("attn.to_k", hidden, hidden),
        ("attn.to_v", hidden, hidden),
        ("attn.to_out.0", hidden, hidden),
        ("img_mlp.gate_up", 2 * mlp, hidden),
        ("img_mlp.out", hidden, mlp),
    ] {
        weights.extend(claims.layer(&format!("{block}.{layer}"), &[rows, columns])?);
    }
    Ok(weights)
}
