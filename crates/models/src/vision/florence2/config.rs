//! The sizes of a Florence-2 model: from its tensors, and from what is written beside them.

use super::settings::Settings;
use super::weights::{DECODER, ENCODER, stored};
use crate::claims::Claims;
use crate::detect::Layout;
use crate::{Error, Result};

/// Values per head of the vision encoder in every published model, and per group of channels.
const VISION_HEAD: usize = 32;
/// Values per head of the language model in every published model.
const TEXT_HEAD: usize = 64;
/// Places along a side of a window in every published model.
const WINDOW: usize = 12;
/// Pixels along a side of the picture in every published model.
const SIDE: usize = 768;
/// Larger pictures, windows and steps than this are a mistake.
const MAX_SIDE: usize = 1 << 14;
/// Positions of the language model are counted from here.
pub(super) const FIRST_POSITION: usize = 2;

/// The sizes of a Florence-2 model.
#[derive(Clone, Debug, PartialEq)]
pub struct Florence2Config {
    /// The stages of the vision encoder.
    pub stages: Vec<Stage>,
    /// Places along a side of a window.
    pub window: usize,
    /// Rows and columns of the tables of places.
    pub grid: (usize, usize),
    /// Pixels along a side of the picture.
    pub side: usize,
    /// Entries of the token table.
    pub vocabulary: usize,
    /// Values per token.
    pub width: usize,
    /// The encoder of the language model.
    pub encoder: Stack,
    /// The decoder of the language model.
    pub decoder: Stack,
}

/// A stage of the vision encoder: a smaller grid of places with more values each.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Values per place before it.
    pub channels_in: usize,
    /// Values per place.
    pub channels: usize,
    /// Pixels along a side of the kernel that enters the stage.
    pub kernel: usize,
    /// Its stride.
    pub stride: usize,
    /// The zeros around what it sees.
    pub padding: usize,
    /// Whether values are normalised before it and not after it.
    pub norm_first: bool,
    /// Heads of attention in windows.
    pub heads: usize,
    /// Groups of channels that attend to each other.
    pub groups: usize,
    /// Pairs of blocks.
    pub depth: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
}

/// One half of the language model.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    /// Layers.
    pub layers: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// The longest text.
    pub positions: usize,
}

/// The sizes of the model that `claims` has.
pub(super) fn read(claims: &Claims<'_>, layout: Layout, settings: &Settings) -> Result<Florence2Config> {
    if settings.text.scale_embedding {
        return Err(misfit("scale_embedding in config.json", "false", "true"));
    }
    let count = claims.count(|i| stored(layout, &format!("vision_tower.convs.{i}.conv.weight")));
    let stages = (0..count).map(|i| stage(claims, layout, settings, i)).collect::<Result<Vec<_>>>()?;
    if stages.is_empty() {
        return Err(misfit("the number of stages", "at least 1", "0"));
    }
    let [vocabulary, width] = claims.dims(&super::weights::words(claims, layout))?;
    let table =
        |name: &str| stored(layout, &format!("multi_modal_projector.image_position_embed.{name}.weight"));
    let [rows, _] = claims.dims(&table("row_embeddings"))?;
    let [columns, _] = claims.dims(&table("column_embeddings"))?;
    let text = &settings.text;
    Ok(Florence2Config {
        stages,
        window: checked("window_size", settings.vision.window_size.unwrap_or(WINDOW))?,
        grid: (rows, columns),
        side: checked("size.height", settings.side.unwrap_or(SIDE))?,
        vocabulary,
        width,
        encoder: stack(claims, layout, ENCODER, (width, text.encoder_attention_heads))?,
        decoder: stack(claims, layout, DECODER, (width, text.decoder_attention_heads))?,
    })
}

fn stage(claims: &Claims<'_>, layout: Layout, settings: &Settings, number: usize) -> Result<Stage> {
    let name = |rest: &str| stored(layout, &format!("vision_tower.convs.{number}.{rest}"));
    let [channels, channels_in, kernel, _] = claims.dims(&name("conv.weight"))?;
    let [normalised] = claims.dims(&name("norm.weight"))?;
    let block = |i: usize| format!("vision_tower.blocks.{number}.{i}.spatial_block.ffn.fc1.weight");
    let depth = claims.count(|i| stored(layout, &block(i)));
    let [mlp, _] = claims.dims(&stored(layout, &block(0)))?;
    let vision = &settings.vision;
    let of = |list: &Option<Vec<usize>>| list.as_ref().and_then(|list| list.get(number)).copied();
    let norm_first = match vision.patch_prenorm.as_ref().and_then(|list| list.get(number)) {
        Some(first) => *first,
        None => number > 0 && normalised == channels_in,
    };
    // A kernel of 7 steps by 4, one of 3 by 2.
    let stride = checked("patch_stride", of(&vision.patch_stride).unwrap_or(kernel.div_ceil(2)))?;
    let padding = of(&vision.patch_padding).unwrap_or(kernel / 2);
    let share = |what: &'static str, parts: Option<usize>| {
        let parts = parts.unwrap_or((channels / VISION_HEAD).max(1));
        if parts > 0 && channels.is_multiple_of(parts) {
            return Ok(parts);
        }
        Err(misfit(what, &format!("a divisor of {channels}"), &parts.to_string()))
    };
    Ok(Stage {
        channels_in,
        channels,
        kernel,
        stride,
        padding: padding.min(MAX_SIDE),
        norm_first,
        heads: share("num_heads in config.json", of(&vision.num_heads))?,
        groups: share("num_groups in config.json", of(&vision.num_groups))?,
        depth,
        mlp,
    })
}

fn stack(
    claims: &Claims<'_>,
    layout: Layout,
    half: &str,
    (width, heads): (usize, Option<usize>),
) -> Result<Stack> {
    let name = |rest: &str| stored(layout, &format!("language_model.{half}.{rest}"));
    let [mlp, _] = claims.dims(&name("layers.0.fc1.weight"))?;
    let [positions, _] = claims.dims(&name("embed_positions.weight"))?;
    let heads = heads.unwrap_or((width / TEXT_HEAD).max(1));
    if heads == 0 || !width.is_multiple_of(heads) {
        let expected = format!("a divisor of {width}");
        return Err(misfit("the number of attention heads in config.json", &expected, &heads.to_string()));
    }
    let positions = positions.checked_sub(FIRST_POSITION).filter(|positions| *positions > 1);
    let positions =
        positions.ok_or_else(|| misfit("the table of positions", "of 4 rows or more", "smaller"))?;
    Ok(Stack { layers: claims.count(|i| name(&format!("layers.{i}.fc1.weight"))), heads, mlp, positions })
}

fn checked(what: &'static str, size: usize) -> Result<usize> {
    if (1..=MAX_SIDE).contains(&size) {
        return Ok(size);
    }
    Err(misfit(what, &format!("from 1 to {MAX_SIDE}"), &size.to_string()))
}

fn misfit(what: &'static str, expected: &str, got: &str) -> Error {
    Error::Input { what, expected: expected.to_owned(), got: got.to_owned() }
}
