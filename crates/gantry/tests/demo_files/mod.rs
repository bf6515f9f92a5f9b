//! Files that tests make out of the demo model, and models that are only a header.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// The demo model's parts and the names that an all-in-one checkpoint gives them.
const PARTS: [(&str, &str); 4] = [
    ("demo-flux.safetensors", "model.diffusion_model."),
    ("demo-clip-l.safetensors", "text_encoders.clip_l.transformer."),
    ("demo-t5.safetensors", "text_encoders.t5xxl.transformer."),
    ("demo-ae.safetensors", "vae."),
];

/// The top of the checkout.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A file of the demo model.
pub(crate) fn demo_file(name: &str) -> PathBuf {
    root().join("assets/demo").join(name)
}

/// Writes a safetensors file: its header, padded, then the bytes.
fn write_file(path: &Path, header: &Map<String, Value>, bytes: &[&[u8]], len: u64) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut text = serde_json::to_vec(header).unwrap();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = File::create(path).unwrap();
    file.write_all(&(text.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&text).unwrap();
    bytes.iter().for_each(|part| file.write_all(part).unwrap());
    file.set_len(8 + text.len() as u64 + len).unwrap();
}

/// Joins the demo model's parts into one checkpoint, as `examples/demo_checkpoint.py` does.
pub(crate) fn write_checkpoint(path: &Path) {
    let (mut header, mut bodies, mut end) = (Map::new(), Vec::new(), 0);
    for (name, prefix) in PARTS {
        let bytes = std::fs::read(demo_file(name)).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let entries: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        for (tensor, mut entry) in entries.into_iter().filter(|(tensor, _)| tensor != "__metadata__") {
            for offset in entry["data_offsets"].as_array_mut().unwrap() {
                *offset = json!(offset.as_u64().unwrap() + end);
            }
            header.insert(format!("{prefix}{tensor}"), entry);
        }
        end += (bytes.len() - 8 - length) as u64;
        bodies.push(bytes[8 + length..].to_vec());
    }
    let parts: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
    write_file(path, &header, &parts, end);
}

/// Writes a file with the header of FLUX.1 dev, 12 billion weights of 2 bytes (bf16) or 1 (fp8), and no
/// weights: the file is sparse and takes next to nothing of a disk.
pub(crate) fn write_flux_header(path: &Path, dtype: &str) {
    let one_block_each = root().join("crates/testkit/data/manifests/flux_dev_d1s1.json");
    let manifest: Value = serde_json::from_str(&std::fs::read_to_string(one_block_each).unwrap()).unwrap();
    let (mut header, mut end) = (Map::new(), 0);
    for tensor in manifest["tensors"].as_array().unwrap() {
        let name = tensor["name"].as_str().unwrap();
        let repeats = match name.split('.').next() {
            Some("double_blocks") => 19,
            Some("single_blocks") => 38,
            _ => 1,
        };
        let shape: Vec<u64> =
            tensor["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        let is_block_matrix = shape.len() == 2 && repeats > 1;
        let (dtype, width) = if is_block_matrix && dtype == "F8_E4M3" { (dtype, 1) } else { ("BF16", 2) };
        for block in 0..repeats {
            let begin = end;
            end += shape.iter().product::<u64>() * width;
            let name = name.replacen("_blocks.0.", &format!("_blocks.{block}."), 1);
            let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, end] });
            header.insert(name, entry);
        }
    }
    write_file(path, &header, &[], end);
}
