//! The sizes of a SwinIR, read from the shapes of its tensors, and the weights that follow.

use residency::WeightSpec;

use super::super::exit::{Exit, convolutions};
use super::hybrid::Hybrid;
use crate::Result;
use crate::claims::Claims;

/// What errors call the family.
pub(super) const NAME: &str = "SwinIR";

/// The side of the windows of models that restore JPEG pictures; they count colours to 255.
const JPEG_WINDOW: usize = 7;

/// The sizes of a SwinIR.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What the first convolution is called.
    pub(super) entrance: String,
    /// Channels of what goes into the first convolution.
    pub in_channels: usize,
    /// Channels of a picture that comes out.
    pub out_channels: usize,
    /// Channels between.
    pub width: usize,
    /// Values between the two products of a feed-forward.
    pub hidden: usize,
    /// The side of a window.
    pub window: usize,
    /// Groups of blocks.
    pub groups: Vec<Group>,
    /// The side of the squares of pixels that become one before the first convolution.
    pub unshuffle: usize,
    /// What 1 is counted as.
    pub range: f32,
    /// The way to the full size.
    pub exit: Exit,
    /// What a HAT has besides.
    pub hybrid: Option<Hybrid>,
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
        let is_there = |name: &str| claims.find(name).is_some();
        let unshuffled = is_there("conv_first.1.weight");
        let entrance = if unshuffled { "conv_first.1" } else { "conv_first" };
        let [width, in_channels, _, _] = claims.dims(&format!("{entrance}.weight"))?;
        let unshuffle = if unshuffled { (in_channels / 3).isqrt().max(1) } else { 1 };
        let block = "layers.0.residual_group.blocks.0";
        let [places, _] = claims.dims(&format!("{block}.attn.relative_position_bias_table"))?;
        let window = places.isqrt().div_ceil(2);
        if (2 * window - 1).pow(2) != places {
            let table = format!("{block}.attn.relative_position_bias_table");
            return Err(claims.misfit(&table, "the square of an odd number as its first dimension".into()));
        }
        let [hidden, _] = claims.dims(&format!("{block}.mlp.fc1.weight"))?;
        let out_channels = match is_there("conv_last.weight") {
            true => claims.dims::<4>("conv_last.weight")?[0],
            false => in_channels / (unshuffle * unshuffle),
        };
        let exit = Exit::read(claims, out_channels)?;
        let mut groups = Vec::new();
        for group in 0..claims.count(|i| format!("layers.{i}.residual_group.blocks.0.norm1.weight")) {
            let group = format!("layers.{group}.residual_group.blocks");
            let blocks = claims.count(|i| format!("{group}.{i}.norm1.weight"));
            let [_, heads] = claims.dims(&format!("{group}.0.attn.relative_position_bias_table"))?;
            groups.push(Group { blocks, heads });
        }
        if let Some(at) = groups.iter().position(|group| width % group.heads != 0) {
            let table = format!("layers.{at}.residual_group.blocks.0.attn.relative_position_bias_table");
            return Err(claims.misfit(&table, format!("a number of heads that divides {width}")));
        }
        let hybrid = Hybrid::read(claims, window)?;
        let range = if window == JPEG_WINDOW { 255.0 } else { 1.0 };
        let entrance = entrance.to_owned();
        let config = Config {
            entrance,
            in_channels,
            out_channels,
            width,
            hidden,
            window,
            groups,
            unshuffle,
            range,
            exit,
            hybrid,
        };
        if config.scale() == 0 {
            let first = format!("{}.weight", config.entrance);
            return Err(claims.misfit(&first, "a picture that is not halved more often than doubled".into()));
        }
        Ok(config)
    }

    /// By how much the sides of a picture grow.
    pub(super) fn scale(&self) -> usize {
        self.exit.scale() / self.unshuffle
    }

    /// The weights of a group of blocks.
    pub(super) fn group_weights(&self, claims: &Claims<'_>, group: usize) -> Result<Vec<WeightSpec>> {
        let (width, hidden) = (self.width, self.hidden);
        let Group { blocks, heads } = self.groups[group];
        let mut weights = Vec::new();
        for block in 0..blocks {
            let name = format!("layers.{group}.residual_group.blocks.{block}");
            let places = (2 * self.window - 1).pow(2);
            let table = format!("{name}.attn.relative_position_bias_table");
            weights.push(claims.weight(&table, &[places, heads])?);
            for (layer, shape) in [
                ("norm1", &[width][..]),
                ("attn.qkv", &[3 * width, width]),
                ("attn.proj", &[width, width]),
                ("norm2", &[width]),
                ("mlp.fc1", &[hidden, width]),
                ("mlp.fc2", &[width, hidden]),
            ] {
                weights.extend(claims.layer(&format!("{name}.{layer}"), shape)?);
            }
            if let Some(hybrid) = &self.hybrid {
                weights.extend(hybrid.block_weights(claims, &name, width)?);
            }
        }
        if let Some(hybrid) = &self.hybrid {
            let name = format!("layers.{group}.residual_group.overlap_attn");
            weights.extend(hybrid.group_weights(claims, &name, [width, heads, self.window])?);
        }
        weights.extend(convolutions(claims, &format!("layers.{group}.conv"), width)?);
        Ok(weights)
    }

    /// The weights behind all groups.
    pub(super) fn exit_weights(&self, claims: &Claims<'_>) -> Result<Vec<WeightSpec>> {
        let width = self.width;
        let mut weights = claims.layer("norm", &[width])?;
        weights.extend(convolutions(claims, "conv_after_body", width)?);
        weights.extend(self.exit.weights(claims, width, self.out_channels)?);
        Ok(weights)
    }
}
