//! Upscalers against the reference implementation: whole and in tiles, and files of none of their kinds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::Shape;
use models::detect;
use models::detect::{Reader, Role};
use models::upscale::{Pixels, USUAL_TILES, Upscaler, enlarge, tiles};
use models::vae::Tiling;
use residency::Session;
use support::*;
use testkit::Golden;
use testkit::pickle::{PickleForm, PickledTensor, pickled};

/// What the reference's own repetitions stay well below, and a wrong formula far above.
const TOLERANCE: f64 = 1e-5;

/// The upscaler of a file, and a session for it.
fn upscaler(checkpoint: &Checkpoint) -> (Box<dyn Upscaler>, Session) {
    let detected = detect(checkpoint);
    let part = detected.part(Role::Upscale, "an upscaler").unwrap();
    let Some(Reader::Upscale(family)) = part.reader else { panic!("{detected}") };
    let upscaler = (family.read)(checkpoint, part).unwrap();
    let manifest = upscaler.manifest(checkpoint).unwrap();
    assert_eq!(part.unused(checkpoint, &manifest), [""; 0]);
    (upscaler, open_on_cpu(manifest))
}

/// A picture of the golden file, enlarged; and which tiles were told of.
fn enlarged(
    checkpoint: &Checkpoint,
    golden: &Golden,
    picture: &str,
    tiling: Tiling,
) -> (Shape, Vec<f32>, Vec<usize>) {
    let (upscaler, session) = upscaler(checkpoint);
    let (shape, values) = golden.tensor(picture).unwrap();
    let [_, height, width, _] = *shape.dims() else { panic!("{shape}") };
    let pixels = Pixels { height, width, values: &values };
    let mut told = Vec::new();
    let mut tell = |done: usize, total: usize| {
        assert_eq!(total, tiles(height, width, tiling));
        told.push(done);
        Ok(())
    };
    let large = enlarge(&*upscaler, &session, &pixels, tiling, &mut tell).unwrap();
    let (scale, [_, channels]) = (upscaler.scale(), upscaler.channels());
    (Shape::from([1, height * scale, width * scale, channels]), large, told)
}

#[test]
fn pictures_equal_the_reference() {
    for name in ["realesr_compact_x2_tiny", "esrgan_x2_unshuffle_tiny"] {
        let golden = golden(&format!("upscale_{name}"));
        let (shape, large, told) = enlarged(&checkpoint(name), &golden, "output0.12", USUAL_TILES);
        golden.assert_close("image.9", &shape, &large, TOLERANCE);
        assert_eq!(told, [1]);
    }
}

/// A file of the model's tensors with what it makes of a picture, by PyTorch.
fn with_results(name: &str) -> (Checkpoint, Golden) {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.safetensors"));
    (Checkpoint::open(&path).unwrap(), golden(name))
}

#[test]
fn transformers_equal_the_reference() {
    for (file, name) in [("upscale_hat", "HAT"), ("upscale_dat", "DAT")] {
        let (file, golden) = with_results(file);
        assert_eq!(detect(&file).name(), Some(name));
        let (shape, large, _) = enlarged(&file, &golden, "picture", USUAL_TILES);
        golden.assert_close("enlarged", &shape, &large, TOLERANCE);
    }
}

#[test]
fn pictures_in_tiles_equal_the_reference() {
    let golden = golden("upscale_tiled");
    let number = |key: &str| golden.metadata(key).unwrap().parse().unwrap();
    let tiling = Tiling::square(number("tile"), number("overlap"));
    let (shape, large, told) = enlarged(&checkpoint("realesr_compact_x2_tiny"), &golden, "picture", tiling);
    golden.assert_close("tiled", &shape, &large, TOLERANCE);
    assert!(told.len() > 4 && told.iter().copied().eq(1..=told.len()), "{told:?}");
}

#[test]
fn a_picture_smaller_than_what_a_network_takes_is_filled_up() {
    let (upscaler, session) = upscaler(&checkpoint("esrgan_x2_unshuffle_tiny"));
    for (height, width) in [(1, 1), (3, 2), (5, 4)] {
        let values = vec![0.5; height * width * 3];
        let pixels = Pixels { height, width, values: &values };
        let large = enlarge(&*upscaler, &session, &pixels, USUAL_TILES, &mut |_, _| Ok(())).unwrap();
        assert_eq!(large.len(), 4 * values.len());
        assert!(large.iter().all(|value| (0.0..=1.0).contains(value)));
    }
    let none = Pixels { height: 2, width: 2, values: &[0.0; 4] };
    assert!(enlarge(&*upscaler, &session, &none, USUAL_TILES, &mut |_, _| Ok(())).is_err());
}

#[test]
fn a_pickle_gives_the_same_picture() {
    let file = checkpoint("realesr_compact_x2_tiny");
    let tensors: Vec<PickledTensor<'_>> = file
        .entries()
        .iter()
        .map(|entry| PickledTensor {
            name: entry.name(),
            dtype: entry.encoding().dtype().unwrap(),
            shape: entry.shape().dims(),
            bytes: file.bytes(entry),
        })
        .collect();
    let golden = golden("upscale_realesr_compact_x2_tiny");
    for form in [PickleForm::Archive, PickleForm::Legacy] {
        let bytes = pickled(form, Some("params_ema"), &tensors);
        let pickle = Checkpoint::from_memory(("x2.pth", Cow::Owned(bytes)), Vec::new()).unwrap();
        let (shape, large, _) = enlarged(&pickle, &golden, "output0.12", USUAL_TILES);
        golden.assert_close("image.9", &shape, &large, TOLERANCE);
    }
}

#[test]
fn other_files_are_no_upscalers() {
    let detected = detect(&checkpoint("flux_schnell_micro"));
    let error = detected.part(Role::Upscale, "an upscaler").unwrap_err().to_string();
    assert!(error.contains("not an upscaler") && error.contains("FLUX"), "{error}");
}
