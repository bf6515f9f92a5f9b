//! Picture files: read and written, with the text that says how they were made.
//!
//! Bytes in, bytes out: only this file and those below it know the formats. What comes from outside is bounded
//! before it is unpacked, so a small file cannot ask for a large part of the memory.

mod chunks;
mod convert;
mod json;
mod moving_webp;

use std::io::Cursor;

use image::codecs::gif::GifDecoder;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::imageops::FilterType;
use image::{
    AnimationDecoder, DynamicImage, ExtendedColorType, ImageDecoder, ImageFormat, ImageReader, Limits,
};

use crate::value::Image;
use crate::{Error, Result};
use runtime::host::{Host, Room};

pub use chunks::{png_text, with_text_of};
pub(crate) use json::python_float;
pub use json::python_json;
pub(crate) use moving_webp::{Pace, animated as animated_webp};

/// Pixels of the largest picture that is read, over all frames; Pillow refuses larger ones, too.
const MAX_PIXELS: u64 = 178_956_970;
/// Bytes that a decoder may take: eight for every pixel.
const MAX_DECODER_BYTES: u64 = 8 * MAX_PIXELS;

/// A picture of 8 bits for each channel, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Pixels in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// 1 (grey), 3 (red, green, blue) or 4 (with transparency).
    pub channels: usize,
    /// `width * height * channels` bytes.
    pub bytes: Vec<u8>,
}

/// How pixels become WebP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WebpCoding {
    /// From 0 to 100; without loss if there is none.
    pub(crate) quality: Option<u8>,
    /// From 0 (fast) to 6 (small).
    pub(crate) effort: u8,
}

impl WebpCoding {
    /// Without loss.
    #[cfg(test)]
    pub(crate) const LOSSLESS: WebpCoding = WebpCoding { quality: None, effort: 4 };

    /// With the usual effort.
    pub(crate) const fn of_quality(quality: u8) -> WebpCoding {
        WebpCoding { quality: Some(quality), effort: 4 }
    }
}

/// What a picture is sent as, beside PNG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviewFormat {
    /// WebP of a quality from 1 to 100.
    Webp(u8),
    /// JPEG of a quality from 1 to 100, without transparency.
    Jpeg(u8),
}

/// Reads a picture file of any kind that is known, its first frame; transparency as a mask is the caller's. The
/// picture has 4 channels if the file has transparency. It is turned as the camera says.
///
/// # Errors
/// It is no picture, or a broken one, or too large, or there is too little memory.
pub fn decode(host: &Host, bytes: &[u8]) -> Result<Image> {
    let (first, _unpacked) = decode_first(host, bytes)?;
    convert::to_image(host, &[first])
}

/// Reads a picture file with all its frames, those of another size than the first left out.
///
/// # Errors
/// As for [`decode`].
pub fn decode_frames(host: &Host, bytes: &[u8]) -> Result<Image> {
    let (frames, _unpacked) = match image::guess_format(bytes) {
        Ok(ImageFormat::Gif) => {
            frames_of(host, limited(GifDecoder::new(Cursor::new(bytes)).map_err(unreadable)?)?)?
        }
        Ok(ImageFormat::WebP) => {
            let decoder = limited(WebPDecoder::new(Cursor::new(bytes)).map_err(unreadable)?)?;
            if decoder.has_animation() { frames_of(host, decoder)? } else { Default::default() }
        }
        Ok(ImageFormat::Png) => {
            let decoder = limited(PngDecoder::new(Cursor::new(bytes)).map_err(unreadable)?)?;
            if decoder.is_apng().map_err(unreadable)? {
                frames_of(host, decoder.apng().map_err(unreadable)?)?
            } else {
                Default::default()
            }
        }
        _ => Default::default(),
    };
    // One frame is read as a still picture, which keeps what the format says about colours and turning.
    if frames.len() < 2 { decode(host, bytes) } else { convert::to_image(host, &frames) }
}

