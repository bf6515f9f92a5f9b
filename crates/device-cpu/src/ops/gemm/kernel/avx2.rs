//! AVX2 with fused multiply-add: tiles of 6 rows by two vectors of 8.

use std::arch::x86_64::{
    __m256, _MM_HINT_T0, _mm_prefetch, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_permute2f128_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_shuffle_ps, _mm256_storeu_ps,
    _mm256_unpackhi_ps, _mm256_unpacklo_ps,
};

use super::{DOT_LINES, Dots, Kernel, LANES, PREFETCH_EVERY, Tile};

/// Values in a vector.
const WIDE: usize = 8;

/// The kernel.
pub(super) static KERNEL: Kernel = Kernel {
    name: "AVX2",
    rows: 6,
    columns: 2 * WIDE,
    lanes: WIDE,
    tiles: &[
        [tile::<1, 1>, tile::<1, 2>],
        [tile::<2, 1>, tile::<2, 2>],
        [tile::<3, 1>, tile::<3, 2>],
        [tile::<4, 1>, tile::<4, 2>],
        [tile::<5, 1>, tile::<5, 2>],
        [tile::<6, 1>, tile::<6, 2>],
    ],
    dots: &[
        [dots::<1, 1>, dots::<1, DOT_LINES>],
        [dots::<2, 1>, dots::<2, DOT_LINES>],
        [dots::<3, 1>, dots::<3, DOT_LINES>],
        [dots::<4, 1>, dots::<4, DOT_LINES>],
    ],
    half_dots: None,
    transpose,
};

/// # Safety
/// As [`Kernel::tile`], on a processor with AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
#[allow(clippy::needless_range_loop, reason = "sums stay in registers only with plain indices")]
unsafe fn tile<const R: usize, const V: usize>(tile: &Tile) {
    let mut sums = [[_mm256_setzero_ps(); V]; R];
    let (mut left, mut right) = (tile.left, tile.right);
    for row in 0..R {
        _mm_prefetch::<_MM_HINT_T0>(tile.out.wrapping_add(row * tile.stride).cast_const().cast());
    }
    let mut next = tile.next;
    let step = (tile.share * PREFETCH_EVERY).div_ceil(tile.depth.max(1));
    let mut depth = tile.depth;
    while depth > 0 {
        _mm_prefetch::<_MM_HINT_T0>(next.cast());
        next = next.wrapping_add(step);
        let now = depth.min(PREFETCH_EVERY);
        depth -= now;
        for _ in 0..now {
            // SAFETY: the panels have `depth` groups of R and of V vectors.
            unsafe {
                let mut vectors = [_mm256_setzero_ps(); V];
                for v in 0..V {
                    vectors[v] = _mm256_loadu_ps(right.add(v * WIDE));
                }
                for r in 0..R {
                    let value = _mm256_set1_ps(*left.add(r));
                    for v in 0..V {
                        sums[r][v] = _mm256_fmadd_ps(value, vectors[v], sums[r][v]);
                    }
                }
                left = left.add(R);
                right = right.add(V * WIDE);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            let columns = tile.columns.saturating_sub(v * WIDE).min(WIDE);
            // SAFETY: the row has `columns` values from here.
            unsafe { put(tile.out.wrapping_add(r * tile.stride + v * WIDE), *sum, columns, tile.add) };
        }
    }
}

/// Writes or adds the first `columns` values of a vector.
///
/// # Safety
/// `out` must have `columns` values to read and write, at most the width of a vector.
#[target_feature(enable = "avx2,fma")]
unsafe fn put(out: *mut f32, sum: __m256, columns: usize, add: bool) {
    // SAFETY: the caller promises `columns` writable values.
    unsafe {
        if columns == WIDE {
            let sum = if add { _mm256_add_ps(_mm256_loadu_ps(out), sum) } else { sum };
            _mm256_storeu_ps(out, sum);
        } else {
            let mut values = [0.0; WIDE];
            _mm256_storeu_ps(values.as_mut_ptr(), sum);
            for (i, value) in values.iter().enumerate().take(columns) {
                let out = out.add(i);
                *out = if add { *out + value } else { *value };
            }
        }
    }
}

/// # Safety
/// As [`Kernel::dots`], on a processor with AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn dots<const L: usize, const R: usize>(dots: &Dots) {
    let whole = dots.depth / LANES * LANES;
    // Two halves of the partial sums, one after the other, so that they stay in registers.
    for half in [0, WIDE] {
        let mut sums = [[_mm256_setzero_ps(); R]; L];
        // SAFETY: there are LANES sums for every pair of lines, and every line has `depth` values.
        unsafe {
            for (l, sums) in sums.iter_mut().enumerate() {
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_loadu_ps(dots.sums.add((l * R + r) * LANES + half));
                }
            }
            let mut at = half;
            while at < whole {
                let mut rights = [_mm256_setzero_ps(); R];
                for (r, right) in rights.iter_mut().enumerate() {
                    *right = _mm256_loadu_ps(dots.right.add(r * dots.right_stride + at));
                }
                for (l, sums) in sums.iter_mut().enumerate() {
                    let left = _mm256_loadu_ps(dots.left.add(l * dots.left_stride + at));
                    for (sum, right) in sums.iter_mut().zip(rights) {
                        *sum = _mm256_fmadd_ps(left, right, *sum);
                    }
                }
                at += LANES;
            }
            for (l, sums) in sums.iter().enumerate() {
                for (r, sum) in sums.iter().enumerate() {
                    _mm256_storeu_ps(dots.sums.add((l * R + r) * LANES + half), *sum);
                }
            }
        }
    }
    for l in 0..L {
        for r in 0..R {
            for k in whole..dots.depth {
                // SAFETY: as above.
                unsafe {
                    let sum = dots.sums.add((l * R + r) * LANES + k - whole);
                    let (x, y) =
                        (dots.left.add(l * dots.left_stride + k), dots.right.add(r * dots.right_stride + k));
                    *sum = (*x).mul_add(*y, *sum);
                }
            }
        }
    }
}

