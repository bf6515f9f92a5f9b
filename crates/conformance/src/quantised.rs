//! Cases of products of 8 bits: rows of activations as codes, and linear layers of such rows.

use meta::{DType, Encoding};
use tensor::{Activation, Weight};
use testkit::{decode, encode, random_normal};

use crate::case::{Case, Input};
use crate::naive;

/// The encoding of weights that have such products.
const FP8: Encoding = Encoding::Plain(DType::F8E4M3);
/// The error that passes where a value that lies between two codes may become either.
const BETWEEN_CODES: f64 = 2e-3;
/// The largest code.
const LARGEST: f32 = 448.0;

pub(crate) fn cases() -> Vec<Case> {
    [rows(), linears()].concat()
}

/// Rows times a matrix that leaves them as they are, by which codes and scales are seen.
fn rows() -> Vec<Case> {
    let sizes = [(37, 64), (3, 1024), (18, 4112), (2, 16)];
    let mut cases: Vec<Case> = sizes
        .map(|(rows, columns)| {
            let inputs = vec![Input::scaled(41, [rows, columns], 3.0), identity(columns)];
            rows_of(format!("{rows}x{columns}"), inputs, columns)
        })
        .into();
    // Rows of nothing, tiny and huge ones, and one that is nothing but for a value.
    let columns = 32;
    let mut values = random_normal(42, 5 * columns);
    values[..columns].fill(0.0);
    values[columns..2 * columns].iter_mut().for_each(|value| *value *= 1e-6);
    values[2 * columns..3 * columns].iter_mut().for_each(|value| *value *= 1e4);
    values[3 * columns..4 * columns].fill(0.0);
    values[3 * columns + 7] = -2.5;
    let inputs = vec![Input::Activation([5, columns].into(), values), identity(columns)];
    cases.push(rows_of("of nothing, tiny and huge".into(), inputs, columns));
    cases.push(strided_rows());
    cases.extend([(2, 9, 3072), (1, 5, 48), (1, 2, 16_448)].map(normed_rows));
    cases.extend([(3072, 0), (3072, 1024), (16_448, 64), (48, 16)].map(activated_rows));
    cases
}

fn rows_of(variant: String, inputs: Vec<Input>, columns: usize) -> Case {
    Case::new(
        "quantise rows",
        variant,
        inputs,
        |_, i| i.tensor(0).quantise()?.linear_then(i.weight(1), None, None),
        move |v| quantised(&v[0], columns),
    )
}

fn strided_rows() -> Case {
    Case::new(
        "quantise rows",
        "of a slice",
        vec![Input::random(43, [3, 10, 96]), identity(32)],
        |_, i| {
            let x = i.tensor(0).slice(2, 48, 32)?.slice(1, 2, 7)?;
            x.quantise()?.linear_then(i.weight(1), None, None)
        },
        |v| {
            let rows = (0..3).flat_map(|b| (2..9).map(move |r| (b * 10 + r) * 96 + 48));
            let x: Vec<f64> = rows.flat_map(|at| v[0][at..at + 32].to_vec()).collect();
            quantised(&x, 32)
        },
    )
}

/// A norm in the same pass. A value that lies between two codes may become either, so plain loops say nothing here.
fn normed_rows((items, rows, columns): (usize, usize, usize)) -> Case {
    let inputs = vec![
        Input::random(44, [items, rows, columns]),
        Input::random(45, [items, 1, columns]),
        Input::random(46, [1, 1, columns]),
        Input::weight(FP8, 47, [48, columns]),
    ];
    let run = |_: &tensor::Lane, i: &crate::case::Inputs| {
        let x = i.tensor(0).quantise_normed(i.tensor(1), i.tensor(2), 1e-6)?;
        x.linear_then(i.weight(3), None, None)
    };
    Case::new("quantise rows", format!("normed, {items}x{rows}x{columns}"), inputs, run, |_| Vec::new())
        .without_naive()
        .within(BETWEEN_CODES)
}

/// GELU in the same pass, from a column on.
fn activated_rows((columns, first): (usize, usize)) -> Case {
    let inputs = vec![Input::scaled(48, [1, 7, columns], 2.0), Input::weight(FP8, 49, [48, columns])];
    let run = move |_: &tensor::Lane, i: &crate::case::Inputs| {
        i.tensor(0).quantise_gelu_tanh(first)?.linear_then(i.weight(1), None, None)
    };
    let naive = move |v: &[Vec<f64>]| {
        let values = v[0].iter().enumerate().map(|(i, x)| match i % columns < first {
            true => *x,
            false => naive::activate(Activation::GeluTanh, *x),
        });
        naive::linear(&quantised(&values.collect::<Vec<f64>>(), columns), &v[1], columns)
    };
    Case::new("quantise rows", format!("of {columns}, activated from {first} on"), inputs, run, naive)
        .within(BETWEEN_CODES)
}

fn linears() -> Vec<Case> {
    let sizes = [(37, [96, 512]), (1, [48, 64]), (130, [16, 16]), (257, [320, 1008]), (1000, [3072, 256])];
    let mut cases: Vec<Case> = sizes.map(|(rows, dims)| linear(rows, dims)).into();
    cases.extend(Activation::ALL.map(activated));
    cases.push(scaled());
    cases.push(some_rows());
    cases.push(into_a_part());
    cases
}

