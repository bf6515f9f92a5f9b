//! Weights that are stored or travel losslessly coded, in the format of the `codec` crate.

use codec::Layout;
use meta::DType;

use super::{Operation, activations, check};
use crate::{Operand, Result};

/// Floats to coded bytes. What was written says itself how long it is.
#[derive(Clone, Debug)]
pub struct Encode {
    /// bf16, f16 or f8_e4m3; contiguous.
    pub values: Operand,
    /// u8, contiguous: room for as many bytes as coding can take, [`Layout::max_coded_bytes`]. Those behind the coded ones
    /// are left alone.
    pub out: Operand,
}

impl Operation for Encode {
    const NAME: &'static str = "encode";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.values);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    // A conversion: the values are of one of the types that are coded.
    activations!();

    fn check(&self) -> Result<()> {
        let (op, values, out) = (Self::NAME, &self.values, &self.out);
        let layout = layout(op, "input", values)?;
        let room = layout.max_coded_bytes();
        let fits = is_bytes(out) && out.count() >= room;
        check::that(op, "output", fits, format_args!("{room} bytes (u8) at least, contiguous"), out)
    }
}

/// Coded bytes to the floats that they were made of, bit for bit. The checksum is not looked at: who made or read the
/// bytes has done that.
#[derive(Clone, Debug)]
pub struct Decode {
    /// u8, contiguous, at a multiple of 16 bytes: the coded bytes from their header on; more may follow. A tile that is
    /// damaged is an error on the CPU, and gives NaN on devices that cannot stop.
    pub coded: Operand,
    /// As many values of the same type, contiguous.
    pub out: Operand,
}

impl Operation for Decode {
    const NAME: &'static str = "decode";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.coded);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!();

    fn check(&self) -> Result<()> {
        let (op, coded, out) = (Self::NAME, &self.coded, &self.out);
        let least = layout(op, "output", out)?.variable_start();
        let fits = is_bytes(coded) && coded.count() >= least;
        check::that(op, "input", fits, format_args!("{least} bytes (u8) at least, contiguous"), coded)
    }
}

/// The layout of values of this operand's type and number, which must be one that is coded.
fn layout(op: &'static str, name: &'static str, values: &Operand) -> Result<Layout> {
    let layout = values.dtype().and_then(|dtype| Layout::new(dtype, values.count()).ok());
    match layout.filter(|_| values.is_contiguous()) {
        Some(layout) => Ok(layout),
        None => Err(check::error(op, name, "contiguous bf16, f16 or f8_e4m3".into(), format!("{values:?}"))),
    }
}

fn is_bytes(operand: &Operand) -> bool {
    operand.dtype() == Some(DType::U8) && operand.is_contiguous()
}