/// # Safety
/// As [`Kernel::transpose`], on a processor with AVX2.
#[target_feature(enable = "avx2,fma")]
unsafe fn transpose(
    from: *const f32,
    stride: usize,
    lines: usize,
    depth: usize,
    out: *mut f32,
    width: usize,
) {
    let (whole_lines, whole_depth) = (lines / WIDE * WIDE, depth / WIDE * WIDE);
    for line in (0..whole_lines).step_by(WIDE) {
        for at in (0..whole_depth).step_by(WIDE) {
            let mut block = [_mm256_setzero_ps(); WIDE];
            for (i, values) in block.iter_mut().enumerate() {
                // SAFETY: line `line + i` has WIDE values from `at`.
                *values = unsafe { _mm256_loadu_ps(from.add((line + i) * stride + at)) };
            }
            for (k, values) in transposed(block).iter().enumerate() {
                // SAFETY: each group of the panel has room for `lines` values.
                unsafe { _mm256_storeu_ps(out.add((at + k) * width + line), *values) };
            }
        }
    }
    for line in 0..lines {
        let start = if line < whole_lines { whole_depth } else { 0 };
        for k in start..depth {
            // SAFETY: inside the line and the panel.
            unsafe { *out.add(k * width + line) = *from.add(line * stride + k) };
        }
    }
}

/// Rows of an 8 by 8 block become its columns.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn transposed(rows: [__m256; WIDE]) -> [__m256; WIDE] {
    let mut pairs = rows;
    for i in 0..WIDE / 2 {
        pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    let mut fours = pairs;
    for i in 0..WIDE / 4 {
        let [a, b, c, d] = [pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]];
        fours[4 * i] = _mm256_shuffle_ps::<0x44>(a, c);
        fours[4 * i + 1] = _mm256_shuffle_ps::<0xEE>(a, c);
        fours[4 * i + 2] = _mm256_shuffle_ps::<0x44>(b, d);
        fours[4 * i + 3] = _mm256_shuffle_ps::<0xEE>(b, d);
    }
    let mut out = fours;
    for j in 0..4 {
        out[j] = _mm256_permute2f128_ps::<0x20>(fours[j], fours[4 + j]);
        out[4 + j] = _mm256_permute2f128_ps::<0x31>(fours[j], fours[4 + j]);
    }
    out
}
