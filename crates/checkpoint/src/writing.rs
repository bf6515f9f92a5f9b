//! Safetensors files that are to be written: the head that says what is in them, and where every tensor's bytes go
//! behind it. Whoever has the bytes writes them there, in one piece or from many threads.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use meta::{DType, Encoding, Shape};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::checkpoint::MAX_ENTRIES;
use crate::safetensors::{LENGTH_BYTES, METADATA_FIELD, dtype_name};
use crate::{Error, HeaderFault, MAX_NAME_BYTES, MAX_SAFETENSORS_HEADER_BYTES, TensorFault};

/// Tensors begin at a multiple of this, as the format's own writer has it.
const ALIGNMENT: usize = 8;

/// A tensor that is to be written.
#[derive(Clone, Debug)]
pub struct NewTensor {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
}

/// The beginning of a safetensors file, and where each tensor's bytes stand in it.
#[derive(Clone, Debug)]
pub struct SafetensorsHead {
    bytes: Vec<u8>,
    places: Vec<Range<u64>>,
}

impl SafetensorsHead {
    /// The head of a file with these texts and tensors, whose bytes follow in this order without a gap. `file` is what
    /// errors call it.
    ///
    /// # Errors
    /// A name is used twice or is too long, a tensor has no size, or there are more of them than a reader takes.
    pub fn new(
        file: &Path,
        texts: &[(String, String)],
        tensors: &[NewTensor],
    ) -> Result<SafetensorsHead, Error> {
        let header = |fault| Error::Header { file: file.to_owned(), fault };
        if tensors.len() as u64 > MAX_ENTRIES {
            let count = tensors.len() as u64;
            return Err(header(HeaderFault::TooManyTensors { count, limit: MAX_ENTRIES }));
        }
        let described = describe(file, tensors)?;
        let json = serde_json::to_vec(&Header { texts, tensors, described: &described })
            .map_err(|error| header(HeaderFault::Json { reason: error.to_string() }))?;
        let length = json.len().next_multiple_of(ALIGNMENT);
        if length as u64 > MAX_SAFETENSORS_HEADER_BYTES {
            let (bytes, limit) = (length as u64, MAX_SAFETENSORS_HEADER_BYTES);
            return Err(header(HeaderFault::TooLarge { bytes, limit }));
        }
        let mut bytes = (length as u64).to_le_bytes().to_vec();
        bytes.extend(json);
        bytes.resize(LENGTH_BYTES + length, b' ');
        let start = bytes.len() as u64;
        let places = described.into_iter().map(|tensor| start + tensor.begin..start + tensor.end).collect();
        Ok(SafetensorsHead { bytes, places })
    }

    /// The bytes before the first tensor's.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where each tensor's bytes stand in the file, in the order in which the tensors were given.
    pub fn places(&self) -> &[Range<u64>] {
        &self.places
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.places.last().map_or(self.bytes.len() as u64, |last| last.end)
    }
}

/// Where a tensor's bytes stand behind the head, and the name of its type.
struct Described {
    dtype: &'static str,
    begin: u64,
    end: u64,
}

fn describe(file: &Path, tensors: &[NewTensor]) -> Result<Vec<Described>, Error> {
    let mut names = HashSet::new();
    let mut end = 0u64;
    let mut described = Vec::with_capacity(tensors.len());
    for (number, tensor) in tensors.iter().enumerate() {
        let fault = |fault: TensorFault| Error::Tensor {
            file: file.to_owned(),
            tensor: tensor.name.clone(),
            fault: Box::new(fault),
        };
        let bytes = tensor.name.len() as u64;
        if bytes > MAX_NAME_BYTES {
            let (what, number, limit) = ("tensor", number as u64, MAX_NAME_BYTES);
            let fault = HeaderFault::NameTooLong { what, number, bytes, limit };
            return Err(Error::Header { file: file.to_owned(), fault });
        }
        // The field of the texts is a name that is taken.
        if tensor.name == METADATA_FIELD || !names.insert(&tensor.name) {
            return Err(fault(TensorFault::Duplicate { also_in: None }));
        }
        let dtype = dtype_name(tensor.dtype)
            .ok_or_else(|| fault(TensorFault::UnknownDtype { dtype: tensor.dtype.name().to_owned() }))?;
        let len = Encoding::Plain(tensor.dtype).bytes(&tensor.shape).map_err(|error| fault(error.into()))?;
        let begin = end;
        end = begin.checked_add(len).ok_or_else(|| fault(TensorFault::Beyond { offset: begin, len }))?;
        described.push(Described { dtype, begin, end });
    }
    Ok(described)
}

