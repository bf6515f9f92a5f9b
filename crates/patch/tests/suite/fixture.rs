//! What the tests build from: a CPU lane, patch files made in memory, a model of one layer.

use std::borrow::Cow;
use std::sync::Arc;

use checkpoint::Checkpoint;
use device::Device;
use device_cpu::CpuBackend;
use meta::{DType, Encoding, Shape};
use patch::{KeyMap, Patch, PatchFile, PatchSet, apply};
use tensor::{Lane, Tensor};
use testkit::{Manifest, SafetensorsWriter, random_f32};

pub(crate) const WEIGHT: &str = "layer.weight";

pub(crate) fn lane() -> Lane {
    let device = Device::new(Arc::new(CpuBackend::new()), 4 << 30);
    Lane::new(&device, DType::F32).unwrap()
}

/// A tensor of a patch file.
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) values: Vec<f32>,
}

/// Values that depend on the name and the shape.
pub(crate) fn random(name: &str, dims: &[usize]) -> Stored {
    let shape = Shape::new(dims).unwrap();
    let seed = name.bytes().fold(dims.len() as u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
    Stored { name: name.to_owned(), shape, values: random_f32(seed, shape.count()) }
}

pub(crate) fn number(name: &str, value: f32) -> Stored {
    Stored { name: name.to_owned(), shape: Shape::scalar(), values: vec![value] }
}

pub(crate) fn checkpoint(path: &str, encoding: Encoding, tensors: &[Stored]) -> Checkpoint {
    let mut writer = SafetensorsWriter::new();
    for Stored { name, shape, values } in tensors {
        writer = writer.values(name, encoding, *shape, values).unwrap();
    }
    Checkpoint::from_memory((path, Cow::Owned(writer.finish().unwrap())), Vec::new()).unwrap()
}

pub(crate) fn file(tensors: &[Stored]) -> PatchFile {
    PatchFile::read(&checkpoint("patch.safetensors", Encoding::F32, tensors)).unwrap()
}

/// The error of reading such a file.
pub(crate) fn file_error(tensors: &[Stored]) -> patch::Error {
    PatchFile::read(&checkpoint("patch.safetensors", Encoding::F32, tensors)).unwrap_err()
}

/// The checkpoint of a bundled manifest, as a patch file.
pub(crate) fn bundled(name: &str) -> PatchFile {
    let bytes = Manifest::bundled(name).unwrap().bytes().unwrap();
    PatchFile::read(&Checkpoint::from_memory((name, Cow::Owned(bytes)), Vec::new()).unwrap()).unwrap()
}

/// The key map of a model with one layer.
pub(crate) fn one_layer(dims: &[usize]) -> KeyMap {
    KeyMap::native([(WEIGHT, &Shape::new(dims).unwrap())])
}

/// The patches of the only layer, whose weight has these dimensions.
pub(crate) fn patches(tensors: &[Stored], dims: &[usize], strength: f64) -> Vec<Patch> {
    let mut set = PatchSet::new();
    set.add(&file(tensors), &one_layer(dims), strength).unwrap();
    assert_eq!(set.unmatched(), &[] as &[String]);
    set.patches(WEIGHT).to_vec()
}

pub(crate) fn tensor(lane: &Lane, shape: Shape, values: &[f32]) -> Tensor {
    lane.tensor_f32(shape, values).unwrap()
}

/// The values of a weight with patches applied.
pub(crate) fn applied(shape: Shape, values: &[f32], patches: &[Patch]) -> Vec<f32> {
    let lane = lane();
    apply(&lane, &tensor(&lane, shape, values), patches).unwrap().to_vec().unwrap()
}
