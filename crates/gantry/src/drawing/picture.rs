//! Pictures, and how they are written.

use std::io::Write;

use anyhow::{Result, ensure};
use graph::Literal;
use nodes::picture::{Pixels, png_of, python_json};

/// How hard a PNG is compressed, 0 to 9.
const COMPRESSION: u8 = 4;

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
    pub(crate) fn write_png(&self, mut to: impl Write, prompt: &str) -> Result<()> {
        let pixels =
            Pixels { width: self.width, height: self.height, channels: 3, bytes: self.pixels.clone() };
        // The text of a PNG has no letters beyond Western Europe's; others are written as JSON writes them.
        let text = if prompt.is_ascii() { prompt.to_owned() } else { python_json(&Literal::from(prompt)) };
        let png = png_of(&pixels, COMPRESSION, &[("Description".to_owned(), text)])?;
        Ok(to.write_all(&png)?)
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
