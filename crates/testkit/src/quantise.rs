//! Plain quantisation of f32 values into the simple GGUF block formats, bit for bit as the Python package
//! `gguf` does it (its arithmetic decides the last bit, so the order of roundings below matters).
//!
//! Each format has blocks of 32 values. `Q8_0`, `Q4_0` and `Q5_0` have one scale; `Q4_1` and `Q5_1` a scale and
//! a minimum. Low four bits are packed as value `i` below value `i + 16`; the fifth bits stand apart.

use half::f16;
use meta::QuantFormat;

use crate::encode::WriteBlocks;

/// Values of one block.
const BLOCK: usize = 32;

/// The function that quantises whole blocks into `format`, where it is one of the simple ones.
pub(crate) fn writer(format: QuantFormat) -> Option<WriteBlocks> {
    Some(match format {
        QuantFormat::Q8_0 => |values, out| blocks(values, out, q8_0),
        QuantFormat::Q4_0 => |values, out| blocks(values, out, q4_0),
        QuantFormat::Q4_1 => |values, out| blocks(values, out, q4_1),
        QuantFormat::Q5_0 => |values, out| blocks(values, out, q5_0),
        QuantFormat::Q5_1 => |values, out| blocks(values, out, q5_1),
        _ => return None,
    })
}

fn blocks<const BYTES: usize>(values: &[f32], out: &mut [u8], one: fn(&[f32; BLOCK]) -> [u8; BYTES]) {
    for (values, bytes) in values.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        *bytes = one(values);
    }
}

/// Scale, then signed bytes rounded half away from zero.
fn q8_0(block: &[f32; BLOCK]) -> [u8; 34] {
    let scale = block.iter().fold(0f32, |most, v| most.max(v.abs())) / 127.0;
    let inverse = inverse(scale);
    let mut out = [0; 34];
    out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    for (byte, value) in out[2..].iter_mut().zip(block) {
        let scaled = (value * inverse).abs();
        let whole = scaled as i32;
        let magnitude = whole + i32::from(scaled - whole as f32 >= 0.5);
        *byte = if *value < 0.0 { -magnitude } else { magnitude } as u8;
    }
    out
}

fn q4_0(block: &[f32; BLOCK]) -> [u8; 18] {
    let (scale, codes) = around_zero(block, 8);
    let mut out = [0; 18];
    out[..2].copy_from_slice(&scale);
    out[2..].copy_from_slice(&low_nibbles(&codes));
    out
}

fn q5_0(block: &[f32; BLOCK]) -> [u8; 22] {
    let (scale, codes) = around_zero(block, 16);
    let mut out = [0; 22];
    out[..2].copy_from_slice(&scale);
    out[2..6].copy_from_slice(&fifth_bits(&codes));
    out[6..].copy_from_slice(&low_nibbles(&codes));
    out
}

fn q4_1(block: &[f32; BLOCK]) -> [u8; 20] {
    let (scale_and_min, codes) = above_minimum(block, 15);
    let mut out = [0; 20];
    out[..4].copy_from_slice(&scale_and_min);
    out[4..].copy_from_slice(&low_nibbles(&codes));
    out
}

fn q5_1(block: &[f32; BLOCK]) -> [u8; 24] {
    let (scale_and_min, codes) = above_minimum(block, 31);
    let mut out = [0; 24];
    out[..4].copy_from_slice(&scale_and_min);
    out[4..8].copy_from_slice(&fifth_bits(&codes));
    out[8..].copy_from_slice(&low_nibbles(&codes));
    out
}

/// The value that is largest in magnitude (the first, if several are) becomes code 0; zero becomes `half`.
fn around_zero(block: &[f32; BLOCK], half: u8) -> ([u8; 2], [u8; BLOCK]) {
    let extreme = block.iter().fold(0f32, |most, &v| if v.abs() > most.abs() { v } else { most });
    let scale = extreme / -f32::from(half);
    let inverse = f64::from(inverse(scale));
    // The sum is exact enough in f64 and rounds to f32 before it is truncated.
    let code = |v: f32| (f64::from(v) * inverse + (f64::from(half) + 0.5)) as f32;
    (f16::from_f32(scale).to_le_bytes(), block.map(|v| (code(v) as u8).min(2 * half - 1)))
}

/// The least value becomes code 0, the largest `largest`.
fn above_minimum(block: &[f32; BLOCK], largest: u8) -> ([u8; 4], [u8; BLOCK]) {
    let least = block.iter().copied().fold(f32::INFINITY, f32::min);
    let most = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = (most - least) / f32::from(largest);
    let inverse = inverse(scale);
    let [a, b] = f16::from_f32(scale).to_le_bytes();
    let [c, d] = f16::from_f32(least).to_le_bytes();
    ([a, b, c, d], block.map(|v| (((v - least) * inverse + 0.5) as u8).min(largest)))
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

fn low_nibbles(codes: &[u8; BLOCK]) -> [u8; BLOCK / 2] {
    std::array::from_fn(|i| codes[i] & 15 | codes[i + BLOCK / 2] << 4)
}

fn fifth_bits(codes: &[u8; BLOCK]) -> [u8; 4] {
    codes.iter().enumerate().fold(0u32, |bits, (i, &code)| bits | u32::from(code >> 4) << i).to_le_bytes()
}
