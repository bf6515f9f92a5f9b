//! What linear layers read, in the form that each of them wants it: as values, or as 8-bit codes for weights whose products
//! are of 8 bits. Either is made when a layer first asks for it, and once for all layers that read the same.

use std::borrow::Cow;
use std::cell::OnceCell;

use device::Result;
use device::op::{Linear, QuantisedRows};
use meta::{DType, Encoding, Shape};

use crate::{Activation, Lane, Quantised, Tensor, Weight};

/// Rows below which products of 8 bits gain nothing: these wait for the weight's bytes, whatever they multiply.
pub const FEW_ROWS: usize = 16;

/// The input of linear layers.
#[derive(Clone, Debug)]
pub struct LayerInput {
    source: Source,
    values: OnceCell<Tensor>,
    codes: OnceCell<Quantised>,
}

/// What it is made of.
#[derive(Clone, Debug)]
enum Source {
    /// These values.
    Values(Tensor),
    /// These, with mean 0 and variance 1 over the last dimension, then `x · (1 + scale) + shift`.
    Normed { x: Tensor, scale: Tensor, shift: Tensor, eps: f32 },
}

/// What can be read by a linear layer.
pub trait AsLayerInput {
    /// It as the input of layers.
    fn as_layer_input(&self) -> Cow<'_, LayerInput>;
}

impl AsLayerInput for LayerInput {
    fn as_layer_input(&self) -> Cow<'_, LayerInput> {
        Cow::Borrowed(self)
    }
}

impl AsLayerInput for Tensor {
    fn as_layer_input(&self) -> Cow<'_, LayerInput> {
        Cow::Owned(LayerInput::new(self.clone()))
    }
}

impl<T: AsLayerInput + ?Sized> AsLayerInput for &T {
    fn as_layer_input(&self) -> Cow<'_, LayerInput> {
        (**self).as_layer_input()
    }
}

impl LayerInput {
    /// Values as they are.
    pub fn new(x: Tensor) -> LayerInput {
        LayerInput { source: Source::Values(x), values: OnceCell::new(), codes: OnceCell::new() }
    }

    /// What [`Tensor::modulated_norm`] gives of `x`. Where only codes are asked for, nothing lies between.
    pub fn normed(x: Tensor, scale: Tensor, shift: Tensor, eps: f32) -> LayerInput {
        let source = Source::Normed { x, scale, shift, eps };
        LayerInput { source, values: OnceCell::new(), codes: OnceCell::new() }
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        self.like().shape()
    }

    /// The size of one dimension.
    pub fn dim(&self, axis: usize) -> usize {
        self.like().dim(axis)
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.like().rank()
    }

    /// The element type of its values.
    pub fn dtype(&self) -> DType {
        self.like().dtype()
    }

    /// Where it computes.
    pub fn lane(&self) -> &Lane {
        self.like().lane()
    }

    /// A tensor of the same shape, type and lane.
    fn like(&self) -> &Tensor {
        match &self.source {
            Source::Values(x) | Source::Normed { x, .. } => x,
        }
    }

    /// The values.
    pub fn values(&self) -> Result<&Tensor> {
        match &self.source {
            Source::Values(x) => Ok(x),
            Source::Normed { x, scale, shift, eps } => {
                made_once(&self.values, || x.modulated_norm(scale, shift, *eps))
            }
        }
    }

    /// `activation(x · weightᵀ + bias)`.
    pub fn linear_then(
        &self,
        weight: &Weight,
        bias: Option<&Weight>,
        activation: Option<Activation>,
    ) -> Result<Tensor> {
        let width = weight.dims().first().copied().unwrap_or(0);
        let shape = match self.rank() {
            0 => Shape::scalar(),
            rank => self.shape().with(rank - 1, width),
        };
        let out = self.lane().empty_as(self.dtype(), shape)?;
        self.linear_into(weight, bias, activation, &out)?;
        Ok(out)
    }

    /// The same written into a view of another tensor, such as a part of it.
    pub fn linear_into(
        &self,
        weight: &Weight,
        bias: Option<&Weight>,
        activation: Option<Activation>,
        out: &Tensor,
    ) -> Result<()> {
        if self.is_quantised_for(weight) {
            return self.codes()?.linear_into(weight, bias, activation, out);
        }
        let x = self.values()?;
        let rows = match weight.input_factor() {
            Some(factor) => x.mul(&Tensor::new(factor.clone(), x.lane().clone()).cast(x.dtype())?)?,
            None if x.operand().has_packed_rows() => x.clone(),
            None => x.contiguous()?,
        };
        self.lane().launch(Linear {
            x: rows.operand().clone(),
            weight: weight.operand().clone(),
            scales: weight.scales().cloned(),
            bias: bias.map(|b| b.operand().clone()),
            activation,
            out: out.operand().clone(),
        })
    }

    /// Whether the product with a weight is one of 8 bits: it is asked for, this device has it for these activations, and
    /// there are rows enough.
    fn is_quantised_for(&self, weight: &Weight) -> bool {
        if !weight.has_fp8_product() || self.rank() == 0 || weight.input_factor().is_some() {
            return false;
        }
        let QuantisedRows { rows, columns } = QuantisedRows::of(self.shape());
        let stored = weight.operand();
        let is_whole = |size: usize| size > 0 && size.is_multiple_of(QuantisedRows::MULTIPLE);
        let fits = stored.encoding() == Encoding::Plain(DType::F8E4M3)
            && stored.rank() == 2
            && stored.dims().iter().all(|dim| is_whole(*dim))
            && stored.offset().is_multiple_of(QuantisedRows::MULTIPLE)
            && columns == stored.dim(1);
        let has_one_scale = weight.scales().is_none_or(|scales| {
            scales.values.count() == 1 && scales.values.dtype() == Some(DType::F32) && scales.tensor.is_none()
        });
        let device = self.lane().device().description();
        let is_there = device.capabilities.fp8_products.contains(&self.dtype());
        rows >= FEW_ROWS && fits && has_one_scale && is_there
    }

    /// The codes.
    fn codes(&self) -> Result<&Quantised> {
        made_once(&self.codes, || match &self.source {
            // A norm that was made for others is not made again.
            Source::Normed { x, scale, shift, eps } if self.values.get().is_none() => {
                x.quantise_normed(scale, shift, *eps)
            }
            _ => self.values()?.quantise(),
        })
    }
}

/// What is in the cell, made if nothing is.
fn made_once<T>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(known) = cell.get() {
        return Ok(known);
    }
    let made = make()?;
    Ok(cell.get_or_init(|| made))
}
