//! What a Chroma model needs of its file, block by block in order of use, with the shape that every tensor must have.

use meta::Shape;
use residency::{Manifest, WeightSpec};

use super::approximator::INPUTS;
use super::config::{Config, FAMILY, Pixels};
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
    let Some(pixels) = config.pixels else {
        let last = claims.layer("final_layer.linear", &[config.channels * PATCH * PATCH, config.hidden])?;
        return Ok(builder.block("final_layer", true, last).finish()?);
    };
    for i in 0..pixels.blocks {
        builder = builder.block(format!("nerf_blocks.{i}"), false, painting(claims, config, &pixels, i)?);
    }
    Ok(builder.block("nerf_final_layer", true, painted(claims, config, &pixels)?).finish()?)
}

/// One of the networks that paint pixels. The first has what makes values of pixels with it.
fn painting(claims: &Claims<'_>, config: &Config, pixels: &Pixels, index: usize) -> Result<Vec<WeightSpec>> {
    let (name, width) = (format!("nerf_blocks.{index}"), pixels.width);
    let mut weights =
        claims.layer(&format!("{name}.param_generator"), &[3 * width * pixels.mlp, config.hidden])?;
    weights.push(claims.weight(&format!("{name}.norm.scale"), &[width])?);
    if index == 0 {
        let columns = config.channels + pixels.waves * pixels.waves;
        weights.extend(claims.layer("nerf_image_embedder.embedder.0", &[width, columns])?);
    }
    Ok(weights)
}

/// The layer from values of pixels to colours.
fn painted(claims: &Claims<'_>, config: &Config, pixels: &Pixels) -> Result<Vec<WeightSpec>> {
    let (channels, width) = (config.channels, pixels.width);
    let (name, mut weights) = if pixels.is_convolved {
        ("nerf_final_layer_conv", claims.layer("nerf_final_layer_conv.conv", &[channels, width, 3, 3])?)
    } else {
        ("nerf_final_layer", claims.layer("nerf_final_layer.linear", &[channels, width])?)
    };
    weights.push(claims.weight(&format!("{name}.norm.scale"), &[width])?);
    Ok(weights)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let (hidden, width) = (config.hidden, config.approximator_width);
    let mut weights = match config.pixels {
        None => claims.layer("img_in", &[hidden, config.channels * PATCH * PATCH])?,
        Some(Pixels { side, .. }) => {
            let mut weights = claims.layer("img_in_patch", &[hidden, config.channels, side, side])?;
            // A convolution that steps from patch to patch is a product with patches.
            weights[0].shape = Shape::from([hidden, config.channels * side * side]);
            weights
        }
    };
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
