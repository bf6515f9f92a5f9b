//! From a conditioning on the host to what the model is given on the device, through its first layers once.

use residency::Lease;
use sampling::noise::prepare_noise;
use sampling::{Latent, LatentShape};
use tensor::{Activation, Tensor};

use super::{HunyuanVideo, LAYERS};
use crate::conditioning::{Array, Cond, Conditioned, Guidance, Scene};
use crate::diffusion::Diffusion;
use crate::diffusion::modulation::{embed, time_embedding};
use crate::diffusion::pass::{text_of, wrong};
use crate::diffusion::video::video_on;
use crate::{Probe, Result};

/// The guidance of a conditioning that says none.
const USUAL_GUIDANCE: f32 = 6.0;
/// Added to the variance of letters and features of pictures.
const OUTER_EPS: f32 = 1e-5;

/// What the seed of the noise over a video is before that of the run.
const SEED_BEFORE: u64 = 10;
/// How much of a video that is made larger is kept at most.
const MOST_KEPT: f32 = 0.75;

/// The kinds of tokens on the text's side, by their rows in the table that tells them apart.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Letters,
    Picture,
}

/// What does not change within a run, on the device of the first block.
pub(in crate::diffusion) struct Given {
    /// The text in the model's width, before it is refined: `[batch or 1, tokens, hidden]`.
    pub(super) text: Tensor,
    /// The mean of the text in the model's width, `[batch or 1, hidden]`, which the refiner is moved by.
    pub(super) mean: Tensor,
    /// Features of a picture and letters that are to be seen, which join the refined text in front:
    /// `[batch or 1, tokens, hidden]`.
    pub(super) joining: Option<Tensor>,
    /// What is added to refined tokens of the text, `[1, 1, hidden]`, of a model that tells kinds of them apart.
    pub(super) kind: Option<Tensor>,
    /// Pooled text and guidance in the model's width, `[batch or 1, hidden]`.
    pub(super) vector: Option<Tensor>,
    /// The time of the first frame, if it has one of its own.
    pub(super) first_time: Option<f32>,
    /// Further channels beside the latent.
    pub(super) concat: Option<Tensor>,
    /// The times of the run's steps, falling, of a model that is told where a step lands.
    pub(super) times: Vec<f32>,
    /// A picture to look at, in the model's scale: `[batch or 1, channels, frames, height, width]`.
    pub(super) reference: Option<Tensor>,
}

impl Given {
    pub(super) fn new(
        model: &HunyuanVideo,
        lease: &Lease<'_>,
        (conditioned, scene): (&Conditioned<'_>, &Scene<'_>),
        probe: &mut Probe<'_>,
    ) -> Result<Given> {
        let (cond, config, batch) = (conditioned.cond, &model.config, scene.shape.batch);
        let text = text_of(lease, cond, batch, config.context_width)?;
        let mean = text.mean(&[1])?.reshape([text.dim(0), text.dim(2)])?;
        let mean = embed(lease, ("txt_in.c_embedder", LAYERS), &mean, probe)?;
        let text = lease.linear("txt_in.input_embedder", &text)?;
        let concat = match beside(model, cond, scene)? {
            None => None,
            Some(latent) => {
                let part =
                    conditioned.window.map_or_else(|| Ok(latent.clone()), |window| latent.cropped(window))?;
                Some(video_on(lease.lane(), &part)?)
            }
        };
        let reference = cond
            .reference_latents
            .last()
            .map(|latent| -> Result<Tensor> { video_on(lease.lane(), &model.latent().to_model(latent)?) });
        Ok(Given {
            text,
            mean,
            joining: joining(model, lease, (cond, batch), probe)?,
            kind: kind(model, lease, Kind::Text)?,
            vector: vector(model, lease, (cond, batch), probe)?,
            first_time: cond.guiding_frame,
            concat,
            times: if config.jumps { scene.times.to_vec() } else { Vec::new() },
            reference: reference.transpose()?,
        })
    }
}

/// Pooled text and guidance in the model's width.
fn vector(
    model: &HunyuanVideo,
    lease: &Lease<'_>,
    (cond, batch): (&Cond, usize),
    probe: &mut Probe<'_>,
) -> Result<Option<Tensor>> {
    let mut vector = None;
    if let Some(width) = model.config.pooled_width {
        let pooled = cond.pooled_on(lease.lane(), width)?;
        if pooled.dim(1) != width || !(pooled.dim(0) == 1 || pooled.dim(0) == batch) {
            return wrong("the pooled text", format!("[{batch} or 1, {width}]"), &pooled);
        }
        vector = Some(embed(lease, ("vector_in", LAYERS), &pooled, probe)?);
    }
    let guidance = match cond.guidance {
        Guidance::Usual => Some(USUAL_GUIDANCE),
        Guidance::Scale(scale) => Some(scale),
        Guidance::Off => None,
    };
    if let Some(guidance) = guidance.filter(|_| model.config.guidance) {
        let waves = time_embedding(lease.lane(), 1000.0 * guidance)?;
        let guidance = embed(lease, ("guidance_in", LAYERS), &waves, probe)?;
        vector = Some(match vector {
            Some(vector) => vector.add(&guidance)?,
            None => guidance,
        });
    }
    Ok(vector)
}

