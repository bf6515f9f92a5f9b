//! Pictures and latents made larger by a model.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use graph::{Call, Catalogue, Failure, Input, Object, Outcome};
use models::upscale::{Pixels, USUAL_TILES, Upscaler, enlarge};
use models::vae::{CodedSize, Tiling};
use runtime::host::Samples;
use sampling::{Latent, LatentShape};

use crate::class::class;
use crate::value::Image;
use crate::{Error, Result, Runtime};
use runtime::{Caller, Network, Source, Wanted, Work};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(ImageUpscaleWithModel(Arc::clone(runtime)));
}

/// An upscaler: `UPSCALE_MODEL`.
#[derive(Clone)]
pub(crate) struct UpscaleModel {
    pub(crate) source: Arc<Source>,
}

impl UpscaleModel {
    fn upscaler(&self) -> Result<&dyn Upscaler> {
        match &*self.source.network {
            Network::Upscale(upscaler) => Ok(&**upscaler),
            _ => Err(Error::Told(format!("{} is no upscaler", self.source.name()))),
        }
    }
}

impl Object for UpscaleModel {
    fn is_current(&self) -> bool {
        self.source.is_current()
    }

    fn describe(&self) -> String {
        format!("upscaler {}", self.source.name())
    }
}

impl fmt::Debug for UpscaleModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

/// An upscaler of latents: `LATENT_UPSCALE_MODEL`.
#[derive(Clone)]
pub(crate) struct LatentUpscaleModel {
    pub(crate) source: Arc<Source>,
}

impl LatentUpscaleModel {
    /// A latent `[batch, channels, frames, height, width]` as the autoencoder's layers have it, enlarged, one after the other.
    pub(crate) fn enlarge(&self, runtime: &Runtime, call: &Call, latent: &Latent) -> Result<Samples> {
        let Network::LatentUpscale(upscaler) = &*self.source.network else {
            return Err(Error::Told(format!("{} is no upscaler of latents", self.source.name())));
        };
        let LatentShape { batch, channels, frames, height, width } = LatentShape::of(latent)?;
        if channels != upscaler.channels() {
            let (name, wanted) = (self.source.name(), upscaler.channels());
            let told = format!("{name} enlarges latents of {wanted} channels, but this one has {channels}");
            return Err(Error::Told(told));
        }
        let scale = upscaler.scale();
        let shape = [batch, channels, frames, scale * height, scale * width];
        let room = runtime.host.room(&shape)?;
        let work = Work::Enlarge(CodedSize::video(frames, height, width));
        let wanted = Wanted { source: &self.source, beside: &[], loras: &[], work: &work };
        let caller = Caller::of(&call.job);
        let item = channels * frames * height * width;
        let values = runtime.with_session(wanted, &caller, |opened| {
            let mut values = Vec::with_capacity(shape.iter().product());
            for own in latent.values().chunks_exact(item.max(1)) {
                let started = Instant::now();
                let own = opened.session.lane()?.tensor([1, channels, frames, height, width], own)?;
                values.extend(upscaler.enlarge(&opened.session, &own)?.to_vec()?);
                runtime.note_evaluation(opened, started);
            }
            Ok(values)
        })?;
        Ok(room.latent(Latent::new(shape.to_vec(), values)?))
    }
}

impl Object for LatentUpscaleModel {
    fn is_current(&self) -> bool {
        self.source.is_current()
    }

    fn describe(&self) -> String {
        format!("upscaler of latents {}", self.source.name())
    }
}

impl fmt::Debug for LatentUpscaleModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

class! {
    /// Pictures made larger by a model, in tiles.
    ImageUpscaleWithModel in "image/upscaling";
    |schema| schema
        .input(Input::socket("upscale_model", "UPSCALE_MODEL"))
        .input(Input::socket("image", "IMAGE"))
        .title("Upscale Image (using Model)")
        .output("IMAGE");
    |runtime, call| {
        let model = call.object::<UpscaleModel>("upscale_model")?;
        let image = call.object::<Image>("image")?;
        Ok(Outcome::object(upscaled(runtime, call, &model, &image)?))
    }
}

fn upscaled(runtime: &Runtime, call: &Call, model: &UpscaleModel, image: &Image) -> Result<Image, Failure> {
    let upscaler = model.upscaler()?;
    let [channels, out_channels] = upscaler.channels();
    if image.channels < channels || out_channels < 3 {
        return Err(Failure::value(format!(
            "{} takes pictures of {channels} channels and gives {out_channels}, but the picture has {}; use an upscaler \
             for colours",
            model.source.name(),
            image.channels
        )));
    }
    let image = image.with_channels(channels)?;
    let side = |length: usize| length.saturating_mul(upscaler.scale());
    let (height, width) = (side(image.height), side(image.width));
    let shape = [image.batch, height, width, out_channels];
    let room = runtime.host.room(&shape)?;
    // One picture is put together of its tiles at a time, beside the weight of each pixel.
    let scratch = runtime.host.room(&[height, width, out_channels + 1])?;
    let mut values = room.vector()?;
    for index in 0..image.batch {
        values.extend(one(runtime, call, model, &image, index)?);
    }
    drop(scratch);
    Ok(Image::of(shape, room.hold(values)))
}

/// One picture of a batch, enlarged.
fn one(
    runtime: &Runtime,
    call: &Call,
    model: &UpscaleModel,
    image: &Image,
    index: usize,
) -> Result<Vec<f32>, Failure> {
    let upscaler = model.upscaler()?;
    let (height, width) = (image.height, image.width);
    let pixels = Pixels { height, width, values: image.frame(index) };
    let work = Work::upscale(height, width);
    let wanted = Wanted { source: &model.source, beside: &[], loras: &[], work: &work };
    let caller = Caller::of(&call.job);
    let mut told = |done: usize, total: usize| {
        let (value, max) = (index * total + done, image.batch * total);
        let told = call.progress(value as f64, max as f64, None);
        told.map_err(|_| models::Error::Device(device::Error::Cancelled))
    };
    let large = runtime.with_session(wanted, &caller, |opened| {
        let started = Instant::now();
        let tile = opened.work.tile().unwrap_or(USUAL_TILES.tile);
        let tiling = Tiling { tile, ..USUAL_TILES };
        let large = enlarge(upscaler, &opened.session, &pixels, tiling, &mut told)?;
        runtime.note_evaluation(opened, started);
        Ok(large)
    });
    large.map_err(|error| match error {
        Error::Plan(source @ placement::PlanError::NoRoom { .. }) => {
            Error::PictureTooLarge { width, height, source }.into()
        }
        other => other.into(),
    })
}
