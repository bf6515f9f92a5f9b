//! Sets: strengths, order, identity, and what a change of set touches.

use meta::{Encoding, Shape};
use patch::{Error, KeyMap, PatchFile, PatchSet, apply};
use testkit::{Report, random_f32};

use crate::fixture::{Stored, checkpoint, lane, random, tensor};

fn lora(path: &str, layers: &[&str], seed: &str) -> PatchFile {
    let tensors: Vec<Stored> = layers
        .iter()
        .flat_map(|layer| {
            let named = |ending: &str, dims: [usize; 2]| {
                let mut tensor = random(&format!("{seed}{layer}{ending}"), &dims);
                tensor.name = format!("{layer}{ending}");
                tensor
            };
            [named(".lora_up.weight", [4, 2]), named(".lora_down.weight", [2, 4])]
        })
        .collect();
    PatchFile::read(&checkpoint(path, Encoding::F32, &tensors)).unwrap()
}

fn keys() -> KeyMap {
    let shape = Shape::from([4, 4]);
    KeyMap::native(["a.weight", "b.weight", "c.weight"].map(|name| (name, &shape)))
}

fn set(files: &[(&PatchFile, f64)]) -> PatchSet {
    let mut set = PatchSet::new();
    for (file, strength) in files {
        set.add(file, &keys(), *strength).unwrap();
    }
    set
}

fn changed(to: &PatchSet, from: &PatchSet) -> Vec<String> {
    let mut names: Vec<String> = to.changed_since(from).map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn strength_zero_is_absence() {
    let file = lora("1.safetensors", &["a", "elsewhere"], "");
    let set = set(&[(&file, 0.0)]);
    assert!(set.is_empty());
    assert_eq!((set.len(), set.bytes(), set.signature()), (0, 0, 0));
    assert_eq!(set.unmatched().len(), 2);
    assert_eq!(PatchSet::new().signature(), 0);
    let error = PatchSet::new().add(&file, &keys(), f64::NAN).unwrap_err();
    assert!(matches!(error, Error::Strength { .. }));
}

#[test]
fn a_new_strength_touches_only_its_weights() {
    let (first, second) = (lora("1.safetensors", &["a", "b"], ""), lora("2.safetensors", &["b", "c"], ""));
    let before = set(&[(&first, 1.0), (&second, 0.5)]);
    assert_eq!(
        changed(&set(&[(&first, 1.0), (&second, 0.6)]), &before),
        ["b", "c"].map(|n| format!("{n}.weight"))
    );
    assert_eq!(changed(&set(&[(&first, 1.0)]), &before), ["b.weight", "c.weight"]);
    assert_eq!(changed(&set(&[(&first, 1.0), (&second, 0.0)]), &before), ["b.weight", "c.weight"]);
    assert_eq!(changed(&PatchSet::new(), &before), ["a.weight", "b.weight", "c.weight"]);
    assert_eq!(changed(&before, &PatchSet::new()), ["a.weight", "b.weight", "c.weight"]);
    assert_eq!(changed(&set(&[(&first, 1.0), (&second, 0.5)]), &before), [] as [&str; 0]);
    // Both orders patch b, and f32 sums depend on the order.
    assert_eq!(changed(&set(&[(&second, 0.5), (&first, 1.0)]), &before), ["b.weight"]);
}

#[test]
fn signatures_stand_for_contents() {
    let file = lora("1.safetensors", &["a"], "");
    let of = |file: &PatchFile, strength: f64| set(&[(file, strength)]).signature();
    let reference = of(&file, 1.0);
    assert_eq!(of(&lora("1.safetensors", &["a"], ""), 1.0), reference);
    assert_ne!(of(&file, -1.0), reference);
    assert_ne!(of(&lora("1.safetensors", &["a"], "retrained"), 1.0), reference);
    assert_ne!(of(&lora("2.safetensors", &["a"], ""), 1.0), reference);
    assert_ne!(set(&[(&file, 1.0), (&file, 1.0)]).signature(), reference);
    let both = set(&[(&file, 1.0)]);
    assert_eq!(both.weight_signature("b.weight"), 0);
    assert_ne!(both.weight_signature("a.weight"), 0);
}

#[test]
fn stacked_patches_apply_in_order() {
    let replace =
        PatchFile::read(&checkpoint("r", Encoding::F32, &[random("a.set_weight", &[4, 4])])).unwrap();
    let add = lora("1.safetensors", &["a"], "");
    let lane = lane();
    let weight = tensor(&lane, Shape::from([4, 4]), &random_f32(1, 16));
    let result = |files: &[(&PatchFile, f64)]| {
        apply(&lane, &weight, set(files).patches("a.weight")).unwrap().to_vec().unwrap()
    };
    let replaced = random("a.set_weight", &[4, 4]).values;
    assert_eq!(result(&[(&add, 1.0), (&replace, 1.0)]), replaced);
    let later = result(&[(&replace, 1.0), (&add, 1.0)]);
    let alone = result(&[(&add, 1.0)]);
    let base = weight.to_vec().unwrap();
    let want: Vec<f32> =
        replaced.iter().zip(alone.iter().zip(&base)).map(|(r, (a, b))| r + (a - b)).collect();
    Report::new("order", &later, &want).assert(1e-5);
    assert_eq!(base, random_f32(1, 16), "the weight itself stays as it is");
}

#[test]
fn sizes_for_staging() {
    let both = set(&[(&lora("1.safetensors", &["a", "b"], ""), 1.0)]);
    assert_eq!(both.bytes(), 2 * 16 * 4);
    let patch = &both.patches("a.weight")[0];
    assert_eq!(patch.bytes(), 16 * 4);
    assert_eq!(patch.merge_flops(), 2 * 16 * 2 + 16);
    assert_eq!(patch.beside_flops(10), 2 * 10 * 2 * (4 + 4));
    assert_eq!(patch.scale(), 1.0);
}
