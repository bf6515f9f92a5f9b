//! Model files of random weights in a family's size, the matrices of their blocks stored in any of the formats that models
//! are published in.

mod marked;

use std::path::{Path, PathBuf};

use anyhow::Result;
use meta::Shape;
use models::diffusion::{DiffusionFamily, ReleasedModel};
use serde_json::json;
use testkit::Manifest;

use crate::bench::served::files;

/// How the matrices are stored: as models are published, and as people have it on smaller cards.
pub(super) const FORMATS: [&str; 4] = ["BF16", "F8_E4M3", "Q8_0", "Q4_K"];
/// Those that are measured only where they are named: with them a run takes half as long again.
pub(super) const NAMED_FORMATS: [&str; 2] = marked::FORMATS;

/// Writes all of a model in a released size; quickly where no matrix has to be quantised.
pub(super) fn write_whole(
    dir: &Path,
    format: &str,
    (family, released): (&DiffusionFamily, &ReleasedModel),
) -> Result<PathBuf> {
    if format != "BF16" {
        return write_model(dir, format, (family, released), usize::MAX);
    }
    let path = dir.join(format!("{}.safetensors", family.key));
    files::write_released(&path, released)?;
    Ok(path)
}

/// Writes a checkpoint of procedural weights in a released size, of each kind of block at most so many, the matrices of
/// blocks stored in a format.
pub(in crate::bench) fn write_model(
    dir: &Path,
    format: &str,
    (family, released): (&DiffusionFamily, &ReleasedModel),
    most_blocks: usize,
) -> Result<PathBuf> {
    let tensors = (released.tensors)(most_blocks);
    if NAMED_FORMATS.contains(&format) {
        let path = dir.join(format!("{}.safetensors", family.key));
        marked::write(&path, format, &tensors)?;
        return Ok(path);
    }
    let tensor = |(name, shape): &(String, Shape)| {
        let dims = shape.dims();
        let dtype = if is_matrix_of_block(name, dims) { format } else { "BF16" };
        let (scale, offset) = amplitude(name, dims);
        json!({ "name": name, "dtype": dtype, "shape": dims, "scale": scale, "offset": offset })
    };
    let tensors: Vec<_> = tensors.iter().map(tensor).collect();
    let is_gguf = format.starts_with('Q');
    let extension = if is_gguf { "gguf" } else { "safetensors" };
    let mut manifest = json!({ "file": format!("{}.{extension}", family.key), "tensors": tensors });
    if is_gguf {
        manifest["kv"] = json!({ "general.architecture": family.key, "general.quantization_version": 2 });
    }
    Ok(Manifest::parse(&manifest.to_string())?.write_to(dir)?)
}

/// Whether a tensor is a matrix of a block. Blocks are numbered; what is outside of them stays as it is.
fn is_matrix_of_block(name: &str, dims: &[usize]) -> bool {
    let is_numbered = name.split('.').any(|part| part.parse::<usize>().is_ok());
    dims.len() == 2 && is_numbered && name.contains("blocks")
}

/// By how much the values of a tensor vary, and around what: matrices give about what they are given, norms keep it.
pub(in crate::bench) fn amplitude(name: &str, dims: &[usize]) -> (f64, f64) {
    match dims {
        [_] if name.contains("norm") || name.contains(".ln_") => (0.1, 1.0),
        [_] => (0.05, 0.0),
        [_, columns @ ..] => ((3.0 / columns.iter().product::<usize>().max(1) as f64).sqrt(), 0.0),
        [] => (0.0, 1.0),
    }
}
