//! What a Kandinsky 5 model needs of its file, block by block in order of use, with the shape that every tensor must have.

use residency::{Manifest, WeightSpec};

use super::Config;
use super::config::FAMILY;
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::patches::PATCH;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance(claims, config)?);
    for i in 0..config.text_blocks {
        let name = format!("text_transformer_blocks.{i}");
        let weights = block(claims, config, &name, &["self_attention"])?;
        builder = builder.block(name, false, weights);
    }
    for i in 0..config.blocks {
        let name = format!("visual_transformer_blocks.{i}");
        let weights = block(claims, config, &name, &["self_attention", "cross_attention"])?;
        builder = builder.block(name, false, weights);
    }
    let (hidden, patch) = (config.hidden, config.channels * PATCH * PATCH);
    let mut exit = claims.layer("out_layer.modulation.out_layer", &[2 * hidden, config.time])?;
    exit.extend(claims.layer("out_layer.out_layer", &[patch, hidden])?);
    Ok(builder.block("out", true, exit).finish()?)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let (hidden, time) = (config.hidden, config.time);
    let patch = config.in_channels * PATCH * PATCH;
    let mut weights = claims.layer("visual_embeddings.in_layer", &[hidden, patch])?;
    weights.extend(claims.layer("time_embeddings.in_layer", &[time, hidden])?);
    weights.extend(claims.layer("time_embeddings.out_layer", &[time, time])?);
    weights.extend(claims.layer("text_embeddings.in_layer", &[hidden, config.context_width])?);
    weights.extend(claims.layer("text_embeddings.norm", &[hidden])?);
    weights.extend(claims.layer("pooled_text_embeddings.in_layer", &[time, config.pooled_width])?);
    weights.extend(claims.layer("pooled_text_embeddings.norm", &[time])?);
    Ok(weights)
}

/// A block with these attentions; each of them, and the feed-forward layers behind, are moved by three parts.
fn block(claims: &Claims<'_>, config: &Config, name: &str, attentions: &[&str]) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let modulation = if attentions.len() == 1 { "text_modulation" } else { "visual_modulation" };
    let rows = 3 * (attentions.len() + 1) * hidden;
    let mut weights = claims.layer(&format!("{name}.{modulation}.out_layer"), &[rows, config.time])?;
    for attention in attentions {
        for layer in ["to_query", "to_key", "to_value", "out_layer"] {
            weights.extend(claims.layer(&format!("{name}.{attention}.{layer}"), &[hidden, hidden])?);
        }
        for norm in ["query_norm", "key_norm"] {
            weights.push(claims.weight(&format!("{name}.{attention}.{norm}.weight"), &[config.head])?);
        }
    }
    weights.extend(claims.layer(&format!("{name}.feed_forward.in_layer"), &[config.mlp, hidden])?);
    weights.extend(claims.layer(&format!("{name}.feed_forward.out_layer"), &[hidden, config.mlp])?);
    Ok(weights)
}
