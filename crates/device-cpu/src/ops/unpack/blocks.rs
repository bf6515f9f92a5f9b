//! Blocks of 32 values with one scale, and a minimum in the `_1` formats.

use super::plain::f16_to_f32;

/// The sixteen levels of `IQ4_NL` and `IQ4_XS`, from ggml (MIT license, the ggml authors).
pub(super) const IQ4_LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The half-precision number at `at`.
#[inline(always)]
pub(super) fn half<const N: usize>(block: &[u8; N], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

#[inline(always)]
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for i in 0..16 {
        let byte = i32::from(block[2 + i]);
        out[i] = scale * ((byte & 15) - 8) as f32;
        out[16 + i] = scale * ((byte >> 4) - 8) as f32;
    }
}

#[inline(always)]
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, minimum) = (half(block, 0), half(block, 2));
    for i in 0..16 {
        let byte = block[4 + i];
        out[i] = scale * f32::from(byte & 15) + minimum;
        out[16 + i] = scale * f32::from(byte >> 4) + minimum;
    }
}

/// The 32 fifth bits of a block, from `at` on.
#[inline(always)]
fn fifth_bits<const N: usize>(block: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

#[inline(always)]
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let (scale, high) = (half(block, 0), fifth_bits(block, 2));
    for i in 0..16 {
        let byte = u32::from(block[6 + i]);
        out[i] = scale * ((byte & 15 | (high >> i & 1) << 4) as i32 - 16) as f32;
        out[16 + i] = scale * ((byte >> 4 | (high >> (16 + i) & 1) << 4) as i32 - 16) as f32;
    }
}

#[inline(always)]
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, minimum, high) = (half(block, 0), half(block, 2), fifth_bits(block, 4));
    for i in 0..16 {
        let byte = u32::from(block[8 + i]);
        out[i] = scale * (byte & 15 | (high >> i & 1) << 4) as i32 as f32 + minimum;
        out[16 + i] = scale * (byte >> 4 | (high >> (16 + i) & 1) << 4) as i32 as f32 + minimum;
    }
}

#[inline(always)]
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for i in 0..32 {
        out[i] = f32::from(block[2 + i] as i8) * scale;
    }
}

#[inline(always)]
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for i in 0..16 {
        let byte = usize::from(block[2 + i]);
        out[i] = scale * f32::from(IQ4_LEVELS[byte & 15]);
        out[16 + i] = scale * f32::from(IQ4_LEVELS[byte >> 4]);
    }
}
