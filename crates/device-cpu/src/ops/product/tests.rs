//! Products through calls: views, parameters, threads.

use std::sync::Arc;

use device::op::{Activation, Linear, Matmul};
use device::{Buffer, Device, OpCall, Operand};
use meta::{DType, Encoding, QuantFormat};

use crate::CpuBackend;
use crate::ops::elementwise::activate;
use crate::ops::gemm::tests::{assert_near, encodings, stored};

/// A device and what tests do with it.
pub(crate) struct Bench(Device);

impl Bench {
    pub(crate) fn new() -> Bench {
        Bench(Device::new(Arc::new(CpuBackend::new()), 1 << 30))
    }

    /// An f32 tensor.
    pub(crate) fn tensor(&self, dims: &[usize], values: &[f32]) -> Operand {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        Operand::new(self.0.upload(&bytes).unwrap(), Encoding::F32, meta::Shape::new(dims).unwrap(), 0)
            .unwrap()
    }

    /// A weight one byte into its buffer, as in a mapped file.
    pub(crate) fn weight(&self, dims: &[usize], encoding: Encoding, shifted: Vec<u8>) -> Operand {
        Operand::new(Buffer::over(Arc::new(shifted)), encoding, meta::Shape::new(dims).unwrap(), 1).unwrap()
    }

    /// Runs a call and gives all values of the output's buffer.
    pub(crate) fn run(&self, call: impl Into<OpCall>) -> Vec<f32> {
        let call = call.into();
        self.0.compute_stream().unwrap().launch(&call).unwrap();
        let memory = call.output().buffer().memory().clone();
        let start = memory.host_pointer().unwrap();
        // SAFETY: the call is done, and nobody else has the buffer.
        let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), memory.len()) };
        bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
    }
}

/// Runs the same in pools of several sizes and fails if a bit differs.
pub(crate) fn same_in_every_pool(run: impl Fn() -> Vec<f32> + Sync) -> Vec<f32> {
    let mut first: Option<Vec<f32>> = None;
    for threads in [1, 2, 3, 8] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let got = pool.install(&run);
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let first = first.get_or_insert_with(|| got.clone());
        assert!(bits(first) == bits(&got), "{threads} threads give other values than one");
    }
    first.unwrap()
}

fn at(values: &[f32], index: usize) -> f64 {
    f64::from(values[index])
}

#[test]
fn linear_takes_every_encoding_bias_scale_and_activation() {
    let bench = Bench::new();
    let [m, n, k] = [21, 45, 256];
    let x = testkit::random_normal(1, m * k);
    for (i, encoding) in encodings().into_iter().enumerate() {
        let (bytes, values) = stored(encoding, 2, n * k);
        let bias_type = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F64][i % 5];
        let (bias_bytes, bias) = stored(bias_type.into(), 3, n);
        for (rows, activation) in
            [(m, None), (3, Some(Activation::ALL[i % 5])), (m, Some(Activation::ALL[i % 5]))]
        {
            let call = Linear {
                x: bench.tensor(&[rows, k], &x[..rows * k]),
                weight: bench.weight(&[n, k], encoding, bytes.clone()),
                scales: Some(device::op::Scales::new(bench.tensor(&[], &[0.25]), None)),
                bias: Some(bench.weight(&[n], bias_type.into(), bias_bytes.clone())),
                activation,
                out: bench.tensor(&[rows, n], &vec![f32::NAN; rows * n]),
            };
            let sum = |m: usize, n: usize| -> f64 {
                let dot: f64 = (0..k).map(|k_| at(&x, m * k + k_) * at(&values, n * k + k_)).sum();
                dot * 0.25 + at(&bias, n)
            };
            let mut want: Vec<f64> = (0..rows * n).map(|i| sum(i / n, i % n)).collect();
            if let Some(activation) = activation {
                let mut activated: Vec<f32> = want.iter().map(|v| *v as f32).collect();
                activate(activation, &mut activated);
                want = activated.into_iter().map(f64::from).collect();
            }
            assert_near(&format!("{encoding} {activation:?}"), &bench.run(call), &want);
        }
    }
}

