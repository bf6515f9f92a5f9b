//! The core against loops in f64, on every instruction set that this machine has.

use meta::{DType, Encoding, QuantFormat};

use super::*;

/// Fails unless the result is as near as f32 sums can be.
pub(crate) fn assert_near(name: &str, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{name}");
    let square = |sum: f64, x: f64| sum + x * x;
    let error = got.iter().zip(want).map(|(g, w)| f64::from(*g) - w).fold(0.0, square).sqrt();
    let size = want.iter().copied().fold(0.0, square).sqrt();
    let worst = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max);
    let largest = want.iter().fold(0.0f64, |m, w| m.max(w.abs()));
    assert!(error <= 1e-6 * size, "{name}: relative error {:e}", error / size);
    assert!(worst <= 1e-5 * largest, "{name}: off by {worst:e} of {largest:e}");
}

/// `left · rightᵀ` of contiguous lines.
fn naive(left: &[f32], right: &[f32], depth: usize) -> Vec<f64> {
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
    left.chunks_exact(depth).flat_map(|x| right.chunks_exact(depth).map(move |y| dot(x, y))).collect()
}

/// The product with one kernel, with the sides given line by line.
fn product(kernel: &'static Kernel, sides: [&dyn Panels; 2], [rows, columns, depth]: [usize; 3]) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * columns];
    // SAFETY: `out` has exactly these rows.
    let target = unsafe { Target::new(out.as_mut_ptr(), columns, 0) };
    let epilogue = Epilogue::NONE;
    let [left, right] = sides;
    Product { rows, images: 1, columns, depth, left, right, epilogue }.run_with(kernel, target);
    out
}

#[test]
fn every_kernel_multiplies_every_shape() {
    for kernel in Kernel::all() {
        for [m, n, k] in [
            [1, 1, 1],
            [2, 3, 1],
            [12, 32, 16],
            [13, 33, 17],
            [5, 100, 384],
            [100, 5, 385],
            [77, 131, 800],
            [11, 16, 1000],
            [200, 300, 40],
            [530, 270, 70],
            [3, 40, 0],
        ] {
            let name = format!("{} {m}x{n}x{k}", kernel.name);
            let (a, b) = (testkit::random_normal(1, m * k), testkit::random_normal(2, n * k));
            let want = if k == 0 { vec![0.0; m * n] } else { naive(&a, &b, k) };
            let turn = |x: &[f32], lines: usize| -> Vec<f32> {
                (0..lines * k).map(|i| x[i % lines * k + i / lines]).collect()
            };
            let (at, bt) = (turn(&a, m), turn(&b, n));
            let rows = [Strided::new(&a, k, 1), Strided::new(&at, 1, m)];
            let columns = [Strided::new(&b, k, 1), Strided::new(&bt, 1, n)];
            let first = product(kernel, [&rows[0], &columns[0]], [m, n, k]);
            assert_near(&name, &first, &want);
            for (row, column) in [(0, 1), (1, 0), (1, 1)] {
                assert_eq!(product(kernel, [&rows[row], &columns[column]], [m, n, k]), first, "{name}");
            }
        }
    }
}

#[test]
fn a_value_depends_on_its_own_row_and_column_only() {
    let [m, n, k] = [40, 70, 900];
    let (a, b) = (testkit::random_normal(3, m * k), testkit::random_normal(4, n * k));
    for kernel in Kernel::all() {
        let whole = product(kernel, [&Strided::new(&a, k, 1), &Strided::new(&b, k, 1)], [m, n, k]);
        let part = [&Strided::new(&a[7 * k..], k, 1) as &dyn Panels, &Strided::new(&b[9 * k..], k, 1)];
        let part = product(kernel, part, [20, 21, k]);
        for (i, value) in part.iter().enumerate() {
            assert_eq!(*value, whole[(7 + i / 21) * n + 9 + i % 21]);
        }
    }
}

/// Bytes at an odd address, and the values they stand for.
pub(crate) fn stored(encoding: Encoding, seed: u64, count: usize) -> (Vec<u8>, Vec<f32>) {
    let bytes = match encoding {
        Encoding::Quant(format) => testkit::random_blocks(format, seed, count / format.block_len()),
        plain => testkit::encode(plain, &testkit::random_normal(seed, count)).unwrap(),
    };
    let mut values = vec![0.0; count];
    crate::ops::unpack::unpack_f32(encoding, &bytes, &mut values);
    let mut shifted = vec![0u8];
    shifted.extend(bytes);
    (shifted, values)
}

/// Encodings of every kind of block.
pub(crate) fn encodings() -> Vec<Encoding> {
    let plain = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];
    plain.map(Encoding::Plain).into_iter().chain(QuantFormat::ALL.map(Encoding::Quant)).collect()
}

#[test]
fn weights_are_used_as_they_are_stored() {
    let [m, n, k] = [19, 45, 1280];
    let x = testkit::random_normal(5, m * k);
    for encoding in encodings() {
        let (bytes, values) = stored(encoding, 6, n * k);
        let want = naive(&x, &values, k);
        let weight = Stored { bytes: &bytes[1..], encoding, row: k, scaling: None };
        for kernel in Kernel::all() {
            let name = format!("{} {encoding}", kernel.name);
            let got = product(kernel, [&Strided::new(&x, k, 1), &weight], [m, n, k]);
            assert_near(&name, &got, &want);
        }
    }
}

#[test]
fn few_rows_are_multiplied_without_packing() {
    for (n, k) in [(1, 1), (5, 33), (70, 1536), (66, 2304)] {
        for encoding in [Encoding::F32, Encoding::BF16, QuantFormat::Q8_0.into(), QuantFormat::Q4_K.into()] {
            if k % encoding.block_len() != 0 {
                continue;
            }
            let x = testkit::random_normal(7, FEW_ROWS * (k + 3));
            let (bytes, values) = stored(encoding, 8, n * k);
            let rows: Vec<f32> = x.chunks_exact(k + 3).flat_map(|row| &row[..k]).copied().collect();
            let want = naive(&rows, &values, k);
            for kernel in Kernel::all() {
                let mut all = Vec::new();
                for rows in 1..=FEW_ROWS {
                    let mut out = vec![f32::NAN; rows * n];
                    // SAFETY: `out` has exactly these rows.
                    let target = unsafe { Target::new(out.as_mut_ptr(), n, 0) };
                    let weight = Stored { bytes: &bytes[1..], encoding, row: k, scaling: None };
                    let epilogue = Epilogue::NONE;
                    FewRows { values: &x, stride: k + 3, rows, weight, columns: n, depth: k, epilogue }
                        .run_with(kernel, target);
                    assert_near(
                        &format!("{} {encoding} {rows}x{n}x{k}", kernel.name),
                        &out,
                        &want[..rows * n],
                    );
                    assert_eq!(out[..all.len()], all, "a row does not depend on how many there are");
                    all = out;
                }
            }
        }
    }
}

#[test]
fn no_thread_packs_more_than_it_may() {
    const { assert!(LEFT_LIMIT <= MOST_VALUES && ROWS_AT_ONCE * DEPTH_BLOCK <= LEFT_LIMIT) };
    for (depth, grain) in [(1, 1), (100_000, 1), (383, 32), (10_240, 32), (10_240, 256), (8192, 96)] {
        let block = depth_block(depth, grain);
        assert!(ROWS_AT_ONCE * block <= MOST_VALUES, "{depth} in units of {grain}: {block}");
        assert!(2 * PIECE_COLUMNS * block <= MOST_VALUES, "{depth} in units of {grain}: {block}");
    }
}
