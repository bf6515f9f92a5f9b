//! What a FLUX.2 model needs of its file, block by block in order of use, with the shape that every tensor must have.

use residency::{Manifest, WeightSpec};

use super::LAYERS;
use super::config::{Config, FAMILY};
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::modulation::TIME_VALUES;
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
    let hidden = config.hidden;
    let mut last = claims.layer("final_layer.adaLN_modulation.1", &[2 * hidden, hidden])?;
    last.extend(claims.layer("final_layer.linear", &[config.channels, hidden])?);
    Ok(builder.block("final_layer", true, last).finish()?)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer("img_in", &[hidden, config.channels])?;
    weights.extend(claims.layer("txt_in", &[hidden, config.context_width])?);
    let embedders: &[&str] = if config.guidance { &["time_in", "guidance_in"] } else { &["time_in"] };
    for name in embedders {
        let [inner, outer] = LAYERS;
        weights.extend(claims.layer(&format!("{name}.{inner}"), &[hidden, TIME_VALUES])?);
        weights.extend(claims.layer(&format!("{name}.{outer}"), &[hidden, hidden])?);
    }
    for side in ["img", "txt"] {
        let name = format!("double_stream_modulation_{side}.lin");
        weights.extend(claims.layer(&name, &[6 * hidden, hidden])?);
    }
    weights.extend(claims.layer("single_stream_modulation.lin", &[3 * hidden, hidden])?);
    Ok(weights)
}
