//! The KL autoencoder of Stable Diffusion and FLUX: residual blocks around one attention, in stages that double
//! or halve the size. Scale and shift between its latents and those of a diffusion model are not its business.

mod config;
mod layers;
mod weights;

use std::borrow::Cow;
use std::ops::Range;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Manifest, Session};
use tensor::Tensor;

use super::tiles::{Canvas, Ratio, Window};
use super::{Autoencoder, AutoencoderFamily, CodedSize, Pictures, TakePictures, Tiling};
use crate::claims::Claims;
use crate::detect::{Detected, Neighbours, Part, Reader, Role, Sign};
use crate::rehearsal::{arrived, read_back};
use crate::{Error, Module, Probe, Result};
pub use config::Config;
use layers::Layers;

/// What errors call a file that should have this model.
const WANTED: &str = "a KL autoencoder";
/// Tiles that most devices have room for, in latent values.
const USUAL_TILES: Tiling = Tiling::square(64, 16);

/// The family.
pub const FAMILY: AutoencoderFamily = AutoencoderFamily {
    name: "the KL autoencoders for pictures (4, 16 or 32 channels)",
    signs: &[
        Sign::native("decoder.conv_in.weight", decoder),
        Sign::native("encoder.conv_in.weight", encoder),
    ],
    read: |checkpoint, part| Ok(Box::new(Kl::of_part(checkpoint, part)?)),
};

fn decoder(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    match *found.own_dims() {
        [_, channels, _, _] => Some(named(found, channels)),
        _ => None,
    }
}

/// An autoencoder that only encodes.
fn encoder(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let moments = found.dims("encoder.conv_out.weight")?;
    let mid = found.has("encoder.mid.block_1.norm1.weight");
    (mid && moments.len() == 4).then(|| named(found, moments[0] / 2))
}

fn named(found: &Neighbours<'_>, channels: usize) -> Cow<'static, str> {
    let patches = if found.has("bn.running_mean") { " in patches" } else { "" };
    Cow::Owned(format!("KL, {channels} channels{patches}"))
}

/// A KL autoencoder: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Kl {
    config: Config,
    prefix: String,
}

impl Kl {
    /// Reads the autoencoder's sizes from a file.
    pub fn read(checkpoint: &Checkpoint, detected: &Detected) -> Result<Kl> {
        let part = detected.part(Role::Autoencoder, WANTED)?;
        if part.reader != Some(Reader::Autoencoder(&FAMILY)) {
            return Err(detected.wrong_kind(WANTED));
        }
        Kl::of_part(checkpoint, part)
    }

