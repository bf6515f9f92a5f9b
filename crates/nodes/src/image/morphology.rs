//! Pictures grown and shrunk by a square: bright parts, or what of them is gained and lost.

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome};

use crate::class::class;
use crate::value::Image;
use crate::wanted::still_wanted;
use crate::{Result, Runtime};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(Morphology(Arc::clone(runtime)));
}

class! {
    Morphology in "image/postprocessing";
    |schema| schema
        .title("ImageMorphology")
        .about("Grows or shrinks the bright parts of pictures by a square of pixels.")
        .input(Input::socket("image", "IMAGE"))
        .input(Input::choice("operation", ["erode", "dilate", "open", "close", "gradient", "bottom_hat", "top_hat"]))
        .input(Input::int("kernel_size", 3, 3, 999).with("step", 1))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let side = call.size("kernel_size")?;
        Ok(Outcome::object(changed(&image, call.text("operation")?, side)?))
    }
}

/// What an operation with a square of this side makes of a picture.
fn changed(image: &Image, operation: &str, side: usize) -> Result<Image> {
    let (least, most) = (f32::min as Choose, f32::max as Choose);
    let opened = || extremes(&extremes(image, side, least)?, side, most);
    let closed = || extremes(&extremes(image, side, most)?, side, least);
    match operation {
        "erode" => extremes(image, side, least),
        "dilate" => extremes(image, side, most),
        "open" => opened(),
        "close" => closed(),
        "gradient" => difference(&extremes(image, side, most)?, &extremes(image, side, least)?),
        "bottom_hat" => difference(&closed()?, image),
        // Only "top_hat" is left of the menu.
        _ => difference(image, &opened()?),
    }
}

/// One of two values.
type Choose = fn(f32, f32) -> f32;

/// The least or the greatest value of the square around each, what is outside the picture left out: along rows, then along
/// columns.
fn extremes(image: &Image, side: usize, choose: Choose) -> Result<Image> {
    let (height, width, channels) = (image.height, image.width, image.channels);
    let before = side / 2;
    // An even square reaches further up and left.
    let reach = |at: usize, length: usize| at.saturating_sub(before)..(at + side - before).min(length);
    let mut along_rows = image.map(|value| value)?;
    for (line, out) in along_rows.values.to_mut()?.chunks_exact_mut((width * channels).max(1)).enumerate() {
        still_wanted()?;
        let row = &image.values[line * width * channels..(line + 1) * width * channels];
        for (at, value) in out.iter_mut().enumerate() {
            let (x, channel) = (at / channels, at % channels);
            *value = reach(x, width).map(|x| row[x * channels + channel]).fold(*value, choose);
        }
    }
    let mut out = along_rows.map(|value| value)?;
    for (line, row) in out.values.to_mut()?.chunks_exact_mut((width * channels).max(1)).enumerate() {
        still_wanted()?;
        let (item, y) = (line / height, line % height);
        for near in reach(y, height) {
            let start = (item * height + near) * width * channels;
            let near = &along_rows.values[start..start + width * channels];
            row.iter_mut().zip(near).for_each(|(value, near)| *value = choose(*value, *near));
        }
    }
    Ok(out)
}

fn difference(first: &Image, second: &Image) -> Result<Image> {
    let values = first.values.iter().zip(&second.values).map(|(a, b)| a - b);
    Image::collect(first.host(), first.shape(), values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::host::Host;

    /// A row of pixels, changed by a square of this side.
    fn row(values: &[f32], operation: &str, side: usize) -> Vec<f32> {
        let host = Host::with_budget(1 << 20);
        let image = Image::collect(&host, [1, 1, values.len(), 1], values.iter().copied()).unwrap();
        changed(&image, operation, side).unwrap().values.to_vec()
    }

    #[test]
    fn each_operation_does_what_its_name_says() {
        let values = [0.0, 0.0, 1.0, 0.0, 0.0, 0.5, 0.5, 0.5];
        assert_eq!(row(&values, "dilate", 3), [0.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]);
        assert_eq!(row(&values, "erode", 3), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5]);
        assert_eq!(row(&values, "open", 3), [0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5]);
        assert_eq!(row(&values, "close", 3), [0.0, 0.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5]);
        assert_eq!(row(&values, "gradient", 3), [0.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.0, 0.0]);
        assert_eq!(row(&values, "top_hat", 3), [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(row(&values, "bottom_hat", 3), [0.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0]);
        // An even square reaches one further to the left, so what is bright grows to the right.
        assert_eq!(row(&[1.0, 0.0, 0.0, 0.0, 0.0], "dilate", 4), [1.0, 1.0, 1.0, 0.0, 0.0]);
    }
}
