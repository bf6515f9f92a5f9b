//! The blocks of Wan, and the activations that pass through them.

use std::sync::Arc;

use residency::Lease;
use tensor::{Activation, Mask, RopeLayout, Tensor};

use super::Config;
use super::config::HEAD;
use super::face::Seen;
use super::speech::Sound;
use crate::diffusion::batches::together;
use crate::diffusion::modulation::Everywhere;
use crate::diffusion::rotary::VideoPositions;
use crate::diffusion::timed_change::{Change, NORM_EPS};
use crate::{Probe, Result};

/// One evaluation's activations before the first block.
pub(super) struct Entered {
    /// Tokens `[items, tokens, hidden]`.
    pub(super) tokens: Tensor,
    /// The text `[items, tokens, hidden]`.
    pub(super) text: Tensor,
    /// Features of pictures `[items, tokens, hidden]`, of a model that looks at them.
    pub(super) vision: Option<Tensor>,
    /// Faces `[items, frames · tokens, hidden]`, of a model that sees them, and how many frames those are.
    pub(super) faces: Option<(Tensor, usize)>,
    /// Speech `[items, …]`, of a model that is told it.
    pub(super) sound: Option<[Tensor; 2]>,
    /// The sound's tokens `[items, frames · tokens, width]`, of a model that listens, and how many frames those are.
    pub(super) audio: Option<(Tensor, usize)>,
    /// The time `[items, times, hidden]`: one for all tokens, or one for each frame.
    pub(super) time: Tensor,
    /// The time as the modulations of all blocks, `[items, times, 6 · hidden]`.
    pub(super) change: Tensor,
    /// Steering videos: tokens `[items, tokens, hidden]` and strengths `[items, 1, 1]`.
    pub(super) controls: Vec<[Tensor; 2]>,
}

/// The activations between blocks, of evaluations that run as one batch. They travel together to where the next block
/// computes.
pub(super) struct State {
    tokens: Tensor,
    shared: Shared,
    steering: Option<Steering>,
    sound: Option<Sound>,
    faces: Option<Seen>,
}

/// What every block reads and none changes.
struct Shared {
    text: Everywhere,
    vision: Option<Everywhere>,
    audio: Option<(Everywhere, usize)>,
    time: Everywhere,
    change: Everywhere,
    positions: Arc<VideoPositions>,
}

/// What blocks beside the others work on.
struct Steering {
    /// The tokens before the first block, until the first block beside them has read them.
    original: Option<Tensor>,
    /// Each with its strength.
    videos: Vec<(Tensor, Everywhere)>,
}

impl State {
    /// The activations of one or more evaluations of equal shapes, one after the other, of so many tokens of video each.
    pub(super) fn new(entered: &[Entered], positions: Arc<VideoPositions>, video: usize) -> Result<State> {
        let all = |part: &dyn Fn(&Entered) -> Option<&Tensor>| {
            let parts: Vec<&Tensor> = entered.iter().filter_map(part).collect();
            (parts.len() == entered.len()).then(|| together(&parts, 0)).transpose()
        };
        let needed = |part: fn(&Entered) -> &Tensor| {
            together(&entered.iter().map(part).collect::<Vec<_>>(), 0).map(Everywhere::new)
        };
        let tokens = together(&entered.iter().map(|one| &one.tokens).collect::<Vec<_>>(), 0)?;
        let controls = entered.first().map_or(0, |one| one.controls.len());
        let mut videos = Vec::with_capacity(controls);
        for i in 0..controls {
            let part =
                |which: usize| all(&|one: &Entered| one.controls.get(i).map(|control| &control[which]));
            if let (Some(video), Some(strength)) = (part(0)?, part(1)?) {
                videos.push((video, Everywhere::new(strength)));
            }
        }
        let steering = (!videos.is_empty()).then(|| Steering { original: Some(tokens.clone()), videos });
        let shared = Shared {
            text: needed(|one| &one.text)?,
            vision: all(&|one: &Entered| one.vision.as_ref())?.map(Everywhere::new),
            audio: all(&|one: &Entered| one.audio.as_ref().map(|(audio, _)| audio))?
                .zip(entered.first().and_then(|one| one.audio.as_ref()))
                .map(|(audio, (_, frames))| (Everywhere::new(audio), *frames)),
            time: needed(|one| &one.time)?,
            change: needed(|one| &one.change)?,
            positions,
        };
        let sounds: Vec<[&Tensor; 2]> =
            entered.iter().filter_map(|one| one.sound.as_ref().map(<[Tensor; 2]>::each_ref)).collect();
        let sound = if sounds.is_empty() { None } else { Some(Sound::new(&sounds, video)?) };
        let faces = all(&|one: &Entered| one.faces.as_ref().map(|(faces, _)| faces))?
            .zip(entered.first().and_then(|one| one.faces.as_ref()))
            .map(|(faces, (_, frames))| Seen::new(faces, *frames));
        Ok(State { tokens, shared, steering, sound, faces })
    }