/// The JSON of a head: texts first, then tensors in their order.
struct Header<'a> {
    texts: &'a [(String, String)],
    tensors: &'a [NewTensor],
    described: &'a [Described],
}

/// The texts of a head.
struct Texts<'a>(&'a [(String, String)]);

#[derive(serde::Serialize)]
struct Description<'a> {
    dtype: &'static str,
    shape: &'a [usize],
    data_offsets: [u64; 2],
}

impl Serialize for Header<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.texts.is_empty() {
            map.serialize_entry(METADATA_FIELD, &Texts(self.texts))?;
        }
        for (tensor, Described { dtype, begin, end }) in self.tensors.iter().zip(self.described) {
            let description = Description { dtype, shape: tensor.shape.dims(), data_offsets: [*begin, *end] };
            map.serialize_entry(&tensor.name, &description)?;
        }
        map.end()
    }
}

impl Serialize for Texts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checkpoint;

    fn tensor(name: &str, dtype: DType, shape: &[usize]) -> NewTensor {
        NewTensor { name: name.to_owned(), dtype, shape: Shape::new(shape).unwrap() }
    }

    fn head(texts: &[(String, String)], tensors: &[NewTensor]) -> Result<SafetensorsHead, Error> {
        SafetensorsHead::new(Path::new("new.safetensors"), texts, tensors)
    }

    #[test]
    fn what_is_written_is_read_again() {
        let texts = [("prompt".to_owned(), "a \"red\" füchs\n".to_owned())];
        let tensors = [
            tensor("b", DType::F32, &[1, 2]),
            tensor("empty", DType::F32, &[0]),
            tensor("a.weight", DType::BF16, &[3]),
            tensor("flag", DType::Bool, &[]),
        ];
        let head = head(&texts, &tensors).unwrap();
        assert!(head.bytes().len().is_multiple_of(ALIGNMENT));
        let mut file = head.bytes().to_vec();
        file.extend((0..15u8).collect::<Vec<_>>());
        assert_eq!(file.len() as u64, head.file_bytes());
        let read = Checkpoint::from_memory(("new", file.clone().into()), Vec::new()).unwrap();
        assert_eq!(read.metadata().str("prompt"), Some(texts[0].1.as_str()));
        assert_eq!(read.entries().len(), tensors.len());
        for (place, tensor) in head.places().iter().zip(&tensors) {
            let entry = read.entry(&tensor.name).unwrap();
            assert_eq!(*entry.shape(), tensor.shape, "{}", tensor.name);
            assert_eq!(entry.encoding(), Encoding::Plain(tensor.dtype));
            let stands = &file[place.start as usize..place.end as usize];
            assert_eq!(read.bytes(entry), stands, "{}", tensor.name);
        }
    }

    #[test]
    fn a_file_without_anything_is_one() {
        let head = head(&[], &[]).unwrap();
        assert_eq!(head.bytes(), b"\x08\0\0\0\0\0\0\0{}      ");
        assert_eq!(head.file_bytes(), 16);
    }

    #[test]
    fn what_no_reader_takes_is_refused() {
        let long = "x".repeat(MAX_NAME_BYTES as usize + 1);
        for (tensors, said) in [
            (vec![tensor("a", DType::F32, &[1]), tensor("a", DType::F16, &[2])], "the name is used twice"),
            (vec![tensor("__metadata__", DType::F32, &[1])], "the name is used twice"),
            (vec![tensor(&long, DType::F32, &[1])], "the limit is"),
            (vec![tensor("a", DType::F64, &[usize::MAX, 2])], "new.safetensors"),
            (vec![tensor("a", DType::U8, &[usize::MAX]), tensor("b", DType::U8, &[usize::MAX])], "64-bit"),
        ] {
            let error = head(&[], &tensors).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
