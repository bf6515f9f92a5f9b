//! Operations that treat every value by itself.

use device::op::{Activation, Binary, BinaryKind, GatedActivation, GatedAdd, Modulate, Unary, UnaryKind};
use device::{Error, Result};
use meta::{MAX_RANK, Shape};

use crate::Tensor;

impl Tensor {
    /// One value in, one value out.
    pub fn unary(&self, kind: UnaryKind) -> Result<Tensor> {
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        self.lane().launch(Unary { kind, x: self.operand().clone(), out: out.operand().clone() })?;
        Ok(out)
    }

    /// A non-linearity.
    pub fn activate(&self, activation: Activation) -> Result<Tensor> {
        self.unary(UnaryKind::Activation(activation))
    }

    /// A non-linearity, written into a view of another tensor, such as a part of it.
    pub fn activate_into(&self, activation: Activation, out: &Tensor) -> Result<()> {
        let kind = UnaryKind::Activation(activation);
        self.lane().launch(Unary { kind, x: self.operand().clone(), out: out.operand().clone() })
    }

    /// Itself where it is positive, times `slope` elsewhere.
    pub fn leaky_relu(&self, slope: f32) -> Result<Tensor> {
        self.unary(UnaryKind::LeakyRelu { slope })
    }

    /// As [`Tensor::leaky_relu`], written into a view of another tensor, such as a part of it.
    pub fn leaky_relu_into(&self, slope: f32, out: &Tensor) -> Result<()> {
        let kind = UnaryKind::LeakyRelu { slope };
        self.lane().launch(Unary { kind, x: self.operand().clone(), out: out.operand().clone() })
    }

    /// `self · mul + add`.
    pub fn affine(&self, mul: f32, add: f32) -> Result<Tensor> {
        self.unary(UnaryKind::Affine { mul, add })
    }

    /// Into a range.
    pub fn clamp(&self, min: f32, max: f32) -> Result<Tensor> {
        self.unary(UnaryKind::Clamp { min, max })
    }

    /// Two values in, one value out; dimensions of size 1 repeat.
    pub fn binary(&self, kind: BinaryKind, other: &Tensor) -> Result<Tensor> {
        let shape = joint_shape(self.shape(), other.shape())?;
        let out = self.lane().empty_as(self.dtype(), shape)?;
        let (a, b) = (self.operand().clone(), other.operand().clone());
        self.lane().launch(Binary { kind, a, b, out: out.operand().clone() })?;
        Ok(out)
    }

    /// `self + other`.
    pub fn add(&self, other: &Tensor) -> Result<Tensor> {
        self.binary(BinaryKind::Add, other)
    }

    /// Adds `other` to the values of this tensor or view where they are; dimensions of size 1 of `other` repeat.
    pub fn add_in_place(&self, other: &Tensor) -> Result<()> {
        let (a, b) = (self.operand().clone(), other.operand().clone());
        self.lane().launch(Binary { kind: BinaryKind::Add, a, b, out: self.operand().clone() })
    }

    /// `self - other`.
    pub fn sub(&self, other: &Tensor) -> Result<Tensor> {
        self.binary(BinaryKind::Sub, other)
    }

    /// `self · other`, value by value.
    pub fn mul(&self, other: &Tensor) -> Result<Tensor> {
        self.binary(BinaryKind::Mul, other)
    }

    /// `self / other`.
    pub fn div(&self, other: &Tensor) -> Result<Tensor> {
        self.binary(BinaryKind::Div, other)
    }

    /// `self · (1 + scale) + shift`.
    pub fn modulate(&self, scale: &Tensor, shift: &Tensor) -> Result<Tensor> {
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        self.modulate_into(scale, shift, &out)?;
        Ok(out)
    }

    /// As [`Tensor::modulate`], written into a view of another tensor, such as a part of it.
    pub fn modulate_into(&self, scale: &Tensor, shift: &Tensor, out: &Tensor) -> Result<()> {
        self.lane().launch(Modulate {
            x: self.operand().clone(),
            scale: scale.operand().clone(),
            shift: shift.operand().clone(),
            out: out.operand().clone(),
        })
    }

    /// `self + gate · y`.
    pub fn gated_add(&self, gate: &Tensor, y: &Tensor) -> Result<Tensor> {
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        self.gated_add_into(gate, y, &out)?;
        Ok(out)
    }

    /// As [`Tensor::gated_add`], written into a view of another tensor, such as a part of it.
    pub fn gated_add_into(&self, gate: &Tensor, y: &Tensor, out: &Tensor) -> Result<()> {
        self.lane().launch(GatedAdd {
            x: self.operand().clone(),
            gate: gate.operand().clone(),
            y: y.operand().clone(),
            out: out.operand().clone(),
        })
    }

    /// `activation(self) · up`.
    pub fn gate(&self, activation: Activation, up: &Tensor) -> Result<Tensor> {
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        self.gate_into(activation, up, &out)?;
        Ok(out)
    }

    /// As [`Tensor::gate`], written into a view of another tensor, such as a part of it.
    pub fn gate_into(&self, activation: Activation, up: &Tensor, out: &Tensor) -> Result<()> {
        let (gate, up) = (self.operand().clone(), up.operand().clone());
        self.lane().launch(GatedActivation { activation, gate, up, out: out.operand().clone() })
    }
}

/// The shape to which both repeat.
fn joint_shape(a: &Shape, b: &Shape) -> Result<Shape> {
    let rank = a.rank().max(b.rank());
    let at = |s: &Shape, i: usize| if i < rank - s.rank() { 1 } else { s.dims()[i + s.rank() - rank] };
    let mut dims = [0; MAX_RANK];
    for (i, dim) in dims.iter_mut().enumerate().take(rank) {
        *dim = match (at(a, i), at(b, i)) {
            (x, y) if x == y => x,
            (1, y) => y,
            (x, 1) => x,
            _ => {
                return Err(Error::Operand {
                    op: "binary",
                    operand: "right",
                    expected: format!("repeatable with {a}"),
                    got: format!("of shape {b}"),
                });
            }
        };
    }
    Ok(Shape::new(&dims[..rank]).expect("the rank is that of one of two valid shapes"))
}
