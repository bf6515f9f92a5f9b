//! What a FLUX model needs of its file, block by block in order of use, with the shape that every tensor must
//! have.

use residency::{Manifest, WeightSpec};

use super::Config;
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::modulation::TIME_VALUES;
use crate::diffusion::patches::PATCH;
use crate::diffusion::stream_weights;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), super::config::FAMILY);
    builder = builder.block("in", true, entrance(claims, config)?);
    for i in 0..config.double_blocks {
        let name = format!("double_blocks.{i}");
        let weights = double_block(claims, config, &name)?;
        builder = builder.block(name, false, weights);
    }
    for i in 0..config.single_blocks {
        let name = format!("single_blocks.{i}");
        let weights = single_block(claims, config, &name)?;
        builder = builder.block(name, false, weights);
    }
    Ok(builder.block("final_layer", true, exit(claims, config)?).finish()?)
}

pub(super) fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer("img_in", &[hidden, config.in_channels * PATCH * PATCH])?;
    let mut embedders = vec![("time_in", TIME_VALUES), ("vector_in", config.pooled_width)];
    if config.guidance {
        embedders.push(("guidance_in", TIME_VALUES));
    }
    for (name, width) in embedders {
        weights.extend(claims.layer(&format!("{name}.in_layer"), &[hidden, width])?);
        weights.extend(claims.layer(&format!("{name}.out_layer"), &[hidden, hidden])?);
    }
    weights.extend(claims.layer("txt_in", &[hidden, config.context_width])?);
    Ok(weights)
}

pub(super) fn double_block(claims: &Claims<'_>, config: &Config, block: &str) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer(&format!("{block}.img_mod.lin"), &[6 * hidden, hidden])?;
    weights.extend(claims.layer(&format!("{block}.txt_mod.lin"), &[6 * hidden, hidden])?);
    weights.extend(stream_weights::double_block(claims, config.sizes(), block)?);
    Ok(weights)
}

pub(super) fn single_block(claims: &Claims<'_>, config: &Config, block: &str) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer(&format!("{block}.modulation.lin"), &[3 * hidden, hidden])?;
    weights.extend(stream_weights::single_block(claims, config.sizes(), block)?);
    Ok(weights)
}

fn exit(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer("final_layer.adaLN_modulation.1", &[2 * hidden, hidden])?;
    weights.extend(claims.layer("final_layer.linear", &[config.out_channels * PATCH * PATCH, hidden])?);
    Ok(weights)
}
