//! What a Cosmos Predict 2 model needs of its file, block by block in order of use, with the shape that every tensor must
//! have.

use residency::{Manifest, WeightSpec};

use super::Config;
use super::config::FAMILY;
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::patches::PATCH;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let (hidden, patch) = (config.hidden, PATCH * PATCH);
    let mut entrance = claims.layer("x_embedder.proj.1", &[hidden, config.in_channels * patch])?;
    entrance.extend(claims.layer("t_embedder.1.linear_1", &[hidden, hidden])?);
    entrance.extend(claims.layer("t_embedder.1.linear_2", &[3 * hidden, hidden])?);
    entrance.push(claims.weight("t_embedding_norm.weight", &[hidden])?);
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance);
    for i in 0..config.blocks {
        let name = format!("blocks.{i}");
        builder = builder.block(name.clone(), false, block(claims, config, &name)?);
    }
    let mut exit = modulation(claims, config, "final_layer.adaln_modulation", 2)?;
    exit.extend(claims.layer("final_layer.linear", &[config.channels * patch, hidden])?);
    Ok(builder.block("out", true, exit).finish()?)
}

fn block(claims: &Claims<'_>, config: &Config, name: &str) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = Vec::new();
    for (attention, width) in [("self_attn", hidden), ("cross_attn", config.context_width)] {
        weights.extend(modulation(claims, config, &format!("{name}.adaln_modulation_{attention}"), 3)?);
        let layers = [("q_proj", hidden), ("k_proj", width), ("v_proj", width), ("output_proj", hidden)];
        for (layer, width) in layers {
            weights.extend(claims.layer(&format!("{name}.{attention}.{layer}"), &[hidden, width])?);
        }
        for norm in ["q_norm", "k_norm"] {
            weights.push(claims.weight(&format!("{name}.{attention}.{norm}.weight"), &[config.head])?);
        }
    }
    weights.extend(modulation(claims, config, &format!("{name}.adaln_modulation_mlp"), 3)?);
    weights.extend(claims.layer(&format!("{name}.mlp.layer1"), &[config.mlp, hidden])?);
    weights.extend(claims.layer(&format!("{name}.mlp.layer2"), &[hidden, config.mlp])?);
    Ok(weights)
}

/// The two narrow layers that move tokens by so many parts.
fn modulation(claims: &Claims<'_>, config: &Config, name: &str, parts: usize) -> Result<Vec<WeightSpec>> {
    let mut weights = claims.layer(&format!("{name}.1"), &[config.narrow, config.hidden])?;
    weights.extend(claims.layer(&format!("{name}.2"), &[parts * config.hidden, config.narrow])?);
    Ok(weights)
}
