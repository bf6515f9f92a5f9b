//! Beside the weight: the same result as merging, for plain and quantised weights, slices and stacks.

use meta::{Encoding, QuantFormat, Shape};
use models::diffusion::flux;
use patch::{Beside, Error, PatchFile, PatchSet, apply, beside};
use proptest::prelude::*;
use tensor::{Lane, Tensor, Weight};
use testkit::{Manifest, Report, random_blocks, random_f32};

use crate::fixture::{
    Stored, WEIGHT, bundled, checkpoint, file, lane, number, one_layer, patches, random, tensor,
};

fn as_weight(values: &Tensor) -> Weight {
    Weight::new(values.contiguous().unwrap().operand().clone())
}

/// Merged and beside, for an input of two batches.
fn compare(lane: &Lane, weight: &Weight, patches: &[patch::Patch], staged_with: Option<&Weight>) -> Report {
    let [rows, columns] = [weight.dims()[0], weight.dims()[1]];
    let x = tensor(lane, Shape::from([2, 5, columns]), &random_f32(9, 10 * columns));
    let plain = lane.unpack(weight).unwrap();
    let merged = x.linear(&as_weight(&apply(lane, &plain, patches).unwrap()), None).unwrap();
    let y = x.linear(weight, None).unwrap();
    let before = y.to_vec().unwrap();
    let want = merged.to_vec().unwrap();
    assert!(!Report::new("unpatched", &before, &want).passes(1e-3), "the patch changes nothing");
    let got = match staged_with {
        Some(_) => {
            Beside::stage(lane, patches, staged_with).unwrap().add_to(&x, &y).unwrap();
            y.to_vec().unwrap()
        }
        None => {
            let sum = beside(lane, &x, &y, patches).unwrap();
            assert_eq!(y.to_vec().unwrap(), before, "the layer's output itself stays as it is");
            sum.to_vec().unwrap()
        }
    };
    assert_eq!(got.len(), 10 * rows);
    Report::new("beside", &got, &want)
}

#[test]
fn every_form_equals_the_merged_weight() {
    let lane = lane();
    let weight = Weight::upload_f32(lane.device(), [8, 12], &random_f32(1, 96)).unwrap();
    let layer = |ending: &str, dims: &[usize]| random(&format!("layer.{ending}"), dims);
    let lora = || vec![layer("lora_up.weight", &[8, 3]), layer("lora_down.weight", &[3, 12])];
    let loha = ["hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"];
    let loha = loha.map(|name| layer(name, if name.ends_with('a') { &[8, 2] } else { &[2, 12] }));
    for tensors in [
        lora(),
        [lora(), vec![number("layer.alpha", 0.7)]].concat_owned(),
        Vec::from(loha),
        vec![layer("lokr_w1", &[2, 3]), layer("lokr_w2", &[4, 4])],
        vec![layer("diff", &[8, 12])],
    ] {
        compare(&lane, &weight, &patches(&tensors, &[8, 12], 0.9), None).assert(1e-5);
    }
    let dora = [lora(), vec![layer("dora_scale", &[8, 1])]].concat_owned();
    let dora = patches(&dora, &[8, 12], 0.9);
    compare(&lane, &weight, &dora, Some(&weight)).assert(1e-5);
    assert!(matches!(Beside::stage(&lane, &dora, None), Err(Error::NeedsWeight { key }) if key == "layer"));
}

/// Joins lists of tensors that cannot be cloned.
trait ConcatOwned {
    fn concat_owned(self) -> Vec<Stored>;
}

impl ConcatOwned for [Vec<Stored>; 2] {
    fn concat_owned(self) -> Vec<Stored> {
        self.into_iter().flatten().collect()
    }
}

#[test]
fn a_quantised_weight_stays_packed() {
    let lane = lane();
    let blocks = random_blocks(QuantFormat::Q8_0, 3, 16 * 2);
    let weight = Weight::upload(lane.device(), QuantFormat::Q8_0.into(), [16, 64], &blocks).unwrap();
    let lora = [random("layer.lora_up.weight", &[16, 4]), random("layer.lora_down.weight", &[4, 64])];
    let size = lane.unpack(&weight).unwrap().to_vec().unwrap().iter().fold(0f32, |m, v| m.max(v.abs()));
    let lora = patches(&lora, &[16, 64], f64::from(size));
    compare(&lane, &weight, &lora, None).assert(1e-5);
    let staged = Beside::stage(&lane, &lora, None).unwrap();
    assert_eq!(staged.bytes().unwrap(), lora[0].bytes());
    assert!(matches!(patch::merge_stored(&lane, &weight, &lora), Err(Error::NotPlain { .. })));
}

