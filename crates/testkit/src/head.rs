//! What stands before the tensors' bytes in the two file formats. The manifests' checkpoints and the writers
//! for tests share these, byte for byte as the reference generator writes them.

use std::collections::HashSet;
use std::fmt::Write;

use meta::{DType, Encoding, QuantFormat, Shape};

use crate::Error;

/// Alignment of tensors in a GGUF file that does not say otherwise.
pub(crate) const GGUF_ALIGNMENT: u32 = 32;

/// One tensor as a head describes it.
#[derive(Clone, Copy)]
pub(crate) struct Described<'a> {
    pub(crate) name: &'a str,
    pub(crate) encoding: Encoding,
    pub(crate) shape: Shape,
}

impl Described<'_> {
    /// Bytes of the tensor.
    pub(crate) fn bytes(&self) -> Result<u64, Error> {
        self.encoding
            .bytes(&self.shape)
            .map_err(|source| Error::Size { tensor: self.name.to_owned(), source })
    }
}

/// A safetensors head: length, JSON with no spaces and only ASCII, padding to eight bytes.
pub(crate) fn safetensors(
    metadata: &[(String, String)],
    tensors: &[Described<'_>],
) -> Result<Vec<u8>, Error> {
    refuse_duplicates(tensors)?;
    let mut json = String::from("{");
    if !metadata.is_empty() {
        let pairs: Vec<String> =
            metadata.iter().map(|(k, v)| format!("{}:{}", quoted(k), quoted(v))).collect();
        let _ = write!(json, "\"__metadata__\":{{{}}},", pairs.join(","));
    }
    let mut at = 0u64;
    for tensor in tensors {
        let dtype = safetensors_type(tensor.encoding).ok_or_else(|| Error::Unstorable {
            tensor: tensor.name.to_owned(),
            format: "safetensors",
            encoding: tensor.encoding,
        })?;
        let dims: Vec<String> = tensor.shape.dims().iter().map(usize::to_string).collect();
        let end = at.checked_add(tensor.bytes()?).ok_or_else(|| too_large(tensor))?;
        let (name, dims) = (quoted(tensor.name), dims.join(","));
        let _ = write!(
            json,
            "{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{dims}],\"data_offsets\":[{at},{end}]}},"
        );
        at = end;
    }
    if json.ends_with(',') {
        json.pop();
    }
    json.push('}');
    while !json.len().is_multiple_of(8) {
        json.push(' ');
    }
    let mut head = (json.len() as u64).to_le_bytes().to_vec();
    head.extend(json.as_bytes());
    Ok(head)
}

/// A value of GGUF metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// Unsigned 8-bit number.
    U8(u8),
    /// Signed 8-bit number.
    I8(i8),
    /// Unsigned 16-bit number.
    U16(u16),
    /// Signed 16-bit number.
    I16(i16),
    /// Unsigned 32-bit number.
    U32(u32),
    /// Signed 32-bit number.
    I32(i32),
    /// 32-bit float.
    F32(f32),
    /// True or false.
    Bool(bool),
    /// Text.
    String(String),
    /// Values of one type; an empty array is one of `U8`.
    Array(Vec<GgufValue>),
    /// Unsigned 64-bit number.
    U64(u64),
    /// Signed 64-bit number.
    I64(i64),
    /// 64-bit float.
    F64(f64),
}

impl GgufValue {
    /// The number of the value's type in the format.
    fn type_id(&self) -> u32 {
        match self {
            GgufValue::U8(_) => 0,
            GgufValue::I8(_) => 1,
            GgufValue::U16(_) => 2,
            GgufValue::I16(_) => 3,
            GgufValue::U32(_) => 4,
            GgufValue::I32(_) => 5,
            GgufValue::F32(_) => 6,
            GgufValue::Bool(_) => 7,
            GgufValue::String(_) => 8,
            GgufValue::Array(_) => 9,
            GgufValue::U64(_) => 10,
            GgufValue::I64(_) => 11,
            GgufValue::F64(_) => 12,
        }
    }

