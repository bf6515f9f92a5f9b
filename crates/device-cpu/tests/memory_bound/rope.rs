//! Rotary position embeddings.

use device::op::{NormedRope, RmsNorm, Rope, RopeLayout};

use crate::*;

#[test]
fn both_layouts_with_one_table_or_one_for_each_item() {
    let device = cpu();
    let (batch, positions, heads, size) = (2, 5, 3, 14);
    for layout in [RopeLayout::Interleaved, RopeLayout::HalfSplit] {
        for (tables, half) in [(1, 7), (2, 7), (2, 4), (1, 0)] {
            let fused = random(&device, 1, [batch, positions, 3 * heads * size]);
            let x = fused.slice(2, heads * size, heads * size).unwrap();
            let x = x.reshape([batch, positions, heads, size]).unwrap();
            let out = blank(&device, [batch, heads, positions, size]).transpose(1, 2).unwrap();
            let (cos, sin) = (
                random(&device, 2, [tables, positions, half]),
                random(&device, 3, [tables, positions, half]),
            );
            let call = Rope { x: x.clone(), cos: cos.clone(), sin: sin.clone(), layout, out: out.clone() };
            launch(&device, call).unwrap();
            let (c, s) = (values(&device, &cos), values(&device, &sin));
            let mut want: Vec<f64> = values(&device, &x).into_iter().map(f64::from).collect();
            for (row, values) in want.chunks_mut(size).enumerate() {
                let (item, position) = (row / heads / positions, row / heads % positions);
                for i in 0..half {
                    let at = (item % tables * positions + position) * half + i;
                    let (cos, sin) = (f64::from(c[at]), f64::from(s[at]));
                    let (a, b) = match layout {
                        RopeLayout::Interleaved => (2 * i, 2 * i + 1),
                        RopeLayout::HalfSplit => (i, half + i),
                    };
                    (values[a], values[b]) =
                        (values[a] * cos - values[b] * sin, values[a] * sin + values[b] * cos);
                }
            }
            assert_near(
                &format!("{layout:?}, {tables} tables of {half}"),
                &values(&device, &out),
                &want,
                1e-6,
            );
        }
    }
}

#[test]
fn normed_heads_are_the_norm_and_then_the_rotation() {
    let device = cpu();
    for (layout, size, half) in
        [(RopeLayout::Interleaved, 64, 32), (RopeLayout::HalfSplit, 14, 7), (RopeLayout::Interleaved, 13, 4)]
    {
        let fused = random(&device, 1, [2, 5, 9 * size]);
        let x = fused.slice(2, 3 * size, 3 * size).unwrap().reshape([2, 5, 3, size]).unwrap();
        let weight = random(&device, 2, [size]);
        let (cos, sin) = (random(&device, 3, [1, 5, half]), random(&device, 4, [1, 5, half]));
        let (normed, want) = (blank(&device, [2, 5, 3, size]), blank(&device, [2, 5, 3, size]));
        let norm = RmsNorm {
            x: x.clone(),
            axis: x.rank() - 1,
            weight: Some(weight.clone()),
            eps: 1e-6,
            out: normed.clone(),
        };
        launch(&device, norm).unwrap();
        let turn = Rope { x: normed, cos: cos.clone(), sin: sin.clone(), layout, out: want.clone() };
        launch(&device, turn).unwrap();
        let out = blank(&device, [2, 7, 3, size]).slice(1, 1, 5).unwrap();
        launch(&device, NormedRope { x, weight, eps: 1e-6, cos, sin, layout, out: out.clone() }).unwrap();
        assert_eq!(values(&device, &out), values(&device, &want), "{layout:?}, {half} pairs of {size}");
    }
}

#[test]
fn threads_do_not_matter() {
    let device = cpu();
    let x = random(&device, 1, [2, 77, 5, 64]);
    let (cos, sin) = (random(&device, 2, [1, 77, 32]), random(&device, 3, [1, 77, 32]));
    assert_threads_do_not_matter("rope", || {
        let out = blank(&device, *x.shape());
        let layout = RopeLayout::Interleaved;
        launch(&device, Rope { x: x.clone(), cos: cos.clone(), sin: sin.clone(), layout, out: out.clone() })
            .unwrap();
        values(&device, &out)
    });
}
