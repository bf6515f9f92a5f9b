//! WebP files that move: frames one after the other, and how they were made.

use super::{WebpCoding, pixels_of, webp_of};
use crate::value::Image;
use crate::{Error, Result};

/// What a file has, in its first chunk.
const MOVES: u8 = 0x02;
const HAS_EXIF: u8 = 0x08;
const HAS_ALPHA: u8 = 0x10;
/// A frame takes the place of what was there and is not mixed with it.
const REPLACES: u8 = 0x02;
/// The longest side, and the longest time of a frame, that the format can say.
const MOST: usize = (1 << 24) - 1;
/// The tags under which texts are found again: the prompt, then others, counted down.
const PROMPT_TAG: u16 = 0x0110;
const FIRST_OTHER_TAG: u16 = 0x010F;

/// How pictures that move are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Milliseconds of each.
    pub(crate) frame_ms: u64,
    /// How often all are shown; 0 is without an end.
    pub(crate) times: u16,
}

/// Pictures as one that moves, or a still one if there is only one.
///
/// # Errors
/// There are no pictures, or they are too large for the format.
pub(crate) fn animated(
    image: &Image,
    pace: Pace,
    coding: WebpCoding,
    text: &[(String, String)],
) -> Result<Vec<u8>> {
    let frames = (0..image.batch).map(|index| frame(image, index, coding)).collect::<Result<Vec<_>>>()?;
    let (Some(width), Some(height)) = (image.width.checked_sub(1), image.height.checked_sub(1)) else {
        return Err(Error::Told("there are no pixels in the pictures".to_owned()));
    };
    if frames.is_empty() || width > MOST || height > MOST {
        let size = format!("{} pictures of {}x{} pixels", image.batch, image.width, image.height);
        return Err(Error::Told(format!("{size} cannot be saved as WebP")));
    }
    let exif = exif(text)?;
    let moves = frames.len() > 1;
    let mut flags = if moves { MOVES } else { 0 };
    flags |= if exif.is_empty() { 0 } else { HAS_EXIF };
    flags |= if image.channels == 4 { HAS_ALPHA } else { 0 };
    let mut body = b"WEBP".to_vec();
    let mut about = vec![flags, 0, 0, 0];
    about.extend(three_bytes(width));
    about.extend(three_bytes(height));
    chunk(&mut body, b"VP8X", &about)?;
    if moves {
        // No colour behind it.
        let [low, high] = pace.times.to_le_bytes();
        chunk(&mut body, b"ANIM", &[0, 0, 0, 0, low, high])?;
        let frame_ms = usize::try_from(pace.frame_ms).unwrap_or(MOST).min(MOST);
        for frame in &frames {
            let mut about = vec![0; 6];
            about.extend([width, height, frame_ms].into_iter().flat_map(three_bytes));
            about.push(REPLACES);
            about.extend(frame);
            chunk(&mut body, b"ANMF", &about)?;
        }
    } else {
        body.extend(&frames[0]);
    }
    if !exif.is_empty() {
        chunk(&mut body, b"EXIF", &exif)?;
    }
    let mut file = Vec::with_capacity(body.len() + 8);
    file.extend(b"RIFF");
    file.extend(length(&body)?);
    file.extend(body);
    Ok(file)
}

/// The chunks with the pixels of one picture, its transparency first.
fn frame(image: &Image, index: usize, coding: WebpCoding) -> Result<Vec<u8>> {
    let file = webp_of(&pixels_of(image, index)?, coding)?;
    let mut rest = file.get(12..).unwrap_or_default();
    let mut found = Vec::new();
    while let [a, b, c, d, s0, s1, s2, s3, ..] = *rest {
        let len = u32::from_le_bytes([s0, s1, s2, s3]) as usize;
        let end = (8 + len + len % 2).min(rest.len());
        if [*b"ALPH", *b"VP8 ", *b"VP8L"].contains(&[a, b, c, d]) {
            found.extend(&rest[..end]);
        }
        rest = &rest[end..];
    }
    if found.is_empty() {
        return Err(Error::Told("a picture could not be written as WebP".to_owned()));
    }
    Ok(found)
}

fn chunk(out: &mut Vec<u8>, name: &[u8; 4], bytes: &[u8]) -> Result<()> {
    out.extend(name);
    out.extend(length(bytes)?);
    out.extend(bytes);
    // Chunks begin at even places.
    out.extend(vec![0; bytes.len() % 2]);
    Ok(())
}

fn length(bytes: &[u8]) -> Result<[u8; 4]> {
    let len = u32::try_from(bytes.len());
    Ok(len.map_err(|_| Error::Told("the pictures are too many for one WebP file".to_owned()))?.to_le_bytes())
}

fn three_bytes(number: usize) -> [u8; 3] {
    let [a, b, c, ..] = (number as u32).to_le_bytes();
    [a, b, c]
}