/// Features of a picture, then letters, in the model's width.
fn joining(
    model: &HunyuanVideo,
    lease: &Lease<'_>,
    (cond, batch): (&Cond, usize),
    probe: &mut Probe<'_>,
) -> Result<Option<Tensor>> {
    let on = |what: &'static str, array: &Array, width: usize| -> Result<Tensor> {
        let axes: [usize; 3] = array.axes(what, "batch, tokens and width")?;
        let x = lease.lane().tensor(axes, &array.values)?;
        if x.dim(2) != width || !(x.dim(0) == 1 || x.dim(0) == batch) {
            return wrong(what, format!("[{batch} or 1, tokens, {width}]"), &x);
        }
        Ok(x)
    };
    let mut parts = Vec::new();
    if let Some((features, width)) = cond.vision.as_ref().zip(model.config.vision_width) {
        let x = on("the features of a picture", features, width)?;
        let x = normed(lease, "vision_in.proj.0", &x)?;
        let x = lease.linear_then("vision_in.proj.1", &x, Some(Activation::Gelu))?;
        let x = normed(lease, "vision_in.proj.4", &lease.linear("vision_in.proj.3", &x)?)?;
        probe.show(format_args!("vision_in"), &x);
        parts.push(of_kind(kind(model, lease, Kind::Picture)?.as_ref(), x)?);
    }
    if let Some((letters, sizes)) = cond.second_text.as_ref().zip(model.config.letters) {
        let x = on("the letters that are to be seen", letters, sizes.width)?;
        let x = normed(lease, "byt5_in.layernorm", &x)?;
        let x = lease.linear_then("byt5_in.fc1", &x, Some(Activation::Gelu))?;
        let x = lease.linear_then("byt5_in.fc2", &x, Some(Activation::Gelu))?;
        let x = lease.linear("byt5_in.fc3", &x)?;
        probe.show(format_args!("byt5_in"), &x);
        parts.push(of_kind(kind(model, lease, Kind::Letters)?.as_ref(), x)?);
    }
    let rows = parts.iter().map(|part| part.dim(0)).max().unwrap_or(1);
    let spread = |part: &Tensor| part.broadcast([rows, part.dim(1), part.dim(2)]);
    match parts.iter().map(spread).collect::<Result<Vec<_>, _>>()?.as_slice() {
        [] => Ok(None),
        parts => Ok(Some(Tensor::concat(&parts.iter().collect::<Vec<_>>(), 1)?)),
    }
}

/// Tokens of a kind, told apart from the others if the model does so.
pub(super) fn of_kind(kind: Option<&Tensor>, tokens: Tensor) -> Result<Tensor> {
    match kind {
        None => Ok(tokens),
        Some(kind) => Ok(tokens.add(kind)?),
    }
}

/// What is added to tokens of a kind, `[1, 1, hidden]`.
fn kind(model: &HunyuanVideo, lease: &Lease<'_>, kind: Kind) -> Result<Option<Tensor>> {
    if model.config.kinds.is_none() {
        return Ok(None);
    }
    let table = lease.lane().unpack(&lease.weight("cond_type_embedding.weight")?)?;
    Ok(Some(table.slice(0, kind as usize, 1)?.reshape([1, 1, model.config.hidden])?))
}

fn normed(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let (weight, bias) = (lease.weight(&format!("{name}.weight"))?, lease.find(&format!("{name}.bias"))?);
    Ok(x.layer_norm(Some(&weight), bias.as_ref(), OUTER_EPS)?)
}

/// What stands beside the latent of a model that has more channels than it gives back: pictures in the model's scale, and a
/// mask that is one where they are given.
fn beside(model: &HunyuanVideo, cond: &Cond, scene: &Scene<'_>) -> Result<Option<Latent>> {
    let [channels, mask_channels] = model.config.beside();
    if channels == 0 {
        return Ok(None);
    }
    let LatentShape { batch, frames, height, width, .. } = scene.shape;
    if model.config.enlarges() {
        return larger_of(cond, scene, channels).map(Some);
    }
    let picture = match (&cond.concat_latent, scene.image) {
        (Some(given), _) => {
            let given = given.resized_and_centred(height, width)?;
            filled(&model.latent().to_model_by_groups(&given)?, channels, frames)?
        }
        // A first generation that is given no picture looks at what it starts from.
        (None, Some(start)) if model.is_first_generation() => filled(start, channels, frames)?,
        (None, _) => Latent::zeros(&[1, channels, frames, height, width]),
    };
    let picture = picture.with_items(batch)?;
    if mask_channels == 0 {
        return Ok(Some(picture));
    }
    let mask = match cond.concat_mask.as_deref().or(scene.mask) {
        None => Latent::zeros(&[1, 1, frames, height, width]),
        Some(mask) => {
            let mut mask = mask.resized_and_centred(height, width)?;
            let made = |value: f32| if model.is_first_generation() { value.round_ties_even() } else { value };
            mask.values_mut().iter_mut().for_each(|value| *value = 1.0 - made(*value));
            filled(&mask, 1, frames)?
        }
    };
    Ok(Some(picture.with_channels_of(&mask.with_items(batch)?)?))
}

