//! What a family's latents are: channels, the scale between an autoencoder's values and a model's, sizes and colours.

use crate::{Error, Latent};

/// How a family stores pictures or videos in latents. Each family has one as a constant.
#[derive(Debug, PartialEq)]
pub struct LatentSpec {
    /// What errors call it.
    pub name: &'static str,
    /// Channels.
    pub channels: usize,
    /// Between the autoencoder's values and the model's.
    pub scaling: Scaling,
    /// Pixels along one side of a value.
    pub pixels_per_value: usize,
    /// Frames of a video behind the first that one value stands for; none for families that make pictures.
    pub frames_per_value: Option<usize>,
    /// What each channel adds to red, green and blue, for previews.
    pub colours: &'static [[f32; 3]],
    /// Red, green and blue where all channels are zero.
    pub background: [f32; 3],
}

/// From an autoencoder's values to a model's.
#[derive(Debug, PartialEq)]
pub enum Scaling {
    /// `(value - shift) * scale`, the same for all channels.
    Uniform {
        /// The factor.
        scale: f32,
        /// What is taken away before.
        shift: f32,
    },
    /// `(value - mean) / deviation`, for each channel its own.
    PerChannel {
        /// The mean of each channel.
        means: &'static [f32],
        /// The standard deviation of each channel.
        deviations: &'static [f32],
    },
}

/// Channels of the empty latents that workflows make for any model, and pixels along the side of their values.
const PLAIN_CHANNELS: usize = 4;
const PLAIN_PIXELS: usize = 8;

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

impl LatentSpec {
    /// An empty latent (all zeros) with these channels, whatever it had; others come back as they are.
    ///
    /// Workflows make empty latents of four channels for models that have more; noise is drawn for the fitted shape. Such a
    /// latent has eight pixels along the side of a value, so one for pictures whose values are larger has fewer of them.
    pub fn fit_empty(&self, latent: Latent) -> Latent {
        let mut shape = latent.shape().to_vec();
        let Some(channels) = shape.get_mut(1) else { return latent };
        if *channels == self.channels || !latent.is_zero() {
            return latent;
        }
        let is_plain = std::mem::replace(channels, self.channels) == PLAIN_CHANNELS;
        if is_plain && shape.len() == 4 && self.frames_per_value.is_none() {
            for side in &mut shape[2..] {
                *side = (*side * PLAIN_PIXELS / self.pixels_per_value.max(PLAIN_PIXELS)).max(1);
            }
        }
        Latent::zeros(&shape)
    }

    /// From the autoencoder's scale to the model's.
    pub fn to_model(&self, latent: &Latent) -> Result<Latent, Error> {
        self.check(latent)?;
        Ok(match self.scaling {
            Scaling::Uniform { scale, shift } => latent.map(|value| (value - shift) * scale),
            Scaling::PerChannel { means, deviations } => {
                latent.map_channels(|channel, value| (value - means[channel]) / deviations[channel])
            }
        })
    }

    /// The same for several latents side by side, each with channels of its own.
    pub fn to_model_by_groups(&self, latent: &Latent) -> Result<Latent, Error> {
        let whole = latent.shape().get(1).is_some_and(|channels| channels.is_multiple_of(self.channels));
        if !whole {
            return Err(self.wrong(latent));
        }
        Ok(match self.scaling {
            Scaling::Uniform { scale, shift } => latent.map(|value| (value - shift) * scale),
            Scaling::PerChannel { means, deviations } => latent.map_channels(|channel, value| {
                (value - means[channel % self.channels]) / deviations[channel % self.channels]
            }),
        })
    }

    /// From the model's scale to the autoencoder's.
    pub fn to_autoencoder(&self, latent: &Latent) -> Result<Latent, Error> {
        self.check(latent)?;
        Ok(match self.scaling {
            Scaling::Uniform { scale, shift } => latent.map(|value| value / scale + shift),
            Scaling::PerChannel { means, deviations } => {
                latent.map_channels(|channel, value| value * deviations[channel] + means[channel])
            }
        })
    }

