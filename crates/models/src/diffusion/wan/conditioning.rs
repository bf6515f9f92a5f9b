//! From a conditioning on the host to what the model is given on the device.

use sampling::{Latent, LatentShape};
use tensor::{Lane, Tensor};

use super::Wan;
use super::prepared::{SteeringVideo, WanInputs};
use super::speech::MOTION_FRAMES;
use crate::Result;
use crate::conditioning::{Array, Cond, Conditioned, Scene, VideoControl};
use crate::diffusion::Diffusion;
use crate::diffusion::video::{made_of_frames, video_on};

/// Channels of the mask beside a picture: one for each frame that a frame of the latent stands for.
const MASK_CHANNELS: usize = 4;

/// What a conditioning gives the model, on the device.
pub(super) struct Given {
    /// Of the latent's size; nothing reads its values.
    latent: Tensor,
    context: Tensor,
    vision: Option<Tensor>,
    concat: Option<Tensor>,
    before: Option<Tensor>,
    behind: Option<Tensor>,
    camera: Option<Tensor>,
    controls: Vec<(Tensor, f32)>,
    audio: Option<Tensor>,
    motion: Option<Tensor>,
    poses: Option<Tensor>,
    faces: Option<Tensor>,
    times: Option<Vec<f32>>,
}

impl Given {
    pub(super) fn new(
        wan: &Wan,
        lane: &Lane,
        conditioned: &Conditioned<'_>,
        scene: &Scene<'_>,
    ) -> Result<Given> {
        let (cond, spec) = (conditioned.cond, wan.latent());
        let LatentShape { batch, channels, frames, .. } = scene.shape;
        let [height, width] = conditioned
            .window
            .map_or([scene.shape.height, scene.shape.width], |window| [window[0], window[1]]);
        if wan.config.speech.is_some() {
            return Given::of_speech(wan, lane, conditioned, scene);
        }
        let crop = |latent: Latent| match conditioned.window {
            None => Ok(latent),
            Some(window) => latent.cropped(window),
        };
        let concat = match beside(wan, cond, scene)? {
            None => None,
            Some(parts) => {
                let parts = parts.into_iter().map(|part| video_on(lane, &crop(part)?));
                let parts = parts.collect::<Result<Vec<_>>>()?;
                Some(Tensor::concat(&parts.iter().collect::<Vec<_>>(), 1)?)
            }
        };
        let controls = controls(wan, lane, conditioned, scene)?;
        let vision = match cond.vision.as_ref().filter(|_| wan.config.vision.is_some()) {
            None => None,
            Some(features) => {
                let axes: [usize; 3] =
                    features.axes("the features of a picture", "batch, tokens and width")?;
                Some(lane.tensor(axes, &features.values)?)
            }
        };
        let reference = cond.reference_latents.last().filter(|_| wan.config.reference_channels.is_some());
        // Where something stands beside the latent or steers it, pictures behind it would have nothing of that.
        let is_alone = wan.config.in_channels == channels && wan.config.control.is_none();
        let behind = cond.frames_behind.as_ref().filter(|_| is_alone);
        let behind = match (wan.config.audio, behind) {
            (Some(_), _) => {
                cond.reference_latents.last().map(|latent| behind_video(wan, latent)).transpose()?
            }
            (None, behind) => behind.map(|latent| spec.to_model(latent)).transpose()?,
        };
        let poses = cond.poses.as_ref().filter(|_| wan.config.face.is_some());
        let faces = cond.faces.as_ref().filter(|_| wan.config.face.is_some());
        let heard = cond.audio.as_ref().filter(|_| wan.config.audio.is_some());
        let audio = heard.map(|audio| with_silence(lane, audio, behind.as_ref())).transpose()?;
        let camera = cond.camera.as_ref().filter(|_| wan.config.camera.is_some());
        Ok(Given {
            latent: lane.full([batch, channels, frames, height, width], 0.0)?,
            context: cond.text_on(lane)?,
            vision,
            concat,
            before: reference.map(|latent| first_frame(lane, &spec.to_model(latent)?)).transpose()?,
            behind: behind.map(|latent| video_on(lane, &latent)).transpose()?,
            audio,
            motion: None,
            poses: poses.map(|poses| video_on(lane, &crop(spec.to_model(poses)?)?)).transpose()?,
            faces: faces.map(|faces| video_on(lane, faces)).transpose()?,
            camera: camera.map(|way| video_on(lane, way)).transpose()?,
            controls,
            times: scene.mask.filter(|_| wan.times_frames()).map(made_of_frames).transpose()?,
        })
    }

