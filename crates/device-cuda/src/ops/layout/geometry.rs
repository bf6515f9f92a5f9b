//! How kernels see operands: their element types, and their common dimensions, as few as possible.

use device::{Error, Operand, Result};
use meta::{DType, MAX_RANK};

use crate::kernel::Launch;

/// Threads of a block in kernels that give each thread one piece of work.
pub(crate) const THREADS: u32 = 256;
/// Bytes of the widest access of one thread.
pub(crate) const ACCESS_BYTES: usize = 16;

/// The name of an element type in kernels.
pub(crate) const fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "f64",
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F8E4M3 => "f8e4m3",
        DType::F8E5M2 => "f8e5m2",
        DType::I64 => "i64",
        DType::I32 => "i32",
        DType::I16 => "i16",
        DType::I8 => "i8",
        DType::U64 => "u64",
        DType::U32 => "u32",
        DType::U16 => "u16",
        DType::U8 => "u8",
        DType::Bool => "boolean",
    }
}

/// The element type of an operand that a check has found to be plain.
pub(crate) fn element(launch: &Launch<'_>, op: &'static str, operand: &Operand) -> Result<DType> {
    operand.dtype().ok_or_else(|| unsupported(launch, op, format!("{operand:?} is quantised")))
}

/// A valid call that no kernel covers.
pub(crate) fn unsupported(launch: &Launch<'_>, op: &'static str, reason: String) -> Error {
    Error::Unsupported { device: launch.runtime.context.id(), op, reason }
}

/// The type in which kernels count `count` pieces of work; the narrow one divides faster.
pub(crate) const fn index_type(count: usize) -> &'static str {
    if count < 1 << 31 { "u32" } else { "u64" }
}

/// Blocks for `count` threads.
pub(crate) fn blocks(launch: &Launch<'_>, op: &'static str, count: usize) -> Result<[u32; 3]> {
    Ok([block_count(launch, op, count.div_ceil(THREADS as usize))?, 1, 1])
}

/// A number of blocks along the first dimension of a grid.
pub(crate) fn block_count(launch: &Launch<'_>, op: &'static str, count: usize) -> Result<u32> {
    let fits = u32::try_from(count).ok().filter(|count| *count < 1 << 31);
    fits.ok_or_else(|| unsupported(launch, op, format!("{count} blocks are more than a grid may have")))
}

/// The common dimensions of several operands with the strides of each, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    sizes: Vec<usize>,
    /// For each operand, one stride for each dimension.
    strides: Vec<Vec<usize>>,
    bases: Vec<u64>,
}

impl Walk {
    /// A walk in the order of the first operand's memory. Dimensions of one index are left out, and
    /// dimensions that are one dimension in every operand are merged.
    pub(crate) fn new(dims: &[usize], strides: &[&[usize]], bases: &[u64]) -> Walk {
        let mut axes: Vec<usize> = (0..dims.len()).filter(|&axis| dims[axis] != 1).collect();
        axes.sort_by_key(|&axis| std::cmp::Reverse(strides[0][axis]));
        Walk::merged(&axes, dims, strides, bases)
    }

    /// As [`Walk::new`], but in the order of the dimensions.
    pub(crate) fn in_order(dims: &[usize], strides: &[&[usize]], bases: &[u64]) -> Walk {
        let axes: Vec<usize> = (0..dims.len()).filter(|&axis| dims[axis] != 1).collect();
        Walk::merged(&axes, dims, strides, bases)
    }

    /// A walk over operands of one shape, the output first.
    pub(crate) fn over(launch: &Launch<'_>, operands: &[&Operand]) -> Result<Walk> {
        let bases = operands.iter().map(|o| launch.pointer(o)).collect::<Result<Vec<u64>>>()?;
        let strides: Vec<&[usize]> = operands.iter().map(|o| o.strides()).collect();
        Ok(Walk::new(operands[0].dims(), &strides, &bases))
    }

