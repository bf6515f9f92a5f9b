//! Between f32 values and stored bytes: plain floats round to nearest even, blocks are quantised as in
//! [`crate::quantise`]. Values of 8 bits are the OCP formats e4m3fn and e5m2.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use meta::{DType, Encoding};

use crate::Error;
use crate::quantise;

/// A function that stores values as whole blocks.
pub(crate) type WriteBlocks = fn(&[f32], &mut [u8]);

/// Writes f32 values as whole blocks of one encoding.
#[derive(Clone, Copy)]
pub(crate) struct Encoder {
    /// Values per block.
    pub(crate) block_len: usize,
    /// Bytes per block.
    pub(crate) block_bytes: usize,
    /// Writes as many blocks as the bytes hold; the values must be as many.
    pub(crate) write: WriteBlocks,
}

/// The encoder of `encoding`, if there is one.
pub(crate) fn encoder(encoding: Encoding) -> Result<Encoder, Error> {
    let unknown = Error::Conversion { direction: "to", encoding };
    let write: WriteBlocks = match encoding {
        Encoding::Plain(DType::F64) => write_f64,
        Encoding::Plain(DType::F32) => write_f32,
        Encoding::Plain(DType::F16) => write_f16,
        Encoding::Plain(DType::BF16) => write_bf16,
        Encoding::Plain(DType::F8E4M3) => |values, out| write_bytes(values, out, to_f8_e4m3),
        Encoding::Plain(DType::F8E5M2) => |values, out| write_bytes(values, out, to_f8_e5m2),
        Encoding::Plain(_) | Encoding::Scaled(_) => return Err(unknown),
        Encoding::Quant(format) => quantise::writer(format).ok_or(unknown)?,
    };
    Ok(Encoder { block_len: encoding.block_len(), block_bytes: encoding.block_bytes(), write })
}

/// The bytes that store `values` in `encoding`: any float type, `Q8_0`, `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1` or `Q4_K`.
pub fn encode(encoding: Encoding, values: &[f32]) -> Result<Vec<u8>, Error> {
    let Encoder { block_len, block_bytes, write } = encoder(encoding)?;
    if !values.len().is_multiple_of(block_len) {
        let count = values.len();
        return Err(Error::PartialBlocks { encoding, count, unit: "values", block: block_len });
    }
    let mut bytes = vec![0; values.len() / block_len * block_bytes];
    write(values, &mut bytes);
    Ok(bytes)
}

/// The values of plain elements as f32; integers are rounded to nearest.
pub fn decode(encoding: Encoding, bytes: &[u8]) -> Result<Vec<f32>, Error> {
    let block = encoding.block_bytes();
    if !bytes.len().is_multiple_of(block) {
        return Err(Error::PartialBlocks { encoding, count: bytes.len(), unit: "bytes", block });
    }
    let Encoding::Plain(dtype) = encoding else {
        return Err(Error::Conversion { direction: "from", encoding });
    };
    Ok(match dtype {
        DType::F64 => map(bytes, |b| f64::from_le_bytes(b) as f32),
        DType::F32 => map(bytes, f32::from_le_bytes),
        DType::F16 => map(bytes, |b| f16::from_le_bytes(b).to_f32()),
        DType::BF16 => map(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        DType::F8E4M3 => map(bytes, |[b]| from_f8_e4m3(b)),
        DType::F8E5M2 => map(bytes, |[b]| f16::from_bits(u16::from(b) << 8).to_f32()),
        DType::I64 => map(bytes, |b| i64::from_le_bytes(b) as f32),
        DType::I32 => map(bytes, |b| i32::from_le_bytes(b) as f32),
        DType::I16 => map(bytes, |b| f32::from(i16::from_le_bytes(b))),
        DType::I8 => map(bytes, |b| f32::from(i8::from_le_bytes(b))),
        DType::U64 => map(bytes, |b| u64::from_le_bytes(b) as f32),
        DType::U32 => map(bytes, |b| u32::from_le_bytes(b) as f32),
        DType::U16 => map(bytes, |b| f32::from(u16::from_le_bytes(b))),
        DType::U8 | DType::Bool => map(bytes, |[b]| f32::from(b)),
    })
}

fn map<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&chunk| value(chunk)).collect()
}