/// Reads a picture file as 8-bit pixels with 3 or 4 channels, not turned.
///
/// # Errors
/// As for [`decode`].
pub fn decode_pixels(bytes: &[u8]) -> Result<Pixels> {
    let mut decoder = reader(bytes)?.into_decoder().map_err(unreadable)?;
    check_size(&decoder)?;
    decoder.set_limits(limits()).map_err(unreadable)?;
    Ok(convert::to_pixels(&DynamicImage::from_decoder(decoder).map_err(unreadable)?))
}

/// Writes one picture of a batch as PNG. `level` is zlib's, 0 to 9; each text becomes a `tEXt` chunk, in order.
///
/// # Errors
/// There is no such picture, or it has no pixels.
pub fn encode_png(image: &Image, index: usize, level: u8, text: &[(String, String)]) -> Result<Vec<u8>> {
    let pixels = pixels_of(image, index)?;
    png_of(&pixels, level, text)
}

/// The same with 16 bits for each channel.
///
/// # Errors
/// There is no such picture, or it has no pixels.
pub(crate) fn encode_png16(
    image: &Image,
    index: usize,
    level: u8,
    text: &[(String, String)],
) -> Result<Vec<u8>> {
    let pixels = pixels_of(image, index)?;
    let length = pixels.bytes.len();
    let values = &image.values[index * length..(index + 1) * length];
    let bytes: Vec<u8> = values.iter().flat_map(|value| ((value * 65535.0) as u16).to_be_bytes()).collect();
    write_png(&pixels, level, text, |encoder| encoder.set_depth(png::BitDepth::Sixteen), &bytes)
}

/// One picture of a batch in 8 bits: times 255, bounded, and cut to a whole number.
///
/// # Errors
/// There is no such picture, or it has other than 1, 3 or 4 channels.
pub fn pixels_of(image: &Image, index: usize) -> Result<Pixels> {
    let length = image.height * image.width * image.channels;
    let Some(values) = image.values.get(index * length..(index + 1) * length) else {
        return Err(Error::Told(format!("the batch has {} pictures, not {}", image.batch, index + 1)));
    };
    let bytes = values.iter().map(|value| (value * 255.0) as u8).collect();
    let pixels = Pixels { width: image.width, height: image.height, channels: image.channels, bytes };
    pixels.color().map(|_| pixels)
}

/// Writes pixels as PNG. `level` is zlib's, 0 to 9; each text becomes a `tEXt` chunk, in order.
///
/// # Errors
/// There are no pixels.
pub fn png_of(pixels: &Pixels, level: u8, text: &[(String, String)]) -> Result<Vec<u8>> {
    write_png(pixels, level, text, |_| {}, &pixels.bytes)
}

