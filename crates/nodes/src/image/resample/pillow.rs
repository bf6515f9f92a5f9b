//! Filters on 8 bits as Pillow has them: whole-number weights, and 8 bits again between rows and columns.

use std::f64::consts::PI;

use graph::Wanted;
use rayon::prelude::*;

use super::{Grid, Target};
use crate::Result;
use crate::value::filled;
use crate::wanted::still_wanted;

/// Bits after the point of a weight.
const PRECISION_BITS: u32 = 32 - 8 - 2;

/// How neighbours count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    /// A sinc under the middle of a wider one.
    Lanczos,
    /// Cubic convolution with the factor -0.5.
    Bicubic,
}

impl Filter {
    /// How far neighbours count, in new pixels or old ones, whichever are larger.
    fn reach(self) -> f64 {
        match self {
            Filter::Lanczos => 3.0,
            Filter::Bicubic => 2.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        match self {
            Filter::Lanczos => lanczos(x, self.reach()),
            Filter::Bicubic => bicubic(x.abs()),
        }
    }
}

/// The neighbours of one new value: the first, and the weight of it and those after it.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

/// Scales pictures whose values are 0 to 1.
pub(super) fn scale(source: &Grid<'_>, target: Target, filter: Filter) -> Result<Vec<f32>> {
    let channels = source.channels;
    let mut bytes: Vec<u8> = source.values.iter().map(|value| (value * 255.0) as u8).collect();
    if channels == 4 {
        bytes.chunks_exact_mut(4).for_each(multiply_by_alpha);
    }
    // The pass that leaves fewer pixels for the other goes first; it matters, as there are 8 bits in between.
    let is_rows_first = target.width * source.height <= source.width * target.height;
    let (mut width, mut height) = (source.width, source.height);
    for is_row_pass in [is_rows_first, !is_rows_first] {
        if is_row_pass && width != target.width {
            bytes = along_rows(&bytes, width, channels, &taps(width, target.width, filter));
            still_wanted()?;
            width = target.width;
        } else if !is_row_pass && height != target.height {
            bytes = along_columns(&bytes, height, width * channels, &taps(height, target.height, filter));
            still_wanted()?;
            height = target.height;
        }
    }
    if channels == 4 {
        bytes.chunks_exact_mut(4).for_each(divide_by_alpha);
    }
    let mut out = filled(&[bytes.len()], 0.0)?;
    out.iter_mut().zip(bytes).for_each(|(value, byte)| *value = f32::from(byte) / 255.0);
    Ok(out)
}

/// Each row in another length. Rows that are not wanted any more are left out.
fn along_rows(bytes: &[u8], width: usize, channels: usize, taps: &[Taps]) -> Vec<u8> {
    let job = Wanted::here();
    let row = |row: &[u8]| {
        if job.check().is_err() {
            return Vec::new();
        }
        let pixels = taps.iter().flat_map(|taps| {
            (0..channels).map(|channel| taps.sum(|offset| row[(taps.first + offset) * channels + channel]))
        });
        pixels.collect::<Vec<u8>>()
    };
    bytes.par_chunks_exact(width * channels).flat_map_iter(row).collect()
}

/// Each column in another length. Rows that are not wanted any more are left out.
fn along_columns(bytes: &[u8], height: usize, row_len: usize, taps: &[Taps]) -> Vec<u8> {
    let job = Wanted::here();
    let picture = |picture: &[u8]| {
        let wanted = taps.par_iter().filter(|_| job.check().is_ok());
        let rows = wanted.flat_map_iter(|taps| {
            (0..row_len).map(|at| taps.sum(|offset| picture[(taps.first + offset) * row_len + at]))
        });
        rows.collect::<Vec<u8>>()
    };
    bytes.chunks_exact(height * row_len).flat_map(picture).collect()
}

impl Taps {
    fn sum(&self, byte: impl Fn(usize) -> u8) -> u8 {
        let start = 1i32 << (PRECISION_BITS - 1);
        let add = |sum: i32, (offset, weight): (usize, &i32)| sum + i32::from(byte(offset)) * weight;
        let sum = self.weights.iter().enumerate().fold(start, add);
        (sum >> PRECISION_BITS).clamp(0, 255) as u8
    }
}

fn taps(from: usize, to: usize, filter: Filter) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let reach = filter.reach() * stretch;
    (0..to)
        .map(|index| {
            let centre = (index as f64 + 0.5) * scale;
            let first = (centre - reach + 0.5).max(0.0) as usize;
            let end = ((centre + reach + 0.5) as usize).min(from);
            let weights: Vec<f64> =
                (first..end).map(|at| filter.weight((at as f64 - centre + 0.5) / stretch)).collect();
            let sum: f64 = weights.iter().sum();
            let whole =
                |weight: f64| (weight * (1.0 / sum) * f64::from(1u32 << PRECISION_BITS)).round() as i32;
            Taps { first, weights: weights.into_iter().map(whole).collect() }
        })
        .collect()
}

fn lanczos(x: f64, reach: f64) -> f64 {
    let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
    if (-reach..reach).contains(&x) { sinc(x) * sinc(x / reach) } else { 0.0 }
}

fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    match x {
        near if near < 1.0 => ((A + 2.0) * near - (A + 3.0)) * near * near + 1.0,
        far if far < 2.0 => (((far - 5.0) * far + 8.0) * far - 4.0) * A,
        _ => 0.0,
    }
}

/// Colours that are not seen must not shine through, so they count by their opacity.
fn multiply_by_alpha(pixel: &mut [u8]) {
    let alpha = u32::from(pixel[3]);
    for colour in &mut pixel[..3] {
        let product = u32::from(*colour) * alpha + 128;
        *colour = (((product >> 8) + product) >> 8) as u8;
    }
}

fn divide_by_alpha(pixel: &mut [u8]) {
    let alpha = u32::from(pixel[3]);
    if alpha != 0 && alpha != 255 {
        for colour in &mut pixel[..3] {
            *colour = (255 * u32::from(*colour) / alpha).min(255) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Pillow 13 makes of pictures by its bicubic filter.
    const REFERENCE: &str =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pillow_bicubic.json"));

    #[test]
    fn the_bicubic_filter_is_pillows() {
        let cases: serde_json::Value = serde_json::from_str(REFERENCE).unwrap();
        for case in cases.as_array().unwrap() {
            let number = |key: &str| case[key].as_u64().unwrap() as usize;
            let (width, height) = (number("width"), number("height"));
            let byte = |at: usize| {
                let (x, y, colour) = (at / 3 % width, at / 3 / width, at % 3);
                (x * 37 + y * 59 + colour * 101 + (x * y) % 97 * 3) % 256
            };
            // Half a step above, so that values go back to the same 8 bits.
            let values: Vec<f32> =
                (0..width * height * 3).map(|at| (byte(at) as f32 + 0.5) / 255.0).collect();
            let source = Grid { batch: 1, height, width, channels: 3, values: &values };
            let target = Target::new(number("to_width"), number("to_height"));
            let scaled = scale(&source, target, Filter::Bicubic).unwrap();
            let bytes: Vec<u64> = scaled.iter().map(|value| (value * 255.0).round() as u64).collect();
            let expected: Vec<u64> =
                case["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap()).collect();
            assert_eq!(bytes, expected, "{width}x{height}");
        }
    }
}
