//! Plain quantisation of matrices into the schemes whose scales stand beside them, byte for byte as the reference's
//! quantisers make them; only rotations are summed exactly and rounded once.

use meta::{DType, Encoding, Rotation, Scheme, Shape};

use crate::Error;
use crate::encode::{decode, encode};

/// The largest values of e4m3, e5m2 and e2m1.
const LARGEST_E4M3: f32 = 448.0;
const LARGEST_E5M2: f32 = 57344.0;
const LARGEST_E2M1: f32 = 6.0;
/// The magnitudes that e2m1 codes stand for.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// A quantised matrix: what a file has under `weight`, `weight_scale` and `weight_scale_2`.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantisedMatrix {
    /// The codes.
    pub codes: Vec<u8>,
    /// The matrix's shape as it is stored, filled up to whole blocks.
    pub stored: Shape,
    /// Bytes of its scales.
    pub scales: Vec<u8>,
    /// How those are stored.
    pub scales_as: DType,
    /// Their shape.
    pub scales_shape: Shape,
    /// What multiplies the scales of blocks.
    pub tensor_scale: Option<f32>,
}

/// Quantises a matrix of `[rows, columns]` into a scheme, or into scaled 8-bit floats. Others cannot be written.
pub fn quantise_matrix(
    encoding: Encoding,
    values: &[f32],
    dims: [usize; 2],
) -> Result<QuantisedMatrix, Error> {
    match encoding {
        Encoding::Plain(dtype @ (DType::F8E4M3 | DType::F8E5M2)) => fp8(dtype, values, dims),
        Encoding::Scaled(Scheme::Int8 { rotation }) => Ok(int8(rotation, values, dims)),
        Encoding::Scaled(Scheme::Mxfp8) => mxfp8(values, dims),
        Encoding::Scaled(Scheme::Nvfp4) => nvfp4(values, dims),
        _ => Err(Error::Conversion { direction: "to", encoding }),
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, value| most.max(value.abs()))
}

/// e4m3 codes of values, which stay in its range.
fn e4m3(values: &[f32]) -> Result<Vec<u8>, Error> {
    let held: Vec<f32> = values.iter().map(|value| value.clamp(-LARGEST_E4M3, LARGEST_E4M3)).collect();
    encode(DType::F8E4M3.into(), &held)
}

fn fp8(dtype: DType, values: &[f32], dims: [usize; 2]) -> Result<QuantisedMatrix, Error> {
    let most = if dtype == DType::F8E4M3 { LARGEST_E4M3 } else { LARGEST_E5M2 };
    let scale = largest(values) / most;
    let inverse = 1.0 / scale;
    let held: Vec<f32> = values.iter().map(|value| (value * inverse).clamp(-most, most)).collect();
    Ok(QuantisedMatrix {
        codes: encode(dtype.into(), &held)?,
        stored: Shape::from(dims),
        scales: scale.to_le_bytes().to_vec(),
        scales_as: DType::F32,
        scales_shape: Shape::scalar(),
        tensor_scale: None,
    })
}

fn int8(rotation: Option<Rotation>, values: &[f32], dims @ [rows, columns]: [usize; 2]) -> QuantisedMatrix {
    let mut turned = values.to_vec();
    if let Some(rotation) = rotation {
        turned.chunks_exact_mut(rotation.group()).for_each(rotate_exactly);
    }
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for row in turned.chunks_exact(columns) {
        let scale = (largest(row) / 127.0).max(1e-30);
        scales.extend(scale.to_le_bytes());
        codes.extend(
            row.iter().map(|value| (value / scale).round_ties_even().clamp(-128.0, 127.0) as i8 as u8),
        );
    }
    QuantisedMatrix {
        codes,
        stored: Shape::from(dims),
        scales,
        scales_as: DType::F32,
        scales_shape: Shape::from([rows, 1]),
        tensor_scale: None,
    }
}

/// A run times the regular Hadamard matrix of its length over the root of that, in f64, which holds every sum.
fn rotate_exactly(values: &mut [f32]) {
    let mut sums: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
    let mut distance = 1;
    while distance < sums.len() {
        for start in (0..sums.len()).filter(|at| at / distance % 4 == 0) {
            let at = [0, 1, 2, 3].map(|i| start + i * distance);
            let four = at.map(|at| sums[at]);
            let sum: f64 = four.iter().sum();
            at.iter().zip(four.iter().rev()).for_each(|(at, other)| sums[*at] = sum - 2.0 * other);
        }
        distance *= 4;
    }
    let root = (sums.len() as f64).sqrt();
    values.iter_mut().zip(sums).for_each(|(value, sum)| *value = (sum / root) as f32);
}

/// A matrix filled up with zeros to multiples of the scheme's padding.
fn filled_up(scheme: Scheme, values: &[f32], [rows, columns]: [usize; 2]) -> (Vec<f32>, [usize; 2]) {
    let stored = [rows, columns].map(|size| size.next_multiple_of(scheme.padding()));
    let mut padded = vec![0.0; stored[0] * stored[1]];
    for (to, from) in padded.chunks_exact_mut(stored[1]).zip(values.chunks_exact(columns)) {
        to[..columns].copy_from_slice(from);
    }
    (padded, stored)
}

