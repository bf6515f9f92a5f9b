//! What control networks add inside of a model: weighed, summed over several networks, and added to tokens.

use residency::Lease;
use tensor::Tensor;

use super::ControlResiduals;
use crate::Result;

impl ControlResiduals {
    /// All of it times a strength. What stands in several places is computed once.
    pub fn scaled(&self, strength: f32) -> Result<ControlResiduals> {
        if strength == 1.0 {
            return Ok(self.clone());
        }
        let mut known: Vec<(Tensor, Tensor)> = Vec::new();
        self.mapped(|residual| {
            if let Some((_, scaled)) = known.iter().find(|(from, _)| is_same(from, residual)) {
                return Ok(scaled.clone());
            }
            let scaled = residual.affine(strength, 0.0)?;
            known.push((residual.clone(), scaled.clone()));
            Ok(scaled)
        })
    }

    /// `change` of every tensor.
    pub fn mapped(&self, mut change: impl FnMut(&Tensor) -> Result<Tensor>) -> Result<ControlResiduals> {
        let mut all = |places: &[Option<Tensor>]| -> Result<Vec<Option<Tensor>>> {
            places.iter().map(|place| place.as_ref().map(&mut change).transpose()).collect()
        };
        Ok(ControlResiduals {
            input: all(&self.input)?,
            middle: all(&self.middle)?,
            output: all(&self.output)?,
        })
    }

    /// Both together: sums where both have something.
    pub fn with(&self, more: &ControlResiduals) -> Result<ControlResiduals> {
        Ok(ControlResiduals {
            input: sums(&self.input, &more.input)?,
            middle: sums(&self.middle, &more.middle)?,
            output: sums(&self.output, &more.output)?,
        })
    }
}

fn is_same(a: &Tensor, b: &Tensor) -> bool {
    a.operand().same_view(b.operand())
}

fn sums(a: &[Option<Tensor>], b: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
    let sum = |place: usize| match (a.get(place).cloned().flatten(), b.get(place).cloned().flatten()) {
        // Networks may have computed on different devices.
        (Some(a), Some(b)) => Ok(Some(a.add(&b.to_lane(a.lane())?)?)),
        (a, b) => Ok(a.or(b)),
    };
    (0..a.len().max(b.len())).map(sum).collect()
}

/// Adds to tokens `[batch, tokens, width]` of evaluations that run as one batch what each is given for a block, from the
/// token `first` on.
pub(super) fn add_to_tokens<'a>(
    lease: &Lease<'_>,
    tokens: &Tensor,
    first: usize,
    given: impl IntoIterator<Item = Option<&'a Tensor>>,
) -> Result<()> {
    let given: Vec<Option<&Tensor>> = given.into_iter().collect();
    let items = tokens.dim(0) / given.len().max(1);
    for (index, residual) in given.into_iter().enumerate() {
        let Some(residual) = residual else { continue };
        let place = tokens.slice(0, index * items, items)?.slice(1, first, residual.dim(1))?;
        place.add_in_place(&lease.bring(residual)?)?;
    }
    Ok(())
}
