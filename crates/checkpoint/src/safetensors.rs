//! Safetensors: eight bytes of header length, a JSON header, then the tensors' bytes without a gap.
//!
//! The header is read by a streaming visitor that makes each tensor an [`Entry`] as it passes, so that
//! memory stays in proportion to the header. As in the format's reference reader, unknown fields are
//! ignored and every byte after the header must belong to exactly one tensor.

use std::fmt;
use std::sync::Arc;

use meta::{DType, Encoding, MAX_RANK, Shape};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::checkpoint::{MAX_ENTRIES, Parsed};
use crate::error::excerpt;
use crate::layout::{check_layout, check_reaches};
use crate::metadata::{Metadata, Pair, Stored};
use crate::source::Source;
use crate::{Entry, Error, HeaderFault, MAX_NAME_BYTES, TensorFault};

/// The longest safetensors header, in bytes: the limit of the format's reference reader.
pub const MAX_SAFETENSORS_HEADER_BYTES: u64 = 100_000_000;

/// Bytes of the header length at the start of the file.
pub(crate) const LENGTH_BYTES: usize = 8;

/// The header field that holds text about the file instead of a tensor.
pub(crate) const METADATA_FIELD: &str = "__metadata__";

/// Reads the header of a file that was recognised as safetensors.
pub(crate) fn parse(source: &Arc<Source>, file: u32) -> Result<Parsed, Error> {
    let header = header_bytes(source)?;
    let data_start = (LENGTH_BYTES + header.len()) as u64;
    let mut collector = Collector::new(source, file, data_start);
    let mut json = serde_json::Deserializer::from_slice(header);
    let read = HeaderSeed(&mut collector).deserialize(&mut json).and_then(|()| json.end());
    if let Err(error) = read {
        return Err(collector.explain(&error));
    }
    let Collector { mut entries, pairs, .. } = collector;
    entries.shrink_to_fit();
    let end = check_layout(source, &entries, Some(data_start))?;
    check_reaches(source, end)?;
    match source.len() - end {
        0 => Ok(Parsed { entries, metadata: Metadata::new(Arc::clone(source), pairs)? }),
        bytes => Err(source.header_error(HeaderFault::LeftoverBytes { bytes })),
    }
}

/// Where the header of a safetensors file ends, by the first bytes of it; nothing if no such file begins so.
#[must_use]
pub fn safetensors_header_end(first: &[u8]) -> Option<u64> {
    let length = u64::from_le_bytes(*first.first_chunk::<LENGTH_BYTES>()?);
    (1..=MAX_SAFETENSORS_HEADER_BYTES).contains(&length).then_some(length + LENGTH_BYTES as u64)
}

/// The JSON, after checking its length against the limit and the file.
fn header_bytes(source: &Source) -> Result<&[u8], Error> {
    let bytes = source.bytes();
    let truncated =
        |expected| Error::TruncatedHeader { file: source.path().to_owned(), expected, got: source.len() };
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(truncated(None));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_SAFETENSORS_HEADER_BYTES {
        let limit = MAX_SAFETENSORS_HEADER_BYTES;
        return Err(source.header_error(HeaderFault::TooLarge { bytes: length, limit }));
    }
    rest.get(..length as usize).ok_or_else(|| truncated(Some(length + LENGTH_BYTES as u64)))
}

/// The names that safetensors has for element types.
const DTYPES: [(&str, DType); 16] = [
    ("F64", DType::F64),
    ("F32", DType::F32),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("F8_E4M3", DType::F8E4M3),
    ("F8_E5M2", DType::F8E5M2),
    ("I64", DType::I64),
    ("I32", DType::I32),
    ("I16", DType::I16),
    ("I8", DType::I8),
    ("U64", DType::U64),
    ("U32", DType::U32),
    ("U16", DType::U16),
    ("U8", DType::U8),
    ("BOOL", DType::Bool),
    // Exponents of block scales: nothing takes them for numbers of their own, so they are bytes.
    ("F8_E8M0", DType::U8),
];

/// The element type that a safetensors dtype names.
fn dtype(name: &str) -> Option<DType> {
    DTYPES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
}

/// The name that safetensors has for an element type.
pub(crate) fn dtype_name(dtype: DType) -> Option<&'static str> {
    DTYPES.iter().find(|(_, known)| *known == dtype).map(|(name, _)| *name)
}

/// What the visitors have read so far. JSON errors carry only text, so a typed error waits in `refused`.
struct Collector<'a> {
    source: &'a Source,
    file: u32,
    data_start: u64,
    entries: Vec<Entry>,
    pairs: Vec<Pair>,
    has_metadata: bool,
    /// The tensor whose description is being read.
    reading: Option<Box<str>>,
    refused: Option<Error>,
}

