//! Linear layers whose products may be of 8 bits: where they are, and where they stay exact.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use device::{Backend, Device, SimBackend};
use device_cpu::CpuBackend;
use meta::{DType, Encoding};
use tensor::{Activation, FEW_ROWS, Lane, LayerInput, Tensor, Weight};
use testkit::{encode, random_normal};

const FP8: Encoding = Encoding::Plain(DType::F8E4M3);

/// A lane of a simulated device.
fn lane(spec: &str, dtype: DType) -> Lane {
    let host = Arc::new(CpuBackend::new());
    let executor = host.executor();
    let backend = SimBackend::new(0, spec.parse().unwrap(), host as Arc<dyn Backend>, executor);
    Lane::new(&Device::new(Arc::new(backend), 1 << 30), dtype).unwrap()
}

fn weight(lane: &Lane, [rows, columns]: [usize; 2]) -> Weight {
    let values: Vec<f32> = random_normal(1, rows * columns).iter().map(|value| value * 0.1).collect();
    let bytes = encode(FP8, &values).unwrap();
    Weight::upload(lane.device(), FP8, [rows, columns], &bytes).unwrap().with_fp8_product(true)
}

fn input(lane: &Lane, rows: usize, columns: usize) -> Tensor {
    lane.tensor([rows, columns], &random_normal(2, rows * columns)).unwrap()
}

/// ‖got − want‖ / ‖want‖.
fn error(got: &[f32], want: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let difference: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
    (difference / want.iter().map(|w| square(f64::from(*w))).sum::<f64>()).sqrt()
}

/// How far a layer is from the exact one on a device, with so many rows.
fn error_of_layer(spec: &str, rows: usize, dims: [usize; 2]) -> f64 {
    let lane = lane(spec, DType::F32);
    let (x, weight) = (input(&lane, rows, dims[1]), weight(&lane, dims));
    let exact = x.linear(&weight.clone().with_fp8_product(false), None).unwrap().to_vec().unwrap();
    error(&x.linear(&weight, None).unwrap().to_vec().unwrap(), &exact)
}

#[test]
fn products_are_of_8_bits_only_where_the_device_has_them_and_the_sizes_fit() {
    let rounding = error_of_layer("1gb@10gbps@fp8", 40, [32, 64]);
    assert!((0.005..0.06).contains(&rounding), "{rounding}");
    assert_eq!(error_of_layer("1gb@10gbps", 40, [32, 64]), 0.0, "a device without such products");
    assert_eq!(error_of_layer("1gb@10gbps@fp8", FEW_ROWS - 1, [32, 64]), 0.0, "few rows");
    assert_eq!(error_of_layer("1gb@10gbps@fp8", 40, [24, 64]), 0.0, "outputs that are no multiple of 16");
    assert_eq!(error_of_layer("1gb@10gbps@fp8", 40, [32, 72]), 0.0, "inputs that are no multiple of 16");
}

#[test]
fn all_layers_of_an_input_read_the_same_codes() {
    let lane = lane("1gb@10gbps@fp8", DType::F32);
    let (x, weight) = (input(&lane, 40, 64), weight(&lane, [32, 64]));
    let whole = x.linear(&weight, None).unwrap().to_vec().unwrap();
    let shared = LayerInput::new(x);
    let half = |first: usize| {
        let part = weight.rows(first..first + 16).unwrap();
        shared.linear_then(&part, None, None).unwrap().to_vec().unwrap()
    };
    let halves = [half(0), half(16)];
    for (row, whole) in whole.chunks_exact(32).enumerate() {
        assert_eq!(whole[..16], halves[0][row * 16..][..16]);
        assert_eq!(whole[16..], halves[1][row * 16..][..16]);
    }
}

#[test]
fn a_norm_in_the_same_pass_is_the_norm_before() {
    let lane = lane("1gb@10gbps@fp8", DType::F32);
    let (x, weight) = (input(&lane, 40, 64), weight(&lane, [32, 64]));
    let [scale, shift] = [3, 4].map(|seed| lane.tensor([1, 64], &random_normal(seed, 64)).unwrap());
    let normed = LayerInput::normed(x.clone(), scale.clone(), shift.clone(), 1e-6);
    let fused = normed.linear_then(&weight, None, Some(Activation::GeluTanh)).unwrap().to_vec().unwrap();
    let apart = x.modulated_norm(&scale, &shift, 1e-6).unwrap();
    let apart = apart.linear_then(&weight, None, Some(Activation::GeluTanh)).unwrap().to_vec().unwrap();
    assert_eq!(fused, apart);
    // Layers that are exact read the values of the same input.
    let exact = weight.with_fp8_product(false);
    let values = normed.linear_then(&exact, None, None).unwrap().to_vec().unwrap();
    assert!(error(&fused, &values) > 0.0);
    assert_eq!(normed.values().unwrap().to_vec().unwrap().len(), 40 * 64);
}

#[test]
fn activations_of_16_bits_have_them_too() {
    let lane = lane("1gb@10gbps@f16@fp8", DType::F16);
    let (x, weight) = (input(&lane, 40, 64), weight(&lane, [32, 64]));
    let exact = x.linear(&weight.clone().with_fp8_product(false), None).unwrap().to_vec().unwrap();
    let rounding = error(&x.linear(&weight, None).unwrap().to_vec().unwrap(), &exact);
    assert!((0.005..0.06).contains(&rounding), "{rounding}");
}
