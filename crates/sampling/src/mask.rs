//! Denoise masks: from the size they were painted at to a latent's.

use crate::{Error, Latent};

/// A mask brought to a latent's shape, `[batch, channels, height, width]` or with frames before the height.
///
/// Linear in height, width and frames (without smoothing, as the reference does). For pictures every plane of
/// the mask is a batch item; for videos it is a frame, unless the mask has all five axes. Items and
/// channels that the mask lacks repeat those that it has.
pub fn resize_mask(mask: &Latent, shape: &[usize]) -> Result<Latent, Error> {
    let wrong = || Error::Shape { what: "the mask", expected: shape.to_vec(), got: mask.shape().to_vec() };
    let &[.., mask_height, mask_width] = mask.shape() else { return Err(wrong()) };
    let plane = mask_height * mask_width;
    if mask.values().is_empty() {
        return Err(wrong());
    }
    let planes = mask.values().len() / plane;
    let (channels, frames, size) = match *shape {
        [_, channels, height, width] => (channels, 1, (height, width)),
        [_, channels, frames, height, width] => (channels, frames, (height, width)),
        _ => return Err(wrong()),
    };
    let (mask_items, mask_channels, mask_frames) = match *mask.shape() {
        [items, channels, frames, _, _] if shape.len() == 5 => (items, channels, frames),
        _ if shape.len() == 5 => (1, 1, planes),
        _ => (planes, 1, 1),
    };
    let resized: Vec<Vec<f32>> = mask
        .values()
        .chunks_exact(plane)
        .map(|source| bilinear(source, (mask_height, mask_width), size))
        .collect();
    let mut values = Vec::with_capacity(shape.iter().product());
    for item in 0..shape[0] {
        for channel in 0..channels {
            let first = ((item % mask_items) * mask_channels + channel % mask_channels) * mask_frames;
            for frame in 0..frames {
                let (low, high, weight) = neighbours(frame, mask_frames, frames);
                let (low, high) = (&resized[first + low], &resized[first + high]);
                values.extend(low.iter().zip(high).map(|(a, b)| a * (1.0 - weight) + b * weight));
            }
        }
    }
    Latent::new(shape.to_vec(), values)
}

/// One axis of an interpolation: the two neighbours and the weight of the second.
fn neighbours(at: usize, from: usize, to: usize) -> (usize, usize, f32) {
    let source = ((from as f32 / to as f32) * (at as f32 + 0.5) - 0.5).max(0.0);
    let low = (source as usize).min(from - 1);
    (low, (low + 1).min(from - 1), source - low as f32)
}

fn bilinear(source: &[f32], from: (usize, usize), to: (usize, usize)) -> Vec<f32> {
    let mut out = Vec::with_capacity(to.0 * to.1);
    for y in 0..to.0 {
        let (top, bottom, down) = neighbours(y, from.0, to.0);
        for x in 0..to.1 {
            let (left, right, along) = neighbours(x, from.1, to.1);
            let row =
                |y: usize| source[y * from.1 + left] * (1.0 - along) + source[y * from.1 + right] * along;
            out.push(row(top) * (1.0 - down) + row(bottom) * down);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halving_averages_the_middle_and_batches_repeat() {
        let mask = Latent::new(vec![2, 2], vec![0.0, 1.0, 1.0, 1.0]).unwrap();
        let got = resize_mask(&mask, &[3, 2, 1, 1]).unwrap();
        assert_eq!(got.shape(), [3, 2, 1, 1]);
        assert_eq!(got.values(), [0.75; 6]);
        assert_eq!(resize_mask(&mask, &[1, 1, 2, 2]).unwrap().values(), mask.values());
        assert!(resize_mask(&Latent::zeros(&[0, 4]), &[1, 1, 2, 2]).is_err());
        assert!(resize_mask(&mask, &[2, 2]).is_err());
    }

    #[test]
    fn frames_are_interpolated() {
        let mask = Latent::new(vec![2, 1, 1], vec![0.0, 1.0]).unwrap();
        let got = resize_mask(&mask, &[1, 2, 4, 1, 1]).unwrap();
        assert_eq!(got.values(), [0.0, 0.25, 0.75, 1.0, 0.0, 0.25, 0.75, 1.0]);
    }
}
