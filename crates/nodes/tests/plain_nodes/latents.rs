//! Latents: made, turned, cut, joined, mixed, saved and loaded.

use nodes::value::{LatentImage, Mask};

use crate::workbench::{Workbench, failure, inputs, latent, mask, outputs, value};

fn values(latent: &LatentImage) -> &[f32] {
    latent.samples.values()
}

#[test]
fn empty_latents_have_the_shapes_of_their_families() {
    let bench = Workbench::new();
    let shape = |class: &str, more: graph::Inputs| {
        let latent = bench.latent(class, more);
        assert!(latent.samples.is_zero());
        latent.samples.shape().to_vec()
    };
    assert_eq!(shape("EmptyLatentImage", inputs().with("batch_size", 2)), vec![2, 4, 64, 64]);
    assert_eq!(shape("EmptySD3LatentImage", inputs()), vec![1, 16, 128, 128]);
    assert_eq!(shape("EmptyChromaRadianceLatentImage", inputs()), vec![1, 3, 1024, 1024]);
    assert_eq!(shape("EmptyFlux2LatentImage", inputs()), vec![1, 128, 64, 64]);
    assert_eq!(shape("EmptyQwenImageLayeredLatentImage", inputs()), vec![1, 16, 4, 80, 80]);
    assert_eq!(shape("EmptyHunyuanLatentVideo", inputs()), vec![1, 16, 7, 60, 106]);
    assert_eq!(shape("EmptyHunyuanVideo15Latent", inputs()), vec![1, 32, 7, 30, 53]);
    assert_eq!(shape("EmptyLTXVLatentVideo", inputs()), vec![1, 128, 13, 16, 24]);
    assert_eq!(shape("EmptyMochiLatentVideo", inputs()), vec![1, 12, 5, 60, 106]);
    let huge = inputs().with("width", 1i64 << 40).with("height", 1i64 << 40);
    assert!(failure(bench.run("EmptyLatentImage", huge)).contains("memory"));
}

#[test]
fn latents_are_turned_mirrored_and_cut() {
    let bench = Workbench::new();
    let source = latent(&[1, 1, 2, 3], |at| at as f32);
    let run = |class: &str, name: &str, how: &str| {
        let out = bench.latent(class, inputs().with("samples", value(&source)).with(name, how));
        (out.samples.shape()[2..].to_vec(), values(&out).to_vec())
    };
    assert_eq!(
        run("LatentRotate", "rotation", "90 degrees"),
        (vec![3, 2], vec![3.0, 0.0, 4.0, 1.0, 5.0, 2.0])
    );
    assert_eq!(run("LatentRotate", "rotation", "180 degrees").1, [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]);
    assert_eq!(run("LatentFlip", "flip_method", "x-axis: vertically").1, [3.0, 4.0, 5.0, 0.0, 1.0, 2.0]);
    assert_eq!(run("LatentFlip", "flip_method", "y-axis: horizontally").1, [2.0, 1.0, 0.0, 5.0, 4.0, 3.0]);
    let large = latent(&[1, 1, 12, 12], |at| at as f32);
    let crop = inputs().with("samples", value(&large)).with("width", 64).with("height", 64);
    let cropped = bench.latent("LatentCrop", crop.with("x", 999).with("y", 16));
    assert_eq!((cropped.samples.shape(), values(&cropped)[0]), (&[1, 1, 8, 8][..], 28.0));
}

#[test]
fn latents_are_cut_and_joined_along_axes() {
    let bench = Workbench::new();
    let video = latent(&[1, 2, 4, 1, 2], |at| at as f32);
    let cut = |dim: &str, index: i64, amount: i64| {
        let given = inputs().with("samples", value(&video)).with("dim", dim).with("index", index);
        let out = bench.latent("LatentCut", given.with("amount", amount));
        (out.samples.shape().to_vec(), values(&out).to_vec())
    };
    assert_eq!(cut("t", 1, 1), (vec![1, 2, 1, 1, 2], vec![2.0, 3.0, 10.0, 11.0]));
    assert_eq!(cut("t", -1, 5).1, [6.0, 7.0, 14.0, 15.0]);
    assert_eq!(cut("x", 99, 9).0, [1, 2, 4, 1, 1]);
    let batch = inputs().with("samples", value(&video)).with("dim", "t").with("slice_size", 2);
    let batch = bench.latent("LatentCutToBatch", batch);
    assert_eq!(batch.samples.shape(), [2, 2, 2, 1, 2]);
    assert_eq!(values(&batch)[..8], [0.0, 1.0, 2.0, 3.0, 8.0, 9.0, 10.0, 11.0]);
    let image = latent(&[1, 1, 1, 2], |at| at as f32);
    let joined = |dim: &str| {
        let given =
            inputs().with("samples1", value(&image)).with("samples2", value(&latent(&[1, 1, 1, 2], |_| 9.0)));
        bench.latent("LatentConcat", given.with("dim", dim))
    };
    assert_eq!(values(&joined("x")), [0.0, 1.0, 9.0, 9.0]);
    assert_eq!(values(&joined("-x")), [9.0, 9.0, 0.0, 1.0]);
    assert_eq!(joined("y").samples.shape(), [1, 1, 2, 2]);
    let unequal =
        inputs().with("samples1", value(&image)).with("samples2", value(&latent(&[1, 2, 1, 2], |_| 0.0)));
    assert!(failure(bench.run("LatentConcat", unequal.with("dim", "x"))).contains("joined"));
}

