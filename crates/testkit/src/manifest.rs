//! Manifests: checkpoints described by names, shapes, types and the rule of their values, rebuilt bit for bit.
//! The files that come out have known sums (`data/manifests/SHA256SUMS`), and the reference implementation's
//! results for them are the golden data that models are tested against.

use std::fs;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use disk::Draft;
use meta::{DType, Encoding, QuantFormat, Shape};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::encode::{Encoder, encoder};
use crate::head::{self, Described, GGUF_ALIGNMENT, GgufValue};
use crate::stream::{self, Piece};
use crate::{Error, Procedural, Sha256Sink, data_path, decode};

/// The description of one checkpoint.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Where the checkpoint belongs in a models folder, such as `vae/flux_ae.safetensors`.
    pub file: String,
    /// Every size of the model, by the names that the reference uses; null where there is none.
    pub config: Value,
    /// The tensors, in the order of the file.
    pub tensors: Vec<ManifestTensor>,
    metadata: Metadata,
}

/// One tensor of a manifest.
#[derive(Clone, Debug)]
pub struct ManifestTensor {
    /// Its name in the file.
    pub name: String,
    /// How it is stored.
    pub encoding: Encoding,
    /// Its dimensions.
    pub shape: Shape,
    source: Source,
}

/// Where a tensor's values come from.
#[derive(Clone)]
enum Source {
    Procedural { rule: Procedural, encoder: Encoder },
    Embedded(Vec<u8>),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Procedural { rule, .. } => rule.fmt(f),
            Source::Embedded(bytes) => write!(f, "{} embedded bytes", bytes.len()),
        }
    }
}

/// What a file says beside its tensors; which of the two also decides the format.
#[derive(Clone, Debug)]
enum Metadata {
    Safetensors(Vec<(String, String)>),
    Gguf(Vec<(String, GgufValue)>),
}

