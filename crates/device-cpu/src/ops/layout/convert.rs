//! Conversions between element types. Floats of 32 bits or fewer pass through f32, which holds them all;
//! integers and f64 among themselves are converted directly, so that no digit is lost.

use device::Operand;
use meta::{DType, Encoding};

use super::PIECE;
use super::strided::Place;
use crate::ops::elementwise::traversal::{Traversal, in_tasks};
use crate::ops::unpack::{pack_f32, unpack_f32};

/// Most bytes of an element.
const WIDEST: usize = 8;

/// Elements that a strided conversion gathers at once.
const GATHER: usize = 512;

/// Converts values that stand one after the other on both sides.
pub(super) fn convert_packed(from: Encoding, source: &[u8], to: DType, target: &Place<'_>) {
    let count = target.len() / to.bytes();
    let bytes_of = |values: usize| values / from.block_len() * from.block_bytes();
    in_tasks(count.div_ceil(PIECE), PIECE, |pieces| {
        let mut floats = vec![0.0; PIECE];
        for piece in pieces {
            let first = piece * PIECE;
            let n = PIECE.min(count - first);
            let source = &source[bytes_of(first)..bytes_of(first + n)];
            // SAFETY: pieces are distinct parts of the output.
            let out = unsafe { target.part(first * to.bytes(), n * to.bytes()) };
            convert(from, source, to, out, &mut floats[..n]);
        }
    });
}

/// Converts plain values between any strides, a gathered piece of a row at a time.
pub(super) fn convert_strided(x: (DType, &Operand, &[u8]), out: (DType, &Operand, &Place<'_>)) {
    let (from, x, source) = x;
    let (to, out, target) = out;
    let rows = Traversal::new(out.dims(), &[out.strides(), x.strides()]);
    let pieces_per_row = rows.row_len().div_ceil(GATHER);
    in_tasks(rows.rows() * pieces_per_row, rows.row_len().min(GATHER), |pieces| {
        let (mut gathered, mut converted) = ([0; GATHER * WIDEST], [0; GATHER * WIDEST]);
        let mut floats = [0.0; GATHER];
        for piece in pieces {
            let (row, first) = (piece / pieces_per_row, piece % pieces_per_row * GATHER);
            let n = GATHER.min(rows.row_len() - first);
            let gathered = &mut gathered[..n * from.bytes()];
            let converted = &mut converted[..n * to.bytes()];
            let step = rows.row_stride(1);
            let start = rows.row_start(1, row) + first * step;
            match from.bytes() {
                1 => gather::<1>(source, start, step, gathered),
                2 => gather::<2>(source, start, step, gathered),
                4 => gather::<4>(source, start, step, gathered),
                _ => gather::<8>(source, start, step, gathered),
            }
            convert(from.into(), gathered, to, converted, &mut floats[..n]);
            let step = rows.row_stride(0);
            let start = rows.row_start(0, row) + first * step;
            match to.bytes() {
                1 => scatter::<1>(converted, target, start, step),
                2 => scatter::<2>(converted, target, start, step),
                4 => scatter::<4>(converted, target, start, step),
                _ => scatter::<8>(converted, target, start, step),
            }
        }
    });
}

/// Elements of `N` bytes from `start` on, `step` apart.
fn gather<const N: usize>(source: &[u8], start: usize, step: usize, out: &mut [u8]) {
    for (i, element) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        let at = (start + i * step) * N;
        element.copy_from_slice(&source[at..at + N]);
    }
}

/// Elements of `N` bytes to places from `start` on, `step` apart.
fn scatter<const N: usize>(elements: &[u8], target: &Place<'_>, start: usize, step: usize) {
    if step == 1 {
        // SAFETY: pieces of rows of an output that does not repeat are distinct parts of it.
        unsafe { target.part(start * N, elements.len()) }.copy_from_slice(elements);
        return;
    }
    for (i, element) in elements.as_chunks::<N>().0.iter().enumerate() {
        // SAFETY: the elements of such an output are, too.
        unsafe { target.part((start + i * step) * N, N) }.copy_from_slice(element);
    }
}

