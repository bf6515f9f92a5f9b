//! Autoencoders: pictures to latents and back.

use std::sync::Arc;
use std::time::Instant;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema};
use models::vae::{Autoencoder, CodedSize, FrameTiles, Pictures, Tiling};
use residency::Session;
use sampling::{Latent, LatentShape};

use crate::class::class;
use crate::conditioning::{resized, without_masked};
use crate::value::{Image, LatentImage, Mask};
use crate::wanted::still_wanted;
use crate::{Error, Result, Runtime};
use runtime::host::Samples;
use runtime::{Caller, Network, Vae, Wanted, Work};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(VAEDecode(runtime()));
    catalogue.add(VAEEncode(runtime()));
    catalogue.add(VAEDecodeTiled(runtime()));
    catalogue.add(VAEEncodeTiled(runtime()));
    catalogue.add(VAEEncodeForInpaint(runtime()));
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
    runtime: &Runtime,
    call: &Call,
    vae: &Vae,
    job: &Job,
    mut work: impl FnMut(&dyn Autoencoder, &Session, Option<Tiling>) -> Result<T>,
) -> Result<T> {
    let autoencoder = autoencoder_of(vae)?;
    let wanted = Wanted { source: &vae.source, beside: &[], loras: &[], work: &job.work };
    let caller = Caller::of(&call.job);
    let done = runtime.with_session(wanted, &caller, |opened| {
        let started = Instant::now();
        // Where the user's tiles have no room either, smaller ones are planned.
        let smaller = opened.work.tile().filter(|_| opened.work != job.work);
        let frames = job.tiling.and_then(|tiling| tiling.frames);
        let planned = smaller.map(|tile| Tiling { tile, overlap: tile / 4, frames });
        if let (Some(tiles), None) = (planned, job.tiling) {
            let pixels = tiles.tile * autoencoder.pixels_per_value();
            tracing::info!(
                "{}: in tiles of {pixels} pixels, since a whole picture has no room",
                vae.source.name()
            );
        }
        let done = work(autoencoder, &opened.session, planned.or(job.tiling))?;
        runtime.note_evaluation(opened, started);
        Ok(done)
    });
    done.map_err(|error| match error {
        Error::Plan(source @ placement::PlanError::NoRoom { .. }) => {
            job.too_large(autoencoder.pixels_per_value(), source)
        }
        other => other,
    })
}

/// Tiles as nodes are told them: pixels along a side, how many two share, and the same of frames.
#[derive(Clone, Copy)]
struct AskedTiles {
    tile: usize,
    overlap: usize,
    frames: FrameTiles,
}

impl AskedTiles {
    fn of(call: &Call) -> Result<AskedTiles, Failure> {
        Ok(AskedTiles {
            tile: call.size("tile_size")?,
            overlap: call.size("overlap")?,
            frames: FrameTiles { tile: call.size("temporal_size")?, overlap: call.size("temporal_overlap")? },
        })
    }

    /// The same in latent values; `values` counts frames of a latent for those of a video.
    fn in_values(self, autoencoder: &dyn Autoencoder, values: impl Fn(usize, usize) -> usize) -> Tiling {
        let factor = autoencoder.pixels_per_value();
        let frames = autoencoder.frames_per_value().map(|by| {
            let tile = values(self.frames.tile, by).max(2);
            FrameTiles { tile, overlap: values(self.frames.overlap, by).min(tile / 2).max(1) }
        });
        Tiling { tile: self.tile / factor, overlap: self.overlap / factor, frames }
    }
}

/// A picture's or a video's latent, whole or in tiles.
fn encode_with(
    runtime: &Runtime,
    call: &Call,
    vae: &Vae,
    image: &Image,
    tiles: Option<AskedTiles>,
) -> Result<Samples> {
    let autoencoder = autoencoder_of(vae)?;
    let factor = autoencoder.pixels_per_value();
    let tiling = tiles.map(|tiles| tiles.in_values(autoencoder, usize::div_ceil));
    let (height, width) = (image.height / factor, image.width / factor);
    let size = match autoencoder.frames_per_value() {
        Some(by) => CodedSize::video(image.batch.saturating_sub(1) / by + 1, height, width),
        None => CodedSize::whole(height, width),
    };
    let job = Job::new(Work::Encode(size), tiling);
    with_vae(runtime, call, vae, &job, |autoencoder, session, tiling| {
        let pictures = Pictures { shape: image.shape(), values: &image.values };
        let latent = autoencoder.encode(session, &pictures, tiling)?;
        let room = runtime.host.room(latent.dims())?;
        Ok(room.latent(Latent::new(latent.dims().to_vec(), latent.to_vec()?)?))
    })
}

/// A picture's or a video's latent.
pub(crate) fn encode(runtime: &Runtime, call: &Call, vae: &Vae, image: &Image) -> Result<Samples> {
    encode_with(runtime, call, vae, image, None)
}

