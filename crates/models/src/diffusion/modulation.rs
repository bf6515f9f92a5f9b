//! What diffusion transformers share: times as waves, modulations, and values that every block reads.

use std::ops::Range;

use meta::DType;
use residency::Lease;
use tensor::{Activation, Lane, LayerInput, Tensor, Weight};

use crate::{Probe, Result};

/// Values of the embedding of a time or of a guidance.
pub(crate) const TIME_VALUES: usize = 256;

/// A time as waves of many lengths, `[1, 256]`.
pub(super) fn time_embedding(lane: &Lane, time: f32) -> Result<Tensor> {
    Ok(lane.tensor([1, TIME_VALUES], &waves(time, TIME_VALUES))?)
}

/// A time as so many waves: cosines, then sines. Angles are rounded to f32, as they are where the weights were trained.
pub(crate) fn waves(time: f32, count: usize) -> Vec<f32> {
    let half = count / 2;
    let angles = (0..half).map(|i| {
        let frequency = (-(10_000f64.ln()) as f32 * i as f32 / half as f32).exp();
        time * frequency
    });
    let angles: Vec<f32> = angles.collect();
    angles.iter().map(|a| a.cos()).chain(angles.iter().map(|a| a.sin())).collect()
}

/// A vector of the model's width from waves or a pooled text, by two layers of these names behind the first.
pub(super) fn embed(
    lease: &Lease<'_>,
    (name, [inner, outer]): (&str, [&str; 2]),
    x: &Tensor,
    probe: &mut Probe<'_>,
) -> Result<Tensor> {
    let x = lease.linear_then(&format!("{name}.{inner}"), x, Some(Activation::Silu))?;
    let out = lease.linear(&format!("{name}.{outer}"), &x)?;
    probe.show(format_args!("{name}"), &out);
    Ok(out)
}

/// What a normalisation multiplies by, of models that keep what is added to one. The sum is made in f32: in 16 bits it
/// would have lost what the file has.
pub(super) fn one_more(lease: &Lease<'_>, name: &str) -> Result<Weight> {
    let exact = lease.lane().with_dtype(DType::F32)?;
    let sum = exact.unpack(&lease.weight(name)?)?.affine(1.0, 1.0)?;
    Ok(Weight::new(sum.operand().clone()))
}

/// A value that every block reads and none changes: it travels to each device once.
pub(super) struct Everywhere {
    first: Tensor,
    copies: Vec<Tensor>,
}

impl Everywhere {
    pub(super) fn new(first: Tensor) -> Everywhere {
        Everywhere { first, copies: Vec::new() }
    }

    /// The value where it was made.
    pub(super) fn first(&self) -> &Tensor {
        &self.first
    }

    /// The value where a block computes.
    pub(super) fn on(&mut self, lease: &Lease<'_>) -> Result<Tensor> {
        let here = |copy: &&Tensor| copy.lane().device().id() == lease.lane().device().id();
        if let Some(copy) = std::iter::once(&self.first).chain(&self.copies).find(here) {
            return Ok(copy.clone());
        }
        let copy = lease.bring(&self.first)?;
        self.copies.push(copy.clone());
        Ok(copy)
    }
}

/// How one half of a block is moved: `x · (1 + scale) + shift` before it and `gate` after.
pub(super) struct Modulation {
    pub(super) shift: Tensor,
    pub(super) scale: Tensor,
    pub(super) gate: Tensor,
    /// Tokens that are moved otherwise, in order.
    but_for: Vec<(Range<usize>, Modulation)>,
}

impl Modulation {
    /// Three parts of a modulation `[items or 1, 1, parts · hidden]`, from part `first`.
    pub(super) fn part(change: &Tensor, first: usize, parts: usize) -> Result<Modulation> {
        let width = change.dim(2) / parts;
        let part = |i: usize| change.slice(2, (first + i) * width, width);
        Ok(Modulation { shift: part(0)?, scale: part(1)?, gate: part(2)?, but_for: Vec::new() })
    }

    /// The same where the scale stands before the shift.
    pub(super) fn scale_first(change: &Tensor, first: usize, parts: usize) -> Result<Modulation> {
        let Modulation { shift: scale, scale: shift, gate, .. } = Modulation::part(change, first, parts)?;
        Ok(Modulation { shift, scale, gate, but_for: Vec::new() })
    }