impl Manifest {
    /// Reads a manifest.
    pub fn parse(json: &str) -> Result<Manifest, Error> {
        let written: WrittenManifest = serde_json::from_str(json)
            .map_err(|source| Error::Json { what: "the manifest".to_owned(), source })?;
        if !Path::new(&written.file).components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(Error::UnsafePath { file: written.file });
        }
        let metadata = Metadata::read(&written)?;
        let tensors = written.tensors.into_iter().map(ManifestTensor::read).collect::<Result<_, _>>()?;
        let manifest = Manifest { file: written.file, config: written.config, tensors, metadata };
        // The head is where everything else that can be wrong shows; from here on the sizes are known to fit.
        manifest.head()?;
        Ok(manifest)
    }

    /// Reads a manifest file.
    pub fn open(path: impl AsRef<Path>) -> Result<Manifest, Error> {
        let path = path.as_ref();
        let json = fs::read_to_string(path).map_err(|source| Error::Io {
            action: "read",
            path: path.to_owned(),
            source,
        })?;
        Manifest::parse(&json)
    }

    /// Reads one of the manifests that come with this crate, such as `flux_dev_micro`.
    pub fn bundled(name: &str) -> Result<Manifest, Error> {
        Manifest::open(data_path(&format!("manifests/{name}.json")))
    }

    /// The names of the manifests that come with this crate, sorted.
    pub fn bundled_names() -> Result<Vec<String>, Error> {
        let folder = data_path("manifests");
        let error = |source| Error::Io { action: "list", path: folder.clone(), source };
        let mut names = Vec::new();
        for item in fs::read_dir(&folder).map_err(error)? {
            let name = item.map_err(error)?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_suffix(".json")).map(str::to_owned));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// What a safetensors file says beside its tensors, in its order; a GGUF says nothing here.
    pub fn texts(&self) -> &[(String, String)] {
        match &self.metadata {
            Metadata::Safetensors(pairs) => pairs,
            _ => &[],
        }
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Result<&ManifestTensor, Error> {
        self.tensors.iter().find(|tensor| tensor.name == name).ok_or_else(|| Error::Missing {
            file: self.file.clone(),
            what: "tensor",
            name: name.to_owned(),
        })
    }

    /// Values in all tensors together.
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.shape.count() as u64).sum()
    }

    /// Bytes of the checkpoint.
    pub fn len_bytes(&self) -> Result<u64, Error> {
        let head = self.head()?;
        Ok(self.pieces(&head).iter().map(|piece| piece.len() as u64).sum())
    }

    /// The checkpoint in memory.
    pub fn bytes(&self) -> Result<Vec<u8>, Error> {
        let head = self.head()?;
        Ok(stream::collect(&self.pieces(&head)))
    }

    /// Sends the checkpoint's bytes to `sink` without holding them all.
    pub fn stream(&self, sink: &mut (impl Write + Send)) -> Result<(), Error> {
        let head = self.head()?;
        stream::send(&self.pieces(&head), sink)
            .map_err(|source| Error::Stream { file: self.file.clone(), source })
    }

    /// The SHA-256 of the checkpoint, in lower-case hex.
    pub fn sha256(&self) -> Result<String, Error> {
        let mut sink = Sha256Sink::new();
        self.stream(&mut sink)?;
        Ok(sink.finish())
    }

    /// Whether a file is this checkpoint, as far as its length, its head and both ends of every tensor show. That
    /// tells another checkpoint of the same name; a single value that was changed in place, it does not.
    pub fn seems_to_be(&self, path: &Path) -> Result<bool, Error> {
        let error = |source| Error::Io { action: "read", path: path.to_owned(), source };
        let mut file = match fs::File::open(path) {
            Ok(file) => file,
            Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(other) => return Err(error(other)),
        };
        let head = self.head()?;
        let pieces = self.pieces(&head);
        if file.metadata().map_err(error)?.len() != pieces.iter().map(|piece| piece.len() as u64).sum::<u64>()
        {
            return Ok(false);
        }
        stream::ends_match(&pieces, &mut file).map_err(error)
    }

    /// Writes the checkpoint to its place below `models_dir` and says where that is. The file appears under its
    /// name only when it is whole.
    pub fn write_to(&self, models_dir: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let path = models_dir.as_ref().join(&self.file);
        let error = |action, path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { action, path, source }
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(error("make folder", folder))?;
        }
        let mut draft = Draft::beside(&path).map_err(error("write", &path))?;
        self.stream(&mut draft)?;
        draft.replace(&path).map_err(error("rename to", &path))?;
        Ok(path)
    }

    fn head(&self) -> Result<Vec<u8>, Error> {
        let described: Vec<_> = self.tensors.iter().map(ManifestTensor::described).collect();
        match &self.metadata {
            Metadata::Safetensors(metadata) => head::safetensors(metadata, &described),
            Metadata::Gguf(values) => head::gguf(values, &described, GGUF_ALIGNMENT),
        }
    }

    /// The file from its first byte to its last.
    fn pieces<'a>(&'a self, head: &'a [u8]) -> Vec<Piece<'a>> {
        let mut pieces = vec![Piece::Copy(head)];
        for tensor in &self.tensors {
            pieces.extend(tensor.pieces());
            if let Metadata::Gguf(_) = self.metadata {
                let bytes = tensor.len_bytes();
                pieces
                    .push(Piece::Zeros((bytes.next_multiple_of(u64::from(GGUF_ALIGNMENT)) - bytes) as usize));
            }
        }
        pieces
    }
}

impl ManifestTensor {
    /// The stored bytes.
    pub fn bytes(&self) -> Vec<u8> {
        stream::collect(&self.pieces())
    }

    /// The values as a model reads them, that is, after rounding to the stored type. Quantised tensors give the
    /// values before quantisation.
    pub fn values(&self) -> Result<Vec<f32>, Error> {
        match (&self.source, self.encoding) {
            (Source::Procedural { rule, .. }, Encoding::Quant(_)) => Ok(rule.values(self.shape.count())),
            _ => decode(self.encoding, &self.bytes()),
        }
    }

