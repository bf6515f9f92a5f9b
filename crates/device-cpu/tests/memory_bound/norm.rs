//! Normalisations.

use device::op::{GroupNorm, LayerNorm, ModulatedNorm, RmsNorm};

use crate::*;

/// Mean and variance.
fn moments(x: &[f64]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    (mean, x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n)
}

fn f64s(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| f64::from(*v)).collect()
}

#[test]
fn group_norm_of_odd_sizes() {
    let device = cpu();
    for (dims, groups) in [(&[2, 6, 5, 7][..], 3), (&[1, 4, 130, 131], 2), (&[3, 8], 4), (&[2, 3, 33_000], 1)]
    {
        let shape = Shape::new(dims).unwrap();
        let channels = dims[1];
        let x = random(&device, 1, shape);
        let (weight, bias) = (random(&device, 2, [channels]), random(&device, 3, [channels]));
        let given = f64s(&values(&device, &x));
        let (w, b) = (f64s(&values(&device, &weight)), f64s(&values(&device, &bias)));
        let plane = shape.count() / dims[0] / channels;
        let group = channels / groups * plane;
        for affine in [true, false] {
            let mut want = Vec::new();
            for (g, x) in given.chunks(group).enumerate() {
                let (mean, variance) = moments(x);
                want.extend(x.iter().enumerate().map(|(i, v)| {
                    let c = (g * group + i) / plane % channels;
                    let y = (v - mean) / (variance + 1e-5).sqrt();
                    if affine { y * w[c] + b[c] } else { y }
                }));
            }
            let out = blank(&device, shape);
            let call = GroupNorm {
                x: x.clone(),
                weight: affine.then(|| weight.clone()),
                bias: affine.then(|| bias.clone()),
                groups,
                eps: 1e-5,
                silu: false,
                out: out.clone(),
            };
            launch(&device, call).unwrap();
            assert_near(&format!("group norm of {shape}"), &values(&device, &out), &want, 2e-6);
        }
    }
}

#[test]
fn group_norm_is_exact_for_many_values_far_from_zero() {
    let device = cpu();
    let shape = Shape::from([1, 1, 3_000_017]);
    let given: Vec<f32> = (0..3_000_017u32).map(|i| 1000.0 + (i % 1009) as f32 / 1009.0).collect();
    let (mean, variance) = moments(&f64s(&given));
    let (x, out) = (tensor(&device, &given, shape), blank(&device, shape));
    let call = GroupNorm { x, weight: None, bias: None, groups: 1, eps: 0.0, silu: false, out: out.clone() };
    launch(&device, call).unwrap();
    // The mean itself is rounded to f32, half a unit at 1000 is 3e-5 of a deviation of 0.29.
    let want: Vec<f64> = given.iter().map(|v| (f64::from(*v) - mean) / variance.sqrt()).collect();
    assert_near("group norm", &values(&device, &out), &want, 1.5e-4);
}

#[test]
fn modulated_norm_of_strided_rows_with_scales_that_repeat() {
    let device = cpu();
    for n in [1, 16, 67, 20_001] {
        let x = random(&device, 1, [2, 4, n + 3]).slice(2, 2, n).unwrap();
        let parts = random(&device, 2, [2, 1, 3 * n]);
        let (scale, shift) = (parts.slice(2, 2 * n, n).unwrap(), parts.slice(2, 0, n).unwrap());
        let out = blank(&device, [2, 4, n + 1]).slice(2, 1, n).unwrap();
        let (given, parts) = (f64s(&values(&device, &x)), f64s(&values(&device, &parts)));
        let want: Vec<f64> = given
            .chunks(n)
            .enumerate()
            .flat_map(|(row, x)| {
                let (mean, variance) = moments(x);
                let part = &parts[row / 4 * 3 * n..];
                let normed = x.iter().map(move |v| (v - mean) / (variance + 1e-6).sqrt());
                normed
                    .enumerate()
                    .map(move |(i, y)| y * (1.0 + part[2 * n + i]) + part[i])
                    .collect::<Vec<_>>()
            })
            .collect();
        launch(&device, ModulatedNorm { x, scale, shift, eps: 1e-6, out: out.clone() }).unwrap();
        assert_near(&format!("modulated norm of {n}"), &values(&device, &out), &want, 2e-6);
    }
}

