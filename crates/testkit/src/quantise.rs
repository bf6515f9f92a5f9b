//! Plain quantisation of f32 values into GGUF block formats. The simple ones are bit for bit as the Python package
//! `gguf` makes them (its arithmetic decides the last bit, so the order of roundings below matters); `Q4_K` is made
//! without the search for the best scales that others do.
//!
//! Each simple format has blocks of 32 values. `Q8_0`, `Q4_0` and `Q5_0` have one scale; `Q4_1` and `Q5_1` a scale and
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
        QuantFormat::Q4_K => |values, out| {
            for (values, bytes) in values.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
                *bytes = q4_k(values);
            }
        },
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

/// Values of one `Q4_K` block: eight parts of 32, each with a scale and a minimum of six bits.
const SUPER_BLOCK: usize = 256;

fn q4_k(block: &[f32; SUPER_BLOCK]) -> [u8; 144] {
    let parts = block.as_chunks::<BLOCK>().0;
    let least: Vec<f32> = parts.iter().map(|part| part.iter().copied().fold(0f32, f32::min)).collect();
    let most = parts.iter().map(|part| part.iter().copied().fold(0f32, f32::max));
    let spans: Vec<f32> = least.iter().zip(most).map(|(least, most)| (most - least) / 15.0).collect();
    let whole = |values: &mut dyn Iterator<Item = f32>| f16::from_f32(values.fold(0f32, f32::max) / 63.0);
    let (scale, minimum) = (whole(&mut spans.iter().copied()), whole(&mut least.iter().map(|v| -v)));
    let six_bits = |value: f32, unit: f16| (value * inverse(unit.to_f32()) + 0.5).clamp(0.0, 63.0) as u8;
    let scales: [u8; 8] = std::array::from_fn(|i| six_bits(spans[i], scale));
    let minima: [u8; 8] = std::array::from_fn(|i| six_bits(-least[i], minimum));
    let code = |part: usize, value: f32| {
        let step = inverse(scale.to_f32() * f32::from(scales[part]));
        ((value + minimum.to_f32() * f32::from(minima[part])) * step + 0.5).clamp(0.0, 15.0) as u8
    };
    let mut out = [0; 144];
    out[..2].copy_from_slice(&scale.to_le_bytes());
    out[2..4].copy_from_slice(&minimum.to_le_bytes());
    for i in 0..4 {
        // The first four have bytes of their own, whose upper bits hold those of the last four.
        out[4 + i] = scales[i] | scales[i + 4] >> 4 << 6;
        out[8 + i] = minima[i] | minima[i + 4] >> 4 << 6;
        out[12 + i] = scales[i + 4] & 15 | minima[i + 4] << 4;
    }
    for (pair, bytes) in out[16..].chunks_mut(BLOCK).enumerate() {
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = code(2 * pair, parts[2 * pair][i]) | code(2 * pair + 1, parts[2 * pair + 1][i]) << 4;
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Value `i` of a `Q4_K` block, as the format is defined.
    fn value(block: &[u8; 144], i: usize) -> f32 {
        let number = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        let (part, place) = (i / BLOCK, i % BLOCK);
        let packed = &block[4..16];
        let (scale, minimum) = if part < 4 {
            (packed[part] & 63, packed[part + 4] & 63)
        } else {
            let high = |byte: u8| byte >> 6 << 4;
            (packed[part + 4] & 15 | high(packed[part - 4]), packed[part + 4] >> 4 | high(packed[part]))
        };
        let byte = block[16 + part / 2 * BLOCK + place];
        let code = if part % 2 == 0 { byte & 15 } else { byte >> 4 };
        number(0) * f32::from(scale) * f32::from(code) - number(2) * f32::from(minimum)
    }

    #[test]
    fn q4_k_keeps_values_to_within_a_step() {
        let values: [f32; SUPER_BLOCK] =
            std::array::from_fn(|i| (i as f32 * 0.37).sin() * (1.0 + (i / BLOCK) as f32));
        let block = q4_k(&values);
        for (i, want) in values.iter().enumerate() {
            let step = 2.0 * (1.0 + (i / BLOCK) as f32) / 15.0;
            // Scale and minimum themselves are rounded to 63 steps of the largest.
            let error = (value(&block, i) - want).abs();
            assert!(error < 0.5 * step + 0.15, "value {i}: {} instead of {want}", value(&block, i));
        }
        assert_eq!(q4_k(&[0.0; SUPER_BLOCK]), [0; 144]);
    }
}
