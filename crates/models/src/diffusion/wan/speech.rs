//! What Wan 2.2 S2V has of its own: a sound through layers that look back in time, told to the video's tokens behind some of
//! the blocks; a video that steers it; and, behind the video, a picture and the end of the video that it goes on from, in
//! patches that grow with their distance.

use residency::{Lease, WeightSpec};
use tensor::{Activation, ConvolutionShape, Mask, Padding, Tensor, Window};

use super::config::{Config, HEAD};
use super::prepared::WanInputs;
use super::{Wan, wrong};
use crate::claims::Claims;
use crate::diffusion::batches::together;
use crate::diffusion::modulation::Everywhere;
use crate::diffusion::patches::PATCH;
use crate::diffusion::rotary::Places;
use crate::diffusion::timed_change::NORM_EPS;
use crate::diffusion::video::{VideoGrid, patchify_video};
use crate::{Probe, Result};

/// The blocks behind which the released model is told the sound.
const TOLD_BEHIND: [usize; 12] = [0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39];
/// Frames of the video for each of the latent.
const FRAMES: usize = 4;
/// Moments that a kernel looks at, and its step in each of the three layers.
const KERNEL: usize = 3;
const STEPS: [usize; 3] = [1, 2, 2];
/// Added to the variance where the sound's global token moves the video's tokens.
const MOVED_EPS: f32 = 1e-5;
/// What frames and pictures are told apart by: rows of a table.
const VIDEO: usize = 0;
const PICTURE: usize = 1;
const MOTION: usize = 2;
/// How far behind the video a picture stands at least: from its start, and from its end.
const PICTURE_AT: usize = 30;
const PICTURE_BEHIND: usize = 9;
/// Frames of the latent that a video goes on from, the latest last: how many are packed alike, how many values of a frame
/// and of each side go into one token, and how far before the video they begin.
const PACKS: [Pack; 3] = [
    Pack { layer: "proj", frames: 1, time: 1, side: PATCH, start: -1.0 },
    Pack { layer: "proj_2x", frames: 2, time: 2, side: 2 * PATCH, start: -3.0 },
    Pack { layer: "proj_4x", frames: 16, time: 4, side: 4 * PATCH, start: -19.0 },
];
/// Times of frames that are packed.
const PACKED_TIMES: usize = 3;

struct Pack {
    layer: &'static str,
    frames: usize,
    time: usize,
    side: usize,
    start: f64,
}

/// Frames that a video goes on from.
pub(super) const MOTION_FRAMES: usize = 19;

/// The layers by which a model is told speech.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speech {
    /// Layers of the encoder that listens, what comes out of the last among them.
    pub layers: usize,
    /// Values of each for a moment.
    pub width: usize,
    /// Tokens for a frame, beside one that all frames have.
    pub tokens: usize,
    /// How many blocks are told.
    pub told: usize,
}

impl Speech {
    pub(super) fn read(claims: &Claims<'_>, hidden: usize) -> Result<Option<Speech>> {
        if claims.find("casual_audio_encoder.encoder.final_linear.weight").is_none() {
            return Ok(None);
        }
        let [_, layers, _, _] = claims.dims("casual_audio_encoder.weights")?;
        let name = "casual_audio_encoder.encoder.conv1_local.conv.weight";
        let [rows, width, _] = claims.dims(name)?;
        if !hidden.is_multiple_of(4) || !rows.is_multiple_of(hidden / 4) {
            return Err(claims.misfit(name, format!("[a multiple of {}, {width}, {KERNEL}]", hidden / 4)));
        }
        let told = claims.count(|i| format!("audio_injector.injector.{i}.q.weight"));
        Ok(Some(Speech { layers, width, tokens: rows / (hidden / 4), told }))
    }

    /// Which of the layers that tell comes behind a block, if one does.
    pub(super) fn told_behind(self, block: usize) -> Option<usize> {
        TOLD_BEHIND.iter().take(self.told).position(|behind| *behind == block)
    }

    /// Values that are heard with a frame of the video.
    pub(super) fn heard(self) -> usize {
        self.layers * self.width
    }

    /// What the entrance of the model needs.
    pub(super) fn entrance(self, claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
        let hidden = config.hidden;
        let encoder = |part: &str| format!("casual_audio_encoder.encoder.{part}");
        let mut weights = vec![
            claims.weight("trainable_cond_mask.weight", &[3, hidden])?,
            claims.weight("casual_audio_encoder.weights", &[1, self.layers, 1, 1])?,
            claims.weight(&encoder("padding_tokens"), &[1, 1, 1, hidden])?,
        ];
        for (name, to, from) in [
            ("conv1_local", hidden / 4 * self.tokens, self.width),
            ("conv1_global", hidden / 4, self.width),
            ("conv2", hidden / 2, hidden / 4),
            ("conv3", hidden, hidden / 2),
        ] {
            weights.extend(claims.layer(&format!("{}.conv", encoder(name)), &[to, from, KERNEL])?);
        }
        weights.extend(claims.layer(&encoder("final_linear"), &[hidden, hidden])?);
        for Pack { layer, time, side, .. } in PACKS {
            let shape = [hidden, config.channels, time, side, side];
            weights.extend(claims.layer(&format!("frame_packer.{layer}"), &shape)?);
        }
        Ok(weights)
    }

