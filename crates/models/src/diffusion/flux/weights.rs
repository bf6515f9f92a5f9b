//! What a FLUX model needs of its file, block by block in order of use, with the shape that every tensor must
//! have and the operations that a block takes.

use residency::{Manifest, WeightSpec};

use super::{Config, PATCH, TIME_VALUES};
use crate::Result;
use crate::claims::Claims;

/// How many tokens an evaluation has; more take longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Items evaluated together.
    pub batch: usize,
    /// Tokens of the image.
    pub image: usize,
    /// Tokens of the text.
    pub text: usize,
}

pub(super) fn manifest(claims: &Claims<'_>, config: &Config, tokens: Tokens) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), super::config::FAMILY);
    builder = builder.block("in", true, flops_at_the_ends(config, tokens), entrance(claims, config)?);
    for i in 0..config.double_blocks {
        let name = format!("double_blocks.{i}");
        let weights = double_block(claims, config, &name)?;
        builder = builder.block(name, false, flops_of_double(config, tokens), weights);
    }
    for i in 0..config.single_blocks {
        let name = format!("single_blocks.{i}");
        let weights = single_block(claims, config, &name)?;
        builder = builder.block(name, false, flops_of_single(config, tokens), weights);
    }
    let exit = exit(claims, config)?;
    Ok(builder.block("final_layer", true, flops_at_the_ends(config, tokens), exit).finish()?)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
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

fn double_block(claims: &Claims<'_>, config: &Config, block: &str) -> Result<Vec<WeightSpec>> {
    let (hidden, mlp) = (config.hidden, config.mlp);
    let mut weights = Vec::new();
    for side in ["img", "txt"] {
        let name = |layer: &str| format!("{block}.{side}_{layer}");
        weights.extend(claims.layer(&name("mod.lin"), &[6 * hidden, hidden])?);
        weights.extend(claims.layer(&name("attn.qkv"), &[3 * hidden, hidden])?);
        weights.push(claims.weight(&name("attn.norm.query_norm.scale"), &[config.head_size])?);
        weights.push(claims.weight(&name("attn.norm.key_norm.scale"), &[config.head_size])?);
        weights.extend(claims.layer(&name("attn.proj"), &[hidden, hidden])?);
        weights.extend(claims.layer(&name("mlp.0"), &[mlp, hidden])?);
        weights.extend(claims.layer(&name("mlp.2"), &[hidden, mlp])?);
    }
    Ok(weights)
}

fn single_block(claims: &Claims<'_>, config: &Config, block: &str) -> Result<Vec<WeightSpec>> {
    let (hidden, mlp) = (config.hidden, config.mlp);
    let mut weights = claims.layer(&format!("{block}.modulation.lin"), &[3 * hidden, hidden])?;
    weights.extend(claims.layer(&format!("{block}.linear1"), &[3 * hidden + mlp, hidden])?);
    weights.push(claims.weight(&format!("{block}.norm.query_norm.scale"), &[config.head_size])?);
    weights.push(claims.weight(&format!("{block}.norm.key_norm.scale"), &[config.head_size])?);
    weights.extend(claims.layer(&format!("{block}.linear2"), &[hidden, hidden + mlp])?);
    Ok(weights)
}

fn exit(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer("final_layer.adaLN_modulation.1", &[2 * hidden, hidden])?;
    weights.extend(claims.layer("final_layer.linear", &[config.out_channels * PATCH * PATCH, hidden])?);
    Ok(weights)
}

/// Twice the products of one block's linear layers and of its attention.
fn flops_of_double(config: &Config, tokens: Tokens) -> u64 {
    let (h, m, l) = (config.hidden as u64, config.mlp as u64, (tokens.image + tokens.text) as u64);
    let per_token = 4 * h * h + 2 * h * m;
    tokens.batch as u64 * (2 * l * per_token + 4 * l * l * h + 2 * 12 * h * h)
}

fn flops_of_single(config: &Config, tokens: Tokens) -> u64 {
    let (h, m, l) = (config.hidden as u64, config.mlp as u64, (tokens.image + tokens.text) as u64);
    let per_token = h * (3 * h + m) + (h + m) * h;
    tokens.batch as u64 * (2 * l * per_token + 4 * l * l * h + 2 * 3 * h * h)
}

/// The larger of the two ends, which are small beside the blocks.
fn flops_at_the_ends(config: &Config, tokens: Tokens) -> u64 {
    let image = tokens.image * config.in_channels * PATCH * PATCH;
    let text = tokens.text * config.context_width;
    2 * tokens.batch as u64 * config.hidden as u64 * (image + text) as u64
}

/// The most values that are alive at a time beside the weights. In a double block that is where queries, keys and
/// values are turned, or in the feed-forward; in a single block in attention, whose result has its place beside
/// that of the feed-forward already. Where weights are unpacked it may be in a single block's largest product, or,
/// with few tokens, at the largest weight of all.
pub(super) fn working_values(config: &Config, tokens: Tokens, unpacks: bool) -> u64 {
    let (h, m) = (config.hidden as u64, config.mlp as u64);
    let all = (tokens.batch * (tokens.image + tokens.text)) as u64;
    let inputs =
        (tokens.image * config.in_channels * PATCH * PATCH + tokens.text * config.context_width) as u64;
    let mut blocks = all * (8 * h).max(7 * h + m);
    if unpacks {
        let product = all * (6 * h + m) + h * m.max(3 * h);
        let largest = all * 2 * h + h * (6 * h).max(config.context_width as u64);
        blocks = blocks.max(product).max(largest);
    }
    blocks + 2 * tokens.batch as u64 * inputs
}
