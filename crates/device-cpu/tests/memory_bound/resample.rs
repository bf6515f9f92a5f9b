//! Resizing against values that PyTorch gave, and properties that hold for any image.

use device::op::{Resize, ResizeMode};
use proptest::prelude::*;

use crate::*;

const CASES: &str = include_str!("../data/resize.txt");

fn mode_named(name: &str) -> ResizeMode {
    match name {
        "nearest" => ResizeMode::Nearest,
        "nearest-exact" => ResizeMode::NearestExact,
        "bilinear" => ResizeMode::Bilinear,
        "bicubic" => ResizeMode::Bicubic,
        "area" => ResizeMode::Area,
        other => panic!("no mode {other}"),
    }
}

fn resize(device: &Device, mode: ResizeMode, x: &Operand, to: [usize; 2]) -> Vec<f32> {
    let rank = x.rank();
    let out = blank(device, x.shape().with(rank - 2, to[0]).with(rank - 1, to[1]));
    launch(device, Resize { mode, x: x.clone(), out: out.clone() }).unwrap();
    values(device, &out)
}

#[test]
fn values_are_those_of_pytorch() {
    let device = cpu();
    let lines: Vec<&str> = CASES.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), 2 * 50);
    for case in lines.chunks(2) {
        let words: Vec<&str> = case[0].split(' ').collect();
        let n: Vec<usize> = words.iter().skip(1).filter_map(|w| w.parse().ok()).collect();
        let [planes, height, width, to_height, to_width, step] = n[..] else { panic!("{}", case[0]) };
        let given: Vec<f32> =
            (0..planes * height * width).map(|i| ((i * 37 + i / 7 + 11) % 64) as f32 / 64.0).collect();
        let x = tensor(&device, &given, [1, planes, height, width]);
        let got = resize(&device, mode_named(words[0]), &x, [to_height, to_width]);
        let got: Vec<f32> = got.into_iter().step_by(step).collect();
        let want: Vec<f64> = case[1].split(' ').map(|v| v.parse().unwrap()).collect();
        assert_near(case[0], &got, &want, 1e-6);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_same_size_changes_nothing(height in 1usize..12, width in 1usize..12, seed: u64) {
        let device = cpu();
        let x = random(&device, seed, [2, height, width]);
        for mode in ResizeMode::ALL {
            prop_assert_eq!(resize(&device, mode, &x, [height, width]), values(&device, &x), "{:?}", mode);
        }
    }

    #[test]
    fn a_constant_image_stays_constant(
        from in (1usize..20, 1usize..20),
        to in (1usize..40, 1usize..40),
        value in -4f32..4.0,
    ) {
        let device = cpu();
        let x = tensor(&device, &vec![value; from.0 * from.1], [from.0, from.1]);
        for mode in ResizeMode::ALL {
            for got in resize(&device, mode, &x, [to.0, to.1]) {
                prop_assert!((got - value).abs() <= 1e-6 * value.abs().max(1.0), "{:?}: {}", mode, got);
            }
        }
    }
}

#[test]
fn threads_do_not_matter() {
    let device = cpu();
    let x = random(&device, 1, [3, 97, 101]);
    for mode in ResizeMode::ALL {
        assert_threads_do_not_matter(&format!("{mode:?}"), || resize(&device, mode, &x, [130, 211]));
    }
}