#[test]
fn latents_are_added_and_mixed() {
    let bench = Workbench::new();
    let pair = |a: f32, b: f32| {
        let given =
            inputs().with("samples1", value(&latent(&[1, 2, 1, 1], |at| if at == 0 { a } else { 0.0 })));
        given.with("samples2", value(&latent(&[1, 2, 1, 1], |at| if at == 0 { 0.0 } else { b })))
    };
    assert_eq!(values(&bench.latent("LatentAdd", pair(1.0, 2.0))), [1.0, 2.0]);
    assert_eq!(values(&bench.latent("LatentSubtract", pair(1.0, 2.0))), [1.0, -2.0]);
    let scaled = inputs().with("samples", value(&latent(&[1, 1, 1, 1], |_| 3.0))).with("multiplier", -0.5);
    assert_eq!(values(&bench.latent("LatentMultiply", scaled)), [-1.5]);
    assert_eq!(values(&bench.latent("LatentBlend", pair(1.0, 2.0).with("blend_factor", 0.25))), [0.25, 1.5]);
    let between = bench.latent("LatentInterpolate", pair(3.0, 1.0).with("ratio", 0.5));
    let expected = 2.0 * 0.5f32.sqrt();
    assert!(values(&between).iter().all(|value| (value - expected).abs() < 1e-6), "{between:?}");
    let nothing = bench.latent("LatentInterpolate", pair(0.0, 0.0).with("ratio", 0.5));
    assert_eq!(values(&nothing), [0.0, 0.0]);
    let other = inputs().with("samples1", value(&latent(&[1, 4, 1, 1], |_| 0.0)));
    let other = other.with("samples2", value(&latent(&[1, 16, 1, 1], |_| 0.0)));
    assert!(failure(bench.run("LatentAdd", other)).contains("differ"));
}

#[test]
fn one_latent_is_laid_over_another() {
    let bench = Workbench::new();
    let under = latent(&[1, 1, 4, 4], |_| 0.0);
    let over = latent(&[1, 1, 4, 2], |_| 1.0);
    let given = |feather: i64| {
        let given = inputs().with("samples_to", value(&under)).with("samples_from", value(&over));
        given.with("x", 16).with("feather", feather)
    };
    let row = |latent: &LatentImage| values(latent)[..4].to_vec();
    assert_eq!(row(&bench.latent("LatentComposite", given(0))), [0.0, 0.0, 1.0, 1.0]);
    assert_eq!(row(&bench.latent("LatentComposite", given(16))), [0.0, 0.0, 0.5, 1.0]);
    let masked = inputs().with("destination", value(&under)).with("source", value(&over)).with("x", 8);
    let masked = masked.with("mask", value(&mask([1, 4, 2], |at| (at % 2) as f32)));
    assert_eq!(row(&bench.latent("LatentCompositeMasked", masked)), [0.0, 0.0, 1.0, 0.0]);
    let video = latent(&[1, 1, 2, 1, 1], |_| 5.0);
    let over_video =
        inputs().with("destination", value(&video)).with("source", value(&latent(&[1, 1, 2, 1, 1], |_| 6.0)));
    assert_eq!(values(&bench.latent("LatentCompositeMasked", over_video)), [6.0, 6.0]);
}

