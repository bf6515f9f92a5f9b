//! A patch's picture, made ready: scaled to what a latent needs, encoded, and with what the patch looks at beside it.

use graph::Call;
use models::diffusion::model_patches::{BesidePicture, PatchPicture};
use runtime::{Patching, Pixels, Runtime, Vae};
use sampling::{Latent, LatentSpec};

use crate::control::{Hint, encoded_picture};
use crate::image::{Method, Target, scale_image, scale_mask};
use crate::value::{Image, Mask};
use crate::{Error, Result};

/// The grey that stands for no picture.
const GREY: f32 = 0.5;

/// The picture of a patch for latents of so many rows and columns.
pub(crate) fn ready_picture(
    runtime: &Runtime,
    call: &Call,
    patching: &Patching,
    size: [usize; 2],
) -> Result<Hint> {
    let source = &patching.patch.source;
    let Some(PatchPicture { latent: spec, beside }) = source.patch_network()?.picture() else {
        let (name, part) = (source.name(), &source.part);
        return Err(Error::Told(format!(
            "{name} is {part}, which looks at no picture; load another model patch"
        )));
    };
    let encoder = Encoder { runtime, call, vae: &patching.vae, spec, size };
    let picture = patching.picture.as_ref().map(|picture| encoder.scaled(picture)).transpose()?;
    let latent = match (beside, picture) {
        (BesidePicture::MaskAndRest, picture) => with_rest(&encoder, patching, picture)?,
        (_, None) => {
            return Err(Error::Told(format!(
                "{} looks at one picture only: connect \"image\"",
                patching.patch.source.name()
            )));
        }
        (BesidePicture::Nothing, Some(picture)) => encoder.encoded(&picture)?,
        (BesidePicture::Mask, Some(picture)) => {
            let latent = encoder.encoded(&picture)?;
            let mask = match &patching.kept {
                Some(kept) => plane(kept, size, Method::Bilinear, false)?,
                None => constant(1.0, size),
            };
            joined(&latent, &mask)?
        }
    };
    Hint::of(runtime, latent)
}

/// The picture, where the rest stays, and a latent of the rest; grey where one is not given.
fn with_rest(encoder: &Encoder<'_>, patching: &Patching, picture: Option<Image>) -> Result<Latent> {
    let size = encoder.size;
    let rest = patching.rest.as_ref().map(|rest| encoder.scaled(rest)).transpose()?;
    let grey = |like: &Image| Image::filled(like.host(), like.shape(), GREY);
    let (picture, rest) = match (picture, rest) {
        (Some(picture), Some(rest)) => (picture, rest),
        (Some(picture), None) => {
            let rest = grey(&picture)?;
            (picture, rest)
        }
        (None, Some(rest)) => (grey(&rest)?, rest),
        (None, None) => return Err(Error::Told("a model patch needs a picture".to_owned())),
    };
    let rest = match &patching.kept {
        Some(kept) => only_kept(&rest, kept)?,
        None => rest,
    };
    let mask = match &patching.kept {
        Some(kept) => plane(kept, size, Method::Nearest, true)?,
        None => constant(0.0, size),
    };
    joined(&joined(&encoder.encoded(&picture)?, &mask)?, &encoder.encoded(&rest)?)
}

/// A picture that is grey where a mask, brought to its size and rounded, is not.
fn only_kept(picture: &Image, kept: &Pixels) -> Result<Image> {
    let kept = Mask::of([kept.shape[0], kept.shape[1], kept.shape[2]], kept.values.clone());
    let kept = scale_mask(&kept, Target::cropped(picture.width, picture.height), Method::Bilinear)?;
    let (channels, pixels) = (picture.channels, picture.height * picture.width);
    let value = |(at, value): (usize, &f32)| {
        let (item, pixel) = (at / (pixels * channels), at / channels % pixels);
        let kept = kept.values[item % kept.batch * pixels + pixel].round_ties_even();
        (value - GREY) * kept + GREY
    };
    Image::collect(picture.host(), picture.shape(), picture.values.iter().enumerate().map(value))
}

/// What makes latents of pictures.
struct Encoder<'a> {
    runtime: &'a Runtime,
    call: &'a Call,
    vae: &'a Vae,
    spec: &'a LatentSpec,
    size: [usize; 2],
}

impl Encoder<'_> {
    /// A picture of the size that latents of this size have.
    fn scaled(&self, picture: &Pixels) -> Result<Image> {
        let [height, width] = self.size.map(|values| values * self.spec.pixels_per_value);
        let picture = Image::of(picture.shape, picture.values.clone());
        if picture.batch == 0 || picture.frame_len() == 0 {
            return Err(Error::Told("the picture of a model patch is empty".to_owned()));
        }
        scale_image(&picture, Target::cropped(width, height), Method::Area)
    }

    /// Its latent in the scale of the diffusion model, `[items, channels, height, width]`.
    fn encoded(&self, picture: &Image) -> Result<Latent> {
        encoded_picture(self.runtime, self.call, (self.vae, self.spec), picture)
    }
}

/// A mask as one channel of a latent.
fn plane(mask: &Pixels, [height, width]: [usize; 2], method: Method, is_cropped: bool) -> Result<Latent> {
    let mask = Mask::of([mask.shape[0], mask.shape[1], mask.shape[2]], mask.values.clone());
    let mask = scale_mask(&mask, Target { width, height, is_cropped }, method)?;
    Ok(Latent::new(vec![mask.batch, 1, height, width], mask.values.to_vec())?)
}

/// The same number everywhere.
fn constant(value: f32, [height, width]: [usize; 2]) -> Latent {
    let mut all = Latent::zeros(&[1, 1, height, width]);
    all.values_mut().fill(value);
    all
}

/// Channels behind those of a latent, for each of its items.
fn joined(latent: &Latent, behind: &Latent) -> Result<Latent> {
    let items = latent.shape().first().copied().unwrap_or(1);
    Ok(latent.with_channels_of(&behind.with_items(items)?)?)
}

#[cfg(test)]
mod tests {
    use runtime::host::{Host, Values};

    use super::*;

    fn mask(host: &Host, values: &[f32]) -> Pixels {
        Pixels { shape: [1, 2, 2, 1], values: Values::new(host, values.to_vec()).unwrap() }
    }

    #[test]
    fn what_does_not_stay_is_grey() {
        let host = Host::with_budget(1 << 20);
        let picture = Image::collect(&host, [1, 2, 2, 1], [0.0, 1.0, 0.25, 0.75]).unwrap();
        let kept = only_kept(&picture, &mask(&host, &[1.0, 0.4, 0.6, 0.0])).unwrap();
        assert_eq!(&kept.values[..], [0.0, 0.5, 0.25, 0.5]);
    }

    #[test]
    fn masks_take_the_first_pixel_of_a_value() {
        let host = Host::with_budget(1 << 20);
        let nearest = plane(&mask(&host, &[0.1, 0.2, 0.3, 0.4]), [1, 1], Method::Nearest, true).unwrap();
        assert_eq!(nearest.values(), [0.1]);
        let behind = joined(&Latent::zeros(&[2, 3, 1, 1]), &nearest).unwrap();
        assert_eq!((behind.shape(), behind.values()[3]), (&[2, 4, 1, 1][..], 0.1));
    }
}
