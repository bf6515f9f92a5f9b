//! What a FLUX.3 model needs of its file, block by block in order of use, with the shape that every tensor must have.

use residency::{Manifest, WeightSpec};

use super::LAYERS;
use super::config::{Config, FAMILY, Mode};
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::modulation::TIME_VALUES;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance(claims, config)?);
    for i in 1..=config.blocks() {
        let (_, name) = config.block(i);
        let weights = block(claims, config, &name)?;
        builder = builder.block(name, false, weights);
    }
    let hidden = config.hidden;
    let mut last = claims.layer("final_layer.image.adaLN_modulation.1", &[2 * hidden, hidden])?;
    last.extend(claims.layer("final_layer.image.linear", &[config.channels, hidden])?);
    Ok(builder.block("final_layer", true, last).finish()?)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer("emb_in.image", &[hidden, config.channels])?;
    weights.extend(claims.layer("emb_in.image_cond", &[hidden, config.looked_at_channels])?);
    weights.extend(claims.layer("txt_in", &[hidden, config.context_width])?);
    let embedders: &[&str] = if config.jumps { &["time_in", "ref_time_in"] } else { &["time_in"] };
    for name in embedders {
        let [inner, outer] = LAYERS;
        weights.extend(claims.layer(&format!("{name}.{inner}"), &[hidden, TIME_VALUES])?);
        weights.extend(claims.layer(&format!("{name}.{outer}"), &[hidden, hidden])?);
    }
    for stage in ["early_stream_modulations", "single_stream_modulations"] {
        for mode in Mode::ALL {
            weights.extend(claims.layer(&format!("{stage}.{}.lin", mode.name()), &[3 * hidden, hidden])?);
        }
    }
    Ok(weights)
}

fn block(claims: &Claims<'_>, config: &Config, block: &str) -> Result<Vec<WeightSpec>> {
    let (hidden, mlp) = (config.hidden, config.mlp);
    let mut weights = Vec::new();
    for norm in ["query_norm", "key_norm"] {
        weights.push(claims.weight(&format!("{block}.norm.{norm}.scale"), &[config.head_size])?);
    }
    for (layer, rows, columns) in [
        ("q_proj", hidden, hidden),
        ("k_proj", hidden, hidden),
        ("v_proj", hidden, hidden),
        ("attn_out", hidden, hidden),
        ("mlp_in", 2 * mlp, hidden),
        ("mlp_out", hidden, mlp),
    ] {
        weights.extend(claims.layer(&format!("{block}.{layer}"), &[rows, columns])?);
    }
    Ok(weights)
}