    /// What a block that is told needs more.
    pub(super) fn block(self, claims: &Claims<'_>, hidden: usize, block: usize) -> Result<Vec<WeightSpec>> {
        let Some(index) = self.told_behind(block) else { return Ok(Vec::new()) };
        let name = format!("audio_injector.injector.{index}");
        let mut weights = Vec::new();
        for layer in ["q", "k", "v", "o"] {
            weights.extend(claims.layer(&format!("{name}.{layer}"), &[hidden, hidden])?);
        }
        for norm in ["norm_q", "norm_k"] {
            weights.push(claims.weight(&format!("{name}.{norm}.weight"), &[hidden])?);
        }
        let moved = format!("audio_injector.injector_adain_layers.{index}.linear");
        weights.extend(claims.layer(&moved, &[2 * hidden, hidden])?);
        Ok(weights)
    }
}

/// What is given to such a model, on the device of its first block.
pub(super) struct Told {
    /// Added to the video's tokens, `[1 or batch, tokens, hidden]`.
    pub(super) added: Tensor,
    /// What stands behind the video, `[1 or batch, tokens, hidden]`.
    pub(super) behind: Option<Tensor>,
    /// Frames of a picture among it, and whether the end of a video is.
    pub(super) picture_frames: usize,
    pub(super) has_motion: bool,
    /// The sound: tokens of each frame `[1 or batch, frames · tokens, hidden]`, and one that moves all of its tokens
    /// `[1 or batch, frames, hidden]`.
    pub(super) sound: Option<[Tensor; 2]>,
}

