//! Builders of small checkpoint files, for tests that need a file with certain tensors.

use std::borrow::Cow;
use std::path::Path;

use disk::Draft;
use meta::{Encoding, Shape};

use crate::Error;
use crate::encode::encode;
use crate::head::{self, Described, GGUF_ALIGNMENT, GgufValue};

/// A tensor that waits to be written.
struct Pending<'a> {
    name: String,
    encoding: Encoding,
    shape: Shape,
    bytes: Cow<'a, [u8]>,
}

impl Pending<'_> {
    fn described(&self) -> Described<'_> {
        Described { name: &self.name, encoding: self.encoding, shape: self.shape }
    }

    fn check_length(&self) -> Result<(), Error> {
        let (expected, got) = (self.described().bytes()?, self.bytes.len() as u64);
        if expected == got { Ok(()) } else { Err(Error::Length { tensor: self.name.clone(), expected, got }) }
    }
}

/// How both writers are given tensors.
macro_rules! adding_tensors {
    () => {
        /// Adds a tensor by its stored bytes; its shape has the outermost dimension first.
        pub fn tensor(
            mut self,
            name: impl Into<String>,
            encoding: impl Into<Encoding>,
            shape: Shape,
            bytes: impl Into<Cow<'a, [u8]>>,
        ) -> Self {
            self.tensors.push(Pending {
                name: name.into(),
                encoding: encoding.into(),
                shape,
                bytes: bytes.into(),
            });
            self
        }

        /// Adds a tensor by its values, converted to `encoding`.
        pub fn values(
            self,
            name: impl Into<String>,
            encoding: impl Into<Encoding>,
            shape: Shape,
            values: &[f32],
        ) -> Result<Self, Error> {
            let encoding = encoding.into();
            Ok(self.tensor(name, encoding, shape, encode(encoding, values)?))
        }
    };
}

/// Builds a safetensors file; tensors are stored in the order given.
///
/// ```
/// # use testkit::SafetensorsWriter;
/// # use meta::{Encoding, Shape};
/// let file = SafetensorsWriter::new()
///     .metadata("format", "pt")
///     .tensor("a.weight", Encoding::F16, Shape::from([2, 2]), &[0u8; 8])
///     .values("a.bias", Encoding::F32, Shape::from([2]), &[0.5, -1.0])?
///     .finish()?;
/// assert_eq!(file.len() % 8, 0);
/// # Ok::<(), testkit::Error>(())
/// ```
#[derive(Default)]
pub struct SafetensorsWriter<'a> {
    metadata: Vec<(String, String)>,
    tensors: Vec<Pending<'a>>,
}

impl<'a> SafetensorsWriter<'a> {
    /// A file with nothing in it.
    pub fn new() -> SafetensorsWriter<'a> {
        SafetensorsWriter::default()
    }

    /// Adds a metadata string.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.push((key.into(), value.into()));
        self
    }

    adding_tensors!();

    /// The bytes of the file.
    pub fn finish(self) -> Result<Vec<u8>, Error> {
        self.tensors.iter().try_for_each(Pending::check_length)?;
        let described: Vec<_> = self.tensors.iter().map(Pending::described).collect();
        let mut file = head::safetensors(&self.metadata, &described)?;
        self.tensors.iter().for_each(|tensor| file.extend(&*tensor.bytes));
        Ok(file)
    }

    /// Writes the file.
    pub fn write(self, path: impl AsRef<Path>) -> Result<(), Error> {
        write_file(path.as_ref(), &self.finish()?)
    }
}

/// Builds a GGUF file (version 3); tensors are stored in the order given.
///
/// ```
/// # use testkit::{GgufWriter, random_blocks};
/// # use meta::{QuantFormat, Shape};
/// let blocks = random_blocks(QuantFormat::Q4_K, 1, 2);
/// let file = GgufWriter::new()
///     .value("general.architecture", "flux")
///     .value("general.file_type", 7)
///     .tensor("a.weight", QuantFormat::Q4_K, Shape::from([2, 256]), blocks)
///     .finish()?;
/// assert_eq!(&file[..4], b"GGUF");
/// # Ok::<(), testkit::Error>(())
/// ```
pub struct GgufWriter<'a> {
    values: Vec<(String, GgufValue)>,
    tensors: Vec<Pending<'a>>,
    alignment: u32,
}

impl Default for GgufWriter<'_> {
    fn default() -> Self {
        GgufWriter { values: Vec::new(), tensors: Vec::new(), alignment: GGUF_ALIGNMENT }
    }
}

