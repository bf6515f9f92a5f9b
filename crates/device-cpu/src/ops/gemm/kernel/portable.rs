//! Any processor: loops over arrays that the compiler turns into whatever vectors there are.

use super::{DOT_LINES, Dots, Kernel, LANES, Tile};

/// Values in what should become one vector or two.
const WIDE: usize = 8;

/// The kernel.
pub(super) static KERNEL: Kernel = Kernel {
    name: "baseline",
    rows: 4,
    columns: 2 * WIDE,
    lanes: WIDE,
    tiles: &[
        [tile::<1, 1>, tile::<1, 2>],
        [tile::<2, 1>, tile::<2, 2>],
        [tile::<3, 1>, tile::<3, 2>],
        [tile::<4, 1>, tile::<4, 2>],
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

/// `x · y + sum`, fused where the target always has it; elsewhere that would be a function call.
#[inline(always)]
fn multiply_add(x: f32, y: f32, sum: f32) -> f32 {
    if cfg!(target_arch = "aarch64") { x.mul_add(y, sum) } else { x * y + sum }
}

/// # Safety
/// As [`Kernel::tile`].
unsafe fn tile<const R: usize, const V: usize>(tile: &Tile) {
    let mut sums = [[[0.0f32; WIDE]; V]; R];
    for k in 0..tile.depth {
        // SAFETY: the panels have `depth` groups of R and of V vectors.
        let (left, right) = unsafe {
            (
                &*tile.left.add(k * R).cast::<[f32; R]>(),
                &*tile.right.add(k * V * WIDE).cast::<[[f32; WIDE]; V]>(),
            )
        };
        for (sums, x) in sums.iter_mut().zip(left) {
            for (sums, right) in sums.iter_mut().zip(right) {
                for (sum, y) in sums.iter_mut().zip(right) {
                    *sum = multiply_add(*x, *y, *sum);
                }
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (column, sum) in sums.as_flattened().iter().enumerate().take(tile.columns) {
            // SAFETY: the output has R rows of `columns` values.
            unsafe {
                let out = tile.out.add(r * tile.stride + column);
                *out = if tile.add { *out + sum } else { *sum };
            }
        }
    }
}

/// # Safety
/// As [`Kernel::dots`].
unsafe fn dots<const L: usize, const R: usize>(dots: &Dots) {
    for l in 0..L {
        for r in 0..R {
            // SAFETY: there are LANES sums for every pair of lines, and every line has `depth` values.
            let (sums, left, right) = unsafe {
                (
                    std::slice::from_raw_parts_mut(dots.sums.add((l * R + r) * LANES), LANES),
                    std::slice::from_raw_parts(dots.left.add(l * dots.left_stride), dots.depth),
                    std::slice::from_raw_parts(dots.right.add(r * dots.right_stride), dots.depth),
                )
            };
            for (left, right) in left.chunks(LANES).zip(right.chunks(LANES)) {
                for ((sum, x), y) in sums.iter_mut().zip(left).zip(right) {
                    *sum = multiply_add(*x, *y, *sum);
                }
            }
        }
    }
}

/// # Safety
/// As [`Kernel::transpose`].
unsafe fn transpose(
    from: *const f32,
    stride: usize,
    lines: usize,
    depth: usize,
    out: *mut f32,
    width: usize,
) {
    for line in 0..lines {
        for k in 0..depth {
            // SAFETY: inside the line and the panel.
            unsafe { *out.add(k * width + line) = *from.add(line * stride + k) };
        }
    }
}
