//! Cases of normalisations, softmax and reductions.

use device::op::ReduceKind;
use meta::{DType, Encoding};

use crate::case::{Case, Input};
use crate::naive;

pub(crate) fn cases() -> Vec<Case> {
    [group_norm(), layer_norm(), modulated_norm(), rms_norm(), softmax(), reduce()].concat()
}

fn group_norm() -> Vec<Case> {
    [
        (32, 64, 15, false, "32 groups"),
        (1, 6, 7, false, "one group"),
        (8, 8, 40, false, "a channel each"),
        (4, 32, 300, false, "large groups"),
        (32, 64, 15, true, "32 groups, then SiLU"),
        (4, 32, 304, true, "large groups, then SiLU"),
    ]
    .map(|(groups, channels, side, silu, variant)| {
        let inputs = vec![
            Input::random(41, [2, channels, side, side + 1]),
            Input::weight(Encoding::F32, 42, [channels]),
            Input::weight(Encoding::BF16, 43, [channels]),
        ];
        let area = side * (side + 1);
        let naive = move |v: &[Vec<f64>]| {
            let y = naive::normalise(&v[0], channels / groups * area, 1e-6);
            y.iter()
                .enumerate()
                .map(|(i, y)| y * v[1][i / area % channels] + v[2][i / area % channels])
                .map(|y| if silu { y / (1.0 + (-y).exp()) } else { y })
                .collect()
        };
        let run = move |_: &tensor::Lane, i: &crate::case::Inputs| {
            let (weight, bias) = (Some(i.weight(1)), Some(i.weight(2)));
            match silu {
                true => i.tensor(0).group_norm_silu(groups, weight, bias, 1e-6),
                false => i.tensor(0).group_norm(groups, weight, bias, 1e-6),
            }
        };
        Case::new("group norm", variant, inputs, run, naive)
    })
    .into()
}

fn layer_norm() -> Vec<Case> {
    let plain = [3, 64, 1000, 3072].map(|n| {
        Case::new(
            "layer norm",
            format!("{n} values"),
            vec![Input::random(44, [5, n])],
            |_, i| i.tensor(0).layer_norm(None, None, 1e-6),
            move |v| naive::normalise(&v[0], n, 1e-6),
        )
    });
    let weighted = Case::new(
        "layer norm",
        "with weight and bias, strided rows",
        vec![
            Input::random(45, [4, 3, 96]),
            Input::weight(Encoding::F16, 46, [96]),
            Input::weight(DType::F8E4M3.into(), 47, [96]),
        ],
        |_, i| i.tensor(0).slice(1, 1, 2)?.layer_norm(Some(i.weight(1)), Some(i.weight(2)), 1e-5),
        |v| {
            let rows: Vec<f64> = v[0].chunks(3 * 96).flat_map(|b| b[96..].to_vec()).collect();
            let y = naive::normalise(&rows, 96, 1e-5);
            y.iter().enumerate().map(|(i, y)| y * v[1][i % 96] + v[2][i % 96]).collect()
        },
    );
    plain.into_iter().chain([weighted]).collect()
}

fn modulated_norm() -> Vec<Case> {
    let modulated = |v: &[Vec<f64>], n: usize, rows: usize| {
        let y = naive::normalise(&v[0], n, 1e-6);
        let at = |i: usize| i / (rows * n) * n + i % n;
        y.iter().enumerate().map(|(i, y)| y * (1.0 + v[1][at(i)]) + v[2][at(i)]).collect()
    };
    let repeated = [3, 64, 3072, 5000].map(|n| {
        Case::new(
            "modulated norm",
            format!("{n} values, one scale for each item"),
            vec![Input::random(52, [2, 5, n]), Input::random(53, [2, 1, n]), Input::random(54, [2, 1, n])],
            |_, i| i.tensor(0).modulated_norm(i.tensor(1), i.tensor(2), 1e-6),
            move |v| modulated(v, n, 5),
        )
    });
    let parts = Case::new(
        "modulated norm",
        "parts of one row for all items",
        vec![Input::random(55, [3, 4, 96]), Input::random(56, [1, 1, 288])],
        |_, i| {
            let part = |index: usize| i.tensor(1).slice(2, 96 * index, 96);
            i.tensor(0).modulated_norm(&part(2)?, &part(0)?, 1e-6)
        },
        move |v| {
            let part = |index: usize| v[1][96 * index..96 * (index + 1)].to_vec();
            modulated(&[v[0].clone(), part(2), part(0)], 96, 12)
        },
    );
    repeated.into_iter().chain([parts]).collect()
}

