//! Cases of operations on every value by itself.

use device::op::{BinaryKind, UnaryKind};
use tensor::Activation;

use crate::case::{Case, Input};
use crate::naive;

pub(crate) fn cases() -> Vec<Case> {
    [unary(), binary(), fused(), gated_activation()].concat()
}

/// A function of one value in f64.
type OneValue = fn(f64) -> f64;
/// A function of two values in f64.
type TwoValues = fn(f64, f64) -> f64;

fn unary() -> Vec<Case> {
    let any: [(UnaryKind, OneValue); 14] = [
        (UnaryKind::Neg, |x| -x),
        (UnaryKind::Abs, f64::abs),
        (UnaryKind::Exp, f64::exp),
        (UnaryKind::Square, |x| x * x),
        (UnaryKind::Sin, f64::sin),
        (UnaryKind::Cos, f64::cos),
        (UnaryKind::Tanh, f64::tanh),
        (UnaryKind::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (UnaryKind::Round, f64::round_ties_even),
        (UnaryKind::Floor, f64::floor),
        (UnaryKind::Affine { mul: 1.25, add: -0.5 }, |x| 1.25 * x - 0.5),
        (UnaryKind::LeakyRelu { slope: 0.2 }, |x| x.max(0.0) + f64::from(0.2f32) * x.min(0.0)),
        (UnaryKind::Clamp { min: -0.5, max: 0.75 }, |x| x.clamp(-0.5, 0.75)),
        (UnaryKind::Activation(Activation::Relu), |x| x.max(0.0)),
    ];
    let positive: [(UnaryKind, OneValue); 4] = [
        (UnaryKind::Log, f64::ln),
        (UnaryKind::Sqrt, f64::sqrt),
        (UnaryKind::Rsqrt, |x| 1.0 / x.sqrt()),
        (UnaryKind::Reciprocal, |x| 1.0 / x),
    ];
    let any = any.map(|(kind, f)| unary_of(kind, Input::random(61, [3, 1001]), f));
    let positive = positive.map(|(kind, f)| unary_of(kind, Input::positive(62, [3, 1001]), f));
    let activations = Activation::ALL.map(|activation| {
        Case::new(
            "activation",
            format!("{activation:?}"),
            vec![Input::scaled(63, [5, 333], 2.5)],
            move |_, i| i.tensor(0).activate(activation),
            move |v| v[0].iter().map(|x| naive::activate(activation, *x)).collect(),
        )
    });
    any.into_iter().chain(positive).chain(activations).collect()
}

fn unary_of(kind: UnaryKind, input: Input, f: OneValue) -> Case {
    let variant = format!("{kind:?}");
    Case::new(
        "unary",
        variant,
        vec![input],
        move |_, i| i.tensor(0).unary(kind),
        move |v| v[0].iter().map(|x| f(*x)).collect(),
    )
}

fn binary() -> Vec<Case> {
    let kinds: [(BinaryKind, TwoValues); 7] = [
        (BinaryKind::Add, |a, b| a + b),
        (BinaryKind::Sub, |a, b| a - b),
        (BinaryKind::Mul, |a, b| a * b),
        (BinaryKind::Div, |a, b| a / b),
        (BinaryKind::Min, f64::min),
        (BinaryKind::Max, f64::max),
        (BinaryKind::Pow, f64::powf),
    ];
    // The right operand's shape, and the index of its value for an index of the left's.
    type Repeat = (&'static str, [usize; 3], fn(usize) -> usize);
    let repeats: [Repeat; 5] = [
        ("same shape", [4, 9, 65], |i| i),
        ("row repeated", [1, 1, 65], |i| i % 65),
        ("column repeated", [4, 9, 1], |i| i / 65),
        ("middle repeated", [4, 1, 65], |i| i / (9 * 65) * 65 + i % 65),
        ("one value", [1, 1, 1], |_| 0),
    ];
    let of = |(kind, f): (BinaryKind, TwoValues)| {
        repeats.map(|(name, shape, at)| {
            Case::new(
                "binary",
                format!("{kind:?}, {name}"),
                vec![Input::positive(64, [4, 9, 65]), Input::positive(65, shape)],
                move |_, i| i.tensor(0).binary(kind, i.tensor(1)),
                move |v| v[0].iter().enumerate().map(|(i, a)| f(*a, v[1][at(i)])).collect(),
            )
        })
    };
    kinds.into_iter().flat_map(of).collect()
}

fn fused() -> Vec<Case> {
    let (batch, length, width) = (2, 33, 96);
    let row = move |i: usize| i / (length * width) * width + i % width;
    let modulate = Case::new(
        "modulate",
        "per batch",
        vec![
            Input::random(66, [batch, length, width]),
            Input::random(67, [batch, 1, width]),
            Input::random(68, [batch, 1, width]),
        ],
        |_, i| i.tensor(0).modulate(i.tensor(1), i.tensor(2)),
        move |v| v[0].iter().enumerate().map(|(i, x)| x * (1.0 + v[1][row(i)]) + v[2][row(i)]).collect(),
    );
    let chunks = Case::new(
        "modulate",
        "by chunks of one vector",
        vec![Input::random(69, [batch, length, width]), Input::random(70, [batch, 1, 2 * width])],
        move |_, i| {
            let parts = i.tensor(1).chunk(2, 2)?;
            i.tensor(0).modulate(&parts[0], &parts[1])
        },
        move |v| {
            let at = |i: usize, part: usize| i / (length * width) * 2 * width + part * width + i % width;
            v[0].iter().enumerate().map(|(i, x)| x * (1.0 + v[1][at(i, 0)]) + v[1][at(i, 1)]).collect()
        },
    );
    let gated_add = Case::new(
        "gated add",
        "per batch",
        vec![
            Input::random(71, [batch, length, width]),
            Input::random(72, [batch, 1, width]),
            Input::random(73, [batch, length, width]),
        ],
        |_, i| i.tensor(0).gated_add(i.tensor(1), i.tensor(2)),
        move |v| v[0].iter().enumerate().map(|(i, x)| x + v[1][row(i)] * v[2][i]).collect(),
    );
    vec![modulate, chunks, gated_add]
}

fn gated_activation() -> Vec<Case> {
    Activation::ALL
        .map(|activation| {
            Case::new(
                "gated activation",
                format!("{activation:?} of halves"),
                vec![Input::random(74, [7, 130])],
                move |_, i| {
                    let halves = i.tensor(0).chunk(1, 2)?;
                    halves[0].gate(activation, &halves[1])
                },
                move |v| {
                    let row = |r: &[f64]| {
                        (0..65).map(|i| naive::activate(activation, r[i]) * r[65 + i]).collect::<Vec<_>>()
                    };
                    v[0].chunks(130).flat_map(row).collect()
                },
            )
        })
        .into()
}
