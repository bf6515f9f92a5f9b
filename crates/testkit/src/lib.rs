//! Fixtures and comparison, for tests and measurements. Nothing here is part of what runs a model.
//!
//! | to get | use |
//! |---|---|
//! | a checkpoint that anyone can rebuild bit for bit | [`Manifest`] |
//! | the values of one tensor of it, or of a golden input | [`Procedural`] |
//! | random values, bytes and quantised blocks from a seed | [`random_f32`], [`random_normal`], [`random_trained`], [`random_bytes`], [`random_blocks`] |
//! | values as stored bytes, plain or quantised | [`encode()`], [`decode`] |
//! | a matrix as codes with scales beside them | [`quantise_matrix`] |
//! | a small safetensors or GGUF file | [`SafetensorsWriter`], [`GgufWriter`] |
//! | a file of PyTorch's, in both forms | [`pickle`] |
//! | a folder that goes away by itself | [`ScratchDir`] |
//! | what the reference implementation computed | [`Golden`] |
//! | how far two tensors are apart | [`assert_close`], [`Report`] |
//!
//! The data that comes with the crate (manifests with their sums, quantised blocks, noise) is found by
//! [`data_path`] and described in `data/README.md`.
#![forbid(unsafe_code)]

mod blocks;
mod compare;
mod encode;
mod error;
mod golden;
mod head;
mod manifest;
pub mod pickle;
mod procedural;
mod quantise;
mod random;
mod sampled;
mod scaled;
mod scratch;
mod stream;
mod sums;
mod writer;

use std::path::{Path, PathBuf};

pub use blocks::random_blocks;
pub use compare::{Report, Worst, assert_close};
pub use encode::{decode, encode};
pub use error::Error;
pub use golden::{Golden, ProceduralInput};
pub use head::GgufValue;
pub use manifest::{Manifest, ManifestTensor};
pub use procedural::Procedural;
pub use random::{Random, random_bytes, random_f32, random_normal, random_trained};
pub use scaled::{QuantisedMatrix, quantise_matrix};
pub use scratch::ScratchDir;
pub use sums::{Sha256Sink, Sums};
pub use writer::{GgufWriter, SafetensorsWriter};

/// The path of a file that comes with this crate, such as `quant/gguf_blocks.safetensors`.
pub fn data_path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(relative)
}