    /// A preview of the first item (and first frame) of a latent in the model's scale.
    pub fn preview(&self, latent: &Latent) -> Result<Preview, Error> {
        self.check(latent)?;
        let [.., height, width] = *latent.shape() else { return Err(self.wrong(latent)) };
        let (pixels, frame) = (width * height, latent.shape()[2..].iter().product::<usize>());
        if latent.values().len() < self.channels * frame || latent.shape().len() < 4 {
            return Err(self.wrong(latent));
        }
        let mut rgb = Vec::with_capacity(pixels * 3);
        for at in 0..pixels {
            for colour in 0..3 {
                let value =
                    self.colours.iter().enumerate().fold(self.background[colour], |sum, (c, factors)| {
                        sum + latent.values()[c * frame + at] * factors[colour]
                    });
                rgb.push((((value + 1.0) / 2.0).clamp(0.0, 1.0) * 255.0) as u8);
            }
        }
        Ok(Preview { width, height, rgb })
    }

    fn check(&self, latent: &Latent) -> Result<(), Error> {
        if latent.shape().get(1) == Some(&self.channels) { Ok(()) } else { Err(self.wrong(latent)) }
    }

    fn wrong(&self, latent: &Latent) -> Error {
        Error::Channels { format: self.name, channels: self.channels, shape: latent.shape().to_vec() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFORM: LatentSpec = LatentSpec {
        name: "four channels",
        channels: 4,
        scaling: Scaling::Uniform { scale: 0.18215, shift: 0.1 },
        pixels_per_value: 8,
        frames_per_value: None,
        colours: &[
            [0.3512, 0.2297, 0.3227],
            [0.325, 0.4974, 0.235],
            [-0.2829, 0.1762, 0.2721],
            [-0.212, -0.2616, -0.7177],
        ],
        background: [0.0; 3],
    };
    const PER_CHANNEL: LatentSpec = LatentSpec {
        name: "two channels",
        channels: 2,
        scaling: Scaling::PerChannel { means: &[1.0, -2.0], deviations: &[2.0, 4.0] },
        pixels_per_value: 8,
        frames_per_value: Some(4),
        colours: &[[1.0; 3], [0.0; 3]],
        background: [0.0; 3],
    };

    #[test]
    fn scales_are_inverse_and_channels_are_checked() {
        for spec in [&UNIFORM, &PER_CHANNEL] {
            let mut latent = Latent::zeros(&[1, spec.channels, 2, 2]);
            latent.values_mut()[3] = 1.5;
            let back = spec.to_autoencoder(&spec.to_model(&latent).unwrap()).unwrap();
            assert!(back.values().iter().zip(latent.values()).all(|(a, b)| (a - b).abs() < 1e-6));
            assert!(spec.to_model(&Latent::zeros(&[1, 3, 2, 2])).is_err());
            // Two side by side are scaled as each by itself.
            let twice = Latent::new(vec![1, 2 * spec.channels, 2, 2], latent.values().repeat(2)).unwrap();
            let each = spec.to_model(&latent).unwrap();
            assert_eq!(spec.to_model_by_groups(&twice).unwrap().values(), each.values().repeat(2));
            assert!(spec.to_model_by_groups(&Latent::zeros(&[1, 3, 2, 2])).is_err());
        }
        // Two items, two channels, three frames.
        let latent = Latent::zeros(&[2, 2, 3, 1, 1]);
        let scaled = PER_CHANNEL.to_model(&latent).unwrap();
        let one = [-0.5, -0.5, -0.5, 0.5, 0.5, 0.5];
        assert_eq!(scaled.values(), [one, one].concat());
    }

    #[test]
    fn empty_latents_get_the_channels() {
        let fitted = UNIFORM.fit_empty(Latent::zeros(&[2, 16, 8, 6]));
        assert_eq!(fitted.shape(), [2, 4, 8, 6]);
        // Of larger values there are fewer.
        let larger = LatentSpec { channels: 64, pixels_per_value: 16, ..UNIFORM };
        assert_eq!(larger.fit_empty(Latent::zeros(&[1, 4, 8, 6])).shape(), [1, 64, 4, 3]);
        assert_eq!(larger.fit_empty(Latent::zeros(&[1, 16, 8, 6])).shape(), [1, 64, 8, 6]);
        let mut picture = Latent::zeros(&[1, 16, 1, 1]);
        picture.values_mut()[0] = 1.0;
        assert_eq!(UNIFORM.fit_empty(picture.clone()), picture);
    }

    #[test]
    fn a_preview_has_the_channels_colour() {
        let mut latent = Latent::zeros(&[1, 4, 1, 2]);
        latent.values_mut()[1] = 2.0;
        let preview = UNIFORM.preview(&latent).unwrap();
        // Half grey, then half grey plus twice the first channel's colour.
        assert_eq!((preview.width, preview.height), (2, 1));
        assert_eq!(preview.rgb, [127, 127, 127, 217, 186, 209]);
    }
}
