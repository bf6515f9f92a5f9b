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
    /// What it is made of.
    x: Tensor,
    before: Before,
    values: OnceCell<Tensor>,
    codes: OnceCell<Quantised>,
}

/// What is done to the values before layers read them.
#[derive(Clone, Debug)]
enum Before {
    Nothing,
    /// They get mean 0 and variance 1 over the last dimension, then `x · (1 + scale) + shift`.
    Norm(Box<Norm>),
    /// Those from a column on pass through the GELU that is approximated with tanh.
    GeluTanh {
        first: usize,
    },
}

#[derive(Clone, Debug)]
struct Norm {
    scale: Tensor,
    shift: Tensor,
    eps: f32,
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
        LayerInput::after(x, Before::Nothing)
    }

    /// What [`Tensor::modulated_norm`] gives of `x`. Where only codes are asked for, nothing lies between.
    pub fn normed(x: Tensor, scale: Tensor, shift: Tensor, eps: f32) -> LayerInput {
        LayerInput::after(x, Before::Norm(Box::new(Norm { scale, shift, eps })))
    }

    /// Values of which those from column `first` on pass through the GELU that is approximated with tanh. Where only codes
    /// are asked for, nothing lies between.
    pub fn gelu_tanh(x: Tensor, first: usize) -> LayerInput {
        LayerInput::after(x, Before::GeluTanh { first })
    }

    fn after(x: Tensor, before: Before) -> LayerInput {
        LayerInput { x, before, values: OnceCell::new(), codes: OnceCell::new() }
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        self.x.shape()
    }

    /// The size of one dimension.
    pub fn dim(&self, axis: usize) -> usize {
        self.x.dim(axis)
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.x.rank()
    }

    /// The element type of its values.
    pub fn dtype(&self) -> DType {
        self.x.dtype()
    }

    /// Where it computes.
    pub fn lane(&self) -> &Lane {
        self.x.lane()
    }

    /// The values.
    pub fn values(&self) -> Result<&Tensor> {
        let x = &self.x;
        match &self.before {
            Before::Nothing => Ok(x),
            Before::Norm(by) => made_once(&self.values, || x.modulated_norm(&by.scale, &by.shift, by.eps)),
            Before::GeluTanh { first } => made_once(&self.values, || activated(x, *first)),
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

    /// Whether the product with a weight is one of 8 bits.
    fn is_quantised_for(&self, weight: &Weight) -> bool {
        self.rows_are_rounded_for(weight) && self.shape().last() == weight.operand().shape().last()
    }

    /// Whether the product of as many rows as these with a weight is one of 8 bits, whatever the rows become until then: it
    /// is asked for, this device has it for activations of this type, and there are rows enough.
    pub fn rows_are_rounded_for(&self, weight: &Weight) -> bool {
        if !weight.has_fp8_product() || self.rank() == 0 || weight.input_factor().is_some() {
            return false;
        }
        let QuantisedRows { rows, .. } = QuantisedRows::of(self.shape());
        let stored = weight.operand();
        let is_whole = |size: usize| size > 0 && size.is_multiple_of(QuantisedRows::MULTIPLE);
        let fits = stored.encoding() == Encoding::Plain(DType::F8E4M3)
            && stored.rank() == 2
            && stored.dims().iter().all(|dim| is_whole(*dim))
            && stored.offset().is_multiple_of(QuantisedRows::MULTIPLE);
        let has_one_scale = weight.scales().is_none_or(|scales| {
            scales.values.count() == 1 && scales.values.dtype() == Some(DType::F32) && scales.tensor.is_none()
        });
        let device = self.lane().device().description();
        let is_there = device.capabilities.fp8_products.contains(&self.dtype());
        rows >= FEW_ROWS && fits && has_one_scale && is_there
    }

    /// The codes.
    fn codes(&self) -> Result<&Quantised> {
        made_once(&self.codes, || match &self.before {
            // What was made for others is not made again.
            Before::Norm(by) if self.values.get().is_none() => {
                self.x.quantise_normed(&by.scale, &by.shift, by.eps)
            }
            Before::GeluTanh { first } if self.values.get().is_none() => self.x.quantise_gelu_tanh(*first),
            _ => self.values()?.quantise(),
        })
    }
}

/// The same values with GELU from column `first` on.
fn activated(x: &Tensor, first: usize) -> Result<Tensor> {
    let axis = x.rank().saturating_sub(1);
    let out = x.lane().empty_as(x.dtype(), *x.shape())?;
    let rest = x.dim(axis) - first;
    if first > 0 {
        x.slice(axis, 0, first)?.copy_into(&out.slice(axis, 0, first)?)?;
    }
    x.slice(axis, first, rest)?.activate_into(Activation::GeluTanh, &out.slice(axis, first, rest)?)?;
    Ok(out)
}

/// What is in the cell, made if nothing is.
fn made_once<T>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(known) = cell.get() {
        return Ok(known);
    }
    let made = make()?;
    Ok(cell.get_or_init(|| made))
}
