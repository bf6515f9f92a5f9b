//! Convolutions of 3 × 3 in fewer multiplications, after Winograd: F(2×2, 3×3).
//!
//! Tiles of 2 × 2 outputs are made of 4 × 4 inputs. Filters and tiles are changed linearly so that the
//! convolution becomes 16 products of each, which are matrix products over the channels: 16 multiplications for
//! 4 outputs instead of 36. The changes only add, subtract and halve; the error is about twice that of a plain
//! sum in f32, far from the next coarser type. Tiles stand at even places of each image and sums go over
//! channels in order, so results depend on neither threads nor the batch.

use std::ops::Range;

use super::geometry::{Geometry, OUTSIDE, longest_run};
use crate::ops::elementwise::traversal::Target as Parts;
use crate::ops::gemm::{Kernel, MOST_VALUES, Packed, Panel, Panels, Scratch, Stored, Target, for_each};
use crate::ops::vector_math::{self, Arithmetic, dispatch};

/// Products of a tile, and its outputs along one dimension.
const PRODUCTS: usize = 16;
const STEP: usize = 2;
/// Inputs of a tile along one dimension.
const SPAN: usize = 4;
/// Taps of a filter.
const TAPS: usize = 9;
/// Fewer channels, filters or tiles than these are not worth the changes.
const LEAST_CHANNELS: usize = 16;
const LEAST_FILTERS: usize = 24;
const LEAST_TILES: usize = 96;
/// More channels than these leave no room for a panel of tiles.
const MOST_CHANNELS: usize = 8000;
/// The most tiles of a piece of work, whole panels of every kernel.
const PIECE_TILES: usize = 96;
/// Pieces are made smaller until there are this many, if there can be.
const PIECES_WANTED: usize = 16;
/// Filters whose products are held at a time, so that they stay in the second-level cache.
const FILTERS_AT_ONCE: usize = 48;
/// Filters that a piece has at least, or the tiles are changed too often.
const LEAST_PIECE_FILTERS: usize = 96;
/// Tiles side by side or filters that are changed at once, no fewer than the rows of a left panel of any kernel.
const LANES: usize = 16;

/// Whether a convolution that is not transposed can and should be computed here.
pub(super) fn suits(geometry: &Geometry) -> bool {
    let tiles = geometry.output[1].div_ceil(STEP) * geometry.output[2].div_ceil(STEP);
    let runs = geometry.output[1].div_ceil(STEP) * geometry.output[2].div_ceil(STEP * LANES);
    geometry.kernel == [1, 3, 3]
        && geometry.input[0] == 1
        && geometry.output[0] == 1
        && geometry.is_dense()
        && (LEAST_CHANNELS..=MOST_CHANNELS).contains(&geometry.channels)
        && geometry.filters >= LEAST_FILTERS
        && tiles >= LEAST_TILES
        && tiles * 4 >= runs * LANES * 3
}

/// One group of channels.
pub(super) struct Winograd<'a> {
    /// Sizes.
    pub(super) geometry: &'a Geometry,
    /// Input of this group, from the first image on.
    pub(super) values: &'a [f32],
    /// From one image of the input to the next.
    pub(super) image: usize,
    /// The filters of this group.
    pub(super) filters: Stored<'a>,
    /// One value for each filter.
    pub(super) bias: Option<&'a [f32]>,
}