    /// A walk over the rows of operands of one shape: over all dimensions but the last.
    pub(crate) fn over_rows(launch: &Launch<'_>, operands: &[&Operand]) -> Result<Walk> {
        let bases = operands.iter().map(|o| launch.pointer(o)).collect::<Result<Vec<u64>>>()?;
        let leading = operands[0].rank().saturating_sub(1);
        let strides: Vec<&[usize]> = operands.iter().map(|o| &o.strides()[..leading]).collect();
        Ok(Walk::new(&operands[0].dims()[..leading], &strides, &bases))
    }

    fn merged(axes: &[usize], dims: &[usize], strides: &[&[usize]], bases: &[u64]) -> Walk {
        let mut walk =
            Walk { sizes: Vec::new(), strides: vec![Vec::new(); strides.len()], bases: bases.to_vec() };
        for &axis in axes {
            let one = walk.sizes.last().is_some_and(|_| {
                let mut pairs = walk.strides.iter().zip(strides);
                pairs.all(|(outer, own)| outer.last() == Some(&(own[axis] * dims[axis])))
            });
            if one {
                let last = walk.sizes.len() - 1;
                walk.sizes[last] *= dims[axis];
                walk.strides.iter_mut().zip(strides).for_each(|(to, own)| to[last] = own[axis]);
            } else {
                walk.push(dims[axis], strides.iter().map(|own| own[axis]));
            }
        }
        if walk.sizes.is_empty() {
            walk.push(1, strides.iter().map(|_| 0));
        }
        walk
    }

    fn push(&mut self, size: usize, strides: impl Iterator<Item = usize>) {
        self.sizes.push(size);
        self.strides.iter_mut().zip(strides).for_each(|(to, stride)| to.push(stride));
    }

    /// Sizes of the dimensions, outermost first; at least one.
    pub(crate) fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The strides of one operand.
    pub(crate) fn strides(&self, operand: usize) -> &[usize] {
        &self.strides[operand]
    }

    /// How many steps the walk has.
    pub(crate) fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The walk without some of its dimensions.
    pub(crate) fn without(&self, axes: &[usize]) -> Walk {
        let mut rest = Walk {
            sizes: Vec::new(),
            strides: vec![Vec::new(); self.bases.len()],
            bases: self.bases.clone(),
        };
        for axis in (0..self.sizes.len()).filter(|axis| !axes.contains(axis)) {
            rest.push(self.sizes[axis], self.strides.iter().map(|own| own[axis]));
        }
        if rest.sizes.is_empty() {
            rest.push(1, self.bases.iter().map(|_| 0));
        }
        rest
    }

    /// The walk in steps of `pack` elements of the last dimension, if every operand either has them side
    /// by side at aligned addresses or repeats one value. The output must have them side by side.
    /// `element_bytes` has one size for each operand.
    pub(crate) fn packed(&self, pack: usize, element_bytes: &[usize]) -> Option<Walk> {
        let last = self.sizes.len() - 1;
        let fits = |(operand, own): (usize, &Vec<usize>)| match own[last] {
            0 => operand > 0,
            1 => {
                let access = (pack * element_bytes[operand]).min(ACCESS_BYTES) as u64;
                self.bases[operand].is_multiple_of(access)
                    && own[..last].iter().all(|s| s.is_multiple_of(pack))
            }
            _ => false,
        };
        if !self.sizes[last].is_multiple_of(pack) || !self.strides.iter().enumerate().all(fits) {
            return None;
        }
        let mut walk = self.clone();
        walk.sizes[last] /= pack;
        walk.strides.iter_mut().for_each(|own| own[last] *= pack);
        Some(walk)
    }

    /// Whether every row of `pack`-element pieces of all operands starts at an aligned address; for walks
    /// over rows.
    pub(crate) fn rows_are_aligned(&self, pack: usize, element_bytes: usize) -> bool {
        let access = (pack * element_bytes).min(ACCESS_BYTES) as u64;
        self.bases.iter().all(|base| base.is_multiple_of(access))
            && self.strides.iter().flatten().all(|stride| stride.is_multiple_of(pack))
    }

