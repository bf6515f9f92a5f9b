//! AVX-512: tiles of 12 rows by two vectors of 16, which fill 24 of the 32 registers with sums.

use std::arch::x86_64::{
    __m512, __mmask16, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm512_add_ps, _mm512_castsi512_ps,
    _mm512_cvtepu16_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_shuffle_ps, _mm512_slli_epi32,
    _mm512_storeu_ps, _mm512_unpackhi_ps, _mm512_unpacklo_ps,
};

use super::{DOT_LINES, Dots, Kernel, LANES, PREFETCH_EVERY, Tile};

/// The kernel.
pub(super) static KERNEL: Kernel = Kernel {
    name: "AVX-512",
    rows: 12,
    columns: 2 * LANES,
    lanes: LANES,
    tiles: &[
        [tile::<1, 1>, tile::<1, 2>],
        [tile::<2, 1>, tile::<2, 2>],
        [tile::<3, 1>, tile::<3, 2>],
        [tile::<4, 1>, tile::<4, 2>],
        [tile::<5, 1>, tile::<5, 2>],
        [tile::<6, 1>, tile::<6, 2>],
        [tile::<7, 1>, tile::<7, 2>],
        [tile::<8, 1>, tile::<8, 2>],
        [tile::<9, 1>, tile::<9, 2>],
        [tile::<10, 1>, tile::<10, 2>],
        [tile::<11, 1>, tile::<11, 2>],
        [tile::<12, 1>, tile::<12, 2>],
    ],
    dots: &[
        [dots::<1, 1, false>, dots::<1, DOT_LINES, false>],
        [dots::<2, 1, false>, dots::<2, DOT_LINES, false>],
        [dots::<3, 1, false>, dots::<3, DOT_LINES, false>],
        [dots::<4, 1, false>, dots::<4, DOT_LINES, false>],
    ],
    half_dots: Some(&[
        [dots::<1, 1, true>, dots::<1, DOT_LINES, true>],
        [dots::<2, 1, true>, dots::<2, DOT_LINES, true>],
        [dots::<3, 1, true>, dots::<3, DOT_LINES, true>],
        [dots::<4, 1, true>, dots::<4, DOT_LINES, true>],
    ]),
    transpose,
};

/// # Safety
/// As [`Kernel::tile`], on a processor with AVX-512F.
#[target_feature(enable = "avx512f")]
#[allow(clippy::needless_range_loop, reason = "sums stay in registers only with plain indices")]
unsafe fn tile<const R: usize, const V: usize>(tile: &Tile) {
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    let (mut left, mut right) = (tile.left, tile.right);
    for row in 0..R {
        // The output is needed only after the loop; by then it has come from wherever it was.
        let line = tile.out.wrapping_add(row * tile.stride);
        _mm_prefetch::<_MM_HINT_T0>(line.cast_const().cast());
        _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(V * LANES - 1).cast_const().cast());
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
                let mut vectors = [_mm512_setzero_ps(); V];
                for v in 0..V {
                    vectors[v] = _mm512_loadu_ps(right.add(v * LANES));
                }
                for r in 0..R {
                    let value = _mm512_set1_ps(*left.add(r));
                    for v in 0..V {
                        sums[r][v] = _mm512_fmadd_ps(value, vectors[v], sums[r][v]);
                    }
                }
                left = left.add(R);
                right = right.add(V * LANES);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            let columns = tile.columns.saturating_sub(v * LANES).min(LANES);
            // SAFETY: the row has `columns` values from here; masked lanes are not touched.
            unsafe { put(tile.out.wrapping_add(r * tile.stride + v * LANES), *sum, columns, tile.add) };
        }
    }
}

/// Writes or adds the first `columns` values of a vector.
///
/// # Safety
/// `out` must have `columns` values to read and write, at most the width of a vector.
#[target_feature(enable = "avx512f")]
unsafe fn put(out: *mut f32, sum: __m512, columns: usize, add: bool) {
    // SAFETY: the caller promises `columns` writable values.
    unsafe {
        if columns == LANES {
            let sum = if add { _mm512_add_ps(_mm512_loadu_ps(out), sum) } else { sum };
            _mm512_storeu_ps(out, sum);
        } else {
            let mask = first(columns);
            let sum = if add { _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), sum) } else { sum };
            _mm512_mask_storeu_ps(out, mask, sum);
        }
    }
}