impl Winograd<'_> {
    /// Computes the convolution.
    pub(super) fn run(&self, out: Target) {
        self.run_with(Kernel::best(), out);
    }

    /// Computes the convolution with one instruction set.
    pub(super) fn run_with(&self, kernel: &'static Kernel, out: Target) {
        let Geometry { batch, channels, filters, .. } = *self.geometry;
        let grid = Grid::new(self.geometry);
        let at_once = filters_at_once(kernel, channels, filters);
        let mut scratch = Scratch::take_left(PRODUCTS * at_once.min(filters) * channels);
        for first in (0..filters).step_by(at_once) {
            let lines = first..filters.min(first + at_once);
            let changed = &mut scratch.values()[..PRODUCTS * lines.len() * channels];
            self.change_filters(kernel, &lines, changed);
            let (tiles, tall) = piece(kernel, channels, grid.tiles(), lines.len(), batch);
            let (across, down) = (grid.tiles().div_ceil(tiles), lines.len().div_ceil(tall));
            let changed = &*changed;
            for_each(batch * across * down, true, |task| {
                let (image, task) = (task / (across * down), task % (across * down));
                let (first_tile, first_line) = (task / down * tiles, task % down * tall);
                let piece = Piece {
                    whole: self,
                    kernel,
                    grid: &grid,
                    image,
                    runs: first_tile / LANES..grid.tiles().min(first_tile + tiles) / LANES,
                    width: tiles,
                    changed,
                    round: lines.clone(),
                    lines: first_line..lines.len().min(first_line + tall),
                };
                piece.run(out);
            });
        }
        scratch.give_left();
    }

    /// The changed filters of some lines: `[product]`, in each the left panels of a product over channels.
    fn change_filters(&self, kernel: &'static Kernel, lines: &Range<usize>, out: &mut [f32]) {
        let channels = self.geometry.channels;
        let target = Parts::new(out);
        let panels = lines.len().div_ceil(kernel.rows());
        for_each(panels, true, |panel| {
            let start = panel * kernel.rows();
            let height = kernel.rows().min(lines.len() - start);
            let mut taps = Scratch::take_right(height * self.geometry.depth() + LANES);
            self.turn_filters(kernel, lines.start + start..lines.start + start + height, taps.values());
            // SAFETY: panels are distinct parts of the scratch memory.
            let out = std::array::from_fn(|product| unsafe {
                target.part((product * lines.len() + start) * channels, height * channels)
            });
            dispatch(FilterChange { taps: taps.values(), height, channels, out });
            taps.give_right();
        });
    }

    /// Filters side by side: `[channel][tap][filter]`.
    fn turn_filters(&self, kernel: &'static Kernel, lines: Range<usize>, out: &mut [f32]) {
        let depth = self.geometry.depth();
        let mut panel = Panel { values: &mut out[..lines.len() * depth], width: lines.len(), kernel };
        self.filters.fill(&mut panel, lines, 0..depth);
    }
}

/// Filters that are changed at once: as many as there is room for, shared out evenly.
fn filters_at_once(kernel: &'static Kernel, channels: usize, filters: usize) -> usize {
    let fitting = MOST_VALUES / (PRODUCTS * channels);
    if filters <= fitting {
        return filters.next_multiple_of(kernel.rows());
    }
    let most = (fitting / kernel.rows()).max(1) * kernel.rows();
    filters.div_ceil(filters.div_ceil(most)).next_multiple_of(kernel.rows())
}

/// Values that a piece works in: its tiles, changed, and the products of some filters.
fn piece_values(channels: usize, filters: usize, tiles: usize) -> usize {
    PRODUCTS * (channels + FILTERS_AT_ONCE.min(filters)) * tiles + LANES
}

/// Tiles and filters of a piece of work, from the sizes alone.
fn piece(
    kernel: &'static Kernel,
    channels: usize,
    tiles: usize,
    filters: usize,
    images: usize,
) -> (usize, usize) {
    let panel = kernel.columns();
    let (mut wide, mut tall) = (PIECE_TILES, filters);
    while piece_values(channels, filters, wide) > MOST_VALUES && wide > panel {
        wide -= panel;
    }
    let pieces = |wide: usize, tall: usize| tiles.div_ceil(wide) * filters.div_ceil(tall) * images;
    while pieces(wide, tall) < PIECES_WANTED && wide > panel {
        wide -= panel;
    }
    while pieces(wide, tall) < PIECES_WANTED && tall >= 2 * LEAST_PIECE_FILTERS {
        tall = tall.div_ceil(2);
    }
    let even = |size: usize, most: usize| size.div_ceil(size.div_ceil(most));
    (even(tiles, wide).next_multiple_of(panel), even(filters, tall).next_multiple_of(kernel.rows()))
}

/// The tiles of an image, and where their inputs come from. Tiles go in runs of [`LANES`] side by side; the last
/// of a row may reach beyond the image.
struct Grid {
    down: usize,
    /// Runs in a row.
    across: usize,
    /// For each row and column of the image with its border, the input's, or [`OUTSIDE`].
    rows: Vec<i32>,
    columns: Vec<i32>,
    /// Columns that see the input side by side.
    inside: Range<usize>,
    /// Columns of the input.
    width: usize,
}

impl Grid {
    fn new(geometry: &Geometry) -> Grid {
        let [_, height, width] = geometry.output;
        let (down, across) = (height.div_ceil(STEP), width.div_ceil(STEP * LANES));
        let sources = |dimension: usize, size: usize, tiles: usize| -> Vec<i32> {
            let mut places = geometry.sources(dimension, 0).to_vec();
            places.extend((1..3).map(|tap| geometry.sources(dimension, tap)[size - 1]));
            places.resize(tiles * STEP + SPAN - STEP, OUTSIDE);
            places
        };
        let columns = sources(2, width, across * LANES);
        let inside = longest_run(&columns);
        Grid { down, across, rows: sources(1, height, down), columns, inside, width: geometry.input[2] }
    }

