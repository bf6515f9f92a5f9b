//! Operands: typed, strided views of buffers. Views are values; making one moves no bytes.

use std::fmt;

use meta::{DType, Encoding, MAX_RANK, Shape};

use crate::{Buffer, Error, Result, Span};

/// A view of a buffer as a tensor. Strides count elements; 0 repeats. A quantised view is always
/// contiguous.
#[derive(Clone)]
pub struct Operand {
    buffer: Buffer,
    encoding: Encoding,
    shape: Shape,
    strides: [usize; MAX_RANK],
    offset: usize,
}

impl Operand {
    /// All of a contiguous tensor that starts `offset` bytes into the buffer.
    pub fn new(
        buffer: Buffer,
        encoding: Encoding,
        shape: impl Into<Shape>,
        offset: usize,
    ) -> Result<Operand> {
        let shape = shape.into();
        let len = encoding.bytes(&shape)?;
        let end = (offset as u64).checked_add(len);
        let view = Operand { buffer, encoding, shape, strides: contiguous_strides(&shape), offset };
        if end.is_none_or(|end| end > view.buffer.len() as u64) {
            return Err(view.error(format!(
                "{len} bytes at offset {offset} do not fit into a buffer of {} bytes",
                view.buffer.len()
            )));
        }
        Ok(view)
    }

