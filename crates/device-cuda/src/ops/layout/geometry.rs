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

/// The most operands that a kernel walks over at once: an output and three inputs.
const MOST_OPERANDS: usize = 4;

/// The common dimensions of several operands with the strides of each, in elements. It is made for every launch, so
/// nothing of it is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    rank: usize,
    operands: usize,
    sizes: [usize; MAX_RANK],
    /// For each operand, one stride for each dimension.
    strides: [[usize; MAX_RANK]; MOST_OPERANDS],
    bases: [u64; MOST_OPERANDS],
}

impl Walk {
    /// A walk in the order of the first operand's memory. Dimensions of one index are left out, and
    /// dimensions that are one dimension in every operand are merged.
    pub(crate) fn new(dims: &[usize], strides: &[&[usize]], bases: &[u64]) -> Walk {
        let mut axes = [0; MAX_RANK];
        let axes = long_axes(dims, &mut axes);
        axes.sort_by_key(|&axis| std::cmp::Reverse(strides[0][axis]));
        Walk::merged(axes, dims, strides, bases)
    }

    /// As [`Walk::new`], but in the order of the dimensions.
    pub(crate) fn in_order(dims: &[usize], strides: &[&[usize]], bases: &[u64]) -> Walk {
        Walk::merged(long_axes(dims, &mut [0; MAX_RANK]), dims, strides, bases)
    }

    /// A walk over operands of one shape, the output first.
    pub(crate) fn over(launch: &Launch<'_>, operands: &[&Operand]) -> Result<Walk> {
        Walk::over_leading(launch, operands, operands[0].rank())
    }

    /// A walk over the rows of operands of one shape: over all dimensions but the last.
    pub(crate) fn over_rows(launch: &Launch<'_>, operands: &[&Operand]) -> Result<Walk> {
        Walk::over_leading(launch, operands, operands[0].rank().saturating_sub(1))
    }

    /// A walk over the first dimensions of operands of one shape.
    fn over_leading(launch: &Launch<'_>, operands: &[&Operand], leading: usize) -> Result<Walk> {
        let mut bases = [0; MOST_OPERANDS];
        let mut strides: [&[usize]; MOST_OPERANDS] = [&[]; MOST_OPERANDS];
        for (i, operand) in operands.iter().enumerate() {
            bases[i] = launch.pointer(operand)?;
            strides[i] = &operand.strides()[..leading];
        }
        let count = operands.len();
        Ok(Walk::new(&operands[0].dims()[..leading], &strides[..count], &bases[..count]))
    }

    fn merged(axes: &[usize], dims: &[usize], strides: &[&[usize]], bases: &[u64]) -> Walk {
        let mut walk = Walk::of_no_dimensions(bases);
        for &axis in axes {
            let one = walk.rank > 0 && {
                let mut pairs = walk.strides.iter().zip(strides);
                pairs.all(|(outer, own)| outer[walk.rank - 1] == own[axis] * dims[axis])
            };
            if one {
                let last = walk.rank - 1;
                walk.sizes[last] *= dims[axis];
                walk.strides.iter_mut().zip(strides).for_each(|(to, own)| to[last] = own[axis]);
            } else {
                walk.push(dims[axis], strides.iter().map(|own| own[axis]));
            }
        }
        walk.or_one_step()
    }

    fn of_no_dimensions(bases: &[u64]) -> Walk {
        let mut own = [0; MOST_OPERANDS];
        own[..bases.len()].copy_from_slice(bases);
        Walk {
            rank: 0,
            operands: bases.len(),
            sizes: [0; MAX_RANK],
            strides: [[0; MAX_RANK]; MOST_OPERANDS],
            bases: own,
        }
    }

    /// A walk has at least one dimension.
    fn or_one_step(mut self) -> Walk {
        if self.rank == 0 {
            self.push(1, std::iter::repeat_n(0, self.operands));
        }
        self
    }

    fn push(&mut self, size: usize, strides: impl Iterator<Item = usize>) {
        self.sizes[self.rank] = size;
        self.strides.iter_mut().zip(strides).for_each(|(to, stride)| to[self.rank] = stride);
        self.rank += 1;
    }

    /// Sizes of the dimensions, outermost first; at least one.
    pub(crate) fn sizes(&self) -> &[usize] {
        &self.sizes[..self.rank]
    }

    /// The strides of one operand.
    pub(crate) fn strides(&self, operand: usize) -> &[usize] {
        &self.strides[operand][..self.rank]
    }

    /// The strides of each operand.
    fn all_strides(&self) -> impl Iterator<Item = &[usize]> {
        self.strides[..self.operands].iter().map(|own| &own[..self.rank])
    }

    /// How many steps the walk has.
    pub(crate) fn count(&self) -> usize {
        self.sizes().iter().product()
    }

    /// The walk without some of its dimensions.
    pub(crate) fn without(&self, axes: &[usize]) -> Walk {
        let mut rest = Walk::of_no_dimensions(&self.bases[..self.operands]);
        for axis in (0..self.rank).filter(|axis| !axes.contains(axis)) {
            rest.push(self.sizes[axis], self.all_strides().map(|own| own[axis]));
        }
        rest.or_one_step()
    }

    /// The walk in steps of `pack` elements of the last dimension, if every operand either has them side
    /// by side at aligned addresses or repeats one value. The output must have them side by side.
    /// `element_bytes` has one size for each operand.
    pub(crate) fn packed(&self, pack: usize, element_bytes: &[usize]) -> Option<Walk> {
        let last = self.rank - 1;
        let fits = |(operand, own): (usize, &[usize])| match own[last] {
            0 => operand > 0,
            1 => {
                let access = (pack * element_bytes[operand]).min(ACCESS_BYTES) as u64;
                self.bases[operand].is_multiple_of(access)
                    && own[..last].iter().all(|s| s.is_multiple_of(pack))
            }
            _ => false,
        };
        if !self.sizes[last].is_multiple_of(pack) || !self.all_strides().enumerate().all(fits) {
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
        self.bases[..self.operands].iter().all(|base| base.is_multiple_of(access))
            && self.all_strides().flatten().all(|stride| stride.is_multiple_of(pack))
    }

    /// The walk as the kernels' `Walk` structure.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + 64 + self.operands * 72);
        bytes.extend((self.rank as u64).to_ne_bytes());
        put_row(&mut bytes, self.sizes());
        self.all_strides().for_each(|own| put_row(&mut bytes, own));
        self.bases[..self.operands].iter().for_each(|base| bytes.extend(base.to_ne_bytes()));
        bytes
    }
}

/// The dimensions of more than one index.
fn long_axes<'a>(dims: &[usize], axes: &'a mut [usize; MAX_RANK]) -> &'a mut [usize] {
    let mut count = 0;
    for axis in (0..dims.len()).filter(|&axis| dims[axis] != 1) {
        axes[count] = axis;
        count += 1;
    }
    &mut axes[..count]
}

/// Eight 64-bit numbers, padded with zeros.
pub(crate) fn put_row(bytes: &mut Vec<u8>, values: &[usize]) {
    let mut row = [0; MAX_RANK * 8];
    for (to, value) in row.chunks_exact_mut(8).zip(values) {
        to.copy_from_slice(&(*value as i64).to_ne_bytes());
    }
    bytes.extend_from_slice(&row);
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
