//! Products of 8 bits: the same bits wherever the weights are, and patches beside them in full precision.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use meta::{DType, DeviceId};
use placement::RemotePolicy;
use residency::{Cancel, LoadOptions, Products, Residency};
use support::*;
use tensor::LayerInput;
use testkit::random_normal;

/// Rows enough for products of 8 bits.
const ROWS: usize = 24;

/// The test model in fp8 on a device that has products of 8 bits, with the LoRA in this strength.
fn loaded(text: &str, products: Products, strength: f64) -> (Residency, residency::ModelId, ModelFile) {
    let file = write_model(7, DType::F8E4M3.into());
    let residency = Residency::new(machine(&["64mb@20gbps@fp8"]));
    let manifest = manifest(&file, "model").with_products(products);
    let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), text, RemotePolicy::Auto);
    let patches = lora(&file, &manifest, strength);
    let id = residency.load(manifest, plan, LoadOptions::default()).unwrap();
    residency.set_patches(id, patches).unwrap();
    (residency, id, file)
}

/// A step of the model, and what its first layer gives.
fn outputs(text: &str, products: Products, strength: f64) -> [Vec<f32>; 2] {
    let (residency, id, _file) = loaded(text, products, strength);
    let session = residency.open(id, &Cancel::default()).unwrap();
    let x = random_normal(4, ROWS * WIDTH);
    let step = forward(&session, &x).unwrap();
    let lease = session.lease(0).unwrap();
    let x = lease.lane().tensor([ROWS, WIDTH], &x).unwrap();
    [step, lease.linear("blocks.0.up", &x).unwrap().to_vec().unwrap()]
}

/// ‖got − want‖ / ‖want‖.
fn error(got: &[f32], want: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let difference: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
    (difference / want.iter().map(|w| square(f64::from(*w))).sum::<f64>()).sqrt()
}

#[test]
fn bits_do_not_depend_on_where_the_weights_are() {
    for strength in [0.0, 0.7] {
        let [resident, _] = outputs("", Products::EightBits, strength);
        let [streamed, _] = outputs("sim:0,0%;cpu,100%", Products::EightBits, strength);
        assert_eq!(resident, streamed, "LoRA {strength}");
        let [exact, _] = outputs("", Products::Exact, strength);
        let rounding = error(&resident, &exact);
        assert!((1e-3..0.2).contains(&rounding), "LoRA {strength}: {rounding}");
    }
}

#[test]
fn a_file_that_says_nothing_has_exact_products() {
    assert_eq!(outputs("", Products::ByFile, 0.0), outputs("", Products::Exact, 0.0));
}

#[test]
fn a_lora_beside_such_a_product_is_not_rounded() {
    let change = |products: Products| -> Vec<f32> {
        let [[_, with], [_, without]] = [1.0, 0.0].map(|strength| outputs("", products, strength));
        with.iter().zip(without).map(|(with, without)| with - without).collect()
    };
    let difference = error(&change(Products::EightBits), &change(Products::Exact));
    assert!(difference < 1e-4, "{difference}");
}

#[test]
fn an_activation_goes_to_the_layer_that_rounds_what_it_reads() {
    let through = |products: Products| {
        let (residency, id, _file) = loaded("", products, 0.0);
        let session = residency.open(id, &Cancel::default()).unwrap();
        let lease = session.lease(0).unwrap();
        let x = lease.lane().tensor([ROWS, WIDTH], &random_normal(4, ROWS * WIDTH)).unwrap();
        let rounds = lease.rounds_rows("blocks.0.down", &x).unwrap();
        let inner: LayerInput = lease.linear_gelu_tanh("blocks.0.up", &x, "blocks.0.down").unwrap();
        let out = lease.linear("blocks.0.down", &inner).unwrap().to_vec().unwrap();
        (rounds, out, inner.values().unwrap().to_vec().unwrap())
    };
    let ((late, rounded, values), (early, exact, plain)) =
        (through(Products::EightBits), through(Products::Exact));
    assert!(late && !early);
    assert!((1e-3..0.1).contains(&error(&rounded, &exact)));
    assert!((1e-3..0.1).contains(&error(&values, &plain)), "the layer before rounds, too");
}
