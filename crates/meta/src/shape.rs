//! Shapes: up to eight dimensions, kept inline so that a shape is a plain value.

use std::fmt;

/// The most dimensions a tensor may have.
pub const MAX_RANK: usize = 8;

/// The sizes of a tensor's dimensions, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: u8,
}

/// More dimensions than [`MAX_RANK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a tensor may have at most {MAX_RANK} dimensions, not {rank}")]
pub struct ShapeError {
    /// Dimensions asked for.
    pub rank: usize,
}

impl Shape {
    /// A shape with these dimensions.
    pub fn new(dims: &[usize]) -> Result<Shape, ShapeError> {
        if dims.len() > MAX_RANK {
            return Err(ShapeError { rank: dims.len() });
        }
        let mut all = [0; MAX_RANK];
        all[..dims.len()].copy_from_slice(dims);
        Ok(Shape { dims: all, rank: dims.len() as u8 })
    }

    /// The shape of a single value.
    pub const fn scalar() -> Shape {
        Shape { dims: [0; MAX_RANK], rank: 0 }
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    /// Number of dimensions.
    pub const fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Number of values, saturating; [`Shape::checked_count`] where the dimensions come from a file.
    pub fn count(&self) -> usize {
        self.dims().iter().fold(1, |n, &d| n.saturating_mul(d))
    }

    /// Number of values, or `None` if it does not fit.
    pub fn checked_count(&self) -> Option<u64> {
        if self.dims().contains(&0) {
            return Some(0);
        }
        self.dims().iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64))
    }

    /// Size of the last dimension; 1 for a scalar.
    pub fn last(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// The same shape with dimension `axis` set to `size`. `axis` must be below the rank.
    pub fn with(mut self, axis: usize, size: usize) -> Shape {
        assert!(axis < self.rank(), "axis {axis} of shape {self}");
        self.dims[axis] = size;
        self
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    /// Panics at compile time where `N` passes [`MAX_RANK`].
    fn from(dims: [usize; N]) -> Shape {
        const { assert!(N <= MAX_RANK) };
        let mut all = [0; MAX_RANK];
        all[..N].copy_from_slice(&dims);
        Shape { dims: all, rank: N as u8 }
    }
}

impl TryFrom<&[usize]> for Shape {
    type Error = ShapeError;

    fn try_from(dims: &[usize]) -> Result<Shape, ShapeError> {
        Shape::new(dims)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.dims().iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        f.pad(&format!("[{text}]"))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_prints() {
        let shape = Shape::from([2, 3, 4]);
        assert_eq!((shape.count(), shape.rank(), shape.last()), (24, 3, 4));
        assert_eq!(shape.to_string(), "[2, 3, 4]");
        assert_eq!(Shape::scalar().count(), 1);
        assert_eq!(Shape::new(&[1; 9]), Err(ShapeError { rank: 9 }));
    }

    #[test]
    fn a_zero_dimension_never_overflows() {
        assert_eq!(Shape::from([usize::MAX, usize::MAX, 0]).checked_count(), Some(0));
        assert_eq!(Shape::from([usize::MAX, 2]).checked_count(), None);
    }
}
