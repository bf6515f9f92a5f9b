//! Both sides of a convolution as a product: patches of the image, and the weight of a transposed one.

use std::ops::Range;

use super::geometry::{Geometry, OUTSIDE};
use crate::ops::gemm::{Panel, Panels, Stored};
use crate::ops::unpack::unpack_f32;

/// Pixels that are copied together where they stand side by side.
const RUN: usize = 16;

/// The most runs in a panel.
const MAX_RUNS: usize = 4;

/// The patches that the kernel sees, one for each output pixel.
pub(super) struct Patches<'a> {
    /// Sizes.
    pub(super) geometry: &'a Geometry,
    /// Input of this group, from the first image on.
    pub(super) values: &'a [f32],
    /// From one image to the next.
    pub(super) image: usize,
}

/// Where the pixels of one run come from, in a channel of the input.
enum Source {
    /// In a few parts, each side by side; zeros between them.
    Parts([Part; MAX_PARTS]),
    /// Each from its own place, or from outside.
    Each([i32; RUN]),
}

/// Where a run starts in the output.
#[derive(Clone, Copy, Default)]
struct Spot {
    depth: usize,
    line: usize,
    column: usize,
}

/// Neighbouring pixels of a run that see neighbouring inputs.
#[derive(Clone, Copy, Default)]
struct Part {
    /// The first input place.
    from: usize,
    /// The first pixel in the run.
    to: usize,
    /// How many.
    len: usize,
}

/// Rows of 8 pixels or more are crossed at most twice by a run.
const MAX_PARTS: usize = 3;

impl Panels for Patches<'_> {
    fn fill(&self, panel: &mut Panel<'_>, lines: Range<usize>, depth: Range<usize>) {
        let pixels = self.geometry.pixels();
        let (image, first) = (lines.start / pixels, lines.start % pixels);
        let values = &self.values[image * self.image..];
        panel.clear_behind(lines.len().next_multiple_of(RUN).min(panel.width));
        let (taps, plane) = (self.geometry.taps(), self.geometry.plane());
        let [_, height, width] = self.geometry.output;
        let mut spots = [Spot::default(); MAX_RUNS];
        assert!(lines.len() <= MAX_RUNS * RUN, "a panel of {} pixels", lines.len());
        for (at, spot) in (0..lines.len()).step_by(RUN).zip(&mut spots) {
            let row = (first + at) / width;
            *spot = Spot { depth: row / height, line: row % height, column: (first + at) % width };
        }
        for tap in 0..taps {
            // Channels whose value for this tap lies inside the depth.
            let channels =
                depth.start.saturating_sub(tap).div_ceil(taps)..depth.end.saturating_sub(tap).div_ceil(taps);
            if channels.is_empty() {
                continue;
            }
            let group = (channels.start * taps + tap - depth.start) * panel.width;
            let planes = &values[channels.start * plane..channels.end * plane];
            for (at, spot) in (0..lines.len()).step_by(RUN).zip(&spots) {
                let run = first + at..first + lines.len().min(at + RUN);
                let copy = Copy {
                    planes,
                    plane,
                    out: &mut panel.values[group + at..],
                    step: taps * panel.width,
                    width: (panel.width - at).min(RUN),
                };
                copy.run(&self.source(&run, spot, tap));
            }
        }
    }
}

impl Patches<'_> {
    /// Where up to [`RUN`] output pixels from a spot on see the input through a tap.
    fn source(&self, run: &Range<usize>, spot: &Spot, tap: usize) -> Source {
        let geometry = self.geometry;
        let [_, rows, columns] = geometry.input;
        let [z, y, x] = geometry.tap(tap);
        // Most runs lie inside one row of the image.
        if run.len() == RUN && spot.column + RUN <= geometry.output[2] {
            let mut parts = [Part::default(); MAX_PARTS];
            let (z, y) = (geometry.sources(0, z)[spot.depth], geometry.sources(1, y)[spot.line]);
            if z == OUTSIDE || y == OUTSIDE {
                return Source::Parts(parts);
            }
            let inside = geometry.run(x);
            let (start, end) = (inside.start.max(spot.column), inside.end.min(spot.column + RUN));
            if start < end && (end - start == RUN || geometry.is_alone(x)) {
                let line = (z as usize * rows + y as usize) * columns;
                let from = line + geometry.sources(2, x)[start] as usize;
                parts[0] = Part { from, to: start - spot.column, len: end - start };
                return Source::Parts(parts);
            }
        }
        self.source_across(run, [z, y, x])
    }

    /// The same for runs that cross rows or reach beyond the image.
    fn source_across(&self, run: &Range<usize>, [z, y, x]: [usize; 3]) -> Source {
        let geometry = self.geometry;
        let [_, height, width] = geometry.output;
        let [_, rows, columns] = geometry.input;
        let [depths, lines, places] = [(0, z), (1, y), (2, x)].map(|(d, tap)| geometry.sources(d, tap));
        let inside = geometry.run(x);
        let mut each = [OUTSIDE; RUN];
        let (mut parts, mut count) = ([Part::default(); MAX_PARTS], 0);
        let mut pixel = run.start;
        while pixel < run.end {
            // The rest of the run, or of the output row.
            let (row, column) = (pixel / width, pixel % width);
            let len = (run.end - pixel).min(width - column);
            let (to, places) = (pixel - run.start, &places[column..column + len]);
            pixel += len;
            let (z, y) = (depths[row / height], lines[row % height]);
            if z == OUTSIDE || y == OUTSIDE {
                continue;
            }
            let line = (z * rows as i32 + y) * columns as i32;
            for (each, &x) in each[to..].iter_mut().zip(places) {
                *each = if x == OUTSIDE { OUTSIDE } else { line + x };
            }
            let (start, end) = (inside.start.max(column), inside.end.min(column + len));
            let outside = |x: &i32| *x == OUTSIDE;
            let whole = start < end
                && places[..start - column].iter().all(outside)
                && places[end - column..].iter().all(outside);
            if !whole && !places.iter().all(outside) {
                count = MAX_PARTS + 1;
            } else if whole && count < MAX_PARTS {
                let to = to + start - column;
                parts[count] = Part { from: each[to] as usize, to, len: end - start };
                count += 1;
            } else if whole {
                count = MAX_PARTS + 1;
            }
        }
        if count <= MAX_PARTS { Source::Parts(parts) } else { Source::Each(each) }
    }
}

