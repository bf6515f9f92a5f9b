//! Files of any contents: reading and matching never panic, and what they accept can be applied.

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::{Encoding, Shape};
use patch::{Beside, KeyMap, PatchFile, PatchSet, apply};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use tensor::Weight;
use testkit::{SafetensorsWriter, random_f32};

use crate::fixture::{lane, tensor};

/// Groups of endings that belong together; a file takes most of one group.
const GROUPS: [&[&str]; 6] = [
    &["lora_up.weight", "lora_down.weight", "lora_mid.weight", "dora_scale", "alpha"],
    &["hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2", "alpha"],
    &["lokr_w1", "lokr_w2", "alpha", "dora_scale"],
    &["lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b", "lokr_t2", "dora_scale"],
    &["a1.weight", "a2.weight", "b1.weight", "b2.weight", "dora_scale"],
    &["diff", "diff_b", "set_weight", "lora_magnitude_vector", "lora_A.weight", "lora_B.weight"],
];

/// Mostly matrices of 2 by 2, so that a fair share of the files fits.
fn shape() -> impl Strategy<Value = Vec<usize>> {
    let sizes = || prop_oneof![20 => Just(2usize), 1 => Just(1), 1 => Just(4)];
    prop_oneof![
        12 => prop::collection::vec(sizes(), 2),
        2 => prop::collection::vec(sizes(), 4),
        1 => prop::collection::vec(sizes(), 0..5),
    ]
}

/// Dimensions that such a tensor has in most files.
fn likely(ending: &str, dims: Vec<usize>) -> Vec<usize> {
    match ending {
        "alpha" => Vec::new(),
        "diff_b" | "lora_magnitude_vector" | "dora_scale" if dims.len() == 2 => vec![dims[0]],
        _ => dims,
    }
}

/// Tensors of one layer: an ending and dimensions each.
fn tensors() -> impl Strategy<Value = Vec<(&'static str, Vec<usize>)>> {
    select(GROUPS.to_vec()).prop_flat_map(|group| {
        let endings = subsequence(group.to_vec(), group.len().min(4)..=group.len());
        endings.prop_flat_map(|endings| {
            let shapes = prop::collection::vec(shape(), endings.len());
            shapes.prop_map(move |shapes| {
                endings.iter().zip(shapes).map(|(&ending, dims)| (ending, likely(ending, dims))).collect()
            })
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_accepted_can_be_applied(tensors in tensors(), dims in shape()) {
        let mut writer = SafetensorsWriter::new();
        for (ending, dims) in &tensors {
            let shape = Shape::new(dims).unwrap();
            let values = random_f32(1, shape.count());
            writer = writer.values(format!("layer.{ending}"), Encoding::F32, shape, &values).unwrap();
        }
        let bytes = Cow::Owned(writer.finish().unwrap());
        let checkpoint = Checkpoint::from_memory(("any.safetensors", bytes), Vec::new()).unwrap();
        let Ok(file) = PatchFile::read(&checkpoint) else { return Ok(()) };
        let shape = Shape::new(&dims).unwrap();
        let bias = Shape::from([dims.first().copied().unwrap_or(1)]);
        let mut set = PatchSet::new();
        let keys = KeyMap::native([("layer.weight", &shape), ("layer.bias", &bias)]);
        if set.add(&file, &keys, 0.5).is_err() {
            return Ok(());
        }
        let lane = lane();
        for (name, patches) in set.iter() {
            let shape = *keys.shape(name).unwrap();
            let weight = tensor(&lane, shape, &random_f32(2, shape.count()));
            let patched = apply(&lane, &weight, patches);
            prop_assert!(patched.is_ok(), "{name} {shape}: {tensors:?}: {}", patched.unwrap_err());
            if shape.rank() == 2 {
                let stored = Weight::new(weight.operand().clone());
                let staged = Beside::stage(&lane, patches, Some(&stored));
                prop_assert!(staged.is_ok(), "{name} {shape}: {tensors:?}: {}", staged.unwrap_err());
            }
        }
    }
}
