//! Rows of activations as 8-bit codes with one scale each, and their products with weights of 8 bits.

use device::op::{QuantiseRows, QuantisedLinear, QuantisedRows, RowChange, RowModulation};
use device::{Operand, Result};
use meta::{DType, Shape};

use crate::{Activation, Lane, Tensor, Weight};

/// Rows of codes, and what they were made of.
#[derive(Clone, Debug)]
pub struct Quantised {
    codes: Operand,
    shape: Shape,
    dtype: DType,
    lane: Lane,
}

impl Tensor {
    /// Each row, which has a multiple of 16 values, as codes with a scale.
    pub fn quantise(&self) -> Result<Quantised> {
        self.quantise_after(RowChange::None)
    }

    /// The same of what [`Tensor::modulated_norm`] gives, which is not rounded in between.
    pub fn quantise_normed(&self, scale: &Tensor, shift: &Tensor, eps: f32) -> Result<Quantised> {
        let (scale, shift) = (scale.operand().clone(), shift.operand().clone());
        self.quantise_after(RowChange::Norm(Box::new(RowModulation { scale, shift, eps })))
    }

    /// The same of rows whose values from column `first` on pass through the GELU that is approximated with tanh.
    pub fn quantise_gelu_tanh(&self, first: usize) -> Result<Quantised> {
        self.quantise_after(RowChange::GeluTanh { first })
    }

    fn quantise_after(&self, before: RowChange) -> Result<Quantised> {
        let x = if self.operand().has_packed_rows() { self.clone() } else { self.contiguous()? };
        let bytes = QuantisedRows::of(x.shape()).bytes();
        let codes = x.lane().empty_as(DType::U8, [bytes])?.operand().clone();
        x.lane().launch(QuantiseRows { x: x.operand().clone(), before, out: codes.clone() })?;
        Ok(Quantised { codes, shape: *x.shape(), dtype: x.dtype(), lane: x.lane().clone() })
    }
}

impl Quantised {
    /// `activation(x · weightᵀ + bias)` with a weight of e4m3 that has one scale at most.
    pub fn linear_then(
        &self,
        weight: &Weight,
        bias: Option<&Weight>,
        activation: Option<Activation>,
    ) -> Result<Tensor> {
        let shape = self.shape.with(self.shape.rank() - 1, weight.dims()[0]);
        let out = self.lane.empty_as(self.dtype, shape)?;
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
        self.lane.launch(QuantisedLinear {
            x: self.codes.clone(),
            weight: weight.operand().clone(),
            scale: weight.scales().map(|scales| scales.values.clone()),
            bias: bias.map(|b| b.operand().clone()),
            activation,
            out: out.operand().clone(),
        })
    }
}
