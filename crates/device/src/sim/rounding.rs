//! Activations of 16 bits on a host that computes in 32: every result is rounded, and what is too large for the type
//! becomes infinite, as on a card that has the type.

use meta::{DType, DeviceId, Encoding};

use crate::backend::Backend;
use crate::op::Copy;
use crate::{Buffer, Cancel, HostExecutor, OpCall, Operand, Result};

/// Runs a call whose activations are of `dtype`: on copies of them in f32, which the host holds for the moment.
pub(super) fn run(
    call: &OpCall,
    dtype: DType,
    host: &dyn Backend,
    executor: &dyn HostExecutor,
    cancel: &Cancel,
) -> Result<()> {
    let out = call.output();
    let conversion = matches!(
        call,
        OpCall::Copy(_) | OpCall::Unpack(_) | OpCall::Encode(_) | OpCall::Decode(_) | OpCall::QuantiseRows(_)
    );
    if conversion || out.dtype() != Some(dtype) {
        return executor.run(call, cancel);
    }
    let exact = call.with_activations(|operand| {
        let copy = in_f32(operand, host)?;
        executor.run(&Copy { x: operand.clone(), out: copy.clone() }.into(), cancel)?;
        Ok(copy)
    })?;
    executor.run(&exact, cancel)?;
    executor.run(&Copy { x: exact.output().clone(), out: out.clone() }.into(), cancel)
}

/// Room for the same values in f32.
fn in_f32(operand: &Operand, host: &dyn Backend) -> Result<Operand> {
    let bytes = Encoding::F32.bytes(operand.shape())?;
    let buffer = Buffer::new(DeviceId::CPU, host.allocate(bytes as usize)?, None);
    Operand::new(buffer, Encoding::F32, *operand.shape(), 0)
}
