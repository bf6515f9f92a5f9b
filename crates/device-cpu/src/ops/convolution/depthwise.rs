//! Convolutions whose output channels see one input channel each: nothing to share, so each plane is
//! summed directly, tap by tap.

use rayon::prelude::*;

use super::geometry::{Geometry, OUTSIDE};
use crate::stop::Tasks;

/// Output values of one task.
const TASK_PIXELS: usize = 1 << 14;

/// Convolves each channel by itself. `weight` is `[out, kernel…]`.
pub(super) fn depthwise(
    geometry: &Geometry,
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let [depths, height, width] = geometry.output;
    let (plane, taps) = (geometry.plane(), geometry.taps());
    let rows_in_plane = depths * height;
    let outputs = geometry.groups * geometry.filters;
    let rows_in_task = (TASK_PIXELS / width).max(1);
    let job = Tasks::of_this_job();
    out.par_chunks_mut(rows_in_task * width).enumerate().for_each(|(task, rows)| {
        if job.is_cancelled() {
            return;
        }
        for (i, row) in rows.chunks_exact_mut(width).enumerate() {
            let index = task * rows_in_task + i;
            let (image, channel, at) =
                (index / rows_in_plane / outputs, index / rows_in_plane % outputs, index % rows_in_plane);
            let input = image * geometry.groups + channel / geometry.filters;
            row.fill(bias.map_or(0.0, |bias| bias[channel]));
            let weight = &weight[channel * taps..][..taps];
            add_row(geometry, &x[input * plane..][..plane], weight, at, row);
        }
    });
}

/// Adds all taps to one output row, with the widest vectors that there are.
fn add_row(geometry: &Geometry, plane: &[f32], weight: &[f32], at: usize, row: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has just been asked.
            return unsafe { add_row_avx512(geometry, plane, weight, at, row) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has just been asked.
            return unsafe { add_row_avx2(geometry, plane, weight, at, row) };
        }
    }
    add_row_portable(geometry, plane, weight, at, row);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn add_row_avx512(geometry: &Geometry, plane: &[f32], weight: &[f32], at: usize, row: &mut [f32]) {
    add_row_portable(geometry, plane, weight, at, row);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_row_avx2(geometry: &Geometry, plane: &[f32], weight: &[f32], at: usize, row: &mut [f32]) {
    add_row_portable(geometry, plane, weight, at, row);
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "said there")]
fn add_row_portable(geometry: &Geometry, plane: &[f32], weight: &[f32], at: usize, row: &mut [f32]) {
    let [_, height, _] = geometry.output;
    let [_, rows, columns] = geometry.input;
    for (tap, &factor) in weight.iter().enumerate() {
        let [z, y, x] = geometry.tap(tap);
        let (depth, line) = (geometry.sources(0, z)[at / height], geometry.sources(1, y)[at % height]);
        if depth == OUTSIDE || line == OUTSIDE {
            continue;
        }
        let input = &plane[(depth as usize * rows + line as usize) * columns..][..columns];
        let (places, run) = (geometry.sources(2, x), geometry.run(x));
        if !geometry.is_alone(x) {
            add_each(input, &places[..run.start], factor, &mut row[..run.start]);
            add_each(input, &places[run.end..], factor, &mut row[run.end..]);
        }
        if !run.is_empty() {
            let from = places[run.start] as usize;
            let (row, input) = (&mut row[run.clone()], &input[from..from + run.len()]);
            // Indices instead of iterators, whose calls would not be inlined into wider vectors.
            for i in 0..row.len() {
                row[i] += factor * input[i];
            }
        }
    }
}

/// Every output looks up its input.
#[inline(always)]
fn add_each(input: &[f32], places: &[i32], factor: f32, row: &mut [f32]) {
    for (value, &place) in row.iter_mut().zip(places) {
        if place != OUTSIDE {
            *value += factor * input[place as usize];
        }
    }
}