/// The mask of the first `count` lanes, at most 16.
fn first(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

/// # Safety
/// As [`Kernel::dots`], on a processor with AVX-512F. If `HALF`, the right side is bf16 and the depth a
/// multiple of [`LANES`].
#[target_feature(enable = "avx512f")]
#[allow(clippy::needless_range_loop, reason = "sums stay in registers only with plain indices")]
unsafe fn dots<const L: usize, const R: usize, const HALF: bool>(dots: &Dots) {
    let mut sums = [[_mm512_setzero_ps(); R]; L];
    // SAFETY: there are LANES sums for every pair of lines, and every line has `depth` values.
    unsafe {
        for l in 0..L {
            for r in 0..R {
                sums[l][r] = _mm512_loadu_ps(dots.sums.add((l * R + r) * LANES));
            }
        }
        let mut at = 0;
        while at < dots.depth {
            let mask = first((dots.depth - at).min(LANES));
            let mut rights = [_mm512_setzero_ps(); R];
            for r in 0..R {
                let place = r * dots.right_stride + at;
                rights[r] = if HALF {
                    widened(dots.right.cast::<u16>().add(place))
                } else {
                    _mm512_maskz_loadu_ps(mask, dots.right.add(place))
                };
            }
            for l in 0..L {
                let left = _mm512_maskz_loadu_ps(mask, dots.left.add(l * dots.left_stride + at));
                for r in 0..R {
                    sums[l][r] = _mm512_fmadd_ps(left, rights[r], sums[l][r]);
                }
            }
            at += LANES;
        }
        for l in 0..L {
            for r in 0..R {
                _mm512_storeu_ps(dots.sums.add((l * R + r) * LANES), sums[l][r]);
            }
        }
    }
}

/// Sixteen bf16 values, which are the upper halves of f32.
///
/// # Safety
/// `from` must have 16 values to read; it need not be aligned.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn widened(from: *const u16) -> __m512 {
    // SAFETY: the caller promises 16 values.
    let halves = unsafe { _mm256_loadu_si256(from.cast()) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
}

/// # Safety
/// As [`Kernel::transpose`], on a processor with AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(
    from: *const f32,
    stride: usize,
    lines: usize,
    depth: usize,
    out: *mut f32,
    width: usize,
) {
    let kept = first(lines);
    let mut at = 0;
    while at + LANES <= depth {
        let mut block = [_mm512_setzero_ps(); LANES];
        for (line, values) in block.iter_mut().enumerate() {
            if line < lines {
                // SAFETY: the line has 16 more values.
                *values = unsafe { _mm512_loadu_ps(from.add(line * stride + at)) };
            }
        }
        let turned = transposed(block);
        // A whole vector may spill over what the next one writes, or what another group of lines will;
        // masked stores are much slower.
        let whole = lines == LANES || (lines == width && at + 2 * LANES <= depth);
        for (k, values) in turned.iter().enumerate() {
            // SAFETY: each group of the panel has room for `lines` values, and with more of the panel to
            // come there is room for a whole vector.
            unsafe {
                let out = out.add((at + k) * width);
                if whole { _mm512_storeu_ps(out, *values) } else { _mm512_mask_storeu_ps(out, kept, *values) }
            }
        }
        at += LANES;
    }
    for k in at..depth {
        for line in 0..lines {
            // SAFETY: inside the line and the panel.
            unsafe { *out.add(k * width + line) = *from.add(line * stride + k) };
        }
    }
}

/// Rows of a 16 by 16 block become its columns.
#[target_feature(enable = "avx512f")]
#[inline]
fn transposed(rows: [__m512; LANES]) -> [__m512; LANES] {
    let mut pairs = rows;
    for i in 0..LANES / 2 {
        pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    // Within each 128-bit lane, four rows by four columns.
    let mut fours = pairs;
    for i in 0..LANES / 4 {
        let [a, b, c, d] = [pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]];
        fours[4 * i] = _mm512_shuffle_ps::<0x44>(a, c);
        fours[4 * i + 1] = _mm512_shuffle_ps::<0xEE>(a, c);
        fours[4 * i + 2] = _mm512_shuffle_ps::<0x44>(b, d);
        fours[4 * i + 3] = _mm512_shuffle_ps::<0xEE>(b, d);
    }
    // Then the lanes are gathered: column 4 lane + j comes from lane `lane` of every fours[j].
    let mut out = fours;
    for j in 0..4 {
        let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
        let (ab_even, ab_odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xDD>(a, b));
        let (cd_even, cd_odd) = (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xDD>(c, d));
        out[j] = _mm512_shuffle_f32x4::<0x88>(ab_even, cd_even);
        out[8 + j] = _mm512_shuffle_f32x4::<0xDD>(ab_even, cd_even);
        out[4 + j] = _mm512_shuffle_f32x4::<0x88>(ab_odd, cd_odd);
        out[12 + j] = _mm512_shuffle_f32x4::<0xDD>(ab_odd, cd_odd);
    }
    out
}