    /// The same of a model that is told speech.
    fn of_speech(wan: &Wan, lane: &Lane, conditioned: &Conditioned<'_>, scene: &Scene<'_>) -> Result<Given> {
        let (cond, spec) = (conditioned.cond, wan.latent());
        let LatentShape { batch, channels, frames, height, width } = scene.shape;
        let [rows, columns] = conditioned.window.map_or([height, width], |window| [window[0], window[1]]);
        let crop = |latent: Latent| match conditioned.window {
            None => Ok(latent),
            Some(window) => latent.cropped(window),
        };
        let steering = cond.concat_latent.as_ref().map(|latent| -> Result<Tensor> {
            let latent = spec.to_model(latent)?.resized_and_centred(height, width)?.with_items(batch)?;
            video_on(lane, &crop(latent)?)
        });
        let whole = |latent: &Latent| -> Result<Latent> {
            Ok(crop(spec.to_model(latent)?.resized_and_centred(height, width)?)?)
        };
        let picture = cond.reference_latents.last();
        let motion = cond.frames_before.as_ref().map(|latent| -> Result<Tensor> {
            last_frames(&video_on(lane, &whole(latent)?)?, MOTION_FRAMES)
        });
        let audio = cond.audio.as_ref().map(|audio| -> Result<Tensor> {
            let axes: [usize; 3] = audio.axes("what is heard", "batch, frames and values")?;
            Ok(lane.tensor(axes, &audio.values)?)
        });
        Ok(Given {
            latent: lane.full([batch, channels, frames, rows, columns], 0.0)?,
            context: cond.text_on(lane)?,
            vision: None,
            concat: steering.transpose()?,
            before: None,
            behind: picture.map(|latent| video_on(lane, &whole(latent)?)).transpose()?,
            camera: None,
            controls: Vec::new(),
            audio: audio.transpose()?,
            motion: motion.transpose()?,
            poses: None,
            faces: None,
            times: None,
        })
    }

    /// All of it as the model's inputs.
    pub(super) fn inputs(&self) -> WanInputs<'_> {
        let steer = |(frames, strength): &(Tensor, f32)| SteeringVideo {
            frames: frames.clone(),
            strength: *strength,
        };
        WanInputs {
            times: self.times.clone(),
            vision: self.vision.as_ref(),
            concat: self.concat.clone(),
            before: self.before.clone(),
            behind: self.behind.clone(),
            camera: self.camera.clone(),
            controls: self.controls.iter().map(steer).collect(),
            audio: self.audio.clone(),
            motion: self.motion.clone(),
            poses: self.poses.clone(),
            faces: self.faces.clone(),
            ..WanInputs::new(&self.latent, 0.0, &self.context)
        }
    }
}

/// The videos that steer, each with how much it counts.
fn controls(
    wan: &Wan,
    lane: &Lane,
    conditioned: &Conditioned<'_>,
    scene: &Scene<'_>,
) -> Result<Vec<(Tensor, f32)>> {
    let (spec, window) = (wan.latent(), conditioned.window);
    let crop = |latent: Latent| match window {
        None => Ok(latent),
        Some(window) => latent.cropped(window),
    };
    let steer = |control: &VideoControl| -> Result<(Tensor, f32)> {
        let frames = video_on(lane, &crop(spec.to_model_by_groups(&control.frames)?)?)?;
        let mask = video_on(lane, &crop(Latent::clone(&control.mask))?)?;
        Ok((Tensor::concat(&[&frames, &mask], 1)?, control.strength))
    };
    let mut controls = conditioned.cond.controls.iter().map(steer).collect::<Result<Vec<_>>>()?;
    if let Some(control) = wan.config.control.filter(|_| controls.is_empty()) {
        let LatentShape { channels, frames, .. } = scene.shape;
        let [height, width] =
            window.map_or([scene.shape.height, scene.shape.width], |window| [window[0], window[1]]);
        // Nothing to follow, everything to be made.
        let empty = lane.full([1, 2 * channels, frames, height, width], 0.0)?;
        let ones = lane.full([1, control.channels - 2 * channels, frames, height, width], 1.0)?;
        controls.push((Tensor::concat(&[&empty, &ones], 1)?, 1.0));
    }
    Ok(controls)
}

/// What is heard with the frames of a video; nothing is heard with pictures behind it.
fn with_silence(lane: &Lane, audio: &Array, behind: Option<&Latent>) -> Result<Tensor> {
    let [rows, frames, values]: [usize; 3] = audio.axes("what is heard", "batch, frames and values")?;
    let heard = lane.tensor([rows, frames, values], &audio.values)?;
    let more = behind.map(LatentShape::of).transpose()?.map_or(0, |shape| shape.frames);
    match more {
        0 => Ok(heard),
        _ => Ok(Tensor::concat(&[&heard, &lane.full([rows, more, values], 0.0)?], 1)?),
    }
}

