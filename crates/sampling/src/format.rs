//! Latent formats: the scale between an autoencoder's latents and a model's, and their colours.

use crate::{Error, Latent};

/// How a model family stores pictures in latents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatentFormat {
    /// Stable Diffusion 1.x and 2.x: four channels.
    Sd15,
    /// SDXL: four channels.
    Sdxl,
    /// Stable Diffusion 3: sixteen channels.
    Sd3,
    /// FLUX: sixteen channels.
    Flux,
}

/// A small picture of a latent: 8-bit red, green, blue, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// Pixels per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Three bytes per pixel.
    pub rgb: Vec<u8>,
}

impl LatentFormat {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            LatentFormat::Sd15 => "SD1.5",
            LatentFormat::Sdxl => "SDXL",
            LatentFormat::Sd3 => "SD3",
            LatentFormat::Flux => "FLUX",
        }
    }

    /// Its channels.
    pub fn channels(self) -> usize {
        self.colours().len()
    }

    fn scale(self) -> f32 {
        match self {
            LatentFormat::Sd15 => 0.18215,
            LatentFormat::Sdxl => 0.13025,
            LatentFormat::Sd3 => 1.5305,
            LatentFormat::Flux => 0.3611,
        }
    }

    fn shift(self) -> f32 {
        match self {
            LatentFormat::Sd15 | LatentFormat::Sdxl => 0.0,
            LatentFormat::Sd3 => 0.0609,
            LatentFormat::Flux => 0.1159,
        }
    }

    fn colours(self) -> &'static [[f32; 3]] {
        match self {
            LatentFormat::Sd15 => &SD15_RGB,
            LatentFormat::Sdxl => &SDXL_RGB,
            LatentFormat::Sd3 => &SD3_RGB,
            LatentFormat::Flux => &FLUX_RGB,
        }
    }

    fn background(self) -> [f32; 3] {
        match self {
            LatentFormat::Sd15 => [0.0; 3],
            LatentFormat::Sdxl => [0.1084, -0.0175, -0.0011],
            LatentFormat::Sd3 => [0.2394, 0.2135, 0.1925],
            LatentFormat::Flux => [-0.0329, -0.0718, -0.0851],
        }
    }

    /// An empty latent (all zeros) with this format's channels, whatever it had; others come back as they are.
    ///
    /// Workflows make empty latents of four channels for models that have more; noise is drawn for the fitted shape.
    pub fn fit_empty(self, latent: Latent) -> Latent {
        let mut shape = latent.shape().to_vec();
        match shape.get_mut(1) {
            Some(channels) if *channels != self.channels() && latent.is_zero() => {
                *channels = self.channels();
                Latent::zeros(&shape)
            }
            _ => latent,
        }
    }

    /// From the autoencoder's scale to the model's.
    pub fn to_model(self, latent: &Latent) -> Result<Latent, Error> {
        self.check(latent)?;
        let (scale, shift) = (self.scale(), self.shift());
        Ok(latent.map(|v| (v - shift) * scale))
    }

    /// From the model's scale to the autoencoder's.
    pub fn to_autoencoder(self, latent: &Latent) -> Result<Latent, Error> {
        self.check(latent)?;
        let (scale, shift) = (self.scale(), self.shift());
        Ok(latent.map(|v| v / scale + shift))
    }

    /// A preview of the first item (and first frame) of a latent in the model's scale.
    pub fn preview(self, latent: &Latent) -> Result<Preview, Error> {
        self.check(latent)?;
        let [.., height, width] = *latent.shape() else { return Err(self.wrong(latent)) };
        let (pixels, frame) = (width * height, latent.shape()[2..].iter().product::<usize>());
        if latent.values().len() < self.channels() * frame || latent.shape().len() < 4 {
            return Err(self.wrong(latent));
        }
        let mut rgb = Vec::with_capacity(pixels * 3);
        for at in 0..pixels {
            for colour in 0..3 {
                let value =
                    self.colours().iter().enumerate().fold(self.background()[colour], |sum, (c, factors)| {
                        sum + latent.values()[c * frame + at] * factors[colour]
                    });
                rgb.push((((value + 1.0) / 2.0).clamp(0.0, 1.0) * 255.0) as u8);
            }
        }
        Ok(Preview { width, height, rgb })
    }

    fn check(self, latent: &Latent) -> Result<(), Error> {
        if latent.shape().get(1) == Some(&self.channels()) { Ok(()) } else { Err(self.wrong(latent)) }
    }

    fn wrong(self, latent: &Latent) -> Error {
        Error::Channels { format: self.name(), channels: self.channels(), shape: latent.shape().to_vec() }
    }
}