    fn read(written: WrittenTensor) -> Result<ManifestTensor, Error> {
        let WrittenTensor { name, shape, dtype, scale, offset, raw } = written;
        let Some(encoding) = encoding(&dtype) else {
            return Err(Error::UnknownType { tensor: name, dtype });
        };
        let shape = Shape::new(&shape).map_err(|source| Error::Rank { tensor: name.clone(), source })?;
        let source = match (raw, scale, offset) {
            (Some(raw), ..) => {
                let bytes =
                    meta::base64::decode(&raw).map_err(|at| Error::Base64 { tensor: name.clone(), at })?;
                let expected = Described { name: &name, encoding, shape }.bytes()?;
                if bytes.len() as u64 != expected {
                    return Err(Error::Length { tensor: name, expected, got: bytes.len() as u64 });
                }
                Source::Embedded(bytes)
            }
            (None, Some(scale), offset) => {
                let rule = Procedural::new(&name, scale as f32, offset.unwrap_or(0.0) as f32);
                Source::Procedural { rule, encoder: encoder(encoding)? }
            }
            (None, None, _) => return Err(Error::NoValues { tensor: name }),
        };
        Ok(ManifestTensor { name, encoding, shape, source })
    }

    fn described(&self) -> Described<'_> {
        Described { name: &self.name, encoding: self.encoding, shape: self.shape }
    }

    fn len_bytes(&self) -> u64 {
        self.described().bytes().expect("Manifest::parse computed the size of every tensor")
    }

    fn pieces(&self) -> Vec<Piece<'_>> {
        match &self.source {
            Source::Embedded(bytes) => vec![Piece::Copy(bytes)],
            Source::Procedural { rule, encoder } => {
                stream::values(*rule, self.encoding, *encoder, self.shape.count() as u64).collect()
            }
        }
    }
}

impl Metadata {
    fn read(written: &WrittenManifest) -> Result<Metadata, Error> {
        let wrong = |key: &str| Error::MetadataType { file: written.file.clone(), key: key.to_owned() };
        match Path::new(&written.file).extension().and_then(|e| e.to_str()) {
            Some("safetensors") => {
                let mut pairs = Vec::new();
                for (key, value) in written.metadata.iter().flatten() {
                    pairs.push((key.clone(), value.as_str().ok_or_else(|| wrong(key))?.to_owned()));
                }
                Ok(Metadata::Safetensors(pairs))
            }
            Some("gguf") => {
                let mut pairs = Vec::new();
                for (key, value) in written.kv.iter().flatten() {
                    pairs.push((key.clone(), gguf_value(value).ok_or_else(|| wrong(key))?));
                }
                Ok(Metadata::Gguf(pairs))
            }
            _ => Err(Error::UnknownFormat { file: written.file.clone() }),
        }
    }
}

/// Manifests hold texts and 32-bit numbers.
fn gguf_value(value: &Value) -> Option<GgufValue> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        value => Some(u32::try_from(value.as_u64()?).ok()?.into()),
    }
}

/// A manifest as it stands in its file.
#[derive(Deserialize)]
struct WrittenManifest {
    file: String,
    #[serde(default)]
    config: Value,
    metadata: Option<Map<String, Value>>,
    kv: Option<Map<String, Value>>,
    tensors: Vec<WrittenTensor>,
}

/// A tensor as it stands in a manifest.
#[derive(Deserialize)]
struct WrittenTensor {
    name: String,
    shape: Vec<usize>,
    dtype: String,
    scale: Option<f64>,
    offset: Option<f64>,
    raw: Option<String>,
}

