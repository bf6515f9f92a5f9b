//! Scaled dot-product attention.

use super::{Operation, check};
use crate::{Operand, Result};

/// `softmax(scores + mask) · v` with scores `scale · q · kᵀ`, in memory linear in the number of keys.
#[derive(Clone, Debug)]
pub struct Attention {
    /// `[batch, queries, heads, size]`; packed rows, other strides free.
    pub q: Operand,
    /// `[batch, keys, groups, size]`, where `groups` divides `heads`: head `h` uses group
    /// `h / (heads / groups)`.
    pub k: Operand,
    /// As `k`.
    pub v: Operand,
    /// What a query may see.
    pub mask: AttentionMask,
    /// Factor of the scores, usually `1 / sqrt(size)`.
    pub scale: f32,
    /// Scores are bent to stay below this before the mask is added: `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// As `q`.
    pub out: Operand,
}

/// What a query may see.
#[derive(Clone, Debug)]
pub enum AttentionMask {
    /// All keys.
    None,
    /// Query `i` sees keys up to `i + keys - queries`.
    Causal,
    /// Added to the scores: repeatable to `[batch, heads, queries, keys]`.
    Additive(Operand),
}

/// The largest head that every device handles.
const MAX_HEAD_SIZE: usize = 256;

impl Operation for Attention {
    const NAME: &'static str = "attention";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.q);
        visit(&self.k);
        visit(&self.v);
        if let AttentionMask::Additive(mask) = &self.mask {
            visit(mask);
        }
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    fn activations<'a>(&'a mut self, visit: &mut dyn FnMut(&'a mut Operand)) {
        [&mut self.q, &mut self.k, &mut self.v].into_iter().for_each(&mut *visit);
        if let AttentionMask::Additive(mask) = &mut self.mask {
            visit(mask);
        }
        visit(&mut self.out);
    }

    fn check(&self) -> Result<()> {
        let (op, q, k, v) = (Self::NAME, &self.q, &self.k, &self.v);
        check::activation(op, "query", q)?;
        check::rank(op, "query", q, 4)?;
        check::rank(op, "key", k, 4)?;
        let size = q.dim(3);
        let head = size > 0 && size <= MAX_HEAD_SIZE;
        check::that(op, "query", head, format_args!("with heads of 1 to {MAX_HEAD_SIZE} values"), q)?;
        let fits =
            k.dim(0) == q.dim(0) && k.dim(3) == size && k.dim(2) > 0 && q.dim(2).is_multiple_of(k.dim(2));
        check::that(op, "key", fits, format_args!("matching the query {}", q.shape()), k)?;
        check::shape(op, "value", v, k.shape())?;
        check::that(op, "key", k.dim(1) > 0, "not empty", k)?;
        let cap = self.soft_cap.is_none_or(|cap| cap > 0.0 && cap.is_finite());
        check::that(op, "query", cap, format_args!("with a positive cap, not {:?}", self.soft_cap), q)?;
        check::shape(op, "output", &self.out, q.shape())?;
        for (name, operand) in [("query", q), ("key", k), ("value", v), ("output", &self.out)] {
            check::same_type(op, name, operand, q)?;
            check::packed_rows(op, name, operand)?;
        }
        if let AttentionMask::Additive(mask) = &self.mask {
            check::same_type(op, "mask", mask, q)?;
            let scores = meta::Shape::from([q.dim(0), q.dim(2), q.dim(1), k.dim(1)]);
            check::stretches(op, "mask", mask, &scores)?;
        }
        Ok(())
    }

    fn flops(&self) -> u64 {
        let pairs = self.q.dim(1) as u64 * self.k.dim(1) as u64;
        let half = matches!(self.mask, AttentionMask::Causal) as u64;
        (4 * self.q.dim(0) as u64 * self.q.dim(2) as u64 * pairs * self.q.dim(3) as u64) >> half
    }
}