    /// The tokens.
    pub(super) fn tokens(&self) -> &Tensor {
        &self.tokens
    }

    /// The time.
    pub(super) fn time(&self) -> &Tensor {
        self.shared.time.first()
    }

    /// One of the blocks.
    pub(super) fn block(
        mut self,
        config: &Config,
        lease: &Lease<'_>,
        index: usize,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        if index == 0 {
            self.shared.positions.show(lease.lane(), probe)?;
        }
        let name = format!("blocks.{index}");
        let tokens = lease.bring(&self.tokens)?;
        let tokens = Layers { config, lease, name: &name }.forward(&tokens, &mut self.shared, probe)?;
        probe.show(format_args!("{name}"), &tokens);
        let told = config.speech.and_then(|speech| speech.told_behind(index));
        let tokens = match (&mut self.sound, told) {
            (Some(sound), Some(told)) => sound.tell(config, lease, told, &tokens)?,
            _ => tokens,
        };
        let looked_at = config.face.as_ref().and_then(|face| face.told_behind(index));
        let tokens = match (&mut self.faces, looked_at) {
            (Some(faces), Some(looked_at)) => faces.look(config, lease, looked_at, &tokens)?,
            _ => tokens,
        };
        Ok(State { tokens, ..self })
    }

    /// One of the blocks beside them, whose results are added.
    pub(super) fn control_block(
        mut self,
        config: &Config,
        lease: &Lease<'_>,
        index: usize,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let name = format!("vace_blocks.{index}");
        let layers = Layers { config, lease, name: &name };
        let mut tokens = lease.bring(&self.tokens)?;
        let Some(steering) = &mut self.steering else { return Ok(State { tokens, ..self }) };
        let original = steering.original.take().map(|original| lease.bring(&original)).transpose()?;
        for (video, strength) in &mut steering.videos {
            let mut x = lease.bring(video)?;
            if let Some(original) = &original {
                x = lease.linear(&format!("{name}.before_proj"), &x)?;
                probe.show(format_args!("{name}.before_proj"), &x);
                x = x.add(original)?;
            }
            *video = layers.forward(&x, &mut self.shared, probe)?;
            probe.show(format_args!("{name}.1"), video);
            let skip = lease.linear(&format!("{name}.after_proj"), video)?;
            probe.show(format_args!("{name}.after_proj"), &skip);
            tokens = tokens.gated_add(&strength.on(lease)?, &skip)?;
        }
        Ok(State { tokens, ..self })
    }
}

/// The layers of one block.
struct Layers<'a> {
    config: &'a Config,
    lease: &'a Lease<'a>,
    name: &'a str,
}

