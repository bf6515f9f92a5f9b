//! Super-blocks of 256 values: sub-blocks of 16 or 32 values have small integer scales (and minima) that
//! share one half-precision scale each. The scale of a sub-block is formed first, as the format's reference does.

use super::blocks::{IQ4_LEVELS, half};

#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scale, minimum) = (half(block, 80), half(block, 82));
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let packed = block[sub];
        let (scale, minimum) = (scale * f32::from(packed & 15), minimum * f32::from(packed >> 4));
        // Each run of 32 bytes holds 128 values: bit pair by bit pair, not byte by byte.
        let (bytes, shift) = (16 + sub / 8 * 32 + sub % 2 * 16, sub % 8 / 2 * 2);
        for i in 0..16 {
            out[i] = scale * f32::from((block[bytes + i] >> shift) & 3) - minimum;
        }
    }
}

#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let scale = half(block, 108);
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = block[96 + sub % 8] >> (sub / 8 * 4) & 15;
        let high = block[104 + sub % 4] >> (sub / 4 * 2) & 3;
        let scale = scale * (i32::from(low | high << 4) - 32) as f32;
        let (bytes, shift) = (32 + sub / 8 * 32 + sub % 2 * 16, sub % 8 / 2 * 2);
        let (masks, bit) = (sub % 2 * 16, sub / 2);
        for i in 0..16 {
            let low = (block[bytes + i] >> shift) & 3;
            // A clear bit takes four away.
            let offset = ((block[masks + i] >> bit) & 1 ^ 1) << 2;
            out[i] = scale * (i32::from(low) - i32::from(offset)) as f32;
        }
    }
}

/// The 6-bit scale and minimum of sub-block `sub` in the twelve bytes of `Q4_K` and `Q5_K`.
#[inline(always)]
fn scale_and_minimum<const N: usize>(block: &[u8; N], sub: usize) -> (f32, f32) {
    let packed = |i: usize| block[4 + i];
    let (scale, minimum) = if sub < 4 {
        (packed(sub) & 63, packed(sub + 4) & 63)
    } else {
        let low = packed(sub + 4);
        (low & 15 | packed(sub - 4) >> 6 << 4, low >> 4 | packed(sub) >> 6 << 4)
    };
    (f32::from(scale), f32::from(minimum))
}

#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scale, minimum) = (half(block, 0), half(block, 2));
    for (pair, out) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let (low_scale, low_minimum) = scale_and_minimum(block, 2 * pair);
        let (high_scale, high_minimum) = scale_and_minimum(block, 2 * pair + 1);
        let (low_scale, low_minimum) = (scale * low_scale, minimum * low_minimum);
        let (high_scale, high_minimum) = (scale * high_scale, minimum * high_minimum);
        let codes = 16 + pair * 32;
        for i in 0..32 {
            let byte = block[codes + i];
            out[i] = low_scale * f32::from(byte & 15) - low_minimum;
            out[32 + i] = high_scale * f32::from(byte >> 4) - high_minimum;
        }
    }
}

#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (scale, minimum) = (half(block, 0), half(block, 2));
    for (pair, out) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let (low_scale, low_minimum) = scale_and_minimum(block, 2 * pair);
        let (high_scale, high_minimum) = scale_and_minimum(block, 2 * pair + 1);
        let (low_scale, low_minimum) = (scale * low_scale, minimum * low_minimum);
        let (high_scale, high_minimum) = (scale * high_scale, minimum * high_minimum);
        let codes = 48 + pair * 32;
        for i in 0..32 {
            let (byte, fifth) = (block[codes + i], block[16 + i] >> (2 * pair));
            out[i] = low_scale * f32::from(byte & 15 | (fifth & 1) << 4) - low_minimum;
            out[32 + i] = high_scale * f32::from(byte >> 4 | (fifth >> 1 & 1) << 4) - high_minimum;
        }
    }
}

#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let scale = half(block, 208);
    for (part, out) in out.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        // 128 values use 64 bytes of low nibbles, 32 bytes of bit pairs, and eight scales.
        let (low, high) = (part * 64, 128 + part * 32);
        let scale = |i: usize| scale * f32::from(block[192 + part * 8 + i] as i8);
        for side in 0..2 {
            let scales = [scale(side), scale(2 + side), scale(4 + side), scale(6 + side)];
            for i in side * 16..side * 16 + 16 {
                let (first, second, pairs) = (block[low + i], block[low + 32 + i], block[high + i]);
                let value = |low: u8, pair: u8| (i32::from(low | (pair & 3) << 4) - 32) as f32;
                out[i] = scales[0] * value(first & 15, pairs);
                out[32 + i] = scales[1] * value(second & 15, pairs >> 2);
                out[64 + i] = scales[2] * value(first >> 4, pairs >> 4);
                out[96 + i] = scales[3] * value(second >> 4, pairs >> 6);
            }
        }
    }
}

#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let scale = half(block, 0);
    let high_scales = u16::from_le_bytes([block[2], block[3]]);
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = block[4 + sub / 2] >> (sub % 2 * 4) & 15;
        let high = (high_scales >> (2 * sub) & 3) as u8;
        let scale = scale * (i32::from(low | high << 4) - 32) as f32;
        let codes = 8 + sub * 16;
        for i in 0..16 {
            let byte = usize::from(block[codes + i]);
            out[i] = scale * f32::from(IQ4_LEVELS[byte & 15]);
            out[16 + i] = scale * f32::from(IQ4_LEVELS[byte >> 4]);
        }
    }
}
