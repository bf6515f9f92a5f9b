//! Upscale models, from their file to a picture.

use std::sync::Arc;

use device::{Device, Registry};
use device_cpu::CpuBackend;
use graph::Literal;
use runtime::Settings;
use testkit::Manifest;

use crate::workbench::{Workbench, failure, image, inputs, outputs, value};

fn on_the_cpu() -> Workbench {
    let cpu = Device::new(Arc::new(CpuBackend::new()), 4 << 30);
    Workbench::on(Registry::new([cpu]), Settings::default())
}

#[test]
fn a_model_is_loaded_from_its_folder_and_enlarges_every_picture() {
    let bench = on_the_cpu();
    let models = bench.folder.join("models");
    Manifest::bundled("realesr_compact_x2_tiny").unwrap().write_to(&models).unwrap();
    let name = "realesr_compact_x2_tiny.safetensors";
    let model = bench.run("UpscaleModelLoader", inputs().with("model_name", name)).unwrap();
    let model = outputs(&model, 0).remove(0);
    let pictures = image([2, 6, 5, 3], |at| (at % 7) as f32 / 7.0);
    let large = bench.image(
        "ImageUpscaleWithModel",
        inputs().with("upscale_model", model.clone()).with("image", value(&pictures)),
    );
    assert_eq!(large.shape(), [2, 12, 10, 3]);
    // Transparency is left out, as the model knows none.
    let with_alpha = image([1, 6, 5, 4], |_| 0.5);
    let large = bench.image(
        "ImageUpscaleWithModel",
        inputs().with("upscale_model", model.clone()).with("image", value(&with_alpha)),
    );
    assert_eq!(large.shape(), [1, 12, 10, 3]);
    let grey = image([1, 6, 5, 1], |_| 0.5);
    let error = failure(
        bench.run("ImageUpscaleWithModel", inputs().with("upscale_model", model).with("image", value(&grey))),
    );
    assert!(error.contains(name) && error.contains("3 channels"), "{error}");
}

#[test]
fn what_is_no_upscaler_says_what_it_is() {
    let bench = on_the_cpu();
    let models = bench.folder.join("models");
    let path = Manifest::bundled("flux_schnell_micro").unwrap().write_to(&models).unwrap();
    std::fs::create_dir_all(models.join("upscale_models")).unwrap();
    std::fs::rename(path, models.join("upscale_models/other.safetensors")).unwrap();
    for class in ["UpscaleModelLoader", "UpscaleModelLoaderMultiGPU"] {
        let named = inputs().with("model_name", Literal::from("other.safetensors")).with("device", "cpu");
        let error = failure(bench.run(class, named));
        assert!(error.contains("other.safetensors is not an upscaler") && error.contains("FLUX"), "{error}");
    }
}
