//! Pictures through a video codec and back, each by itself: what a model sees that learned from the frames of videos.

use std::io::Cursor;

use graph::{Call, Failure};
use media::{FrameRate, Mp4Writer, Source, VideoPlan, VideoReader};

use super::{frame_bytes, told};
use crate::value::Image;
use crate::{Error, Result};

/// The worst quality that the codec knows, as x264's `crf` counts.
const WORST: f64 = 51.0;

/// Every picture written as the frame of a video at a quality, as x264's `crf` counts, and read again. A row and a column
/// that make the size odd are left out.
pub(crate) fn through_codec(call: &Call, image: &Image, quality: f64) -> Result<Image, Failure> {
    let (width, height) = (image.width & !1, image.height & !1);
    let shape = [image.batch, height, width, 3];
    let room = image.host().room(&shape)?;
    let mut values = room.vector()?;
    for index in 0..image.batch {
        call.check()?;
        values.extend(one_through(image, index, quality)?.iter().map(|byte| f32::from(*byte) / 255.0));
    }
    Ok(Image::of(shape, room.hold(values)))
}

/// Red, green and blue of one picture behind the codec.
fn one_through(image: &Image, index: usize, quality: f64) -> Result<Vec<u8>> {
    let plan = VideoPlan {
        width: image.width,
        height: image.height,
        rate: FrameRate { frames: 1, seconds: 1 },
        quality: quality.min(WORST),
        sound: None,
        texts: Vec::new(),
    };
    let mut writer = Mp4Writer::new(Cursor::new(Vec::new()), plan).map_err(told)?;
    writer.frame(&frame_bytes(image, index)).map_err(told)?;
    let file = writer.finish().map_err(told)?.into_inner();
    let mut reader = VideoReader::open(&Source::Bytes("a picture.mp4".to_owned(), file)).map_err(told)?;
    let frame = reader.next_frame().map_err(told)?;
    frame
        .map(|frame| frame.rgb)
        .filter(|rgb| rgb.len() == (image.width & !1) * (image.height & !1) * 3)
        .ok_or_else(|| Error::Told("the codec gave no picture back; give it one of another size".to_owned()))
}
