//! A small model of many blocks, its file, and machines of simulated devices.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::Arc;

use checkpoint::Checkpoint;
use device::{Backend, Device, Registry, SimBackend, SimSpec};
use device_cpu::CpuBackend;
use meta::{DType, DeviceId, Encoding, Scheme, Shape};
use patch::{KeyMap, PatchFile, PatchSet};
use placement::{AllocationText, DeviceSpec, Order, PeerLink, Plan, RemotePolicy};
use residency::{Cancel, LoadOptions, Manifest, ModelId, Residency, Retention, Session, WeightSpec};
use tensor::{Activation, Tensor};
use testkit::{GgufWriter, SafetensorsWriter, ScratchDir, quantise_matrix, random_normal};

/// Width of the test model.
pub(crate) const WIDTH: usize = 64;
/// Inner width of a block.
pub(crate) const INNER: usize = 128;
/// Blocks of the test model, between the first and the last layer.
pub(crate) const BLOCKS: usize = 20;

/// A machine with the CPU and simulated devices.
pub(crate) fn machine(specs: &[&str]) -> Registry {
    let host = Arc::new(CpuBackend::new());
    let mut devices = vec![Device::new(Arc::clone(&host) as Arc<dyn Backend>, 8 << 30)];
    for (ordinal, spec) in specs.iter().enumerate() {
        let spec: SimSpec = spec.parse().unwrap();
        let backend =
            SimBackend::new(ordinal as u16, spec, Arc::clone(&host) as Arc<dyn Backend>, host.executor());
        devices.push(Device::new(Arc::new(backend), spec.memory));
    }
    Registry::new(devices)
}

/// Where the test model's file is, in a folder that goes away.
pub(crate) struct ModelFile {
    pub(crate) dir: ScratchDir,
    pub(crate) path: std::path::PathBuf,
}

/// Writes the test model; `seed` makes it another one. A quantised one is a GGUF file with plain biases; one of codes with
/// scales beside them has these and their marks in its file.
pub(crate) fn write_model(seed: u64, encoding: Encoding) -> ModelFile {
    let dir = ScratchDir::new().unwrap();
    let mut tensors = Vec::new();
    for i in 0..BLOCKS {
        let seed = seed * 1000 + i as u64 * 10;
        tensors.push((format!("blocks.{i}.up.weight"), Shape::from([INNER, WIDTH]), encoding, seed));
        let plain = if encoding.dtype().is_none() { Encoding::F32 } else { encoding };
        tensors.push((format!("blocks.{i}.up.bias"), Shape::from([INNER]), plain, seed + 1));
        tensors.push((format!("blocks.{i}.down.weight"), Shape::from([WIDTH, INNER]), encoding, seed + 2));
    }
    let values = |seed: u64, n: usize| random_normal(seed, n).iter().map(|v| v * 0.1).collect::<Vec<f32>>();
    let path = if encoding.quant().is_some() {
        let path = dir.path().join("model.gguf");
        let add = |writer: GgufWriter<'static>,
                   (name, shape, encoding, seed): (String, Shape, Encoding, u64)| {
            writer.values(name, encoding, shape, &values(seed, shape.count())).unwrap()
        };
        tensors.into_iter().fold(GgufWriter::new(), add).write(&path).unwrap();
        path
    } else {
        let path = dir.path().join("model.safetensors");
        let add = |writer: SafetensorsWriter<'static>,
                   (name, shape, encoding, seed): (String, Shape, Encoding, u64)| {
            let values = values(seed, shape.count());
            match encoding {
                Encoding::Scaled(scheme) => add_coded(writer, &name, scheme, &shape, &values),
                _ => writer.values(name, encoding, shape, &values).unwrap(),
            }
        };
        tensors.into_iter().fold(SafetensorsWriter::new(), add).write(&path).unwrap();
        path
    };
    ModelFile { dir, path }
}

/// Adds a weight of codes, its scales and its mark.
fn add_coded(
    writer: SafetensorsWriter<'static>,
    name: &str,
    scheme: Scheme,
    shape: &Shape,
    values: &[f32],
) -> SafetensorsWriter<'static> {
    let matrix = quantise_matrix(scheme.into(), values, [shape.dims()[0], shape.dims()[1]]).unwrap();
    let layer = name.strip_suffix(".weight").unwrap().to_owned();
    let (dtype, stored, mark) = match scheme {
        Scheme::Int8 { rotation } => {
            let group = rotation.map_or(256, meta::Rotation::group);
            let options = format!("\"convrot\": {}, \"convrot_groupsize\": {group}", rotation.is_some());
            (DType::I8, matrix.stored, format!("{{\"format\": \"int8_tensorwise\", {options}}}"))
        }
        Scheme::Mxfp8 => (DType::F8E4M3, matrix.stored, "{\"format\": \"mxfp8\"}".to_owned()),
        Scheme::Nvfp4 => {
            let stored = matrix.stored.with(1, matrix.stored.last() / 2);
            (DType::U8, stored, "{\"format\": \"nvfp4\"}".to_owned())
        }
    };
    let mut writer = writer
        .tensor(name, dtype, stored, matrix.codes)
        .tensor(format!("{name}_scale"), matrix.scales_as, matrix.scales_shape, matrix.scales)
        .tensor(format!("{layer}.comfy_quant"), DType::U8, Shape::from([mark.len()]), mark.into_bytes());
    if let Some(scale) = matrix.tensor_scale {
        writer = writer.values(format!("{name}_scale_2"), Encoding::F32, Shape::scalar(), &[scale]).unwrap();
    }
    writer
}