/// The last so many frames of a latent, with zeros before them where there are fewer.
fn last_frames(frames: &Tensor, count: usize) -> Result<Tensor> {
    let have = frames.dim(2);
    if have >= count {
        return Ok(frames.slice(2, have - count, count)?.contiguous()?);
    }
    let before = frames.lane().full(frames.shape().with(2, count - have), 0.0)?;
    Ok(Tensor::concat(&[&before, frames], 2)?)
}

/// The first frame of a latent, `[batch, channels, height, width]`.
fn first_frame(lane: &Lane, latent: &Latent) -> Result<Tensor> {
    let frames = video_on(lane, latent)?;
    let (batch, channels, height, width) = (frames.dim(0), frames.dim(1), frames.dim(3), frames.dim(4));
    Ok(frames.slice(2, 0, 1)?.reshape([batch, channels, height, width])?)
}

/// What stands beside the latent of a model that has more channels than it gives back, in their order: pictures in the
/// model's scale, and among them a mask that is one where they are given.
fn beside(wan: &Wan, cond: &Cond, scene: &Scene<'_>) -> Result<Option<Vec<Latent>>> {
    let extra = wan.config.in_channels - wan.config.channels;
    if extra == 0 {
        return Ok(None);
    }
    let LatentShape { batch, frames, height, width, .. } = scene.shape;
    if wan.config.audio.is_some() {
        return Ok(Some(vec![black_video(scene, extra)?]));
    }
    let Some(given) = &cond.concat_latent else {
        return Ok(Some(vec![Latent::zeros(&[batch, extra, frames, height, width])]));
    };
    let spec = wan.latent();
    let picture = spec.to_model_by_groups(&given.resized_and_centred(height, width)?)?.with_items(batch)?;
    let channels = LatentShape::of(&picture)?.channels;
    let looks_at_pictures = wan.config.vision.is_some() && extra == spec.channels + MASK_CHANNELS;
    let has_mask =
        extra == channels + MASK_CHANNELS || ((looks_at_pictures || wan.times_frames()) && extra != channels);
    if !has_mask {
        return Ok(Some(vec![picture]));
    }
    let picture = first_channels(&picture, extra.saturating_sub(MASK_CHANNELS))?;
    let mask = match cond.concat_mask.as_deref().or(scene.mask) {
        None => Latent::zeros(&[batch, MASK_CHANNELS, frames, height, width]),
        Some(mask) => given_where(mask, scene)?,
    };
    let at = cond.concat_mask_at;
    let kept = LatentShape::of(&picture)?.channels;
    if at == 0 || at >= kept {
        return Ok(Some(if at == 0 { vec![mask, picture] } else { vec![picture, mask] }));
    }
    Ok(Some(vec![first_channels(&picture, at)?, mask, channels_from(&picture, at)?]))
}

/// What an autoencoder makes of a black video, in the model's scale: of the first frame, the second, and all others.
const BLACK: [[f32; 16]; 3] = [
    [
        0.8660, -0.4326, -0.0017, -0.4884, -0.5283, 0.9207, -0.9896, 0.4433, -0.5543, -0.0113, 0.5753,
        -0.6000, -0.8346, -0.3497, -0.1926, -0.6938,
    ],
    [
        1.0869, -1.2370, 0.0206, -0.4357, -0.6411, 2.0307, -1.5972, 1.2659, -0.8595, -0.4654, 0.9638,
        -1.6330, -1.4310, -0.1098, -0.3856, -1.4583,
    ],
    [
        0.8642, -1.8583, 0.1577, 0.1350, -0.3641, 2.5863, -1.9670, 1.6065, -1.0475, -0.8678, 1.1734, -1.8138,
        -1.5933, -0.7721, -0.3289, -1.3745,
    ],
];

/// What stands beside the latent of a model that listens, if something does: a mask of nothing, and a black video.
fn black_video(scene: &Scene<'_>, extra: usize) -> Result<Latent> {
    let LatentShape { batch, frames, height, width, .. } = scene.shape;
    let plane = height * width;
    let value = |channel: usize, frame: usize| {
        let black = channel.checked_sub(MASK_CHANNELS).and_then(|channel| BLACK[frame.min(2)].get(channel));
        black.copied().unwrap_or(0.0)
    };
    let places = (0..extra).flat_map(|channel| (0..frames).map(move |frame| (channel, frame)));
    let one: Vec<f32> =
        places.flat_map(|(channel, frame)| std::iter::repeat_n(value(channel, frame), plane)).collect();
    Ok(Latent::new(vec![batch, extra, frames, height, width], one.repeat(batch))?)
}

