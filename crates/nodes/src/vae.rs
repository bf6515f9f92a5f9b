//! Autoencoders: pictures to latents and back.

use std::sync::Arc;
use std::time::Instant;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema};
use models::vae::Tiling;
use models::vae::kl::Kl;
use residency::{Cancel, Session};
use sampling::Latent;

use crate::conditioning::{resized, without_masked};
use crate::host::Samples;
use crate::sampling_nodes::planes::dims;
use crate::studio::{CodedSize, Network, Vae, Wanted, Work, class};
use crate::value::{Image, LatentImage, Mask};
use crate::wanted::still_wanted;
use crate::{Error, Result, Studio};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, studio: &Arc<Studio>) {
    let studio = || Arc::clone(studio);
    catalogue.add(VAEDecode(studio()));
    catalogue.add(VAEEncode(studio()));
    catalogue.add(VAEDecodeTiled(studio()));
    catalogue.add(VAEEncodeTiled(studio()));
    catalogue.add(VAEEncodeForInpaint(studio()));
}

/// What is done with an autoencoder: how large, and in which tiles if the user said so.
struct Job {
    work: Work,
    tiling: Option<Tiling>,
}

impl Job {
    fn new(work: Work, tiling: Option<Tiling>) -> Job {
        let in_tiles = tiling.and_then(|tiling| work.in_tiles(tiling.tile));
        Job { work: in_tiles.unwrap_or(work), tiling }
    }

    /// The error for a picture that no plan has room for.
    fn too_large(&self, factor: usize, source: placement::PlanError) -> Error {
        match self.work {
            Work::Decode(CodedSize { height, width, .. }) | Work::Encode(CodedSize { height, width, .. }) => {
                Error::PictureTooLarge { width: width * factor, height: height * factor, source }
            }
            _ => source.into(),
        }
    }
}

/// Works with an autoencoder. The tiling is the user's, or one that the plan needs because a whole picture has no room.
fn with_vae<T>(
    studio: &Studio,
    call: &Call,
    vae: &Vae,
    job: &Job,
    mut work: impl FnMut(&Kl, &Session, Option<Tiling>) -> Result<T>,
) -> Result<T> {
    let Network::Kl(kl) = &vae.source.network else {
        return Err(Error::Told(format!("{} is no autoencoder", vae.source.name())));
    };
    let wanted = Wanted { source: &vae.source, beside: &[], loras: &[], work: &job.work };
    let cancel = Cancel::from(Arc::clone(&call.job.cancel));
    let done = studio.with_session(wanted, &cancel, |opened| {
        let started = Instant::now();
        // Where the user's tiles have no room either, smaller ones are planned.
        let smaller = opened.work.tile().filter(|_| opened.work != job.work);
        let planned = smaller.map(|tile| Tiling { tile, overlap: tile / 4 });
        if let (Some(tiles), None) = (planned, job.tiling) {
            let pixels = tiles.tile * kl.config().factor();
            tracing::info!(
                "{}: in tiles of {pixels} pixels, since a whole picture has no room",
                vae.source.name()
            );
        }
        let done = work(kl, &opened.session, planned.or(job.tiling))?;
        studio.note_evaluation(opened, started);
        Ok(done)
    });
    done.map_err(|error| match error {
        Error::Plan(source @ placement::PlanError::NoRoom { .. }) => {
            job.too_large(kl.config().factor(), source)
        }
        other => other,
    })
}

/// A picture's latent, whole or in tiles.
fn encode_with(
    studio: &Studio,
    call: &Call,
    vae: &Vae,
    image: &Image,
    tiling: Option<(usize, usize)>,
) -> Result<Samples> {
    let factor = factor_of(vae)?;
    let tiling = tiling.map(|(tile, overlap)| Tiling { tile: tile / factor, overlap: overlap / factor });
    let job = Job::new(Work::Encode(CodedSize::whole(image.height / factor, image.width / factor)), tiling);
    with_vae(studio, call, vae, &job, |kl, session, tiling| {
        let pixels = session.lane()?.tensor(image.shape(), &image.values)?;
        let latent = match tiling {
            Some(tiling) => kl.encode_tiled(session, &pixels, tiling)?,
            None => kl.encode(session, &pixels)?,
        };
        let room = studio.host.room(latent.dims())?;
        Ok(room.latent(Latent::new(latent.dims().to_vec(), latent.to_vec()?)?))
    })
}

