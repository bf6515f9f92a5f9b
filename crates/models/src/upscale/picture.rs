//! Pictures enlarged in tiles. Sizes, order and weights of the tiles are ComfyUI's, so that the pictures are the same.

use residency::Session;
use tensor::{Padding, Tensor};

use super::{Sides, Upscaler};
use crate::vae::Tiling;
use crate::vae::tiles::{ramp, spans};
use crate::{Error, Result};

/// The smallest tiles that are tried where a device has no room.
const LEAST_TILE: usize = 128;

/// One picture on the host: `[height, width, channels]` of values from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub struct Pixels<'a> {
    /// Rows.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// The values, the last axis fastest.
    pub values: &'a [f32],
}

/// How many tiles a picture is enlarged in.
#[must_use]
pub fn tiles(height: usize, width: usize, tiling: Tiling) -> usize {
    spans(height, tiling.tile, tiling.overlap).len() * spans(width, tiling.tile, tiling.overlap).len()
}

/// Enlarges a picture tile by tile, with smaller ones while memory is what is missing; `told` hears how many of how many
/// are done, and may end it. The result is as the picture is, `scale` times as high and wide.
pub fn enlarge(
    upscaler: &dyn Upscaler,
    session: &Session,
    picture: &Pixels<'_>,
    tiling: Tiling,
    told: &mut dyn FnMut(usize, usize) -> Result<()>,
) -> Result<Vec<f32>> {
    let [channels, _] = upscaler.channels();
    let Pixels { height, width, values } = *picture;
    if height == 0 || width == 0 || values.len() != height * width * channels {
        return Err(Error::Input {
            what: "the picture",
            expected: format!("of {channels} channels and at least one pixel"),
            got: format!("of {} values for {width} x {height} pixels", values.len()),
        });
    }
    let mut tiling = tiling;
    loop {
        let done = in_tiles(upscaler, session, picture, tiling, told);
        let smaller = Tiling { tile: tiling.tile / 2, ..tiling };
        match done {
            Err(error) if error.is_out_of_memory() && smaller.tile >= LEAST_TILE => tiling = smaller,
            done => return done,
        }
    }
}

/// Enlarges one tile `[1, height, width, channels]` to `[1, height · scale, width · scale, channels]` of values from 0 to 1.
pub(super) fn tile(upscaler: &dyn Upscaler, session: &Session, tile: &Tensor) -> Result<Tensor> {
    let (height, width) = (tile.dim(1), tile.dim(2));
    let pixels = padded(&tile.permute(&[0, 3, 1, 2])?.contiguous()?, upscaler.sides())?;
    let (large, scale) = (upscaler.upscale(session, &pixels)?, upscaler.scale());
    let large = large.slice(2, 0, height * scale)?.slice(3, 0, width * scale)?;
    Ok(large.clamp(0.0, 1.0)?.permute(&[0, 2, 3, 1])?.contiguous()?)
}

fn in_tiles(
    upscaler: &dyn Upscaler,
    session: &Session,
    picture: &Pixels<'_>,
    tiling: Tiling,
    told: &mut dyn FnMut(usize, usize) -> Result<()>,
) -> Result<Vec<f32>> {
    let Pixels { height, width, .. } = *picture;
    let total = tiles(height, width, tiling);
    if total == 1 {
        let part = upload(upscaler, session, picture, [0, 0, height, width])?;
        let large = tile(upscaler, session, &part)?.to_vec()?;
        told(1, 1)?;
        return Ok(large);
    }
    let mut canvas = Canvas::new(upscaler, picture, tiling.overlap);
    let mut done = 0;
    for (top, rows) in spans(height, tiling.tile, tiling.overlap) {
        for (left, columns) in spans(width, tiling.tile, tiling.overlap) {
            let window = [top, left, rows, columns];
            let part = upload(upscaler, session, picture, window)?;
            canvas.add(window, &tile(upscaler, session, &part)?.to_vec()?);
            done += 1;
            told(done, total)?;
        }
    }
    Ok(canvas.finish())
}

/// A window of the picture (top, left, rows and columns) on the device.
fn upload(
    upscaler: &dyn Upscaler,
    session: &Session,
    picture: &Pixels<'_>,
    [top, left, rows, columns]: [usize; 4],
) -> Result<Tensor> {
    let [channels, _] = upscaler.channels();
    let row = |y: usize| {
        let start = (y * picture.width + left) * channels;
        &picture.values[start..start + columns * channels]
    };
    let values: Vec<f32> = (top..top + rows).flat_map(row).copied().collect();
    Ok(session.lane()?.tensor([1, rows, columns, channels], &values)?)
}

/// A picture with sides that a network takes: mirrored at its lower and right border, and where it is too small for
/// that, with the border value repeated.
fn padded(pixels: &Tensor, sides: Sides) -> Result<Tensor> {
    let more = |side: usize| side.max(sides.least).next_multiple_of(sides.multiple) - side;
    let (down, right) = (more(pixels.dim(2)), more(pixels.dim(3)));
    if down == 0 && right == 0 {
        return Ok(pixels.clone());
    }
    let mirrored = (down.min(pixels.dim(2) - 1), right.min(pixels.dim(3) - 1));
    let border = |down: usize, right: usize| [(0, 0), (0, 0), (0, down), (0, right)];
    let pixels = pixels.pad(&border(mirrored.0, mirrored.1), Padding::Reflect)?;
    let (down, right) = (down - mirrored.0, right - mirrored.1);
    if down == 0 && right == 0 {
        return Ok(pixels);
    }
    Ok(pixels.pad(&border(down, right), Padding::Replicate)?)
}

/// A large picture that tiles are put on, each fading out toward its border.
struct Canvas {
    width: usize,
    channels: usize,
    scale: usize,
    feather: usize,
    sum: Vec<f32>,
    weight: Vec<f32>,
}

impl Canvas {
    fn new(upscaler: &dyn Upscaler, picture: &Pixels<'_>, overlap: usize) -> Canvas {
        let (scale, [_, channels]) = (upscaler.scale(), upscaler.channels());
        let (height, width) = (picture.height * scale, picture.width * scale);
        Canvas {
            width,
            channels,
            scale,
            feather: overlap * scale,
            sum: vec![0.0; height * width * channels],
            weight: vec![0.0; height * width],
        }
    }

    /// Adds what became of a window: top, left, rows and columns of the picture.
    fn add(&mut self, window: [usize; 4], large: &[f32]) {
        let [top, left, rows, columns] = window.map(|side| side * self.scale);
        let (down, right) = (ramp(rows, self.feather), ramp(columns, self.feather));
        for (y, row) in large.chunks_exact(columns * self.channels).enumerate() {
            let start = (top + y) * self.width + left;
            for (x, pixel) in row.chunks_exact(self.channels).enumerate() {
                let weight = down[y] * right[x];
                self.weight[start + x] += weight;
                let at = (start + x) * self.channels;
                let sum = &mut self.sum[at..at + self.channels];
                sum.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += value * weight);
            }
        }
    }

    /// The weighted mean of all tiles.
    fn finish(mut self) -> Vec<f32> {
        for (pixel, weight) in self.sum.chunks_exact_mut(self.channels).zip(&self.weight) {
            pixel.iter_mut().for_each(|value| *value /= weight);
        }
        self.sum
    }
}
