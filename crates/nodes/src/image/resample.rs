//! Scaling as the reference does it: PyTorch's `interpolate`, and Pillow's filters on 8 bits.
//!
//! All but `bislerp` work along one axis after the other, rows first: each value is a sum of a few neighbours with
//! weights that depend only on the position along the axis.

mod bislerp;
mod pillow;

use graph::Wanted;
use rayon::prelude::*;
use sampling::Latent;

use crate::value::{Image, Mask, filled};
use crate::wanted::still_wanted_by;
use crate::{Error, Result};
use runtime::host::{Host, Values};

/// The names of the ways to scale pictures, in the order that menus have.
pub(crate) const IMAGE_METHODS: [&str; 5] = ["nearest-exact", "bilinear", "area", "bicubic", "lanczos"];
/// The names of the ways to scale latents.
pub(crate) const LATENT_METHODS: [&str; 5] = ["nearest-exact", "bilinear", "area", "bicubic", "bislerp"];
/// What to do if the proportions differ.
pub(crate) const CROPS: [&str; 2] = ["disabled", "center"];

/// A way to scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// The pixel where a new one begins; no menu has it.
    Nearest,
    NearestExact,
    Bilinear,
    Area,
    Bicubic,
    Lanczos,
    Bislerp,
}

impl Method {
    /// The method of a name.
    pub(crate) fn named(name: &str) -> Result<Method> {
        match name {
            "nearest-exact" => Ok(Method::NearestExact),
            "bilinear" => Ok(Method::Bilinear),
            "area" => Ok(Method::Area),
            "bicubic" => Ok(Method::Bicubic),
            "lanczos" => Ok(Method::Lanczos),
            "bislerp" => Ok(Method::Bislerp),
            other => Err(Error::Told(format!(
                "there is no scaling \"{other}\"; choose one of {}, bislerp",
                IMAGE_METHODS.join(", ")
            ))),
        }
    }
}

/// Where to: the new size, and whether what does not fit is cut off on both sides, or squeezed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) is_cropped: bool,
}

impl Target {
    /// A size to squeeze into.
    pub(crate) fn new(width: usize, height: usize) -> Target {
        Target { width, height, is_cropped: false }
    }

    /// A size to cut to.
    pub(crate) fn cropped(width: usize, height: usize) -> Target {
        Target { width, height, is_cropped: true }
    }
}

/// Pictures in another size.
pub(crate) fn scale_image(image: &Image, target: Target, method: Method) -> Result<Image> {
    let source = Grid {
        batch: image.batch,
        height: image.height,
        width: image.width,
        channels: image.channels,
        values: &image.values,
    };
    let shape = [image.batch, target.height, target.width, image.channels];
    let values = source.counted(image.host(), target, |grid| grid.scaled(target, method))?;
    Ok(Image::of(shape, values))
}

/// Pictures in another size by Pillow's bicubic filter on 8 bits, which looks at all that a new pixel covers.
pub(crate) fn scale_image_as_pillow(image: &Image, target: Target) -> Result<Image> {
    let source = Grid {
        batch: image.batch,
        height: image.height,
        width: image.width,
        channels: image.channels,
        values: &image.values,
    };
    let values = source.counted(image.host(), target, |grid| {
        let (values, height, width) = grid.cropped(target)?;
        let cut = Grid { height, width, values: &values, ..*grid };
        pillow::scale(&cut, target, pillow::Filter::Bicubic)
    })?;
    Ok(Image::of([image.batch, target.height, target.width, image.channels], values))
}

/// Pictures in another size by a cubic filter that looks at all that a new pixel covers: PyTorch's bicubic with
/// antialiasing.
pub(crate) fn scale_image_smoothly(image: &Image, target: Target) -> Result<Image> {
    let source = Grid {
        batch: image.batch,
        height: image.height,
        width: image.width,
        channels: image.channels,
        values: &image.values,
    };
    let values = source.counted(image.host(), target, |grid| {
        let (values, height, width) = grid.cropped(target)?;
        let cut = Grid { height, width, values: &values, ..*grid };
        // The reference's sums round once for each neighbour, and what comes of it is rounded to 8 bits.
        let fused = |sum: f32, weight: f32, value: f32| weight.mul_add(value, sum);
        let rows = cut.along_rows(&smooth_taps(width, target.width), fused)?;
        let rows = Grid { width: target.width, values: &rows, ..cut };
        rows.along_columns(&smooth_taps(height, target.height), fused)
    })?;
    Ok(Image::of([image.batch, target.height, target.width, image.channels], values))
}

/// Masks in another size.
pub(crate) fn scale_mask(mask: &Mask, target: Target, method: Method) -> Result<Mask> {
    let source =
        Grid { batch: mask.batch, height: mask.height, width: mask.width, channels: 1, values: &mask.values };
    let values = source.counted(mask.host(), target, |grid| grid.scaled(target, method))?;
    Ok(Mask::of([mask.batch, target.height, target.width], values))
}

