//! Quantised files as people download them, against what the reference makes of them: weights to the bit, products,
//! lookups, and an error of its own for each damaged file. Some come with this crate; where the folder of reference values
//! lies beside the checkout, all of its quantised files are read.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use device::Operand;
use device::op::{Copy, Unpack};
use meta::{DType, DeviceId, Encoding, Shape};
use placement::RemotePolicy;
use residency::{Companions, Manifest, Residency, Session, WeightSpec};
use serde_json::Value;
use tensor::{Lane, Weight};
use testkit::{Golden, Procedural, SafetensorsWriter};

/// Formats that are read; files and layers of others are refused by name.
const READ: [&str; 5] = ["float8_e4m3fn", "float8_e5m2", "mxfp8", "nvfp4", "int8_tensorwise"];

/// Files of this shape of folder that come with the crate.
fn own_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/quant_files")
}

/// All of them, where they lie beside the checkout.
fn whole_folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/quant_files");
    let folder = std::env::var_os("GANTRY_QUANT_FILES").map_or(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!(
        "\n==> NO REFERENCE VALUES: there is no folder shared/golden beside the checkout, so ONLY THE FILES OF THIS CRATE \
         WERE READ\n"
    );
    None
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A layer of a manifest.
struct Layer {
    name: String,
    is_table: bool,
    /// Whether it is in a form that no file of the reference's own loader has.
    is_foreign: bool,
    dims: [usize; 2],
    /// The name of its format; none if it is plain.
    format: Option<String>,
    /// Whether every bit is said.
    exact: bool,
}

impl Layer {
    fn of(value: &Value) -> Option<Layer> {
        let dims: Vec<usize> =
            value["shape"].as_array()?.iter().map(|dim| dim.as_u64().unwrap() as usize).collect();
        Some(Layer {
            name: value["name"].as_str()?.to_owned(),
            is_table: value["kind"] == "embedding",
            is_foreign: value["kind"] == "svdquant",
            dims: dims.try_into().ok()?,
            format: value["conf"]["format"].as_str().map(str::to_owned),
            exact: value["exact"] == true,
        })
    }

    fn is_read(&self) -> bool {
        !self.is_foreign && self.format.as_deref().is_none_or(|format| READ.contains(&format))
    }
}

/// A small file with what must come of it.
struct Fixture {
    manifest: Value,
    layers: Vec<Layer>,
    file: Checkpoint,
    results: Golden,
}

impl Fixture {
    /// Reads a file, without its layers in formats that are not read; none if no layer is left, and then the file must be
    /// refused by the name of a layer and its format.
    fn open(folder: &Path, name: &str) -> Option<Fixture> {
        let manifest = json(&folder.join(format!("manifests/{name}.json")));
        let all = manifest["layers"].as_array().unwrap();
        let layers: Vec<Layer> = all.iter().filter_map(Layer::of).filter(Layer::is_read).collect();
        let bytes = fs::read(folder.join(format!("files/{name}.safetensors"))).unwrap();
        let whole = Checkpoint::from_memory((name, bytes.clone().into()), Vec::new());
        if layers.len() < all.len() {
            let error = whole.unwrap_err().to_string();
            let named = all.iter().any(|layer| {
                let (name, format) = (layer["name"].as_str().unwrap(), layer["conf"]["format"].as_str());
                error.contains(name) && format.is_some_and(|format| error.contains(format))
            });
            assert!(named, "{name}: {error}");
            if layers.is_empty() {
                return None;
            }
            let left_out: Vec<&str> = all
                .iter()
                .map(|layer| layer["name"].as_str().unwrap())
                .filter(|name| !layers.iter().any(|layer| layer.name == *name))
                .collect();
            let file =
                Checkpoint::from_memory((name, without(&bytes, &left_out).into()), Vec::new()).unwrap();
            return Some(Fixture::new(folder, name, manifest, layers, file));
        }
        Some(Fixture::new(folder, name, manifest, layers, whole.unwrap()))
    }

    fn new(folder: &Path, name: &str, manifest: Value, layers: Vec<Layer>, file: Checkpoint) -> Fixture {
        let results = Golden::open(folder.join(format!("results/{name}.safetensors"))).unwrap();
        Fixture { manifest, layers, file, results }
    }

    /// The weight of a layer, as a model claims it.
    fn spec(&self, layer: &Layer, end: &str) -> Option<WeightSpec> {
        let name = format!("{}.{end}", layer.name);
        let entry = self.file.entry(&name)?;
        let shape = if end == "weight" { Shape::from(layer.dims) } else { *entry.shape() };
        Some(WeightSpec {
            name,
            encoding: entry.encoding(),
            kept_as: entry.encoding(),
            shape,
            padded: (shape != *entry.shape()).then_some(*entry.shape()),
            bytes: self.file.entry_bytes(entry),
            companions: Companions::of(&self.file, entry),
            rounds_patches: false,
            fp8_product: false,
        })
    }

    /// Each layer as a block.
    fn model(&self) -> Manifest {
        let mut builder = Manifest::builder("quantised", "test");
        for layer in &self.layers {
            let weights = ["weight", "bias"].into_iter().filter_map(|end| self.spec(layer, end)).collect();
            builder = builder.block(&layer.name, false, weights);
            if layer.is_table {
                let table = self.spec(layer, "weight").unwrap();
                builder = builder.table(WeightSpec { name: format!("{}.table", layer.name), ..table });
            }
        }
        builder.finish().unwrap()
    }

    /// An activation by its rule.
    fn activation(&self, layer: &Layer) -> (usize, Vec<f32>) {
        let act = format!("{}.act", layer.name);
        if self.results.names().any(|name| name == act) {
            let (shape, values) = self.results.tensor(&act).unwrap();
            return (shape.dims()[0], values);
        }
        let x = &self.manifest["inputs"]["x"];
        let (rows, number) =
            (x["rows"].as_u64().unwrap() as usize, |key: &str| x[key].as_f64().unwrap() as f32);
        let rule = Procedural::new(x["name"].as_str().unwrap(), number("scale"), number("offset"));
        (rows, rule.values(rows * layer.dims[1]))
    }
}

/// The file without the tensors of some layers.
fn without(bytes: &[u8], layers: &[&str]) -> Vec<u8> {
    let (length, rest) = bytes.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    let mut writer = SafetensorsWriter::new();
    for (name, tensor) in header.as_object().unwrap() {
        let Some(dtype) = tensor["dtype"].as_str() else { continue };
        if layers.iter().any(|layer| name.strip_prefix(layer).is_some_and(|end| end.starts_with('.'))) {
            continue;
        }
        let dtype = match dtype {
            "F32" => DType::F32,
            "BF16" => DType::BF16,
            "F8_E4M3" => DType::F8E4M3,
            "F8_E5M2" => DType::F8E5M2,
            "I8" => DType::I8,
            _ => DType::U8,
        };
        let numbers = |value: &Value| -> Vec<usize> {
            value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
        };
        let (shape, place) = (numbers(&tensor["shape"]), numbers(&tensor["data_offsets"]));
        writer =
            writer.tensor(name, dtype, Shape::new(&shape).unwrap(), Cow::from(&data[place[0]..place[1]]));
    }
    writer.finish().unwrap()
}

/// A weight's numbers in a type, as f32.
fn numbers(lane: &Lane, weight: &Weight, dtype: DType) -> Vec<f32> {
    let encoding = Encoding::Plain(dtype);
    let buffer = lane.device().allocate(encoding.bytes(weight.shape()).unwrap() as usize).unwrap();
    let out = Operand::new(buffer, encoding, *weight.shape(), 0).unwrap();
    let stored = weight.operand().clone();
    let call = match weight.scales() {
        Some(scales) => Unpack { weight: stored, scales: scales.clone(), out: out.clone() }.into(),
        None => Copy { x: stored, out: out.clone() }.into(),
    };
    lane.stream().launch(&call).unwrap();
    tensor::Tensor::new(out, lane.clone()).cast(DType::F32).unwrap().to_vec().unwrap()
}

/// Compares values: to the bit, or within so much of the largest.
fn check(what: &str, got: &[f32], want: &[f32], within: Option<f32>) {
    assert_eq!(got.len(), want.len(), "{what}");
    let most = want.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        let fine = match within {
            None => got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
            Some(within) => (got - want).abs() <= within * most,
        };
        assert!(fine, "{what}, value {at}: {got} instead of {want}");
    }
}

