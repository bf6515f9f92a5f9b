//! Between the decoder's pixels and ours.

use image::{ColorType, DynamicImage};

use super::Pixels;
use crate::Result;
use crate::value::Image;
use runtime::host::Host;

/// Frames of equal size as one batch; with transparency if the first has it.
pub(super) fn to_image(host: &Host, frames: &[DynamicImage]) -> Result<Image> {
    let frames: Vec<_> = frames.iter().map(to_pixels).collect();
    let (width, height) = frames.first().map_or((0, 0), |first| (first.width, first.height));
    // Animations are unpacked with transparency, whether they use it or not.
    let is_opaque = frames.iter().all(|frame| {
        frame.channels == 3 || frames.len() > 1 && frame.bytes.chunks_exact(4).all(|pixel| pixel[3] == 255)
    });
    let channels = if is_opaque { 3 } else { 4 };
    let shape = [frames.len(), height, width, channels];
    let room = host.room(&shape)?;
    let mut values = room.vector()?;
    for frame in frames {
        let frame = if is_opaque { frame.without_alpha() } else { frame.with_alpha() };
        values.extend(frame.bytes.iter().map(|byte| f32::from(*byte) / 255.0));
    }
    Ok(Image::of(shape, room.hold(values)))
}

/// A decoded picture with 3 channels, or 4 if it has transparency. Of 16 bits the upper 8 count, as in Pillow.
pub(super) fn to_pixels(image: &DynamicImage) -> Pixels {
    let (width, height) = (image.width() as usize, image.height() as usize);
    let has_alpha = image.color().has_alpha();
    let channels = if has_alpha { 4 } else { 3 };
    let bytes = match (image.color(), has_alpha) {
        (ColorType::L16 | ColorType::Rgb16, _) => upper_bytes(image.to_rgb16().as_raw()),
        (ColorType::La16 | ColorType::Rgba16, _) => upper_bytes(image.to_rgba16().as_raw()),
        (_, true) => image.to_rgba8().into_raw(),
        (_, false) => image.to_rgb8().into_raw(),
    };
    Pixels { width, height, channels, bytes }
}

fn upper_bytes(values: &[u16]) -> Vec<u8> {
    values.iter().map(|value| (value >> 8) as u8).collect()
}

impl Pixels {
    /// The colours alone.
    pub(super) fn without_alpha(self) -> Pixels {
        if self.channels != 4 {
            return self;
        }
        let bytes = self.bytes.chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
        Pixels { channels: 3, bytes, ..self }
    }

    /// With transparency: opaque if there was none.
    pub(super) fn with_alpha(self) -> Pixels {
        if self.channels != 3 {
            return self;
        }
        let bytes =
            self.bytes.chunks_exact(3).flat_map(|pixel| [pixel[0], pixel[1], pixel[2], 255]).collect();
        Pixels { channels: 4, bytes, ..self }
    }
}