#[test]
fn a_modulation_must_have_a_value_for_each_of_a_row() {
    let device = cpu();
    let (x, out) = (random(&device, 1, [2, 4, 8]), blank(&device, [2, 4, 8]));
    let one = random(&device, 2, [2, 1, 1]);
    let whole = random(&device, 3, [2, 1, 8]);
    let call = ModulatedNorm { x, scale: one, shift: whole, eps: 1e-6, out };
    let error = launch(&device, call).unwrap_err().to_string();
    assert!(error.contains("modulated norm") && error.contains("scale"), "{error}");
}

#[test]
fn row_norms_of_strided_rows_with_stored_parameters() {
    let device = cpu();
    for n in [1, 3, 16, 67, 640, 20_001] {
        let wide = random(&device, n as u64, [3, 2, n + 5]);
        let x = wide.slice(2, 2, n).unwrap().transpose(0, 1).unwrap();
        let out = blank(&device, [3, 2, n + 1]).slice(2, 1, n).unwrap().transpose(0, 1).unwrap();
        let given = f64s(&values(&device, &x));
        let parameter = |seed, encoding: Encoding| {
            let values = testkit::random_f32(seed, n);
            let bytes = testkit::encode(encoding, &values).unwrap();
            let back = testkit::decode(encoding, &bytes).unwrap();
            (stored(&device, &bytes, encoding, [n]), f64s(&back))
        };
        let ((weight, w), (bias, b)) = (parameter(1, Encoding::BF16), parameter(2, Encoding::F16));
        let mut want = Vec::new();
        for row in given.chunks(n) {
            let (mean, variance) = moments(row);
            let y = row.iter().map(|v| (v - mean) / (variance + 1e-6).sqrt());
            want.extend(y.enumerate().map(|(i, y)| y * w[i] + b[i]));
        }
        let call = LayerNorm {
            x: x.clone(),
            weight: Some(weight.clone()),
            bias: Some(bias),
            eps: 1e-6,
            out: out.clone(),
        };
        launch(&device, call).unwrap();
        assert_near(&format!("layer norm over {n}"), &values(&device, &out), &want, 2e-6);

        let mut want = Vec::new();
        for row in given.chunks(n) {
            let square = row.iter().map(|v| v * v).sum::<f64>() / n as f64;
            want.extend(row.iter().enumerate().map(|(i, v)| v / (square + 1e-6).sqrt() * w[i]));
        }
        let call = RmsNorm { axis: x.rank() - 1, x, weight: Some(weight), eps: 1e-6, out: out.clone() };
        launch(&device, call).unwrap();
        assert_near(&format!("rms norm over {n}"), &values(&device, &out), &want, 2e-6);
    }
}

#[test]
fn threads_do_not_matter() {
    let device = cpu();
    let x = random(&device, 1, [2, 8, 150, 151]);
    assert_threads_do_not_matter("group norm", || {
        let out = blank(&device, *x.shape());
        let call = GroupNorm {
            x: x.clone(),
            weight: None,
            bias: None,
            groups: 2,
            eps: 1e-5,
            silu: true,
            out: out.clone(),
        };
        launch(&device, call).unwrap();
        values(&device, &out)
    });
    assert_threads_do_not_matter("layer norm", || {
        let out = blank(&device, *x.shape());
        launch(&device, LayerNorm { x: x.clone(), weight: None, bias: None, eps: 1e-5, out: out.clone() })
            .unwrap();
        values(&device, &out)
    });
}
