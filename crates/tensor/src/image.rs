//! Operations on images and volumes.

use device::op::{Convolution, Pad, Padding, Resize, ResizeMode, Window};
use device::{Error, Result};
use meta::Shape;

use crate::{Tensor, Weight};

/// The geometry of a convolution.
#[derive(Clone, Debug)]
pub struct ConvolutionShape {
    /// Stride, padding and dilation of each dimension.
    pub window: Vec<Window>,
    /// What stands outside the image.
    pub padding: Padding,
    /// Groups of channels that do not mix.
    pub groups: usize,
}

impl ConvolutionShape {
    /// The same stride and zero padding in each of `dims` dimensions.
    pub fn uniform(dims: usize, stride: usize, pad: usize) -> ConvolutionShape {
        let window = vec![Window { stride, ..Window::padded(pad) }; dims];
        ConvolutionShape { window, padding: Padding::Constant(0.0), groups: 1 }
    }
}

/// The geometry of a transposed convolution.
#[derive(Clone, Debug)]
pub struct TransposedShape {
    /// Stride, padding and dilation of each dimension.
    pub window: Vec<Window>,
    /// Added to the end of each dimension of the output, below the stride.
    pub output_padding: usize,
    /// Groups of channels that do not mix.
    pub groups: usize,
}

impl Tensor {
    /// Convolution of `[batch, channels, size…]` with `[out, in / groups, kernel…]`.
    pub fn convolution(
        &self,
        weight: &Weight,
        bias: Option<&Weight>,
        shape: &ConvolutionShape,
    ) -> Result<Tensor> {
        self.check_kernel(weight, shape.window.len())?;
        let mut dims = vec![self.dim(0), weight.dims()[0]];
        for (i, window) in shape.window.iter().enumerate() {
            let size = window.output_size(self.dim(i + 2), weight.dims()[i + 2]);
            dims.push(size.ok_or_else(|| {
                self.misfit(format!("at least as large as the kernel of {:?}", weight.dims()))
            })?);
        }
        self.convolve(weight, bias, shape.clone(), &dims, false)
    }

    /// Transposed convolution of `[batch, channels, size…]` with `[in, out / groups, kernel…]`.
    pub fn transposed_convolution(
        &self,
        weight: &Weight,
        bias: Option<&Weight>,
        shape: &TransposedShape,
    ) -> Result<Tensor> {
        self.check_kernel(weight, shape.window.len())?;
        let mut dims = vec![self.dim(0), weight.dims()[1] * shape.groups];
        for (i, window) in shape.window.iter().enumerate() {
            let size = window.transposed_size(self.dim(i + 2), weight.dims()[i + 2]);
            let size = size.ok_or_else(|| self.misfit("large enough for its padding".into()))?;
            dims.push(size + shape.output_padding);
        }
        let shape = ConvolutionShape {
            window: shape.window.clone(),
            padding: Padding::Constant(0.0),
            groups: shape.groups,
        };
        self.convolve(weight, bias, shape, &dims, true)
    }

    /// A border: how many indices in front of and behind each dimension.
    pub fn pad(&self, border: &[(usize, usize)], padding: Padding) -> Result<Tensor> {
        if border.len() != self.rank() {
            return Err(self.misfit(format!("of {} dimensions, one for each border", border.len())));
        }
        let shape = border.iter().enumerate().fold(*self.shape(), |shape, (axis, (before, after))| {
            shape.with(axis, self.dim(axis) + before + after)
        });
        let out = self.lane().empty_as(self.dtype(), shape)?;
        let before = border.iter().map(|(before, _)| *before).collect();
        self.lane().launch(Pad { x: self.operand().clone(), before, padding, out: out.operand().clone() })?;
        Ok(out)
    }

    /// Another height and width for the last two dimensions.
    pub fn resize(&self, height: usize, width: usize, mode: ResizeMode) -> Result<Tensor> {
        if self.rank() < 2 {
            return Err(self.misfit("of height and width".into()));
        }
        let x = self.contiguous()?;
        let shape = self.shape().with(self.rank() - 2, height).with(self.rank() - 1, width);
        let out = self.lane().empty_as(self.dtype(), shape)?;
        self.lane().launch(Resize { mode, x: x.operand().clone(), out: out.operand().clone() })?;
        Ok(out)
    }

    fn convolve(
        &self,
        weight: &Weight,
        bias: Option<&Weight>,
        shape: ConvolutionShape,
        dims: &[usize],
        transposed: bool,
    ) -> Result<Tensor> {
        let x = self.contiguous()?;
        // A convolution takes no scale beside its weight, so a scaled one is unpacked first.
        let unpacked = weight.scales().map(|_| self.lane().unpack(weight)).transpose()?;
        let weight = unpacked.as_ref().map_or(weight.operand(), Tensor::operand);
        let dims = Shape::new(dims).map_err(|_| self.misfit("of at most five dimensions".into()))?;
        let out = self.lane().empty_as(self.dtype(), dims)?;
        self.lane().launch(Convolution {
            x: x.operand().clone(),
            weight: weight.clone(),
            bias: bias.map(|b| b.operand().clone()),
            window: shape.window,
            padding: shape.padding,
            groups: shape.groups,
            transposed,
            out: out.operand().clone(),
        })?;
        Ok(out)
    }

    fn check_kernel(&self, weight: &Weight, windows: usize) -> Result<()> {
        let rank = windows + 2;
        if self.rank() == rank && weight.dims().len() == rank {
            return Ok(());
        }
        Err(self.misfit(format!("of {rank} dimensions, as the kernel {:?} should be", weight.dims())))
    }

    fn misfit(&self, expected: String) -> Error {
        Error::Operand { op: "image", operand: "input", expected, got: format!("{self:?}") }
    }
}