impl Told {
    pub(super) fn new(
        wan: &Wan,
        lease: &Lease<'_>,
        inputs: &WanInputs<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Option<Told>> {
        let Some(speech) = wan.config.speech else { return Ok(None) };
        let kinds = lease.lane().unpack(&lease.weight("trainable_cond_mask.weight")?)?;
        let kind = |row: usize| -> Result<Tensor> {
            Ok(kinds.slice(0, row, 1)?.reshape([1, 1, wan.config.hidden])?)
        };
        let mut added = kind(VIDEO)?;
        if let Some(steering) = &inputs.concat {
            added = lease.linear("cond_encoder", &patchify_video(&lease.bring(steering)?)?)?.add(&added)?;
        }
        let mut behind = Vec::new();
        if let Some(picture) = &inputs.behind {
            let tokens = lease.linear("patch_embedding", &patchify_video(&lease.bring(picture)?)?)?;
            behind.push(tokens.add(&kind(PICTURE)?)?);
        }
        if let Some(motion) = &inputs.motion {
            let motion = lease.bring(motion)?;
            let mut end = motion.dim(2);
            for pack in PACKS {
                end -= pack.frames;
                let frames = motion.slice(2, end, pack.frames)?.contiguous()?;
                if frames.dim(3) >= pack.side && frames.dim(4) >= pack.side {
                    behind.push(pack.tokens(lease, &frames)?.add(&kind(MOTION)?)?);
                }
            }
        }
        let rows = behind.iter().map(|part| part.dim(0)).max().unwrap_or(1);
        let each = |part: &Tensor| part.broadcast([rows, part.dim(1), part.dim(2)]);
        let behind = behind.iter().map(each).collect::<Result<Vec<_>, _>>()?;
        Ok(Some(Told {
            added,
            behind: match behind.as_slice() {
                [] => None,
                parts => Some(together(&parts.iter().collect::<Vec<_>>(), 1)?),
            },
            picture_frames: inputs.behind.as_ref().map_or(0, |picture| picture.dim(2)),
            has_motion: inputs.motion.is_some(),
            sound: match &inputs.audio {
                None => None,
                Some(heard) => Some(sound(wan, lease, (speech, heard, inputs), probe)?),
            },
        }))
    }

    /// What the time is multiplied with, entry by entry: one for the video's frames, nothing for what stands behind them.
    pub(super) fn times(&self, frames: usize) -> Vec<f32> {
        let mut times = vec![1.0; frames];
        times.resize(frames + self.picture_frames, 0.0);
        if self.has_motion {
            times = times.iter().flat_map(|time| [*time; 2]).collect();
            times.resize(times.len() + PACKED_TIMES, 0.0);
        }
        times
    }
}

impl Pack {
    /// Frames `[items, channels, frames, height, width]` in patches through their layer; what is left over is left out.
    fn tokens(&self, lease: &Lease<'_>, frames: &Tensor) -> Result<Tensor> {
        let name = format!("frame_packer.{}", self.layer);
        let (weight, bias) = (lease.weight(&format!("{name}.weight"))?, lease.find(&format!("{name}.bias"))?);
        let window = |stride: usize| Window { stride, ..Window::padded(0) };
        let window = vec![window(self.time), window(self.side), window(self.side)];
        let shape = ConvolutionShape { window, padding: Padding::Constant(0.0), groups: 1 };
        let packed = frames.convolution(&weight, bias.as_ref(), &shape)?;
        let (items, hidden) = (packed.dim(0), packed.dim(1));
        let tokens = packed.dim(2) * packed.dim(3) * packed.dim(4);
        Ok(packed.reshape([items, hidden, tokens])?.transpose(1, 2)?.contiguous()?)
    }
}

/// Where all tokens stand: those of the video, of a picture behind it, and of the end of a video before it, which spread over
/// its rows and columns.
pub(super) fn places(grid: &VideoGrid, picture_frames: usize, has_motion: bool) -> Vec<Places> {
    let count = |start: f64, of: usize| (0..of).map(|at| start + at as f64).collect::<Vec<_>>();
    let (rows, columns) = (count(0.0, grid.rows), count(0.0, grid.columns));
    let mut all = vec![[count(0.0, grid.frames), rows.clone(), columns.clone()]];
    if picture_frames > 0 {
        let start = PICTURE_AT.max(grid.frames + PICTURE_BEHIND) as f64;
        all.push([count(start, picture_frames), rows.clone(), columns.clone()]);
    }
    if has_motion {
        let spread = |last: usize, steps: usize| -> Vec<f64> {
            let step = last as f64 / (steps.max(2) - 1) as f64;
            (0..steps).map(|at| at as f64 * step).collect()
        };
        for pack in PACKS {
            let [high, wide] = [grid.height / pack.side, grid.width / pack.side];
            if high * wide > 0 {
                let frames = count(pack.start, pack.frames / pack.time);
                all.push([frames, spread(grid.rows - 1, high), spread(grid.columns - 1, wide)]);
            }
        }
    }
    all
}

/// A sound as tokens.
fn sound(
    wan: &Wan,
    lease: &Lease<'_>,
    (speech, heard, inputs): (Speech, &Tensor, &WanInputs<'_>),
    probe: &mut Probe<'_>,
) -> Result<[Tensor; 2]> {
    let (batch, hidden) = (inputs.latent.dim(0), wan.config.hidden);
    let frames = FRAMES * inputs.latent.dims().get(2).copied().unwrap_or(1);
    let repeats = heard.rank() == 3 && (heard.dim(0) == 1 || heard.dim(0) == batch);
    if !repeats || heard.dims()[1..] != [frames, speech.heard()] {
        return wrong("what is heard", format!("[{batch} or 1, {frames}, {}]", speech.heard()), heard);
    }
    let rows = heard.dim(0);
    // The layers of the encoder that listens, each as much as it counts.
    let weights = lease.lane().unpack(&lease.weight("casual_audio_encoder.weights")?)?;
    let weights = weights.reshape([1, 1, speech.layers, 1])?.activate(Activation::Silu)?;
    let by_layer = lease.bring(heard)?.reshape([rows, frames, speech.layers, speech.width])?;
    let mean = by_layer.mul(&weights)?.mean(&[2])?.div(&weights.mean(&[2])?)?;
    let mean = mean.reshape([rows, frames, speech.width])?.transpose(1, 2)?.contiguous()?;
    let encoder = "casual_audio_encoder.encoder";
    let local = through_time(lease, (encoder, "conv1_local"), &mean, speech.tokens)?;
    let global = through_time(lease, (encoder, "conv1_global"), &mean, 1)?;
    let global = lease.linear("casual_audio_encoder.encoder.final_linear", &global)?;
    let frames = local.dim(1);
    let own = local.reshape([rows, speech.tokens, frames, hidden])?.permute(&[0, 2, 1, 3])?.contiguous()?;
    let more = lease.lane().unpack(&lease.weight("casual_audio_encoder.encoder.padding_tokens")?)?;
    let more = more.reshape([1, 1, 1, hidden])?.broadcast([rows, frames, 1, hidden])?.contiguous()?;
    let local = Tensor::concat(&[&own, &more], 2)?;
    let local = local.reshape([rows, frames * (speech.tokens + 1), hidden])?;
    probe.show(format_args!("casual_audio_encoder.local"), &local);
    probe.show(format_args!("casual_audio_encoder.global"), &global);
    Ok([local, global])
}

/// What is heard or seen `[rows, width, moments]` through three layers that look back, `[rows · tokens, frames, hidden]`; they
/// are named after what they belong to, and the first of them by itself.
pub(super) fn through_time(
    lease: &Lease<'_>,
    (encoder, first): (&str, &str),
    heard: &Tensor,
    tokens: usize,
) -> Result<Tensor> {
    let mut x = heard.clone();
    for (index, (name, stride)) in [first, "conv2", "conv3"].into_iter().zip(STEPS).enumerate() {
        let name = format!("{encoder}.{name}.conv");
        let (weight, bias) = (lease.weight(&format!("{name}.weight"))?, lease.find(&format!("{name}.bias"))?);
        let window = vec![Window { stride, pad_before: KERNEL - 1, pad_after: 0, dilation: 1 }];
        let shape = ConvolutionShape { window, padding: Padding::Replicate, groups: 1 };
        let y = x.convolution(&weight, bias.as_ref(), &shape)?;
        let (items, channels, moments) = (y.dim(0), y.dim(1), y.dim(2));
        // The first layer makes the channels of all tokens.
        let tokens = if index == 0 { tokens } else { 1 };
        let y = y.reshape([items * tokens, channels / tokens, moments])?;
        let y =
            y.transpose(1, 2)?.contiguous()?.layer_norm(None, None, NORM_EPS)?.activate(Activation::Silu)?;
        if index + 1 == STEPS.len() {
            return Ok(y);
        }
        x = y.transpose(1, 2)?.contiguous()?;
    }
    Ok(x)
}

/// The sound in a batch, between blocks.
pub(super) struct Sound {
    local: Everywhere,
    global: Everywhere,
    frames: usize,
    /// Tokens of the video, which come first.
    video: usize,
}

impl Sound {
    /// Of evaluations one after the other, each `[items, …]`, with so many tokens of video.
    pub(super) fn new(parts: &[[&Tensor; 2]], video: usize) -> Result<Sound> {
        let part = |which: usize| together(&parts.iter().map(|part| part[which]).collect::<Vec<_>>(), 0);
        let global = part(1)?;
        let frames = global.dim(1);
        Ok(Sound { local: Everywhere::new(part(0)?), global: Everywhere::new(global), frames, video })
    }

    /// Tells the video's tokens the sound, each frame its own; `index` is the number of the layers that tell.
    pub(super) fn tell(
        &mut self,
        config: &Config,
        lease: &Lease<'_>,
        index: usize,
        x: &Tensor,
    ) -> Result<Tensor> {
        let (local, global) = (self.local.on(lease)?, self.global.on(lease)?);
        let (items, hidden, frames) = (x.dim(0), x.dim(2), self.frames);
        let (rows, each) = (items * frames, self.video / frames);
        let video = x.slice(1, 0, self.video)?.contiguous()?.reshape([rows, each, hidden])?;
        let moved = format!("audio_injector.injector_adain_layers.{index}.linear");
        let change =
            lease.linear(&moved, &global.activate(Activation::Silu)?)?.reshape([rows, 1, 2 * hidden])?;
        let (shift, scale) = (change.slice(2, 0, hidden)?, change.slice(2, hidden, hidden)?);
        let inner = video.modulated_norm(&scale, &shift, MOVED_EPS)?;
        let name = format!("audio_injector.injector.{index}");
        let heads = |x: Tensor| -> Result<Tensor> {
            let tokens = x.shape().count() / (rows * hidden);
            Ok(x.reshape([rows, tokens, config.heads, HEAD])?)
        };
        let normed = |layer: &str, norm: &str, x: &Tensor| -> Result<Tensor> {
            let weight = lease.weight(&format!("{name}.{norm}.weight"))?;
            heads(lease.linear(&format!("{name}.{layer}"), x)?.rms_norm(Some(&weight), NORM_EPS)?)
        };
        let (q, k) = (normed("q", "norm_q", &inner)?, normed("k", "norm_k", &local)?);
        let v = heads(lease.linear(&format!("{name}.v"), &local)?)?;
        let attended = q.attention(&k, &v, &Mask::None, 1.0 / (HEAD as f32).sqrt())?;
        let told = lease.linear(&format!("{name}.o"), &attended.reshape([items, self.video, hidden])?)?;
        let video = video.reshape([items, self.video, hidden])?.add(&told)?;
        match x.dim(1) - self.video {
            0 => Ok(video),
            behind => Ok(Tensor::concat(&[&video, &x.slice(1, self.video, behind)?.contiguous()?], 1)?),
        }
    }
}