    /// The walk as the kernels' `Walk` structure.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + 64 + self.bases.len() * 72);
        bytes.extend((self.sizes.len() as u64).to_ne_bytes());
        put_row(&mut bytes, &self.sizes);
        self.strides.iter().for_each(|own| put_row(&mut bytes, own));
        self.bases.iter().for_each(|base| bytes.extend(base.to_ne_bytes()));
        bytes
    }
}

/// Eight 64-bit numbers, padded with zeros.
pub(crate) fn put_row(bytes: &mut Vec<u8>, values: &[usize]) {
    let padded = values.iter().copied().chain(std::iter::repeat(0)).take(MAX_RANK);
    padded.for_each(|value| bytes.extend((value as i64).to_ne_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_operands_have_one_dimension() {
        let strides: &[usize] = &[60, 12, 12, 4, 1];
        let walk = Walk::new(&[2, 5, 1, 3, 4], &[strides, strides], &[0, 0]);
        assert_eq!((walk.sizes(), walk.strides(1)), (&[120][..], &[1][..]));
        assert_eq!(Walk::new(&[1, 1], &[&[7, 1]], &[0]).sizes(), [1]);
    }

    #[test]
    fn repeated_dimensions_merge_with_each_other_only() {
        // A scale for each batch and channel, the same for all positions.
        let walk = Walk::new(&[2, 3, 5, 8], &[&[120, 40, 8, 1], &[8, 0, 0, 1]], &[0, 0]);
        assert_eq!((walk.sizes(), walk.strides(0)), (&[2, 15, 8][..], &[120, 8, 1][..]));
        assert_eq!(walk.strides(1), [8, 0, 1]);
    }

    #[test]
    fn the_first_operand_decides_the_order() {
        let walk = Walk::new(&[4, 6], &[&[1, 4], &[6, 1]], &[0, 0]);
        assert_eq!((walk.sizes(), walk.strides(0), walk.strides(1)), (&[6, 4][..], &[4, 1][..], &[1, 6][..]));
        let kept = Walk::in_order(&[4, 6], &[&[1, 4]], &[0]);
        assert_eq!(kept.sizes(), [4, 6]);
    }

    #[test]
    fn packs_need_alignment_and_whole_rows() {
        let walk = |bases: [u64; 2], row: usize| Walk::new(&[3, 16], &[&[row, 1], &[0, 1]], &bases);
        let packed = walk([32, 64], 24).packed(8, &[2, 2]).unwrap();
        assert_eq!(
            (packed.sizes(), packed.strides(0), packed.strides(1)),
            (&[3, 2][..], &[24, 8][..], &[0, 8][..])
        );
        assert_eq!(packed.count(), 6);
        assert!(walk([34, 64], 24).packed(8, &[2, 2]).is_none());
        assert!(walk([32, 64], 20).packed(8, &[2, 2]).is_none());
        assert!(Walk::new(&[3, 12], &[&[24, 1]], &[0]).packed(8, &[2]).is_none());
        // A value that repeats along the row needs no alignment; an output cannot repeat.
        assert!(Walk::new(&[3, 16], &[&[16, 1], &[1, 0]], &[0, 2]).packed(8, &[2, 2]).is_some());
        assert!(Walk::new(&[3, 16], &[&[1, 0]], &[0]).packed(8, &[2]).is_none());
    }

    #[test]
    fn kernels_get_fixed_rows() {
        let bytes = Walk::new(&[3, 16], &[&[24, 1], &[0, 1]], &[32, 64]).bytes();
        assert_eq!(bytes.len(), 8 + 64 + 2 * 64 + 2 * 8);
        assert_eq!((bytes[0], bytes[8], bytes[16], bytes[72]), (2, 3, 16, 24));
    }
}
