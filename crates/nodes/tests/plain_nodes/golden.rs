//! Scaling, masks and loading against values that ComfyUI 0.7.0 computed.

use std::path::{Path, PathBuf};

use crate::workbench::{Workbench, inputs, latent, value};
use graph::{Inputs, Value};
use meta::Shape;
use nodes::value::{Image, LatentImage, Mask};
use testkit::{Golden, Procedural};

/// The largest difference over the largest value; the reference repeats itself to 1e-6.
const TOLERANCE: f64 = 2e-6;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn golden() -> Golden {
    Golden::open(data("imageops.safetensors")).unwrap()
}

/// The bench, with the reference's pictures in its input folder.
fn bench() -> Workbench {
    let bench = Workbench::new();
    for name in ["image.png", "mask.png"] {
        std::fs::copy(data(name), bench.folder.join("input").join(name)).unwrap();
    }
    bench
}

/// The upper left part of the picture that the values were made of.
fn corner(bench: &Workbench, width: usize, height: usize) -> Value {
    let loaded = bench.image("LoadImage", inputs().with("image", "image.png"));
    let part = inputs().with("image", value(&*loaded)).with("width", width).with("height", height);
    Value::object(Image::clone(&bench.image("ImageCrop", part)))
}

fn check_image(name: &str, image: &Image) {
    let shape = Shape::new(&[image.batch, image.height, image.width, image.channels]).unwrap();
    golden().assert_close(name, &shape, &image.values, TOLERANCE);
}

fn check_mask(name: &str, mask: &Mask) {
    let shape = Shape::new(&[mask.batch, mask.height, mask.width]).unwrap();
    golden().assert_close(name, &shape, &mask.values, TOLERANCE);
}

fn check_latent(name: &str, latent: &LatentImage) {
    let shape = Shape::new(latent.samples.shape()).unwrap();
    golden().assert_close(name, &shape, latent.samples.values(), TOLERANCE);
}

#[test]
fn pictures_are_scaled_to_sizes_and_by_factors() {
    let bench = bench();
    let sizes = [(17, 25, "center"), (48, 20, "disabled")];
    for method in ["nearest-exact", "bilinear", "area", "bicubic", "lanczos"] {
        for (width, height, crop) in sizes {
            let to = inputs().with("image", corner(&bench, 40, 32)).with("upscale_method", method);
            let to = to.with("width", width).with("height", height).with("crop", crop);
            let scaled = bench.image("ImageScale", to);
            check_image(&format!("ImageScale.{method}.{width}x{height}.{crop}"), &scaled);
        }
        let by = inputs().with("image", corner(&bench, 16, 16)).with("upscale_method", method);
        check_image(
            &format!("ImageScaleBy.{method}.1.5"),
            &bench.image("ImageScaleBy", by.with("scale_by", 1.5)),
        );
    }
}

#[test]
fn latents_are_scaled_to_sizes_and_by_factors() {
    let bench = bench();
    let shape = vec![1, 4, 6, 7];
    let values = Procedural::new("input.latent", 1.7, 0.0).values(4 * 6 * 7);
    let latent = latent(&shape, |at| values[at]);
    for method in ["nearest-exact", "bilinear", "area", "bicubic", "bislerp"] {
        let of = |inputs: Inputs| inputs.with("samples", value(&latent)).with("upscale_method", method);
        let scaled = bench.latent("LatentUpscale", of(inputs()).with("width", 96).with("height", 72));
        check_latent(&format!("LatentUpscale.{method}.96x72"), &scaled);
        let scaled = bench.latent("LatentUpscaleBy", of(inputs()).with("scale_by", 1.5));
        check_latent(&format!("LatentUpscaleBy.{method}.1.5"), &scaled);
    }
}

#[test]
fn masks_are_loaded_grown_and_feathered() {
    let bench = bench();
    let mask = bench.mask("LoadImageMask", inputs().with("image", "mask.png").with("channel", "red"));
    check_mask("LoadImageMask.red", &mask);
    let grown = bench.mask("GrowMask", inputs().with("mask", value(&*mask)).with("expand", 3));
    check_mask("GrowMask.3", &grown);
    let sides = inputs().with("left", 4).with("top", 3).with("right", 2).with("bottom", 5);
    check_mask("FeatherMask", &bench.mask("FeatherMask", sides.with("mask", value(&*mask))));
}

#[test]
fn pictures_are_made_and_inverted() {
    let bench = bench();
    let inverted = bench.image("ImageInvert", inputs().with("image", corner(&bench, 8, 8)));
    check_image("ImageInvert", &inverted);
    let empty = inputs().with("width", 4).with("height", 3).with("color", 0x12_34_56);
    check_image("EmptyImage", &bench.image("EmptyImage", empty));
}
