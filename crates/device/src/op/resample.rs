//! Image resizing.

use super::{Operation, activations, check};
use crate::{Operand, Result};

/// Another size for the last two dimensions, by the formulas of PyTorch's `interpolate` without
/// anti-aliasing.
#[derive(Clone, Debug)]
pub struct Resize {
    /// How values between pixels are found.
    pub mode: ResizeMode,
    /// `[…, height, width]`, contiguous.
    pub x: Operand,
    /// `[…, new height, new width]`, contiguous.
    pub out: Operand,
}

/// How values between pixels are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResizeMode {
    /// The pixel at `floor(i · in / out)`.
    Nearest,
    /// The pixel at `floor((i + ½) · in / out)`.
    NearestExact,
    /// Linear between the two neighbours, pixel centres at ½.
    Bilinear,
    /// Cubic convolution with a = -¾ over four neighbours, pixel centres at ½.
    Bicubic,
    /// Mean of the pixels that an output pixel covers (adaptive average).
    Area,
}

impl ResizeMode {
    /// Every mode.
    pub const ALL: [ResizeMode; 5] = [
        ResizeMode::Nearest,
        ResizeMode::NearestExact,
        ResizeMode::Bilinear,
        ResizeMode::Bicubic,
        ResizeMode::Area,
    ];
}

impl Operation for Resize {
    const NAME: &'static str = "resize";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, out);

    fn check(&self) -> Result<()> {
        let (op, x, out) = (Self::NAME, &self.x, &self.out);
        check::activation(op, "input", x)?;
        check::same_type(op, "output", out, x)?;
        check::that(
            op,
            "input",
            x.rank() >= 2 && x.is_contiguous() && x.count() > 0,
            "a contiguous image, not empty",
            x,
        )?;
        let leading = out.rank() == x.rank() && out.dims()[..x.rank() - 2] == x.dims()[..x.rank() - 2];
        check::that(
            op,
            "output",
            leading && out.is_contiguous(),
            format_args!("{} with another height and width", x.shape()),
            out,
        )
    }
}