#[test]
fn parts_of_a_batch_keep_their_noise() {
    let bench = Workbench::new();
    let source = latent(&[4, 1, 1, 1], |at| at as f32);
    let part = inputs().with("samples", value(&source)).with("batch_index", 2).with("length", 9);
    let part = bench.latent("LatentFromBatch", part);
    assert_eq!((values(&part), part.batch_index.clone()), (&[2.0, 3.0][..], Some(vec![2, 3])));
    let again = bench.latent("RepeatLatentBatch", inputs().with("samples", value(&*part)).with("amount", 2));
    assert_eq!(
        (values(&again), again.batch_index.clone()),
        (&[2.0, 3.0, 2.0, 3.0][..], Some(vec![2, 3, 4, 5]))
    );
    let fixed = bench.latent("LatentBatchSeedBehavior", inputs().with("samples", value(&*part)));
    assert_eq!(fixed.batch_index, Some(vec![2, 2]));
    let random = inputs().with("samples", value(&*part)).with("seed_behavior", "random");
    assert_eq!(bench.latent("LatentBatchSeedBehavior", random).batch_index, None);
    let joined =
        inputs().with("samples1", value(&*part)).with("samples2", value(&latent(&[1, 1, 2, 2], |_| 8.0)));
    let joined = bench.latent("LatentBatch", joined);
    assert_eq!((values(&joined), joined.batch_index.clone()), (&[2.0, 3.0, 8.0][..], Some(vec![2, 3, 0])));
    let grown = inputs().with("latents.latent0", value(&*part)).with("latents.latent1", value(&source));
    assert_eq!(bench.latent("BatchLatentsNode", grown).samples.shape()[0], 6);
}

#[test]
fn masks_stay_with_their_latents() {
    let bench = Workbench::new();
    let source = latent(&[2, 1, 1, 1], |at| at as f32);
    let masks = mask([2, 1, 1], |at| at as f32 / 2.0);
    let masked = inputs().with("samples", value(&source)).with("mask", value(&masks));
    let masked = bench.latent("SetLatentNoiseMask", masked);
    assert_eq!(masked.noise_mask.as_ref().unwrap(), &masks);
    let part =
        bench.latent("LatentFromBatch", inputs().with("samples", value(&*masked)).with("batch_index", 1));
    assert_eq!(part.noise_mask.as_ref().unwrap().values, [0.5]);
    let mut lists = inputs().with("batch_size", 2);
    lists.values.insert(
        "latents".to_owned(),
        vec![value(&*part), value(&source), value(&latent(&[1, 1, 2, 2], |_| 0.0))],
    );
    let regrouped = outputs(&bench.run("RebatchLatents", lists).unwrap(), 0);
    let regrouped: Vec<_> = regrouped.iter().map(|value| value.downcast::<LatentImage>().unwrap()).collect();
    let batches: Vec<_> = regrouped.iter().map(|latent| latent.samples.shape()[0]).collect();
    assert_eq!(batches, [2, 1, 1], "another size begins another batch");
    let first: Option<&Mask> = regrouped[0].noise_mask.as_ref();
    assert_eq!(first.unwrap().values, [0.5, 1.0]);
    assert_eq!(regrouped[0].batch_index, Some(vec![1, 1]));
    assert!(regrouped[1].noise_mask.is_none());
    assert_eq!(regrouped[1].batch_index, Some(vec![2]));
}

#[test]
fn latents_are_saved_and_loaded() {
    let bench = Workbench::new();
    let source = latent(&[1, 2, 1, 3], |at| at as f32 - 2.5);
    let saved = bench.run("SaveLatent", inputs().with("samples", value(&source))).unwrap();
    let item = &saved.ui.unwrap()["latents"].as_list().unwrap()[0].clone();
    assert_eq!(item.get("filename").unwrap().as_text(), Some("ComfyUI_00001_.latent"));
    assert_eq!(item.get("subfolder").unwrap().as_text(), Some("latents"));
    let file = bench.folder.join("output/latents/ComfyUI_00001_.latent");
    let checkpoint = checkpoint::Checkpoint::open(&file).unwrap();
    assert!(checkpoint.metadata().str("prompt").unwrap().contains("SaveLatent"));
    std::fs::copy(&file, bench.folder.join("input/a.latent")).unwrap();
    let menu = bench.catalogue.get("LoadLatent").unwrap().schema();
    assert_eq!(menu.find("latent").unwrap().kind, graph::Kind::Choice(vec!["a.latent".into()]));
    assert_eq!(bench.latent("LoadLatent", inputs().with("latent", "a.latent")).samples, source.samples);
    let old = std::fs::read(&file).unwrap();
    let at = old.windows(23).position(|window| window == b"latent_format_version_0").unwrap();
    let mut old = old;
    old[at] = b'x';
    std::fs::write(bench.folder.join("input/old.latent"), old).unwrap();
    let loaded = bench.latent("LoadLatent", inputs().with("latent", "old.latent"));
    assert!((values(&loaded)[0] + 2.5 / 0.18215).abs() < 1e-4);
    std::fs::write(bench.folder.join("input/bad.latent"), b"nothing").unwrap();
    assert!(bench.run("LoadLatent", inputs().with("latent", "bad.latent")).is_err());
}
