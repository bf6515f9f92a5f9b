//! The sizes of a DAT, read from the shapes of its tensors, and the weights that follow.

use residency::WeightSpec;

use super::super::exit::{Exit, convolutions};
use crate::Result;
use crate::claims::Claims;

/// What errors call the family.
pub(super) const NAME: &str = "DAT";

/// The sizes of a DAT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Channels of a picture.
    pub channels: usize,
    /// Channels between.
    pub width: usize,
    /// Values between the two products of a feed-forward.
    pub hidden: usize,
    /// The short and the long side of the windows of half of the heads; those of the others lie the other way.
    pub split: [usize; 2],
    /// Groups of blocks.
    pub groups: Vec<Group>,
    /// The way to the full size.
    pub exit: Exit,
}

/// Blocks with one convolution behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// How many.
    pub blocks: usize,
    /// Heads of their attention.
    pub heads: usize,
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let [width, channels, _, _] = claims.dims("conv_first.weight")?;
        let [hidden, _] = claims.dims("layers.0.blocks.0.ffn.fc1.weight")?;
        let mut groups = Vec::new();
        for group in 0..claims.count(|i| format!("layers.{i}.blocks.0.norm1.weight")) {
            let blocks = claims.count(|i| format!("layers.{group}.blocks.{i}.norm1.weight"));
            let half = format!("layers.{group}.blocks.0.attn.attns.0.pos.pos3.2.weight");
            let [half_heads, _] = claims.dims(&half)?;
            if !width.is_multiple_of(2 * half_heads) {
                return Err(claims.misfit(&half, format!("a number of heads that divides {width}, halved")));
            }
            groups.push(Group { blocks, heads: 2 * half_heads });
        }
        let exit = Exit::read(claims, channels)?;
        Ok(Config { channels, width, hidden, split: split(claims)?, groups, exit })
    }

    /// Whether the windows of a block are shifted.
    pub(super) fn is_shifted(group: usize, block: usize) -> bool {
        if group.is_multiple_of(2) { block % 4 == 2 } else { block.is_multiple_of(4) }
    }

    /// The weights of a group of blocks.
    pub(super) fn group_weights(&self, claims: &Claims<'_>, group: usize) -> Result<Vec<WeightSpec>> {
        let (width, hidden) = (self.width, self.hidden);
        let Group { blocks, heads } = self.groups[group];
        let mut weights = Vec::new();
        for block in 0..blocks {
            let name = format!("layers.{group}.blocks.{block}");
            let is_spatial = block % 2 == 0;
            for (layer, shape) in [
                ("norm1", &[width][..]),
                ("attn.qkv", &[3 * width, width]),
                ("attn.proj", &[width, width]),
                ("attn.dwconv.0", &[width, 1, 3, 3]),
                ("attn.channel_interaction.1", &[width / 8, width, 1, 1]),
                ("attn.channel_interaction.4", &[width, width / 8, 1, 1]),
                ("attn.spatial_interaction.0", &[width / 16, width, 1, 1]),
                ("attn.spatial_interaction.3", &[1, width / 16, 1, 1]),
                ("norm2", &[width]),
                ("ffn.fc1", &[hidden, width]),
                ("ffn.sg.norm", &[hidden / 2]),
                ("ffn.sg.conv", &[hidden / 2, 1, 3, 3]),
                ("ffn.fc2", &[width, hidden / 2]),
            ] {
                weights.extend(claims.layer(&format!("{name}.{layer}"), shape)?);
            }
            for (layer, channels) in [
                ("attn.dwconv.1", width),
                ("attn.channel_interaction.2", width / 8),
                ("attn.spatial_interaction.1", width / 16),
            ] {
                for what in ["weight", "bias", "running_mean", "running_var"] {
                    weights.push(claims.weight(&format!("{name}.{layer}.{what}"), &[channels])?);
                }
            }
            if is_spatial {
                for half in 0..2 {
                    weights.extend(position_weights(
                        claims,
                        &format!("{name}.attn.attns.{half}.pos"),
                        heads / 2,
                    )?);
                }
            } else {
                weights.push(claims.weight(&format!("{name}.attn.temperature"), &[heads, 1, 1])?);
            }
        }
        weights.extend(convolutions(claims, &format!("layers.{group}.conv"), width)?);
        Ok(weights)
    }

    /// The weights behind all groups.
    pub(super) fn exit_weights(&self, claims: &Claims<'_>) -> Result<Vec<WeightSpec>> {
        let mut weights = claims.layer("norm", &[self.width])?;
        weights.extend(convolutions(claims, "conv_after_body", self.width)?);
        weights.extend(self.exit.weights(claims, self.width, self.channels)?);
        Ok(weights)
    }
}

/// The weights that distances become scores by.
fn position_weights(claims: &Claims<'_>, name: &str, heads: usize) -> Result<Vec<WeightSpec>> {
    let [inner, _] = claims.dims(&format!("{name}.pos_proj.weight"))?;
    let mut weights = claims.layer(&format!("{name}.pos_proj"), &[inner, 2])?;
    for (step, to) in [("pos1", inner), ("pos2", inner), ("pos3", heads)] {
        weights.extend(claims.layer(&format!("{name}.{step}.0"), &[inner])?);
        weights.extend(claims.layer(&format!("{name}.{step}.2"), &[to, inner])?);
    }
    Ok(weights)
}

/// The sides of a window, from how many places it has and how many distances there are between them.
fn split(claims: &Claims<'_>) -> Result<[usize; 2]> {
    let index = "layers.0.blocks.0.attn.attns.0.relative_position_index";
    let [places, _] = claims.dims(index)?;
    let [distances, _] = claims.dims("layers.0.blocks.0.attn.attns.0.rpe_biases")?;
    let is_split = |short: &usize| {
        let long = places / short;
        short * long == places && (2 * short - 1) * (2 * long - 1) == distances
    };
    // The released models have the short side first.
    let short = (1..=places.isqrt()).find(is_split);
    short.map(|short| [short, places / short]).ok_or_else(|| {
        claims.misfit(index, format!("as many places as a rectangle with {distances} distances has"))
    })
}
