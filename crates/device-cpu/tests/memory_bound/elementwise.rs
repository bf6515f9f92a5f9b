//! Operations that treat every value by itself.

use device::op::{Activation, Binary, BinaryKind, GatedActivation, GatedAdd, Modulate, Unary, UnaryKind};
use device::{Device, Operand};

use crate::*;

/// Views of one logical shape [2, 3, 5, 7] in several layouts, and operands that repeat to it.
fn layouts(device: &Device, seed: u64) -> Vec<(&'static str, Operand)> {
    let view = |seed, dims: &[usize]| random(device, seed, Shape::new(dims).unwrap());
    vec![
        ("contiguous", view(seed, &[2, 3, 5, 7])),
        ("permuted", view(seed + 1, &[7, 5, 3, 2]).permute(&[3, 2, 1, 0]).unwrap()),
        ("rows of a wider tensor", view(seed + 2, &[2, 3, 5, 19]).slice(3, 4, 7).unwrap()),
        ("inner slice", view(seed + 3, &[2, 3, 9, 7]).slice(2, 2, 5).unwrap()),
        ("every row", view(seed + 4, &[2, 1, 1, 7])),
        ("every column", view(seed + 5, &[3, 5, 1])),
        ("scalar", view(seed + 6, &[])),
        ("one", view(seed + 7, &[1, 1, 1, 1])),
        (
            "strided and repeated",
            view(seed + 8, &[7, 3]).transpose(0, 1).unwrap().reshape([3, 1, 7]).unwrap(),
        ),
    ]
}

/// Outputs of the shape [2, 3, 5, 7].
fn outputs(device: &Device) -> Vec<(&'static str, Operand)> {
    let view = |dims: &[usize]| blank(device, Shape::new(dims).unwrap());
    vec![
        ("contiguous", view(&[2, 3, 5, 7])),
        ("permuted", view(&[5, 7, 2, 3]).permute(&[2, 3, 0, 1]).unwrap()),
        ("slice", view(&[2, 3, 5, 30]).slice(3, 11, 7).unwrap()),
    ]
}