/// Converts packed values; `floats` has room for all of them.
fn convert(from: Encoding, source: &[u8], to: DType, out: &mut [u8], floats: &mut [f32]) {
    let narrow = |dtype: DType| dtype.is_float() && dtype != DType::F64;
    match from.dtype() {
        Some(from) if !narrow(from) && !narrow(to) => convert_exactly(from, source, to, out),
        _ => match (floats_in(from, source), floats_out(to, out)) {
            (Some(source), _) => pack_f32(to, source, out),
            (_, Some(out)) => unpack_f32(from, source, out),
            _ => {
                unpack_f32(from, source, floats);
                pack_f32(to, floats, out);
            }
        },
    }
}

/// The bytes as the floats that they are, if they are and lie so.
fn floats_in(encoding: Encoding, bytes: &[u8]) -> Option<&[f32]> {
    if encoding != Encoding::F32 {
        return None;
    }
    // SAFETY: any 32 bits are an f32.
    let (before, floats, after) = unsafe { bytes.align_to() };
    (before.is_empty() && after.is_empty()).then_some(floats)
}

/// The same for bytes that are written.
fn floats_out(dtype: DType, bytes: &mut [u8]) -> Option<&mut [f32]> {
    if dtype != DType::F32 {
        return None;
    }
    // SAFETY: any 32 bits are an f32, and any f32 is four bytes.
    let (before, floats, after) = unsafe { bytes.align_to_mut() };
    (before.is_empty() && after.is_empty()).then_some(floats)
}

/// An integer or an f64.
#[derive(Clone, Copy)]
enum Number {
    Whole(i128),
    Real(f64),
}

/// Among integers and f64.
fn convert_exactly(from: DType, source: &[u8], to: DType, out: &mut [u8]) {
    let sources = source.chunks_exact(from.bytes());
    for (out, source) in out.chunks_exact_mut(to.bytes()).zip(sources) {
        let mut bytes = [0; WIDEST];
        bytes[..source.len()].copy_from_slice(source);
        let written = write(to, read(from, bytes));
        out.copy_from_slice(&written[..out.len()]);
    }
}

/// The number in the first bytes.
fn read(dtype: DType, bytes: [u8; WIDEST]) -> Number {
    let all = u64::from_le_bytes(bytes);
    Number::Whole(match dtype {
        DType::I64 => i128::from(all as i64),
        DType::I32 => i128::from(all as i32),
        DType::I16 => i128::from(all as i16),
        DType::I8 => i128::from(all as i8),
        DType::Bool => i128::from(all != 0),
        DType::U64 | DType::U32 | DType::U16 | DType::U8 => i128::from(all),
        _ => return Number::Real(f64::from_le_bytes(bytes)),
    })
}

/// The bytes of a number: integers saturate, reals are cut toward zero, NaN becomes 0.
fn write(dtype: DType, number: Number) -> [u8; WIDEST] {
    let (low, high) = match dtype {
        DType::I64 => (i128::from(i64::MIN), i128::from(i64::MAX)),
        DType::I32 => (i128::from(i32::MIN), i128::from(i32::MAX)),
        DType::I16 => (i128::from(i16::MIN), i128::from(i16::MAX)),
        DType::I8 => (i128::from(i8::MIN), i128::from(i8::MAX)),
        DType::U64 => (0, i128::from(u64::MAX)),
        DType::U32 => (0, i128::from(u32::MAX)),
        DType::U16 => (0, i128::from(u16::MAX)),
        DType::U8 => (0, i128::from(u8::MAX)),
        DType::Bool => {
            let set = match number {
                Number::Whole(v) => v != 0,
                Number::Real(v) => v != 0.0,
            };
            return u64::from(set).to_le_bytes();
        }
        _ => {
            return match number {
                Number::Whole(v) => v as f64,
                Number::Real(v) => v,
            }
            .to_le_bytes();
        }
    };
    let whole = match number {
        Number::Whole(v) => v,
        Number::Real(v) => v as i128,
    };
    (whole.clamp(low, high) as u64).to_le_bytes()
}
