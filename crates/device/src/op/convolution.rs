//! Convolutions.

use meta::DType;

use super::{Operation, activations, check};
use crate::{Operand, Result};

/// A convolution over one to three dimensions, forward or transposed.
#[derive(Clone, Debug)]
pub struct Convolution {
    /// `[batch, in, size…]`, contiguous.
    pub x: Operand,
    /// `[out, in / groups, kernel…]`, or `[in, out / groups, kernel…]` if transposed; any float or
    /// quantised encoding, contiguous.
    pub weight: Operand,
    /// `[out]`.
    pub bias: Option<Operand>,
    /// Stride, padding and dilation of each dimension, in the order of the sizes.
    pub window: Vec<Window>,
    /// What stands outside the image.
    pub padding: Padding,
    /// Groups of channels that do not mix.
    pub groups: usize,
    /// Whether this is the transposed convolution, which enlarges by the stride.
    pub transposed: bool,
    /// `[batch, out, size…]`, contiguous.
    pub out: Operand,
}

/// One dimension of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Step between outputs.
    pub stride: usize,
    /// Added in front; causal time padding puts all of it here.
    pub pad_before: usize,
    /// Added behind.
    pub pad_after: usize,
    /// Step between kernel values.
    pub dilation: usize,
}

impl Window {
    /// Stride 1, no dilation, the same padding on both sides.
    pub const fn padded(pad: usize) -> Window {
        Window { stride: 1, pad_before: pad, pad_after: pad, dilation: 1 }
    }

    /// Size of the output along this dimension; none if the kernel is larger than the padded input.
    pub fn output_size(&self, size: usize, kernel: usize) -> Option<usize> {
        let reach = self.dilation * (kernel.checked_sub(1)?) + 1;
        let padded = size + self.pad_before + self.pad_after;
        Some(padded.checked_sub(reach)? / self.stride + 1)
    }

    /// Smallest size of the transposed output along this dimension; up to `stride - 1` more may be
    /// asked for.
    pub fn transposed_size(&self, size: usize, kernel: usize) -> Option<usize> {
        let full = size.checked_sub(1)? * self.stride + self.dilation * kernel.checked_sub(1)? + 1;
        full.checked_sub(self.pad_before + self.pad_after)
    }
}

/// What stands outside a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Padding {
    /// This value everywhere; convolutions pad with 0.
    Constant(f32),
    /// Mirrored at the border, the border value not repeated.
    Reflect,
    /// The border value.
    Replicate,
    /// The other side.
    Circular,
}

impl Padding {
    /// The index inside `0..size` that stands at `index`, which may be outside; none where the value is
    /// a constant.
    pub fn source(&self, index: isize, size: usize) -> Option<usize> {
        let n = size as isize;
        if (0..n).contains(&index) {
            return Some(index as usize);
        }
        match self {
            Padding::Constant(_) => None,
            Padding::Replicate => Some(index.clamp(0, n - 1) as usize),
            Padding::Circular => Some(index.rem_euclid(n) as usize),
            Padding::Reflect => {
                let period = (2 * (n - 1)).max(1);
                let folded = index.rem_euclid(period);
                Some(if folded < n { folded } else { period - folded } as usize)
            }
        }
    }
}

impl Convolution {
    /// Channels out.
    pub fn channels_out(&self) -> usize {
        if self.transposed { self.weight.dim(1) * self.groups } else { self.weight.dim(0) }
    }

    /// The kernel's sizes.
    pub fn kernel(&self) -> &[usize] {
        &self.weight.dims()[2..]
    }

    fn check_sizes(&self) -> Result<()> {
        let (op, x, out) = (Self::NAME, &self.x, &self.out);
        for (i, window) in self.window.iter().enumerate() {
            let (size, kernel, got) = (x.dim(i + 2), self.kernel()[i], out.dim(i + 2));
            let strides = window.stride > 0 && window.dilation > 0;
            check::that(op, "window", strides, "with stride and dilation above 0", x)?;
            let fits = if self.transposed {
                window
                    .transposed_size(size, kernel)
                    .is_some_and(|least| (least..least + window.stride).contains(&got))
            } else {
                window.output_size(size, kernel) == Some(got)
            };
            check::that(
                op,
                "output",
                fits,
                format_args!("the size that {window:?} and kernel {kernel} give for {size}"),
                out,
            )?;
            let mirror = window.pad_before.max(window.pad_after) < size;
            let plain = matches!(self.padding, Padding::Constant(_) | Padding::Replicate);
            check::that(op, "input", plain || mirror, "larger than its reflected or circular padding", x)?;
        }
        Ok(())
    }
}

