//! What a HunyuanVideo model needs of its file, block by block in order of use, with the shape that every tensor must have.

use meta::Shape;
use residency::{Manifest, WeightSpec};

use super::config::{Config, FAMILY, Letters};
use super::{LAYERS, refiner};
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::modulation::TIME_VALUES;
use crate::diffusion::stream_weights;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let (hidden, sizes) = (config.hidden, config.sizes());
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance(claims, config)?);
    for i in 0..config.refiner_blocks {
        let name = refiner::block_name(i);
        let weights = refiner_block(claims, config, &name)?;
        builder = builder.block(name, false, weights);
    }
    for i in 0..config.double_blocks {
        let name = format!("double_blocks.{i}");
        let mut weights = claims.layer(&format!("{name}.img_mod.lin"), &[6 * hidden, hidden])?;
        weights.extend(claims.layer(&format!("{name}.txt_mod.lin"), &[6 * hidden, hidden])?);
        weights.extend(stream_weights::double_block(claims, sizes, &name)?);
        builder = builder.block(name, false, weights);
    }
    for i in 0..config.single_blocks {
        let name = format!("single_blocks.{i}");
        let mut weights = claims.layer(&format!("{name}.modulation.lin"), &[3 * hidden, hidden])?;
        weights.extend(stream_weights::single_block(claims, sizes, &name)?);
        builder = builder.block(name, false, weights);
    }
    let mut last = claims.layer("final_layer.adaLN_modulation.1", &[2 * hidden, hidden])?;
    let rows = config.channels * config.patch * config.patch;
    last.extend(claims.layer("final_layer.linear", &[rows, hidden])?);
    Ok(builder.block("final_layer", true, last).finish()?)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let Config { hidden, in_channels, patch, context_width, .. } = *config;
    let mut weights = claims.layer("img_in.proj", &[hidden, in_channels, 1, patch, patch])?;
    // A product with patches: the convolution steps from patch to patch.
    weights[0].shape = Shape::from([hidden, in_channels * patch * patch]);
    weights.extend(claims.layer("txt_in.input_embedder", &[hidden, context_width])?);
    let mut embedders = vec![
        ("time_in", TIME_VALUES),
        ("txt_in.t_embedder", TIME_VALUES),
        ("txt_in.c_embedder", context_width),
    ];
    embedders.extend(config.pooled_width.map(|width| ("vector_in", width)));
    embedders.extend(config.guidance.then_some(("guidance_in", TIME_VALUES)));
    embedders.extend(config.jumps.then_some(("time_r_in", TIME_VALUES)));
    let [inner, outer] = LAYERS;
    for (name, width) in embedders {
        weights.extend(claims.layer(&format!("{name}.{inner}"), &[hidden, width])?);
        weights.extend(claims.layer(&format!("{name}.{outer}"), &[hidden, hidden])?);
    }
    if let Some(Letters { width, inner }) = config.letters {
        weights.extend(claims.layer("byt5_in.layernorm", &[width])?);
        weights.extend(claims.layer("byt5_in.fc1", &[inner, width])?);
        let [middle, _] = claims.dims("byt5_in.fc2.weight")?;
        weights.extend(claims.layer("byt5_in.fc2", &[middle, inner])?);
        weights.extend(claims.layer("byt5_in.fc3", &[hidden, middle])?);
    }
    if let Some(width) = config.vision_width {
        weights.extend(claims.layer("vision_in.proj.0", &[width])?);
        weights.extend(claims.layer("vision_in.proj.1", &[width, width])?);
        weights.extend(claims.layer("vision_in.proj.3", &[hidden, width])?);
        weights.extend(claims.layer("vision_in.proj.4", &[hidden])?);
    }
    if let Some(kinds) = config.kinds {
        weights.push(claims.weight("cond_type_embedding.weight", &[kinds, hidden])?);
    }
    Ok(weights)
}

fn refiner_block(claims: &Claims<'_>, config: &Config, name: &str) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let [mlp, _] = claims.dims(&format!("{name}.mlp.0.weight"))?;
    let mut weights = claims.layer(&format!("{name}.adaLN_modulation.1"), &[2 * hidden, hidden])?;
    weights.extend(claims.layer(&format!("{name}.norm1"), &[hidden])?);
    weights.extend(claims.layer(&format!("{name}.self_attn.qkv"), &[3 * hidden, hidden])?);
    weights.extend(claims.layer(&format!("{name}.self_attn.proj"), &[hidden, hidden])?);
    weights.extend(claims.layer(&format!("{name}.norm2"), &[hidden])?);
    weights.extend(claims.layer(&format!("{name}.mlp.0"), &[mlp, hidden])?);
    weights.extend(claims.layer(&format!("{name}.mlp.2"), &[hidden, mlp])?);
    Ok(weights)
}
