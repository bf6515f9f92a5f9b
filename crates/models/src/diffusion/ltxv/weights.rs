//! What an LTX-Video model needs of its file, block by block in order of use, with the shape that every tensor must have.

use meta::Shape;
use residency::{Manifest, WeightSpec};

use super::Config;
use super::config::FAMILY;
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::modulation::TIME_VALUES;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance(claims, config)?);
    for i in 0..config.blocks {
        let name = format!("transformer_blocks.{i}");
        builder = builder.block(name.clone(), false, block(claims, config, &name)?);
    }
    let mut exit = vec![table(claims, "scale_shift_table", 2, config.hidden)?];
    exit.extend(claims.layer("proj_out", &[config.channels, config.hidden])?);
    Ok(builder.block("out", true, exit).finish()?)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer("patchify_proj", &[hidden, config.channels])?;
    let time = "adaln_single.emb.timestep_embedder";
    weights.extend(claims.layer(&format!("{time}.linear_1"), &[hidden, TIME_VALUES])?);
    weights.extend(claims.layer(&format!("{time}.linear_2"), &[hidden, hidden])?);
    weights.extend(claims.layer("adaln_single.linear", &[6 * hidden, hidden])?);
    weights.extend(claims.layer("caption_projection.linear_1", &[hidden, config.context_width])?);
    weights.extend(claims.layer("caption_projection.linear_2", &[hidden, hidden])?);
    Ok(weights)
}

fn block(claims: &Claims<'_>, config: &Config, name: &str) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = vec![table(claims, &format!("{name}.scale_shift_table"), 6, hidden)?];
    for part in ["attn1", "attn2"] {
        for layer in ["to_q", "to_k", "to_v", "to_out.0"] {
            weights.extend(claims.layer(&format!("{name}.{part}.{layer}"), &[hidden, hidden])?);
        }
        for norm in ["q_norm", "k_norm"] {
            weights.push(claims.weight(&format!("{name}.{part}.{norm}.weight"), &[hidden])?);
        }
    }
    weights.extend(claims.layer(&format!("{name}.ff.net.0.proj"), &[config.mlp, hidden])?);
    weights.extend(claims.layer(&format!("{name}.ff.net.2"), &[hidden, config.mlp])?);
    Ok(weights)
}

/// What is added to a block's modulations, in a row.
fn table(claims: &Claims<'_>, name: &str, parts: usize, hidden: usize) -> Result<WeightSpec> {
    let mut weight = claims.weight(name, &[parts, hidden])?;
    weight.shape = Shape::from([parts * hidden]);
    Ok(weight)
}