fn write_f64(values: &[f32], out: &mut [u8]) {
    for (value, bytes) in values.iter().zip(out.as_chunks_mut().0) {
        *bytes = f64::from(*value).to_le_bytes();
    }
}

fn write_f32(values: &[f32], out: &mut [u8]) {
    for (value, bytes) in values.iter().zip(out.as_chunks_mut().0) {
        *bytes = value.to_le_bytes();
    }
}

/// In pieces through the slice conversion, which uses the processor's instruction where there is one.
fn write_f16(values: &[f32], out: &mut [u8]) {
    const PIECE: usize = 256;
    let mut halves = [f16::ZERO; PIECE];
    for (values, out) in values.chunks(PIECE).zip(out.chunks_mut(2 * PIECE)) {
        let halves = &mut halves[..values.len()];
        halves.convert_from_f32_slice(values);
        for (half, bytes) in halves.iter().zip(out.as_chunks_mut().0) {
            *bytes = half.to_le_bytes();
        }
    }
}

fn write_bf16(values: &[f32], out: &mut [u8]) {
    for (value, bytes) in values.iter().zip(out.as_chunks_mut().0) {
        let bits = value.to_bits();
        let rounded = (bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16) as u16;
        // Rounding must not carry a NaN into infinity.
        let quiet_nan = (bits >> 16) as u16 | 0x40;
        *bytes = if value.is_nan() { quiet_nan } else { rounded }.to_le_bytes();
    }
}

fn write_bytes(values: &[f32], out: &mut [u8], convert: impl Fn(f32) -> u8) {
    for (value, byte) in values.iter().zip(out) {
        *byte = convert(*value);
    }
}

/// Beyond 464 (half a step above the largest value, 448) there is only NaN.
fn to_f8_e4m3(value: f32) -> u8 {
    to_small_float::<3, 7>(value, 0x7E, 0x7F)
}

/// Beyond the largest value there is infinity.
fn to_f8_e5m2(value: f32) -> u8 {
    to_small_float::<2, 15>(value, 0x7B, 0x7C)
}

/// Rounds to nearest even into a sign, an exponent with `BIAS` and `MANTISSA` bits; `beyond` is the code for
/// magnitudes that round past the code `largest`.
#[inline]
fn to_small_float<const MANTISSA: u32, const BIAS: u32>(value: f32, largest: u32, beyond: u8) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    if value.is_nan() {
        return sign | 0x7F;
    }
    let magnitude = value.abs();
    let bits = magnitude.to_bits();
    let smallest_normal = (128 - BIAS) << 23;
    let code = if bits < smallest_normal {
        // Adding a power of two whose last place is the smallest subnormal rounds to a multiple of it.
        let magic = f32::from_bits((127 + 24 - BIAS - MANTISSA) << 23);
        (magnitude + magic).to_bits() - magic.to_bits()
    } else {
        let drop = 23 - MANTISSA;
        let half_minus_one = (1 << (drop - 1)) - 1;
        ((bits + half_minus_one + ((bits >> drop) & 1)) >> drop) - ((127 - BIAS) << MANTISSA)
    };
    sign | if code > largest { beyond } else { code as u8 }
}

