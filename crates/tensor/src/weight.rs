//! Weights: stored parameters, in whatever encoding their file has.

use std::ops::Range;

use device::{Buffer, Device, Operand, Result};
use meta::{DType, Encoding, Shape};

/// A stored parameter on a device. fp8 weights may have a scale beside them.
#[derive(Clone, Debug)]
pub struct Weight {
    operand: Operand,
    scale: Option<Operand>,
}

impl Weight {
    /// A parameter as it lies in a buffer.
    pub fn new(operand: Operand) -> Weight {
        Weight { operand, scale: None }
    }

    /// The whole of a buffer as a parameter.
    pub fn whole(buffer: Buffer, encoding: Encoding, shape: impl Into<Shape>) -> Result<Weight> {
        Ok(Weight::new(Operand::new(buffer, encoding, shape, 0)?))
    }

    /// Copies stored bytes onto a device.
    pub fn upload(
        device: &Device,
        encoding: Encoding,
        shape: impl Into<Shape>,
        bytes: &[u8],
    ) -> Result<Weight> {
        Weight::whole(device.upload(bytes)?, encoding, shape)
    }

    /// Copies f32 values onto a device.
    pub fn upload_f32(device: &Device, shape: impl Into<Shape>, values: &[f32]) -> Result<Weight> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Weight::upload(device, Encoding::Plain(DType::F32), shape, &bytes)
    }

    /// Some of its rows.
    pub fn rows(&self, rows: Range<usize>) -> Result<Weight> {
        let operand = self.operand.slice(0, rows.start, rows.len())?;
        Ok(Weight { operand, scale: self.scale.clone() })
    }

    /// The same parameter with one f32 that multiplies it.
    pub fn scaled(self, scale: Operand) -> Weight {
        Weight { scale: Some(scale), ..self }
    }

    /// Where the values are.
    pub fn operand(&self) -> &Operand {
        &self.operand
    }

    /// What multiplies them.
    pub fn scale(&self) -> Option<&Operand> {
        self.scale.as_ref()
    }

    /// The dimensions.
    pub fn dims(&self) -> &[usize] {
        self.operand.dims()
    }
}
