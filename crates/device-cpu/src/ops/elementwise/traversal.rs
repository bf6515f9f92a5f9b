//! The order in which strided operands are gone through together: few dimensions, long rows.

use std::cmp::Reverse;
use std::marker::PhantomData;
use std::ops::Range;

use device::{Error, Operand, Result};
use meta::MAX_RANK;
use rayon::prelude::*;

use crate::stop::Tasks;

/// Values that one parallel task works on at least. Work is cut by this alone, never by the threads.
pub(crate) const TASK: usize = 16 * 1024;

/// Dimensions shared by several operands, merged and sorted so that the first operand, which is
/// written, is gone through in memory order. The last dimension is the row.
pub(crate) struct Traversal {
    dims: [usize; MAX_RANK],
    rank: usize,
    /// For each operand, elements from one index of each dimension to the next.
    strides: Vec<[usize; MAX_RANK]>,
}

impl Traversal {
    /// Of operands whose strides are given for the same dimensions, the written operand first.
    pub(crate) fn new(dims: &[usize], operands: &[&[usize]]) -> Traversal {
        let mut order: Vec<usize> = (0..dims.len()).filter(|&i| dims[i] != 1).collect();
        order.sort_by_key(|&i| Reverse(operands[0][i]));
        Traversal::in_order(dims, operands, &order)
    }

    /// The same with the dimensions in the order given; those left out must have size 1.
    pub(crate) fn in_order(dims: &[usize], operands: &[&[usize]], order: &[usize]) -> Traversal {
        let mut merged =
            Traversal { dims: [1; MAX_RANK], rank: 0, strides: vec![[1; MAX_RANK]; operands.len()] };
        for &i in order {
            let last = merged.rank.wrapping_sub(1);
            let joins = merged.rank > 0
                && merged.strides.iter().zip(operands).all(|(m, s)| m[last] == s[i] * dims[i]);
            let at = if joins { last } else { merged.rank };
            merged.dims[at] = if joins { merged.dims[at] * dims[i] } else { dims[i] };
            for (m, s) in merged.strides.iter_mut().zip(operands) {
                m[at] = s[i];
            }
            merged.rank = at + 1;
        }
        merged.rank = merged.rank.max(1);
        merged
    }

    /// Dimensions before the row, outermost first.
    fn outer(&self) -> &[usize] {
        &self.dims[..self.rank - 1]
    }

    /// Number of values.
    pub(crate) fn count(&self) -> usize {
        self.rows() * self.row_len()
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.outer().iter().product()
    }

    /// Values of a row.
    pub(crate) fn row_len(&self) -> usize {
        self.dims[self.rank - 1]
    }

    /// Elements between neighbours in an operand's rows.
    pub(crate) fn row_stride(&self, operand: usize) -> usize {
        self.strides[operand][self.rank - 1]
    }

    /// Where a row starts in an operand, in elements.
    #[inline]
    pub(crate) fn row_start(&self, operand: usize, row: usize) -> usize {
        let (mut rest, mut start) = (row, 0);
        for axis in (0..self.rank - 1).rev() {
            start += rest % self.dims[axis] * self.strides[operand][axis];
            rest /= self.dims[axis];
        }
        start
    }

    /// Where a value is in an operand, in elements.
    #[inline]
    pub(crate) fn position(&self, operand: usize, index: usize) -> usize {
        let len = self.row_len();
        self.row_start(operand, index / len) + index % len * self.row_stride(operand)
    }
}

/// An output that several threads write, each in its own places.
pub(crate) struct Target<'a> {
    start: *mut f32,
    len: usize,
    _output: PhantomData<&'a mut [f32]>,
}

// SAFETY: `part` asks its callers to write distinct places.
unsafe impl Sync for Target<'_> {}

impl<'a> Target<'a> {
    /// All of an output.
    pub(crate) fn new(output: &'a mut [f32]) -> Target<'a> {
        Target { start: output.as_mut_ptr(), len: output.len(), _output: PhantomData }
    }

    /// Part of it; panics if it reaches outside.
    ///
    /// # Safety
    /// While the part is in use, no other part may overlap it.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the caller promises that parts are apart")]
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> &mut [f32] {
        assert!(at <= self.len && len <= self.len - at, "{len} values at {at} of {}", self.len);
        // SAFETY: inside the output, as just checked; the caller keeps other parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

/// An output must not repeat: threads would write over each other.
pub(crate) fn check_distinct(op: &'static str, out: &Operand) -> Result<()> {
    let repeats = out.dims().iter().zip(out.strides()).any(|(&d, &s)| d > 1 && s == 0);
    if !repeats {
        return Ok(());
    }
    Err(Error::Operand {
        op,
        operand: "output",
        expected: "a place for every value".into(),
        got: format!("{out:?} with strides {:?}, which repeat", out.strides()),
    })
}

/// Runs pieces `0..count` in tasks of at least [`TASK`] values each, in parallel where there are several, until the job is
/// cancelled.
pub(crate) fn in_tasks(count: usize, values_per_piece: usize, work: impl Fn(Range<usize>) + Sync) {
    let pieces = TASK.div_ceil(values_per_piece.max(1)).max(1);
    let tasks = count.div_ceil(pieces);
    if tasks <= 1 {
        work(0..count);
        return;
    }
    let job = Tasks::of_this_job();
    // Tasks are small and have no loops in them that would ask which job they are for.
    let wanted = |task: usize| (!job.is_cancelled()).then_some(task);
    (0..tasks).into_par_iter().filter_map(wanted).for_each(|t| work(t * pieces..count.min((t + 1) * pieces)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_operands_become_one_row() {
        let t = Traversal::new(&[2, 1, 3, 4], &[&[12, 99, 4, 1], &[12, 7, 4, 1]]);
        assert_eq!((t.rows(), t.row_len(), t.row_stride(0), t.row_stride(1)), (1, 24, 1, 1));
        let scalar = Traversal::new(&[], &[&[], &[]]);
        assert_eq!((scalar.rows(), scalar.row_len()), (1, 1));
    }

    #[test]
    fn repeated_rows_stay_rows() {
        // [2, 5, 4] with a summand [2, 1, 4].
        let t = Traversal::new(&[2, 5, 4], &[&[20, 4, 1], &[4, 0, 1]]);
        assert_eq!((t.rows(), t.row_len()), (10, 4));
        assert_eq!((t.row_start(0, 7), t.row_start(1, 7)), (28, 4));
    }

    #[test]
    fn a_permuted_output_is_written_in_memory_order() {
        let t = Traversal::new(&[3, 4, 5], &[&[1, 15, 3], &[20, 5, 1]]);
        assert_eq!((t.row_len(), t.row_stride(0), t.row_stride(1)), (3, 1, 20));
        // The other two are packed alike on both sides.
        assert_eq!(t.outer(), &[20]);
        assert_eq!((t.row_start(0, 7), t.row_start(1, 7)), (21, 7));
        assert_eq!((t.position(0, 22), t.position(1, 22)), (22, 27));
    }
}
