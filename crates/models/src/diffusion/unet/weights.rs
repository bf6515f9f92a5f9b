//! What a UNet needs of its file, unit by unit in order of use, with the shape that every tensor must have.

use meta::Shape;
use residency::{Manifest, WeightSpec};

use super::Config;
use super::config::{Layer, Unit};
use crate::Result;
use crate::claims::Claims;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config, family: &str) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), family).block("in", true, entrance(claims, config)?);
    for unit in &config.units {
        builder = builder.block(unit.block_name(), false, of_unit(claims, config, unit)?);
    }
    let channels = config.channels;
    let mut exit = claims.layer("out.0", &[channels])?;
    exit.extend(claims.layer("out.2", &[config.out_channels, channels, 3, 3])?);
    Ok(builder.block("out", true, exit).finish()?)
}

/// What one unit needs.
pub(super) fn of_unit(claims: &Claims<'_>, config: &Config, unit: &Unit) -> Result<Vec<WeightSpec>> {
    match unit.layer {
        Layer::Residual { from, to } => {
            let mut weights = residual(claims, config, &unit.name, [from, to])?;
            if config.has_frames {
                weights.extend(residual_over_frames(claims, config, &unit.name, to)?);
            }
            Ok(weights)
        }
        Layer::Transformer { .. } => transformer(claims, config, unit),
        Layer::Down { channels } => claims.layer(&format!("{}.op", unit.name), &[channels, channels, 3, 3]),
        Layer::Up { channels } => claims.layer(&format!("{}.conv", unit.name), &[channels, channels, 3, 3]),
    }
}

impl Unit {
    /// What plans and messages call it.
    pub(super) fn block_name(&self) -> String {
        match self.layer {
            Layer::Transformer { index, .. } => format!("{}.transformer_blocks.{index}", self.name),
            _ => self.name.clone(),
        }
    }

    /// What the names of the block over frames begin with.
    pub(super) fn frames_name(&self) -> String {
        match self.layer {
            Layer::Transformer { index, .. } => format!("{}.time_stack.{index}", self.name),
            _ => format!("{}.time_stack", self.name),
        }
    }

    /// Whether a layer begins with it.
    pub(super) fn begins_layer(&self) -> bool {
        !matches!(self.layer, Layer::Transformer { index, .. } if index > 0)
    }
}

pub(super) fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let (channels, time) = (config.channels, config.time_width);
    let mut weights = claims.layer("time_embed.0", &[time, channels])?;
    weights.extend(claims.layer("time_embed.2", &[time, time])?);
    if let Some(width) = config.vector_width {
        weights.extend(claims.layer("label_emb.0.0", &[time, width])?);
        weights.extend(claims.layer("label_emb.0.2", &[time, time])?);
    }
    weights.extend(claims.layer("input_blocks.0.0", &[channels, config.in_channels, 3, 3])?);
    Ok(weights)
}

fn residual(
    claims: &Claims<'_>,
    config: &Config,
    name: &str,
    [from, to]: [usize; 2],
) -> Result<Vec<WeightSpec>> {
    let mut weights = claims.layer(&format!("{name}.in_layers.0"), &[from])?;
    weights.extend(claims.layer(&format!("{name}.in_layers.2"), &[to, from, 3, 3])?);
    weights.extend(claims.layer(&format!("{name}.emb_layers.1"), &[to, config.time_width])?);
    weights.extend(claims.layer(&format!("{name}.out_layers.0"), &[to])?);
    weights.extend(claims.layer(&format!("{name}.out_layers.3"), &[to, to, 3, 3])?);
    if from != to {
        weights.extend(claims.layer(&format!("{name}.skip_connection"), &[to, from, 1, 1])?);
    }
    Ok(weights)
}

