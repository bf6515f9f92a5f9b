//! What travels along links: pictures, masks, latents and conditionings, all on the host in f32.
//!
//! Models, text encoders and autoencoders are handles; they are in `runtime`.

mod features;
mod moving;

use std::sync::Arc;

use graph::Object;
use sampling::Latent;

use crate::{Error, Result};
use runtime::host::{Host, Samples, Values};
use runtime::{ControlNet, ModelPatch, Vae};

pub use features::{ClipVisionOutput, Features};
pub use models::conditioning::{Array, Cond, Guidance, PlacedText};
pub use moving::{Audio, Video, VideoPart};

/// Pictures, `[batch, height, width, channels]`, values 0 to 1: `IMAGE`.
#[derive(Clone, PartialEq)]
pub struct Image {
    /// How many.
    pub batch: usize,
    /// Rows.
    pub height: usize,
    /// Pixels in a row.
    pub width: usize,
    /// 3, or 4 with transparency.
    pub channels: usize,
    /// The values, the last axis fastest.
    pub values: Values,
}

/// Masks, `[batch, height, width]`, values 0 to 1: `MASK`.
#[derive(Clone, PartialEq)]
pub struct Mask {
    /// How many.
    pub batch: usize,
    /// Rows.
    pub height: usize,
    /// Pixels in a row.
    pub width: usize,
    /// The values, the last axis fastest.
    pub values: Values,
}

/// A latent picture or video: `LATENT`.
#[derive(Clone, PartialEq)]
pub struct LatentImage {
    /// The values in the autoencoder's scale, `[batch, channels, height, width]`, or with frames before the height.
    pub samples: Samples,
    /// 1 where the picture is made new.
    pub noise_mask: Option<Mask>,
    /// Which noise of the batch each item gets.
    pub batch_index: Option<Vec<usize>>,
}

/// What a diffusion model is told: one or more entries whose predictions are joined. `CONDITIONING`.
#[derive(Clone, PartialEq)]
pub struct Conditioning {
    /// The entries.
    pub entries: Vec<Entry>,
}

/// One entry of a conditioning: what it says, and where, when and how much it counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// What the model is conditioned on.
    pub cond: Cond,
    /// Where it counts.
    pub area: Option<Area>,
    /// Where it counts, by a mask.
    pub mask: Option<Arc<Mask>>,
    /// How much the mask counts.
    pub mask_strength: f32,
    /// Whether the area is the box around the mask.
    pub mask_sets_area: bool,
    /// How much it counts.
    pub strength: f32,
    /// From which part of sampling on it counts, 0 (start) to 1 (end).
    pub start_percent: f64,
    /// Up to which part of sampling it counts.
    pub end_percent: f64,
    /// Keeps the latents of what it says in the host's ledger.
    pub held: Vec<Samples>,
    /// Whether it counts only where no other entry does.
    pub is_default: bool,
    /// Pictures that it follows, in the order in which nodes said them.
    pub controls: Vec<Arc<Control>>,
    /// Whether the conditioning that the model is guided away from follows them, too.
    pub controls_negative: bool,
    /// What is to be where in the picture.
    pub grounding: Option<Arc<Grounded>>,
}

/// What is to be where in a picture, and the network that the model is told it by.
#[derive(Debug)]
pub struct Grounded {
    /// The network.
    pub network: Arc<ModelPatch>,
    /// The texts with their places, in the order in which nodes said them.
    pub texts: Vec<PlacedText>,
}

impl PartialEq for Grounded {
    /// Two are the same only if they were said at once.
    fn eq(&self, other: &Grounded) -> bool {
        std::ptr::eq(self, other)
    }
}

/// A picture that a conditioning follows.
#[derive(Debug)]
pub struct Control {
    /// The network that looks at it.
    pub network: Arc<ControlNet>,
    /// The picture.
    pub picture: Arc<Image>,
    /// How much it counts.
    pub strength: f32,
    /// From which part of sampling on it counts, 0 (start) to 1 (end).
    pub start_percent: f64,
    /// Up to which part of sampling it counts.
    pub end_percent: f64,
    /// The autoencoder, for a network that looks at latents.
    pub vae: Option<Arc<Vae>>,
    /// Where the picture counts, for a network that takes a mask.
    pub mask: Option<Arc<Mask>>,
}

impl PartialEq for Control {
    /// Two are the same only if they were said at once.
    fn eq(&self, other: &Control) -> bool {
        std::ptr::eq(self, other)
    }
}

/// The part of a picture that a conditioning counts in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Area {
    /// In latent values: height, width, top, left.
    Values([usize; 4]),
    /// As shares of the picture: height, width, top, left.
    Shares([f64; 4]),
}

