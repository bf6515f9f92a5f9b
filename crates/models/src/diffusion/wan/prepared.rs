//! What an evaluation is given that does not change within a run, through the model's first layers once.

use residency::Lease;
use tensor::{Activation, ConvolutionShape, Tensor};

use super::config::{Audio, CAMERA_PIXELS, Camera, Vision};
use super::speech::Told;
use super::{Wan, face, wrong};
use crate::diffusion::patches::{PATCH, patchify};
use crate::diffusion::video::{VideoGrid, patchify_video};
use crate::{Probe, Result};

/// Added to the variance of features of pictures.
const VISION_EPS: f32 = 1e-5;

/// What one evaluation of the model is given. Sizes are those of the latent; a batch of one repeats.
pub struct WanInputs<'a> {
    /// The noisy latent, `[batch, channels, frames, height, width]`.
    pub latent: &'a Tensor,
    /// The time, 0 to 1000.
    pub time: f32,
    /// What the time is multiplied with for each frame of each item, or of all items alike.
    pub times: Option<Vec<f32>>,
    /// The text, `[batch or 1, tokens, width]`.
    pub context: &'a Tensor,
    /// Features of pictures, `[batch or 1, tokens, width]`.
    pub vision: Option<&'a Tensor>,
    /// Further channels beside the latent, `[batch, channels, frames, height, width]`.
    pub concat: Option<Tensor>,
    /// A picture in front of the video, `[batch or 1, channels, height, width]`.
    pub before: Option<Tensor>,
    /// Pictures behind the video, `[batch or 1, channels, frames, height, width]`.
    pub behind: Option<Tensor>,
    /// A camera's way, `[batch or 1, channels, frames, 8 · height, 8 · width]`.
    pub camera: Option<Tensor>,
    /// Videos that steer it.
    pub controls: Vec<SteeringVideo>,
    /// What is heard with each frame, those behind the video among them: `[batch or 1, frames, values]`; in a model that is
    /// told speech with each frame of the video that the latent stands for.
    pub audio: Option<Tensor>,
    /// The end of a video that this one goes on from, `[batch or 1, channels, frames, height, width]`.
    pub motion: Option<Tensor>,
    /// Poses for the frames of the video from the second on, `[batch or 1, channels, frames, height, width]`.
    pub poses: Option<Tensor>,
    /// A face for each frame of the video from the second on, as the latent's frames stand for them, values from -1 to 1:
    /// `[batch or 1, 3, frames, side, side]`.
    pub faces: Option<Tensor>,
}

/// A video that steers another.
pub struct SteeringVideo {
    /// Two latents and a mask, `[batch or 1, channels, frames, height, width]`.
    pub frames: Tensor,
    /// How much it does.
    pub strength: f32,
}

impl<'a> WanInputs<'a> {
    /// Text to video; the fields are there to be changed.
    pub fn new(latent: &'a Tensor, time: f32, context: &'a Tensor) -> WanInputs<'a> {
        WanInputs {
            latent,
            time,
            times: None,
            context,
            vision: None,
            concat: None,
            before: None,
            behind: None,
            camera: None,
            controls: Vec::new(),
            audio: None,
            motion: None,
            poses: None,
            faces: None,
        }
    }
}

/// What an evaluation is given beside its latent and time, on the device of the first block.
pub(super) struct Prepared {
    /// The text in the model's width, `[batch or 1, tokens, hidden]`.
    pub(super) text: Tensor,
    /// Features of pictures in the model's width, of a model that looks at them.
    pub(super) vision: Option<Tensor>,
    /// Further channels beside the latent.
    pub(super) concat: Option<Tensor>,
    /// The tokens of a picture in front of the video.
    pub(super) before: Option<Tensor>,
    /// The tokens of pictures behind the video, and how many those are.
    pub(super) behind: Option<Tensor>,
    pub(super) frames_behind: usize,
    /// What a camera's way adds to the video's tokens.
    pub(super) camera: Option<Tensor>,
    /// The tokens of videos that steer it, `[batch or 1, tokens, hidden]`, and their strengths, `[1, 1, 1]`.
    pub(super) controls: Vec<(Tensor, Tensor)>,
    /// The sound's tokens, `[batch or 1, frames · tokens, width]`, those of each frame in a row, and how many frames those are.
    pub(super) audio: Option<(Tensor, usize)>,
    /// What is added to the video's tokens for poses, and the tokens of faces, those of each frame in a row, with how many
    /// frames those are.
    pub(super) poses: Option<Tensor>,
    pub(super) faces: Option<(Tensor, usize)>,
    /// All of what a model is given that is told speech, but for its texts.
    pub(super) told: Option<Told>,
    /// What the time is multiplied with for each frame, of so many items one after the other.
    pub(super) times: Option<Vec<f32>>,
    pub(super) timed_items: usize,
}