    /// The buffer that holds the values.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// How the values are stored.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The element type, unless the values are quantised.
    pub fn dtype(&self) -> Option<DType> {
        self.encoding.dtype()
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The dimensions.
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// The size of one dimension, counted from the front.
    pub fn dim(&self, axis: usize) -> usize {
        self.dims()[axis]
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        self.shape.count()
    }

    /// Elements from one index of each dimension to the next.
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.rank()]
    }

    /// First byte in the buffer.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Whether the values stand one after the other in order.
    pub fn is_contiguous(&self) -> bool {
        let packed = contiguous_strides(&self.shape);
        let dims = self.dims().iter().enumerate();
        self.count() == 0 || dims.filter(|(_, d)| **d != 1).all(|(i, _)| self.strides[i] == packed[i])
    }

    /// Whether the values of the last dimension stand side by side.
    pub fn has_packed_rows(&self) -> bool {
        self.rank() == 0 || self.shape.last() <= 1 || self.strides[self.rank() - 1] == 1
    }

    /// The bytes from the first to past the last value.
    pub fn span(&self) -> Span {
        Span { buffer: self.buffer.clone(), offset: self.offset, len: self.extent() }
    }

    /// Bytes from the first value to past the last.
    pub fn extent(&self) -> usize {
        if self.count() == 0 {
            return 0;
        }
        let reach: usize = self.dims().iter().zip(self.strides()).map(|(d, s)| (d - 1) * s).sum();
        match self.encoding {
            Encoding::Plain(dtype) => (reach + 1) * dtype.bytes(),
            encoding => (reach + 1) / encoding.block_len() * encoding.block_bytes(),
        }
    }

    /// Bytes of the values it shows, each counted once however often it repeats.
    pub fn stored_bytes(&self) -> u64 {
        let axes = self.dims().iter().zip(self.strides());
        let values: u64 =
            axes.map(|(size, stride)| if *stride == 0 { (*size).min(1) } else { *size } as u64).product();
        values / self.encoding.block_len() as u64 * self.encoding.block_bytes() as u64
    }

    /// Whether both views have a byte in common (judged by their extents).
    pub fn overlaps(&self, other: &Operand) -> bool {
        let (a, b) = (self.extent(), other.extent());
        self.buffer.same_memory(&other.buffer)
            && a > 0
            && b > 0
            && self.offset < other.offset + b
            && other.offset < self.offset + a
    }

    /// Whether both views are of the same values in the same order.
    pub fn same_view(&self, other: &Operand) -> bool {
        self.buffer.same_memory(&other.buffer)
            && self.offset == other.offset
            && self.shape == other.shape
            && self.strides() == other.strides()
            && self.encoding == other.encoding
    }

    /// `len` indices of a dimension from `start`.
    pub fn slice(&self, axis: usize, start: usize, len: usize) -> Result<Operand> {
        if axis >= self.rank() || start.checked_add(len).is_none_or(|end| end > self.dim(axis)) {
            return Err(self.error(format!("no slice of {len} from {start} in dimension {axis}")));
        }
        let Some(dtype) = self.dtype() else {
            return self.slice_quantised(axis, start, len);
        };
        let mut view = self.clone();
        view.shape = self.shape.with(axis, len);
        view.offset += start * self.strides[axis] * dtype.bytes();
        Ok(view)
    }

    /// Quantised rows stay whole: only the first dimension can be cut.
    fn slice_quantised(&self, axis: usize, start: usize, len: usize) -> Result<Operand> {
        if axis != 0 || self.rank() < 2 {
            return Err(self.error("a quantised tensor can be sliced only between rows".into()));
        }
        let row = self.encoding.bytes(&self.shape.with(0, 1))? as usize;
        Operand::new(self.buffer.clone(), self.encoding, self.shape.with(0, len), self.offset + start * row)
    }

    /// The dimensions in another order: dimension `i` of the result is dimension `order[i]` of this.
    pub fn permute(&self, order: &[usize]) -> Result<Operand> {
        let mut seen = [false; MAX_RANK];
        let fits = order.len() == self.rank()
            && order.iter().all(|&i| i < self.rank() && !std::mem::replace(&mut seen[i], true));
        if !fits || self.dtype().is_none() {
            return Err(self.error(format!("cannot be permuted to {order:?}")));
        }
        let mut view = self.clone();
        let mut dims = [0; MAX_RANK];
        for (to, &from) in order.iter().enumerate() {
            dims[to] = self.dim(from);
            view.strides[to] = self.strides[from];
        }
        view.shape = Shape::new(&dims[..order.len()]).expect("the rank is that of a valid shape");
        Ok(view)
    }

    /// Two dimensions exchanged.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Operand> {
        let mut order: Vec<usize> = (0..self.rank()).collect();
        if a >= self.rank() || b >= self.rank() {
            return Err(self.error(format!("has no dimensions {a} and {b} to exchange")));
        }
        order.swap(a, b);
        self.permute(&order)
    }

    /// The same values under another shape; without copying, so the view must be contiguous, or the
    /// change must only split or merge dimensions that are packed.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Operand> {
        let shape = shape.into();
        let strides = (shape.count() == self.count()).then(|| self.reshaped_strides(&shape)).flatten();
        let Some(strides) = strides else {
            return Err(self.error(format!("cannot be seen as {shape} without copying")));
        };
        self.encoding.bytes(&shape)?;
        Ok(Operand { shape, strides, ..self.clone() })
    }

    /// Strides that show the same values under `shape`, if there are such. Dimensions of size 1 have no
    /// say: they may have any stride.
    fn reshaped_strides(&self, shape: &Shape) -> Option<[usize; MAX_RANK]> {
        if self.is_contiguous() {
            return Some(contiguous_strides(shape));
        }
        self.dtype()?;
        let kept = |(size, _): &(usize, usize)| *size != 1;
        let old: Vec<(usize, usize)> =
            self.dims().iter().copied().zip(self.strides().iter().copied()).filter(kept).collect();
        let axes: Vec<usize> = (0..shape.rank()).filter(|&axis| shape.dims()[axis] != 1).collect();
        let mut strides = [0; MAX_RANK];
        let (mut i, mut j) = (0, 0);
        while j < axes.len() {
            // The smallest runs of dimensions with the same number of values on both sides.
            let (first, start) = (i, j);
            let (mut have, mut want) = (old.get(i)?.0, shape.dims()[axes[j]]);
            while have != want {
                if have < want {
                    i += 1;
                    have *= old.get(i)?.0;
                } else {
                    j += 1;
                    want *= shape.dims()[*axes.get(j)?];
                }
            }
            if !(first..i).all(|k| old[k].1 == old[k + 1].1 * old[k + 1].0) {
                return None;
            }
            let mut step = old[i].1;
            for &axis in axes[start..=j].iter().rev() {
                strides[axis] = step;
                step *= shape.dims()[axis];
            }
            i += 1;
            j += 1;
        }
        Some(strides)
    }

    /// Repeats dimensions of size 1, and adds dimensions in front, to reach `shape`.
    pub fn broadcast(&self, shape: impl Into<Shape>) -> Result<Operand> {
        let shape = shape.into();
        if &shape == self.shape() {
            return Ok(self.clone());
        }
        if shape.rank() < self.rank() || self.dtype().is_none() {
            return Err(self.error(format!("cannot be repeated to {shape}")));
        }
        let added = shape.rank() - self.rank();
        let mut strides = [0; MAX_RANK];
        for (i, &want) in shape.dims().iter().enumerate().skip(added) {
            let have = self.dim(i - added);
            if have == want {
                strides[i] = self.strides[i - added];
            } else if have != 1 {
                return Err(self.error(format!("cannot be repeated to {shape}")));
            }
        }
        Ok(Operand { shape, strides, ..self.clone() })
    }

    fn error(&self, reason: String) -> Error {
        Error::View { shape: self.shape, encoding: self.encoding, reason }
    }
}