/// Everything that a session makes of a file's layers.
fn check_session(fixture: &Fixture, session: &Session, name: &str) -> usize {
    let mut layers = 0;
    for (block, layer) in fixture.layers.iter().enumerate() {
        let lease = session.lease(block).unwrap();
        let what = |end: &str| format!("{name}: {} {end}", layer.name);
        let want = |end: &str| {
            let key = format!("{}.{end}", layer.name);
            fixture.results.names().any(|known| known == key).then(|| fixture.results.tensor(&key).unwrap().1)
        };
        let weight = lease.weight(&format!("{}.weight", layer.name)).unwrap();
        let within = |close: f32| (!layer.exact).then_some(close);
        let f32_weight = want("weight_f32").unwrap();
        check(&what("in f32"), &numbers(lease.lane(), &weight, DType::F32), &f32_weight, within(1e-6));
        if let Some(bf16) = want("weight_bf16") {
            // One step of bf16 where the order of sums shows.
            check(&what("in bf16"), &numbers(lease.lane(), &weight, DType::BF16), &bf16, within(8e-3));
        }
        if layer.is_table {
            let ids: Vec<i32> = want("ids").unwrap().iter().map(|id| *id as i32).collect();
            let rows = want("lookup").unwrap();
            let looked_up =
                lease.lane().embedding(&weight, &lease.lane().ids([ids.len()], &ids).unwrap()).unwrap();
            check(&what("looked up"), &looked_up.to_vec().unwrap(), &rows, within(1e-6));
            let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
            let travelled = session.rows(&format!("{}.table", layer.name), &ids).unwrap();
            check(&what("in rows"), &travelled.to_vec().unwrap(), &rows, within(1e-6));
        } else if let Some(linear) = want("linear") {
            let (rows, values) = fixture.activation(layer);
            let x = lease.lane().tensor([rows, layer.dims[1]], &values).unwrap();
            let y = lease.linear(&layer.name, &x).unwrap();
            check(&what("product"), &y.to_vec().unwrap(), &linear, Some(2e-6));
            // The same by halves, as joined projections are taken apart.
            let half = layer.dims[0] / 2;
            let parts: Vec<f32> = [0..half, half..layer.dims[0]]
                .into_iter()
                .map(|rows| numbers(lease.lane(), &weight.rows(rows).unwrap(), DType::F32))
                .collect::<Vec<_>>()
                .concat();
            check(&what("in halves"), &parts, &f32_weight, within(1e-6));
        }
        layers += 1;
    }
    layers
}

