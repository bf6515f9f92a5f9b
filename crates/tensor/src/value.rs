//! The tensor value and its views.

use std::fmt;

use device::op::Copy;
use device::{Event, Operand, Result, Stream};
use meta::{DType, Shape};

use crate::Lane;
use crate::lane::{PART_VALUES, part_of};

/// Values on a device, and the lane they compute on.
#[derive(Clone)]
pub struct Tensor {
    operand: Operand,
    lane: Lane,
}

impl Tensor {
    /// A view that computes on `lane`.
    pub fn new(operand: Operand, lane: Lane) -> Tensor {
        Tensor { operand, lane }
    }

    /// The view.
    pub fn operand(&self) -> &Operand {
        &self.operand
    }

    /// The lane.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        self.operand.shape()
    }

    /// The dimensions.
    pub fn dims(&self) -> &[usize] {
        self.operand.dims()
    }

    /// The size of one dimension.
    pub fn dim(&self, axis: usize) -> usize {
        self.operand.dim(axis)
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.operand.rank()
    }

    /// The element type. Tensors are never quantised, so there always is one.
    pub fn dtype(&self) -> DType {
        self.operand.dtype().unwrap_or(self.lane.dtype())
    }

    /// `len` indices of a dimension from `start`.
    pub fn slice(&self, axis: usize, start: usize, len: usize) -> Result<Tensor> {
        self.view(self.operand.slice(axis, start, len))
    }

    /// Equal parts along a dimension.
    pub fn chunk(&self, axis: usize, parts: usize) -> Result<Vec<Tensor>> {
        let len = self.dim(axis) / parts.max(1);
        (0..parts).map(|i| self.slice(axis, i * len, len)).collect()
    }

    /// The dimensions in another order.
    pub fn permute(&self, order: &[usize]) -> Result<Tensor> {
        self.view(self.operand.permute(order))
    }

    /// Two dimensions exchanged.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Tensor> {
        self.view(self.operand.transpose(a, b))
    }

    /// Dimensions of size 1 repeated, and dimensions added in front, to reach a shape.
    pub fn broadcast(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.view(self.operand.broadcast(shape))
    }

    /// The same values under another shape; copied only if no view can show them so.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        match self.operand.reshape(shape) {
            Ok(operand) => Ok(Tensor::new(operand, self.lane.clone())),
            Err(_) => self.contiguous()?.view_as(shape),
        }
    }

    /// The values one after the other; copied only if they are not.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.operand.is_contiguous() { Ok(self.clone()) } else { self.copied(self.dtype()) }
    }

    /// The values in another type; copied only if they are not of it.
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype { Ok(self.clone()) } else { self.copied(dtype) }
    }

    /// Writes these values into a view of another tensor, such as a part of it.
    pub fn copy_into(&self, target: &Tensor) -> Result<()> {
        self.lane.launch(Copy { x: self.operand.clone(), out: target.operand.clone() })
    }

    /// Tensors joined along a dimension.
    pub fn concat(parts: &[&Tensor], axis: usize) -> Result<Tensor> {
        let first = parts.first().copied().ok_or_else(|| device::Error::Operand {
            op: "concat",
            operand: "parts",
            expected: "at least one".into(),
            got: "none".into(),
        })?;
        if axis >= first.rank() || parts.iter().any(|p| p.rank() != first.rank()) {
            return Err(device::Error::Operand {
                op: "concat",
                operand: "parts",
                expected: format!("of more than {axis} dimensions, all alike"),
                got: parts.iter().map(|p| p.shape().to_string()).collect::<Vec<_>>().join(", "),
            });
        }
        let total = parts.iter().map(|p| p.dim(axis)).sum();
        let out = first.lane.empty_as(first.dtype(), first.shape().with(axis, total))?;
        let mut start = 0;
        for part in parts {
            part.copy_into(&out.slice(axis, start, part.dim(axis))?)?;
            start += part.dim(axis);
        }
        Ok(out)
    }

    /// The values on another lane: as they are if it is the same device and type, else brought there.
    /// The other lane's stream waits for them; the host does not, unless neither device can address the other's memory.
    pub fn to_lane(&self, lane: &Lane) -> Result<Tensor> {
        if lane.device().id() == self.lane.device().id() {
            return Tensor::new(self.operand.clone(), lane.clone()).cast(lane.dtype());
        }
        let source = self.contiguous()?;
        let target = lane.empty_as(self.dtype(), *self.shape())?;
        lane.stream().bring(&target.operand.span(), &source.operand.span(), self.lane.stream())?;
        target.cast(lane.dtype())
    }

    /// The same in the type that the values have, as tables of angles keep theirs.
    pub fn to_device_of(&self, lane: &Lane) -> Result<Tensor> {
        self.to_lane(&lane.with_dtype(self.dtype())?)
    }

    /// All values on the host, in f32, in order.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        let plain = self.cast(DType::F32)?.contiguous()?;
        read_all(&plain, self.lane.stream())
    }

    /// The values to be read later, in f32, over another stream of the device, which then waits for what was queued until
    /// now and not for what is queued after it.
    pub fn to_read_over(&self, stream: &Stream) -> Result<Unread> {
        let plain = self.cast(DType::F32)?.contiguous()?;
        Ok(Unread { ready: self.lane.stream().record()?, stream: stream.clone(), plain })
    }

    fn view(&self, operand: Result<Operand>) -> Result<Tensor> {
        Ok(Tensor::new(operand?, self.lane.clone()))
    }

    fn view_as(&self, shape: Shape) -> Result<Tensor> {
        self.view(self.operand.reshape(shape))
    }

    fn copied(&self, dtype: DType) -> Result<Tensor> {
        let out = self.lane.empty_as(dtype, *self.shape())?;
        self.copy_into(&out)?;
        Ok(out)
    }
}

/// Values that a device has or will have, to be read while it computes something else.
pub struct Unread {
    plain: Tensor,
    ready: Event,
    stream: Stream,
}

impl Unread {
    /// All values on the host, in order.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        self.stream.wait(&self.ready)?;
        read_all(&self.plain, &self.stream)
    }
}

/// Reads contiguous values in f32, a part at a time.
fn read_all(plain: &Tensor, stream: &Stream) -> Result<Vec<f32>> {
    let whole = plain.operand.span();
    let count = whole.len / 4;
    let mut values = Vec::with_capacity(count);
    let mut bytes = vec![0; 4 * count.min(PART_VALUES)];
    for (index, start) in (0..count).step_by(PART_VALUES).enumerate() {
        let bytes = &mut bytes[..4 * PART_VALUES.min(count - start)];
        stream.read(&part_of(&whole, index, bytes.len()), bytes)?;
        values.extend(bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)));
    }
    Ok(values)
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?})", self.operand)
    }
}
