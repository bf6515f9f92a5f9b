//! Orthogonal patches (OFT): each block of rows of a weight is rotated by `(I + Q)(I − Q)⁻¹`, where `Q` is what a
//! file's block lacks of being symmetric.

use checkpoint::EntryBytes;
use meta::{DType, Encoding, Shape};

use crate::Factor;

/// The most rows that one block may have; released files have at most a few hundred.
const MOST_ROWS: usize = 1024;

/// The rotations of one weight's blocks.
#[derive(Clone, Debug)]
pub struct Oft {
    /// What the rotations, transposed, differ from none: `[blocks, rows, rows]` in f32.
    turns: Factor,
}

impl Oft {
    /// Reads the blocks of a file, `[blocks, rows, rows]`. `most` bounds the length of all `Q` together, as files say in
    /// their `alpha`; none and 0 do not.
    pub(crate) fn read(blocks: &Factor, most: Option<f64>) -> Result<Oft, &'static str> {
        let [count, rows] = match *blocks.shape().dims() {
            [count, rows, columns] if rows == columns && rows <= MOST_ROWS => [count, rows],
            [_, _, _, _] => return Err("an orthogonal patch in butterfly form (BOFT)"),
            _ => return Err("an orthogonal patch whose blocks are not square"),
        };
        let values = blocks.values().ok_or("an orthogonal patch that is not stored in 16 or 32 bits")?;
        let mut skew: Vec<f64> = (0..count * rows * rows).map(|at| difference(&values, rows, at)).collect();
        let length = skew.iter().map(|value| value * value).sum::<f64>().sqrt() + 1e-8;
        if let Some(most) = most.filter(|most| *most > 0.0 && length > *most) {
            skew.iter_mut().for_each(|value| *value *= most / length);
        }
        let turns = skew.chunks_exact(rows * rows).map(|skew| turn(skew, rows));
        let turns: Option<Vec<Vec<f32>>> = turns.collect();
        let turns = turns.ok_or("an orthogonal patch without a rotation")?;
        let bytes = turns.concat().iter().flat_map(|value| value.to_le_bytes()).collect();
        let bytes = EntryBytes::computed(blocks.name(), bytes);
        let shape = Shape::from([count, rows, rows]);
        Ok(Oft { turns: Factor::of_weight(blocks.name(), bytes, Encoding::Plain(DType::F32), shape) })
    }

    /// What the rotations, transposed, differ from none.
    pub(crate) fn turns(&self) -> &Factor {
        &self.turns
    }

    /// Rows of one block.
    pub(crate) fn block_rows(&self) -> usize {
        self.turns.shape().last()
    }

    /// Rows of the weight.
    pub(crate) fn rows(&self) -> usize {
        let (blocks, _) = self.turns.flat();
        blocks.saturating_mul(self.block_rows())
    }
}

/// A value of `blocks − blocksᵀ`, by its place.
fn difference(values: &[f32], rows: usize, at: usize) -> f64 {
    let (block, row, column) = (at / (rows * rows), at / rows % rows, at % rows);
    f64::from(values[at]) - f64::from(values[block * rows * rows + column * rows + row])
}

/// `((I + Q)(I − Q)⁻¹ − I)ᵀ` of one block. With `Qᵀ = −Q` that is `(I + Q)⁻¹(I − Q) − I = −2 (I + Q)⁻¹ Q`, which
/// elimination with pivots solves for; `I + Q` always has an inverse unless values are not finite.
fn turn(skew: &[f64], rows: usize) -> Option<Vec<f32>> {
    let mut left: Vec<f64> = skew.to_vec();
    (0..rows).for_each(|i| left[i * rows + i] += 1.0);
    let mut right: Vec<f64> = skew.iter().map(|value| -2.0 * value).collect();
    for column in 0..rows {
        let size = |row: &usize| left[row * rows + column].abs();
        let pivot = (column..rows).max_by(|a, b| size(a).total_cmp(&size(b)))?;
        let value = left[pivot * rows + column];
        if !value.is_finite() || value == 0.0 {
            return None;
        }
        for at in 0..rows {
            left.swap(column * rows + at, pivot * rows + at);
            right.swap(column * rows + at, pivot * rows + at);
        }
        for row in (0..rows).filter(|row| *row != column) {
            let factor = left[row * rows + column] / value;
            if factor != 0.0 {
                for at in 0..rows {
                    left[row * rows + at] -= factor * left[column * rows + at];
                    right[row * rows + at] -= factor * right[column * rows + at];
                }
            }
        }
        for at in 0..rows {
            left[column * rows + at] /= value;
            right[column * rows + at] /= value;
        }
    }
    Some(right.into_iter().map(|value| value as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_keeps_lengths() {
        let rows = 5;
        let values: Vec<f32> = (0..rows * rows).map(|i| (i as f32 * 1.7).sin()).collect();
        let skew: Vec<f64> = (0..rows * rows).map(|at| difference(&values, rows, at)).collect();
        let mut rotation = turn(&skew, rows).unwrap();
        (0..rows).for_each(|i| rotation[i * rows + i] += 1.0);
        for a in 0..rows {
            for b in 0..rows {
                let dot: f32 = (0..rows).map(|k| rotation[a * rows + k] * rotation[b * rows + k]).sum();
                assert!((dot - f32::from(u8::from(a == b))).abs() < 1e-6, "{a} {b} {dot}");
            }
        }
        assert_eq!(turn(&[f64::NAN], 1), None);
    }
}