/// Latents in another size; frames of a video one by one.
pub(crate) fn scale_latent(latent: &Latent, target: Target, method: Method) -> Result<Latent> {
    let shape = latent.shape();
    let [rest @ .., height, width] = shape else {
        return Err(Error::Told(format!("a latent of shape {shape:?} has no height and width")));
    };
    let planes = rest.iter().product();
    let source = Grid { batch: planes, height: *height, width: *width, channels: 1, values: latent.values() };
    let values = if method == Method::Bislerp {
        // The channels of one place turn together; frames of a video lie between them.
        let (batch, channels) = (rest.first().copied().unwrap_or(1), rest.get(1).copied().unwrap_or(1));
        let frames = rest.get(2..).unwrap_or_default().iter().product();
        let (cut, height, width) = source.cropped(target)?;
        bislerp::scale(&cut, [batch, channels, frames, height, width], target)?
    } else {
        source.scaled(target, method)?
    };
    let mut shape = rest.to_vec();
    shape.extend([target.height, target.width]);
    Ok(Latent::new(shape, values)?)
}

/// Pictures of `[batch, height, width, channels]` as they lie in memory.
struct Grid<'a> {
    batch: usize,
    height: usize,
    width: usize,
    channels: usize,
    values: &'a [f32],
}

impl Grid<'_> {
    /// The values that `scale` makes of these, with room for them and for what it needs on the way: a copy of the part
    /// that is scaled, and its rows in their new length.
    fn counted(
        &self,
        host: &Host,
        target: Target,
        scale: impl FnOnce(&Self) -> Result<Vec<f32>>,
    ) -> Result<Values> {
        let room = host.room(&[self.batch, target.height, target.width, self.channels])?;
        let _copy = host.room(&[self.values.len()])?;
        let _rows = host.room(&[self.batch, self.height, target.width, self.channels])?;
        Ok(room.hold(scale(self)?))
    }

    fn scaled(&self, target: Target, method: Method) -> Result<Vec<f32>> {
        let (values, height, width) = self.cropped(target)?;
        let cut = Grid { height, width, values: &values, ..*self };
        if method == Method::Lanczos {
            return pillow::scale(&cut, target, pillow::Filter::Lanczos);
        }
        let plain = |sum: f32, weight: f32, value: f32| sum + weight * value;
        let rows = cut.along_rows(&taps(width, target.width, method), plain)?;
        let rows = Grid { width: target.width, values: &rows, ..cut };
        rows.along_columns(&taps(height, target.height, method), plain)
    }

    /// The part that has the target's proportions, from the middle, with its height and width.
    fn cropped(&self, target: Target) -> Result<(Vec<f32>, usize, usize)> {
        if target.width == 0 || target.height == 0 || self.width == 0 || self.height == 0 {
            let (from, to) = ((self.width, self.height), (target.width, target.height));
            let text = format!("{}x{} pixels cannot be scaled to {}x{}", from.0, from.1, to.0, to.1);
            return Err(Error::Told(text));
        }
        if !target.is_cropped {
            return Ok((self.values.to_vec(), self.height, self.width));
        }
        let (width, height) = (self.width as f64, self.height as f64);
        let old_aspect = width / height;
        let new_aspect = target.width as f64 / target.height as f64;
        let half = |length: f64, kept: f64| ((length - length * kept) / 2.0).round_ties_even() as usize;
        let (x, y) = if old_aspect > new_aspect {
            (half(width, new_aspect / old_aspect), 0)
        } else if old_aspect < new_aspect {
            (0, half(height, old_aspect / new_aspect))
        } else {
            (0, 0)
        };
        let (kept_width, kept_height) = (self.width.saturating_sub(2 * x), self.height.saturating_sub(2 * y));
        if kept_width == 0 || kept_height == 0 {
            let text =
                format!("nothing of {width}x{height} pixels is left in {}x{}", target.width, target.height);
            return Err(Error::Told(text));
        }
        let mut out = Vec::with_capacity(self.batch * kept_width * kept_height * self.channels);
        for row in
            (0..self.batch).flat_map(|item| (y..y + kept_height).map(move |row| item * self.height + row))
        {
            let start = (row * self.width + x) * self.channels;
            out.extend_from_slice(&self.values[start..start + kept_width * self.channels]);
        }
        Ok((out, kept_height, kept_width))
    }

    /// Each row in another length; `add` adds a weighted neighbour to a sum.
    fn along_rows(&self, taps: &[Taps], add: impl Fn(f32, f32, f32) -> f32 + Sync) -> Result<Vec<f32>> {
        let channels = self.channels;
        let mut out = filled(&[self.batch, self.height, taps.len(), channels], 0.0)?;
        let job = Wanted::here();
        let rows = out.par_chunks_exact_mut(taps.len() * channels);
        rows.zip(self.values.par_chunks_exact(self.width * channels)).try_for_each(|(out, row)| {
            still_wanted_by(&job)?;
            for (pixel, taps) in out.chunks_exact_mut(channels).zip(taps) {
                for (at, weight) in taps.iter() {
                    for (value, source) in pixel.iter_mut().zip(&row[at * channels..]) {
                        *value = add(*value, weight, *source);
                    }
                }
            }
            Ok::<(), Error>(())
        })?;
        Ok(out)
    }

    /// Each column in another length; `add` adds a weighted neighbour to a sum.
    fn along_columns(&self, taps: &[Taps], add: impl Fn(f32, f32, f32) -> f32 + Sync) -> Result<Vec<f32>> {
        let row_len = self.width * self.channels;
        let mut out = filled(&[self.batch, taps.len(), row_len], 0.0)?;
        let job = Wanted::here();
        out.par_chunks_exact_mut(row_len).enumerate().try_for_each(|(row, out)| {
            still_wanted_by(&job)?;
            let (item, row) = (row / taps.len(), row % taps.len());
            for (at, weight) in taps[row].iter() {
                let start = (item * self.height + at) * row_len;
                for (value, source) in out.iter_mut().zip(&self.values[start..start + row_len]) {
                    *value = add(*value, weight, *source);
                }
            }
            Ok::<(), Error>(())
        })?;
        Ok(out)
    }
}