impl Operation for Convolution {
    const NAME: &'static str = "convolution";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
        visit(&self.weight);
        self.bias.iter().for_each(visit);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, out);

    fn check(&self) -> Result<()> {
        let (op, x, w, out) = (Self::NAME, &self.x, &self.weight, &self.out);
        check::activation(op, "input", x)?;
        check::same_type(op, "output", out, x)?;
        check::that(
            op,
            "input",
            (3..=5).contains(&x.rank()),
            "of one to three dimensions after batch and channels",
            x,
        )?;
        check::rank(op, "weight", w, x.rank())?;
        check::rank(op, "output", out, x.rank())?;
        let readable = w.dtype().is_none_or(DType::is_float) && w.is_contiguous();
        check::that(op, "weight", readable, "contiguous floats or quantised blocks", w)?;
        for (name, operand) in [("input", x), ("output", out)] {
            check::that(op, name, operand.is_contiguous(), "contiguous", operand)?;
        }
        let windows = self.window.len() == x.rank() - 2;
        check::that(op, "window", windows, "one entry for each dimension", x)?;
        let whole = self.groups > 0
            && x.dim(1).is_multiple_of(self.groups)
            && self.channels_out().is_multiple_of(self.groups.max(1));
        check::that(op, "groups", whole, "a divisor of both channel counts", w)?;
        let channels = if self.transposed { w.dim(0) } else { w.dim(1) * self.groups };
        check::that(op, "input", x.dim(1) == channels, format_args!("of {channels} channels"), x)?;
        let zeros = self.padding == Padding::Constant(0.0);
        check::that(
            op,
            "padding",
            zeros || !matches!(self.padding, Padding::Constant(_)),
            "zeros or a mirror mode",
            x,
        )?;
        check::that(op, "padding", zeros || !self.transposed, "zeros in a transposed convolution", x)?;
        let batch = out.dim(0) == x.dim(0) && out.dim(1) == self.channels_out();
        check::that(op, "output", batch, format_args!("[{}, {}, …]", x.dim(0), self.channels_out()), out)?;
        check::parameters(op, &[("bias", self.bias.as_ref())], self.channels_out())?;
        self.check_sizes()
    }

    fn flops(&self) -> u64 {
        let per_value = self.kernel().iter().product::<usize>() * 2 * self.x.dim(1) / self.groups;
        let values = if self.transposed {
            self.x.count() / self.x.dim(1).max(1) * self.channels_out()
        } else {
            self.out.count()
        };
        values as u64 * per_value as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_modes_find_their_source() {
        let at = |p: Padding| {
            (-3..=6).map(|i| p.source(i, 4)).map(|i| i.map_or(-1, |i| i as i32)).collect::<Vec<_>>()
        };
        assert_eq!(at(Padding::Constant(0.0)), [-1, -1, -1, 0, 1, 2, 3, -1, -1, -1]);
        assert_eq!(at(Padding::Replicate), [0, 0, 0, 0, 1, 2, 3, 3, 3, 3]);
        assert_eq!(at(Padding::Reflect), [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]);
        assert_eq!(at(Padding::Circular), [1, 2, 3, 0, 1, 2, 3, 0, 1, 2]);
    }

    #[test]
    fn window_sizes() {
        assert_eq!(Window::padded(1).output_size(8, 3), Some(8));
        assert_eq!(Window { stride: 2, ..Window::padded(1) }.output_size(8, 3), Some(4));
        assert_eq!(Window::padded(0).output_size(2, 3), None);
        assert_eq!(Window { stride: 2, ..Window::padded(1) }.transposed_size(4, 4), Some(8));
    }
}