    /// Tiles, whether or not they are inside the image.
    fn tiles(&self) -> usize {
        self.down * self.across * LANES
    }

    /// Row and column in the output of the first tile of a run.
    fn place(&self, run: usize) -> (usize, usize) {
        (run / self.across * STEP, run % self.across * LANES * STEP)
    }

    /// What a run of tiles sees of one row of the image with its border: where it lies, or in `buffer`.
    #[inline(always)]
    fn row<'a>(&self, plane: &'a [f32], row: usize, column: usize, buffer: &'a mut Line) -> &'a Line {
        let (source, end) = (self.rows[row], column + LINE);
        if source != OUTSIDE && self.inside.start <= column && end <= self.inside.end {
            let start = source as usize * self.width + self.columns[column] as usize;
            if let Some(line) = plane.get(start..).and_then(|values| values.first_chunk()) {
                return line;
            }
        }
        self.fill(plane, source, column, buffer);
        buffer
    }

    /// The same where the run reaches beyond the image.
    #[cold]
    fn fill(&self, plane: &[f32], source: i32, column: usize, buffer: &mut Line) {
        buffer.fill(0.0);
        if source == OUTSIDE {
            return;
        }
        let line = &plane[source as usize * self.width..][..self.width];
        let start = self.inside.start.clamp(column, column + LINE);
        let end = self.inside.end.clamp(start, column + LINE);
        for at in (column..start).chain(end..column + LINE) {
            if self.columns[at] != OUTSIDE {
                buffer[at - column] = line[self.columns[at] as usize];
            }
        }
        if start < end {
            let from = self.columns[start] as usize;
            buffer[start - column..end - column].copy_from_slice(&line[from..from + end - start]);
        }
    }
}

/// What a run of tiles sees of one row: two values for each tile, and two more.
const LINE: usize = STEP * LANES + SPAN - STEP;
type Line = [f32; LINE];

/// Some tiles of an image, and some filters.
struct Piece<'a> {
    whole: &'a Winograd<'a>,
    kernel: &'static Kernel,
    grid: &'a Grid,
    image: usize,
    /// Runs of tiles.
    runs: Range<usize>,
    /// Tiles with room in memory, whole panels.
    width: usize,
    changed: &'a [f32],
    /// The filters that are changed.
    round: Range<usize>,
    /// Those of them to compute.
    lines: Range<usize>,
}

impl Piece<'_> {
    fn run(&self, out: Target) {
        let channels = self.whole.geometry.channels;
        let inputs = PRODUCTS * channels * self.width;
        let mut scratch = Scratch::take_right(piece_values(channels, self.lines.len(), self.width));
        let (inputs, products) = scratch.values().split_at_mut(inputs);
        if self.runs.len() * LANES < self.width {
            inputs.fill(0.0);
        }
        dispatch(InputChange { piece: self, out: inputs });
        for first in self.lines.clone().step_by(FILTERS_AT_ONCE) {
            let lines = first..self.lines.end.min(first + FILTERS_AT_ONCE);
            let size = lines.len() * self.width;
            for product in 0..PRODUCTS {
                let left = (product * self.round.len() + first) * channels;
                let right = product * channels * self.width;
                Packed {
                    kernel: self.kernel,
                    rows: lines.len(),
                    columns: self.width,
                    depth: channels,
                    left: &self.changed[left..][..lines.len() * channels],
                    right: &inputs[right..][..channels * self.width],
                }
                .run(&mut products[product * size..][..size]);
            }
            self.change_outputs(products, lines, out);
        }
        scratch.give_right();
    }

    /// Outputs of some filters from their products.
    fn change_outputs(&self, products: &[f32], lines: Range<usize>, out: Target) {
        let [_, height, width] = self.whole.geometry.output;
        let pitch = lines.len() * self.width;
        for (i, line) in lines.enumerate() {
            let filter = self.round.start + line;
            let bias = self.whole.bias.map_or(0.0, |bias| bias[filter]);
            for (number, run) in self.runs.clone().enumerate() {
                let (row, column) = self.grid.place(run);
                let len = (LANES * STEP).min(width - column);
                let rows = [0, 1].map(|next| {
                    let exists = row + next < height;
                    let start =
                        out.at(self.image, filter, (row + usize::from(exists) * next) * width + column);
                    // SAFETY: only this piece writes these rows of this filter, and they lie inside the output.
                    unsafe { std::slice::from_raw_parts_mut(start, if exists { len } else { 0 }) }
                });
                let products = &products[i * self.width + number * LANES..];
                dispatch(OutputChange { products, pitch, bias, rows });
            }
        }
    }
}

