//! What fills panels: strided values, and weights as they are stored.

use std::ops::Range;

use meta::Encoding;

use super::kernel::{Kernel, Lines, TRANSPOSED_LINES};
use crate::ops::unpack::{Scaling, unpack_f32};

/// A panel to fill: for each depth, the values of up to `width` lines.
pub(crate) struct Panel<'a> {
    /// `[depth][width]`, whatever was in it.
    pub(crate) values: &'a mut [f32],
    /// Lines with room in it.
    pub(crate) width: usize,
    /// Whose instructions to use.
    pub(crate) kernel: &'static Kernel,
}

impl Panel<'_> {
    /// Zeros behind the lines that exist.
    pub(crate) fn clear_behind(&mut self, lines: usize) {
        if lines < self.width {
            self.values.chunks_exact_mut(self.width).for_each(|group| group[lines..].fill(0.0));
        }
    }
}

/// One side of a product: lines of values to be multiplied with the lines of the other side.
pub(crate) trait Panels: Sync {
    /// Writes value `k` of line `i` to `[k - depth.start][i - lines.start]` of the panel, and zeros where
    /// the panel has no line.
    fn fill(&self, panel: &mut Panel<'_>, lines: Range<usize>, depth: Range<usize>);

    /// Depth ranges start at multiples of this.
    fn grain(&self) -> usize {
        1
    }
}

/// Values in memory at constant distances.
#[derive(Clone, Copy)]
pub(crate) struct Strided<'a> {
    /// From the first value on.
    pub(crate) values: &'a [f32],
    /// From one line to the next.
    pub(crate) line: usize,
    /// From one value of a line to the next.
    pub(crate) step: usize,
    /// Lines in one image.
    pub(crate) image_lines: usize,
    /// From one image to the next.
    pub(crate) image: usize,
}

impl<'a> Strided<'a> {
    /// A single image.
    pub(crate) fn new(values: &'a [f32], line: usize, step: usize) -> Strided<'a> {
        Strided { values, line, step, image_lines: usize::MAX, image: 0 }
    }
}

impl Panels for Strided<'_> {
    fn fill(&self, panel: &mut Panel<'_>, lines: Range<usize>, depth: Range<usize>) {
        panel.clear_behind(lines.len());
        let (image, first) = (lines.start / self.image_lines, lines.start % self.image_lines);
        let start = image * self.image + first * self.line + depth.start * self.step;
        let (values, width) = (&self.values[start..], panel.width);
        if self.step == 1 {
            for at in (0..lines.len()).step_by(TRANSPOSED_LINES) {
                let count = (lines.len() - at).min(TRANSPOSED_LINES);
                let values = &values[at * self.line..];
                let from = Lines { values, stride: self.line, lines: count, depth: depth.len() };
                panel.kernel.transpose(from, &mut panel.values[at..], width);
            }
        } else if self.line == 1 {
            // Copies of known length need no call.
            match lines.len() {
                32 => copy_groups::<32>(panel, values, self.step),
                16 => copy_groups::<16>(panel, values, self.step),
                len => {
                    for (k, group) in panel.values.chunks_exact_mut(width).enumerate() {
                        group[..len].copy_from_slice(&values[k * self.step..][..len]);
                    }
                }
            }
        } else {
            for (k, group) in panel.values.chunks_exact_mut(width).enumerate() {
                for (i, value) in group.iter_mut().enumerate().take(lines.len()) {
                    *value = values[k * self.step + i * self.line];
                }
            }
        }
    }
}

/// Copies `N` neighbouring lines for each depth.
fn copy_groups<const N: usize>(panel: &mut Panel<'_>, values: &[f32], step: usize) {
    for (k, group) in panel.values.chunks_exact_mut(panel.width).enumerate() {
        group[..N].copy_from_slice(&values[k * step..][..N]);
    }
}

/// Rows of a weight in the encoding and at the address that its file gave it.
#[derive(Clone, Copy)]
pub(crate) struct Stored<'a> {
    /// The rows, one after the other.
    pub(crate) bytes: &'a [u8],
    /// How values are stored.
    pub(crate) encoding: Encoding,
    /// Values in a row.
    pub(crate) row: usize,
    /// What makes numbers of codes that need scales beside them.
    pub(crate) scaling: Option<Scaling<'a>>,
}

/// The longest part of a row that is unpacked at once.
const UNPACKED: usize = 512;
/// The same for rows whose blocks are longer.
const UNPACKED_LONG: usize = 1024;
const _: () = assert!(UNPACKED_LONG >= meta::Rotation::LONGEST);

impl<'a> Stored<'a> {
    /// Bytes of part of a row, which must be whole blocks.
    fn part(&self, line: usize, depth: &Range<usize>) -> &'a [u8] {
        let (len, bytes) = (self.encoding.block_len(), self.encoding.block_bytes());
        let start = (line * self.row + depth.start) / len * bytes;
        &self.bytes[start..start + depth.len() / len * bytes]
    }

    /// Unpacks part of a row, from the start of a block on. Where it ends within one, `out` has the rest of that behind it.
    pub(crate) fn unpack(&self, line: usize, depth: &Range<usize>, out: &mut [f32]) {
        let whole = depth.start..depth.start + depth.len().next_multiple_of(self.encoding.block_len());
        let (codes, out) = (self.part(line, &whole), &mut out[..whole.len()]);
        match &self.scaling {
            None => unpack_f32(self.encoding, codes, out),
            Some(scaling) => scaling.unpack(line, depth.start, codes, out),
        }
    }

    /// Fills a panel with parts of rows that are at most `LEN` long.
    fn fill_by<const LEN: usize>(&self, panel: &mut Panel<'_>, lines: Range<usize>, depth: Range<usize>) {
        panel.clear_behind(lines.len());
        let width = panel.width;
        let mut rows = [[0.0; LEN]; TRANSPOSED_LINES];
        for at in (0..lines.len()).step_by(TRANSPOSED_LINES) {
            let count = (lines.len() - at).min(TRANSPOSED_LINES);
            for start in depth.clone().step_by(LEN) {
                let part = start..depth.end.min(start + LEN);
                for (row, line) in rows.iter_mut().zip(lines.start + at..lines.start + at + count) {
                    self.unpack(line, &part, row);
                }
                let from =
                    Lines { values: rows.as_flattened(), stride: LEN, lines: count, depth: part.len() };
                let group = (start - depth.start) * width + at;
                panel.kernel.transpose(from, &mut panel.values[group..], width);
            }
        }
    }

    /// The same rows as plain values, where they are stored so and aligned.
    pub(crate) fn as_values(&self) -> Option<&'a [f32]> {
        if self.encoding != Encoding::F32 {
            return None;
        }
        // SAFETY: any 32 bits are an f32.
        let (before, values, after) = unsafe { self.bytes.align_to::<f32>() };
        (before.is_empty() && after.is_empty()).then_some(values)
    }
}

impl Panels for Stored<'_> {
    fn fill(&self, panel: &mut Panel<'_>, lines: Range<usize>, depth: Range<usize>) {
        if let Some(values) = self.as_values() {
            return Strided::new(values, self.row, 1).fill(panel, lines, depth);
        }
        if self.grain() > UNPACKED {
            return self.fill_by::<UNPACKED_LONG>(panel, lines, depth);
        }
        self.fill_by::<UNPACKED>(panel, lines, depth);
    }

    fn grain(&self) -> usize {
        self.encoding.block_len()
    }
}