/// A picture's latent.
pub(crate) fn encode(studio: &Studio, call: &Call, vae: &Vae, image: &Image) -> Result<Samples> {
    encode_with(studio, call, vae, image, None)
}

/// Pixels along one side of a latent value.
fn factor_of(vae: &Vae) -> Result<usize> {
    match &vae.source.network {
        Network::Kl(kl) => Ok(kl.config().factor()),
        _ => Err(Error::Told(format!("{} is no autoencoder", vae.source.name()))),
    }
}

/// A latent's picture, whole or in tiles of so many pixels.
fn decode(studio: &Studio, call: &Call, tiling: Option<(usize, usize)>) -> Result<Outcome, Failure> {
    let vae = call.object::<Vae>("vae")?;
    let latent = call.object::<LatentImage>("samples")?;
    let (shape, factor) = (dims(&latent.samples)?, factor_of(&vae)?);
    let Network::Kl(kl) = &vae.source.network else {
        return Err(Failure::value(format!("{} is no autoencoder", vae.source.name())));
    };
    let tiling = tiling.map(|(tile, overlap)| Tiling { tile: tile / factor, overlap: overlap / factor });
    let job = Job::new(Work::Decode(CodedSize::whole(shape[2], shape[3])), tiling);
    // Whether there is a place for the picture is known before it is made.
    let channels = kl.config().out_channels;
    let expected = [shape[0], shape[2].saturating_mul(factor), shape[3].saturating_mul(factor), channels];
    let mut room = Some(studio.host.room(&expected)?);
    let image = with_vae(studio, call, &vae, &job, |kl, session, tiling| {
        let latent = session.lane()?.tensor(shape, latent.samples.values())?;
        let picture = match tiling {
            Some(tiling) => kl.decode_tiled(session, &latent, tiling)?,
            None => kl.decode(session, &latent)?,
        };
        let Ok(shape) = <[usize; 4]>::try_from(picture.dims()) else {
            return Err(Error::Told(format!("a decoded picture has the shape {}", picture.shape())));
        };
        // A second try, with more of the model elsewhere, has to make room again.
        let room = room.take().filter(|_| shape == expected).map_or_else(|| studio.host.room(&shape), Ok)?;
        Ok(Image::of(shape, room.hold(picture.to_vec()?)))
    })?;
    Ok(Outcome::object(image))
}

class! {
    /// The picture of a latent.
    VAEDecode in "latent";
    |schema| schema
        .input(Input::socket("samples", "LATENT"))
        .input(Input::socket("vae", "VAE"))
        .title("VAE Decode")
        .output("IMAGE");
    |studio, call| decode(studio, call, None)
}

class! {
    /// The latent of a picture.
    VAEEncode in "latent";
    |schema| schema
        .input(Input::socket("pixels", "IMAGE"))
        .input(Input::socket("vae", "VAE"))
        .title("VAE Encode")
        .output("LATENT");
    |studio, call| {
        let latent = encode(studio, call, &*call.object::<Vae>("vae")?, &*call.object::<Image>("pixels")?)?;
        Ok(Outcome::object(LatentImage::new(latent)))
    }
}

/// The sizes of tiles in pixels, and of frames, which pictures have none of.
fn tile_inputs(schema: Schema, step: i64) -> Schema {
    schema
        .input(Input::int("tile_size", 512, 64, 4096).with("step", step))
        .input(Input::int("overlap", 64, 0, 4096).with("step", 32))
        .input(Input::int("temporal_size", 64, 8, 4096).with("step", 4))
        .input(Input::int("temporal_overlap", 8, 4, 4096).with("step", 4))
}

