//! Feed-forwards of several experts: every token goes to the two that a gate finds best, and to one that all share.
//!
//! Which experts a token goes to is known on the device alone, so all of them compute all tokens, and those that were not
//! chosen count nothing: a host that asked which they are would have to wait for the device in every block.

use device::op::BinaryKind;
use meta::DType;
use residency::Lease;
use tensor::{Activation, Tensor};

use crate::Result;

/// Experts of every released model.
pub(super) const EXPERTS: usize = 4;
/// Larger than any score divided by the smallest step between two.
const STEEP: f32 = 1e30;

/// The feed-forward `name` with experts.
pub(super) fn experts(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let weights = chosen(&lease.linear(&format!("{name}.gate"), x)?)?.cast(x.dtype())?;
    let mut sum = feed_forward(lease, &format!("{name}.shared_experts"), x)?;
    for i in 0..EXPERTS {
        let out = feed_forward(lease, &format!("{name}.experts.{i}"), x)?;
        sum = sum.gated_add(&weights.slice(2, i, 1)?, &out)?;
    }
    Ok(sum)
}

/// The feed-forward `name`: SiLU of one layer times another, then a third.
pub(super) fn feed_forward(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let inner = {
        let (gate, up) = (lease.linear(&format!("{name}.w1"), x)?, lease.linear(&format!("{name}.w3"), x)?);
        gate.gate(Activation::Silu, &up)?
    };
    Ok(lease.linear(&format!("{name}.w2"), &inner)?)
}

/// The weights of experts from what the gate says of them, `[batch, tokens, experts]`: the two largest, and zeros.
fn chosen(scores: &Tensor) -> Result<Tensor> {
    let scores = scores.cast(DType::F32)?.softmax()?;
    let all = scores.chunk(2, EXPERTS)?;
    let of = |kind: BinaryKind, a: &Tensor, b: &Tensor| a.binary(kind, b);
    let (larger, smaller) = (BinaryKind::Max, BinaryKind::Min);
    let high = [of(larger, &all[0], &all[1])?, of(larger, &all[2], &all[3])?];
    let low = [of(smaller, &all[0], &all[1])?, of(smaller, &all[2], &all[3])?];
    let second = of(larger, &of(smaller, &high[0], &high[1])?, &of(larger, &low[0], &low[1])?)?;
    // One where a score is at least the second, zero where it is less.
    let counts = scores.sub(&second)?.affine(STEEP, 1.0)?.clamp(0.0, 1.0)?;
    Ok(scores.mul(&counts)?)
}
