//! Weights cast to 8 bits when a model is loaded, as `weight_dtype` asks.

use std::sync::Arc;

use checkpoint::{Checkpoint, Entry};
use meta::{DType, Encoding};
use rayon::prelude::*;
use serde_json::{Map, Value, json};

use super::decode_values;
use crate::{Error, Result};

/// The type that weights are cast to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cast {
    /// 4 bits of exponent, 3 of mantissa, no infinity.
    E4M3,
    /// 5 bits of exponent, 2 of mantissa.
    E5M2,
}

impl Cast {
    /// The cast that a loader's `weight_dtype` means; none for `default`.
    pub(crate) fn from_weight_dtype(name: &str) -> Option<Cast> {
        match name {
            "fp8_e4m3fn" | "fp8_e4m3fn_fast" => Some(Cast::E4M3),
            "fp8_e5m2" => Some(Cast::E5M2),
            _ => None,
        }
    }

    fn stored_name(self) -> &'static str {
        match self {
            Cast::E4M3 => "F8_E4M3",
            Cast::E5M2 => "F8_E5M2",
        }
    }

    /// A value rounded to nearest even, as PyTorch converts: what is too large for e4m3 has no value, and is
    /// infinite in e5m2.
    fn byte(self, value: f32) -> u8 {
        let (mantissa, bias) = match self {
            Cast::E4M3 => (3u32, 7i32),
            Cast::E5M2 => (2, 15),
        };
        let (sign, not_a_number, too_large) = match self {
            Cast::E4M3 => (u8::from(value.is_sign_negative()) << 7, 0x7f, 0x7f),
            Cast::E5M2 => (u8::from(value.is_sign_negative()) << 7, 0x7f, 0x7c),
        };
        if value.is_nan() {
            return sign | not_a_number;
        }
        // Below the smallest normal value, steps are as wide as there.
        let exponent = ((value.to_bits() >> 23 & 0xff) as i32 - 127).max(1 - bias);
        let steps = (f64::from(value.abs()) * 2f64.powi(mantissa as i32 - exponent)).round_ties_even();
        // Counted from the smallest step on, the bytes of positive values are consecutive numbers.
        let number = steps + f64::from((exponent + bias - 1) << mantissa);
        if number >= f64::from(too_large) { sign | too_large } else { sign | number as u8 }
    }

    /// The same file with its 16- and 32-bit weights cast. A file whose weights have scales beside them is
    /// 8 bits wide already, and comes back as it is.
    pub(crate) fn apply(self, file: &Arc<Checkpoint>) -> Result<Arc<Checkpoint>> {
        if file.entries().iter().any(|entry| file.is_companion(entry)) {
            return Ok(Arc::clone(file));
        }
        let plain = |entry: &Entry| {
            matches!(entry.encoding(), Encoding::Plain(DType::F32 | DType::F16 | DType::BF16))
        };
        let parts: Vec<Vec<u8>> = file
            .entries()
            .par_iter()
            .map(|entry| match decode_values(file, entry) {
                Some(values) => values.into_iter().map(|value| self.byte(value)).collect(),
                None => file.bytes(entry).to_vec(),
            })
            .collect();
        let mut header = Map::new();
        let metadata = file.metadata();
        let texts = metadata.keys().filter_map(|key| Some((key.to_owned(), Value::from(metadata.str(key)?))));
        header.insert("__metadata__".to_owned(), Value::Object(texts.collect()));
        let mut start = 0usize;
        for (entry, bytes) in file.entries().iter().zip(&parts) {
            let dtype = match entry.encoding() {
                _ if plain(entry) => self.stored_name(),
                Encoding::Plain(DType::F8E4M3) => "F8_E4M3",
                Encoding::Plain(DType::F8E5M2) => "F8_E5M2",
                other => {
                    return Err(Error::Told(format!(
                        "{}: {} is stored as {other}, which cannot be cast to {}; load it with the weight_dtype \
                         \"default\"",
                        file.path().display(),
                        entry.name(),
                        self.stored_name()
                    )));
                }
            };
            let end = start + bytes.len();
            let shape = entry.stored_shape().dims();
            header.insert(
                entry.name().to_owned(),
                json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] }),
            );
            start = end;
        }
        let header = Value::Object(header).to_string();
        let mut whole = Vec::with_capacity(8 + header.len() + start);
        whole.extend_from_slice(&(header.len() as u64).to_le_bytes());
        whole.extend_from_slice(header.as_bytes());
        parts.iter().for_each(|part| whole.extend_from_slice(part));
        let name = file.path().display().to_string();
        Ok(Arc::new(Checkpoint::from_memory((&name, whole.into()), Vec::new())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_to_nearest_even_as_pytorch_does() {
        for (value, e4m3, e5m2) in [
            (0.0, 0x00, 0x00),
            (-0.0, 0x80, 0x80),
            (1.0, 0x38, 0x3c),
            (-1.5, 0xbc, 0xbe),
            // Half way between two neighbours goes to the even one.
            (1.0625, 0x38, 0x3c),
            (1.1875, 0x3a, 0x3d),
            (0.001953125, 0x01, 0x18),
            (0.0009765625, 0x00, 0x14),
            (448.0, 0x7e, 0x5f),
            (464.0, 0x7e, 0x5f),
            (465.0, 0x7f, 0x5f),
            (57344.0, 0x7f, 0x7b),
            (61440.0, 0x7f, 0x7c),
            (f32::INFINITY, 0x7f, 0x7c),
        ] {
            assert_eq!(Cast::E4M3.byte(value), e4m3, "{value} in e4m3");
            assert_eq!(Cast::E5M2.byte(value), e5m2, "{value} in e5m2");
        }
        assert_eq!(Cast::E4M3.byte(f32::NAN) & 0x7f, 0x7f);
    }
}
