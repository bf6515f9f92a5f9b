//! The sizes of a Wan model, read from the shapes of its tensors.

use super::face::Face;
use super::speech::Speech;
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::patches::PATCH;

/// What errors call the family.
pub(super) const FAMILY: &str = "Wan";
/// Values per head in every model of the family.
pub(super) const HEAD: usize = 128;
/// Pixels along one side that the camera's adapter folds into channels.
pub(super) const CAMERA_PIXELS: usize = 8;

/// The sizes of a Wan model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of the latent with what stands beside it.
    pub in_channels: usize,
    /// Channels of the latent.
    pub channels: usize,
    /// Values per token.
    pub hidden: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Width of the text's tokens.
    pub context_width: usize,
    /// Blocks.
    pub blocks: usize,
    /// What a model has that looks at features of pictures.
    pub vision: Option<Vision>,
    /// Channels of a reference picture that stands in front of the video.
    pub reference_channels: Option<usize>,
    /// What a model has that is steered by videos.
    pub control: Option<Control>,
    /// What a model has that follows a camera.
    pub camera: Option<Camera>,
    /// What a model has that listens to a sound.
    pub audio: Option<Audio>,
    /// What a model has that is told speech.
    pub speech: Option<Speech>,
    /// What a model has that sees faces.
    pub face: Option<Face>,
}

/// The layers by which a model listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audio {
    /// Values of what is heard with a frame.
    pub heard: usize,
    /// Inner width of the layers that make tokens of them.
    pub inner: usize,
    /// Tokens for a frame.
    pub tokens: usize,
    /// Values of a token.
    pub width: usize,
}

/// Features of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vision {
    /// Values per token.
    pub width: usize,
    /// Tokens with positions of their own, of models that look at two pictures.
    pub positions: Option<usize>,
}

/// Blocks beside the others, whose results are added to theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Channels of a steering video: two latents and a mask.
    pub channels: usize,
    /// Blocks.
    pub blocks: usize,
}

/// The adapter for a camera's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Camera {
    /// Channels of the way.
    pub channels: usize,
    /// Residual blocks.
    pub blocks: usize,
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let [hidden, in_channels, time, height, width] = claims.dims("patch_embedding.weight")?;
        let [_, context_width] = claims.dims("text_embedding.0.weight")?;
        let [mlp, _] = claims.dims("blocks.0.ffn.0.weight")?;
        let [rows, _] = claims.dims("head.head.weight")?;
        let wrong = |name: &str, expected: String| {
            claims.find(name).map_or(Ok(()), |entry| Err(claims.wrong_shape(entry, expected)))
        };
        if [time, height, width] != [1, PATCH, PATCH] || hidden % HEAD != 0 {
            let expected = format!("[a multiple of {HEAD}, channels, 1, {PATCH}, {PATCH}]");
            wrong("patch_embedding.weight", expected)?;
        }
        if rows % (PATCH * PATCH) != 0 || rows / (PATCH * PATCH) > in_channels {
            wrong("head.head.weight", format!("[a multiple of {}, {hidden}]", PATCH * PATCH))?;
        }
        let blocks = claims.count(|i| format!("blocks.{i}.self_attn.q.weight"));
        let control = control(claims)?;
        if control.is_some_and(|control| control.blocks == 0 || control.blocks > blocks) {
            wrong("vace_patch_embedding.weight", format!("from 1 to {blocks} blocks called vace_blocks"))?;
        }
        Ok(Config {
            in_channels,
            channels: rows / (PATCH * PATCH),
            hidden,
            heads: hidden / HEAD,
            mlp,
            context_width,
            blocks,
            vision: vision(claims)?,
            reference_channels: reference(claims)?,
            control,
            camera: camera(claims)?,
            audio: audio(claims)?,
            speech: Speech::read(claims, hidden)?,
            face: Face::read(claims, hidden)?,
        })
    }

    /// Values of a head that turn with the frame, the row and the column.
    pub(super) fn axes(&self) -> [usize; 3] {
        let side = 2 * (HEAD / 6);
        [HEAD - 2 * side, side, side]
    }

    /// After which of the blocks a block beside them comes, if one does.
    pub(super) fn control_after(&self, block: usize) -> Option<usize> {
        let Control { blocks, .. } = self.control?;
        let every = (self.blocks / blocks).max(1);
        (block.is_multiple_of(every) && block / every < blocks).then_some(block / every)
    }
}

fn vision(claims: &Claims<'_>) -> Result<Option<Vision>> {
    if claims.find("img_emb.proj.1.weight").is_none() {
        return Ok(None);
    }
    let [_, width] = claims.dims("img_emb.proj.1.weight")?;
    let positions = match claims.find("img_emb.emb_pos") {
        None => None,
        Some(_) => Some(claims.dims::<3>("img_emb.emb_pos")?[1]),
    };
    Ok(Some(Vision { width, positions }))
}

fn reference(claims: &Claims<'_>) -> Result<Option<usize>> {
    if claims.find("ref_conv.weight").is_none() {
        return Ok(None);
    }
    let [_, channels, _, _] = claims.dims("ref_conv.weight")?;
    Ok(Some(channels))
}

fn control(claims: &Claims<'_>) -> Result<Option<Control>> {
    if claims.find("vace_patch_embedding.weight").is_none() {
        return Ok(None);
    }
    let [_, channels, _, _, _] = claims.dims("vace_patch_embedding.weight")?;
    Ok(Some(Control { channels, blocks: claims.count(|i| format!("vace_blocks.{i}.self_attn.q.weight")) }))
}

fn camera(claims: &Claims<'_>) -> Result<Option<Camera>> {
    if claims.find("control_adapter.conv.weight").is_none() {
        return Ok(None);
    }
    let [_, folded, _, _] = claims.dims("control_adapter.conv.weight")?;
    let blocks = claims.count(|i| format!("control_adapter.residual_blocks.{i}.conv1.weight"));
    Ok(Some(Camera { channels: folded / (CAMERA_PIXELS * CAMERA_PIXELS), blocks }))
}

fn audio(claims: &Claims<'_>) -> Result<Option<Audio>> {
    if claims.find("audio_proj.audio_proj_glob_1.layer.weight").is_none() {
        return Ok(None);
    }
    let [inner, heard] = claims.dims("audio_proj.audio_proj_glob_1.layer.weight")?;
    let [width] = claims.dims("audio_proj.audio_proj_glob_norm.layer.weight")?;
    let [rows, _] = claims.dims("audio_proj.audio_proj_glob_3.layer.weight")?;
    if !rows.is_multiple_of(width) {
        let expected = format!("[a multiple of {width}, {inner}]");
        return Err(claims.misfit("audio_proj.audio_proj_glob_3.layer.weight", expected));
    }
    Ok(Some(Audio { heard, inner, tokens: rows / width, width }))
}
