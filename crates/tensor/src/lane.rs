//! Lanes: where computing happens.

use device::op::{Copy, NormalNoise};
use device::{Device, Error, OpCall, Operand, Result, Stream};
use meta::{DType, Encoding, Shape};

use crate::{Tensor, Weight};

/// A device, its compute stream, and the element type of activations there.
#[derive(Clone, Debug)]
pub struct Lane {
    device: Device,
    stream: Stream,
    dtype: DType,
}

impl Lane {
    /// A lane with activations of this type, which the device must offer.
    pub fn new(device: &Device, dtype: DType) -> Result<Lane> {
        if !device.description().activations.contains(&dtype) {
            return Err(Error::Unsupported {
                device: device.id(),
                op: "activations",
                reason: format!("{dtype} is not one of {:?}", device.description().activations),
            });
        }
        Ok(Lane { device: device.clone(), stream: device.compute_stream()?, dtype })
    }

    /// A lane with the first of these types that the device has; with f32, in which every device computes, where it
    /// has none of them.
    pub fn choose(device: &Device, wanted: &[DType]) -> Result<Lane> {
        let offered = device.description().activations;
        let dtype = wanted.iter().copied().find(|dtype| offered.contains(dtype)).unwrap_or(DType::F32);
        Lane::new(device, dtype)
    }

    /// A lane with the type that the device prefers.
    pub fn preferred(device: &Device) -> Result<Lane> {
        let dtype = device.description().activations.first().copied().unwrap_or(DType::F32);
        Lane::new(device, dtype)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The stream on which operations run.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The element type of activations.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The same lane with activations of another type.
    pub fn with_dtype(&self, dtype: DType) -> Result<Lane> {
        Lane::new(&self.device, dtype)
    }

    /// A tensor with undefined contents.
    pub fn empty(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.empty_as(self.dtype, shape.into())
    }

    /// A tensor of another type than the lane's, with undefined contents.
    pub fn empty_as(&self, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        let encoding = Encoding::Plain(dtype);
        let buffer = self.device.allocate(encoding.bytes(&shape)? as usize)?;
        Ok(Tensor::new(Operand::new(buffer, encoding, shape, 0)?, self.clone()))
    }

    /// These values, converted to the lane's type.
    pub fn tensor(&self, shape: impl Into<Shape>, values: &[f32]) -> Result<Tensor> {
        self.tensor_f32(shape, values)?.cast(self.dtype)
    }

    /// These values in f32, as tables of angles are kept.
    pub fn tensor_f32(&self, shape: impl Into<Shape>, values: &[f32]) -> Result<Tensor> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.upload(DType::F32, shape.into(), &bytes)
    }

    /// Indices into a table.
    pub fn ids(&self, shape: impl Into<Shape>, values: &[i32]) -> Result<Tensor> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.upload(DType::I32, shape.into(), &bytes)
    }

    /// The same value everywhere; a view of one value.
    pub fn full(&self, shape: impl Into<Shape>, value: f32) -> Result<Tensor> {
        self.tensor(Shape::scalar(), &[value])?.broadcast(shape)
    }

    /// Standard normal values, the same on every device for the same seed.
    pub fn normal_noise(&self, seed: u64, shape: impl Into<Shape>) -> Result<Tensor> {
        let out = self.empty_as(DType::F32, shape.into())?;
        self.launch(NormalNoise { seed, out: out.operand().clone() })?;
        out.cast(self.dtype)
    }

    /// A stored weight as a tensor of the lane's type: unpacked, scaled and copied.
    pub fn unpack(&self, weight: &Weight) -> Result<Tensor> {
        let out = self.empty(*weight.operand().shape())?;
        self.launch(Copy { x: weight.operand().clone(), out: out.operand().clone() })?;
        match weight.scale() {
            None => Ok(out),
            Some(scale) => out.mul(&Tensor::new(scale.clone(), self.clone()).cast(self.dtype)?),
        }
    }

    /// Queues a call.
    pub(crate) fn launch(&self, call: impl Into<OpCall>) -> Result<()> {
        self.stream.launch(&call.into())
    }

    fn upload(&self, dtype: DType, shape: Shape, bytes: &[u8]) -> Result<Tensor> {
        let out = self.empty_as(dtype, shape)?;
        self.stream.write(&out.operand().span(), bytes)?;
        Ok(out)
    }
}