#[test]
fn slices_of_fused_layers() {
    let lane = lane();
    let manifest = Manifest::bundled("flux_dev_micro").unwrap();
    let names: Vec<(&str, &Shape)> = manifest.tensors.iter().map(|t| (t.name.as_str(), &t.shape)).collect();
    let mut set = PatchSet::new();
    for (file, strength) in [("flux_dev_micro_lora_diffusers", 0.8), ("flux_dev_micro_lora_kohya", -0.5)] {
        set.add(&bundled(file), &flux::patch_keys(names.iter().copied()), strength).unwrap();
    }
    for name in ["double_blocks.1.txt_attn.qkv.weight", "single_blocks.0.linear1.weight"] {
        let stored = manifest.tensor(name).unwrap();
        let weight = Weight::upload(lane.device(), stored.encoding, stored.shape, &stored.bytes()).unwrap();
        let patches = set.patches(name);
        assert_eq!(
            patches.iter().filter(|patch| patch.rows().is_some()).count(),
            patches.len() - 1,
            "{name}"
        );
        compare(&lane, &weight, patches, None).assert(1e-5);
    }
}

#[test]
fn swapped_halves_are_swapped_back() {
    let lane = lane();
    let shape = Shape::from([6, 4]);
    let map = flux::patch_keys([("final_layer.adaLN_modulation.1.weight", &shape)]);
    let base = random_f32(2, 24);
    let weight = Weight::upload_f32(lane.device(), shape, &base).unwrap();
    let key = "transformer.norm_out.linear";
    let lora =
        [random(&format!("{key}.lora_B.weight"), &[6, 2]), random(&format!("{key}.lora_A.weight"), &[2, 4])];
    let diff = [random(&format!("{key}.diff"), &[6, 4])];
    for tensors in [&lora[..], &diff] {
        let mut set = PatchSet::new();
        set.add(&file(tensors), &map, 1.0).unwrap();
        compare(&lane, &weight, set.patches("final_layer.adaLN_modulation.1.weight"), None).assert(1e-5);
    }
    let mut set = PatchSet::new();
    set.add(&file(&diff), &map, 1.0).unwrap();
    let before = tensor(&lane, shape, &base);
    let after = apply(&lane, &before, set.patches("final_layer.adaLN_modulation.1.weight")).unwrap();
    let change: Vec<f32> = after.to_vec().unwrap().iter().zip(&base).map(|(a, b)| a - b).collect();
    let want = [&diff[0].values[12..], &diff[0].values[..12]].concat();
    Report::new("swapped", &change, &want).assert(1e-6);
}

#[test]
fn only_a_matrix_can_have_a_patch_beside_it() {
    let lane = lane();
    let kernel =
        [random("layer.lora_up.weight", &[4, 2, 1, 1]), random("layer.lora_down.weight", &[2, 3, 3, 3])];
    let error = Beside::stage(&lane, &patches(&kernel, &[4, 3, 3, 3], 1.0), None).unwrap_err();
    assert!(matches!(error, Error::NotAMatrix { .. }), "{error}");
    let other = tensor(&lane, Shape::from([4, 3]), &[0.0; 12]);
    let error = apply(&lane, &other, &patches(&kernel, &[4, 3, 3, 3], 1.0)).unwrap_err();
    assert!(matches!(error, Error::OtherWeight { .. }), "{error}");
}

#[test]
fn repeats_are_bit_identical() {
    let lane = lane();
    let dims = [64, 96];
    let tensors = [random("layer.lora_up.weight", &[64, 8]), random("layer.lora_down.weight", &[8, 96])];
    let file = PatchFile::read(&checkpoint("f16", Encoding::F16, &tensors)).unwrap();
    let mut set = PatchSet::new();
    set.add(&file, &one_layer(&dims), 0.3).unwrap();
    let weight = tensor(&lane, Shape::from(dims), &random_f32(1, 64 * 96));
    let run = || apply(&lane, &weight, set.patches(WEIGHT)).unwrap().to_vec().unwrap();
    let first = run();
    assert!((0..3).all(|_| run() == first));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn low_rank_of_any_size(rows in 1usize..50, columns in 1usize..50, rank in 1usize..12, strength in 0.2f64..2.0) {
        let lane = lane();
        let weight = Weight::upload_f32(lane.device(), [rows, columns], &random_f32(4, rows * columns)).unwrap();
        let tensors = [random("layer.lora_up.weight", &[rows, rank]), random("layer.lora_down.weight", &[rank, columns])];
        let report = compare(&lane, &weight, &patches(&tensors, &[rows, columns], strength), None);
        prop_assert!(report.passes(1e-5), "{report}");
    }
}
