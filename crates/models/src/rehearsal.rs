//! What rehearsals have in place of values: a network is run with empty ones on a null device, which tells how much memory
//! and time the real ones will take.

use meta::DType;
use tensor::{Lane, Tensor};

use crate::Result;

/// Values as they arrive from the host: in 32 bits, then in the lane's type.
pub fn arrived<const N: usize>(lane: &Lane, shape: [usize; N]) -> Result<Tensor> {
    Ok(lane.empty_as(DType::F32, shape)?.cast(lane.dtype())?)
}

/// What is read back is turned into 32 bits on the device first.
pub fn read_back(values: &Tensor) -> Result<()> {
    values.cast(DType::F32)?.contiguous()?;
    Ok(())
}