impl Layers<'_> {
    fn forward(&self, x: &Tensor, shared: &mut Shared, probe: &mut Probe<'_>) -> Result<Tensor> {
        let (lease, name) = (self.lease, self.name);
        let change = Change::new(lease, &format!("{name}.modulation"), &shared.change.on(lease)?, 6)?;
        let x = self.self_attention(x, &change, &shared.positions, probe)?;
        let vision = shared.vision.as_mut().map(|vision| vision.on(lease)).transpose()?;
        let x = self.cross_attention(&x, &shared.text.on(lease)?, vision.as_ref(), probe)?;
        let x = match &mut shared.audio {
            None => x,
            Some((audio, frames)) => self.audio_attention(&x, (&audio.on(lease)?, *frames), probe)?,
        };
        self.feed_forward(&x, &change, probe)
    }

    fn self_attention(
        &self,
        x: &Tensor,
        change: &Change,
        positions: &VideoPositions,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let name = format!("{}.self_attn", self.name);
        let rotation = positions.on(self.lease.lane())?;
        probe.show_step(format_args!("{}.norm1", self.name), || Ok(x.layer_norm(None, None, NORM_EPS)?))?;
        let attended = {
            let inner = change.normed(x, 0)?;
            // Each is turned before the next is made: sequences are long.
            let mut turned = |layer: &str, norm: &str| -> Result<Tensor> {
                let heads = self.normed(&name, layer, norm, &inner, probe)?;
                Ok(self.heads(&heads)?.rope(&rotation.cos, &rotation.sin, RopeLayout::Interleaved)?)
            };
            let (q, k) = (turned("q", "norm_q")?, turned("k", "norm_k")?);
            let v = self.linear(&format!("{name}.v"), &inner, probe)?;
            drop(inner);
            self.attend(&q, &k, &self.heads(&v)?)?
        };
        let out = self.linear(&format!("{name}.o"), &attended, probe)?;
        probe.show(format_args!("{name}"), &out);
        change.gated(x, 2, &out)
    }

    /// Attention over the text, and over pictures of models that look at them.
    fn cross_attention(
        &self,
        x: &Tensor,
        text: &Tensor,
        vision: Option<&Tensor>,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let name = format!("{}.cross_attn", self.name);
        let attended = {
            let norm = format!("{}.norm3", self.name);
            let weight = self.lease.weight(&format!("{norm}.weight"))?;
            let bias = self.lease.find(&format!("{norm}.bias"))?;
            let inner = x.layer_norm(Some(&weight), bias.as_ref(), NORM_EPS)?;
            probe.show(format_args!("{norm}"), &inner);
            let q = self.heads(&self.normed(&name, "q", "norm_q", &inner, probe)?)?;
            drop(inner);
            let k = self.heads(&self.normed(&name, "k", "norm_k", text, probe)?)?;
            let v = self.heads(&self.linear(&format!("{name}.v"), text, probe)?)?;
            let attended = self.attend(&q, &k, &v)?;
            match vision {
                None => attended,
                Some(vision) => {
                    let k = self.heads(&self.normed(&name, "k_img", "norm_k_img", vision, probe)?)?;
                    let v = self.heads(&self.linear(&format!("{name}.v_img"), vision, probe)?)?;
                    attended.add(&self.attend(&q, &k, &v)?)?
                }
            }
        };
        let out = self.linear(&format!("{name}.o"), &attended, probe)?;
        probe.show(format_args!("{name}"), &out);
        Ok(x.add(&out)?)
    }

    /// Attention of each frame over what is heard with it.
    fn audio_attention(
        &self,
        x: &Tensor,
        (audio, frames): (&Tensor, usize),
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let wrapper = format!("{}.audio_cross_attn_wrapper", self.name);
        let name = format!("{wrapper}.audio_cross_attn");
        let norm = format!("{wrapper}.norm1_audio");
        let (weight, bias) =
            (self.lease.weight(&format!("{norm}.weight"))?, self.lease.find(&format!("{norm}.bias"))?);
        let inner = x.layer_norm(Some(&weight), bias.as_ref(), NORM_EPS)?;
        let by_frame = |x: &Tensor| -> Result<Tensor> {
            let items = x.dim(0) * frames;
            Ok(x.reshape([items, x.dim(1) / frames, self.config.heads, HEAD])?)
        };
        let q = by_frame(&self.normed(&name, "q", "norm_q", &inner, probe)?)?;
        drop(inner);
        let k = by_frame(&self.normed(&name, "k", "norm_k", audio, probe)?)?;
        let v = by_frame(&self.linear(&format!("{name}.v"), audio, probe)?)?;
        let attended = self.attend(&q, &k, &v)?.reshape(*x.shape())?;
        let out = self.linear(&format!("{name}.o"), &attended, probe)?;
        probe.show(format_args!("{name}"), &out);
        Ok(x.add(&out)?)
    }

    fn feed_forward(&self, x: &Tensor, change: &Change, probe: &mut Probe<'_>) -> Result<Tensor> {
        let name = self.name;
        probe.show_step(format_args!("{name}.norm2"), || Ok(x.layer_norm(None, None, NORM_EPS)?))?;
        let inner = change.normed(x, 3)?;
        let first = format!("{name}.ffn.0");
        probe.show_step(format_args!("{first}"), || Ok(self.lease.linear(&first, &inner)?))?;
        let inner = self.lease.linear_then(&first, &inner, Some(Activation::GeluTanh))?;
        probe.show(format_args!("{name}.ffn.1"), &inner);
        let out = self.linear(&format!("{name}.ffn.2"), &inner, probe)?;
        probe.show(format_args!("{name}.ffn"), &out);
        change.gated(x, 5, &out)
    }

    /// A layer whose results are normalised over all heads together.
    fn normed(
        &self,
        attention: &str,
        layer: &str,
        norm: &str,
        x: &Tensor,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let out = self.linear(&format!("{attention}.{layer}"), x, probe)?;
        let weight = self.lease.weight(&format!("{attention}.{norm}.weight"))?;
        let normed = out.rms_norm(Some(&weight), NORM_EPS)?;
        probe.show(format_args!("{attention}.{norm}"), &normed);
        Ok(normed)
    }

    fn linear(&self, name: &str, x: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let out = self.lease.linear(name, x)?;
        probe.show(format_args!("{name}"), &out);
        Ok(out)
    }

    /// `[items, tokens, hidden]` as heads.
    fn heads(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.reshape([x.dim(0), x.dim(1), self.config.heads, HEAD])?)
    }

    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let out = q.attention(k, v, &Mask::None, 1.0 / (HEAD as f32).sqrt())?;
        Ok(out.reshape([q.dim(0), q.dim(1), self.config.hidden])?)
    }
}
