//! What a Mochi model needs of its file, block by block in order of use, with the shape that every tensor must have.

use meta::Shape;
use residency::{Manifest, WeightSpec};

use super::Config;
use super::config::FAMILY;
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::modulation::TIME_VALUES;
use crate::diffusion::patches::PATCH;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance(claims, config)?);
    for i in 0..config.blocks {
        let name = format!("blocks.{i}");
        let weights = block(claims, config, &name, i + 1 == config.blocks)?;
        builder = builder.block(name, false, weights);
    }
    let mut exit = claims.layer("final_layer.mod", &[2 * config.hidden, config.hidden])?;
    exit.extend(claims.layer("final_layer.linear", &[config.patch(), config.hidden])?);
    Ok(builder.block("out", true, exit).finish()?)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let (hidden, width) = (config.hidden, config.context_width);
    let mut weights = claims.layer("x_embedder.proj", &[hidden, config.channels, PATCH, PATCH])?;
    // A convolution that steps from patch to patch is a product with patches.
    weights[0].shape = Shape::from([hidden, config.patch()]);
    weights.extend(claims.layer("t_embedder.mlp.0", &[hidden, TIME_VALUES])?);
    weights.extend(claims.layer("t_embedder.mlp.2", &[hidden, hidden])?);
    weights.extend(claims.layer("t5_y_embedder.to_kv", &[2 * width, width])?);
    weights.extend(claims.layer("t5_y_embedder.to_q", &[width, width])?);
    weights.extend(claims.layer("t5_y_embedder.to_out", &[hidden, width])?);
    weights.extend(claims.layer("t5_yproj", &[config.text_hidden, width])?);
    Ok(weights)
}

fn block(claims: &Claims<'_>, config: &Config, name: &str, is_last: bool) -> Result<Vec<WeightSpec>> {
    let (hidden, text) = (config.hidden, config.text_hidden);
    let layer = |part: &str, shape: [usize; 2]| claims.layer(&format!("{name}.{part}"), &shape);
    let mut weights = layer("mod_x", [4 * hidden, hidden])?;
    weights.extend(layer("mod_y", [if is_last { text } else { 4 * text }, hidden])?);
    weights.extend(layer("attn.qkv_x", [3 * hidden, hidden])?);
    weights.extend(layer("attn.qkv_y", [3 * hidden, text])?);
    for norm in ["q_norm_x", "k_norm_x", "q_norm_y", "k_norm_y"] {
        weights.push(claims.weight(&format!("{name}.attn.{norm}.weight"), &[config.head()])?);
    }
    weights.extend(layer("attn.proj_x", [hidden, hidden])?);
    weights.extend(layer("mlp_x.w1", [2 * config.mlp[0], hidden])?);
    weights.extend(layer("mlp_x.w2", [hidden, config.mlp[0]])?);
    if !is_last {
        weights.extend(layer("attn.proj_y", [text, hidden])?);
        weights.extend(layer("mlp_y.w1", [2 * config.mlp[1], text])?);
        weights.extend(layer("mlp_y.w2", [text, config.mlp[1]])?);
    }
    Ok(weights)
}
