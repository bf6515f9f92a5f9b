//! Small floats to f32, without branches, so that loops over them become vector code.

/// Half precision to f32. Exact; the infinities and NaN stay what they are.
#[inline(always)]
pub(super) fn f16_to_f32(half: u16) -> f32 {
    let half = u32::from(half);
    let sign = (half & 0x8000) << 16;
    let magnitude = half & 0x7FFF;
    // The exponent counts from 15 in one format and from 127 in the other.
    let normal = (magnitude << 13) + ((127 - 15) << 23);
    let subnormal = (magnitude as i32 as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    let special = (magnitude << 13) | 0x7F80_0000;
    let finite = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude < 0x7C00 { finite } else { special })
}

/// e4m3fn to f32. Exact; the all-ones magnitude is NaN, and there are no infinities.
#[inline(always)]
pub(super) fn f8_e4m3_to_f32(byte: u8) -> f32 {
    let byte = u32::from(byte);
    let sign = (byte & 0x80) << 24;
    let magnitude = byte & 0x7F;
    let normal = (magnitude << 20) + ((127 - 7) << 23);
    let subnormal = (magnitude as i32 as f32 * f32::from_bits((127 - 9) << 23)).to_bits();
    let finite = if magnitude < 0x08 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude < 0x7F { finite } else { 0x7FC0_0000 })
}