/// Filters of one panel, `G g Gᵀ` with G = [1 0 0; ½ ½ ½; ½ -½ ½; 0 0 1].
struct FilterChange<'a> {
    /// `[channel][tap][filter]`, and [`LANES`] behind them.
    taps: &'a [f32],
    /// Filters, at most [`LANES`].
    height: usize,
    channels: usize,
    /// `[channel][filter]` for each product.
    out: [&'a mut [f32]; PRODUCTS],
}

impl vector_math::Kernel for FilterChange<'_> {
    type Output = ();

    #[inline(always)]
    fn run<A: Arithmetic>(self) {
        let FilterChange { taps, height, channels, mut out } = self;
        for channel in 0..channels {
            let tap = |tap: usize| lanes(&taps[(channel * TAPS + tap) * height..]);
            let mut half = [[[0.0; LANES]; 3]; SPAN];
            for column in 0..3 {
                let four = spread([tap(column), tap(3 + column), tap(6 + column)]);
                for (half, values) in half.iter_mut().zip(four) {
                    half[column] = values;
                }
            }
            for (half, out) in half.iter().zip(out.chunks_exact_mut(SPAN)) {
                for (values, out) in spread(half.each_ref()).iter().zip(out) {
                    let out = &mut out[channel * height..];
                    // Values of filters that do not exist go where the next channel's will.
                    match out.first_chunk_mut() {
                        Some(whole) => *whole = *values,
                        None => out[..height].copy_from_slice(&values[..height]),
                    }
                }
            }
        }
    }
}

/// Three values to four, for each filter of a panel.
#[inline(always)]
fn spread([a, b, c]: [&[f32; LANES]; 3]) -> [[f32; LANES]; SPAN] {
    let (mut plus, mut minus) = ([0.0; LANES], [0.0; LANES]);
    for i in 0..LANES {
        let (ends, middle) = (0.5 * (a[i] + c[i]), 0.5 * b[i]);
        plus[i] = ends + middle;
        minus[i] = ends - middle;
    }
    [*a, plus, minus, *c]
}

/// Tiles of a piece as right panels of products over channels, `Bᵀ d B` with
/// Bᵀ = [1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1].
struct InputChange<'a> {
    piece: &'a Piece<'a>,
    /// `[product]`, in each the panels.
    out: &'a mut [f32],
}

impl vector_math::Kernel for InputChange<'_> {
    type Output = ();

    #[inline(always)]
    fn run<A: Arithmetic>(self) {
        let InputChange { piece, out } = self;
        let Piece { whole, grid, width, .. } = *piece;
        let (channels, plane) = (whole.geometry.channels, whole.geometry.plane());
        let panel = piece.kernel.columns();
        let image = &whole.values[piece.image * whole.image..][..channels * plane];
        let mut buffers = [[0.0; LINE]; SPAN];
        for (channel, values) in image.chunks_exact(plane).enumerate() {
            for (number, run) in piece.runs.clone().enumerate() {
                let (row, column) = grid.place(run);
                let [b0, b1, b2, b3] = &mut buffers;
                let a = grid.row(values, row, column, b0);
                let b = grid.row(values, row + 1, column, b1);
                let c = grid.row(values, row + 2, column, b2);
                let d = grid.row(values, row + 3, column, b3);
                // Planes are far apart, so the processor does not guess that the next one's rows come now.
                for line in [a, b, c, d] {
                    prefetch(line.as_ptr().wrapping_add(plane));
                    prefetch(line.as_ptr().wrapping_add(plane + LANES));
                }
                let lane = number * LANES;
                let at = lane / panel * channels * panel + channel * panel + lane % panel;
                let step = channels * width;
                put(across(difference(a, c)), &mut out[at..], step);
                put(across(sum(b, c)), &mut out[at + 4 * step..], step);
                put(across(difference(c, b)), &mut out[at + 8 * step..], step);
                put(across(difference(b, d)), &mut out[at + 12 * step..], step);
            }
        }
    }
}