/// Writes samples of a picture that is described by its pixels of 8 bits, and by what is said of the encoder besides.
fn write_png(
    pixels: &Pixels,
    level: u8,
    text: &[(String, String)],
    besides: impl FnOnce(&mut png::Encoder<'_, &mut Vec<u8>>),
    samples: &[u8],
) -> Result<Vec<u8>> {
    let (width, height) = pixels.size()?;
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    describe(&mut encoder, pixels, level)?;
    besides(&mut encoder);
    let mut writer = encoder.write_header().map_err(|error| png_error(&error))?;
    for (key, value) in text {
        if let Some(chunk) = chunks::text_chunk(key, value) {
            writer.write_chunk(png::chunk::tEXt, &chunk).map_err(|error| png_error(&error))?;
        }
    }
    writer.write_image_data(samples).map_err(|error| png_error(&error))?;
    writer.finish().map_err(|error| png_error(&error))?;
    Ok(out)
}

/// Writes a batch as one PNG that moves and repeats. The texts become `comf` chunks, which front ends read from such
/// files.
///
/// # Errors
/// There are no pictures, or they have no pixels.
pub fn animated_png(image: &Image, frame_ms: u64, level: u8, text: &[(String, String)]) -> Result<Vec<u8>> {
    let first = pixels_of(image, 0)?;
    let (width, height) = first.size()?;
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    describe(&mut encoder, &first, level)?;
    let frames =
        u32::try_from(image.batch).map_err(|_| Error::Told("there are too many pictures".to_owned()))?;
    encoder.set_animated(frames, 0).map_err(|error| png_error(&error))?;
    encoder
        .set_frame_delay(u16::try_from(frame_ms).unwrap_or(u16::MAX), 1000)
        .map_err(|error| png_error(&error))?;
    let mut writer = encoder.write_header().map_err(|error| png_error(&error))?;
    for index in 0..image.batch {
        writer.write_image_data(&pixels_of(image, index)?.bytes).map_err(|error| png_error(&error))?;
    }
    for chunk in text.iter().filter_map(|(key, value)| chunks::text_chunk(key, value)) {
        writer.write_chunk(png::chunk::ChunkType(*b"comf"), &chunk).map_err(|error| png_error(&error))?;
    }
    writer.finish().map_err(|error| png_error(&error))?;
    Ok(out)
}

/// Writes a picture file anew for a preview, in its full size.
///
/// # Errors
/// The file is no picture that can be read.
pub fn preview(bytes: &[u8], format: PreviewFormat, without_alpha: bool) -> Result<Vec<u8>> {
    let mut pixels = decode_pixels(bytes)?;
    if without_alpha || matches!(format, PreviewFormat::Jpeg(_)) {
        pixels = pixels.without_alpha();
    }
    match format {
        PreviewFormat::Webp(quality) => webp_of(&pixels, WebpCoding::of_quality(quality)),
        PreviewFormat::Jpeg(quality) => jpeg_of(&pixels, quality),
    }
}

/// A picture file's colours without its transparency, as PNG.
///
/// # Errors
/// The file is no picture that can be read.
pub fn colours_png(bytes: &[u8]) -> Result<Vec<u8>> {
    png_of(&decode_pixels(bytes)?.without_alpha(), 6, &[])
}

/// A picture file's transparency over black, as PNG.
///
/// # Errors
/// The file is no picture that can be read.
pub fn alpha_png(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut pixels = decode_pixels(bytes)?.with_alpha();
    for pixel in pixels.bytes.chunks_exact_mut(4) {
        pixel[..3].fill(0);
    }
    png_of(&pixels, 6, &[])
}

/// The first picture with the transparency of the second, as PNG with the text of the first: what a mask editor
/// saves.
///
/// # Errors
/// One of them is no picture that can be read, or their sizes differ.
pub fn with_alpha_of(original: &[u8], mask: &[u8]) -> Result<Vec<u8>> {
    let mut pixels = decode_pixels(original)?.with_alpha();
    let mask = decode_pixels(mask)?.with_alpha();
    if (pixels.width, pixels.height) != (mask.width, mask.height) {
        let text = format!(
            "the picture has {}x{} pixels and the mask {}x{}; they must be equal",
            pixels.width, pixels.height, mask.width, mask.height
        );
        return Err(Error::Told(text));
    }
    for (pixel, mask) in pixels.bytes.chunks_exact_mut(4).zip(mask.bytes.chunks_exact(4)) {
        pixel[3] = mask[3];
    }
    Ok(with_text_of(&png_of(&pixels, 4, &[])?, original))
}

/// What a node has so far, as JPEG that fits into a square of `side` pixels and fills it in one direction.
///
/// # Errors
/// It has no pixels.
pub fn preview_jpeg(picture: &graph::Picture, side: usize, quality: u8) -> Result<Vec<u8>> {
    let (width, height) = (picture.width, picture.height);
    let pixels = Pixels { width, height, channels: 3, bytes: picture.rgb.clone() };
    let (columns, rows) = pixels.size()?;
    let side = u32::try_from(side.clamp(1, 16_384)).unwrap_or(16_384);
    let (to_width, to_height) = match columns.cmp(&rows) {
        std::cmp::Ordering::Less => {
            ((f64::from(columns) / f64::from(rows) * f64::from(side)).round() as u32, side)
        }
        _ => (side, (f64::from(rows) / f64::from(columns) * f64::from(side)).round() as u32),
    };
    let (to_width, to_height) = (to_width.max(1), to_height.max(1));
    if (to_width, to_height) == (columns, rows) {
        return jpeg_of(&pixels, quality);
    }
    let Some(buffer) = image::RgbImage::from_raw(columns, rows, pixels.bytes) else {
        return Err(Error::Told(format!("a preview of {width}x{height} pixels has too few bytes")));
    };
    let resized = image::imageops::resize(&buffer, to_width, to_height, FilterType::Triangle);
    let (width, height) = (to_width as usize, to_height as usize);
    jpeg_of(&Pixels { width, height, channels: 3, bytes: resized.into_raw() }, quality)
}

/// What a node has so far, as PNG in its full size.
///
/// # Errors
/// It has no pixels.
pub fn picture_png(picture: &graph::Picture) -> Result<Vec<u8>> {
    let (width, height) = (picture.width, picture.height);
    png_of(&Pixels { width, height, channels: 3, bytes: picture.rgb.clone() }, 1, &[])
}

/// The texts that say how a picture was made: `prompt`, and each key of what the client wants written.
#[must_use]
pub fn provenance(prompt: &graph::Literal, extra: Option<&graph::Map>) -> Vec<(String, String)> {
    let mut text = vec![("prompt".to_owned(), python_json(prompt))];
    text.extend(extra.into_iter().flatten().map(|(key, value)| (key.clone(), python_json(value))));
    text
}

/// Sets the kind of pixels, and how much they are packed.
fn describe(encoder: &mut png::Encoder<'_, &mut Vec<u8>>, pixels: &Pixels, level: u8) -> Result<()> {
    encoder.set_color(match pixels.color()? {
        ExtendedColorType::L8 => png::ColorType::Grayscale,
        ExtendedColorType::Rgb8 => png::ColorType::Rgb,
        _ => png::ColorType::Rgba,
    });
    encoder.set_deflate_compression(match level {
        0 => png::DeflateCompression::NoCompression,
        1 => png::DeflateCompression::FdeflateUltraFast,
        level => png::DeflateCompression::Level(level.min(9)),
    });
    encoder.set_filter(png::Filter::Adaptive);
    Ok(())
}

fn webp_of(pixels: &Pixels, coding: WebpCoding) -> Result<Vec<u8>> {
    let (width, height) = pixels.size()?;
    let unwritten = || Error::Told(format!("{width}x{height} pixels cannot be written as WebP"));
    let mut config = webp::WebPConfig::new().map_err(|()| unwritten())?;
    (config.lossless, config.quality) = match coding.quality {
        None => (1, 75.0),
        Some(quality) => (0, f32::from(quality.min(100))),
    };
    config.method = coding.effort.min(6).into();
    let grey: Vec<u8>;
    let encoder = match pixels.channels {
        4 => webp::Encoder::from_rgba(&pixels.bytes, width, height),
        3 => webp::Encoder::from_rgb(&pixels.bytes, width, height),
        _ => {
            grey = pixels.bytes.iter().flat_map(|value| [*value; 3]).collect();
            webp::Encoder::from_rgb(&grey, width, height)
        }
    };
    Ok(encoder.encode_advanced(&config).map_err(|_| unwritten())?.to_vec())
}

fn jpeg_of(pixels: &Pixels, quality: u8) -> Result<Vec<u8>> {
    let (width, height) = pixels.size()?;
    let mut out = Vec::new();
    let mut encoder = JpegEncoder::new_with_quality(&mut out, quality.clamp(1, 100));
    encoder.encode(&pixels.bytes, width, height, pixels.color()?).map_err(unreadable)?;
    Ok(out)
}

impl Pixels {
    fn size(&self) -> Result<(u32, u32)> {
        let length = self.width.checked_mul(self.height).and_then(|size| size.checked_mul(self.channels));
        let size = u32::try_from(self.width).ok().zip(u32::try_from(self.height).ok());
        match size {
            Some((width, height)) if width > 0 && height > 0 && length == Some(self.bytes.len()) => {
                Ok((width, height))
            }
            _ => {
                let (width, height, bytes) = (self.width, self.height, self.bytes.len());
                Err(Error::Told(format!("{width}x{height} pixels cannot be written from {bytes} bytes")))
            }
        }
    }

    fn color(&self) -> Result<ExtendedColorType> {
        match self.channels {
            1 => Ok(ExtendedColorType::L8),
            3 => Ok(ExtendedColorType::Rgb8),
            4 => Ok(ExtendedColorType::Rgba8),
            other => {
                Err(Error::Told(format!("a picture cannot have {other} channels; 1, 3 or 4 can be written")))
            }
        }
    }
}

/// A file's first frame, and the room that it and its copy in 8 bits take while it is unpacked.
fn decode_first(host: &Host, bytes: &[u8]) -> Result<(DynamicImage, Room)> {
    let mut decoder = reader(bytes)?.into_decoder().map_err(unreadable)?;
    check_size(&decoder)?;
    decoder.set_limits(limits()).map_err(unreadable)?;
    let (width, height) = decoder.dimensions();
    let depth = usize::from(decoder.color_type().bytes_per_pixel()).div_ceil(4);
    let room = host.room(&[height as usize, width as usize, depth + 1])?;
    // A broken note about the camera is no reason not to show the picture.
    let orientation = decoder.orientation().ok();
    let mut image = DynamicImage::from_decoder(decoder).map_err(unreadable)?;
    if let Some(orientation) = orientation {
        image.apply_orientation(orientation);
    }
    Ok((image, room))
}

fn reader(bytes: &[u8]) -> Result<ImageReader<Cursor<&[u8]>>> {
    let cannot = |source| Error::Io { path: "picture".into(), source };
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(cannot)?;
    reader.limits(limits());
    Ok(reader)
}

/// The frames of a file that moves, and the room that they and their copies take while they are unpacked.
fn frames_of<'a>(host: &Host, decoder: impl AnimationDecoder<'a>) -> Result<(Vec<DynamicImage>, Vec<Room>)> {
    let mut frames: Vec<DynamicImage> = Vec::new();
    let mut rooms = Vec::new();
    let mut pixels = 0;
    for frame in decoder.into_frames() {
        let frame = frame.map_err(unreadable)?.into_buffer();
        pixels += u64::from(frame.width()) * u64::from(frame.height());
        if pixels > MAX_PIXELS {
            return Err(too_large(pixels));
        }
        let size = frames.first().map(|first| (first.width(), first.height()));
        if size.is_none_or(|size| size == frame.dimensions()) {
            rooms.push(host.room(&[frame.height() as usize, frame.width() as usize, 2])?);
            frames.push(DynamicImage::ImageRgba8(frame));
        }
    }
    Ok((frames, rooms))
}

fn limited<D: ImageDecoder>(mut decoder: D) -> Result<D> {
    check_size(&decoder)?;
    decoder.set_limits(limits()).map_err(unreadable)?;
    Ok(decoder)
}

fn check_size(decoder: &impl ImageDecoder) -> Result<()> {
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels > MAX_PIXELS { Err(too_large(pixels)) } else { Ok(()) }
}

fn too_large(pixels: u64) -> Error {
    Error::Told(format!("the picture has {pixels} pixels; at most {MAX_PIXELS} are read"))
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.max_image_width = None;
    limits.max_image_height = None;
    limits.max_alloc = Some(MAX_DECODER_BYTES);
    limits
}

fn png_error(error: &png::EncodingError) -> Error {
    Error::Told(format!("the PNG could not be written: {error}"))
}

/// What the decoder or encoder of a picture file says.
fn unreadable(error: image::ImageError) -> Error {
    Error::Picture(Box::new(error))
}
