//! Between stored bytes and f32: every plain type both ways, every quantised format to f32.
//!
//! The conversions are plain loops over fixed-size blocks. They are compiled once per instruction set, so
//! the compiler vectorises each with the widest one that the machine has; the arithmetic is the same
//! everywhere, bit for bit.

mod blocks;
mod grid_blocks;
mod grids;
mod pack;
mod plain;
mod scaled;
mod super_blocks;

use meta::{DType, Encoding, QuantFormat};

pub(crate) use pack::pack_f32;
pub(crate) use scaled::Scaling;

/// Converts stored bytes to f32. `bytes` need no alignment; `out` must be whole blocks, and `bytes` as many.
pub(crate) fn unpack_f32(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
    let blocks = out.len() / encoding.block_len();
    assert_eq!(blocks * encoding.block_len(), out.len(), "{encoding} is unpacked in whole blocks");
    assert_eq!(blocks * encoding.block_bytes(), bytes.len(), "bytes of {} values in {encoding}", out.len());
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
        {
            // SAFETY: the processor has just been asked for these instructions.
            return unsafe { unpack_avx512(encoding, bytes, out) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { unpack_avx2(encoding, bytes, out) };
        }
    }
    unpack_portable(encoding, bytes, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn unpack_avx512(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
    unpack_portable(encoding, bytes, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn unpack_avx2(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
    unpack_portable(encoding, bytes, out);
}

/// The conversion itself, inlined down to the loops into each of the above.
#[inline(always)]
fn unpack_portable(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
    match encoding {
        Encoding::Plain(dtype) => unpack_plain(dtype, bytes, out),
        Encoding::Quant(format) => unpack_blocks(format, bytes, out),
        Encoding::Scaled(scheme) => unreachable!("{scheme} is unpacked with its scales"),
    }
}

#[inline(always)]
fn unpack_plain(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        DType::F32 => each(bytes, out, f32::from_le_bytes),
        DType::F16 => each(bytes, out, |b| plain::f16_to_f32(u16::from_le_bytes(b))),
        DType::BF16 => each(bytes, out, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
        DType::F8E4M3 => each(bytes, out, |[b]| plain::f8_e4m3_to_f32(b)),
        DType::F8E5M2 => each(bytes, out, |[b]| plain::f16_to_f32(u16::from(b) << 8)),
        DType::I64 => each(bytes, out, |b| i64::from_le_bytes(b) as f32),
        DType::I32 => each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        DType::I16 => each(bytes, out, |b| f32::from(i16::from_le_bytes(b))),
        DType::I8 => each(bytes, out, |b| f32::from(i8::from_le_bytes(b))),
        DType::U64 => each(bytes, out, |b| u64::from_le_bytes(b) as f32),
        DType::U32 => each(bytes, out, |b| u32::from_le_bytes(b) as f32),
        DType::U16 => each(bytes, out, |b| f32::from(u16::from_le_bytes(b))),
        DType::U8 | DType::Bool => each(bytes, out, |[b]| f32::from(b)),
    }
}

#[inline(always)]
fn unpack_blocks(format: QuantFormat, bytes: &[u8], out: &mut [f32]) {
    match format {
        QuantFormat::Q4_0 => each_block(bytes, out, blocks::q4_0),
        QuantFormat::Q4_1 => each_block(bytes, out, blocks::q4_1),
        QuantFormat::Q5_0 => each_block(bytes, out, blocks::q5_0),
        QuantFormat::Q5_1 => each_block(bytes, out, blocks::q5_1),
        QuantFormat::Q8_0 => each_block(bytes, out, blocks::q8_0),
        QuantFormat::IQ4_NL => each_block(bytes, out, blocks::iq4_nl),
        QuantFormat::Q2_K => each_block(bytes, out, super_blocks::q2_k),
        QuantFormat::Q3_K => each_block(bytes, out, super_blocks::q3_k),
        QuantFormat::Q4_K => each_block(bytes, out, super_blocks::q4_k),
        QuantFormat::Q5_K => each_block(bytes, out, super_blocks::q5_k),
        QuantFormat::Q6_K => each_block(bytes, out, super_blocks::q6_k),
        QuantFormat::IQ4_XS => each_block(bytes, out, super_blocks::iq4_xs),
        QuantFormat::IQ1_S => each_block(bytes, out, grid_blocks::iq1_s),
        QuantFormat::IQ2_XXS => each_block(bytes, out, grid_blocks::iq2_xxs),
        QuantFormat::IQ2_XS => each_block(bytes, out, grid_blocks::iq2_xs),
        QuantFormat::IQ2_S => each_block(bytes, out, grid_blocks::iq2_s),
        QuantFormat::IQ3_XXS => each_block(bytes, out, grid_blocks::iq3_xxs),
        QuantFormat::IQ3_S => each_block(bytes, out, grid_blocks::iq3_s),
    }
}

/// Converts one value at a time, as it is written; the compiler makes vectors of it.
#[inline(always)]
fn each<const BYTES: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; BYTES]) -> f32) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<BYTES>().0) {
        *out = value(*bytes);
    }
}

/// Converts one block at a time.
#[inline(always)]
fn each_block<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    for (out, bytes) in out.as_chunks_mut::<LEN>().0.iter_mut().zip(bytes.as_chunks::<BYTES>().0) {
        block(bytes, out);
    }
}

#[cfg(test)]
mod tests;