    /// Appends the value without its type.
    fn append_to(&self, key: &str, out: &mut Vec<u8>) -> Result<(), Error> {
        match self {
            GgufValue::U8(v) => out.push(*v),
            GgufValue::I8(v) => out.extend(v.to_le_bytes()),
            GgufValue::U16(v) => out.extend(v.to_le_bytes()),
            GgufValue::I16(v) => out.extend(v.to_le_bytes()),
            GgufValue::U32(v) => out.extend(v.to_le_bytes()),
            GgufValue::I32(v) => out.extend(v.to_le_bytes()),
            GgufValue::F32(v) => out.extend(v.to_le_bytes()),
            GgufValue::Bool(v) => out.push(u8::from(*v)),
            GgufValue::String(v) => append_text(v, out),
            GgufValue::U64(v) => out.extend(v.to_le_bytes()),
            GgufValue::I64(v) => out.extend(v.to_le_bytes()),
            GgufValue::F64(v) => out.extend(v.to_le_bytes()),
            GgufValue::Array(values) => {
                let type_id = values.first().map_or(0, GgufValue::type_id);
                out.extend(type_id.to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                for value in values {
                    if value.type_id() != type_id {
                        return Err(Error::MixedArray { key: key.to_owned() });
                    }
                    value.append_to(key, out)?;
                }
            }
        }
        Ok(())
    }
}

impl From<&str> for GgufValue {
    fn from(text: &str) -> GgufValue {
        GgufValue::String(text.to_owned())
    }
}

impl From<String> for GgufValue {
    fn from(text: String) -> GgufValue {
        GgufValue::String(text)
    }
}

impl From<u32> for GgufValue {
    fn from(number: u32) -> GgufValue {
        GgufValue::U32(number)
    }
}

/// A GGUF head, version 3, padded so that the first tensor can follow.
pub(crate) fn gguf(
    values: &[(String, GgufValue)],
    tensors: &[Described<'_>],
    alignment: u32,
) -> Result<Vec<u8>, Error> {
    refuse_duplicates(tensors)?;
    let mut head = b"GGUF".to_vec();
    head.extend(3u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((values.len() as u64).to_le_bytes());
    for (key, value) in values {
        append_text(key, &mut head);
        head.extend(value.type_id().to_le_bytes());
        value.append_to(key, &mut head)?;
    }
    let mut at = 0u64;
    for tensor in tensors {
        let type_id = ggml_type(tensor.encoding).ok_or_else(|| Error::Unstorable {
            tensor: tensor.name.to_owned(),
            format: "GGUF",
            encoding: tensor.encoding,
        })?;
        append_text(tensor.name, &mut head);
        head.extend((tensor.shape.rank() as u32).to_le_bytes());
        for &dim in tensor.shape.dims().iter().rev() {
            head.extend((dim as u64).to_le_bytes());
        }
        head.extend(type_id.to_le_bytes());
        head.extend(at.to_le_bytes());
        let bytes = tensor.bytes()?;
        at = bytes
            .checked_next_multiple_of(u64::from(alignment))
            .and_then(|n| at.checked_add(n))
            .ok_or_else(|| too_large(tensor))?;
    }
    head.resize(head.len().next_multiple_of(alignment as usize), 0);
    Ok(head)
}

fn append_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn refuse_duplicates(tensors: &[Described<'_>]) -> Result<(), Error> {
    let mut seen = HashSet::new();
    match tensors.iter().find(|tensor| !seen.insert(tensor.name)) {
        Some(tensor) => Err(Error::Duplicate { tensor: tensor.name.to_owned() }),
        None => Ok(()),
    }
}

fn too_large(tensor: &Described<'_>) -> Error {
    let source = meta::SizeError::Overflow { shape: tensor.shape, encoding: tensor.encoding };
    Error::Size { tensor: tensor.name.to_owned(), source }
}

/// A JSON string in which everything but printable ASCII is escaped, as Python writes it by default.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
    out
}

/// The name of an element type in safetensors, which holds no quantised blocks.
fn safetensors_type(encoding: Encoding) -> Option<&'static str> {
    Some(match encoding.dtype()? {
        DType::F64 => "F64",
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::F8E4M3 => "F8_E4M3",
        DType::F8E5M2 => "F8_E5M2",
        DType::I64 => "I64",
        DType::I32 => "I32",
        DType::I16 => "I16",
        DType::I8 => "I8",
        DType::U64 => "U64",
        DType::U32 => "U32",
        DType::U16 => "U16",
        DType::U8 => "U8",
        DType::Bool => "BOOL",
    })
}

/// The number of an encoding in GGUF, which holds no unsigned numbers and no 8-bit floats.
fn ggml_type(encoding: Encoding) -> Option<u32> {
    Some(match encoding {
        Encoding::Plain(DType::F32) => 0,
        Encoding::Plain(DType::F16) => 1,
        Encoding::Quant(QuantFormat::Q4_0) => 2,
        Encoding::Quant(QuantFormat::Q4_1) => 3,
        Encoding::Quant(QuantFormat::Q5_0) => 6,
        Encoding::Quant(QuantFormat::Q5_1) => 7,
        Encoding::Quant(QuantFormat::Q8_0) => 8,
        Encoding::Quant(QuantFormat::Q2_K) => 10,
        Encoding::Quant(QuantFormat::Q3_K) => 11,
        Encoding::Quant(QuantFormat::Q4_K) => 12,
        Encoding::Quant(QuantFormat::Q5_K) => 13,
        Encoding::Quant(QuantFormat::Q6_K) => 14,
        Encoding::Quant(QuantFormat::IQ2_XXS) => 16,
        Encoding::Quant(QuantFormat::IQ2_XS) => 17,
        Encoding::Quant(QuantFormat::IQ3_XXS) => 18,
        Encoding::Quant(QuantFormat::IQ1_S) => 19,
        Encoding::Quant(QuantFormat::IQ4_NL) => 20,
        Encoding::Quant(QuantFormat::IQ3_S) => 21,
        Encoding::Quant(QuantFormat::IQ2_S) => 22,
        Encoding::Quant(QuantFormat::IQ4_XS) => 23,
        Encoding::Plain(DType::I8) => 24,
        Encoding::Plain(DType::I16) => 25,
        Encoding::Plain(DType::I32) => 26,
        Encoding::Plain(DType::I64) => 27,
        Encoding::Plain(DType::F64) => 28,
        Encoding::Plain(DType::BF16) => 30,
        Encoding::Plain(_) | Encoding::Scaled(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_strings_are_escaped_as_python_does() {
        assert_eq!(quoted(r#"{"a": "b\c"}"#), r#""{\"a\": \"b\\c\"}""#);
        assert_eq!(
            quoted("é\u{7f}\u{1f}\n\t\u{8}\u{c}\r😀~"),
            "\"\\u00e9\\u007f\\u001f\\n\\t\\b\\f\\r\\ud83d\\ude00~\""
        );
    }

    #[test]
    fn numbers_of_the_types_differ() {
        let all = QuantFormat::ALL.map(Encoding::from).into_iter().chain(DType::ALL.map(Encoding::from));
        let numbers: Vec<u32> = all.filter_map(ggml_type).collect();
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), numbers.len());
        assert_eq!(numbers.len(), 18 + 8);
    }
}
