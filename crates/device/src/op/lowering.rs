//! Fused operations in terms of the others, for devices that have no kernel for them. The results differ from the fused
//! ones by the rounding of what lies between.

use meta::{DType, Encoding};

use super::{
    Binary, BinaryKind, GatedActivation, GatedAdd, LayerNorm, Modulate, ModulatedNorm, NormedRope, OpCall,
    RmsNorm, Rope, Unary, UnaryKind,
};
use crate::{Buffer, Operand, Result};

/// Gives memory for values in between.
type Allocate<'a> = dyn FnMut(usize) -> Result<Buffer> + 'a;

impl OpCall {
    /// The same in several calls, to be launched in order; none for operations that every device must have. Memory for what
    /// lies between comes from `allocate`.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn lower(&self, allocate: &mut Allocate<'_>) -> Result<Option<Vec<OpCall>>> {
        Ok(Some(match self {
            OpCall::ModulatedNorm(call) => modulated_norm(call),
            OpCall::Modulate(call) => modulate(call, allocate)?,
            OpCall::GatedAdd(call) => gated_add(call, allocate)?,
            OpCall::GatedActivation(call) => gated_activation(call, allocate)?,
            OpCall::NormedRope(call) => normed_rope(call, allocate)?,
            _ => return Ok(None),
        }))
    }
}

/// A contiguous place for values like those of an operand.
fn between(like: &Operand, allocate: &mut Allocate<'_>) -> Result<Operand> {
    // Activations have a plain type: the call has been checked.
    let dtype = like.dtype().unwrap_or(DType::F32);
    Operand::new(allocate(like.count() * dtype.bytes())?, Encoding::Plain(dtype), *like.shape(), 0)
}

fn binary(kind: BinaryKind, a: &Operand, b: &Operand, out: &Operand) -> OpCall {
    Binary { kind, a: a.clone(), b: b.clone(), out: out.clone() }.into()
}

/// The norm is written where the result goes, and modulated there.
fn modulated_norm(ModulatedNorm { x, scale, shift, eps, out }: &ModulatedNorm) -> Vec<OpCall> {
    let norm = LayerNorm { x: x.clone(), weight: None, bias: None, eps: *eps, out: out.clone() };
    let modulate = Modulate { x: out.clone(), scale: scale.clone(), shift: shift.clone(), out: out.clone() };
    vec![norm.into(), modulate.into()]
}

/// `x · scale + x + shift`.
fn modulate(call: &Modulate, allocate: &mut Allocate<'_>) -> Result<Vec<OpCall>> {
    let Modulate { x, scale, shift, out } = call;
    let t = between(out, allocate)?;
    Ok(vec![
        binary(BinaryKind::Mul, x, scale, &t),
        binary(BinaryKind::Add, &t, x, &t),
        binary(BinaryKind::Add, &t, shift, out),
    ])
}

fn gated_add(GatedAdd { x, gate, y, out }: &GatedAdd, allocate: &mut Allocate<'_>) -> Result<Vec<OpCall>> {
    let t = between(out, allocate)?;
    Ok(vec![binary(BinaryKind::Mul, gate, y, &t), binary(BinaryKind::Add, x, &t, out)])
}

fn gated_activation(call: &GatedActivation, allocate: &mut Allocate<'_>) -> Result<Vec<OpCall>> {
    let GatedActivation { activation, gate, up, out } = call;
    let t = between(out, allocate)?;
    let activate = Unary { kind: UnaryKind::Activation(*activation), x: gate.clone(), out: t.clone() };
    Ok(vec![activate.into(), binary(BinaryKind::Mul, &t, up, out)])
}

fn normed_rope(call: &NormedRope, allocate: &mut Allocate<'_>) -> Result<Vec<OpCall>> {
    let NormedRope { x, weight, eps, cos, sin, layout, out } = call;
    let t = between(x, allocate)?;
    let norm =
        RmsNorm { axis: x.rank() - 1, x: x.clone(), weight: Some(weight.clone()), eps: *eps, out: t.clone() };
    let rope = Rope { x: t, cos: cos.clone(), sin: sin.clone(), layout: *layout, out: out.clone() };
    Ok(vec![norm.into(), rope.into()])
}