impl<'a> GgufWriter<'a> {
    /// A file with nothing in it.
    pub fn new() -> GgufWriter<'a> {
        GgufWriter::default()
    }

    /// Adds a metadata value.
    pub fn value(mut self, key: impl Into<String>, value: impl Into<GgufValue>) -> Self {
        self.values.push((key.into(), value.into()));
        self
    }

    /// Aligns tensors to this many bytes instead of 32, and says so in the metadata. Must not be 0.
    pub fn alignment(mut self, alignment: u32) -> Self {
        assert!(alignment > 0, "tensors cannot be aligned to 0 bytes");
        self.alignment = alignment;
        self.value("general.alignment", alignment)
    }

    adding_tensors!();

    /// The bytes of the file.
    pub fn finish(self) -> Result<Vec<u8>, Error> {
        self.tensors.iter().try_for_each(Pending::check_length)?;
        let described: Vec<_> = self.tensors.iter().map(Pending::described).collect();
        let mut file = head::gguf(&self.values, &described, self.alignment)?;
        for tensor in &self.tensors {
            file.extend(&*tensor.bytes);
            file.resize(file.len().next_multiple_of(self.alignment as usize), 0);
        }
        Ok(file)
    }

    /// Writes the file.
    pub fn write(self, path: impl AsRef<Path>) -> Result<(), Error> {
        write_file(path.as_ref(), &self.finish()?)
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    // What tests write need not outlast a loss of power.
    let folder = path.parent().unwrap_or(Path::new("."));
    let written = Draft::of(folder, bytes).and_then(|draft| draft.replace(path));
    written.map_err(|source| Error::Io { action: "write", path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::{DType, QuantFormat};

    #[test]
    fn a_safetensors_file_by_hand() {
        let file = SafetensorsWriter::new()
            .metadata("k", "é")
            .tensor("a", DType::U8, Shape::from([3]), &[1u8, 2, 3])
            .values("b", DType::F16, Shape::scalar(), &[1.0])
            .unwrap()
            .finish()
            .unwrap();
        let json = concat!(
            r#"{"__metadata__":{"k":"\u00e9"},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"#,
            r#""b":{"dtype":"F16","shape":[],"data_offsets":[3,5]}}"#
        );
        let padded = json.len().next_multiple_of(8);
        assert_eq!(file[..8], (padded as u64).to_le_bytes());
        assert_eq!(file[8..8 + padded], *format!("{json:padded$}").as_bytes());
        assert_eq!(file[8 + padded..], [1, 2, 3, 0x00, 0x3C]);
    }

    #[test]
    fn an_empty_safetensors_file() {
        assert_eq!(SafetensorsWriter::new().finish().unwrap(), *b"\x08\0\0\0\0\0\0\0{}      ");
    }

    #[test]
    fn a_gguf_file_by_hand() {
        let file = GgufWriter::new()
            .alignment(16)
            .value("l", GgufValue::Array(vec![GgufValue::Bool(true), GgufValue::Bool(false)]))
            .tensor("t", QuantFormat::Q8_0, Shape::from([1, 32]), vec![7u8; 34])
            .tensor("u", DType::I8, Shape::from([2, 1]), vec![9u8; 2])
            .finish()
            .unwrap();
        let mut expected = b"GGUF\x03\0\0\0".to_vec();
        let number = |n: u64| n.to_le_bytes();
        expected.extend([number(2), number(2), number(17)].concat());
        expected.extend(b"general.alignment\x04\0\0\0\x10\0\0\0");
        expected.extend(number(1));
        expected.extend(b"l\x09\0\0\0\x07\0\0\0");
        expected.extend(number(2));
        expected.extend([1, 0]);
        expected.extend(number(1));
        expected.extend(b"t\x02\0\0\0");
        expected.extend([number(32), number(1)].concat());
        expected.extend(b"\x08\0\0\0");
        expected.extend(number(0));
        expected.extend(number(1));
        expected.extend(b"u\x02\0\0\0");
        expected.extend([number(1), number(2)].concat());
        expected.extend(b"\x18\0\0\0");
        expected.extend(number(48));
        expected.resize(expected.len().next_multiple_of(16), 0);
        expected.extend([[7; 34].as_slice(), &[0; 14], &[9; 2], &[0; 14]].concat());
        assert_eq!(file, expected);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let shape = Shape::from([2]);
        let short = SafetensorsWriter::new().tensor("a", DType::F32, shape, vec![0; 7]).finish();
        assert!(matches!(short, Err(Error::Length { expected: 8, got: 7, .. })), "{short:?}");
        let twice = GgufWriter::new().tensor("a", DType::I8, shape, vec![0; 2]).tensor(
            "a",
            DType::I8,
            shape,
            vec![0; 2],
        );
        assert!(matches!(twice.finish(), Err(Error::Duplicate { .. })));
        let blocks =
            SafetensorsWriter::new().tensor("a", QuantFormat::Q8_0, Shape::from([32]), vec![0; 34]).finish();
        assert!(matches!(blocks, Err(Error::Unstorable { format: "safetensors", .. })), "{blocks:?}");
        let unsigned = GgufWriter::new().tensor("a", DType::U8, shape, vec![0; 2]).finish();
        assert!(matches!(unsigned, Err(Error::Unstorable { format: "GGUF", .. })), "{unsigned:?}");
        let mixed = GgufWriter::new().value("k", GgufValue::Array(vec![1.into(), "x".into()])).finish();
        assert!(matches!(mixed, Err(Error::MixedArray { .. })), "{mixed:?}");
    }
}