/// The means and deviations of the channels of an autoencoder's latents, if its layers have latents without them.
pub(crate) fn channel_statistics(vae: &Vae) -> Result<Option<[Vec<f32>; 2]>> {
    Ok(autoencoder_of(vae)?.channel_statistics(&vae.source.file))
}

/// Channels of the latents that an autoencoder makes.
pub(crate) fn latent_channels(vae: &Vae) -> Result<usize> {
    Ok(autoencoder_of(vae)?.latent_channels())
}

fn autoencoder_of(vae: &Vae) -> Result<&dyn Autoencoder> {
    match &*vae.source.network {
        Network::Autoencoder(autoencoder) => Ok(&**autoencoder),
        _ => Err(Error::Told(format!("{} is no autoencoder", vae.source.name()))),
    }
}

/// A latent's pictures, whole or in tiles.
fn decode(runtime: &Runtime, call: &Call, tiles: Option<AskedTiles>) -> Result<Outcome, Failure> {
    let vae = call.object::<Vae>("vae")?;
    let latent = call.object::<LatentImage>("samples")?;
    let autoencoder = autoencoder_of(&vae)?;
    let LatentShape { batch, channels, frames, height, width } =
        LatentShape::of(&latent.samples).map_err(Error::from)?;
    let made = match autoencoder.frames_per_value() {
        Some(by) => frames.saturating_sub(1) * by + 1,
        // A video with one frame is a picture.
        None if frames == 1 => 1,
        None => {
            let text = format!("the latent has {frames} frames, but the autoencoder is for pictures");
            return Err(Failure::value(text));
        }
    };
    let factor = autoencoder.pixels_per_value();
    let tiling = tiles.map(|tiles| tiles.in_values(autoencoder, |frames, by| frames / by));
    let together = if autoencoder.pictures_are_frames() { batch } else { frames };
    let job = Job::new(Work::Decode(CodedSize::video(together, height, width)), tiling);
    // Whether there is a place for the pictures is known before they are made.
    let shape = [
        batch.saturating_mul(made),
        height.saturating_mul(factor),
        width.saturating_mul(factor),
        autoencoder.picture_channels(),
    ];
    let mut room = Some(runtime.host.room(&shape)?);
    let image = with_vae(runtime, call, &vae, &job, |autoencoder, session, tiling| {
        let latent =
            session.lane()?.tensor([batch, channels, frames, height, width], latent.samples.values())?;
        // A second try, with more of the model elsewhere, has to make room again.
        let room = room.take().map_or_else(|| runtime.host.room(&shape), Ok)?;
        let mut values = room.vector()?;
        autoencoder.decode(session, &latent, tiling, &mut |pictures| {
            values.extend_from_slice(pictures);
            Ok(())
        })?;
        if values.len() != shape.iter().product::<usize>() {
            return Err(Error::Told(format!(
                "{} decoded values do not make pictures of {shape:?}",
                values.len()
            )));
        }
        Ok(Image::of(shape, room.hold(values)))
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
    |runtime, call| decode(runtime, call, None)
}

class! {
    /// The latent of a picture.
    VAEEncode in "latent";
    |schema| schema
        .input(Input::socket("pixels", "IMAGE"))
        .input(Input::socket("vae", "VAE"))
        .title("VAE Encode")
        .output("LATENT");
    |runtime, call| {
        let latent = encode(runtime, call, &*call.object::<Vae>("vae")?, &*call.object::<Image>("pixels")?)?;
        Ok(Outcome::object(LatentImage::new(latent)))
    }
}

/// The sizes of tiles in pixels and in frames; pictures have none of the latter.
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
    |runtime, call| {
        let mut tiles = AskedTiles::of(call)?;
        if tiles.tile < tiles.overlap * 4 {
            tiles.overlap = tiles.tile / 4;
        }
        if tiles.frames.tile < tiles.frames.overlap * 2 {
            tiles.frames.overlap /= 2;
        }
        decode(runtime, call, Some(tiles))
    }
}

class! {
    /// The latent of a picture, in tiles.
    VAEEncodeTiled in "_for_testing";
    |schema| {
        let schema = schema.input(Input::socket("pixels", "IMAGE")).input(Input::socket("vae", "VAE"));
        tile_inputs(schema, 64).title("VAE Encode (Tiled)").output("LATENT")
    };
    |runtime, call| {
        let tiling = Some(AskedTiles::of(call)?);
        let (vae, image) = (call.object::<Vae>("vae")?, call.object::<Image>("pixels")?);
        Ok(Outcome::object(LatentImage::new(encode_with(runtime, call, &vae, &image, tiling)?)))
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
    |runtime, call| {
        let (vae, pixels) = (call.object::<Vae>("vae")?, call.object::<Image>("pixels")?);
        let factor = autoencoder_of(&vae)?.pixels_per_value();
        let mask = resized(&*call.object::<Mask>("mask")?, pixels.height, pixels.width)?;
        let (emptied, mask) = without_masked(&pixels, &mask, factor)?;
        let latent = encode(runtime, call, &vae, &emptied)?;
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
    use runtime::host::Host;

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