fn from_f8_e4m3(byte: u8) -> f32 {
    let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    match byte & 0x7F {
        0x7F => f32::NAN,
        0..8 => sign * mantissa * 2f32.powi(-9),
        _ => sign * (8.0 + mantissa) * 2f32.powi(exponent - 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_f32;

    /// The values of all codes from 0 to the largest finite one, with the code.
    fn positive_codes(dtype: DType, largest: u8) -> Vec<(u8, f32)> {
        let codes: Vec<u8> = (0..=largest).collect();
        codes.iter().copied().zip(decode(dtype.into(), &codes).unwrap()).collect()
    }

    /// Every value survives; between two neighbours the middle goes to the even code and the rest to the nearest.
    #[test]
    fn eight_bit_floats_round_to_nearest_even() {
        for (dtype, largest) in [(DType::F8E4M3, 0x7E), (DType::F8E5M2, 0x7B)] {
            let code = |value: f32| encode(dtype.into(), &[value]).unwrap()[0];
            for pair in positive_codes(dtype, largest).windows(2) {
                let [(low_code, low), (high_code, high)] = [pair[0], pair[1]];
                let middle = (low + high) / 2.0;
                let even = if low_code % 2 == 0 { low_code } else { high_code };
                for (value, expected) in [
                    (low, low_code),
                    (high, high_code),
                    (middle, even),
                    (middle.next_down(), low_code),
                    (middle.next_up(), high_code),
                ] {
                    assert_eq!(code(value), expected, "{dtype} {value}");
                    assert_eq!(code(-value), expected | 0x80, "{dtype} -{value}");
                }
            }
        }
    }

    #[test]
    fn eight_bit_floats_beyond_the_range() {
        let e4m3 = encode(DType::F8E4M3.into(), &[464.0, 464.1, f32::INFINITY, -500.0, f32::NAN]).unwrap();
        assert_eq!(e4m3, [0x7E, 0x7F, 0x7F, 0xFF, 0x7F]);
        let e5m2 =
            encode(DType::F8E5M2.into(), &[57344.0, 61439.9, 61440.0, f32::NEG_INFINITY, f32::NAN]).unwrap();
        assert_eq!(e5m2, [0x7B, 0x7B, 0x7C, 0xFC, 0x7F]);
    }

    /// The bit trick and the slice conversion agree with the one-value conversions of the `half` crate.
    #[test]
    fn sixteen_bit_floats_agree_with_half() {
        let mut values: Vec<f32> = random_f32(7, 5000).iter().map(|v| v * v.abs().powi(9)).collect();
        values.extend([0.0, -0.0, f32::INFINITY, f32::MAX, -1e-40, f32::NAN, f32::from_bits(0x7FFF_FFFF)]);
        let f16s = encode(Encoding::F16, &values).unwrap();
        let bf16s = encode(Encoding::BF16, &values).unwrap();
        for (i, &value) in values.iter().enumerate() {
            assert_eq!(f16s[2 * i..2 * i + 2], f16::from_f32(value).to_le_bytes(), "f16 of {value}");
            assert_eq!(bf16s[2 * i..2 * i + 2], bf16::from_f32(value).to_le_bytes(), "bf16 of {value}");
        }
    }

    #[test]
    fn decoding_undoes_encoding() {
        let values = [0.5, -1.25, 0.0, 96.0];
        for dtype in DType::ALL.into_iter().filter(|d| d.is_float()) {
            let bytes = encode(dtype.into(), &values).unwrap();
            assert_eq!(decode(dtype.into(), &bytes).unwrap(), values, "{dtype}");
        }
        assert_eq!(decode(DType::I64.into(), &(-5i64).to_le_bytes()).unwrap(), [-5.0]);
        assert_eq!(decode(DType::U16.into(), &[1, 2]).unwrap(), [513.0]);
    }

    #[test]
    fn what_cannot_be_converted_is_refused() {
        assert!(matches!(encode(DType::I64.into(), &[1.0]), Err(Error::Conversion { direction: "to", .. })));
        assert!(matches!(encode(meta::QuantFormat::Q6_K.into(), &[0.0; 256]), Err(Error::Conversion { .. })));
        assert!(matches!(
            encode(meta::QuantFormat::Q8_0.into(), &[0.0; 31]),
            Err(Error::PartialBlocks { .. })
        ));
        assert!(matches!(decode(Encoding::F32, &[0; 5]), Err(Error::PartialBlocks { unit: "bytes", .. })));
        assert!(matches!(decode(meta::QuantFormat::Q8_0.into(), &[0; 34]), Err(Error::Conversion { .. })));
    }
}
