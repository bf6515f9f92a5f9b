//! Model files that tests write: small ones that are regenerated, and others made of the demo model.

use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use testkit::{Manifest, SafetensorsWriter};

/// Those that the reference's workflows name.
const REGENERATED: [&str; 11] = [
    "flux_dev_d1s1",
    "t5xxl_tiny",
    "flux_ae",
    "clip_l_tiny",
    "flux_dev_micro",
    "flux_dev_micro-Q8_0",
    "flux_dev_micro_fp8",
    "flux_dev_micro_fp8_scaled",
    "flux_schnell_micro",
    "flux_dev_micro_lora_kohya",
    "flux_dev_micro_lora_diffusers",
];

/// A file of the demo model.
pub(crate) fn demo(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo").join(name)
}

/// Writes the files that the reference's workflows name into a models folder.
pub(crate) fn write_regenerated(models: &Path) {
    std::thread::scope(|scope| {
        for names in REGENERATED.chunks(3) {
            scope.spawn(move || {
                for name in names {
                    Manifest::bundled(name).unwrap().write_to(models).unwrap();
                }
            });
        }
    });
}

/// Writes a small model that describes pictures, in nonsense, under the name of a published one.
pub(crate) fn write_captioner(models: &Path, name: &str) {
    let folder = models.join("LLM").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let manifest = Manifest::bundled("florence2_tiny").unwrap();
    std::fs::write(folder.join("model.safetensors"), manifest.bytes().unwrap()).unwrap();
    std::fs::write(folder.join("config.json"), manifest.config.to_string()).unwrap();
    for file in ["vocab.json", "merges.txt", "preprocessor_config.json"] {
        std::fs::copy(testkit::data_path(&format!("florence2_tiny/{file}")), folder.join(file)).unwrap();
    }
}

/// Writes the demo model as one checkpoint file.
pub(crate) fn write_demo_checkpoint(models: &Path) {
    let parts = [
        ("demo-flux.safetensors", "model.diffusion_model."),
        ("demo-clip-l.safetensors", "text_encoders.clip_l.transformer."),
        ("demo-t5.safetensors", "text_encoders.t5xxl.transformer."),
        ("demo-ae.safetensors", "vae."),
    ];
    let files = parts.map(|(name, prefix)| (Checkpoint::open(demo(name)).unwrap(), prefix));
    let mut writer = SafetensorsWriter::new();
    for (file, prefix) in &files {
        for entry in file.entries() {
            let name = format!("{prefix}{}", entry.name());
            writer = writer.tensor(name, entry.encoding(), *entry.shape(), file.bytes(entry));
        }
    }
    let folder = models.join("checkpoints");
    std::fs::create_dir_all(&folder).unwrap();
    writer.write(folder.join("demo-checkpoint.safetensors")).unwrap();
}

/// Writes the demo's diffusion model with more channels to look at, as those have that follow a picture (32) or
/// fill a mask (96).
pub(crate) fn write_demo_with_channels(models: &Path, name: &str, channels: usize) {
    let file = Checkpoint::open(demo("demo-flux.safetensors")).unwrap();
    let mut writer = with_metadata(&file);
    for entry in file.entries() {
        if entry.name() == "img_in.weight" {
            // Four values of each channel are one patch.
            let (rows, columns) = (entry.shape().dims()[0], channels * 4);
            let values: Vec<f32> = testkit::random_f32(3, rows * columns).iter().map(|v| v * 0.1).collect();
            writer = writer.values(entry.name(), DType::F32, Shape::from([rows, columns]), &values).unwrap();
        } else {
            writer = writer.tensor(entry.name(), entry.encoding(), *entry.shape(), file.bytes(entry));
        }
    }
    let folder = models.join("diffusion_models");
    std::fs::create_dir_all(&folder).unwrap();
    writer.write(folder.join(name)).unwrap();
}

/// A writer that says of a file what the file says of itself.
fn with_metadata<'a>(file: &Checkpoint) -> SafetensorsWriter<'a> {
    let metadata = file.metadata();
    let keys = metadata.keys();
    keys.fold(SafetensorsWriter::new(), |writer, key| writer.metadata(key, metadata.str(key).unwrap()))
}