    fn of_part(checkpoint: &Checkpoint, part: &Part) -> Result<Kl> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY))?;
        Ok(Kl { config, prefix: part.prefix.clone() })
    }

    /// The autoencoder's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Latents `[batch, channels, height, width]` to images `[batch, height, width, 3]` of values from 0 to 1, one
    /// after the other. If a device has no room for a whole one, it is made in tiles.
    pub fn decode(&self, session: &Session, latent: &Tensor) -> Result<Tensor> {
        self.check_latent(latent)?;
        self.each_video(latent, |latent| {
            whole_or_in_tiles(
                || self.decode_whole(session, latent, &mut Probe::none()),
                |tiling| self.decode_tiled(session, latent, tiling),
            )
        })
    }

    /// The results for what is decoded by itself: one picture, or all of them as the frames of a video.
    fn each_video(&self, batch: &Tensor, compute: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        if self.config.has_frames { compute(batch) } else { each_item(batch, compute) }
    }

    /// As [`Kl::decode`], always whole, with a look at what the modules compute.
    pub fn decode_whole(&self, session: &Session, latent: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        self.check_latent(latent)?;
        Kl::image_of(&self.decode_raw(session, latent, probe)?)
    }

    /// As [`Kl::decode`], always in tiles; their size is in latent values.
    pub fn decode_tiled(&self, session: &Session, latent: &Tensor, tiling: Tiling) -> Result<Tensor> {
        self.check_latent(latent)?;
        let canvas = Canvas {
            height: latent.dim(2),
            width: latent.dim(3),
            ratio: Ratio { up: self.config.factor(), down: 1 },
            channels: self.config.out_channels,
        };
        let decode = |part: &Tensor| self.decode_raw(session, part, &mut Probe::none());
        if !self.config.has_frames {
            return Kl::image_of(&in_tiles(session, latent, &canvas, tiling, decode)?);
        }
        // A tile has a part of every frame.
        let (frames, channels) = (latent.dim(0), self.config.out_channels);
        let canvas = Canvas { channels: frames * channels, ..canvas };
        let values = canvas.compute(tiling, |Window { top, left, height, width }| {
            let part = latent.slice(2, top, height)?.slice(3, left, width)?.contiguous()?;
            Ok(decode(&part)?.to_vec()?)
        })?;
        let [_, _, height, width] = canvas.shape(1);
        Kl::image_of(&session.lane()?.tensor([frames, channels, height, width], &values)?)
    }

    /// Images `[batch, height, width, 3]` of values from 0 to 1 to latents `[batch, channels, height, width]`, one
    /// after the other: the mean of the distribution. What a size has over a multiple of the factor is cut off on
    /// both sides. If a device has no room for a whole image, it is encoded in tiles.
    pub fn encode(&self, session: &Session, image: &Tensor) -> Result<Tensor> {
        each_item(&self.pixels_of(image)?, |pixels| {
            whole_or_in_tiles(
                || self.encode_raw(session, pixels),
                |tiling| self.encode_pixels_tiled(session, pixels, tiling),
            )
        })
    }

    /// As [`Kl::encode`], always whole.
    pub fn encode_whole(&self, session: &Session, image: &Tensor) -> Result<Tensor> {
        self.encode_raw(session, &self.pixels_of(image)?)
    }

    /// As [`Kl::encode`], always in tiles; their size is in latent values.
    pub fn encode_tiled(&self, session: &Session, image: &Tensor, tiling: Tiling) -> Result<Tensor> {
        self.encode_pixels_tiled(session, &self.pixels_of(image)?, tiling)
    }

    fn encode_pixels_tiled(&self, session: &Session, pixels: &Tensor, tiling: Tiling) -> Result<Tensor> {
        let factor = self.config.factor();
        let tiling = Tiling::square(tiling.tile * factor, tiling.overlap * factor);
        let canvas = Canvas {
            height: pixels.dim(2),
            width: pixels.dim(3),
            ratio: Ratio { up: 1, down: factor },
            channels: self.config.latent_channels,
        };
        in_tiles(session, pixels, &canvas, tiling, |part| self.encode_raw(session, part))
    }

    /// Values from -1 to 1, channels first, as an image.
    pub fn image_of(raw: &Tensor) -> Result<Tensor> {
        Ok(raw.affine(0.5, 0.5)?.clamp(0.0, 1.0)?.permute(&[0, 2, 3, 1])?)
    }

    /// The decoder itself: images `[batch, 3, height, width]` of values from about -1 to 1.
    fn decode_raw(&self, session: &Session, latent: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let mut x = latent.clone();
        for block in self.blocks(session, "decoder.")? {
            let lease = session.lease(block)?;
            x = lease.bring(&x)?;
            let name = &session.manifest().blocks()[block].name;
            x = Layers { config: &self.config, lease: &lease }.decode(name, x, probe)?;
        }
        Ok(x)
    }

    /// The encoder itself, from values of -1 to 1 to the mean.
    fn encode_raw(&self, session: &Session, pixels: &Tensor) -> Result<Tensor> {
        let mut x = pixels.clone();
        for block in self.blocks(session, "encoder.")? {
            let lease = session.lease(block)?;
            x = lease.bring(&x)?;
            let name = &session.manifest().blocks()[block].name;
            x = Layers { config: &self.config, lease: &lease }.encode(name, x)?;
        }
        Ok(x)
    }

    /// The blocks of one half of the autoencoder.
    fn blocks(&self, session: &Session, half: &'static str) -> Result<Range<usize>> {
        let is_of_half = |name: &str| name.starts_with(half);
        let names = || session.manifest().blocks().iter().map(|block| block.name.as_str());
        let count = names().filter(|name| is_of_half(name)).count();
        match names().position(is_of_half) {
            Some(start) => Ok(start..start + count),
            None => Err(Error::MissingTensor {
                file: session.manifest().name().to_owned(),
                tensor: format!("{}{half}conv_in.weight", self.prefix),
                family: config::FAMILY,
                seems: "an autoencoder with one half only".into(),
            }),
        }
    }

    fn check_latent(&self, latent: &Tensor) -> Result<()> {
        let channels = self.config.latent_channels;
        if latent.rank() == 4 && latent.dim(1) == channels && !latent.dims().contains(&0) {
            return Ok(());
        }
        Err(Error::Input {
            what: "the latent",
            expected: format!("[batch, {channels}, height, width]"),
            got: format!("of shape {}", latent.shape()),
        })
    }

    /// An image as the encoder wants it: channels first, -1 to 1, sizes multiples of the factor.
    fn pixels_of(&self, image: &Tensor) -> Result<Tensor> {
        let (factor, channels) = (self.config.factor(), self.config.in_channels);
        let fits = image.rank() == 4 && image.dim(3) >= channels;
        if !fits || image.dim(0) == 0 || image.dim(1) < factor || image.dim(2) < factor {
            return Err(Error::Input {
                what: "the image",
                expected: format!(
                    "[batch, height, width, {channels}] of at least {factor} x {factor} pixels"
                ),
                got: format!("of shape {}", image.shape()),
            });
        }
        let mut pixels = image.slice(3, 0, channels)?;
        for axis in [1, 2] {
            let over = pixels.dim(axis) % factor;
            pixels = pixels.slice(axis, over / 2, pixels.dim(axis) - over)?;
        }
        Ok(pixels.permute(&[0, 3, 1, 2])?.contiguous()?.affine(2.0, -1.0)?)
    }
}

