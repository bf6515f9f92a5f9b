//! LoRA and LoHa against plain f64 arithmetic on random factors, in every spelling, over many shapes.

use meta::{Encoding, Shape};
use patch::{PatchFile, PatchSet};
use proptest::prelude::*;
use testkit::{Report, random_f32};

use crate::fixture::{Stored, WEIGHT, applied, checkpoint, number, one_layer, patches, random};

/// `[rows, inner] · [inner, columns]`.
fn product(left: &Stored, right: &Stored) -> Vec<f64> {
    let (rows, inner) = (left.shape.dims()[0], right.shape.dims()[0]);
    let columns = right.values.len() / inner;
    let mut out = vec![0.0; rows * columns];
    for row in 0..rows {
        for column in 0..columns {
            out[row * columns + column] = (0..inner)
                .map(|k| {
                    f64::from(left.values[row * inner + k]) * f64::from(right.values[k * columns + column])
                })
                .sum();
        }
    }
    out
}

fn sum(weight: &[f32], delta: &[f64], scale: f64) -> Vec<f32> {
    weight.iter().zip(delta).map(|(w, d)| (f64::from(*w) + scale * d) as f32).collect()
}

fn check_lora(endings: [&str; 2], alpha: Option<f32>, strength: f64) {
    let up = random(&format!("layer{}", endings[0]), &[12, 4]);
    let down = random(&format!("layer{}", endings[1]), &[4, 20]);
    let weight = random_f32(7, 240);
    let scale = strength * f64::from(alpha.unwrap_or(4.0)) / 4.0;
    let want = sum(&weight, &product(&up, &down), scale);
    let mut tensors = vec![down, up];
    tensors.extend(alpha.map(|alpha| number("layer.alpha", alpha)));
    let got = applied(Shape::from([12, 20]), &weight, &patches(&tensors, &[12, 20], strength));
    Report::new(endings[0], &got, &want).assert(1e-6);
}

#[test]
fn lora_in_every_spelling() {
    for endings in [
        [".lora_up.weight", ".lora_down.weight"],
        [".lora_B.weight", ".lora_A.weight"],
        [".lora_B.default.weight", ".lora_A.default.weight"],
        [".lora_B", ".lora_A"],
        [".lora.up.weight", ".lora.down.weight"],
        ["_lora.up.weight", "_lora.down.weight"],
        [".lora_linear_layer.up.weight", ".lora_linear_layer.down.weight"],
    ] {
        check_lora(endings, Some(1.5), 1.0);
        check_lora(endings, None, -0.7);
    }
}

#[test]
fn lora_of_a_convolution() {
    for kernel in [&[1, 1][..], &[3, 3], &[3], &[1, 2, 3]] {
        let up = random("layer.lora_up.weight", &[vec![6, 2], vec![1; kernel.len()]].concat());
        let down = random("layer.lora_down.weight", &[&[2, 5], kernel].concat());
        let dims = [&[6, 5], kernel].concat();
        let shape = Shape::new(&dims).unwrap();
        let weight = random_f32(3, shape.count());
        let want = sum(&weight, &product(&up, &down), 0.5 * 3.0 / 2.0);
        let got = applied(shape, &weight, &patches(&[up, down, number("layer.alpha", 3.0)], &dims, 0.5));
        Report::new(format!("{kernel:?}"), &got, &want).assert(1e-6);
    }
}

#[test]
fn a_matrix_takes_the_lora_of_a_1x1_convolution_and_the_reverse() {
    let (up, down) =
        (random("layer.lora_up.weight", &[6, 2, 1, 1]), random("layer.lora_down.weight", &[2, 5, 1, 1]));
    let weight = random_f32(3, 30);
    let want = sum(&weight, &product(&up, &down), 1.0);
    let flat = [random("layer.lora_up.weight", &[6, 2]), random("layer.lora_down.weight", &[2, 5])];
    let got = applied(Shape::from([6, 5]), &weight, &patches(&[up, down], &[6, 5], 1.0));
    Report::new("matrix", &got, &want).assert(1e-6);
    let want = sum(&weight, &product(&flat[0], &flat[1]), 1.0);
    let got = applied(Shape::from([6, 5, 1, 1]), &weight, &patches(&flat, &[6, 5, 1, 1], 1.0));
    Report::new("convolution", &got, &want).assert(1e-6);
}