/// Levels of noise, falling: `SIGMAS`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sigmas(pub Vec<f32>);

/// An empty array for values of a shape that a node needs for a moment. The caller has made room for it.
///
/// # Errors
/// It is larger than this machine's memory.
pub(crate) fn reserved(shape: &[usize]) -> Result<Vec<f32>> {
    let too_large = || Error::TooLarge { shape: shape.to_vec() };
    let length = shape.iter().try_fold(1usize, |length, axis| length.checked_mul(*axis));
    let mut values = Vec::new();
    values.try_reserve_exact(length.ok_or_else(too_large)?).map_err(|_| too_large())?;
    Ok(values)
}

/// The same, with one value everywhere.
///
/// # Errors
/// It is larger than this machine's memory.
pub(crate) fn filled(shape: &[usize], value: f32) -> Result<Vec<f32>> {
    let mut values = reserved(shape)?;
    values.resize(shape.iter().product(), value);
    Ok(values)
}

impl Image {
    /// Pictures of `[batch, height, width, channels]` from their values.
    ///
    /// # Errors
    /// They do not fit into memory.
    pub fn collect(host: &Host, shape: [usize; 4], values: impl IntoIterator<Item = f32>) -> Result<Image> {
        Ok(Image::of(shape, host.room(&shape)?.collect(values)?))
    }

    /// The same value everywhere.
    ///
    /// # Errors
    /// They do not fit into memory.
    pub fn filled(host: &Host, shape: [usize; 4], value: f32) -> Result<Image> {
        Ok(Image::of(shape, host.room(&shape)?.filled(value)?))
    }

    /// Values as pictures; there are as many as the shape has.
    #[must_use]
    pub fn of([batch, height, width, channels]: [usize; 4], values: Values) -> Image {
        Image { batch, height, width, channels, values }
    }

    /// Batch, height, width and channels.
    #[must_use]
    pub fn shape(&self) -> [usize; 4] {
        [self.batch, self.height, self.width, self.channels]
    }

    /// The host that they are on, where what is made of them belongs.
    #[must_use]
    pub fn host(&self) -> &Host {
        self.values.host()
    }

    /// Values of one picture.
    #[must_use]
    pub fn frame_len(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// The values of one picture, the first being 0.
    #[must_use]
    pub fn frame(&self, index: usize) -> &[f32] {
        let length = self.frame_len();
        &self.values[index * length..(index + 1) * length]
    }

    /// Some pictures of the batch, by their numbers, in that order; numbers that there are not are left out.
    pub(crate) fn frames(&self, indices: impl IntoIterator<Item = usize>) -> Result<Image> {
        let indices: Vec<usize> = indices.into_iter().filter(|index| *index < self.batch).collect();
        let shape = [indices.len(), self.height, self.width, self.channels];
        Image::collect(self.host(), shape, indices.iter().flat_map(|index| self.frame(*index)).copied())
    }

    /// A batch of another size: cut, or begun again from the start.
    pub(crate) fn repeated_to(&self, batch: usize) -> Result<Image> {
        if batch == self.batch {
            return Ok(self.clone());
        }
        let batch = if self.batch == 0 { 0 } else { batch };
        let shape = [batch, self.height, self.width, self.channels];
        let frames = (0..batch).flat_map(|index| self.frame(index % self.batch));
        Image::collect(self.host(), shape, frames.copied())
    }

    /// With that many channels: cut, or filled up with 1.
    pub(crate) fn with_channels(&self, channels: usize) -> Result<Image> {
        if channels == self.channels {
            return Ok(self.clone());
        }
        let filled_up =
            |pixel: &[f32]| (0..channels).map(|at| pixel.get(at).copied().unwrap_or(1.0)).collect();
        let pixels = self.values.chunks_exact(self.channels.max(1));
        let shape = [self.batch, self.height, self.width, channels];
        Image::collect(self.host(), shape, pixels.flat_map::<Vec<f32>, _>(filled_up))
    }

    /// One channel as masks.
    pub(crate) fn channel(&self, channel: usize) -> Result<Mask> {
        let values = self.values.chunks_exact(self.channels.max(1)).map(|pixel| pixel[channel]);
        Mask::collect(self.host(), [self.batch, self.height, self.width], values)
    }

    /// `f` of every value.
    pub(crate) fn map(&self, f: impl Fn(f32) -> f32) -> Result<Image> {
        Image::collect(self.host(), self.shape(), self.values.iter().map(|value| f(*value)))
    }
}

impl Mask {
    /// Masks of `[batch, height, width]` from their values.
    ///
    /// # Errors
    /// They do not fit into memory.
    pub fn collect(host: &Host, shape: [usize; 3], values: impl IntoIterator<Item = f32>) -> Result<Mask> {
        Ok(Mask::of(shape, host.room(&shape)?.collect(values)?))
    }

