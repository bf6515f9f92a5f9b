//! Latents brought to another size or number of items, as the reference does before it samples. Frames stay as they are.

use crate::{Error, Latent, LatentShape, resize_mask};

/// Height, width, top and left of a part of a latent.
pub type Window = [usize; 4];

impl Latent {
    /// Every plane brought to a size by linear interpolation.
    pub fn resized(&self, height: usize, width: usize) -> Result<Latent, Error> {
        let shape = LatentShape::of(self)?;
        if (shape.height, shape.width) == (height, width) {
            return Ok(self.clone());
        }
        let count = shape.batch * shape.channels * shape.frames;
        let planes = Latent::new(vec![count, shape.height, shape.width], self.values().to_vec())?;
        let resized = resize_mask(&planes, &[count, 1, height, width])?;
        Latent::new(self.shape_of_planes(height, width), resized.into_values())
    }

    /// The same, after the longer sides are cut to the proportions of the new size.
    pub fn resized_and_centred(&self, height: usize, width: usize) -> Result<Latent, Error> {
        let LatentShape { height: old_height, width: old_width, .. } = LatentShape::of(self)?;
        let (old_aspect, aspect) = (old_width as f64 / old_height as f64, width as f64 / height as f64);
        let (mut left, mut top) = (0, 0);
        if old_aspect > aspect {
            let cut = old_width as f64 - old_width as f64 * (aspect / old_aspect);
            left = (cut / 2.0).round_ties_even() as usize;
        } else if old_aspect < aspect {
            let cut = old_height as f64 - old_height as f64 * (old_aspect / aspect);
            top = (cut / 2.0).round_ties_even() as usize;
        }
        self.cropped([old_height - 2 * top, old_width - 2 * left, top, left])?.resized(height, width)
    }

    /// A part, which must lie inside.
    pub fn cropped(&self, [height, width, top, left]: Window) -> Result<Latent, Error> {
        let shape = LatentShape::of(self)?;
        if (height, width) == (shape.height, shape.width) {
            return Ok(self.clone());
        }
        let planes = shape.batch * shape.channels * shape.frames;
        let mut values = Vec::with_capacity(planes * height * width);
        for plane in self.values().chunks_exact(shape.plane().max(1)) {
            for row in top..top + height {
                values.extend_from_slice(&plane[row * shape.width + left..][..width]);
            }
        }
        Latent::new(self.shape_of_planes(height, width), values)
    }

    /// As many items as a batch has: repeated, or picked evenly.
    pub fn with_items(&self, batch: usize) -> Result<Latent, Error> {
        let have = self.shape().first().copied().unwrap_or(0);
        if have == batch || have == 0 {
            return Ok(self.clone());
        }
        let len = self.values().len() / have;
        let item = |i: usize| {
            let at = if batch <= 1 {
                i
            } else if batch < have {
                (i as f64 * ((have - 1) as f64 / (batch - 1) as f64)).round_ties_even() as usize
            } else {
                ((i as f64 + 0.5) * (have as f64 / batch as f64)).floor() as usize
            };
            at.min(have - 1)
        };
        let values = (0..batch).flat_map(|i| self.values()[item(i) * len..][..len].iter().copied()).collect();
        let mut shape = self.shape().to_vec();
        shape[0] = batch;
        Latent::new(shape, values)
    }

    /// The channels of another latent of the same size after its own.
    pub fn with_channels_of(&self, other: &Latent) -> Result<Latent, Error> {
        let (first, second) = (LatentShape::of(self)?, LatentShape::of(other)?);
        let volume = first.frames * first.plane();
        let mine = self.values().chunks_exact((first.channels * volume).max(1));
        let items = mine.zip(other.values().chunks_exact((second.channels * volume).max(1)));
        let values = items.flat_map(|(first, second)| first.iter().chain(second).copied()).collect();
        let mut shape = self.shape().to_vec();
        shape[1] += second.channels;
        Latent::new(shape, values)
    }

    /// The shape with planes of another size.
    fn shape_of_planes(&self, height: usize, width: usize) -> Vec<usize> {
        let axes = self.shape().len() - 2;
        [&self.shape()[..axes], &[height, width]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latent(shape: &[usize]) -> Latent {
        let count: usize = shape.iter().product();
        Latent::new(shape.to_vec(), (0..count).map(|i| i as f32).collect()).unwrap()
    }

    #[test]
    fn parts_and_batches_are_taken_where_they_are() {
        let part = [5.0, 6.0, 9.0, 10.0, 17.0, 18.0, 21.0, 22.0];
        for shape in [&[2, 1, 3, 4][..], &[1, 1, 2, 3, 4]] {
            assert_eq!(latent(shape).cropped([2, 2, 1, 1]).unwrap().values(), part, "{shape:?}");
        }
        let more = latent(&[2, 1, 1, 1]).with_items(4).unwrap();
        assert_eq!(more.values(), [0.0, 0.0, 1.0, 1.0]);
        let fewer = latent(&[5, 1, 1, 1]).with_items(3).unwrap();
        assert_eq!(fewer.values(), [0.0, 2.0, 4.0]);
        let joined = latent(&[2, 1, 1, 1]).with_channels_of(&latent(&[2, 2, 1, 1])).unwrap();
        assert_eq!(joined.values(), [0.0, 0.0, 1.0, 1.0, 2.0, 3.0]);
        let video = latent(&[1, 1, 2, 1, 1]).with_channels_of(&latent(&[1, 2, 2, 1, 1])).unwrap();
        assert_eq!(
            (video.shape(), video.values()),
            (&[1, 3, 2, 1, 1][..], &[0.0, 1.0, 0.0, 1.0, 2.0, 3.0][..])
        );
    }

    #[test]
    fn a_wide_latent_is_cut_on_both_sides() {
        let square = latent(&[1, 1, 2, 4]).resized_and_centred(2, 2).unwrap();
        assert_eq!(square.values(), [1.0, 2.0, 5.0, 6.0]);
        assert!(Latent::zeros(&[1, 2, 3]).resized(2, 2).is_err());
    }
}