fn linear(rows: usize, [n, k]: [usize; 2]) -> Case {
    let inputs = vec![
        Input::random(51, [rows, k]),
        Input::weight(FP8, 52, [n, k]),
        Input::weight(Encoding::BF16, 53, [n]),
    ];
    Case::new(
        "quantised linear",
        format!("{rows}x{k}, {n} outputs"),
        inputs,
        |_, i| i.tensor(0).quantise()?.linear_then(i.weight(1), Some(i.weight(2)), None),
        move |v| {
            let y = naive::linear(&quantised(&v[0], k), &v[1], k);
            y.iter().enumerate().map(|(i, y)| y + v[2][i % n]).collect()
        },
    )
}

fn activated(activation: Activation) -> Case {
    let inputs = vec![
        Input::random(54, [2, 20, 64]),
        Input::weight(FP8, 55, [80, 64]),
        Input::weight(Encoding::F32, 56, [80]),
    ];
    Case::new(
        "quantised linear",
        format!("then {activation:?}"),
        inputs,
        move |_, i| i.tensor(0).quantise()?.linear_then(i.weight(1), Some(i.weight(2)), Some(activation)),
        move |v| {
            let y = naive::linear(&quantised(&v[0], 64), &v[1], 64);
            y.iter().enumerate().map(|(i, y)| naive::activate(activation, y + v[2][i % 80])).collect()
        },
    )
}

fn scaled() -> Case {
    let inputs = vec![
        Input::random(57, [40, 64]),
        Input::weight(FP8, 58, [48, 64]),
        Input::Stored(Encoding::F32, [1].into(), 0.37f32.to_le_bytes().to_vec()),
    ];
    Case::new(
        "quantised linear",
        "scaled",
        inputs,
        |_, i| {
            let weight = i.weight(1).clone().scaled(i.weight(2).operand().clone());
            i.tensor(0).quantise()?.linear_then(&weight, None, None)
        },
        |v| naive::linear(&quantised(&v[0], 64), &v[1], 64).iter().map(|y| y * v[2][0]).collect(),
    )
}

/// Some rows of a weight, as a joined projection is taken apart.
fn some_rows() -> Case {
    let inputs = vec![Input::random(59, [33, 96]), Input::weight(FP8, 60, [128, 96])];
    Case::new(
        "quantised linear",
        "some rows",
        inputs,
        |_, i| {
            let weight: Weight = i.weight(1).rows(32..112)?;
            i.tensor(0).quantise()?.linear_then(&weight, None, None)
        },
        |v| naive::linear(&quantised(&v[0], 96), &v[1][32 * 96..112 * 96], 96),
    )
}

/// Rows that are not at one distance: parts of a wider tensor, of some of its tokens.
fn into_a_part() -> Case {
    let inputs = vec![
        Input::random(61, [3, 17, 64]),
        Input::weight(FP8, 62, [32, 64]),
        Input::weight(Encoding::BF16, 63, [32]),
        Input::random(64, [3, 20, 80]),
    ];
    Case::new(
        "quantised linear",
        "into a part of a tensor",
        inputs,
        |_, i| {
            let out = i.tensor(3).clone();
            let part = out.slice(2, 16, 32)?.slice(1, 2, 17)?;
            i.tensor(0).quantise()?.linear_into(i.weight(1), Some(i.weight(2)), None, &part)?;
            Ok(out)
        },
        |v| {
            let y = naive::linear(&quantised(&v[0], 64), &v[1], 64);
            let mut out = v[3].clone();
            for (row, y) in y.chunks_exact(32).enumerate() {
                let at = (row / 17 * 20 + 2 + row % 17) * 80 + 16;
                let own = out[at..at + 32].iter_mut().zip(y).zip(&v[2]);
                own.for_each(|((out, y), bias)| *out = y + bias);
            }
            out
        },
    )
}

/// A matrix of e4m3 that leaves rows as they are.
fn identity(size: usize) -> Input {
    let values: Vec<f32> = (0..size * size).map(|i| if i % (size + 1) == 0 { 1.0 } else { 0.0 }).collect();
    // Whole numbers of a plain type are always encoded.
    let bytes = encode(FP8, &values).unwrap_or_else(|error| panic!("{error}"));
    Input::Stored(FP8, [size, size].into(), bytes)
}

/// What the codes of rows stand for, by another encoder than the devices'.
fn quantised(x: &[f64], columns: usize) -> Vec<f64> {
    let row = |row: &[f64]| -> Vec<f64> {
        let most = row.iter().fold(0.0f32, |most, value| most.max(value.abs() as f32)).max(1e-12);
        let by = LARGEST / most;
        let codes: Vec<f32> = row.iter().map(|value| *value as f32 * by).collect();
        // Floats of a plain type are always encoded and decoded.
        let bytes = encode(FP8, &codes).unwrap_or_else(|error| panic!("{error}"));
        let codes = decode(FP8, &bytes).unwrap_or_else(|error| panic!("{error}"));
        codes.iter().map(|code| f64::from(*code) * f64::from(most / LARGEST)).collect()
    };
    x.chunks_exact(columns).flat_map(row).collect()
}