/// The neighbours that one new value is made of: their positions and weights.
struct Taps(Vec<(usize, f32)>);

impl Taps {
    fn iter(&self) -> impl Iterator<Item = (usize, f32)> {
        self.0.iter().copied()
    }
}

/// The neighbours of every new position along an axis.
fn taps(from: usize, to: usize, method: Method) -> Vec<Taps> {
    let scale = from as f32 / to as f32;
    let last = from - 1;
    (0..to)
        .map(|index| {
            let centre = (index as f32 + 0.5) * scale;
            Taps(match method {
                Method::Nearest => vec![(((index as f32 * scale) as usize).min(last), 1.0)],
                Method::NearestExact => vec![((centre as usize).min(last), 1.0)],
                Method::Area => {
                    let (start, end) = (index * from / to, ((index + 1) * from).div_ceil(to));
                    (start..end).map(|at| (at, 1.0 / (end - start) as f32)).collect()
                }
                Method::Bicubic => cubic_taps(centre - 0.5, last),
                _ => {
                    let position = (centre - 0.5).max(0.0);
                    let first = (position as usize).min(last);
                    let share = position - first as f32;
                    vec![(first, 1.0 - share), ((first + 1).min(last), share)]
                }
            })
        })
        .collect()
}

/// Cubic convolution with the factor -0.5 over all that a new value covers, at least four neighbours; those beyond the edge
/// do not count.
fn smooth_taps(from: usize, to: usize) -> Vec<Taps> {
    const A: f32 = -0.5;
    let weight = |x: f32| match x.abs() {
        near if near < 1.0 => ((A + 2.0).mul_add(near, -(A + 3.0)) * near).mul_add(near, 1.0),
        far if far < 2.0 => A.mul_add(far, -5.0 * A).mul_add(far, 8.0 * A).mul_add(far, -4.0 * A),
        _ => 0.0,
    };
    let scale = from as f32 / to as f32;
    let stretch = scale.max(1.0);
    let (reach, shrink) = (2.0 * stretch, 1.0 / stretch);
    let around = |index: usize| {
        let centre = scale * (index as f32 + 0.5);
        let first = (centre - reach + 0.5).max(0.0) as usize;
        let end = ((centre + reach + 0.5) as usize).min(from);
        let weights: Vec<f32> =
            (first..end).map(|at| weight((f64::from(at as f32 - centre) + 0.5) as f32 * shrink)).collect();
        let sum: f32 = weights.iter().sum();
        Taps(weights.into_iter().enumerate().map(|(at, weight)| (first + at, weight / sum)).collect())
    };
    (0..to).map(around).collect()
}

/// Cubic convolution with the factor -0.75, over four neighbours; beyond the edge the last value goes on.
fn cubic_taps(position: f32, last: usize) -> Vec<(usize, f32)> {
    const A: f32 = -0.75;
    let near = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let floor = position.floor();
    let share = position - floor;
    let weights = [far(share + 1.0), near(share), near(1.0 - share), far(2.0 - share)];
    let index = |offset: f32| ((floor + offset).max(0.0) as usize).min(last);
    std::array::from_fn::<_, 4, _>(|tap| (index(tap as f32 - 1.0), weights[tap])).to_vec()
}
