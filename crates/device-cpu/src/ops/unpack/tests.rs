//! Against the formats' reference implementation, bit for bit, and each instruction set against the others.

use testkit::{Golden, random_blocks, random_bytes};

use super::*;

fn unpacked(encoding: Encoding, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; bytes.len() / encoding.block_bytes() * encoding.block_len()];
    unpack_f32(encoding, bytes, &mut out);
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn every_format_equals_the_reference() {
    let golden = Golden::bundled("quant/gguf_blocks.safetensors").unwrap();
    for format in QuantFormat::ALL {
        let bytes = golden.bytes(&format!("{format}.bytes")).unwrap();
        let (_, want) = golden.tensor(&format!("{format}.f32")).unwrap();
        assert_eq!(bits(&unpacked(format.into(), bytes)), bits(&want), "{format}");
    }
}

#[test]
fn small_floats_equal_the_reference() {
    let golden = Golden::bundled("quant/fp8_tables.safetensors").unwrap();
    let bytes = golden.bytes("bytes").unwrap();
    for (name, dtype) in [("e4m3fn.f32", DType::F8E4M3), ("e5m2.f32", DType::F8E5M2)] {
        let (_, want) = golden.tensor(name).unwrap();
        for (i, (got, want)) in unpacked(dtype.into(), bytes).into_iter().zip(want).enumerate() {
            // The table writes NaN as 2^20 and the infinities as 2^21 with their sign.
            let written = match got {
                got if got.is_nan() => 1_048_576.0,
                got if got.is_infinite() => 2_097_152f32.copysign(got),
                got => got,
            };
            assert_eq!(written.to_bits(), want.to_bits(), "{dtype} {i:#04x}: {got}, not {want}");
        }
    }
}

#[test]
fn every_half_precision_number_is_exact() {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for (i, got) in unpacked(Encoding::F16, &halves).into_iter().enumerate() {
        let want = half::f16::from_bits(i as u16).to_f32();
        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{i:#06x}: {got} {want}");
    }
    for (i, got) in unpacked(Encoding::BF16, &halves).into_iter().enumerate() {
        assert_eq!(got.to_bits(), (i as u32) << 16);
    }
}

#[test]
fn instruction_sets_agree_bit_for_bit_and_bytes_need_no_alignment() {
    let encodings = QuantFormat::ALL.map(Encoding::from).into_iter().chain(DType::ALL.map(Encoding::from));
    for encoding in encodings {
        let bytes = match encoding {
            Encoding::Quant(format) => random_blocks(format, 7, 37),
            Encoding::Plain(dtype) => random_bytes(7, 1003 * dtype.bytes()),
            Encoding::Scaled(_) => continue,
        };
        let mut want = vec![0.0; bytes.len() / encoding.block_bytes() * encoding.block_len()];
        unpack_portable(encoding, &bytes, &mut want);
        let mut shifted = vec![0; bytes.len() + 1];
        shifted[1..].copy_from_slice(&bytes);
        for bytes in [&bytes[..], &shifted[1..]] {
            assert_eq!(bits(&unpacked(encoding, bytes)), bits(&want), "{encoding}");
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            let mut got = vec![0.0; want.len()];
            // SAFETY: the processor has just been asked for these instructions.
            unsafe { unpack_avx2(encoding, &bytes, &mut got) };
            assert_eq!(bits(&got), bits(&want), "{encoding}");
        }
    }
}

#[test]
fn integers_become_floats() {
    assert_eq!(unpacked(DType::I8.into(), &[0x80, 0x7F, 0xFF]), [-128.0, 127.0, -1.0]);
    assert_eq!(unpacked(DType::U16.into(), &[0xFF, 0xFF, 1, 0]), [65535.0, 1.0]);
    assert_eq!(unpacked(DType::I64.into(), &(-5i64).to_le_bytes()), [-5.0]);
    assert_eq!(unpacked(DType::Bool.into(), &[0, 1]), [0.0, 1.0]);
}

fn packed(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut out = vec![0xAA; values.len() * dtype.bytes()];
    pack_f32(dtype, values, &mut out);
    out
}

/// Bits of every kind of f32: random ones, and all that lie next to or halfway between small floats.
fn telling_values() -> Vec<f32> {
    let random = random_bytes(3, 40_000);
    let mut values: Vec<f32> = random.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    for high in 0..=u16::MAX {
        for low in [0, 0x0FFF, 0x1000, 0x1001, 0x8000, 0x8001] {
            values.push(f32::from_bits(u32::from(high) << 16 | low));
        }
    }
    values
}

#[test]
fn halves_round_to_nearest_even() {
    let values = telling_values();
    let (halves, brains) = (packed(DType::F16, &values), packed(DType::BF16, &values));
    for (i, &value) in values.iter().enumerate() {
        let half = u16::from_le_bytes([halves[2 * i], halves[2 * i + 1]]);
        let brain = u16::from_le_bytes([brains[2 * i], brains[2 * i + 1]]);
        if value.is_nan() {
            assert!(half::f16::from_bits(half).is_nan() && half::bf16::from_bits(brain).is_nan());
        } else {
            assert_eq!(half, half::f16::from_f32(value).to_bits(), "{value:e}");
            assert_eq!(brain, half::bf16::from_f32(value).to_bits(), "{value:e}");
        }
    }
}

/// Each value becomes the nearest of the 8-bit numbers, the one with an even code where two are as near.
#[test]
fn eight_bit_floats_round_to_nearest_even() {
    for (dtype, beyond, infinity) in [(DType::F8E4M3, 464.0f32, 0x7F), (DType::F8E5M2, 61440.0, 0x7C)] {
        let codes: Vec<u8> = (0..if dtype == DType::F8E4M3 { 0x7F } else { 0x7C }).collect();
        let numbers = unpacked(dtype.into(), &codes);
        let values = telling_values();
        for (&value, got) in values.iter().zip(packed(dtype, &values)) {
            let magnitude = value.abs();
            if magnitude.is_nan() {
                assert_eq!(got & 0x7F, 0x7F);
                continue;
            }
            assert_eq!(got >> 7, u8::from(value.is_sign_negative()), "{value:e}");
            let above = numbers.partition_point(|n| *n < magnitude);
            let want = if magnitude > beyond || magnitude == beyond && dtype == DType::F8E5M2 {
                infinity
            } else if above == numbers.len() {
                codes[above - 1]
            } else if above == 0 {
                0
            } else {
                let (low, high) = (f64::from(numbers[above - 1]), f64::from(numbers[above]));
                let (down, up) = (f64::from(magnitude) - low, high - f64::from(magnitude));
                let down = down < up || down == up && codes[above - 1].is_multiple_of(2);
                codes[above - usize::from(down)]
            };
            assert_eq!(got & 0x7F, want, "{dtype} {value:e}");
        }
    }
}

#[test]
fn integers_are_cut_and_saturate() {
    let values = [1.9, -1.9, 300.0, -300.0, f32::NAN, f32::INFINITY];
    assert_eq!(packed(DType::U8, &values), [1, 0, 255, 0, 0, 255]);
    assert_eq!(packed(DType::I8, &values), [1i8, -1, 127, -128, 0, 127].map(|v| v as u8));
    assert_eq!(packed(DType::I64, &[-2.5]), (-2i64).to_le_bytes());
    assert_eq!(packed(DType::Bool, &[0.0, -0.0, 0.5]), [0, 0, 1]);
    for dtype in [DType::F64, DType::F32] {
        let values = [0.1, -3e38, f32::MIN_POSITIVE];
        assert_eq!(unpacked(dtype.into(), &packed(dtype, &values)), values);
    }
}
