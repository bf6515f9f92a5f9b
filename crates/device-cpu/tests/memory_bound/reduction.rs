//! Softmax and reductions.

use device::op::{Reduce, ReduceKind, Softmax};

use crate::*;

#[test]
fn softmax_of_strided_rows() {
    let device = cpu();
    for n in [1, 2, 17, 77, 1000, 40_003] {
        let x = random(&device, 1, [2, 3, n + 3]).slice(2, 1, n).unwrap();
        let out = blank(&device, [3, 2, n]).transpose(0, 1).unwrap();
        launch(&device, Softmax { x: x.clone(), out: out.clone() }).unwrap();
        let mut want = Vec::new();
        for row in values(&device, &x).chunks(n) {
            let e: Vec<f64> = row.iter().map(|v| f64::from(*v).exp()).collect();
            let sum: f64 = e.iter().sum();
            want.extend(e.iter().map(|e| e / sum));
        }
        let got = values(&device, &out);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!((f64::from(*got) / want - 1.0).abs() < 1e-6, "value {i} of {n}: {got}, expected {want}");
        }
    }
}

#[test]
fn softmax_of_masked_large_and_bad_values() {
    let device = cpu();
    let rows = [
        [1e30, 1e30, f32::NEG_INFINITY, 0.0],
        [f32::NEG_INFINITY, -5.0, f32::NEG_INFINITY, f32::NEG_INFINITY],
        [f32::NEG_INFINITY; 4],
        [0.0, f32::NAN, 1.0, 2.0],
    ];
    let (x, out) = (tensor(&device, rows.as_flattened(), [4, 4]), blank(&device, [4, 4]));
    launch(&device, Softmax { x, out: out.clone() }).unwrap();
    let got = values(&device, &out);
    assert_eq!(got[..8], [0.5, 0.5, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    assert!(got[8..].iter().all(|v| v.is_nan()), "{got:?}");
}

/// What a reduction should give, and the shape of it.
fn naive(kind: ReduceKind, x: &Operand, given: &[f32], out: &Shape) -> Vec<f64> {
    let mut lists = vec![Vec::new(); out.count()];
    for (flat, v) in given.iter().enumerate() {
        let (mut rest, mut at, mut step) = (flat, 0, 1);
        for axis in (0..x.rank()).rev() {
            at += (rest % x.dim(axis)).min(out.dims()[axis] - 1) * step;
            step *= out.dims()[axis];
            rest /= x.dim(axis);
        }
        lists[at].push(f64::from(*v));
    }
    let reduce = |list: &Vec<f64>| match kind {
        ReduceKind::Sum => list.iter().sum(),
        ReduceKind::Mean => list.iter().sum::<f64>() / list.len() as f64,
        ReduceKind::Max => list.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ReduceKind::Min => list.iter().copied().fold(f64::INFINITY, f64::min),
    };
    lists.iter().map(reduce).collect()
}

const KINDS: [ReduceKind; 4] = [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max, ReduceKind::Min];

#[test]
fn every_set_of_dimensions_in_every_layout() {
    let device = cpu();
    let views = [
        random(&device, 1, [2, 3, 5, 7]),
        random(&device, 2, [7, 5, 3, 2]).permute(&[3, 2, 1, 0]).unwrap(),
        random(&device, 3, [2, 3, 5, 11]).slice(3, 2, 7).unwrap(),
        random(&device, 4, [2, 1, 5, 1]).broadcast([2, 3, 5, 7]).unwrap(),
    ];
    for (view, x) in views.iter().enumerate() {
        let given = values(&device, x);
        for set in 0..16 {
            let mut shape = *x.shape();
            for axis in (0..4).filter(|axis| set >> axis & 1 == 1) {
                shape = shape.with(axis, 1);
            }
            for kind in KINDS {
                let out = blank(&device, shape);
                launch(&device, Reduce { kind, x: x.clone(), out: out.clone() }).unwrap();
                let want = naive(kind, x, &given, &shape);
                assert_near(
                    &format!("{kind:?} of view {view} to {shape}"),
                    &values(&device, &out),
                    &want,
                    1e-6,
                );
            }
        }
    }
}

#[test]
fn large_reductions_are_exact_to_f32() {
    let device = cpu();
    for (dims, out) in
        [([1, 1_000_003], [1, 1]), ([300_007, 3], [1, 3]), ([1500, 601], [1, 601]), ([3, 200_001], [3, 1])]
    {
        let given: Vec<f32> = (0..dims[0] * dims[1]).map(|i| 1.0 + (i % 1013) as f32 * 1e-3).collect();
        let x = tensor(&device, &given, dims);
        for kind in KINDS {
            let result = blank(&device, out);
            launch(&device, Reduce { kind, x: x.clone(), out: result.clone() }).unwrap();
            let want = naive(kind, &x, &given, &out.into());
            assert_near(&format!("{kind:?} of {dims:?}"), &values(&device, &result), &want, 6.0e-8);
        }
    }
}

#[test]
fn nan_reaches_the_extremes() {
    let device = cpu();
    for place in [0, 5, 39] {
        let mut given = vec![1.0; 40];
        given[place] = f32::NAN;
        let x = tensor(&device, &given, [1, 40]);
        for kind in KINDS {
            let out = blank(&device, [1, 1]);
            launch(&device, Reduce { kind, x: x.clone(), out: out.clone() }).unwrap();
            assert!(values(&device, &out)[0].is_nan(), "{kind:?} with NaN at {place}");
            let across = x.reshape([40, 1]).unwrap();
            let out = blank(&device, [1, 1]);
            launch(&device, Reduce { kind, x: across, out: out.clone() }).unwrap();
            assert!(values(&device, &out)[0].is_nan(), "{kind:?} across with NaN at {place}");
        }
    }
}

#[test]
fn threads_do_not_matter() {
    let device = cpu();
    let x = random(&device, 1, [3, 700, 301]);
    for shape in [[1, 1, 1], [3, 1, 301], [3, 700, 1], [1, 700, 301], [1, 1, 301]] {
        assert_threads_do_not_matter("sum", || {
            let out = blank(&device, shape);
            launch(&device, Reduce { kind: ReduceKind::Sum, x: x.clone(), out: out.clone() }).unwrap();
            values(&device, &out)
        });
    }
    assert_threads_do_not_matter("softmax", || {
        let out = blank(&device, *x.shape());
        launch(&device, Softmax { x: x.clone(), out: out.clone() }).unwrap();
        values(&device, &out)
    });
}
