//! Quantised model files: each is made of the file that a manifest describes, with some of its layers quantised and
//! marked, byte for byte as the reference's tools write it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use meta::{DType, Encoding, Rotation, Scheme, Shape};
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use testkit::{Manifest, SafetensorsWriter, Sha256Sink, Sums, quantise_matrix};

use crate::folder::sums;
use crate::limits::{MANIFEST_BYTES, MOST_CASES, MOST_MANIFESTS, names_in, read_text};
use crate::{Error, GoldenFolder};

/// The quantised files and their cases, in a folder of their own beside the manifests.
#[derive(Default)]
pub(crate) struct QuantisedFiles {
    path: PathBuf,
    /// The names of its cases.
    pub(crate) cases: Vec<String>,
    /// The descriptions by the files that they are of.
    pub(crate) files: BTreeMap<String, PathBuf>,
    sums: Option<Sums>,
}

/// How a file is made of another.
#[derive(Deserialize)]
struct Description {
    /// The file.
    file: String,
    /// The name of the manifest that it is made of.
    source: String,
    /// Where its marks stand.
    mark: MarkPlace,
    /// The type in which it has the scales of blocks, if not in the usual one.
    scale_dtype: Option<String>,
    /// Its quantised layers, in order.
    layers: Layers,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum MarkPlace {
    /// In the header, for all layers.
    Metadata,
    /// A tensor beside each weight.
    ComfyQuant,
}

/// How a layer is quantised.
#[derive(Deserialize)]
struct LayerFormat {
    format: String,
    convrot: Option<bool>,
    convrot_groupsize: Option<usize>,
}

/// Layers in the order in which a description has them.
struct Layers(Vec<(String, LayerFormat)>);

impl<'de> Deserialize<'de> for Layers {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Layers, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Layers;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of layers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Layers, A::Error> {
                let mut layers = Vec::new();
                while let Some(layer) = map.next_entry()? {
                    layers.push(layer);
                }
                Ok(Layers(layers))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl LayerFormat {
    /// The encoding that it names.
    fn encoding(&self) -> Option<Encoding> {
        let rotation =
            Rotation::new(self.convrot_groupsize.unwrap_or(256)).filter(|_| self.convrot == Some(true));
        Some(match self.format.as_str() {
            "float8_e4m3fn" => DType::F8E4M3.into(),
            "float8_e5m2" => DType::F8E5M2.into(),
            "mxfp8" => Scheme::Mxfp8.into(),
            "nvfp4" => Scheme::Nvfp4.into(),
            "int8_tensorwise" => Scheme::Int8 { rotation }.into(),
            _ => return None,
        })
    }

    /// Its JSON, with the spaces that files have.
    fn json(&self) -> String {
        let convrot = self.convrot.map_or(String::new(), |convrot| format!(", \"convrot\": {convrot}"));
        let group =
            self.convrot_groupsize.map_or(String::new(), |group| format!(", \"convrot_groupsize\": {group}"));
        format!("{{\"format\": \"{}\"{convrot}{group}}}", self.format)
    }
}

impl QuantisedFiles {
    /// What a folder has; nothing if it is not there.
    pub(crate) fn in_folder(path: &Path) -> Result<QuantisedFiles, Error> {
        let (runs, models) = (path.join("runs"), path.join("models"));
        if !runs.is_dir() || !models.is_dir() {
            return Ok(QuantisedFiles::default());
        }
        let mut files = BTreeMap::new();
        for name in names_in(&models, MOST_MANIFESTS)?.iter().filter(|name| name.ends_with(".json")) {
            let path = models.join(name);
            let Description { file, .. } = description(&path)?;
            if let Some(first) = files.insert(file.clone(), path.clone()) {
                return Err(Error::TwoManifests { first, second: path, file });
            }
        }
        let mut cases = names_in(&runs, MOST_CASES)?;
        cases.retain(|name| runs.join(name).is_dir());
        Ok(QuantisedFiles { path: path.to_owned(), cases, files, sums: sums(path)? })
    }

    /// Where a case of it is.
    pub(crate) fn run(&self, case: &str) -> Option<PathBuf> {
        self.cases.iter().any(|name| name == case).then(|| self.path.join("runs").join(case))
    }

