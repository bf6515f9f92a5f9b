//! Lanczos on 8 bits as Pillow does it: whole-number weights, and 8 bits again between rows and columns.

use std::f64::consts::PI;

use rayon::prelude::*;

use super::{Grid, Target};
use crate::Result;
use crate::value::filled;

/// Bits after the point of a weight.
const PRECISION_BITS: u32 = 32 - 8 - 2;
const REACH: f64 = 3.0;

/// The neighbours of one new value: the first, and the weight of it and those after it.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

/// Scales pictures whose values are 0 to 1.
pub(super) fn scale(source: &Grid<'_>, target: Target) -> Result<Vec<f32>> {
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
            bytes = along_rows(&bytes, width, channels, &taps(width, target.width));
            width = target.width;
        } else if !is_row_pass && height != target.height {
            bytes = along_columns(&bytes, height, width * channels, &taps(height, target.height));
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

fn along_rows(bytes: &[u8], width: usize, channels: usize, taps: &[Taps]) -> Vec<u8> {
    let row = |row: &[u8]| {
        let pixels = taps.iter().flat_map(|taps| {
            (0..channels).map(|channel| taps.sum(|offset| row[(taps.first + offset) * channels + channel]))
        });
        pixels.collect::<Vec<u8>>()
    };
    bytes.par_chunks_exact(width * channels).flat_map_iter(row).collect()
}

fn along_columns(bytes: &[u8], height: usize, row_len: usize, taps: &[Taps]) -> Vec<u8> {
    let picture = |picture: &[u8]| {
        let rows = taps.par_iter().flat_map_iter(|taps| {
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

fn taps(from: usize, to: usize) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let reach = REACH * stretch;
    (0..to)
        .map(|index| {
            let centre = (index as f64 + 0.5) * scale;
            let first = (centre - reach + 0.5).max(0.0) as usize;
            let end = ((centre + reach + 0.5) as usize).min(from);
            let weights: Vec<f64> =
                (first..end).map(|at| lanczos((at as f64 - centre + 0.5) / stretch)).collect();
            let sum: f64 = weights.iter().sum();
            let whole =
                |weight: f64| (weight * (1.0 / sum) * f64::from(1u32 << PRECISION_BITS)).round() as i32;
            Taps { first, weights: weights.into_iter().map(whole).collect() }
        })
        .collect()
}

fn lanczos(x: f64) -> f64 {
    let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
    if (-REACH..REACH).contains(&x) { sinc(x) * sinc(x / REACH) } else { 0.0 }
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