/// A picture behind the video, with all the channels that the model is shown: nothing in the place of the latent, a mask of
/// ones, and the picture; the picture alone where nothing stands beside the latent.
fn behind_video(wan: &Wan, picture: &Latent) -> Result<Latent> {
    let picture = wan.latent().to_model(picture)?;
    let LatentShape { batch, channels, frames, height, width } = LatentShape::of(&picture)?;
    let before = wan.config.in_channels.saturating_sub(channels);
    let volume = frames * height * width;
    let mut values = Vec::with_capacity(batch * wan.config.in_channels * volume);
    for own in picture.values().chunks_exact((channels * volume).max(1)) {
        let mask = MASK_CHANNELS.min(before);
        values.resize(values.len() + (before - mask) * volume, 0.0);
        values.resize(values.len() + mask * volume, 1.0);
        values.extend_from_slice(own);
    }
    Ok(Latent::new(vec![batch, before + channels, frames, height, width], values)?)
}

/// A mask of what is made new as one of what is given: four channels, of the latent's size, zero in frames that it lacks.
fn given_where(mask: &Latent, scene: &Scene<'_>) -> Result<Latent> {
    let LatentShape { batch, frames, height, width, .. } = scene.shape;
    let shape = LatentShape::of(mask)?;
    let channels = if shape.channels == MASK_CHANNELS { MASK_CHANNELS } else { 1 };
    let volume = shape.frames * shape.plane();
    let mut kept = Latent::zeros(&[shape.batch, channels, shape.frames, shape.height, shape.width]);
    for (at, value) in kept.values_mut().iter_mut().enumerate() {
        let (item, channel, place) = (at / (channels * volume), at / volume % channels, at % volume);
        let of = |channel: usize| mask.values()[(item * shape.channels + channel) * volume + place];
        let made = if channels == MASK_CHANNELS {
            of(channel)
        } else {
            (0..shape.channels).map(of).sum::<f32>() / shape.channels as f32
        };
        *value = 1.0 - made;
    }
    let kept = kept.resized_and_centred(height, width)?.with_items(batch)?;
    let (have, plane) = (shape.frames.min(frames), height * width);
    let mut values = Vec::with_capacity(batch * MASK_CHANNELS * frames * plane);
    for (item, channel) in (0..batch).flat_map(|item| (0..MASK_CHANNELS).map(move |channel| (item, channel)))
    {
        let start = (item * channels + channel % channels) * shape.frames * plane;
        values.extend_from_slice(&kept.values()[start..start + have * plane]);
        values.resize(values.len() + (frames - have) * plane, 0.0);
    }
    Ok(Latent::new(vec![batch, MASK_CHANNELS, frames, height, width], values)?)
}

fn first_channels(latent: &Latent, count: usize) -> Result<Latent> {
    some_channels(latent, 0, count.min(LatentShape::of(latent)?.channels))
}

fn channels_from(latent: &Latent, start: usize) -> Result<Latent> {
    some_channels(latent, start, LatentShape::of(latent)?.channels - start)
}

fn some_channels(latent: &Latent, start: usize, count: usize) -> Result<Latent> {
    let LatentShape { batch, channels, frames, height, width } = LatentShape::of(latent)?;
    let volume = frames * height * width;
    let items =
        (0..batch).map(|item| &latent.values()[(item * channels + start) * volume..][..count * volume]);
    Ok(Latent::new(vec![batch, count, frames, height, width], items.flatten().copied().collect())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(frames: usize) -> Scene<'static> {
        Scene::empty(LatentShape { batch: 1, channels: 16, frames, height: 1, width: 2 })
    }

    #[test]
    fn masks_say_what_is_given() {
        // One frame is given of two that the mask has, of three of the video.
        let mask = Latent::new(vec![1, 1, 2, 1, 2], vec![0.0, 0.0, 1.0, 1.0]).unwrap();
        let kept = given_where(&mask, &scene(3)).unwrap();
        assert_eq!(kept.shape(), [1, 4, 3, 1, 2]);
        assert_eq!(kept.values(), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0].repeat(4));
        let four = Latent::new(vec![1, 4, 1, 1, 2], vec![0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]).unwrap();
        assert_eq!(given_where(&four, &scene(1)).unwrap().values(), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn some_channels_of_a_picture() {
        let picture = Latent::zeros(&[1, 4, 1, 2]);
        assert_eq!(some_channels(&picture, 1, 2).unwrap().shape(), [1, 2, 1, 1, 2]);
    }
}
