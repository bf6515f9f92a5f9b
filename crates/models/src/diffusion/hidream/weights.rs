//! What a HiDream model needs of its file, block by block in order of use, with the shape that every tensor must have.

use residency::{Manifest, WeightSpec};

use super::config::{Config, FAMILY};
use super::experts::EXPERTS;
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::BlockGroup;
use crate::diffusion::modulation::TIME_VALUES;
use crate::diffusion::patches::PATCH;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance(claims, config)?);
    for i in 1..=config.blocks() {
        let weights = block(claims, config, i)?;
        builder = builder.block(config.block_name(i), false, weights);
    }
    let hidden = config.hidden;
    let mut last = claims.layer("final_layer.adaLN_modulation.1", &[2 * hidden, hidden])?;
    last.extend(claims.layer("final_layer.linear", &[config.channels * PATCH * PATCH, hidden])?);
    Ok(builder.block("final_layer", true, last).finish()?)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer("x_embedder.proj", &[hidden, config.channels * PATCH * PATCH])?;
    let embedders =
        [("t_embedder.timestep_embedder", TIME_VALUES), ("p_embedder.pooled_embedder", config.pooled_width)];
    for (name, width) in embedders {
        weights.extend(claims.layer(&format!("{name}.linear_1"), &[hidden, width])?);
        weights.extend(claims.layer(&format!("{name}.linear_2"), &[hidden, hidden])?);
    }
    // What the text begins with: T5's tokens, and the last state of the language model.
    let blocks = config.blocks();
    weights.extend(projection(claims, config, blocks, config.context_width)?);
    weights.extend(projection(claims, config, blocks - 1, config.state_width)?);
    Ok(weights)
}

fn projection(claims: &Claims<'_>, config: &Config, index: usize, width: usize) -> Result<Vec<WeightSpec>> {
    claims.layer(&format!("caption_projection.{index}.linear"), &[config.hidden, width])
}

fn block(claims: &Claims<'_>, config: &Config, block: usize) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let block_name = config.block_name(block);
    let name = |layer: &str| format!("{block_name}.{layer}");
    let is_double = config.kind_of(block).0 == BlockGroup::Double;
    let mut weights = Vec::new();
    if block < config.blocks() {
        weights.extend(projection(claims, config, block - 1, config.state_width)?);
    }
    let parts = if is_double { 12 } else { 6 };
    weights.extend(claims.layer(&name("adaLN_modulation.1"), &[parts * hidden, hidden])?);
    let sides: &[&str] = if is_double { &["", "_t"] } else { &[""] };
    for side in sides {
        for layer in ["to_q", "to_k", "to_v", "to_out"] {
            weights.extend(claims.layer(&name(&format!("attn1.{layer}{side}")), &[hidden, hidden])?);
        }
        for norm in ["q_rms_norm", "k_rms_norm"] {
            weights.push(claims.weight(&name(&format!("attn1.{norm}{side}.weight")), &[hidden])?);
        }
    }
    weights.extend(claims.layer(&name("ff_i.gate"), &[EXPERTS, hidden])?);
    weights.extend(feed_forward(claims, &name("ff_i.shared_experts"), [hidden, config.shared])?);
    for i in 0..EXPERTS {
        weights.extend(feed_forward(claims, &name(&format!("ff_i.experts.{i}")), [hidden, config.expert])?);
    }
    if is_double {
        weights.extend(feed_forward(claims, &name("ff_t"), [hidden, config.expert])?);
    }
    Ok(weights)
}

fn feed_forward(claims: &Claims<'_>, name: &str, [hidden, inner]: [usize; 2]) -> Result<Vec<WeightSpec>> {
    let mut weights = claims.layer(&format!("{name}.w1"), &[inner, hidden])?;
    weights.extend(claims.layer(&format!("{name}.w3"), &[inner, hidden])?);
    weights.extend(claims.layer(&format!("{name}.w2"), &[hidden, inner])?);
    Ok(weights)
}