/// Texts as the fields that cameras write, each with its key in front.
fn exif(text: &[(String, String)]) -> Result<Vec<u8>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut other = FIRST_OTHER_TAG;
    let mut fields: Vec<(u16, Vec<u8>)> = Vec::new();
    for (key, value) in text {
        let tag = if key == "prompt" { PROMPT_TAG } else { other };
        other = other.saturating_sub(u16::from(key != "prompt"));
        fields.push((tag, format!("{key}:{value}\0").into_bytes()));
    }
    fields.sort_by_key(|(tag, _)| *tag);
    // The order of bytes, a number that tells it apart, and where the fields begin.
    let mut out = b"II*\0\x08\0\0\0".to_vec();
    out.extend((fields.len() as u16).to_le_bytes());
    let mut place = out.len() + 12 * fields.len() + 4;
    for (tag, text) in &fields {
        out.extend(tag.to_le_bytes());
        out.extend(2u16.to_le_bytes());
        out.extend(length(text)?);
        let at = u32::try_from(place).map_err(|_| Error::Told("the workflow is too long".to_owned()))?;
        out.extend(at.to_le_bytes());
        place += text.len();
    }
    out.extend([0; 4]);
    fields.iter().for_each(|(_, text)| out.extend(text));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use ::image::AnimationDecoder;
    use ::image::codecs::webp::WebPDecoder;

    use super::*;

    fn pictures(batch: usize) -> Image {
        let values = (0..batch * 5 * 7 * 3).map(|at| (at * 37 % 256) as f32 / 255.0 + 1e-4);
        Image::collect(&runtime::host::Host::with_budget(1 << 30), [batch, 5, 7, 3], values).unwrap()
    }

    #[test]
    fn frames_come_back_as_they_were() {
        let image = pictures(3);
        let text =
            vec![("prompt".to_owned(), "{\"1\": 2}".to_owned()), ("workflow".to_owned(), "{}".to_owned())];
        let file = animated(&image, Pace { frame_ms: 125, times: 0 }, WebpCoding::LOSSLESS, &text).unwrap();
        let frames = WebPDecoder::new(Cursor::new(&file)).unwrap().into_frames().collect_frames().unwrap();
        assert_eq!(frames.len(), 3);
        for (index, frame) in frames.iter().enumerate() {
            let rgb: Vec<u8> =
                frame.buffer().pixels().flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
            assert_eq!(rgb, pixels_of(&image, index).unwrap().bytes);
            assert_eq!(frame.delay().numer_denom_ms(), (125, 1));
        }
        let found = |text: &str| file.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(found("prompt:{\"1\": 2}\0") && found("workflow:{}\0"));
    }

    #[test]
    fn one_picture_stands_still() {
        let image = pictures(1);
        let file = animated(&image, Pace { frame_ms: 100, times: 0 }, WebpCoding::LOSSLESS, &[]).unwrap();
        let decoder = WebPDecoder::new(Cursor::new(&file)).unwrap();
        assert!(!decoder.has_animation());
        let decoded = ::image::load_from_memory(&file).unwrap().to_rgb8();
        assert_eq!(decoded.into_raw(), pixels_of(&image, 0).unwrap().bytes);
        assert!(animated(&pictures(0), Pace { frame_ms: 100, times: 0 }, WebpCoding::LOSSLESS, &[]).is_err());
    }

    #[test]
    fn frames_with_loss_are_smaller_and_still_alike() {
        let values = |channels: usize| {
            let side = 64;
            let value = move |at: usize| {
                let (y, x) = (at / channels / side, at / channels % side);
                ((x as f32 / 9.0).sin() * (y as f32 / 7.0).cos() + 1.0) / 2.0
            };
            let values = (0..2 * side * side * channels).map(move |at| value(at % (side * side * channels)));
            Image::collect(&runtime::host::Host::with_budget(1 << 30), [2, side, side, channels], values)
                .unwrap()
        };
        for channels in [3, 4] {
            let image = values(channels);
            let file = |coding| animated(&image, Pace { frame_ms: 40, times: 0 }, coding, &[]).unwrap();
            let sizes = [10, 50, 90].map(|quality| file(WebpCoding::of_quality(quality)).len());
            assert!(sizes.is_sorted() && sizes[0] < sizes[2], "{sizes:?}");
            assert!(sizes[2] < file(WebpCoding::LOSSLESS).len());
            let decoder = WebPDecoder::new(Cursor::new(file(WebpCoding::of_quality(90)))).unwrap();
            let frames = decoder.into_frames().collect_frames().unwrap();
            assert_eq!(frames.len(), 2);
            let wanted = pixels_of(&image, 1).unwrap().bytes;
            let got = frames[1].buffer().pixels().flat_map(|pixel| pixel.0[..channels].to_vec());
            let apart = got.zip(wanted).map(|(a, b)| u32::from(a.abs_diff(b))).sum::<u32>();
            assert!(apart / (64 * 64 * channels as u32) < 8, "{apart}");
        }
    }
}