/// One run of several channels, seen through one tap.
struct Copy<'a> {
    /// The channels.
    planes: &'a [f32],
    /// Values in each.
    plane: usize,
    /// Where the first goes.
    out: &'a mut [f32],
    /// From one to the next.
    step: usize,
    /// Values to write of each, at most [`RUN`].
    width: usize,
}

impl Copy<'_> {
    fn run(self, source: &Source) {
        match source {
            Source::Parts(parts) => self.parts(parts),
            Source::Each(each) => {
                for (plane, out) in self.planes.chunks_exact(self.plane).zip(self.out.chunks_mut(self.step)) {
                    for (value, &index) in out[..self.width].iter_mut().zip(each) {
                        *value = if index == OUTSIDE { 0.0 } else { plane[index as usize] };
                    }
                }
            }
        }
    }

    fn parts(self, parts: &[Part; MAX_PARTS]) {
        #[cfg(target_arch = "x86_64")]
        if self.width == RUN && is_x86_feature_detected!("avx512f") {
            let inside =
                parts.iter().all(|part| part.to + part.len <= RUN && part.from + part.len <= self.plane);
            let channels = self.planes.len() / self.plane;
            assert!(inside && (channels - 1) * self.step + RUN <= self.out.len());
            // SAFETY: the processor has the instructions, and the assertion holds all parts inside.
            return unsafe { self.parts_avx512(parts) };
        }
        for (plane, out) in self.planes.chunks_exact(self.plane).zip(self.out.chunks_mut(self.step)) {
            if parts[0].len < RUN {
                out[..self.width].fill(0.0);
            }
            for part in parts {
                out[part.to..part.to + part.len].copy_from_slice(&plane[part.from..part.from + part.len]);
            }
        }
    }

    /// # Safety
    /// Every part lies inside a run and a plane, every run inside the output.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    unsafe fn parts_avx512(self, parts: &[Part; MAX_PARTS]) {
        use std::arch::x86_64::{
            _mm512_mask_loadu_ps, _mm512_maskz_loadu_ps, _mm512_setzero_ps, _mm512_storeu_ps,
        };
        let channels = self.planes.len() / self.plane;
        let (from, to) = (self.planes.as_ptr(), self.out.as_mut_ptr());
        // Pixel 0 of the run may lie before the plane; only pixels of the parts are read.
        let starts = parts.map(|part| from.wrapping_add(part.from).wrapping_sub(part.to));
        let masks = parts.map(|part| (((1u32 << part.len) - 1) << part.to) as u16);
        if masks[1] == 0 {
            for channel in 0..channels {
                // SAFETY: as promised by the caller.
                unsafe {
                    let start = starts[0].wrapping_add(channel * self.plane);
                    _mm512_storeu_ps(to.add(channel * self.step), _mm512_maskz_loadu_ps(masks[0], start));
                }
            }
            return;
        }
        for channel in 0..channels {
            let mut values = _mm512_setzero_ps();
            for (start, mask) in starts.iter().zip(masks) {
                let start = start.wrapping_add(channel * self.plane);
                // SAFETY: as promised by the caller.
                values = unsafe { _mm512_mask_loadu_ps(values, mask, start) };
            }
            // SAFETY: as promised by the caller.
            unsafe { _mm512_storeu_ps(to.add(channel * self.step), values) };
        }
    }
}

/// The weight of a transposed convolution, `[in, out / groups, kernel…]`, as one line for each filter.
pub(super) struct TransposedWeight<'a> {
    /// Sizes.
    pub(super) geometry: &'a Geometry,
    /// All of the weight.
    pub(super) weight: Stored<'a>,
    /// Which group of channels.
    pub(super) group: usize,
}

impl Panels for TransposedWeight<'_> {
    fn fill(&self, panel: &mut Panel<'_>, lines: Range<usize>, depth: Range<usize>) {
        panel.clear_behind(lines.len());
        let Geometry { channels, filters, .. } = *self.geometry;
        let taps = self.geometry.taps();
        let encoding = self.weight.encoding;
        let bytes = |values: usize| values / encoding.block_len() * encoding.block_bytes();
        let mut unpacked = vec![0.0; lines.len() * taps];
        for channel in depth.start / taps..depth.end.div_ceil(taps) {
            let start = ((self.group * channels + channel) * filters + lines.start) * taps;
            let stored = &self.weight.bytes[bytes(start)..bytes(start + unpacked.len())];
            unpack_f32(encoding, stored, &mut unpacked);
            for tap in 0..taps {
                let k = channel * taps + tap;
                if depth.contains(&k) {
                    for (line, values) in unpacked.chunks_exact(taps).enumerate() {
                        panel.values[(k - depth.start) * panel.width + line] = values[tap];
                    }
                }
            }
        }
    }
}
