//! f32 to every plain type: floats round to nearest even as PyTorch's conversions do, integers are cut
//! toward zero and saturate.

use meta::DType;

/// Converts f32 values to stored bytes; `out` has the bytes of as many elements of `dtype`.
pub(crate) fn pack_f32(dtype: DType, values: &[f32], out: &mut [u8]) {
    assert_eq!(values.len() * dtype.bytes(), out.len(), "bytes of {} values in {dtype}", values.len());
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has just been asked for these instructions.
        return unsafe { pack_avx2(dtype, values, out) };
    }
    pack_portable(dtype, values, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn pack_avx2(dtype: DType, values: &[f32], out: &mut [u8]) {
    pack_portable(dtype, values, out);
}

#[inline(always)]
fn pack_portable(dtype: DType, values: &[f32], out: &mut [u8]) {
    match dtype {
        DType::F64 => each(values, out, |v| f64::from(v).to_le_bytes()),
        DType::F32 => each(values, out, f32::to_le_bytes),
        DType::F16 => each(values, out, |v| f32_to_f16(v).to_le_bytes()),
        DType::BF16 => each(values, out, |v| f32_to_bf16(v).to_le_bytes()),
        DType::F8E4M3 => each(values, out, |v| [f32_to_f8_e4m3(v)]),
        DType::F8E5M2 => each(values, out, |v| [f32_to_f8_e5m2(v)]),
        DType::I64 => each(values, out, |v| (v as i64).to_le_bytes()),
        DType::I32 => each(values, out, |v| (v as i32).to_le_bytes()),
        DType::I16 => each(values, out, |v| (v as i16).to_le_bytes()),
        DType::I8 => each(values, out, |v| (v as i8).to_le_bytes()),
        DType::U64 => each(values, out, |v| (v as u64).to_le_bytes()),
        DType::U32 => each(values, out, |v| (v as u32).to_le_bytes()),
        DType::U16 => each(values, out, |v| (v as u16).to_le_bytes()),
        DType::U8 => each(values, out, |v| [v as u8]),
        DType::Bool => each(values, out, |v| [u8::from(v != 0.0)]),
    }
}

#[inline(always)]
fn each<const BYTES: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; BYTES]) {
    for (out, value) in out.as_chunks_mut::<BYTES>().0.iter_mut().zip(values) {
        *out = bytes(*value);
    }
}

/// A magnitude rounded to fewer mantissa bits and a smaller exponent range. What passes that range is the
/// caller's to handle.
#[inline(always)]
fn narrow<const MANTISSA: u32, const BIAS: u32>(magnitude: u32) -> u32 {
    let shift = 23 - MANTISSA;
    let odd = (magnitude >> shift) & 1;
    let rounded = magnitude.wrapping_add((1 << (shift - 1)) - 1 + odd);
    let normal = rounded.wrapping_sub((127 - BIAS) << 23) >> shift;
    // Adding a number whose last bit is worth one subnormal step leaves the rounded count of steps there.
    let anchor = (127 + 24 - BIAS - MANTISSA) << 23;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(anchor)).to_bits().wrapping_sub(anchor);
    if magnitude < (128 - BIAS) << 23 { subnormal } else { normal }
}

const INFINITY: u32 = 0x7F80_0000;

#[inline(always)]
pub(super) fn f32_to_f16(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) & 0x8000;
    let magnitude = value.to_bits() & 0x7FFF_FFFF;
    let finite = if magnitude >= const { 65520f32.to_bits() } { 0x7C00 } else { narrow::<10, 15>(magnitude) };
    (sign | if magnitude > INFINITY { 0x7E00 } else { finite }) as u16
}

#[inline(always)]
pub(super) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
    (if bits & 0x7FFF_FFFF > INFINITY { (bits >> 16) | 0x0040 } else { rounded }) as u16
}

/// 464 lies halfway between the largest value, 448, and the next there would be: all beyond is NaN, as
/// the format has no infinity.
#[inline(always)]
fn f32_to_f8_e4m3(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) & 0x80;
    let magnitude = value.to_bits() & 0x7FFF_FFFF;
    (sign | if magnitude > const { 464f32.to_bits() } { 0x7F } else { narrow::<3, 7>(magnitude) }) as u8
}

#[inline(always)]
fn f32_to_f8_e5m2(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) & 0x80;
    let magnitude = value.to_bits() & 0x7FFF_FFFF;
    let finite = if magnitude >= const { 61440f32.to_bits() } { 0x7C } else { narrow::<2, 15>(magnitude) };
    (sign | if magnitude > INFINITY { 0x7F } else { finite }) as u8
}