/// The encoding that a manifest calls `dtype`.
fn encoding(dtype: &str) -> Option<Encoding> {
    Some(match dtype {
        "F32" => Encoding::F32,
        "F16" => Encoding::F16,
        "BF16" => Encoding::BF16,
        "F8_E4M3" => DType::F8E4M3.into(),
        "F8_E5M2" => DType::F8E5M2.into(),
        "U8" => DType::U8.into(),
        "I64" => DType::I64.into(),
        "Q8_0" => QuantFormat::Q8_0.into(),
        "Q4_K" => QuantFormat::Q4_K.into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(file: &str, tensors: &str) -> Result<Manifest, Error> {
        Manifest::parse(&format!(
            r#"{{"file": "{file}", "config": null, "metadata": null, "tensors": [{tensors}]}}"#
        ))
    }

    #[test]
    fn embedded_and_procedural_tensors() {
        let m = manifest(
            "a/b.safetensors",
            r#"{"name": "ids", "shape": [1, 2], "dtype": "I64", "raw": "AAAAAAAAAAABAAAAAAAAAA=="},
               {"name": "alpha", "shape": [], "dtype": "F16", "scale": 0, "offset": 4.0}"#,
        )
        .unwrap();
        assert_eq!(m.parameters(), 3);
        assert_eq!(m.tensor("ids").unwrap().values().unwrap(), [0.0, 1.0]);
        assert_eq!(m.tensor("alpha").unwrap().bytes(), [0x00, 0x44]);
        assert!(matches!(m.tensor("beta"), Err(Error::Missing { what: "tensor", .. })));
    }

    #[test]
    fn the_stream_is_the_file_in_memory() {
        for name in ["flux_dev_micro-Q8_0", "flux_dev_micro_fp8_scaled"] {
            let m = Manifest::bundled(name).unwrap();
            let mut streamed = Vec::new();
            m.stream(&mut streamed).unwrap();
            assert!(streamed == m.bytes().unwrap(), "{name}");
        }
    }

    #[test]
    fn a_written_file_is_known_again_and_another_is_not() {
        let dir = crate::ScratchDir::new().unwrap();
        let m = Manifest::bundled("flux_dev_micro-Q8_0").unwrap();
        let path = m.write_to(dir.path()).unwrap();
        assert!(m.seems_to_be(&path).unwrap());
        assert!(!m.seems_to_be(&dir.join("absent.gguf")).unwrap());
        assert!(!Manifest::bundled("flux_dev_micro").unwrap().seems_to_be(&path).unwrap());
        let whole = fs::read(&path).unwrap();
        for at in [3, whole.len() - 1, whole.len() - 40] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert!(!m.seems_to_be(&path).unwrap(), "byte {at}");
        }
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(!m.seems_to_be(&path).unwrap());
    }

    #[test]
    fn says_what_is_wrong() {
        let tensor =
            |rest: &str| manifest("a.safetensors", &format!(r#"{{"name": "t", {rest}}}"#)).unwrap_err();
        for (rest, expected) in [
            (r#""shape": [2], "dtype": "F12", "scale": 1, "offset": 0"#, "unknown type 'F12'"),
            (r#""shape": [2], "dtype": "F32", "offset": 1"#, "neither"),
            (r#""shape": [2], "dtype": "I64", "scale": 1, "offset": 0"#, "cannot be converted to i64"),
            (r#""shape": [2], "dtype": "U8", "raw": "A*A="}"#, "JSON"),
            (r#""shape": [2], "dtype": "U8", "raw": "A*A=""#, "not base64 at character 1"),
            (r#""shape": [3], "dtype": "U8", "raw": "AAA=""#, "needs 3 bytes for its shape, not 2"),
            (
                r#""shape": [1,1,1,1,1,1,1,1,1], "dtype": "F32", "scale": 1, "offset": 0"#,
                "at most 8 dimensions",
            ),
            (r#""shape": [9000000000, 9000000000], "dtype": "F32", "scale": 1, "offset": 0"#, "64-bit"),
            (
                r#""shape": [32], "dtype": "Q8_0", "scale": 1, "offset": 0"#,
                "safetensors files cannot hold Q8_0",
            ),
            (r#""shape": [-1], "dtype": "F32", "scale": 1, "offset": 0"#, "JSON"),
        ] {
            let error = tensor(rest).to_string();
            assert!(error.contains(expected), "{rest}\n{error}");
        }
        for file in ["../a.safetensors", "/a.safetensors", "a/../../b.gguf"] {
            assert!(matches!(manifest(file, ""), Err(Error::UnsafePath { .. })), "{file}");
        }
        assert!(matches!(manifest("a.bin", ""), Err(Error::UnknownFormat { .. })));
    }
}
