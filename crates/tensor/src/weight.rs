//! Weights: stored parameters, in whatever encoding their file has.

use std::ops::Range;

use device::op::Scales;
use device::{Buffer, Device, Operand, Result};
use meta::{DType, Encoding, Shape};

/// A stored parameter on a device, with what its encoding needs beside it.
#[derive(Clone, Debug)]
pub struct Weight {
    operand: Operand,
    /// Its dimensions, without what its rows are filled up with.
    shape: Shape,
    scales: Option<Scales>,
    /// What the input of its layer is multiplied with, one number for each column.
    input_factor: Option<Operand>,
    /// Whether products with it may be of 8 bits, where it and the device allow that.
    fp8_product: bool,
}

impl Weight {
    /// A parameter as it lies in a buffer.
    pub fn new(operand: Operand) -> Weight {
        Weight { shape: *operand.shape(), operand, scales: None, input_factor: None, fp8_product: false }
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
        let encoding = operand.encoding();
        let scales = self.scales.as_ref().map(|scales| scales.rows(encoding, &rows)).transpose()?;
        let input_factor = self.input_factor.clone();
        let (shape, fp8_product) = (self.shape.with(0, rows.len()), self.fp8_product);
        Ok(Weight { operand, shape, scales, input_factor, fp8_product })
    }

    /// The same parameter with one f32 that multiplies it.
    pub fn scaled(self, scale: Operand) -> Weight {
        self.with_scales(Scales::new(scale, None))
    }

    /// The same parameter with scales that make numbers of its codes.
    pub fn with_scales(self, scales: Scales) -> Weight {
        Weight { scales: Some(scales), ..self }
    }

    /// The same parameter without what its stored rows and columns are filled up with.
    pub fn cut_to(self, shape: Shape) -> Result<Weight> {
        let rows = shape.dims().first().copied().unwrap_or(0);
        let cut = shape.rank() == 2 && self.operand.rank() == 2 && rows < self.operand.dim(0);
        let operand = if cut { self.operand.slice(0, 0, rows)? } else { self.operand };
        Ok(Weight { operand, shape, ..self })
    }

    /// The same parameter of a layer whose input is multiplied first, column by column.
    pub fn with_input_factor(self, factor: Operand) -> Weight {
        Weight { input_factor: Some(factor), ..self }
    }

    /// The same parameter of a layer whose products may be of 8 bits.
    pub fn with_fp8_product(self, fp8_product: bool) -> Weight {
        Weight { fp8_product, ..self }
    }

    /// Whether products with it may be of 8 bits, where it and the device allow that.
    pub fn has_fp8_product(&self) -> bool {
        self.fp8_product
    }

    /// Where the values are.
    pub fn operand(&self) -> &Operand {
        &self.operand
    }

    /// The type of its elements, if each is stored by itself.
    pub fn dtype(&self) -> Option<DType> {
        match self.operand.encoding() {
            Encoding::Plain(dtype) => Some(dtype),
            _ => None,
        }
    }

    /// What multiplies them.
    pub fn scales(&self) -> Option<&Scales> {
        self.scales.as_ref()
    }

    /// What the input of its layer is multiplied with.
    pub fn input_factor(&self) -> Option<&Operand> {
        self.input_factor.as_ref()
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The dimensions.
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }
}
