//! Every checkpoint of up to 70 million parameters is rebuilt and hashed: one wrong bit in the value rule, a
//! rounding, a head or a padding changes its sum. `cargo run --release -p testkit --example golden_sums` does all.

use std::fs;

use checkpoint::Checkpoint;
use meta::{DType, Encoding, QuantFormat, Shape};
use testkit::{GgufWriter, Manifest, SafetensorsWriter, ScratchDir, Sums, random_bytes};

/// The largest checkpoint rebuilt here; the others would take longer than a test should.
const MOST_PARAMETERS: u64 = 70_000_000;

#[test]
fn rebuilt_checkpoints_have_the_known_sums() {
    let sums = Sums::bundled().unwrap();
    let mut wrong = Vec::new();
    let mut checked = 0;
    for name in Manifest::bundled_names().unwrap() {
        let manifest = Manifest::bundled(&name).unwrap();
        if manifest.parameters() > MOST_PARAMETERS {
            continue;
        }
        checked += 1;
        if Some(manifest.sha256().unwrap().as_str()) != sums.get(&manifest.file) {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "these differ from the reference: {wrong:?}");
    assert!(checked >= 57, "only {checked} were small enough");
}

#[test]
fn every_manifest_has_a_sum_and_every_sum_a_manifest() {
    let manifests = Manifest::bundled_names().unwrap();
    let mut described: Vec<String> = manifests.iter().map(|n| Manifest::bundled(n).unwrap().file).collect();
    described.sort_unstable();
    let mut summed: Vec<String> = Sums::bundled().unwrap().files().map(str::to_owned).collect();
    summed.sort_unstable();
    assert_eq!(described, summed);
}

#[test]
fn a_written_file_is_the_one_in_memory() {
    let folder = ScratchDir::new().unwrap();
    let manifest = Manifest::bundled("flux_schnell_micro").unwrap();
    let path = manifest.write_to(folder.path()).unwrap();
    assert_eq!(path, folder.join("diffusion_models/flux_schnell_micro.safetensors"));
    assert!(fs::read(&path).unwrap() == manifest.bytes().unwrap());
    // The half-written file is gone, so nobody can take it for a checkpoint.
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

/// The reader of the project and the generator were written apart; both must agree on every tensor.
#[test]
fn rebuilt_checkpoints_open_with_the_tensors_of_their_manifests() {
    let folder = ScratchDir::new().unwrap();
    for name in ["flux_dev_micro", "flux_dev_micro-Q8_0", "flux_dev_micro_fp8_scaled", "sd15_tiny_lora_kohya"]
    {
        let manifest = Manifest::bundled(name).unwrap();
        let checkpoint = Checkpoint::open(manifest.write_to(folder.path()).unwrap()).unwrap();
        assert_eq!(checkpoint.entries().len(), manifest.tensors.len(), "{name}");
        for (entry, tensor) in checkpoint.entries().iter().zip(&manifest.tensors) {
            assert_eq!(entry.name(), tensor.name, "{name}");
            assert_eq!(
                (entry.encoding(), *entry.shape()),
                (tensor.encoding, tensor.shape),
                "{name} {}",
                tensor.name
            );
            assert!(*checkpoint.bytes(entry) == *tensor.bytes(), "{name} {}", tensor.name);
        }
        if name == "flux_dev_micro-Q8_0" || name == "flux_dev_micro" {
            let config = checkpoint.metadata().str("gantry_unet_config");
            assert_eq!(config, Some(r#"{"num_heads": 2, "axes_dim": [16, 24, 24]}"#), "{name}");
        }
    }
}

/// Every encoding that a format can hold comes back as it was written.
#[test]
fn written_files_open_with_every_encoding() {
    let folder = ScratchDir::new().unwrap();
    let shape = Shape::from([3, 256]);
    let bytes = |encoding: Encoding| random_bytes(5, encoding.bytes(&shape).unwrap() as usize);

    let plain = DType::ALL.map(Encoding::from);
    let writer = plain.iter().fold(
        SafetensorsWriter::new().metadata("ключ", "\"значение\"\n😀"),
        |writer, &encoding| writer.tensor(encoding.name(), encoding, shape, bytes(encoding)),
    );
    writer.write(folder.join("all.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(folder.join("all.safetensors")).unwrap();
    assert_eq!(checkpoint.metadata().str("ключ"), Some("\"значение\"\n😀"));
    for encoding in plain {
        let entry = checkpoint.entry(encoding.name()).unwrap();
        assert_eq!((entry.encoding(), *entry.shape()), (encoding, shape));
        assert_eq!(checkpoint.bytes(entry), bytes(encoding), "{encoding}");
    }

    let quantised = QuantFormat::ALL.map(Encoding::from);
    let writer = GgufWriter::new().value("general.architecture", "flux").value("count", 7).alignment(64);
    let writer = quantised
        .iter()
        .fold(writer, |writer, &encoding| writer.tensor(encoding.name(), encoding, shape, bytes(encoding)));
    writer.write(folder.join("all.gguf")).unwrap();
    let checkpoint = Checkpoint::open(folder.join("all.gguf")).unwrap();
    assert_eq!(checkpoint.metadata().u64("count"), Some(7));
    for encoding in quantised {
        let entry = checkpoint.entry(encoding.name()).unwrap();
        assert_eq!((entry.encoding(), *entry.shape()), (encoding, shape));
        assert_eq!(checkpoint.bytes(entry), bytes(encoding), "{encoding}");
    }
}
