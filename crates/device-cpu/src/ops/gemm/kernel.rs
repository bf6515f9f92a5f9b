//! Register kernels: one small tile of the product, for each instruction set, chosen at run time.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

/// One tile of the product: up to `Kernel::rows` lines of the left side times a panel of the right.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86 kernels fetch ahead"))]
pub(super) struct Tile {
    /// Values summed.
    pub(super) depth: usize,
    /// Packed left panel: for each depth, the values of the tile's rows.
    pub(super) left: *const f32,
    /// Packed right panel: for each depth, the values of the tile's columns, whole vectors.
    pub(super) right: *const f32,
    /// First value of the tile in the output.
    pub(super) out: *mut f32,
    /// From one output row to the next.
    pub(super) stride: usize,
    /// Columns that exist; the panel may be wider.
    pub(super) columns: usize,
    /// Whether the output holds the sum of earlier depths.
    pub(super) add: bool,
    /// What the tiles after this one will read; fetched from the shared cache meanwhile.
    pub(super) next: *const f32,
    /// Values of it for this tile to fetch.
    pub(super) share: usize,
}

/// Depths between two prefetches.
#[cfg(target_arch = "x86_64")]
const PREFETCH_EVERY: usize = 4;

/// Dot products of up to four lines with up to four others, kept as sixteen partial sums each.
pub(super) struct Dots {
    /// Values summed.
    pub(super) depth: usize,
    /// First line of the left side.
    pub(super) left: *const f32,
    /// From one left line to the next.
    pub(super) left_stride: usize,
    /// First line of the right side, which need not be aligned.
    pub(super) right: *const f32,
    /// Whether the right side is bf16.
    pub(super) half: bool,
    /// From one right line to the next.
    pub(super) right_stride: usize,
    /// Partial sums, `[left line][right line][LANES]`.
    pub(super) sums: *mut f32,
}

/// Partial sums of one dot product.
pub(super) const LANES: usize = 16;
/// Most lines on either side of [`Dots`].
pub(super) const DOT_LINES: usize = 4;
/// Most lines that one transposition takes.
pub(super) const TRANSPOSED_LINES: usize = 16;

type TileFn = unsafe fn(&Tile);
type DotsFn = unsafe fn(&Dots);
/// Source, its stride, lines, depth, destination, its stride.
type TransposeFn = unsafe fn(*const f32, usize, usize, usize, *mut f32, usize);

/// The inner loops of one instruction set.
pub(crate) struct Kernel {
    /// The name of the instruction set.
    pub(super) name: &'static str,
    /// Rows of a whole tile.
    pub(super) rows: usize,
    /// Columns of a whole tile.
    pub(super) columns: usize,
    /// Columns in a vector: panels are whole vectors wide.
    pub(super) lanes: usize,
    /// Tile functions, `[rows - 1][vectors - 1]`.
    tiles: &'static [[TileFn; 2]],
    /// Dot products, `[left lines - 1][0: one right line, 1: DOT_LINES of them]`.
    dots: &'static [[DotsFn; 2]; DOT_LINES],
    /// The same with bf16 on the right, for depths that are multiples of [`LANES`].
    half_dots: Option<&'static [[DotsFn; 2]; DOT_LINES]>,
    transpose: TransposeFn,
}

impl Kernel {
    /// The fastest one that this processor has.
    pub(crate) fn best() -> &'static Kernel {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return &avx512::KERNEL;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return &avx2::KERNEL;
            }
        }
        &portable::KERNEL
    }

    /// Every one that this processor has.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<&'static Kernel> {
        let mut all = vec![&portable::KERNEL];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                all.push(&avx2::KERNEL);
            }
            if is_x86_feature_detected!("avx512f") {
                all.push(&avx512::KERNEL);
            }
        }
        all
    }

    /// Rows of a whole left panel.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of a whole right panel.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Computes a tile of `rows` rows on a panel of `width` columns.
    ///
    /// # Safety
    /// The left panel has `depth * rows` values, the right one `depth * width`; the output may be
    /// written in `rows` rows of `tile.columns` values; `width` is the columns rounded up to vectors.
    pub(super) unsafe fn tile(&self, rows: usize, width: usize, tile: &Tile) {
        let run = self.tiles[rows - 1][width / self.lanes - 1];
        // SAFETY: the caller promises the sizes; the processor has the instructions, since kernels are
        // handed out only after asking it.
        unsafe { run(tile) }
    }

    /// Adds products of `left` times `right` lines to their partial sums. `right` is 1 or [`DOT_LINES`].
    ///
    /// # Safety
    /// All lines have `depth` values, and there are sums for every pair of lines. Only where
    /// [`Kernel::takes_half`] may the right side be bf16.
    pub(super) unsafe fn dots(&self, left: usize, right: usize, dots: &Dots) {
        let table = match self.half_dots {
            Some(table) if dots.half => table,
            _ => self.dots,
        };
        let run = table[left - 1][usize::from(right == DOT_LINES)];
        // SAFETY: as for tiles.
        unsafe { run(dots) }
    }

    /// Whether dot products of this depth may have bf16 on the right.
    pub(super) fn takes_half(&self, depth: usize) -> bool {
        self.half_dots.is_some() && depth.is_multiple_of(LANES)
    }

    /// Writes value `k` of line `i` to `out[k * width + i]`.
    pub(super) fn transpose(&self, from: Lines<'_>, out: &mut [f32], width: usize) {
        let Lines { values, stride, lines, depth } = from;
        if lines == 0 || depth == 0 {
            return;
        }
        assert!(lines <= TRANSPOSED_LINES && lines <= width, "{lines} lines into panels of {width}");
        assert!((lines - 1) * stride + depth <= values.len() && (depth - 1) * width + lines <= out.len());
        // SAFETY: the assertions hold every access inside both slices.
        unsafe { (self.transpose)(values.as_ptr(), stride, lines, depth, out.as_mut_ptr(), width) }
    }
}

/// Lines of values, one after the other in memory.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    /// From the first value on.
    pub(super) values: &'a [f32],
    /// From one line to the next.
    pub(super) stride: usize,
    /// How many.
    pub(super) lines: usize,
    /// Values of each.
    pub(super) depth: usize,
}