/// Two convolutions over frames, and how much of them counts.
fn residual_over_frames(
    claims: &Claims<'_>,
    config: &Config,
    name: &str,
    channels: usize,
) -> Result<Vec<WeightSpec>> {
    let layer = |part: &str| format!("{name}.time_stack.{part}");
    let mut weights = claims.layer(&layer("in_layers.0"), &[channels])?;
    weights.extend(claims.layer(&layer("in_layers.2"), &[channels, channels, 3, 1, 1])?);
    weights.extend(claims.layer(&layer("emb_layers.1"), &[channels, config.time_width])?);
    weights.extend(claims.layer(&layer("out_layers.0"), &[channels])?);
    weights.extend(claims.layer(&layer("out_layers.3"), &[channels, channels, 3, 1, 1])?);
    weights.push(claims.weight(&format!("{name}.time_mixer.mix_factor"), &[1])?);
    Ok(weights)
}

/// A block of a transformer; the first has the way into it, the last the way out.
fn transformer(claims: &Claims<'_>, config: &Config, unit: &Unit) -> Result<Vec<WeightSpec>> {
    let Layer::Transformer { channels, index, depth, convolved } = unit.layer else { return Ok(Vec::new()) };
    let layer = &unit.name;
    let mut weights = Vec::new();
    if index == 0 {
        weights.extend(claims.layer(&format!("{layer}.norm"), &[channels])?);
        weights.extend(projection(claims, &format!("{layer}.proj_in"), channels, convolved)?);
    }
    weights.extend(block(claims, config, &unit.block_name(), channels)?);
    if config.has_frames {
        let name = unit.frames_name();
        weights.extend(claims.layer(&format!("{name}.norm_in"), &[channels])?);
        weights.extend(feed_forward(claims, &format!("{name}.ff_in"), channels)?);
        weights.extend(block(claims, config, &name, channels)?);
        if index == 0 {
            weights.extend(claims.layer(&format!("{layer}.time_pos_embed.0"), &[4 * channels, channels])?);
            weights.extend(claims.layer(&format!("{layer}.time_pos_embed.2"), &[channels, 4 * channels])?);
            weights.push(claims.weight(&format!("{layer}.time_mixer.mix_factor"), &[1])?);
        }
    }
    if index + 1 == depth {
        weights.extend(projection(claims, &format!("{layer}.proj_out"), channels, convolved)?);
    }
    Ok(weights)
}

/// Two attentions and what each token is changed by.
fn block(claims: &Claims<'_>, config: &Config, block: &str, channels: usize) -> Result<Vec<WeightSpec>> {
    let mut weights = Vec::new();
    for (number, attention) in ["attn1", "attn2"].into_iter().enumerate() {
        let seen = if number == 0 { channels } else { config.context_width };
        weights.extend(claims.layer(&format!("{block}.norm{}", number + 1), &[channels])?);
        let name = |part: &str| format!("{block}.{attention}.{part}");
        weights.extend(claims.layer(&name("to_q"), &[channels, channels])?);
        weights.extend(claims.layer(&name("to_k"), &[channels, seen])?);
        weights.extend(claims.layer(&name("to_v"), &[channels, seen])?);
        weights.extend(claims.layer(&name("to_out.0"), &[channels, channels])?);
    }
    weights.extend(claims.layer(&format!("{block}.norm3"), &[channels])?);
    weights.extend(feed_forward(claims, &format!("{block}.ff"), channels)?);
    Ok(weights)
}

fn feed_forward(claims: &Claims<'_>, name: &str, channels: usize) -> Result<Vec<WeightSpec>> {
    let mut weights = claims.layer(&format!("{name}.net.0.proj"), &[8 * channels, channels])?;
    weights.extend(claims.layer(&format!("{name}.net.2"), &[channels, 4 * channels])?);
    Ok(weights)
}

/// A product over channels. As a convolution of single values it is one, too.
fn projection(claims: &Claims<'_>, name: &str, channels: usize, convolved: bool) -> Result<Vec<WeightSpec>> {
    if !convolved {
        return claims.layer(name, &[channels, channels]);
    }
    let mut weights = claims.layer(name, &[channels, channels, 1, 1])?;
    weights[0].shape = Shape::from([channels, channels]);
    Ok(weights)
}