/// What stands beside the latent of a model that makes videos larger, in the autoencoder's scale: a picture and its mask,
/// then the video, of which noise takes the place for a part, and its mask.
fn larger_of(cond: &Cond, scene: &Scene<'_>, channels: usize) -> Result<Latent> {
    let LatentShape { batch, channels: own, frames, height, width } = scene.shape;
    let Some(given) = &cond.concat_latent else {
        return Ok(Latent::zeros(&[batch, channels, frames, height, width]));
    };
    let given = given.resized_and_centred(height, width)?.with_items(batch)?;
    let mut beside = filled(&given, channels, frames)?;
    let share = cond.noise_augmentation.unwrap_or(0.0);
    let video = [batch, own, frames, height, width];
    let noise = prepare_noise(scene.seed.wrapping_sub(SEED_BEFORE), &video, None)?;
    let volume = frames * height * width;
    for item in 0..batch {
        let start = (item * channels + own + 1) * volume;
        let noise = &noise.values()[item * own * volume..][..own * volume];
        for (value, noise) in beside.values_mut()[start..start + own * volume].iter_mut().zip(noise) {
            let kept = (1.0 - share).min(MOST_KEPT) * *value;
            *value = if share > 0.0 { share * noise + kept } else { kept };
        }
    }
    Ok(beside)
}

/// A latent with so many channels and frames: those that are too many are left out, those that are missing are zero.
fn filled(latent: &Latent, channels: usize, frames: usize) -> Result<Latent> {
    let LatentShape { batch, channels: have, frames: given, height, width } = LatentShape::of(latent)?;
    let plane = height * width;
    let mut values = Vec::with_capacity(batch * channels * frames * plane);
    for (item, channel) in (0..batch).flat_map(|item| (0..channels).map(move |channel| (item, channel))) {
        let end = values.len() + frames * plane;
        if channel < have {
            let start = (item * have + channel) * given * plane;
            values.extend_from_slice(&latent.values()[start..start + given.min(frames) * plane]);
        }
        values.resize(end, 0.0);
    }
    Ok(Latent::new(vec![batch, channels, frames, height, width], values)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_takes_the_place_of_a_part_of_a_video() {
        let scene = Scene {
            seed: 20,
            ..Scene::empty(LatentShape { batch: 1, channels: 1, frames: 1, height: 1, width: 2 })
        };
        let given = Latent::new(vec![1, 4, 1, 1, 2], vec![1.0, 2.0, 1.0, 1.0, 4.0, 8.0, 1.0, 1.0]).unwrap();
        let cond = |noise_augmentation| {
            let text = Cond::text(Array::zeros(&[1, 1, 1]), None);
            Cond { concat_latent: Some(std::sync::Arc::new(given.clone())), noise_augmentation, ..text }
        };
        let plain = larger_of(&cond(None), &scene, 4).unwrap();
        assert_eq!(plain.values(), [1.0, 2.0, 1.0, 1.0, 3.0, 6.0, 1.0, 1.0]);
        // The noise is that of a seed ten before the run's.
        let noise = prepare_noise(10, &[1, 1, 1, 1, 2], None).unwrap();
        let noised = larger_of(&cond(Some(0.5)), &scene, 4).unwrap();
        let expected = [0.5 * noise.values()[0] + 2.0, 0.5 * noise.values()[1] + 4.0];
        assert_eq!(noised.values()[4..6], expected);
        assert_eq!(
            larger_of(&Cond { concat_latent: None, ..cond(None) }, &scene, 4).unwrap().values(),
            [0.0; 8]
        );
    }

    #[test]
    fn latents_are_cut_and_filled_with_zeros() {
        let latent = Latent::new(vec![1, 2, 2, 1, 1], vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(filled(&latent, 2, 3).unwrap().values(), [1.0, 2.0, 0.0, 3.0, 4.0, 0.0]);
        assert_eq!(filled(&latent, 1, 1).unwrap().values(), [1.0]);
        assert_eq!(filled(&latent, 3, 1).unwrap().values(), [1.0, 3.0, 0.0]);
    }
}