#[test]
fn linear_follows_strides_of_rows() {
    let bench = Bench::new();
    let (b, s, k, n) = (3, 11, 40, 24);
    let x = testkit::random_normal(4, b * 20 * 50);
    let w = testkit::random_normal(5, n * k);
    let wide = bench.tensor(&[b, 20, 50], &x);
    let out = bench.tensor(&[b, 16, 30], &vec![7.0; b * 16 * 30]);
    let call = Linear {
        x: wide.slice(1, 5, s).unwrap().slice(2, 3, k).unwrap(),
        weight: bench.tensor(&[n, k], &w),
        scales: None,
        bias: None,
        activation: None,
        out: out.slice(1, 2, s).unwrap().slice(2, 4, n).unwrap(),
    };
    let want: Vec<f64> = (0..b * 16 * 30)
        .map(|i| {
            let (image, row, column) = (i / 480, i / 30 % 16, i % 30);
            if !(2..2 + s).contains(&row) || !(4..4 + n).contains(&column) {
                return 7.0;
            }
            let first = image * 1000 + (row - 2 + 5) * 50 + 3;
            (0..k).map(|i| at(&x, first + i) * at(&w, (column - 4) * k + i)).sum()
        })
        .collect();
    assert_near("strided rows", &bench.run(call), &want);
}

#[test]
fn linear_of_no_depth_gives_the_bias() {
    let bench = Bench::new();
    for rows in [2, 30] {
        let call = Linear {
            x: bench.tensor(&[rows, 0], &[]),
            weight: bench.tensor(&[3, 0], &[]),
            scales: None,
            bias: Some(bench.tensor(&[3], &[1.0, 2.0, 3.0])),
            activation: None,
            out: bench.tensor(&[rows, 3], &vec![f32::NAN; rows * 3]),
        };
        assert_eq!(bench.run(call), [1.0, 2.0, 3.0].repeat(rows));
    }
}

#[test]
fn matmul_follows_transposed_sliced_and_repeated_views() {
    let bench = Bench::new();
    for [m, n, k] in [[1, 1, 1], [1, 40, 9], [33, 1, 70], [14, 35, 64], [65, 50, 1], [90, 120, 500]] {
        let heads = 3;
        let a = testkit::random_normal(6, 2 * m * heads * k);
        let b = testkit::random_normal(7, 2 * n * heads * k);
        // Heads interleaved with rows, as attention leaves them; the right side transposed.
        let left = bench.tensor(&[2, m, heads, k], &a).permute(&[0, 2, 1, 3]).unwrap();
        let right = bench.tensor(&[2, n, heads, k], &b).permute(&[0, 2, 3, 1]).unwrap();
        let out = bench.tensor(&[2, m, heads, n], &vec![f32::NAN; 2 * m * heads * n]);
        let call = Matmul {
            a: left,
            b: right,
            alpha: 0.5,
            accumulate: false,
            out: out.permute(&[0, 2, 1, 3]).unwrap(),
        };
        let value = |i: usize| -> f64 {
            let (image, row, head, column) = (i / (m * heads * n), i / (heads * n) % m, i / n % heads, i % n);
            let (x, y) = (((image * m + row) * heads + head) * k, ((image * n + column) * heads + head) * k);
            (0..k).map(|i| 0.5 * at(&a, x + i) * at(&b, y + i)).sum()
        };
        let want: Vec<f64> = (0..2 * m * heads * n).map(value).collect();
        assert_near(&format!("{m}x{n}x{k}"), &bench.run(call), &want);

        // A transposed left side, and one right side for all.
        let left = bench.tensor(&[2, k, m], &a[..2 * k * m]).transpose(1, 2).unwrap();
        let right = bench.tensor(&[1, k, n], &b[..k * n]).broadcast([2, k, n]).unwrap();
        let out = bench.tensor(&[2, m, n], &vec![f32::NAN; 2 * m * n]);
        let value = |i: usize| -> f64 {
            let (image, row, column) = (i / (m * n), i / n % m, i % n);
            (0..k).map(|i| at(&a, (image * k + i) * m + row) * at(&b, i * n + column)).sum()
        };
        let want: Vec<f64> = (0..2 * m * n).map(value).collect();
        let call = Matmul { a: left, b: right, alpha: 1.0, accumulate: false, out };
        assert_near(&format!("transposed {m}x{n}x{k}"), &bench.run(call), &want);
    }
}

#[test]
fn products_do_not_depend_on_threads() {
    let bench = Bench::new();
    for (rows, n, k, encoding) in [
        (150, 400, 1000, Encoding::F32),
        (4, 700, 512, QuantFormat::Q8_0.into()),
        (300, 200, 768, QuantFormat::Q4_K.into()),
    ] {
        let x = testkit::random_normal(8, rows * k);
        let (bytes, _) = stored(encoding, 9, n * k);
        same_in_every_pool(|| {
            bench.run(Linear {
                x: bench.tensor(&[rows, k], &x),
                weight: bench.weight(&[n, k], encoding, bytes.clone()),
                scales: None,
                bias: None,
                activation: Some(Activation::Gelu),
                out: bench.tensor(&[rows, n], &vec![f32::NAN; rows * n]),
            })
        });
    }
    let (a, b) = (testkit::random_normal(10, 6 * 90 * 300), testkit::random_normal(11, 6 * 300 * 80));
    same_in_every_pool(|| {
        let (a, b) = (bench.tensor(&[6, 90, 300], &a), bench.tensor(&[6, 300, 80], &b));
        let out = bench.tensor(&[6, 90, 80], &vec![f32::NAN; 6 * 90 * 80]);
        bench.run(Matmul { a, b, alpha: 1.0, accumulate: false, out })
    });
}

