//! What a Krea 2 model needs of its file, block by block in order of use, with the shape that every tensor must have.

use residency::{Manifest, WeightSpec};

use super::config::{BlockSizes, Config, FAMILY};
use super::fusion::stacks;
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::modulation::TIME_VALUES;
use crate::diffusion::patches::PATCH;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance(claims, config)?);
    for i in 0..config.blocks {
        let name = format!("blocks.{i}");
        let mut weights = block(claims, config.block(), &name)?;
        weights.push(claims.weight(&format!("{name}.mod.lin"), &[6 * config.hidden])?);
        builder = builder.block(name, false, weights);
    }
    Ok(builder.block("last", true, exit(claims, config)?).finish()?)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let (hidden, text) = (config.hidden, &config.text);
    let mut weights = claims.layer("first", &[hidden, config.channels * PATCH * PATCH])?;
    weights.extend(claims.layer("tmlp.0", &[hidden, TIME_VALUES])?);
    weights.extend(claims.layer("tmlp.2", &[hidden, hidden])?);
    weights.extend(claims.layer("tproj.1", &[6 * hidden, hidden])?);
    for name in stacks(text).into_iter().flatten() {
        weights.extend(block(claims, config.text_block(), &name)?);
    }
    weights.extend(claims.layer("txtfusion.projector", &[1, text.taps])?);
    weights.push(claims.weight("txtmlp.0.scale", &[text.width])?);
    weights.extend(claims.layer("txtmlp.1", &[hidden, text.width])?);
    weights.extend(claims.layer("txtmlp.3", &[hidden, hidden])?);
    Ok(weights)
}

/// What blocks of both kinds have.
fn block(claims: &Claims<'_>, sizes: BlockSizes, block: &str) -> Result<Vec<WeightSpec>> {
    let BlockSizes { hidden, heads, mlp } = sizes;
    let (queries, keys) = (heads.heads * heads.size, heads.groups * heads.size);
    let mut weights = Vec::new();
    for (norm, width) in [
        ("prenorm", hidden),
        ("postnorm", hidden),
        ("attn.qknorm.qnorm", heads.size),
        ("attn.qknorm.knorm", heads.size),
    ] {
        weights.push(claims.weight(&format!("{block}.{norm}.scale"), &[width])?);
    }
    for (layer, rows, columns) in [
        ("attn.wq", queries, hidden),
        ("attn.wk", keys, hidden),
        ("attn.wv", keys, hidden),
        ("attn.gate", queries, hidden),
        ("attn.wo", hidden, queries),
        ("mlp.gate", mlp, hidden),
        ("mlp.up", mlp, hidden),
        ("mlp.down", hidden, mlp),
    ] {
        weights.extend(claims.layer(&format!("{block}.{layer}"), &[rows, columns])?);
    }
    Ok(weights)
}

fn exit(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer("last.linear", &[config.channels * PATCH * PATCH, hidden])?;
    weights.push(claims.weight("last.norm.scale", &[hidden])?);
    weights.push(claims.weight("last.modulation.lin", &[2, hidden])?);
    Ok(weights)
}