impl<'a> Collector<'a> {
    fn new(source: &'a Source, file: u32, data_start: u64) -> Collector<'a> {
        Collector {
            source,
            file,
            data_start,
            entries: Vec::new(),
            pairs: Vec::new(),
            has_metadata: false,
            reading: None,
            refused: None,
        }
    }

    /// The typed error behind a failed read.
    fn explain(self, error: &serde_json::Error) -> Error {
        let reason = error.to_string();
        match (self.refused, self.reading) {
            (Some(refused), _) => refused,
            (None, Some(name)) => self.source.tensor_error(&name, TensorFault::Json { reason }),
            (None, None) => self.source.header_error(HeaderFault::Json { reason }),
        }
    }

    /// Keeps `error` and gives the JSON reader a reason to stop.
    fn refuse<E: serde::de::Error>(&mut self, error: Error) -> E {
        let stop = E::custom(&error);
        self.refused = Some(error);
        stop
    }

    /// Checks one tensor's description and adds it to the entries.
    fn push(&mut self, name: Box<str>, described: &Description) -> Result<(), Error> {
        let source = self.source;
        if self.entries.len() as u64 >= MAX_ENTRIES {
            let count = self.entries.len() as u64 + 1;
            return Err(source.header_error(HeaderFault::TooManyTensors { count, limit: MAX_ENTRIES }));
        }
        let fault = |fault| source.tensor_error(&name, fault);
        let dtype = match &described.dtype {
            DtypeName::Known(dtype) => *dtype,
            DtypeName::Unknown(name) => return Err(fault(TensorFault::UnknownDtype { dtype: name.clone() })),
        };
        let shape = described.shape.to_shape().map_err(fault)?;
        let encoding = Encoding::Plain(dtype);
        let expected = encoding.bytes(&shape).map_err(|error| fault(error.into()))?;
        let (begin, end) = described.data_offsets;
        let got = end.checked_sub(begin).ok_or_else(|| fault(TensorFault::Offsets { begin, end }))?;
        if got != expected {
            return Err(fault(TensorFault::Length { shape, expected, got }));
        }
        let beyond = || fault(TensorFault::Beyond { offset: begin, len: got });
        let stop = self.data_start.checked_add(end).ok_or_else(beyond)?;
        self.entries.push(Entry::new(name, encoding, shape, self.file, stop - got..stop));
        Ok(())
    }

    /// Whether a name is short enough to be kept.
    fn check_name(&self, name: &str) -> Result<(), Error> {
        let (bytes, limit) = (name.len() as u64, MAX_NAME_BYTES);
        if bytes <= limit {
            return Ok(());
        }
        let number = self.entries.len() as u64;
        Err(self.source.header_error(HeaderFault::NameTooLong { what: "tensor", number, bytes, limit }))
    }
}

/// Reads the whole header object.
struct HeaderSeed<'c, 'a>(&'c mut Collector<'a>);

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensor descriptions")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let collector = self.0;
        while let Some(name) = map.next_key_seed(NameSeed(collector))? {
            if &*name == METADATA_FIELD {
                if std::mem::replace(&mut collector.has_metadata, true) {
                    return Err(A::Error::custom("__metadata__ is there twice"));
                }
                map.next_value_seed(MetadataSeed(&mut collector.pairs))?;
                continue;
            }
            collector.reading = Some(name);
            let described: Description = map.next_value()?;
            if let Some(name) = collector.reading.take() {
                collector.push(name, &described).map_err(|error| collector.refuse(error))?;
            }
        }
        Ok(())
    }
}

/// Reads a name, refusing one that is too long before it is copied.
struct NameSeed<'c, 'a>(&'c mut Collector<'a>);

impl<'de> DeserializeSeed<'de> for NameSeed<'_, '_> {
    type Value = Box<str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Box<str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for NameSeed<'_, '_> {
    type Value = Box<str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tensor's name")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Box<str>, E> {
        match self.0.check_name(name) {
            Ok(()) => Ok(name.into()),
            Err(error) => Err(self.0.refuse(error)),
        }
    }
}

/// Reads `__metadata__`: text by key, or null.
struct MetadataSeed<'c>(&'c mut Vec<Pair>);

impl<'de> DeserializeSeed<'de> for MetadataSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((key, value)) = map.next_entry::<Box<str>, Box<str>>()? {
            self.0.push(Pair { key, value: Stored::Text(value) });
        }
        Ok(())
    }
}

/// One tensor's fields, before they are checked.
#[derive(serde::Deserialize)]
struct Description {
    dtype: DtypeName,
    shape: Dimensions,
    data_offsets: (u64, u64),
}

enum DtypeName {
    Known(DType),
    /// Shortened: only an error will repeat it.
    Unknown(String),
}

impl<'de> serde::Deserialize<'de> for DtypeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DtypeName, D::Error> {
        struct DtypeVisitor;
        impl Visitor<'_> for DtypeVisitor {
            type Value = DtypeName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a dtype such as \"F16\"")
            }

            fn visit_str<E>(self, name: &str) -> Result<DtypeName, E> {
                Ok(dtype(name).map_or_else(|| DtypeName::Unknown(excerpt(name)), DtypeName::Known))
            }
        }
        deserializer.deserialize_str(DtypeVisitor)
    }
}

/// Dimensions as the file lists them: the first eight, and how many there are.
struct Dimensions {
    sizes: [u64; MAX_RANK],
    rank: u64,
}

impl Dimensions {
    fn to_shape(&self) -> Result<Shape, TensorFault> {
        let too_many = TensorFault::Rank { rank: self.rank };
        if self.rank > MAX_RANK as u64 {
            return Err(too_many);
        }
        let mut dims = [0; MAX_RANK];
        for (dim, &size) in dims.iter_mut().zip(&self.sizes) {
            *dim = usize::try_from(size).map_err(|_| TensorFault::Dimension { size })?;
        }
        Shape::new(&dims[..self.rank as usize]).map_err(|_| too_many)
    }
}

impl<'de> serde::Deserialize<'de> for Dimensions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Dimensions, D::Error> {
        struct DimensionsVisitor;
        impl<'de> Visitor<'de> for DimensionsVisitor {
            type Value = Dimensions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dimensions, A::Error> {
                let mut read = Dimensions { sizes: [0; MAX_RANK], rank: 0 };
                for size in &mut read.sizes {
                    let Some(next) = seq.next_element()? else { return Ok(read) };
                    *size = next;
                    read.rank += 1;
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    read.rank += 1;
                }
                Ok(read)
            }
        }
        deserializer.deserialize_seq(DimensionsVisitor)
    }
}