/// Asks for memory that will be read soon; an address that does not exist does no harm.
#[inline(always)]
fn prefetch(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// `a - b`.
#[inline(always)]
fn difference(a: &Line, b: &Line) -> Line {
    let mut out = [0.0; LINE];
    for i in 0..LINE {
        out[i] = a[i] - b[i];
    }
    out
}

/// `a + b`.
#[inline(always)]
fn sum(a: &Line, b: &Line) -> Line {
    let mut out = [0.0; LINE];
    for i in 0..LINE {
        out[i] = a[i] + b[i];
    }
    out
}

/// Four values to four, for each tile.
#[inline(always)]
fn across(line: Line) -> [[f32; LANES]; SPAN] {
    let mut out = [[0.0; LANES]; SPAN];
    for i in 0..LANES {
        let [a, b, c, d] = [line[2 * i], line[2 * i + 1], line[2 * i + 2], line[2 * i + 3]];
        out[0][i] = a - c;
        out[1][i] = b + c;
        out[2][i] = c - b;
        out[3][i] = b - d;
    }
    out
}

/// Writes four vectors, `step` apart.
#[inline(always)]
fn put(values: [[f32; LANES]; SPAN], out: &mut [f32], step: usize) {
    for (i, values) in values.into_iter().enumerate() {
        let place = out[i * step..].first_chunk_mut();
        *place.expect("a panel has room for whole runs") = values;
    }
}

/// Outputs of one run of tiles and one filter, `Aᵀ m A` with Aᵀ = [1 1 1 0; 0 1 -1 -1].
struct OutputChange<'a> {
    /// From the first tile of the first product on.
    products: &'a [f32],
    /// From one product to the next.
    pitch: usize,
    bias: f32,
    /// Where the outputs go, up to two for each tile; the second is empty below the image.
    rows: [&'a mut [f32]; STEP],
}

impl vector_math::Kernel for OutputChange<'_> {
    type Output = ();

    #[inline(always)]
    fn run<A: Arithmetic>(self) {
        let (mut top, mut low) = ([[0.0; LANES]; SPAN], [[0.0; LANES]; SPAN]);
        for (j, (top, low)) in top.iter_mut().zip(&mut low).enumerate() {
            let a = lanes(&self.products[j * self.pitch..]);
            let b = lanes(&self.products[(SPAN + j) * self.pitch..]);
            let c = lanes(&self.products[(2 * SPAN + j) * self.pitch..]);
            let d = lanes(&self.products[(3 * SPAN + j) * self.pitch..]);
            [*top, *low] = gathered([a, b, c, d]);
        }
        for (half, row) in [top, low].iter().zip(self.rows) {
            let [even, odd] = gathered(half.each_ref());
            let mut pairs = [0.0; STEP * LANES];
            for i in 0..LANES {
                pairs[STEP * i] = even[i] + self.bias;
                pairs[STEP * i + 1] = odd[i] + self.bias;
            }
            match row.first_chunk_mut() {
                Some(whole) => *whole = pairs,
                None => row.copy_from_slice(&pairs[..row.len()]),
            }
        }
    }
}

/// The first values of a slice that has enough of them.
#[inline(always)]
fn lanes(values: &[f32]) -> &[f32; LANES] {
    values.first_chunk().expect("the scratch memory has room behind its last value")
}

/// Four values to two, for each tile.
#[inline(always)]
fn gathered([a, b, c, d]: [&[f32; LANES]; SPAN]) -> [[f32; LANES]; STEP] {
    let mut out = [[0.0; LANES]; STEP];
    for i in 0..LANES {
        out[0][i] = a[i] + b[i] + c[i];
        out[1][i] = b[i] - c[i] - d[i];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_holds_more_than_it_may() {
        for kernel in Kernel::all() {
            for channels in [16, 128, 512, 1280, 2560, 2731, 5000, MOST_CHANNELS] {
                for filters in [24, 512, 513, 1280, 8000] {
                    let at_once = filters_at_once(kernel, channels, filters).min(filters);
                    assert!(PRODUCTS * at_once * channels <= MOST_VALUES, "{channels} {filters}: {at_once}");
                    let (tiles, tall) = piece(kernel, channels, 1 << 16, at_once, 1);
                    let values = piece_values(channels, tall, tiles);
                    assert!(values <= MOST_VALUES, "{channels} {filters}: {values}");
                    let turned = kernel.rows() * channels * TAPS + LANES;
                    assert!(turned <= MOST_VALUES, "{channels}: {turned}");
                }
            }
            assert_eq!(filters_at_once(kernel, 512, 512).min(512), 512, "the widest of autoencoders at once");
        }
    }
}