    /// A scale and a gate, without any shift.
    pub(super) fn unshifted(scale: &Tensor, gate: &Tensor) -> Result<Modulation> {
        let shift = scale.lane().full([1, 1, scale.dim(2)], 0.0)?.contiguous()?;
        Ok(Modulation { shift, scale: scale.clone(), gate: gate.clone(), but_for: Vec::new() })
    }

    /// The two parts of a modulation behind the last block, where nothing is gated.
    pub(super) fn of_exit(change: &Tensor) -> Result<Modulation> {
        let parts = change.chunk(2, 2)?;
        let [shift, scale] = [parts[0].clone(), parts[1].clone()];
        Ok(Modulation { gate: shift.clone(), shift, scale, but_for: Vec::new() })
    }

    /// The same, but for some tokens, which another moves. They stand behind those that others move already.
    pub(super) fn but_for(mut self, tokens: Range<usize>, other: Modulation) -> Modulation {
        self.but_for.push((tokens, other));
        self
    }

    /// Tokens `[items, tokens, hidden]` normalised, scaled and shifted, for the linear layers that read them.
    pub(super) fn normed_input(&self, x: &Tensor, eps: f32) -> Result<LayerInput> {
        Ok(if self.but_for.is_empty() {
            LayerInput::normed(x.clone(), self.scale.clone(), self.shift.clone(), eps)
        } else {
            LayerInput::new(self.normed(x, eps)?)
        })
    }

    /// Tokens `[items, tokens, hidden]` normalised, scaled and shifted.
    pub(super) fn normed(&self, x: &Tensor, eps: f32) -> Result<Tensor> {
        if self.but_for.is_empty() {
            return Ok(x.modulated_norm(&self.scale, &self.shift, eps)?);
        }
        let out = x.lane().empty_as(x.dtype(), *x.shape())?;
        for (Range { start, end }, by) in self.spans(x.dim(1)) {
            let part = |x: &Tensor| x.slice(1, start, end - start);
            part(x)?.modulated_norm_into(&by.scale, &by.shift, eps, &part(&out)?)?;
        }
        Ok(out)
    }

    /// Tokens that were normalised already, scaled and shifted.
    pub(super) fn moved(&self, x: &Tensor) -> Result<Tensor> {
        if self.but_for.is_empty() {
            return Ok(x.modulate(&self.scale, &self.shift)?);
        }
        let out = x.lane().empty_as(x.dtype(), *x.shape())?;
        for (Range { start, end }, by) in self.spans(x.dim(1)) {
            let part = |x: &Tensor| x.slice(1, start, end - start);
            part(x)?.modulate_into(&by.scale, &by.shift, &part(&out)?)?;
        }
        Ok(out)
    }

    /// Tokens plus what a half of a block gave, gated.
    pub(super) fn gated(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        if self.but_for.is_empty() {
            return Ok(x.gated_add(&self.gate, y)?);
        }
        let out = x.lane().empty_as(x.dtype(), *x.shape())?;
        for (Range { start, end }, by) in self.spans(x.dim(1)) {
            let part = |x: &Tensor| x.slice(1, start, end - start);
            part(x)?.gated_add_into(&by.gate, &part(y)?, &part(&out)?)?;
        }
        Ok(out)
    }

    /// The tokens of a sequence by what moves them.
    fn spans(&self, tokens: usize) -> Vec<(Range<usize>, &Modulation)> {
        let (mut spans, mut next) = (Vec::new(), 0);
        for (apart, other) in &self.but_for {
            spans.push((next..apart.start, self));
            spans.push((apart.clone(), other));
            next = apart.end;
        }
        spans.push((next..tokens, self));
        spans.retain(|(span, _)| !span.is_empty());
        spans
    }
}

/// Modulations `[rows, width]` as `[items or 1, 1, width]`: an evaluation of several items may have one row for all.
pub(super) fn by_item(change: &Tensor, items: usize) -> Result<Tensor> {
    let (rows, width) = (change.dim(0), change.dim(1));
    let change = change.reshape([rows, 1, width])?;
    if rows == 1 || rows == items {
        return Ok(change);
    }
    Ok(change.broadcast([rows, items / rows, width])?.reshape([items, 1, width])?)
}