fn gelu(x: f64) -> f64 {
    // The error function by its series, which converges for the values here.
    let t = x / 2f64.sqrt();
    let (mut term, mut sum) = (t, t);
    for n in 1..200 {
        term *= -t * t / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    0.5 * x * (1.0 + sum * 2.0 / std::f64::consts::PI.sqrt())
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn activation(kind: Activation, x: f64) -> f64 {
    match kind {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => gelu(x),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::QuickGelu => x * sigmoid(1.702 * x),
        Activation::Relu => x.max(0.0),
    }
}

fn unary(kind: UnaryKind, x: f64) -> f64 {
    match kind {
        UnaryKind::Neg => -x,
        UnaryKind::Abs => x.abs(),
        UnaryKind::Exp => x.exp(),
        UnaryKind::Log => x.ln(),
        UnaryKind::Sqrt => x.sqrt(),
        UnaryKind::Rsqrt => 1.0 / x.sqrt(),
        UnaryKind::Square => x * x,
        UnaryKind::Reciprocal => 1.0 / x,
        UnaryKind::Sin => x.sin(),
        UnaryKind::Cos => x.cos(),
        UnaryKind::Tanh => x.tanh(),
        UnaryKind::Sigmoid => sigmoid(x),
        UnaryKind::Round => x.round_ties_even(),
        UnaryKind::Floor => x.floor(),
        UnaryKind::Activation(kind) => activation(kind, x),
        UnaryKind::Affine { mul, add } => x * f64::from(mul) + f64::from(add),
        UnaryKind::LeakyRelu { slope } => x.max(0.0) + x.min(0.0) * f64::from(slope),
        UnaryKind::Clamp { min, max } => x.clamp(f64::from(min), f64::from(max)),
    }
}

fn unary_kinds() -> Vec<UnaryKind> {
    let mut kinds = vec![
        UnaryKind::Neg,
        UnaryKind::Abs,
        UnaryKind::Exp,
        UnaryKind::Log,
        UnaryKind::Sqrt,
        UnaryKind::Rsqrt,
        UnaryKind::Square,
        UnaryKind::Reciprocal,
        UnaryKind::Sin,
        UnaryKind::Cos,
        UnaryKind::Tanh,
        UnaryKind::Sigmoid,
        UnaryKind::Round,
        UnaryKind::Floor,
        UnaryKind::Affine { mul: 1.5, add: -0.25 },
        UnaryKind::LeakyRelu { slope: 0.2 },
        UnaryKind::Clamp { min: -0.5, max: 1.25 },
    ];
    kinds.extend(Activation::ALL.map(UnaryKind::Activation));
    kinds
}

fn binary(kind: BinaryKind, a: f64, b: f64) -> f64 {
    match kind {
        BinaryKind::Add => a + b,
        BinaryKind::Sub => a - b,
        BinaryKind::Mul => a * b,
        BinaryKind::Div => a / b,
        BinaryKind::Min => a.min(b),
        BinaryKind::Max => a.max(b),
        BinaryKind::Pow => a.powf(b),
    }
}

const BINARY: [BinaryKind; 7] = [
    BinaryKind::Add,
    BinaryKind::Sub,
    BinaryKind::Mul,
    BinaryKind::Div,
    BinaryKind::Min,
    BinaryKind::Max,
    BinaryKind::Pow,
];

#[test]
fn unary_operations_in_every_layout() {
    let device = cpu();
    for kind in unary_kinds() {
        for (layout, x) in layouts(&device, 1).into_iter().filter(|(_, x)| x.dims() == [2, 3, 5, 7]) {
            for (place, out) in outputs(&device) {
                let name = format!("{kind:?} {layout} to {place}");
                let want: Vec<f64> =
                    repeated(&device, &x, out.shape()).into_iter().map(|x| unary(kind, x)).collect();
                launch(&device, Unary { kind, x: x.clone(), out: out.clone() }).unwrap();
                assert_near(&name, &values(&device, &out), &want, 1e-6);
            }
        }
    }
}

#[test]
fn rounding_goes_to_even_and_nan_stays() {
    let device = cpu();
    let x = tensor(&device, &[0.5, 1.5, -0.5, -2.5, f32::NAN, f32::INFINITY, -0.2], [7]);
    let check = |kind, want: [f64; 7]| {
        let out = blank(&device, [7]);
        launch(&device, Unary { kind, x: x.clone(), out: out.clone() }).unwrap();
        assert_near(&format!("{kind:?}"), &values(&device, &out), &want, 0.0);
    };
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    check(UnaryKind::Round, [0.0, 2.0, 0.0, -2.0, nan, inf, 0.0]);
    check(UnaryKind::Floor, [0.0, 1.0, -1.0, -3.0, nan, inf, -1.0]);
    check(UnaryKind::Clamp { min: -1.0, max: 1.0 }, [0.5, 1.0, -0.5, -1.0, nan, 1.0, f64::from(-0.2f32)]);
    check(UnaryKind::Activation(Activation::Relu), [0.5, 1.5, 0.0, 0.0, nan, inf, 0.0]);
}

#[test]
fn binary_operations_repeat_any_layout() {
    let device = cpu();
    for (i, kind) in BINARY.into_iter().enumerate() {
        for (left, a) in layouts(&device, 10) {
            for (right, b) in layouts(&device, 30) {
                let (place, out) = outputs(&device).swap_remove(i % 3);
                let name = format!("{kind:?} of {left} and {right} to {place}");
                let pairs =
                    repeated(&device, &a, out.shape()).into_iter().zip(repeated(&device, &b, out.shape()));
                let want: Vec<f64> = pairs.map(|(a, b)| binary(kind, a, b)).collect();
                launch(&device, Binary { kind, a: a.clone(), b, out: out.clone() }).unwrap();
                assert_near(&name, &values(&device, &out), &want, 2e-6);
            }
        }
    }
}

#[test]
fn extremes_keep_nan() {
    let device = cpu();
    let a = tensor(&device, &[f32::NAN, 1.0, 2.0], [3]);
    let b = tensor(&device, &[1.0, f32::NAN, 3.0], [3]);
    for (kind, last) in [(BinaryKind::Min, 2.0), (BinaryKind::Max, 3.0)] {
        let out = blank(&device, [3]);
        launch(&device, Binary { kind, a: a.clone(), b: b.clone(), out: out.clone() }).unwrap();
        assert_near(&format!("{kind:?}"), &values(&device, &out), &[f64::NAN, f64::NAN, last], 0.0);
    }
}

#[test]
fn three_operand_formulas() {
    let device = cpu();
    let shape = Shape::from([2, 3, 5, 7]);
    let full = |seed| random(&device, seed, shape);
    for (name, b) in layouts(&device, 50) {
        for (other, c) in layouts(&device, 70) {
            let (x, out) = (full(90), blank(&device, shape));
            let all = || {
                let (b, c) = (repeated(&device, &b, &shape), repeated(&device, &c, &shape));
                repeated(&device, &x, &shape).into_iter().zip(b.into_iter().zip(c))
            };
            let want: Vec<f64> = all().map(|(x, (b, c))| x * (1.0 + b) + c).collect();
            let call = Modulate { x: x.clone(), scale: b.clone(), shift: c.clone(), out: out.clone() };
            launch(&device, call).unwrap();
            assert_near(&format!("modulate by {name} and {other}"), &values(&device, &out), &want, 1e-6);
            let want: Vec<f64> = all().map(|(x, (b, c))| x + b * c).collect();
            launch(&device, GatedAdd { x: x.clone(), gate: b.clone(), y: c, out: out.clone() }).unwrap();
            assert_near(&format!("gated add of {name} and {other}"), &values(&device, &out), &want, 1e-6);
        }
        for kind in Activation::ALL {
            let (gate, out) = (full(91), blank(&device, shape));
            let pairs = repeated(&device, &gate, &shape).into_iter().zip(repeated(&device, &b, &shape));
            let want: Vec<f64> = pairs.map(|(g, u)| activation(kind, g) * u).collect();
            let call = GatedActivation { activation: kind, gate, up: b.clone(), out: out.clone() };
            launch(&device, call).unwrap();
            assert_near(&format!("gated {kind:?} with {name}"), &values(&device, &out), &want, 1e-6);
        }
    }
}

#[test]
fn the_output_may_be_an_input() {
    let device = cpu();
    // Long enough for several blocks, tasks and a remainder; in one piece, and as a slice.
    let long = |seed| random(&device, seed, [3, 20_011]);
    let sliced = |seed| random(&device, seed, [3, 20_100]).slice(1, 7, 20_011).unwrap();
    for (name, x) in [("contiguous", long(1)), ("slice", sliced(2))] {
        let (scale, shift) = (random(&device, 3, [20_011]), random(&device, 4, [3, 1]));
        let of = |v: &Operand| repeated(&device, v, x.shape());
        let all = of(&x).into_iter().zip(of(&scale).into_iter().zip(of(&shift)));
        let want: Vec<f64> = all.map(|(x, (a, b))| x * (1.0 + a) + b).collect();
        launch(&device, Modulate { x: x.clone(), scale, shift, out: x.clone() }).unwrap();
        assert_near(&format!("modulate {name}"), &values(&device, &x), &want, 1e-6);

        let y = long(5);
        let want: Vec<f64> = of(&x).iter().zip(of(&y)).map(|(x, y)| y - x).collect();
        launch(&device, Binary { kind: BinaryKind::Sub, a: y, b: x.clone(), out: x.clone() }).unwrap();
        assert_near(&format!("subtract {name}"), &values(&device, &x), &want, 1e-6);

        let want: Vec<f64> = of(&x).iter().map(|x| x * x).collect();
        launch(&device, Binary { kind: BinaryKind::Mul, a: x.clone(), b: x.clone(), out: x.clone() })
            .unwrap();
        assert_near(&format!("square {name}"), &values(&device, &x), &want, 1e-6);
    }
}

#[test]
fn a_slice_as_output_leaves_its_surroundings() {
    let device = cpu();
    let whole = tensor(&device, &[9.0; 40], [4, 10]);
    let out = whole.slice(1, 3, 4).unwrap();
    let x = tensor(&device, &[1.0; 16], [4, 4]);
    launch(&device, Unary { kind: UnaryKind::Neg, x, out }).unwrap();
    let got = values(&device, &whole);
    for (i, v) in got.iter().enumerate() {
        assert_eq!(*v, if (3..7).contains(&(i % 10)) { -1.0 } else { 9.0 }, "value {i}");
    }
}

#[test]
fn a_repeating_output_is_refused() {
    let device = cpu();
    let x = random(&device, 1, [4, 3]);
    let out = blank(&device, [1, 3]).broadcast([4, 3]).unwrap();
    assert!(launch(&device, Unary { kind: UnaryKind::Neg, x, out }).is_err());
}

#[test]
fn threads_do_not_matter() {
    let device = cpu();
    let (x, scale) = (random(&device, 1, [3, 311, 129]), random(&device, 2, [3, 1, 129]));
    assert_threads_do_not_matter("modulate", || {
        let out = blank(&device, [3, 311, 129]);
        let call = Modulate { x: x.clone(), scale: scale.clone(), shift: scale.clone(), out: out.clone() };
        launch(&device, call).unwrap();
        values(&device, &out)
    });
    assert_threads_do_not_matter("gelu", || {
        let out = blank(&device, [129, 3, 311]).permute(&[1, 2, 0]).unwrap();
        let kind = UnaryKind::Activation(Activation::Gelu);
        launch(&device, Unary { kind, x: x.clone(), out: out.clone() }).unwrap();
        values(&device, &out)
    });
}
