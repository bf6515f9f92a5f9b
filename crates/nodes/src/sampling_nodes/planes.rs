//! Latents and masks brought to another size or number, as ComfyUI does before it samples.

use sampling::{Latent, resize_mask};

use crate::value::Mask;
use crate::{Error, Result};

/// A mask as a latent of planes, `[batch, height, width]`.
pub(crate) fn mask_planes(mask: &Mask) -> Result<Latent> {
    Ok(Latent::new(vec![mask.batch, mask.height, mask.width], mask.values.to_vec())?)
}

/// Every plane of `[batch, channels, height, width]` brought to a size by linear interpolation.
pub(crate) fn resize(latent: &Latent, height: usize, width: usize) -> Result<Latent> {
    let [batch, channels, old_height, old_width] = dims(latent)?;
    if (old_height, old_width) == (height, width) {
        return Ok(latent.clone());
    }
    let planes = Latent::new(vec![batch * channels, old_height, old_width], latent.values().to_vec())?;
    let resized = resize_mask(&planes, &[batch * channels, 1, height, width])?;
    Ok(Latent::new(vec![batch, channels, height, width], resized.into_values())?)
}

/// The same, after the longer sides are cut to the proportions of the new size.
pub(crate) fn resize_and_centre(latent: &Latent, height: usize, width: usize) -> Result<Latent> {
    let [_, _, old_height, old_width] = dims(latent)?;
    let (old_aspect, aspect) = (old_width as f64 / old_height as f64, width as f64 / height as f64);
    let (mut left, mut top) = (0, 0);
    if old_aspect > aspect {
        let cut = old_width as f64 - old_width as f64 * (aspect / old_aspect);
        left = (cut / 2.0).round_ties_even() as usize;
    } else if old_aspect < aspect {
        let cut = old_height as f64 - old_height as f64 * (old_aspect / aspect);
        top = (cut / 2.0).round_ties_even() as usize;
    }
    let cut = crop(latent, [old_height - 2 * top, old_width - 2 * left, top, left])?;
    resize(&cut, height, width)
}

/// A part: height, width, top and left.
pub(crate) fn crop(latent: &Latent, [height, width, top, left]: [usize; 4]) -> Result<Latent> {
    let [batch, channels, old_height, old_width] = dims(latent)?;
    if (height, width) == (old_height, old_width) {
        return Ok(latent.clone());
    }
    let mut values = Vec::with_capacity(batch * channels * height * width);
    for plane in latent.values().chunks_exact(old_height * old_width) {
        for row in top..top + height {
            values.extend_from_slice(&plane[row * old_width + left..][..width]);
        }
    }
    Ok(Latent::new(vec![batch, channels, height, width], values)?)
}

/// As many items as a batch has: repeated, or picked evenly.
pub(crate) fn to_batch(latent: &Latent, batch: usize) -> Result<Latent> {
    let have = latent.shape().first().copied().unwrap_or(0);
    if have == batch || have == 0 {
        return Ok(latent.clone());
    }
    let len = latent.values().len() / have;
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
    let values = (0..batch).flat_map(|i| latent.values()[item(i) * len..][..len].iter().copied()).collect();
    let mut shape = latent.shape().to_vec();
    shape[0] = batch;
    Ok(Latent::new(shape, values)?)
}

/// Channels of one latent after those of another of the same size.
pub(crate) fn join_channels(first: &Latent, second: &Latent) -> Result<Latent> {
    let [batch, a, height, width] = dims(first)?;
    let [_, b, ..] = dims(second)?;
    let plane = height * width;
    let items = first.values().chunks_exact(a * plane).zip(second.values().chunks_exact(b * plane));
    let values = items.flat_map(|(first, second)| first.iter().chain(second).copied()).collect();
    Ok(Latent::new(vec![batch, a + b, height, width], values)?)
}

/// The axes of a latent picture.
pub(crate) fn dims(latent: &Latent) -> Result<[usize; 4]> {
    <[usize; 4]>::try_from(latent.shape()).map_err(|_| {
        Error::Told(format!(
            "the latent has shape {:?}; a latent picture has batch, channels, height and width",
            latent.shape()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latent(shape: [usize; 4]) -> Latent {
        let count = shape.iter().product();
        Latent::new(shape.to_vec(), (0..count).map(|i| i as f32).collect()).unwrap()
    }

    #[test]
    fn parts_and_batches_are_taken_where_they_are() {
        let whole = latent([2, 1, 3, 4]);
        assert_eq!(
            crop(&whole, [2, 2, 1, 1]).unwrap().values(),
            [5.0, 6.0, 9.0, 10.0, 17.0, 18.0, 21.0, 22.0]
        );
        let more = to_batch(&latent([2, 1, 1, 1]), 4).unwrap();
        assert_eq!(more.values(), [0.0, 0.0, 1.0, 1.0]);
        let fewer = to_batch(&latent([5, 1, 1, 1]), 3).unwrap();
        assert_eq!(fewer.values(), [0.0, 2.0, 4.0]);
        let joined = join_channels(&latent([2, 1, 1, 1]), &latent([2, 2, 1, 1])).unwrap();
        assert_eq!(joined.values(), [0.0, 0.0, 1.0, 1.0, 2.0, 3.0]);
    }

    #[test]
    fn a_wide_latent_is_cut_on_both_sides() {
        let square = resize_and_centre(&latent([1, 1, 2, 4]), 2, 2).unwrap();
        assert_eq!(square.values(), [1.0, 2.0, 5.0, 6.0]);
        assert!(resize(&Latent::zeros(&[1, 2, 3]), 2, 2).is_err());
    }
}