/// The manifest of the test model.
pub(crate) fn manifest(file: &ModelFile, name: &str) -> Manifest {
    let checkpoint = Checkpoint::open(&file.path).unwrap();
    let spec = |name: String| {
        let entry = checkpoint.entry(&name).unwrap();
        WeightSpec {
            encoding: entry.encoding(),
            kept_as: entry.encoding(),
            shape: *entry.shape(),
            bytes: checkpoint.entry_bytes(entry),
            padded: None,
            companions: residency::Companions::of(&checkpoint, entry),
            rounds_patches: false,
            fp8_product: false,
            name,
        }
    };
    let mut builder = Manifest::builder(name, "test");
    for i in 0..BLOCKS {
        let names = ["up.weight", "up.bias", "down.weight"].map(|n| format!("blocks.{i}.{n}"));
        builder = builder.block(format!("blocks.{i}"), false, names.map(spec).into());
    }
    builder.finish().unwrap()
}

/// One step of the test model.
pub(crate) fn forward(session: &Session, x: &[f32]) -> residency::Result<Vec<f32>> {
    let rows = x.len() / WIDTH;
    let mut x = session.lane()?.tensor([rows, WIDTH], x)?;
    for i in 0..session.manifest().blocks().len() {
        let block = session.lease(i)?;
        x = block.bring(&x)?;
        let inner = block.linear_then(&format!("blocks.{i}.up"), &x, Some(Activation::Silu))?;
        let change: Tensor = block.linear(&format!("blocks.{i}.down"), &inner)?;
        x = x.add(&change)?;
    }
    Ok(x.to_vec()?)
}

/// The input of every test.
pub(crate) fn input() -> Vec<f32> {
    random_normal(99, 3 * WIDTH)
}

/// What the planner is told of the machine.
pub(crate) fn device_specs(devices: &Registry) -> Vec<DeviceSpec> {
    let ids: Vec<DeviceId> = devices.iter().map(Device::id).collect();
    let spec = |device: &Device| DeviceSpec {
        id: device.id(),
        total_bytes: device.ledger().report().budget,
        available_bytes: device.ledger().report().available(),
        link_bytes_per_s: 10e9,
        compute_factor: 1.0,
        reaches: ids.iter().map(|id| PeerLink { device: *id, bytes_per_s: 10e9 }).collect(),
    };
    devices.iter().map(spec).collect()
}

/// A plan for the test model.
pub(crate) fn plan(
    manifest: &Manifest,
    devices: &Registry,
    compute: DeviceId,
    text: &str,
    remote: RemotePolicy,
) -> Plan {
    let mut request = Residency::plan_request(manifest, compute, device_specs(devices));
    request.allocation =
        if text.is_empty() { AllocationText::automatic() } else { AllocationText::parse(text).unwrap() };
    request.remote = remote;
    request.order = Order::default();
    placement::plan(&request).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Loads the test model and says under which id.
pub(crate) fn load(
    residency: &Residency,
    file: &ModelFile,
    name: &str,
    text: &str,
    retention: Retention,
) -> ModelId {
    let manifest = manifest(file, name);
    let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), text, RemotePolicy::Auto);
    residency.load(manifest, plan, LoadOptions { retention, ..LoadOptions::default() }).unwrap()
}

/// Opens a model and runs a step.
pub(crate) fn run(residency: &Residency, id: ModelId) -> residency::Result<Vec<f32>> {
    forward(&residency.open(id, &Cancel::default())?, &input())
}

/// The forms that a change of a weight can have.
pub(crate) const FORMS: [&str; 8] =
    ["LoRA", "LoHa", "LoKr", "DoRA", "DoRA of inputs", "GLoRA", "difference", "replacement"];

