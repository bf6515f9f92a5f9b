//! A picture as a vision tower wants it: a square, cut out or squeezed, in 8-bit colours, normalised, colour by colour.

use models::vision::clip_vision::ClipVisionConfig;

use crate::Result;
use crate::image::{Target, scale_image_smoothly};
use crate::value::Image;

/// One picture of a batch, `[3, side, side]`.
pub(super) fn prepared(
    image: &Image,
    index: usize,
    config: &ClipVisionConfig,
    is_cropped: bool,
) -> Result<Vec<f32>> {
    let side = config.side;
    let picture = image.frames([index])?.with_channels(3)?;
    let scaled = if (picture.height, picture.width) == (side, side) {
        picture
    } else {
        scale_image_smoothly(&picture, target(&picture, side, is_cropped))?
    };
    let (top, left) = ((scaled.height - side) / 2, (scaled.width - side) / 2);
    let (mean, deviation) = config.kind.colours();
    let mut values = Vec::with_capacity(3 * side * side);
    for colour in 0..3 {
        for row in top..top + side {
            values.extend((left..left + side).map(|column| {
                let value = scaled.values[(row * scaled.width + column) * 3 + colour];
                let value = (255.0 * value).clamp(0.0, 255.0).round_ties_even() / 255.0;
                (value - mean[colour]) / deviation[colour]
            }));
        }
    }
    Ok(values)
}

/// The size that a picture is scaled to: its shorter side fits and the rest is cut off, or both sides fit.
fn target(picture: &Image, side: usize, is_cropped: bool) -> Target {
    if !is_cropped {
        return Target::new(side, side);
    }
    let factor = side as f64 / picture.height.min(picture.width).max(1) as f64;
    let scaled = |length: usize| (factor * length as f64).round_ties_even() as usize;
    Target::new(scaled(picture.width).max(side), scaled(picture.height).max(side))
}

#[cfg(test)]
mod tests {
    use models::vision::clip_vision::TowerKind;
    use runtime::host::Host;
    use tensor::Activation;
    use testkit::Golden;

    use super::*;

    fn data(name: &str) -> std::path::PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
    }

    fn config(side: usize, kind: TowerKind) -> ClipVisionConfig {
        ClipVisionConfig {
            side,
            patch: 14,
            tokens: 0,
            width: 0,
            mlp: 0,
            layers: 0,
            heads: 16,
            activation: Activation::Gelu,
            kind,
            projection: None,
            projector: None,
        }
    }

    #[test]
    fn pixels_are_the_references() {
        let golden = Golden::open(data("clip_vision.safetensors")).unwrap();
        let picture = std::fs::read(data("image.png")).unwrap();
        let picture = crate::picture::decode(&Host::with_budget(1 << 30), &picture).unwrap();
        let rows = picture.values[..48 * picture.width * picture.channels].iter().copied();
        let shape = [1, 48, picture.width, picture.channels];
        let part = Image::collect(picture.host(), shape, rows).unwrap();
        for (tower, side, kind) in [("l", 224, TowerKind::Clip), ("siglip384", 384, TowerKind::SigLip)] {
            for (crop, is_cropped) in [("center", true), ("none", false)] {
                let pixels = prepared(&part, 0, &config(side, kind), is_cropped).unwrap();
                let (shape, expected) = golden.tensor(&format!("{tower}.{crop}.pixel_rows")).unwrap();
                let [_, rows, columns] = *shape.dims() else { panic!("{shape}") };
                let at = |index: usize| {
                    let (colour, row, column) =
                        (index / (rows * columns), index / columns % rows, index % columns);
                    (colour * side + row * (side / 12)) * side + column * 5
                };
                let differs = |index: &usize| (pixels[at(*index)] - expected[*index]).abs() > 1e-5;
                let differing = (0..expected.len()).filter(differs).count();
                assert_eq!(differing, 0, "{tower} {crop}: {differing} of {}", expected.len());
            }
        }
    }
}
