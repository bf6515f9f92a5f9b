//! What a Chroma model needs of its file, block by block in order of use, with the shape that every tensor must have.

use residency::{Manifest, WeightSpec};

use super::approximator::INPUTS;
use super::config::{Config, FAMILY};
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::patches::PATCH;
use crate::diffusion::stream_weights::{double_block, single_block};

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance(claims, config)?);
    for i in 0..config.double_blocks {
        let name = format!("double_blocks.{i}");
        let weights = double_block(claims, config.sizes(), &name)?;
        builder = builder.block(name, false, weights);
    }
    for i in 0..config.single_blocks {
        let name = format!("single_blocks.{i}");
        let weights = single_block(claims, config.sizes(), &name)?;
        builder = builder.block(name, false, weights);
    }
    let last = claims.layer("final_layer.linear", &[config.channels * PATCH * PATCH, config.hidden])?;
    Ok(builder.block("final_layer", true, last).finish()?)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let (hidden, width) = (config.hidden, config.approximator_width);
    let mut weights = claims.layer("img_in", &[hidden, config.channels * PATCH * PATCH])?;
    weights.extend(claims.layer("txt_in", &[hidden, config.context_width])?);
    let name = |layer: &str| format!("distilled_guidance_layer.{layer}");
    weights.extend(claims.layer(&name("in_proj"), &[width, INPUTS])?);
    for i in 0..config.approximator_layers {
        weights.push(claims.weight(&name(&format!("norms.{i}.scale")), &[width])?);
        weights.extend(claims.layer(&name(&format!("layers.{i}.in_layer")), &[width, width])?);
        weights.extend(claims.layer(&name(&format!("layers.{i}.out_layer")), &[width, width])?);
    }
    weights.extend(claims.layer(&name("out_proj"), &[hidden, width])?);
    Ok(weights)
}