impl fmt::Debug for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} on {}", self.encoding, self.shape, self.buffer.device())
    }
}

/// Strides of a tensor whose values stand one after the other.
fn contiguous_strides(shape: &Shape) -> [usize; MAX_RANK] {
    let mut strides = [0; MAX_RANK];
    let mut step = 1usize;
    for (i, &dim) in shape.dims().iter().enumerate().rev() {
        strides[i] = step;
        step = step.saturating_mul(dim.max(1));
    }
    strides
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn view(dims: &[usize]) -> Operand {
        let shape = Shape::new(dims).unwrap();
        let buffer = Buffer::over(Arc::new(vec![0u8; shape.count() * 4]));
        Operand::new(buffer, Encoding::F32, shape, 0).unwrap()
    }

    #[test]
    fn views_stay_inside_their_buffer() {
        let buffer = Buffer::over(Arc::new(vec![0u8; 24]));
        assert!(Operand::new(buffer.clone(), Encoding::F32, [2, 3], 0).is_ok());
        assert!(Operand::new(buffer.clone(), Encoding::F32, [2, 3], 1).is_err());
        assert!(Operand::new(buffer, Encoding::F32, [7], 0).is_err());
    }

    #[test]
    fn slices_permutes_and_extents() {
        let x = view(&[2, 3, 4]).slice(1, 1, 2).unwrap();
        assert_eq!((x.dims(), x.strides(), x.offset()), (&[2, 2, 4][..], &[12, 4, 1][..], 16));
        assert_eq!(x.extent(), (12 + 4 + 3 + 1) * 4);
        assert!(!x.is_contiguous());
        let y = x.permute(&[2, 0, 1]).unwrap();
        assert_eq!((y.dims(), y.strides()), (&[4, 2, 2][..], &[1, 12, 4][..]));
        assert!(x.permute(&[0, 0, 1]).is_err());
        assert!(x.slice(1, 2, 1).is_err());
    }

    #[test]
    fn reshape_splits_and_merges_packed_dimensions_of_a_strided_view() {
        // A slice of fused q, k, v: rows are 12 wide, heads of 2 are split off without a copy.
        let q = view(&[5, 12]).slice(1, 4, 4).unwrap();
        let heads = q.reshape([5, 2, 2]).unwrap();
        assert_eq!(heads.strides(), &[12, 2, 1]);
        assert!(q.reshape([20]).is_err());
        let one = view(&[4, 16, 64]).slice(0, 1, 1).unwrap().slice(2, 0, 32).unwrap();
        assert_eq!(one.reshape([16, 32]).unwrap().strides(), &[64, 1]);
        assert_eq!(one.reshape([16, 1, 4, 8]).unwrap().strides(), &[64, 0, 8, 1]);
        assert_eq!(q.reshape([1, 5, 4]).unwrap().strides()[1..], [12, 1]);
    }

    #[test]
    fn broadcasting_repeats_ones() {
        let x = view(&[3, 1]).broadcast([2, 3, 4]).unwrap();
        assert_eq!(x.strides(), &[0, 1, 0]);
        assert!(view(&[3, 2]).broadcast([3, 4]).is_err());
    }
}
