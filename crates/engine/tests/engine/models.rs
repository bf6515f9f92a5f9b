//! A tiny model that a residency can hold.

use checkpoint::Checkpoint;
use device::Device;
use meta::{DeviceId, Encoding};
use placement::{AllocationText, DeviceSpec};
use residency::{LoadOptions, Manifest, Residency, Retention, WeightSpec};
use testkit::{SafetensorsWriter, ScratchDir};

/// Registers models under names; the folder holds their file.
pub(crate) fn load(residency: &Residency, models: &[(&str, Retention)]) -> ScratchDir {
    let folder = ScratchDir::new().unwrap();
    let path = folder.join("model.safetensors");
    let writer = SafetensorsWriter::new().values("w", Encoding::F32, [8, 8].into(), &[0.5; 64]).unwrap();
    writer.write(&path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let entry = checkpoint.entry("w").unwrap();
    for (name, retention) in models {
        let weight = WeightSpec {
            encoding: entry.encoding(),
            kept_as: entry.encoding(),
            shape: *entry.shape(),
            bytes: checkpoint.entry_bytes(entry),
            padded: None,
            companions: residency::Companions::default(),
            rounds_patches: false,
            fp8_product: false,
            name: "w".to_owned(),
        };
        let manifest = Manifest::builder(*name, "test").block("block", false, vec![weight]).finish().unwrap();
        let specs = residency.devices().iter().map(spec).collect();
        let mut request = Residency::plan_request(&manifest, DeviceId::null(0), specs);
        request.allocation = AllocationText::automatic();
        let plan = placement::plan(&request).unwrap();
        residency
            .load(manifest, plan, LoadOptions { retention: *retention, ..LoadOptions::default() })
            .unwrap();
    }
    folder
}

fn spec(device: &Device) -> DeviceSpec {
    DeviceSpec {
        id: device.id(),
        total_bytes: 1 << 30,
        available_bytes: 1 << 30,
        link_bytes_per_s: 10e9,
        compute_factor: 1.0,
        reaches: Vec::new(),
    }
}

/// The names of the loaded models.
pub(crate) fn names(residency: &Residency) -> Vec<String> {
    residency.models().into_iter().map(|model| model.name).collect()
}
