//! A latent on the host: a shape and its values, and element-wise arithmetic in f32.

use crate::Error;

/// Values of a latent image or video, `[batch, channels, …]`, the last axis fastest.
#[derive(Clone, Debug, PartialEq)]
pub struct Latent {
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// The axes of a latent. A picture has one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LatentShape {
    /// Items.
    pub batch: usize,
    /// Values for each place.
    pub channels: usize,
    /// Frames; one for a picture.
    pub frames: usize,
    /// Rows.
    pub height: usize,
    /// Values in a row.
    pub width: usize,
}

impl LatentShape {
    /// The axes of a latent of four axes, or of five with frames before the height.
    pub fn of(latent: &Latent) -> Result<LatentShape, Error> {
        LatentShape::sized(latent.shape())
    }

    /// The same of the lengths of those axes.
    pub fn sized(axes: &[usize]) -> Result<LatentShape, Error> {
        match *axes {
            [batch, channels, height, width] => Ok(LatentShape { batch, channels, frames: 1, height, width }),
            [batch, channels, frames, height, width] => {
                Ok(LatentShape { batch, channels, frames, height, width })
            }
            _ => Err(Error::Axes { shape: axes.to_vec() }),
        }
    }

    /// Places of one frame.
    #[must_use]
    pub fn plane(&self) -> usize {
        self.height * self.width
    }

    /// All values.
    #[must_use]
    pub fn values(&self) -> usize {
        self.batch * self.channels * self.frames * self.plane()
    }
}

impl Latent {
    /// A latent of these values; their number must be the shape's.
    pub fn new(shape: Vec<usize>, values: Vec<f32>) -> Result<Latent, Error> {
        let expected = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).unwrap_or(usize::MAX);
        if expected != values.len() {
            return Err(Error::LatentSize { shape, expected, got: values.len() });
        }
        Ok(Latent { shape, values })
    }

    /// A latent of zeros.
    pub fn zeros(shape: &[usize]) -> Latent {
        Latent { shape: shape.to_vec(), values: vec![0.0; shape.iter().product()] }
    }

    /// The lengths of its axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its values.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Its values, to change in place.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// Its values, without the shape.
    pub fn into_values(self) -> Vec<f32> {
        self.values
    }

    /// Whether every value is zero, as in an empty latent image.
    pub fn is_zero(&self) -> bool {
        self.values.iter().all(|v| *v == 0.0)
    }

    /// An error that names `what` unless `other` has this shape.
    pub(crate) fn check_like(&self, what: &'static str, other: &Latent) -> Result<(), Error> {
        if self.shape == other.shape {
            return Ok(());
        }
        Err(Error::Shape { what, expected: self.shape.clone(), got: other.shape.clone() })
    }

    /// `f` of every value.
    pub(crate) fn map(&self, f: impl Fn(f32) -> f32) -> Latent {
        Latent { shape: self.shape.clone(), values: self.values.iter().map(|v| f(*v)).collect() }
    }

    /// `f` of every value and the number of its channel.
    pub(crate) fn map_channels(&self, f: impl Fn(usize, f32) -> f32) -> Latent {
        let channels = self.shape.get(1).copied().unwrap_or(1).max(1);
        let volume = self.shape.iter().skip(2).product::<usize>().max(1);
        let mut latent = self.clone();
        for (index, values) in latent.values.chunks_exact_mut(volume).enumerate() {
            values.iter_mut().for_each(|value| *value = f(index % channels, *value));
        }
        latent
    }

    /// `f` of the values of two latents of one shape.
    pub(crate) fn zip(&self, a: &Latent, f: impl Fn(f32, f32) -> f32) -> Latent {
        debug_assert_eq!(self.shape, a.shape, "latents that meet have been checked");
        let values = self.values.iter().zip(&a.values).map(|(x, a)| f(*x, *a)).collect();
        Latent { shape: self.shape.clone(), values }
    }

    /// `f` of the values of three latents of one shape.
    pub(crate) fn zip3(&self, a: &Latent, b: &Latent, f: impl Fn(f32, f32, f32) -> f32) -> Latent {
        debug_assert!(self.shape == a.shape && self.shape == b.shape, "latents that meet have been checked");
        let values =
            self.values.iter().zip(&a.values).zip(&b.values).map(|((x, a), b)| f(*x, *a, *b)).collect();
        Latent { shape: self.shape.clone(), values }
    }

    /// The slope from the clean prediction to `self` at noise level `sigma`.
    pub(crate) fn slope(&self, denoised: &Latent, sigma: f32) -> Latent {
        self.zip(denoised, |x, clean| (x - clean) / sigma)
    }

    /// `self + direction * length`.
    pub(crate) fn step(&self, direction: &Latent, length: f32) -> Latent {
        self.zip(direction, |x, d| x + d * length)
    }

    /// `self * a + other * b`.
    pub(crate) fn blend(&self, a: f32, other: &Latent, b: f32) -> Latent {
        self.zip(other, |x, y| a * x + b * y)
    }
}
