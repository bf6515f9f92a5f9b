//! How a UNet departs from its training: what guidance nodes change between its blocks and in its middle.

use device::op::ReduceKind;
use residency::Lease;
use tensor::Tensor;

use super::config::{Config, Side, Unit};
use crate::Result;
use crate::diffusion::{Alteration, Amount, Recording, Shrink};

/// Whether a UNet has a place for a departure.
pub(super) fn is_known(alteration: &Alteration) -> bool {
    match alteration {
        Alteration::OwnValues
        | Alteration::RecordAttention(_)
        | Alteration::FreeU(_)
        | Alteration::Shrink(_) => true,
        Alteration::SkipBlock { .. }
        | Alteration::PatchesAtOnce(_)
        | Alteration::Placed(_)
        | Alteration::KeepReferences => false,
    }
}

/// What a transformer's block does otherwise: those of the middle alone do.
pub(super) fn of_attention<'a>(
    altered: &'a [Alteration],
    unit: &Unit,
    index: usize,
    items: usize,
) -> Attending<'a> {
    let mut attending = Attending { items, ..Attending::USUAL };
    if unit.place.side != Side::Middle {
        return attending;
    }
    for alteration in altered {
        match alteration {
            Alteration::OwnValues => attending.own_values = true,
            Alteration::RecordAttention(recording) if index == 0 => attending.recording = Some(recording),
            _ => {}
        }
    }
    attending
}

/// How self-attention departs from its training.
#[derive(Clone, Copy)]
pub(super) struct Attending<'a> {
    /// Every token gets its own value.
    pub(super) own_values: bool,
    /// Where the weights of attention are left.
    pub(super) recording: Option<&'a Recording>,
    /// Items of one evaluation.
    items: usize,
}

impl Attending<'_> {
    /// As it was trained.
    pub(super) const USUAL: Attending<'static> = Attending { own_values: false, recording: None, items: 0 };

    /// Leaves the weights of attention of queries and keys `[items, tokens, heads, size]`, for the first evaluation alone.
    pub(super) fn record(&self, q: &Tensor, k: &Tensor, scale: f32) -> Result<()> {
        let Some(recording) = self.recording else { return Ok(()) };
        let by_head = |x: &Tensor| -> Result<Tensor> {
            Ok(x.slice(0, 0, self.items)?.permute(&[0, 2, 1, 3])?.contiguous()?)
        };
        let scores = by_head(q)?.matmul(&by_head(k)?.transpose(2, 3)?, scale)?;
        recording.put(scores.softmax()?);
        Ok(())
    }
}

/// A picture behind an input block, as far as it shrinks there: before (`after_skip` false) or after it is kept for the way
/// out.
pub(super) fn shrunk(
    altered: &[Alteration],
    block: usize,
    after_skip: bool,
    image: &Tensor,
) -> Result<Option<Tensor>> {
    let mut smaller: Option<Tensor> = None;
    for alteration in altered {
        let Alteration::Shrink(shrink) = alteration else { continue };
        if shrink.block == block && shrink.after_skip == after_skip {
            let image = smaller.as_ref().unwrap_or(image);
            let side = |length: usize| {
                (length as f64 / f64::from(shrink.factor.0)).round_ties_even().max(1.0) as usize
            };
            smaller = Some(image.resize(side(image.dim(2)), side(image.dim(3)), shrink.down)?);
        }
    }
    Ok(smaller)
}

/// Pixels of the smallest picture on the way, which has so many where nothing shrinks.
pub(super) fn smallest(altered: &[Alteration], pixels: usize) -> usize {
    let factors = altered.iter().filter_map(|alteration| match alteration {
        Alteration::Shrink(shrink) => Some(f64::from(shrink.factor.0)),
        _ => None,
    });
    factors.fold(pixels, |pixels, factor| (pixels as f64 / (factor * factor)) as usize)
}