impl Module for Kl {
    /// The decoder's blocks, then the encoder's.
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    /// The last layers of its decoder outgrow f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}

impl Autoencoder for Kl {
    fn latent_channels(&self) -> usize {
        self.config.latent_channels
    }

    fn picture_channels(&self) -> usize {
        self.config.out_channels
    }

    fn pixels_per_value(&self) -> usize {
        self.config.factor()
    }

    fn pictures_are_frames(&self) -> bool {
        self.config.has_frames
    }

    fn decode(
        &self,
        session: &Session,
        latent: &Tensor,
        tiling: Option<Tiling>,
        take: &mut TakePictures<'_>,
    ) -> Result<()> {
        // Of a video with one frame, that is the picture.
        let latent = match *latent.dims() {
            [batch, channels, 1, height, width] => latent.reshape([batch, channels, height, width])?,
            _ => latent.clone(),
        };
        let pictures = match tiling {
            Some(tiling) => self.decode_tiled(session, &latent, tiling)?,
            None => Kl::decode(self, session, &latent)?,
        };
        take(&pictures.to_vec()?)
    }

    fn encode(&self, session: &Session, pictures: &Pictures<'_>, tiling: Option<Tiling>) -> Result<Tensor> {
        let picture = pictures.on(session.lane()?)?;
        match tiling {
            Some(tiling) => self.encode_tiled(session, &picture, tiling),
            None => Kl::encode(self, session, &picture),
        }
    }

    fn rehearse_decoding(&self, session: &Session, size: CodedSize) -> Result<()> {
        let (lane, config) = (session.lane()?, &self.config);
        let frames = if config.has_frames { size.frames.max(1) } else { 1 };
        let latent = arrived(lane, [frames, config.latent_channels, size.height, size.width])?;
        let (height, width) = size.at_once();
        let part = latent.slice(2, 0, height)?.slice(3, 0, width)?.contiguous()?;
        read_back(&self.decode_whole(session, &part, &mut Probe::none())?)?;
        drop(part);
        if size.tile.is_some() {
            // The picture is put together on the host, and comes back as a whole.
            let factor = config.factor();
            let raw =
                arrived(lane, [frames, config.out_channels, size.height * factor, size.width * factor])?;
            read_back(&Kl::image_of(&raw)?)?;
        }
        Ok(())
    }

    fn rehearse_encoding(&self, session: &Session, size: CodedSize) -> Result<()> {
        let (lane, config) = (session.lane()?, &self.config);
        let pixels = |height: usize, width: usize| {
            arrived(lane, [1, height * config.factor(), width * config.factor(), config.in_channels])
        };
        // A picture is on the device as a whole before its tiles are encoded.
        let whole = if size.tile.is_some() { Some(pixels(size.height, size.width)?) } else { None };
        let (height, width) = size.at_once();
        read_back(&self.encode_whole(session, &pixels(height, width)?)?)?;
        drop(whole);
        Ok(())
    }
}

/// The results for the items of a batch. Images are large, so one at a time.
fn each_item(batch: &Tensor, compute: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    if batch.dim(0) == 1 {
        return compute(batch);
    }
    let items = (0..batch.dim(0)).map(|i| compute(&batch.slice(0, i, 1)?)).collect::<Result<Vec<_>>>()?;
    Ok(Tensor::concat(&items.iter().collect::<Vec<_>>(), 0)?)
}

/// Tries without tiles, then with smaller and smaller ones while memory is what is missing.
fn whole_or_in_tiles(
    whole: impl Fn() -> Result<Tensor>,
    tiled: impl Fn(Tiling) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut result = whole();
    let mut tiling = Some(USUAL_TILES);
    while let (Err(error), Some(tiles)) = (&result, tiling)
        && error.is_out_of_memory()
    {
        result = tiled(tiles);
        tiling = tiles.halved();
    }
    result
}

/// Computes every item of `x` in tiles; the result is put together on the host.
fn in_tiles(
    session: &Session,
    x: &Tensor,
    canvas: &Canvas,
    tiling: Tiling,
    compute: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut values = Vec::new();
    for item in 0..x.dim(0) {
        let item = x.slice(0, item, 1)?;
        values.extend(canvas.compute(tiling, |Window { top, left, height, width }| {
            let part = item.slice(2, top, height)?.slice(3, left, width)?.contiguous()?;
            Ok(compute(&part)?.to_vec()?)
        })?);
    }
    let shape = canvas.shape(x.dim(0));
    Ok(session.lane()?.tensor(shape, &values)?)
}