fn rms_norm() -> Vec<Case> {
    let across = [
        ([2, 24, 3, 9, 11], 1, Encoding::F32, "channels of a video"),
        ([2, 96, 1, 1, 7], 1, Encoding::BF16, "channels of few places"),
        ([3, 2, 40, 5, 64], 2, Encoding::F16, "a dimension in the middle"),
        ([7, 2, 3, 5, 4], 0, Encoding::F32, "the first dimension"),
    ];
    rows_of_rms_norm().into_iter().chain(across.map(rms_norm_across)).collect()
}

fn rms_norm_across((dims, axis, encoding, variant): ([usize; 5], usize, Encoding, &str)) -> Case {
    let n = dims[axis];
    let inner: usize = dims[axis + 1..].iter().product();
    Case::new(
        "rms norm",
        format!("over {variant}"),
        vec![Input::random(57, dims), Input::weight(encoding, 58, [n])],
        move |_, i| i.tensor(0).rms_norm_over(axis, Some(i.weight(1)), 1e-6),
        move |v| {
            let place = |i: usize| (i / (n * inner) * n * inner + i % inner, i / inner % n);
            let value = |(i, x): (usize, &f64)| {
                let (first, channel) = place(i);
                let squares: f64 = (0..n).map(|c| v[0][first + c * inner].powi(2)).sum();
                x / (squares / n as f64 + 1e-6).sqrt() * v[1][channel]
            };
            v[0].iter().enumerate().map(value).collect()
        },
    )
}

fn rows_of_rms_norm() -> Vec<Case> {
    [(128, Encoding::BF16), (7, Encoding::F32), (3072, Encoding::F16)]
        .map(|(n, encoding)| {
            Case::new(
                "rms norm",
                format!("{n} values, {encoding} weight"),
                vec![Input::random(48, [2, 9, n]), Input::weight(encoding, 49, [n])],
                |_, i| i.tensor(0).rms_norm(Some(i.weight(1)), 1e-6),
                move |v| {
                    naive::rms(&v[0], n, 1e-6).iter().enumerate().map(|(i, y)| y * v[1][i % n]).collect()
                },
            )
        })
        .into()
}

fn softmax() -> Vec<Case> {
    [1, 77, 1000, 5000]
        .map(|n| {
            Case::new(
                "softmax",
                format!("{n} values"),
                vec![Input::scaled(50, [3, 4, n], 3.0)],
                |_, i| i.tensor(0).softmax(),
                move |v| naive::softmax(&v[0], n),
            )
        })
        .into()
}

fn reduce() -> Vec<Case> {
    let kinds = [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max, ReduceKind::Min];
    let axes: [&'static [usize]; 4] = [&[2], &[0], &[0, 2], &[0, 1, 2]];
    let of = |kind: ReduceKind| axes.map(|axes| reduce_of(kind, axes));
    kinds.into_iter().flat_map(of).collect()
}

fn reduce_of(kind: ReduceKind, axes: &'static [usize]) -> Case {
    let dims = [6, 11, 350];
    let naive = move |v: &[Vec<f64>]| {
        let kept = |axis: usize, i: usize| if axes.contains(&axis) { 0 } else { i };
        let size = |axis: usize| if axes.contains(&axis) { 1 } else { dims[axis] };
        let mut groups = vec![Vec::new(); size(0) * size(1) * size(2)];
        for (i, x) in v[0].iter().enumerate() {
            let at = [i / (dims[1] * dims[2]), i / dims[2] % dims[1], i % dims[2]];
            groups[(kept(0, at[0]) * size(1) + kept(1, at[1])) * size(2) + kept(2, at[2])].push(*x);
        }
        let value = |g: &Vec<f64>| match kind {
            ReduceKind::Sum => g.iter().sum(),
            ReduceKind::Mean => g.iter().sum::<f64>() / g.len() as f64,
            ReduceKind::Max => g.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            ReduceKind::Min => g.iter().copied().fold(f64::INFINITY, f64::min),
        };
        groups.iter().map(value).collect()
    };
    let inputs = vec![Input::positive(51, dims)];
    Case::new(
        "reduce",
        format!("{kind:?} over {axes:?}"),
        inputs,
        move |_, i| i.tensor(0).reduce(kind, axes),
        naive,
    )
}
