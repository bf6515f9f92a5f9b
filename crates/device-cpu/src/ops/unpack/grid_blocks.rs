//! Super-blocks of 256 values whose codes name rows of a grid; signs are stored apart.

use super::blocks::half;
use super::grids;

#[inline(always)]
fn word<const N: usize>(block: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

#[inline(always)]
fn half_word<const N: usize>(block: &[u8; N], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// Eight signs from seven bits: the eighth makes the number of minus signs even.
#[inline(always)]
fn even_signs(bits: u32) -> u8 {
    let seven = bits & 127;
    (seven | (seven.count_ones() & 1) << 7) as u8
}

/// `scale · row`, with minus where the bit of `signs` is set.
#[inline(always)]
fn write_row<const LEN: usize>(out: &mut [f32], scale: f32, row: &[i8; LEN], signs: u8) {
    for (i, (out, value)) in out.iter_mut().zip(row).enumerate() {
        let sign = u32::from(signs >> i & 1) << 31;
        *out = f32::from_bits((scale * f32::from(*value)).to_bits() ^ sign);
    }
}

#[inline(always)]
pub(super) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let scale = half(block, 0);
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let high = half_word(block, 34 + 2 * sub);
        let scale = scale * f32::from(2 * (high >> 12 & 7) + 1);
        let shift = if high & 0x8000 == 0 { 0.125 } else { -0.125 };
        for (j, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let code = u16::from(block[2 + 4 * sub + j]) | (high >> (3 * j) & 7) << 8;
            for (out, value) in out.iter_mut().zip(&grids::IQ1_S[usize::from(code)]) {
                *out = scale * (f32::from(*value) + shift);
            }
        }
    }
}

#[inline(always)]
pub(super) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let scale = half(block, 0);
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (codes, signs) = (2 + 8 * sub, word(block, 6 + 8 * sub));
        let scale = scale * (0.5 + (signs >> 28) as f32) * 0.25;
        for (j, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let row = &grids::IQ2_XXS[usize::from(block[codes + j])];
            write_row(out, scale, row, even_signs(signs >> (7 * j)));
        }
    }
}

#[inline(always)]
pub(super) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let scale = half(block, 0);
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = scale * (0.5 + f32::from(block[66 + sub / 2] >> (sub % 2 * 4) & 15)) * 0.25;
        for (j, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let code = half_word(block, 2 + 4 * sub + 2 * j);
            let row = &grids::IQ2_XS[usize::from(code & 511)];
            write_row(out, scale, row, even_signs(u32::from(code >> 9)));
        }
    }
}

#[inline(always)]
pub(super) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let scale = half(block, 0);
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = scale * (0.5 + f32::from(block[74 + sub / 2] >> (sub % 2 * 4) & 15)) * 0.25;
        for (j, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let at = 2 * sub + j;
            let high = u16::from(block[66 + at / 4] >> (at % 4 * 2) & 3);
            let row = &grids::IQ2_S[usize::from(u16::from(block[2 + at]) | high << 8)];
            write_row(out, scale, row, block[34 + at]);
        }
    }
}

#[inline(always)]
pub(super) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let scale = half(block, 0);
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let signs = word(block, 66 + 4 * sub);
        let scale = scale * (0.5 + (signs >> 28) as f32) * 0.5;
        for (j, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let signs = even_signs(signs >> (7 * j));
            let codes = 2 + 8 * sub + 2 * j;
            let (first, second) = out.split_at_mut(4);
            write_row(first, scale, &grids::IQ3_XXS[usize::from(block[codes])], signs);
            write_row(second, scale, &grids::IQ3_XXS[usize::from(block[codes + 1])], signs >> 4);
        }
    }
}

#[inline(always)]
pub(super) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let scale = half(block, 0);
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let packed = block[106 + sub / 2] >> (sub % 2 * 4) & 15;
        let scale = scale * f32::from(1 + 2 * packed);
        let high = u16::from(block[66 + sub]);
        for (j, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let signs = block[74 + 4 * sub + j];
            let code = |i: usize| {
                usize::from(u16::from(block[2 + 8 * sub + 2 * j + i]) | (high >> (2 * j + i) & 1) << 8)
            };
            let (first, second) = out.split_at_mut(4);
            write_row(first, scale, &grids::IQ3_S[code(0)], signs);
            write_row(second, scale, &grids::IQ3_S[code(1)], signs >> 4);
        }
    }
}