    /// The same value everywhere.
    ///
    /// # Errors
    /// They do not fit into memory.
    pub fn filled(host: &Host, shape: [usize; 3], value: f32) -> Result<Mask> {
        Ok(Mask::of(shape, host.room(&shape)?.filled(value)?))
    }

    /// Values as masks; there are as many as the shape has.
    #[must_use]
    pub fn of([batch, height, width]: [usize; 3], values: Values) -> Mask {
        Mask { batch, height, width, values }
    }

    /// Batch, height and width.
    #[must_use]
    pub fn shape(&self) -> [usize; 3] {
        [self.batch, self.height, self.width]
    }

    /// The host that they are on, where what is made of them belongs.
    #[must_use]
    pub fn host(&self) -> &Host {
        self.values.host()
    }

    /// Some masks of the batch, by their numbers, in that order; numbers that there are not are left out.
    pub(crate) fn frames(&self, indices: impl IntoIterator<Item = usize>) -> Result<Mask> {
        let indices: Vec<usize> = indices.into_iter().filter(|index| *index < self.batch).collect();
        let shape = [indices.len(), self.height, self.width];
        Mask::collect(self.host(), shape, indices.iter().flat_map(|index| self.frame(*index)).copied())
    }

    /// The values of one mask, the first being 0.
    fn frame(&self, index: usize) -> &[f32] {
        let length = self.height * self.width;
        &self.values[index * length..(index + 1) * length]
    }

    /// A batch of another size: cut, or begun again from the start.
    pub(crate) fn repeated_to(&self, batch: usize) -> Result<Mask> {
        if batch == self.batch {
            return Ok(self.clone());
        }
        let batch = if self.batch == 0 { 0 } else { batch };
        let frames = (0..batch).flat_map(|index| self.frame(index % self.batch));
        Mask::collect(self.host(), [batch, self.height, self.width], frames.copied())
    }

    /// `f` of every value.
    pub(crate) fn map(&self, f: impl Fn(f32) -> f32) -> Result<Mask> {
        Mask::collect(self.host(), self.shape(), self.values.iter().map(|value| f(*value)))
    }
}

impl Entry {
    /// An entry that counts everywhere and always.
    #[must_use]
    pub fn new(cond: Cond) -> Entry {
        Entry {
            cond,
            area: None,
            mask: None,
            mask_strength: 1.0,
            mask_sets_area: false,
            strength: 1.0,
            start_percent: 0.0,
            end_percent: 1.0,
            held: Vec::new(),
            is_default: false,
            controls: Vec::new(),
            controls_negative: false,
            grounding: None,
        }
    }

    /// A text that counts everywhere and always.
    #[must_use]
    pub fn text(text: Array, pooled: Option<Array>) -> Entry {
        Entry::new(Cond::text(text, pooled))
    }
}

impl Mask {
    /// The masks as planes, `[batch, height, width]`.
    pub(crate) fn planes(&self) -> Result<Latent> {
        Ok(Latent::new(vec![self.batch, self.height, self.width], self.values.to_vec())?)
    }
}

impl LatentImage {
    /// A latent with nothing else said.
    #[must_use]
    pub fn new(samples: Samples) -> LatentImage {
        LatentImage { samples, noise_mask: None, batch_index: None }
    }
}

macro_rules! objects {
    ($($name:ident => |$value:ident| $text:expr;)*) => {
        $(
            impl Object for $name {
                fn describe(&self) -> String {
                    let $value = self;
                    $text
                }
            }
        )*
    };
}

macro_rules! described {
    ($($name:ident)*) => {
        $(
            impl std::fmt::Debug for $name {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str(&self.describe())
                }
            }
        )*
    };
}

objects! {
    Image => |it| format!("image [{}, {}, {}, {}]", it.batch, it.height, it.width, it.channels);
    Mask => |it| format!("mask [{}, {}, {}]", it.batch, it.height, it.width);
    LatentImage => |it| format!("latent {:?}", it.samples.shape());
    Conditioning => |it| {
        let tokens: Vec<_> = it.entries.iter().map(|entry| entry.cond.text.shape.clone()).collect();
        format!("conditioning {tokens:?}")
    };
    Sigmas => |it| format!("sigmas {:?}", it.0);
}
described!(Image Mask LatentImage Conditioning);