/// The scales of blocks, row by row, in the order of files.
fn in_tiles(scheme: Scheme, scales: &[u8], [rows, columns]: [usize; 2]) -> (Vec<u8>, Shape) {
    let blocks = columns / scheme.block_len();
    let Some(tiles) = scheme.tiles(columns) else { return (scales.to_vec(), Shape::from([rows, blocks])) };
    let grid = tiles.grid(rows);
    let mut ordered = vec![0; grid[0] * grid[1]];
    for (at, scale) in scales.iter().enumerate() {
        ordered[tiles.offset(at / blocks, at % blocks)] = *scale;
    }
    (ordered, Shape::from(grid))
}

fn mxfp8(values: &[f32], dims: [usize; 2]) -> Result<QuantisedMatrix, Error> {
    let (padded, stored) = filled_up(Scheme::Mxfp8, values, dims);
    let (mut codes, mut exponents) = (Vec::new(), Vec::new());
    for block in padded.as_chunks::<32>().0 {
        let most = largest(block);
        // The smallest power of two that is not below the quotient: its exponent, or the next if there are more digits.
        let bits = (most / LARGEST_E4M3).max(f32::from_bits(1 << 22)).to_bits();
        let exponent = ((bits >> 23) + u32::from(bits & 0x7f_ffff != 0)).min(254) as u8;
        let scale = if most == 0.0 { 1.0 } else { f32::from_bits(u32::from(exponent) << 23) };
        codes.extend(e4m3(&block.map(|value| value / scale))?);
        exponents.push(if most == 0.0 { 0 } else { exponent });
    }
    let (scales, scales_shape) = in_tiles(Scheme::Mxfp8, &exponents, stored);
    let stored = Shape::from(stored);
    Ok(QuantisedMatrix { codes, stored, scales, scales_as: DType::U8, scales_shape, tensor_scale: None })
}

fn nvfp4(values: &[f32], dims: [usize; 2]) -> Result<QuantisedMatrix, Error> {
    let tensor = largest(values) / (LARGEST_E4M3 * LARGEST_E2M1);
    let (padded, stored) = filled_up(Scheme::Nvfp4, values, dims);
    let (blocks, _) = padded.as_chunks::<16>();
    let wanted: Vec<f32> = blocks.iter().map(|block| largest(block) / LARGEST_E2M1 / tensor).collect();
    let block_scales = e4m3(&wanted)?;
    let decoded = decode(DType::F8E4M3.into(), &block_scales)?;
    let mut codes = Vec::new();
    for (block, scale) in blocks.iter().zip(decoded) {
        let whole = tensor * scale;
        let code = |value: &f32| if whole == 0.0 { e2m1(0.0) } else { e2m1(value / whole) };
        codes.extend(block.as_chunks::<2>().0.iter().map(|[even, odd]| code(even) << 4 | code(odd)));
    }
    let (scales, scales_shape) = in_tiles(Scheme::Nvfp4, &block_scales, stored);
    let (stored, scales_as) = (Shape::from(stored), DType::F8E4M3);
    Ok(QuantisedMatrix { codes, stored, scales, scales_as, scales_shape, tensor_scale: Some(tensor) })
}

/// The nearest e2m1 code, of two as near the even one.
fn e2m1(value: f32) -> u8 {
    let magnitude = value.abs().min(LARGEST_E2M1);
    let above = E2M1.iter().position(|known| *known >= magnitude).unwrap_or(7);
    let below = above.saturating_sub(1);
    let (down, up) = (magnitude - E2M1[below], E2M1[above] - magnitude);
    let nearest = if up < down || (up == down && above % 2 == 0) { above } else { below };
    nearest as u8 | u8::from(value.is_sign_negative()) << 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_even_codes() {
        let codes = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, -0.0, -2.5, 0.0].map(e2m1);
        assert_eq!(codes, [0, 2, 2, 4, 4, 6, 6, 7, 8, 12, 0]);
    }

    #[test]
    fn matrices_are_filled_up_and_their_scales_ordered() {
        let values: Vec<f32> = (0..40 * 72).map(|at| (at % 13) as f32 - 6.0).collect();
        let matrix = quantise_matrix(Scheme::Nvfp4.into(), &values, [40, 72]).unwrap();
        assert_eq!((matrix.stored, matrix.scales_shape), (Shape::from([48, 80]), Shape::from([128, 8])));
        assert_eq!((matrix.codes.len(), matrix.scales.len()), (48 * 40, 1024));
        let matrix = quantise_matrix(Scheme::Mxfp8.into(), &values, [40, 72]).unwrap();
        assert_eq!((matrix.stored, matrix.scales_shape), (Shape::from([64, 96]), Shape::from([128, 4])));
        assert!(quantise_matrix(Encoding::F32, &values, [40, 72]).is_err());
    }
}