/// A patch file of one form for the layers of every second block of the test model.
pub(crate) fn patches_of(file: &ModelFile, manifest: &Manifest, form: &str, strength: f64) -> PatchSet {
    let mut writer = SafetensorsWriter::new();
    for i in (0..BLOCKS).step_by(2) {
        for (layer, rows, columns) in [("up", INNER, WIDTH), ("down", WIDTH, INNER)] {
            let tensors: Vec<(&str, [usize; 2])> = match form {
                "LoRA" => vec![("lora_up.weight", [rows, 4]), ("lora_down.weight", [4, columns])],
                "LoHa" => vec![
                    ("hada_w1_a", [rows, 3]),
                    ("hada_w1_b", [3, columns]),
                    ("hada_w2_a", [rows, 3]),
                    ("hada_w2_b", [3, columns]),
                ],
                "LoKr" => vec![("lokr_w1", [4, 4]), ("lokr_w2", [rows / 4, columns / 4])],
                "DoRA" => vec![
                    ("lora_up.weight", [rows, 4]),
                    ("lora_down.weight", [4, columns]),
                    ("dora_scale", [rows, 1]),
                ],
                "DoRA of inputs" => vec![
                    ("lora_up.weight", [rows, 4]),
                    ("lora_down.weight", [4, columns]),
                    ("dora_scale", [1, columns]),
                ],
                "GLoRA" => vec![
                    ("a1.weight", [columns, 4]),
                    ("a2.weight", [4, columns]),
                    ("b1.weight", [rows, 4]),
                    ("b2.weight", [4, columns]),
                ],
                "difference" => vec![("diff", [rows, columns])],
                _ => vec![("set_weight", [rows, columns])],
            };
            for (n, (name, dims)) in tensors.into_iter().enumerate() {
                let values: Vec<f32> = random_normal(500 + 10 * i as u64 + n as u64, dims[0] * dims[1])
                    .iter()
                    .map(|v| v * 0.2)
                    .collect();
                let key = format!("diffusion_model.blocks.{i}.{layer}.{name}");
                writer = writer.values(key, Encoding::F32, dims.into(), &values).unwrap();
            }
        }
    }
    let path = file.dir.path().join(format!("{form}.safetensors"));
    writer.write(&path).unwrap();
    let mut set = PatchSet::new();
    add_file(&mut set, &path, manifest, strength);
    assert_eq!(set.len(), BLOCKS);
    set
}

/// Adds a patch file to a set.
pub(crate) fn add_file(set: &mut PatchSet, path: &std::path::Path, manifest: &Manifest, strength: f64) {
    let patches = PatchFile::read(&Checkpoint::open(path).unwrap()).unwrap();
    let keys = KeyMap::native(manifest.weights().iter().map(|w| (w.name.as_str(), &w.shape)));
    set.add(&patches, &keys, strength).unwrap();
    assert!(set.unmatched().is_empty(), "{:?}", set.unmatched());
}

/// A LoRA for the test model: rank 4 on every third block, and a change of its bias.
pub(crate) fn lora(file: &ModelFile, manifest: &Manifest, strength: f64) -> PatchSet {
    let path = file.dir.path().join("lora.safetensors");
    if !path.exists() {
        let mut writer = SafetensorsWriter::new();
        for i in (0..BLOCKS).step_by(3) {
            for (layer, [rows, columns]) in [("up", [INNER, WIDTH]), ("down", [WIDTH, INNER])] {
                let key = format!("diffusion_model.blocks.{i}.{layer}");
                let factor = |seed: u64, n: usize| {
                    random_normal(seed + i as u64, n).iter().map(|v| v * 0.3).collect::<Vec<_>>()
                };
                writer = writer
                    .values(
                        format!("{key}.lora_down.weight"),
                        Encoding::F32,
                        [4, columns].into(),
                        &factor(7000, 4 * columns),
                    )
                    .unwrap()
                    .values(
                        format!("{key}.lora_up.weight"),
                        Encoding::F32,
                        [rows, 4].into(),
                        &factor(8000, rows * 4),
                    )
                    .unwrap();
            }
            let bias = random_normal(9000 + i as u64, INNER);
            let key = format!("diffusion_model.blocks.{i}.up.diff_b");
            writer = writer.values(key, Encoding::F32, [INNER].into(), &bias).unwrap();
        }
        writer.write(&path).unwrap();
    }
    let mut set = PatchSet::new();
    add_file(&mut set, &path, manifest, strength);
    set
}

/// Bytes in use on every device.
pub(crate) fn used(devices: &Registry) -> Vec<u64> {
    devices.iter().map(|device| device.ledger().report().used).collect()
}

/// Nothing is promised that was not taken or given back.
pub(crate) fn assert_nothing_reserved(devices: &Registry) {
    for device in devices.iter() {
        assert_eq!(device.ledger().report().reserved, 0, "{} still has promises", device.id());
    }
}

/// The encodings in which plain weights are tried.
pub(crate) const PLAIN: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
