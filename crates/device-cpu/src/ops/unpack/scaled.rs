//! Codes with scales beside them to f32, with the roundings of a reference that computes in a narrower type.
//!
//! Every step is one multiplication or a sum in a fixed order, so all devices give the same bits.

use meta::{DType, Encoding, ScaleTiles, Scheme};

use super::pack::{f32_to_bf16, f32_to_f16};
use super::plain::{f8_e4m3_to_f32, f16_to_f32};
use super::unpack_f32;

/// The numbers that e2m1 codes stand for.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The scales of a weight, and how numbers are rounded on the way.
#[derive(Clone, Copy)]
pub(crate) struct Scaling<'a> {
    /// How the codes are stored.
    pub(crate) encoding: Encoding,
    /// Bytes of the scales: of f32, or one for each block.
    pub(crate) values: &'a [u8],
    /// What multiplies the scales of blocks.
    pub(crate) tensor: f32,
    /// Rows of scales before those of the weight's first row.
    pub(crate) first_row: usize,
    /// Columns of the weight as it is stored.
    pub(crate) columns: usize,
    /// The type that the reference computes in.
    pub(crate) rounded_to: DType,
}

impl Scaling<'_> {
    /// Unpacks whole blocks of a row of the weight, from a column on.
    pub(crate) fn unpack(&self, row: usize, column: usize, codes: &[u8], out: &mut [f32]) {
        assert_eq!(
            codes.len() * self.encoding.block_len(),
            out.len() * self.encoding.block_bytes(),
            "codes of {} values in {}",
            out.len(),
            self.encoding
        );
        match self.rounded_to {
            DType::BF16 => {
                self.unpack_for(row, column, codes, out, |v| f32::from_bits(u32::from(f32_to_bf16(v)) << 16));
            }
            DType::F16 => self.unpack_for(row, column, codes, out, |v| f16_to_f32(f32_to_f16(v))),
            _ => self.unpack_for(row, column, codes, out, |v| v),
        }
    }

    /// The same with one way of rounding.
    #[inline(always)]
    fn unpack_for(
        &self,
        row: usize,
        column: usize,
        codes: &[u8],
        out: &mut [f32],
        round: impl Fn(f32) -> f32 + Copy,
    ) {
        let Encoding::Scaled(scheme) = self.encoding else {
            unpack_f32(self.encoding, codes, out);
            let scale = round(self.number(0));
            return out.iter_mut().for_each(|value| *value = round(*value * scale));
        };
        match (scheme, scheme.tiles(self.columns)) {
            (Scheme::Int8 { rotation }, _) => {
                let scale = self.number(if self.values.len() > 4 { row } else { 0 });
                out.iter_mut().zip(codes).for_each(|(value, code)| *value = f32::from(*code as i8) * scale);
                if let Some(rotation) = rotation {
                    out.chunks_exact_mut(rotation.group()).for_each(rotate);
                }
                out.iter_mut().for_each(|value| *value = round(*value));
            }
            (Scheme::Mxfp8, Some(tiles)) => {
                let blocks = codes.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<32>().0);
                for (block, (codes, out)) in blocks.enumerate() {
                    // The exponent of an f32; 0 stands for a block of zeros.
                    let scale = f32::from_bits(u32::from(self.block(tiles, row, column / 32 + block)) << 23);
                    out.iter_mut()
                        .zip(codes)
                        .for_each(|(out, code)| *out = round(f8_e4m3_to_f32(*code) * scale));
                }
            }
            (Scheme::Nvfp4, Some(tiles)) => {
                let tensor = round(self.tensor);
                let blocks = codes.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<16>().0);
                for (block, (codes, out)) in blocks.enumerate() {
                    let scale = round(tensor * f8_e4m3_to_f32(self.block(tiles, row, column / 16 + block)));
                    for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                        *pair = [byte >> 4, byte & 15].map(|code| round(E2M1[usize::from(code)] * scale));
                    }
                }
            }
            (Scheme::Mxfp8 | Scheme::Nvfp4, None) => unreachable!("{scheme} has tiles"),
        }
    }

    /// An f32 of the scales.
    fn number(&self, index: usize) -> f32 {
        self.values.as_chunks().0.get(index).map_or(1.0, |bytes| f32::from_le_bytes(*bytes))
    }

    /// The byte of a block's scale.
    fn block(&self, tiles: ScaleTiles, row: usize, block: usize) -> u8 {
        self.values[tiles.offset(self.first_row + row, block)]
    }
}

/// Multiplies a run of columns with the regular Hadamard matrix of its length over the root of that. As a Kronecker power
/// of a matrix of order 4, it is that matrix applied at every distance 1, 4, 16 and so on.
#[inline(always)]
fn rotate(values: &mut [f32]) {
    let mut distance = 1;
    while distance < values.len() {
        for group in values.chunks_exact_mut(4 * distance) {
            for i in 0..distance {
                let at = [i, i + distance, i + 2 * distance, i + 3 * distance];
                let [a, b, c, d] = at.map(|i| group[i]);
                let sum = (a + b) + (c + d);
                group[at[0]] = sum - 2.0 * d;
                group[at[1]] = sum - 2.0 * c;
                group[at[2]] = sum - 2.0 * b;
                group[at[3]] = sum - 2.0 * a;
            }
        }
        distance *= 4;
    }
    // A power of two, so that nothing is rounded.
    let factor = 1.0 / (values.len() as f32).sqrt();
    values.iter_mut().for_each(|value| *value *= factor);
}

#[cfg(test)]
mod tests {
    use meta::Rotation;

    use super::*;

    /// The matrix by its definition.
    fn hadamard(order: usize) -> Vec<Vec<f64>> {
        if order == 1 {
            return vec![vec![1.0]];
        }
        let smaller = hadamard(order / 4);
        let sign = |a: usize, b: usize| if a + b == 3 { -1.0 } else { 1.0 };
        let size = order / 4;
        let value = |r: usize, c: usize| sign(r / size, c / size) * smaller[r % size][c % size];
        (0..order).map(|r| (0..order).map(|c| value(r, c)).collect()).collect()
    }

    #[test]
    fn a_rotation_is_a_product_with_the_regular_hadamard_matrix_and_its_own_inverse() {
        for group in [4, 16, 64, 256, 1024] {
            assert!(Rotation::new(group).is_some());
            // Small whole numbers: every sum is exact.
            let values: Vec<f32> = (0..group).map(|i| ((i * 37 + 11) % 255) as f32 - 127.0).collect();
            let matrix = hadamard(group);
            let root = (group as f64).sqrt();
            let dot =
                |row: &Vec<f64>| row.iter().zip(&values).map(|(m, v)| m * f64::from(*v)).sum::<f64>() / root;
            let expected: Vec<f32> = matrix.iter().map(|row| dot(row) as f32).collect();
            let mut rotated = values.clone();
            rotate(&mut rotated);
            assert_eq!(rotated, expected, "{group}");
            rotate(&mut rotated);
            assert_eq!(rotated, values, "{group}");
        }
    }
}
