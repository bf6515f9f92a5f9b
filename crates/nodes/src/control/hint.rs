//! A control network's picture, made ready: scaled to what a latent needs, encoded if the network looks at latents, and with
//! its mask beside it.

use graph::Call;
use models::conditioning::Array;
use models::control::{HintForm, HintSpec};
use runtime::host::Room;
use runtime::{Network, Runtime, Vae};
use sampling::{Latent, LatentShape, LatentSpec};

use crate::image::{Method, Target, scale_image, scale_mask};
use crate::value::{Control, Image};
use crate::{Error, Result, vae};

/// A picture that is ready, in the host's ledger.
pub(crate) struct Hint {
    /// `[items, channels, height, width]`.
    pub(crate) array: Array,
    _room: Room,
}

/// The picture of a control for latents of so many items, rows and columns.
pub(crate) fn ready_hint(
    runtime: &Runtime,
    call: &Call,
    control: &Control,
    [batch, height, width]: [usize; 3],
) -> Result<Hint> {
    let network = control.network.source.control_network()?;
    let spec = network.hint();
    let picture = &*control.picture;
    if picture.batch == 0 || picture.frame_len() == 0 {
        return Err(Error::Told("the control picture is empty".to_owned()));
    }
    let picture = if picture.batch > batch { picture.frames(0..batch)? } else { picture.clone() };
    let latent = match spec.form {
        HintForm::Pixels { channels, .. } => pixels(control, &spec, &picture, [channels, height, width])?,
        HintForm::Latent(latents) => {
            encoded(runtime, call, control, (&spec, latents), (&picture, [height, width]))?
        }
    };
    let latent = if spec.takes_mask { with_mask(control, &latent)? } else { latent };
    // One picture is for all items; several are begun again from the start.
    let latent = if latent.shape().first() == Some(&1) { latent } else { latent.with_items(batch)? };
    Hint::of(runtime, latent)
}

impl Hint {
    /// A latent as a picture that is ready.
    pub(crate) fn of(runtime: &Runtime, latent: Latent) -> Result<Hint> {
        let room = runtime.host.room(latent.shape())?;
        let array = Array { shape: latent.shape().to_vec(), values: latent.into_values() };
        Ok(Hint { array, _room: room })
    }
}

/// Pixels of the size that the network wants, channels first.
fn pixels(
    control: &Control,
    spec: &HintSpec,
    picture: &Image,
    [channels, height, width]: [usize; 3],
) -> Result<Latent> {
    let [_, height, width] = spec.shape(height, width);
    let picture = scale_image(picture, Target::cropped(width, height), Method::NearestExact)?;
    let picture = picture.map(spec.preparing)?;
    if channels != 1 && picture.channels != channels {
        return Err(Error::Told(format!(
            "the control picture has {} channels, and {} looks at {channels}; give it a picture without transparency",
            picture.channels,
            control.network.source.name()
        )));
    }
    planes(&picture, channels)
}

/// `[batch, height, width, channels]` as `[batch, channels, height, width]`; one channel is the mean of all.
fn planes(picture: &Image, channels: usize) -> Result<Latent> {
    let Image { batch, height, width, channels: has, .. } = *picture;
    let pixels = height * width;
    let mut values = crate::value::reserved(&[batch, channels, height, width])?;
    for item in 0..batch {
        let frame = picture.frame(item);
        for channel in 0..channels {
            if channels == 1 {
                let mean = |pixel: &[f32]| pixel.iter().sum::<f32>() / has as f32;
                values.extend(frame.chunks_exact(has).map(mean));
            } else {
                values.extend((0..pixels).map(|pixel| frame[pixel * has + channel]));
            }
        }
    }
    Ok(Latent::new(vec![batch, channels, height, width], values)?)
}

/// The picture's latent in the scale of the diffusion model.
fn encoded(
    runtime: &Runtime,
    call: &Call,
    control: &Control,
    (spec, latents): (&HintSpec, &LatentSpec),
    (picture, [height, width]): (&Image, [usize; 2]),
) -> Result<Latent> {
    let source = &control.network.source;
    let Some(vae) = &control.vae else {
        return Err(Error::Told(format!(
            "{} is {}, which looks at latents of pictures: connect the model's VAE to the input \"vae\" of the node that \
             applies it (\"Apply ControlNet\" has one, the old one does not)",
            source.name(),
            source.part
        )));
    };
    let pixels = match &*vae.source.network {
        Network::Autoencoder(autoencoder) => autoencoder.pixels_per_value(),
        _ => latents.pixels_per_value,
    };
    let picture =
        scale_image(picture, Target::cropped(width * pixels, height * pixels), Method::NearestExact)?;
    encoded_picture(runtime, call, (vae, latents), &picture.map(spec.preparing)?)
}

/// The latent of a picture for a network that looks at such latents, in their scale, `[items, channels, height, width]`.
pub(crate) fn encoded_picture(
    runtime: &Runtime,
    call: &Call,
    (vae, latents): (&Vae, &LatentSpec),
    picture: &Image,
) -> Result<Latent> {
    let channels = vae::latent_channels(vae)?;
    if channels != latents.channels {
        return Err(Error::Told(format!(
            "the autoencoder {} gives latents of {channels} channels, and those of {} have {}; connect the VAE that belongs \
             to the model",
            vae.source.name(),
            latents.name,
            latents.channels
        )));
    }
    let samples = vae::encode(runtime, call, vae, picture)?;
    let latent = latents.to_model(&samples)?;
    let LatentShape { batch, channels, frames, height, width } = LatentShape::of(&latent)?;
    if frames != 1 {
        return Err(Error::Told(format!(
            "{} pictures are {frames} frames for the autoencoder {}, and the network looks at one; give it one picture",
            picture.batch,
            vae.source.name()
        )));
    }
    Ok(Latent::new(vec![batch, channels, height, width], latent.into_values())?)
}

/// A picture with the mask as one more channel; ones where no mask is given.
fn with_mask(control: &Control, picture: &Latent) -> Result<Latent> {
    let &[batch, _, height, width] = picture.shape() else {
        return Err(Error::Told(format!("a control picture has the shape {:?}", picture.shape())));
    };
    let mask = match &control.mask {
        Some(mask) => {
            let mask = scale_mask(mask, Target::cropped(width, height), Method::NearestExact)?;
            Latent::new(vec![mask.batch, 1, height, width], mask.values.to_vec())?
        }
        None => {
            let mut ones = Latent::zeros(&[1, 1, height, width]);
            ones.values_mut().fill(1.0);
            ones
        }
    };
    Ok(picture.with_channels_of(&mask.with_items(batch)?)?)
}