/// The bits of a product and a sum one after the other, for matrices and batches of them, whatever the strides.
#[test]
fn a_product_added_to_its_output_is_a_product_and_a_sum() {
    let bench = Bench::new();
    for [b, m, n, k] in [[1, 1, 1, 1], [1, 300, 70, 64], [3, 40, 33, 9], [2, 7, 2000, 400]] {
        let values = [12, 13, 14].map(|seed| testkit::random_normal(seed, b * (m + n) * (k + n + m)));
        let a = bench.tensor(&[b, m, k], &values[0][..b * m * k]);
        let w = bench.tensor(&[b, k, n], &values[1][..b * k * n]);
        let product = bench.tensor(&[b, m, n], &vec![f32::NAN; b * m * n]);
        let apart = Matmul { a: a.clone(), b: w.clone(), alpha: 0.3, accumulate: false, out: product };
        let want: Vec<f32> = bench.run(apart).iter().zip(&values[2]).map(|(p, v)| v + p).collect();
        let out = bench.tensor(&[b, m, n], &values[2][..b * m * n]);
        let got = bench.run(Matmul { a: a.clone(), b: w.clone(), alpha: 0.3, accumulate: true, out });
        assert!(got.iter().zip(&want).all(|(g, w)| g.to_bits() == w.to_bits()), "{b} of {m}x{n}x{k}");
        // Some rows of a wider output.
        let wide = bench.tensor(&[b, m + 2, n + 3], &vec![1.0; b * (m + 2) * (n + 3)]);
        let out = wide.slice(1, 1, m).unwrap().slice(2, 2, n).unwrap();
        let got = bench.run(Matmul { a, b: w, alpha: 0.3, accumulate: true, out });
        let inside =
            |i: usize| (1..=m).contains(&(i / (n + 3) % (m + 2))) && (2..n + 2).contains(&(i % (n + 3)));
        assert!(got.iter().enumerate().all(|(i, v)| inside(i) || *v == 1.0));
        assert!(got.iter().enumerate().any(|(i, v)| inside(i) && *v != 1.0));
    }
}

/// A weight of 16 bits gets the sum, rounded once.
#[test]
fn a_product_is_added_to_weights_of_16_bits() {
    let device = Device::new(Arc::new(CpuBackend::new()), 1 << 30);
    let [m, n, k] = [50, 70, 24];
    for dtype in [DType::BF16, DType::F16] {
        let encoding = Encoding::from(dtype);
        let stored = |seed: u64, dims: [usize; 2]| {
            let bytes = testkit::encode(encoding, &testkit::random_normal(seed, dims[0] * dims[1])).unwrap();
            let values = testkit::decode(encoding, &bytes).unwrap();
            (Operand::new(device.upload(&bytes).unwrap(), encoding, dims, 0).unwrap(), values)
        };
        let ((a, left), (b, right), (out, before)) =
            (stored(1, [m, k]), stored(2, [k, n]), stored(3, [m, n]));
        let call = Matmul { a, b, alpha: 0.125, accumulate: true, out: out.clone() };
        device.compute_stream().unwrap().launch(&call.into()).unwrap();
        let mut bytes = vec![0; m * n * 2];
        device.compute_stream().unwrap().read(&out.span(), &mut bytes).unwrap();
        let got = testkit::decode(encoding, &bytes).unwrap();
        let value = |i: usize| -> f64 {
            let sum: f64 = (0..k).map(|l| at(&left, i / n * k + l) * at(&right, l * n + i % n)).sum();
            at(&before, i) + 0.125 * sum
        };
        let want: Vec<f32> = (0..m * n).map(|i| value(i) as f32).collect();
        let want = testkit::decode(encoding, &testkit::encode(encoding, &want).unwrap()).unwrap();
        // A sum that lies between two values may be rounded either way, depending on its order.
        let other = got.iter().zip(&want).filter(|(g, w)| g != w).count();
        assert!(other < m * n / 100, "{dtype}: {other} of {} values differ", m * n);
    }
}