impl Prepared {
    /// Everything but the latent and the time of these inputs.
    pub(super) fn new(
        wan: &Wan,
        lease: &Lease<'_>,
        inputs: &WanInputs<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Prepared> {
        let (latent, context) = (inputs.latent, inputs.context);
        let (batch, width) = (latent.dim(0), wan.config.context_width);
        let repeats = |tensor: &Tensor| tensor.dim(0) == 1 || tensor.dim(0) == batch;
        if context.rank() != 3 || context.dim(2) != width || !repeats(context) {
            return wrong("the text", format!("[{batch} or 1, tokens, {width}]"), context);
        }
        let inner =
            lease.linear_then("text_embedding.0", &lease.bring(context)?, Some(Activation::GeluTanh))?;
        let text = lease.linear("text_embedding.2", &inner)?;
        probe.show(format_args!("text_embedding"), &text);
        let mut controls = Vec::with_capacity(inputs.controls.len());
        for SteeringVideo { frames, strength } in &inputs.controls {
            let tokens = lease.linear("vace_patch_embedding", &patchify_video(&lease.bring(frames)?)?)?;
            let grid = VideoGrid::sized(frames.shape());
            probe.show_step(format_args!("vace_patch_embedding"), || super::as_volume(&tokens, &grid))?;
            controls.push((tokens, lease.lane().tensor([1, 1, 1], &[*strength])?));
        }
        if let Some(behind) = inputs.behind.as_ref().filter(|behind| behind.dim(1) != wan.config.in_channels)
        {
            let expected = format!("{} channels, as all that the model is shown", wan.config.in_channels);
            return wrong("pictures behind the video", expected, behind);
        }
        let frames = latent.dims().get(2).copied().unwrap_or(1).max(1);
        if let Some(told) = Told::new(wan, lease, inputs, probe)? {
            let times = Some(told.times(frames));
            let alone = Prepared::of_text(text, inputs);
            return Ok(Prepared { controls, times, told: Some(told), ..alone });
        }
        Ok(Prepared {
            poses: inputs.poses.as_ref().map(|poses| face::poses(wan, lease, (poses, latent))).transpose()?,
            faces: match &inputs.faces {
                None => None,
                Some(faces) => Some(face::faces(wan, lease, (faces, inputs), probe)?),
            },
            vision: vision(wan, lease, (inputs.vision, &text, batch), probe)?,
            before: match &inputs.before {
                None => None,
                Some(picture) => Some(lease.linear("ref_conv", &patchify(&lease.bring(picture)?)?)?),
            },
            behind: match &inputs.behind {
                None => None,
                Some(pictures) => {
                    Some(lease.linear("patch_embedding", &patchify_video(&lease.bring(pictures)?)?)?)
                }
            },
            frames_behind: inputs.behind.as_ref().map_or(0, |pictures| pictures.dim(2)),
            camera: inputs.camera.as_ref().map(|way| camera_tokens(wan, lease, way)).transpose()?,
            controls,
            audio: match &inputs.audio {
                None => None,
                Some(heard) => Some(audio(wan, lease, (heard, inputs), probe)?),
            },
            timed_items: inputs.times.as_ref().map_or(1, |times| times.len() / frames),
            times: inputs.times.clone(),
            ..Prepared::of_text(text, inputs)
        })
    }

    /// A text, and what stands beside the latent.
    fn of_text(text: Tensor, inputs: &WanInputs<'_>) -> Prepared {
        Prepared {
            text,
            vision: None,
            concat: inputs.concat.clone(),
            before: None,
            behind: None,
            frames_behind: 0,
            camera: None,
            controls: Vec::new(),
            audio: None,
            poses: None,
            faces: None,
            told: None,
            times: None,
            timed_items: 1,
        }
    }
}

/// Features of pictures in the model's width. A model that looks at them and has none looks at the text instead, as the
/// reference does.
fn vision(
    wan: &Wan,
    lease: &Lease<'_>,
    (given, text, batch): (Option<&Tensor>, &Tensor, usize),
    probe: &mut Probe<'_>,
) -> Result<Option<Tensor>> {
    let Some(Vision { width, positions }) = wan.config.vision else { return Ok(None) };
    let Some(features) = given else { return Ok(Some(text.clone())) };
    let repeats = features.dim(0) == 1 || features.dim(0) == batch;
    if features.rank() != 3 || features.dim(2) != width || !repeats {
        return wrong("the features of a picture", format!("[{batch} or 1, tokens, {width}]"), features);
    }
    let mut x = lease.bring(features)?;
    if let Some(most) = positions {
        let tokens = x.dim(1).min(most);
        let own = lease.lane().unpack(&lease.weight("img_emb.emb_pos")?)?;
        x = x.slice(1, 0, tokens)?.add(&own.slice(1, 0, tokens)?)?;
    }
    let normed = |name: &str, x: &Tensor| -> Result<Tensor> {
        let (weight, bias) = (lease.weight(&format!("{name}.weight"))?, lease.find(&format!("{name}.bias"))?);
        Ok(x.layer_norm(Some(&weight), bias.as_ref(), VISION_EPS)?)
    };
    let x = normed("img_emb.proj.0", &x)?;
    let x = lease.linear_then("img_emb.proj.1", &x, Some(Activation::Gelu))?;
    let x = normed("img_emb.proj.4", &lease.linear("img_emb.proj.3", &x)?)?;
    probe.show(format_args!("img_emb"), &x);
    Ok(Some(x))
}

/// What is heard as tokens: layers over all that is heard with a frame.
fn audio(
    wan: &Wan,
    lease: &Lease<'_>,
    (heard, inputs): (&Tensor, &WanInputs<'_>),
    probe: &mut Probe<'_>,
) -> Result<(Tensor, usize)> {
    let Some(audio) = wan.config.audio else {
        return wrong("a sound", "for a model that listens".into(), heard);
    };
    let Audio { heard: values, tokens, width, .. } = audio;
    let (batch, behind) = (inputs.latent.dim(0), inputs.behind.as_ref().map_or(0, |behind| behind.dim(2)));
    let frames = inputs.latent.dims().get(2).copied().unwrap_or(1) + behind;
    let repeats = heard.rank() == 3 && (heard.dim(0) == 1 || heard.dim(0) == batch);
    if !repeats || heard.dims()[1..] != [frames, values] {
        return wrong("what is heard", format!("[{batch} or 1, {frames}, {values}]"), heard);
    }
    let name = |part: &str| format!("audio_proj.audio_proj_glob_{part}.layer");
    let x = lease.linear_then(&name("1"), &lease.bring(heard)?, Some(Activation::Relu))?;
    let x = lease.linear_then(&name("2"), &x, Some(Activation::Relu))?;
    let x = lease.linear(&name("3"), &x)?.reshape([heard.dim(0), frames * tokens, width])?;
    let (weight, bias) =
        (lease.weight(&format!("{}.weight", name("norm")))?, lease.find(&format!("{}.bias", name("norm")))?);
    let x = x.layer_norm(Some(&weight), bias.as_ref(), VISION_EPS)?;
    probe.show(format_args!("audio_proj"), &x);
    Ok((x, frames))
}

/// What a camera's way adds to the tokens of a video: pixels of a latent value as channels, a convolution from patch to
/// patch, and residual blocks.
fn camera_tokens(wan: &Wan, lease: &Lease<'_>, way: &Tensor) -> Result<Tensor> {
    let Some(Camera { channels, blocks }) = wan.config.camera else {
        return wrong("a camera's way", "for a model that follows one".into(), way);
    };
    let side = CAMERA_PIXELS * PATCH;
    if way.rank() != 5 || way.dim(1) != channels || way.dim(3) < side || way.dim(4) < side {
        let expected = format!("[batch, {channels}, frames, height, width] of at least {side} pixels");
        return wrong("the camera's way", expected, way);
    }
    let (items, frames) = (way.dim(0), way.dim(2));
    let (height, width) = (way.dim(3) / CAMERA_PIXELS, way.dim(4) / CAMERA_PIXELS);
    let way = lease.bring(way)?;
    let way = way.slice(3, 0, height * CAMERA_PIXELS)?.slice(4, 0, width * CAMERA_PIXELS)?;
    let folded = way
        .reshape([items, channels, frames, height, CAMERA_PIXELS, width, CAMERA_PIXELS])?
        .permute(&[0, 2, 1, 4, 6, 3, 5])?
        .reshape([items * frames, channels * CAMERA_PIXELS * CAMERA_PIXELS, height, width])?;
    let convolution = |name: String, x: &Tensor, shape: &ConvolutionShape| -> Result<Tensor> {
        let (weight, bias) = (lease.weight(&format!("{name}.weight"))?, lease.find(&format!("{name}.bias"))?);
        Ok(x.convolution(&weight, bias.as_ref(), shape)?)
    };
    let from_patch_to_patch = ConvolutionShape::uniform(2, PATCH, 0);
    let mut x = convolution("control_adapter.conv".into(), &folded, &from_patch_to_patch)?;
    let around = ConvolutionShape::uniform(2, 1, 1);
    for i in 0..blocks {
        let name = |part: &str| format!("control_adapter.residual_blocks.{i}.{part}");
        let inner = convolution(name("conv1"), &x, &around)?.activate(Activation::Relu)?;
        x = convolution(name("conv2"), &inner, &around)?.add(&x)?;
    }
    let (hidden, places) = (x.dim(1), x.dim(2) * x.dim(3));
    let tokens = x.reshape([items, frames, hidden, places])?.permute(&[0, 1, 3, 2])?;
    Ok(tokens.reshape([items, frames * places, hidden])?)
}