    /// Makes a file that it describes at a place; the bytes that were written, none if the file is there.
    pub(crate) fn build(&self, golden: &GoldenFolder, file: &str, path: &Path) -> Result<Option<u64>, Error> {
        let Some(described_in) = self.files.get(file) else { return Ok(None) };
        let expected = self.sums.as_ref().and_then(|sums| sums.get(&format!("built/{file}")));
        if expected.is_some() && fs::read(path).is_ok_and(|bytes| Some(sum(&bytes).as_str()) == expected) {
            return Ok(Some(0));
        }
        let wrong = |source| Error::File { path: described_in.clone(), source: Box::new(source) };
        let described = description(described_in)?;
        let source = Manifest::open(golden.manifest_named(&described.source)).map_err(wrong)?;
        let bytes = described.bytes(&source).map_err(wrong)?;
        let got = sum(&bytes);
        if let Some(expected) = expected.filter(|expected| **expected != got) {
            return Err(Error::WrongSum { file: file.to_owned(), expected: expected.to_owned(), got });
        }
        let io = |action| move |source| Error::Io { action, path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(io("make folder"))?;
        }
        disk::write(path, &bytes).map_err(io("write"))?;
        Ok(Some(bytes.len() as u64))
    }
}

fn description(path: &Path) -> Result<Description, Error> {
    let text = read_text(path, MANIFEST_BYTES)?;
    serde_json::from_str(&text).map_err(|source| Error::Json { path: path.to_owned(), source })
}

fn sum(bytes: &[u8]) -> String {
    let mut sink = Sha256Sink::new();
    // A sum takes whatever it is given.
    let _ = std::io::Write::write_all(&mut sink, bytes);
    sink.finish()
}

impl Description {
    /// The bytes of the file.
    fn bytes(&self, source: &Manifest) -> Result<Vec<u8>, testkit::Error> {
        let mut writer = SafetensorsWriter::new();
        for (key, value) in source.texts() {
            writer = writer.metadata(key, value);
        }
        if self.mark == MarkPlace::Metadata {
            let layers: Vec<String> =
                self.layers.0.iter().map(|(name, format)| format!("\"{name}\": {}", format.json())).collect();
            let json = format!("{{\"format_version\": \"1.0\", \"layers\": {{{}}}}}", layers.join(", "));
            writer = writer.metadata("_quantization_metadata", json);
        }
        for tensor in &source.tensors {
            let layer = tensor.name.strip_suffix(".weight");
            let format = layer.and_then(|layer| self.layers.0.iter().find(|(name, _)| name == layer));
            let (Some((layer, format)), &[rows, columns]) = (format, tensor.shape.dims()) else {
                writer = writer.tensor(&tensor.name, tensor.encoding, tensor.shape, tensor.bytes());
                continue;
            };
            let unknown = testkit::Error::Conversion { direction: "to", encoding: tensor.encoding };
            let encoding = format.encoding().ok_or(unknown)?;
            // The values that are quantised are those that the file would have.
            let values = testkit::decode(tensor.encoding, &tensor.bytes())?;
            let quantised = quantise_matrix(encoding, &values, [rows, columns])?;
            let (dtype, shape) = stored_as(encoding, &quantised.stored);
            let scales_as =
                if self.scale_dtype.as_deref() == Some("U8") { DType::U8 } else { quantised.scales_as };
            writer = writer.tensor(format!("{layer}.weight"), dtype, shape, quantised.codes).tensor(
                format!("{layer}.weight_scale"),
                scales_as,
                listed(quantised.scales_shape),
                quantised.scales,
            );
            if let Some(scale) = quantised.tensor_scale {
                let bytes = scale.to_le_bytes().to_vec();
                writer = writer.tensor(
                    format!("{layer}.weight_scale_2"),
                    DType::F32,
                    listed(Shape::scalar()),
                    bytes,
                );
            }
            if self.mark == MarkPlace::ComfyQuant {
                let json = format.json().into_bytes();
                let shape = Shape::from([json.len()]);
                writer = writer.tensor(format!("{layer}.comfy_quant"), DType::U8, shape, json);
            }
        }
        writer.finish()
    }
}

/// The shape of scales as these files have it: a single one is a list of one.
fn listed(shape: Shape) -> Shape {
    if shape.dims().is_empty() { Shape::from([1]) } else { shape }
}

/// The element type and the shape that a file gives codes.
fn stored_as(encoding: Encoding, stored: &Shape) -> (DType, Shape) {
    match encoding {
        Encoding::Scaled(Scheme::Int8 { .. }) => (DType::I8, *stored),
        Encoding::Scaled(Scheme::Nvfp4) => (DType::U8, stored.with(1, stored.last() / 2)),
        Encoding::Plain(dtype) => (dtype, *stored),
        _ => (DType::F8E4M3, *stored),
    }
}
