//! Merged weights go back into the encoding they came in.

use meta::{DType, Encoding, Shape};
use patch::{Patch, apply, merge_stored};
use tensor::{Lane, Tensor, Weight};
use testkit::{Report, decode, encode, random_f32};

use crate::fixture::{Stored, lane, patches, random};

const DIMS: [usize; 2] = [8, 16];

fn lora(strength: f64) -> Vec<Patch> {
    let tensors = [random("layer.lora_up.weight", &[8, 2]), random("layer.lora_down.weight", &[2, 16])];
    patches(&tensors, &DIMS, strength)
}

fn stored_bytes(lane: &Lane, weight: &Weight) -> Vec<u8> {
    let span = weight.operand().span();
    let mut bytes = vec![0; span.len];
    lane.stream().read(&span, &mut bytes).unwrap();
    bytes
}

#[test]
fn rounds_to_nearest_in_every_float() {
    let lane = lane();
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F8E4M3, DType::F8E5M2] {
        let encoding = Encoding::Plain(dtype);
        let bytes = encode(encoding, &random_f32(6, 128)).unwrap();
        let weight = Weight::upload(lane.device(), encoding, DIMS, &bytes).unwrap();
        let merged = merge_stored(&lane, &weight, &lora(0.5)).unwrap();
        assert_eq!(merged.operand().encoding(), encoding);
        let precise = apply(&lane, &lane.unpack(&weight).unwrap(), &lora(0.5)).unwrap().to_vec().unwrap();
        assert_eq!(stored_bytes(&lane, &merged), encode(encoding, &precise).unwrap(), "{dtype}");
        assert_eq!(stored_bytes(&lane, &weight), bytes, "the source stays as it is");
    }
}

#[test]
fn a_scaled_weight_keeps_its_scale() {
    let lane = lane();
    let encoding = Encoding::Plain(DType::F8E4M3);
    let values: Vec<f32> = random_f32(6, 128).iter().map(|v| v * 400.0).collect();
    let scale = lane.tensor_f32(Shape::scalar(), &[0.01]).unwrap();
    let bytes = encode(encoding, &values).unwrap();
    let weight =
        Weight::upload(lane.device(), encoding, DIMS, &bytes).unwrap().scaled(scale.operand().clone());
    let merged = merge_stored(&lane, &weight, &lora(1.0)).unwrap();
    let got = lane.unpack(&merged).unwrap().to_vec().unwrap();
    let want = apply(&lane, &lane.unpack(&weight).unwrap(), &lora(1.0)).unwrap().to_vec().unwrap();
    assert!(merged.scales().is_some());
    // Three bits of mantissa are one part in sixteen, except where the result passes the largest value.
    let (got, want): (Vec<f32>, Vec<f32>) = got.into_iter().zip(want).filter(|(_, w)| w.abs() < 4.48).unzip();
    assert!(got.len() > 100);
    Report::new("scaled", &got, &want).assert(1.0 / 16.0);
}

#[test]
fn eight_bit_floats_stay_in_range() {
    let lane = lane();
    for (dtype, largest) in [(DType::F8E4M3, 448.0), (DType::F8E5M2, 57344.0)] {
        let encoding = Encoding::Plain(dtype);
        let bytes = encode(encoding, &[1.0; 4]).unwrap();
        let weight = Weight::upload(lane.device(), encoding, [2, 2], &bytes).unwrap();
        let values = vec![1e6, -1e6, 1.0, -2.0];
        let diff = Stored { name: "layer.diff".into(), shape: Shape::from([2, 2]), values };
        let merged = merge_stored(&lane, &weight, &patches(&[diff], &[2, 2], 1.0)).unwrap();
        let got = decode(encoding, &stored_bytes(&lane, &merged)).unwrap();
        assert_eq!(got, [largest, -largest, 2.0, -1.0], "{dtype}");
    }
}

#[test]
fn integers_cannot_be_patched() {
    let lane = lane();
    let ids: Tensor = lane.ids([8, 16], &[0; 128]).unwrap();
    let weight = Weight::new(ids.operand().clone());
    assert!(matches!(merge_stored(&lane, &weight, &lora(1.0)), Err(patch::Error::NotPlain { .. })));
}