/// What an output block gets from below and from the way in, changed in the order of the departures.
pub(super) fn met(
    config: &Config,
    lease: &Lease<'_>,
    altered: &[Alteration],
    [mut image, mut kept]: [Tensor; 2],
) -> Result<[Tensor; 2]> {
    for alteration in altered {
        match alteration {
            Alteration::Shrink(Shrink { up, .. }) if image.dim(2) != kept.dim(2) => {
                image = image.resize(kept.dim(2), kept.dim(3), *up)?;
            }
            Alteration::FreeU(free) => {
                let channels = image.dim(1);
                let of = |times: usize| config.channels * times == channels;
                let Some(which) = [4, 2].into_iter().position(of) else { continue };
                image = stronger(&image, free.backbone[which], free.by_mean)?;
                kept = with_slow_part(lease, &kept, free.skip[which])?;
            }
            _ => {}
        }
    }
    Ok([image, kept])
}

/// A picture whose first half of channels is multiplied, by a number or by one for each place that follows their mean.
fn stronger(image: &Tensor, Amount(by): Amount, by_mean: bool) -> Result<Tensor> {
    let half = image.dim(1) / 2;
    let (first, rest) = (image.slice(1, 0, half)?, image.slice(1, half, image.dim(1) - half)?);
    let first = if by_mean {
        let mean = image.mean(&[1])?;
        let (most, least) = (mean.reduce(ReduceKind::Max, &[2, 3])?, mean.reduce(ReduceKind::Min, &[2, 3])?);
        let share = mean.sub(&least)?.div(&most.sub(&least)?)?;
        first.mul(&share.affine(by - 1.0, 1.0)?)?
    } else {
        first.affine(by, 0.0)?
    };
    Ok(Tensor::concat(&[&first, &rest], 1)?)
}

/// A picture whose slow part, the waves of frequency zero and minus one along both sides, is multiplied.
fn with_slow_part(lease: &Lease<'_>, image: &Tensor, Amount(by): Amount) -> Result<Tensor> {
    let (items, channels, height, width) = (image.dim(0), image.dim(1), image.dim(2), image.dim(3));
    let places = height * width;
    let waves = slow_waves(height, width);
    let count = waves.len() / places;
    let waves = lease.lane().tensor([count, places], &waves)?;
    let rows = image.contiguous()?.reshape([items * channels, places])?;
    // Along each wave, and back: what of the picture is made of them.
    let along = rows.matmul(&waves.transpose(0, 1)?, 1.0)?;
    let slow = along.matmul(&waves, by - 1.0)?;
    Ok(rows.add(&slow)?.reshape([items, channels, height, width])?)
}

/// The real waves of frequencies zero and minus one along both sides, one row each, of such length that a picture's part
/// made of them is the sum of its products with each, times the wave.
fn slow_waves(height: usize, width: usize) -> Vec<f32> {
    let places = (height * width) as f64;
    let norm = 1.0 / places.sqrt();
    let mut waves = vec![norm as f32; height * width];
    for (down, across) in [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)] {
        let angle = |at: usize| {
            let (y, x) = ((at / width) as f64, (at % width) as f64);
            std::f64::consts::TAU * (down * y / height as f64 + across * x / width as f64)
        };
        waves.extend((0..height * width).map(|at| (angle(at).cos() * norm) as f32));
        waves.extend((0..height * width).map(|at| (angle(at).sin() * norm) as f32));
    }
    waves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_waves_are_of_length_one_and_at_right_angles() {
        let waves = slow_waves(4, 6);
        let rows: Vec<&[f32]> = waves.chunks_exact(24).collect();
        assert_eq!(rows.len(), 7);
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        // The waves that go somewhere share their length between cosine and sine.
        let lengths: Vec<f32> = rows.iter().map(|row| product(row, row)).collect();
        assert!((lengths[0] - 1.0).abs() < 1e-6);
        assert!(lengths[1..].iter().all(|length| (length - 0.5).abs() < 1e-6), "{lengths:?}");
        assert!((1..7).all(|other| product(rows[0], rows[other]).abs() < 1e-6));
    }
}