class! {
    /// The picture of a latent, in tiles.
    VAEDecodeTiled in "_for_testing";
    |schema| {
        let schema = schema.input(Input::socket("samples", "LATENT")).input(Input::socket("vae", "VAE"));
        tile_inputs(schema, 32).title("VAE Decode (Tiled)").output("IMAGE")
    };
    |studio, call| {
        let (tile, overlap) = (call.size("tile_size")?, call.size("overlap")?);
        let overlap = if tile < overlap * 4 { tile / 4 } else { overlap };
        decode(studio, call, Some((tile, overlap)))
    }
}

class! {
    /// The latent of a picture, in tiles.
    VAEEncodeTiled in "_for_testing";
    |schema| {
        let schema = schema.input(Input::socket("pixels", "IMAGE")).input(Input::socket("vae", "VAE"));
        tile_inputs(schema, 64).title("VAE Encode (Tiled)").output("LATENT")
    };
    |studio, call| {
        let tiling = Some((call.size("tile_size")?, call.size("overlap")?));
        let (vae, image) = (call.object::<Vae>("vae")?, call.object::<Image>("pixels")?);
        Ok(Outcome::object(LatentImage::new(encode_with(studio, call, &vae, &image, tiling)?)))
    }
}

class! {
    /// The latent of a picture whose masked part is made new.
    VAEEncodeForInpaint in "latent/inpaint";
    |schema| schema
        .input(Input::socket("pixels", "IMAGE"))
        .input(Input::socket("vae", "VAE"))
        .input(Input::socket("mask", "MASK"))
        .input(Input::int("grow_mask_by", 6, 0, 64).with("step", 1))
        .title("VAE Encode (for Inpainting)")
        .output("LATENT");
    |studio, call| {
        let (vae, pixels) = (call.object::<Vae>("vae")?, call.object::<Image>("pixels")?);
        let Network::Kl(kl) = &vae.source.network else {
            return Err(Failure::value("the vae input is no autoencoder"));
        };
        let mask = resized(&*call.object::<Mask>("mask")?, pixels.height, pixels.width)?;
        let (emptied, mask) = without_masked(&pixels, &mask, kl.config().factor())?;
        let latent = encode(studio, call, &vae, &emptied)?;
        let noise_mask = Some(grown(&mask, call.size("grow_mask_by")?)?);
        Ok(Outcome::object(LatentImage { noise_mask, ..LatentImage::new(latent) }))
    }
}

/// A mask of zeros and ones, with everything near a one set as well.
fn grown(mask: &Mask, by: usize) -> Result<Mask> {
    let round = |value: f32| value.round_ties_even();
    let mut out = mask.map(round)?;
    if by == 0 {
        return Ok(out);
    }
    // A square of this side around each place, which for even sides reaches further up and left.
    let before = (by - 1).div_ceil(2);
    let reach = |at: usize, length: usize| at.saturating_sub(before)..(at + by - before).min(length);
    let plane = mask.height * mask.width;
    for (at, value) in out.values.to_mut()?.iter_mut().enumerate() {
        let (item, y, x) = (at / plane.max(1), at / mask.width % mask.height, at % mask.width);
        if x == 0 {
            still_wanted()?;
        }
        let near = |y: usize, x: usize| round(mask.values[item * plane + y * mask.width + x]);
        let sum: f32 = reach(y, mask.height)
            .flat_map(|y| reach(x, mask.width).map(move |x| (y, x)))
            .map(|(y, x)| near(y, x))
            .sum();
        *value = round(sum.clamp(0.0, 1.0));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;

    #[test]
    fn masks_grow_by_a_square() {
        let mut values = vec![0.0; 49];
        values[3 * 7 + 3] = 0.9;
        let mask = Mask::collect(&Host::with_budget(1 << 30), [1, 7, 7], values).unwrap();
        let ones = |by: usize| grown(&mask, by).unwrap().values.iter().filter(|value| **value == 1.0).count();
        assert_eq!((ones(0), ones(1), ones(3)), (1, 1, 9));
        // An even side reaches one further down and right, where the square begins earlier.
        let even = grown(&mask, 2).unwrap();
        let set: Vec<usize> = (0..49).filter(|at| even.values[*at] == 1.0).collect();
        assert_eq!(set, [3 * 7 + 3, 3 * 7 + 4, 4 * 7 + 3, 4 * 7 + 4]);
    }
}
