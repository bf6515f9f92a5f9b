//! The values of a latent in groups that some formula sums over.

use std::ops::Range;

use crate::Latent;

/// Groups of values that differ only along neighbouring axes.
pub(super) struct Groups {
    /// Values of one group.
    pub(super) size: usize,
    /// Places behind the summed axes.
    inner: usize,
    /// All groups.
    count: usize,
}

impl Groups {
    /// One group for each place on the axes that are not among these.
    pub(super) fn along(shape: &[usize], axes: Range<usize>) -> Groups {
        let end = axes.end.min(shape.len());
        let start = axes.start.min(end);
        let product = |axes: &[usize]| axes.iter().product::<usize>();
        let (size, inner) = (product(&shape[start..end]), product(&shape[end..]));
        Groups { size, inner, count: product(&shape[..start]) * inner }
    }

    /// One group for each item.
    pub(super) fn items(shape: &[usize]) -> Groups {
        Groups::along(shape, 1..shape.len())
    }

    /// One group for all that stands before the last three axes: an item of a picture, a channel of a video.
    pub(super) fn of_last_three(shape: &[usize]) -> Groups {
        Groups::along(shape, shape.len().saturating_sub(3)..shape.len())
    }

    /// The group that a value is in.
    pub(super) fn of(&self, at: usize) -> usize {
        let inner = self.inner.max(1);
        at / (self.size * inner).max(1) * inner + at % inner
    }

    /// The sum of each group.
    pub(super) fn sums(&self, values: impl Iterator<Item = f64>) -> Vec<f64> {
        let mut sums = vec![0.0; self.count];
        values.enumerate().for_each(|(at, value)| sums[self.of(at)] += value);
        sums
    }

    /// The products of two latents, summed by group.
    pub(super) fn products(&self, a: &Latent, b: &Latent) -> Vec<f64> {
        self.sums(a.values().iter().zip(b.values()).map(|(a, b)| f64::from(*a) * f64::from(*b)))
    }

    /// The length of each group as a vector.
    pub(super) fn norms(&self, latent: &Latent) -> Vec<f64> {
        self.products(latent, latent).into_iter().map(f64::sqrt).collect()
    }

    /// The standard deviation of each group, of a sample.
    pub(super) fn deviations(&self, latent: &Latent) -> Vec<f64> {
        let count = self.size as f64;
        let means: Vec<f64> = self.sums(latent.values().iter().map(|value| f64::from(*value)));
        let squares = latent.values().iter().enumerate().map(|(at, value)| {
            let distance = f64::from(*value) - means[self.of(at)] / count;
            distance * distance
        });
        self.sums(squares).into_iter().map(|sum| (sum / (count - 1.0)).sqrt()).collect()
    }

    /// `f` of every value and the number of its group.
    pub(super) fn map(&self, latent: &Latent, f: impl Fn(usize, f32) -> f32) -> Latent {
        let mut out = latent.clone();
        let values = out.values_mut().iter_mut().enumerate();
        values.for_each(|(at, value)| *value = f(self.of(at), *value));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_the_places_on_the_other_axes() {
        let values: Vec<f32> = (0..12u8).map(f32::from).collect();
        let latent = Latent::new(vec![2, 3, 2], values).unwrap();
        let sums = |groups: &Groups| groups.sums(latent.values().iter().map(|v| f64::from(*v)));
        assert_eq!(sums(&Groups::items(latent.shape())), [15.0, 51.0]);
        assert_eq!(sums(&Groups::along(latent.shape(), 1..2)), [6.0, 9.0, 24.0, 27.0]);
        assert_eq!(sums(&Groups::of_last_three(latent.shape())), [66.0]);
        let deviations = Groups::along(latent.shape(), 1..2).deviations(&latent);
        assert_eq!(deviations, [2.0; 4]);
    }
}