/// Reads every file of a folder, resident and streamed; how many layers.
fn read_all(folder: &Path) -> usize {
    let mut names: Vec<String> = fs::read_dir(folder.join("manifests"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    let mut layers = 0;
    for name in &names {
        let Some(fixture) = Fixture::open(folder, name) else { continue };
        layers += check_session(&fixture, &support::open_on_cpu(fixture.model()), name);
        let residency = Residency::new(support::machine(&["1gb@50gbps"]));
        let (devices, sim) = (residency.devices(), DeviceId::sim(0));
        for allocation in ["cpu,*", "sim:0,*"] {
            let plan = support::plan(&fixture.model(), devices, sim, allocation, RemotePolicy::Stream);
            let session = support::open(&residency, fixture.model(), plan);
            check_session(&fixture, &session, name);
        }
    }
    layers
}

/// Every damaged file has an error, or a warning where it can be read, that names what is wrong and where.
fn refuse_all(folder: &Path) -> usize {
    let expected = json(&folder.join("bad/expected.json"));
    let mut refused = 0;
    for (name, about) in expected["files"].as_object().unwrap() {
        let path = folder.join(format!("bad/{name}.safetensors"));
        let layer = about["layer"].as_str().unwrap();
        let text = match Checkpoint::open(&path) {
            Err(error) => error.to_string(),
            Ok(file) => {
                assert!(
                    ["flat_row_scale", "header_names_missing_layer"].contains(&name.as_str()),
                    "{name} is read"
                );
                file.warnings().join("; ")
            }
        };
        // Damage of a format that is not read is not looked for: the format is what the error names.
        let other =
            ["convrot_w4a4", "asym_w4a8_int8", "awq_w4a16"].iter().any(|format| text.contains(format));
        let names: Vec<&str> =
            about["name_in_error"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        let named = if other { text.contains(layer) } else { names.iter().all(|word| text.contains(word)) };
        assert!(named, "{name}: {text:?} should name {names:?}");
        refused += 1;
    }
    refused
}

#[test]
fn files_of_this_crate_unpack_to_the_bit() {
    assert!(read_all(&own_folder()) >= 15);
}

#[test]
fn damaged_files_of_this_crate_are_told_apart() {
    assert!(refuse_all(&own_folder()) >= 20);
}

#[test]
fn all_files_of_the_reference_unpack_to_the_bit() {
    let Some(folder) = whole_folder() else { return };
    let layers = read_all(&folder);
    assert!(layers >= 40, "only {layers} layers");
    eprintln!("{layers} layers have the reference's numbers");
}

#[test]
fn all_damaged_files_of_the_reference_are_told_apart() {
    let Some(folder) = whole_folder() else { return };
    assert!(refuse_all(&folder) >= 20);
}
