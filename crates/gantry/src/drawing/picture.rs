//! Pictures, and how they are written.

use std::io::Write;

use anyhow::{Result, ensure};

/// A picture of 8-bit red, green and blue.
pub(crate) struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Picture {
    /// From values of 0 to 1, row by row, three for each pixel. They are cut, not rounded, as ComfyUI does.
    pub(crate) fn new(width: usize, height: usize, values: &[f32]) -> Result<Picture> {
        ensure!(
            values.len() == width * height * 3,
            "{} values are no picture of {width}x{height}",
            values.len()
        );
        let pixels = values.iter().map(|v| (v * 255.0).clamp(0.0, 255.0) as u8).collect();
        Ok(Picture { width, height, pixels })
    }

    /// Writes it as PNG, with what it shows as a text beside the pixels.
    pub(crate) fn write_png(&self, to: impl Write, prompt: &str) -> Result<()> {
        let (width, height) = (u32::try_from(self.width)?, u32::try_from(self.height)?);
        let mut encoder = png::Encoder::new(to, width, height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.add_itxt_chunk("Description".into(), prompt.into())?;
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        Ok(writer.finish()?)
    }

    /// Its pixels, three bytes each, row by row.
    #[cfg(test)]
    pub(crate) fn pixels(&self) -> &[u8] {
        &self.pixels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_cut_and_a_png_is_written() {
        let picture = Picture::new(2, 1, &[0.0, 0.5, 1.0, -1.0, 2.0, 0.999]).unwrap();
        assert_eq!(picture.pixels(), [0, 127, 255, 0, 255, 254]);
        let mut bytes = Vec::new();
        picture.write_png(&mut bytes, "two pixels").unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels, picture.pixels());
        assert!(Picture::new(2, 2, &[0.0; 3]).is_err());
    }
}