// What each channel adds to red, green and blue, fitted by the community to decoded pictures.
const SD15_RGB: [[f32; 3]; 4] =
    [[0.3512, 0.2297, 0.3227], [0.325, 0.4974, 0.235], [-0.2829, 0.1762, 0.2721], [-0.212, -0.2616, -0.7177]];

const SDXL_RGB: [[f32; 3]; 4] = [
    [0.3651, 0.4232, 0.4341],
    [-0.2533, -0.0042, 0.1068],
    [0.1076, 0.1111, -0.0362],
    [-0.3165, -0.2492, -0.2188],
];

const SD3_RGB: [[f32; 3]; 16] = [
    [-0.0922, -0.0175, 0.0749],
    [0.0311, 0.0633, 0.0954],
    [0.1994, 0.0927, 0.0458],
    [0.0856, 0.0339, 0.0902],
    [0.0587, 0.0272, -0.0496],
    [-0.0006, 0.1104, 0.0309],
    [0.0978, 0.0306, 0.0427],
    [-0.0042, 0.1038, 0.1358],
    [-0.0194, 0.002, 0.0669],
    [-0.0488, 0.013, -0.0268],
    [0.0922, 0.0988, 0.0951],
    [-0.0278, 0.0524, -0.0542],
    [0.0332, 0.0456, 0.0895],
    [-0.0069, -0.003, -0.081],
    [-0.0596, -0.0465, -0.0293],
    [-0.1448, -0.1463, -0.1189],
];

const FLUX_RGB: [[f32; 3]; 16] = [
    [-0.0346, 0.0244, 0.0681],
    [0.0034, 0.021, 0.0687],
    [0.0275, -0.0668, -0.0433],
    [-0.0174, 0.016, 0.0617],
    [0.0859, 0.0721, 0.0329],
    [0.0004, 0.0383, 0.0115],
    [0.0405, 0.0861, 0.0915],
    [-0.0236, -0.0185, -0.0259],
    [-0.0245, 0.025, 0.118],
    [0.1008, 0.0755, -0.0421],
    [-0.0515, 0.0201, 0.0011],
    [0.0428, -0.0012, -0.0036],
    [0.0817, 0.0765, 0.0749],
    [-0.1264, -0.0522, -0.1103],
    [-0.028, -0.0881, -0.0499],
    [-0.1262, -0.0982, -0.0778],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_inverse_and_channels_are_checked() {
        for format in [LatentFormat::Sd15, LatentFormat::Sdxl, LatentFormat::Sd3, LatentFormat::Flux] {
            let mut latent = Latent::zeros(&[1, format.channels(), 2, 2]);
            latent.values_mut()[3] = 1.5;
            let back = format.to_autoencoder(&format.to_model(&latent).unwrap()).unwrap();
            assert!(back.values().iter().zip(latent.values()).all(|(a, b)| (a - b).abs() < 1e-6));
            assert!(format.to_model(&Latent::zeros(&[1, 3, 2, 2])).is_err());
        }
    }

    #[test]
    fn empty_latents_get_the_formats_channels() {
        let fitted = LatentFormat::Flux.fit_empty(Latent::zeros(&[2, 4, 8, 6]));
        assert_eq!(fitted.shape(), [2, 16, 8, 6]);
        let mut picture = Latent::zeros(&[1, 4, 1, 1]);
        picture.values_mut()[0] = 1.0;
        assert_eq!(LatentFormat::Flux.fit_empty(picture.clone()), picture);
    }

    #[test]
    fn a_preview_has_the_channels_colour() {
        let mut latent = Latent::zeros(&[1, 4, 1, 2]);
        latent.values_mut()[1] = 2.0;
        let preview = LatentFormat::Sd15.preview(&latent).unwrap();
        // Half grey, then half grey plus twice the first channel's colour.
        assert_eq!((preview.width, preview.height), (2, 1));
        assert_eq!(preview.rgb, [127, 127, 127, 217, 186, 209]);
    }
}