#[test]
fn loha_of_matrix_and_convolution() {
    for dims in [&[6, 10][..], &[6, 10, 3, 3]] {
        let columns: usize = dims[1..].iter().product();
        let part = |ending: &str, dims: [usize; 2]| random(&format!("layer.hada_{ending}"), &dims);
        let (a1, b1) = (part("w1_a", [6, 3]), part("w1_b", [3, columns]));
        let (a2, b2) = (part("w2_a", [6, 2]), part("w2_b", [2, columns]));
        let delta: Vec<f64> = product(&a1, &b1).iter().zip(product(&a2, &b2)).map(|(x, y)| x * y).collect();
        let shape = Shape::new(dims).unwrap();
        let weight = random_f32(5, shape.count());
        let want = sum(&weight, &delta, 0.8 * 2.0 / 3.0);
        let tensors = [a1, b1, a2, b2, number("layer.alpha", 2.0)];
        let got = applied(shape, &weight, &patches(&tensors, dims, 0.8));
        Report::new(format!("{dims:?}"), &got, &want).assert(1e-6);
    }
}

#[test]
fn differences_and_replacements() {
    let weight = random_f32(1, 24);
    for ending in ["diff", "w_norm"] {
        let diff = random(&format!("layer.{ending}"), &[4, 6]);
        let delta: Vec<f64> = diff.values.iter().map(|v| f64::from(*v)).collect();
        let got = applied(Shape::from([4, 6]), &weight, &patches(&[diff], &[4, 6], -1.5));
        Report::new(ending, &got, &sum(&weight, &delta, -1.5)).assert(1e-6);
    }
    let values = random("layer.set_weight", &[4, 6]);
    let want = values.values.clone();
    assert_eq!(applied(Shape::from([4, 6]), &weight, &patches(&[values], &[4, 6], 0.3)), want);
}

#[test]
fn factors_in_half_precision() {
    let (up, down) = (random("layer.lora_up.weight", &[4, 2]), random("layer.lora_down.weight", &[2, 6]));
    let weight = random_f32(1, 24);
    let want = sum(&weight, &product(&up, &down), 0.25);
    let tensors = [up, down, number("layer.alpha", 0.5)];
    for (encoding, tolerance) in [(Encoding::F16, 1e-3), (Encoding::BF16, 1e-2)] {
        let file = PatchFile::read(&checkpoint("half.safetensors", encoding, &tensors)).unwrap();
        let mut set = PatchSet::new();
        set.add(&file, &one_layer(&[4, 6]), 1.0).unwrap();
        Report::new(encoding.name(), &applied(Shape::from([4, 6]), &weight, set.patches(WEIGHT)), &want)
            .assert(tolerance);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn lora_of_any_size(
        rows in 1usize..40,
        columns in 1usize..40,
        rank in 1usize..9,
        alpha in 0.1f32..16.0,
        strength in -2.0f64..2.0,
    ) {
        let (up, down) =
            (random("layer.lora_up.weight", &[rows, rank]), random("layer.lora_down.weight", &[rank, columns]));
        let weight = random_f32(rows as u64, rows * columns);
        let want = sum(&weight, &product(&up, &down), strength * f64::from(alpha) / rank as f64);
        let tensors = [up, down, number("layer.alpha", alpha)];
        let got = applied(Shape::from([rows, columns]), &weight, &patches(&tensors, &[rows, columns], strength));
        prop_assert!(Report::new("lora", &got, &want).passes(2e-6));
    }
}
