//! Lanes: where computing happens.

use std::sync::Arc;

use device::op::{Copy, Decode, NormalNoise, Unpack};
use device::{Cancel, Device, Error, OpCall, Operand, Result, Span, Stream};
use meta::{DType, Encoding, Shape};

use crate::{Tensor, Weight};

/// A device, its compute stream, and the element type of activations there. Every tensor has one, so that a clone must
/// cost next to nothing.
#[derive(Clone, Debug)]
pub struct Lane {
    place: Arc<Place>,
}

#[derive(Debug)]
struct Place {
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
        Ok(Lane::at(device.clone(), device.compute_stream()?, dtype))
    }

    fn at(device: Device, stream: Stream, dtype: DType) -> Lane {
        Lane { place: Arc::new(Place { device, stream, dtype }) }
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
        &self.place.device
    }

    /// The stream on which operations run.
    pub fn stream(&self) -> &Stream {
        &self.place.stream
    }

    /// The element type of activations.
    pub fn dtype(&self) -> DType {
        self.place.dtype
    }

    /// The same lane with activations of another type.
    pub fn with_dtype(&self, dtype: DType) -> Result<Lane> {
        let Place { device, stream, .. } = &*self.place;
        // The device must offer the type; the stream stays this one, with what cancels it.
        Lane::new(device, dtype)?;
        Ok(Lane::at(device.clone(), stream.clone(), dtype))
    }

    /// The same lane for a job that can be cancelled; so are the tensors that are made on it and come of them.
    #[must_use]
    pub fn with_cancel(&self, cancel: &Cancel) -> Lane {
        let Place { device, stream, dtype } = &*self.place;
        Lane::at(device.clone(), stream.with_cancel(cancel), *dtype)
    }

    /// A tensor with undefined contents.
    pub fn empty(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.empty_as(self.dtype(), shape.into())
    }

    /// A tensor of another type than the lane's, with undefined contents.
    pub fn empty_as(&self, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        let encoding = Encoding::Plain(dtype);
        let buffer = self.device().allocate(encoding.bytes(&shape)? as usize)?;
        Ok(Tensor::new(Operand::new(buffer, encoding, shape, 0)?, self.clone()))
    }

    /// These values, converted to the lane's type.
    pub fn tensor(&self, shape: impl Into<Shape>, values: &[f32]) -> Result<Tensor> {
        self.tensor_f32(shape, values)?.cast(self.dtype())
    }

    /// These values in f32, as tables of angles are kept.
    pub fn tensor_f32(&self, shape: impl Into<Shape>, values: &[f32]) -> Result<Tensor> {
        self.upload(DType::F32, shape.into(), values, f32::to_le_bytes)
    }

    /// Indices into a table.
    pub fn ids(&self, shape: impl Into<Shape>, values: &[i32]) -> Result<Tensor> {
        self.upload(DType::I32, shape.into(), values, i32::to_le_bytes)
    }

    /// The same value everywhere; a view of one value.
    pub fn full(&self, shape: impl Into<Shape>, value: f32) -> Result<Tensor> {
        self.tensor(Shape::scalar(), &[value])?.broadcast(shape)
    }

    /// Standard normal values, the same on every device for the same seed.
    pub fn normal_noise(&self, seed: u64, shape: impl Into<Shape>) -> Result<Tensor> {
        let out = self.empty_as(DType::F32, shape.into())?;
        self.launch(NormalNoise { seed, out: out.operand().clone() })?;
        out.cast(self.dtype())
    }

    /// A stored weight as a tensor of the lane's type: unpacked, scaled and copied.
    pub fn unpack(&self, weight: &Weight) -> Result<Tensor> {
        let tensor = self.empty(*weight.shape())?;
        let (stored, out) = (weight.operand().clone(), tensor.operand().clone());
        match weight.scales() {
            None => self.launch(Copy { x: stored, out })?,
            Some(scales) => self.launch(Unpack { weight: stored, scales: scales.clone(), out })?,
        }
        Ok(tensor)
    }

    /// Losslessly coded bytes as the values of this type that they were made of.
    pub fn decode(&self, coded: &Operand, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        let tensor = self.empty_as(dtype, shape.into())?;
        self.launch(Decode { coded: coded.clone(), out: tensor.operand().clone() })?;
        Ok(tensor)
    }

    /// Queues a call.
    pub(crate) fn launch(&self, call: impl Into<OpCall>) -> Result<()> {
        self.stream().launch(&call.into())
    }

    /// Values in parts: a picture of any size passes through little memory, and can be cancelled meanwhile.
    fn upload<T: std::marker::Copy>(
        &self,
        dtype: DType,
        shape: Shape,
        values: &[T],
        bytes_of: impl Fn(T) -> [u8; 4],
    ) -> Result<Tensor> {
        let out = self.empty_as(dtype, shape)?;
        let whole = out.operand().span();
        if whole.len != values.len() * 4 {
            return Err(Error::Operand {
                op: "upload",
                operand: "values",
                expected: format!("{} for the shape {shape}", whole.len / 4),
                got: values.len().to_string(),
            });
        }
        let mut bytes = Vec::with_capacity(4 * values.len().min(PART_VALUES));
        for (index, part) in values.chunks(PART_VALUES).enumerate() {
            bytes.clear();
            bytes.extend(part.iter().flat_map(|value| bytes_of(*value)));
            self.stream().write(&part_of(&whole, index, bytes.len()), &bytes)?;
        }
        Ok(out)
    }
}

/// Values that are moved between host and device at once.
pub(crate) const PART_VALUES: usize = 4 << 20;

/// The part of a span of f32 values with this number, so many bytes long.
pub(crate) fn part_of(whole: &Span, index: usize, bytes: usize) -> Span {
    Span { buffer: whole.buffer.clone(), offset: whole.offset + index * PART_VALUES * 4, len: bytes }
}
