//! The sizes of a KL autoencoder, read from the shapes of its tensors.

use crate::Result;
use crate::claims::Claims;

/// What errors call the family.
pub(super) const FAMILY: &str = "the KL autoencoder";

/// The most stages of one half; three double the size in every autoencoder there is.
const MAX_STAGES: usize = 10;

/// The sizes of a KL autoencoder. A half that the file does not have has no stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of a latent.
    pub latent_channels: usize,
    /// Channels of an image that is encoded.
    pub in_channels: usize,
    /// Channels of an image that is decoded.
    pub out_channels: usize,
    /// The decoder's stages, by their number in the file; they are used from the last to the first.
    pub up: Vec<Stage>,
    /// The encoder's stages in order of use.
    pub down: Vec<Stage>,
    /// Channels in the middle.
    pub middle: usize,
    /// Whether there is a product between the encoder and the latent (`quant_conv`).
    pub quantised: bool,
}

/// One stage: residual blocks at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Channels of each block's result.
    pub channels: Vec<usize>,
    /// Whether the size doubles or halves at its end.
    pub resizes: bool,
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let decoder = claims.find("decoder.conv_in.weight").is_some();
        let encoder = claims.find("encoder.conv_in.weight").is_some();
        let (mut latent_channels, mut middle, mut out_channels, mut in_channels) = (0, 0, 3, 3);
        if encoder || !decoder {
            [_, in_channels, _, _] = claims.dims("encoder.conv_in.weight")?;
            let [moments, channels, _, _] = claims.dims("encoder.conv_out.weight")?;
            (latent_channels, middle) = (moments / 2, channels);
        }
        if decoder {
            [middle, latent_channels, _, _] = claims.dims("decoder.conv_in.weight")?;
            [out_channels, _, _, _] = claims.dims("decoder.conv_out.weight")?;
        }
        Ok(Config {
            latent_channels,
            in_channels,
            out_channels,
            up: stages(claims, "decoder.up", "upsample")?,
            down: stages(claims, "encoder.down", "downsample")?,
            middle,
            quantised: claims.find("quant_conv.weight").or(claims.find("post_quant_conv.weight")).is_some(),
        })
    }

    /// Pixels per latent value along one dimension.
    pub fn factor(&self) -> usize {
        let stages = if self.up.is_empty() { &self.down } else { &self.up };
        1 << stages.iter().filter(|stage| stage.resizes).count()
    }
}

/// The stages called `name.0`, `name.1`, …
fn stages(claims: &Claims<'_>, name: &str, resize: &str) -> Result<Vec<Stage>> {
    let count = claims.count(|i| format!("{name}.{i}.block.0.conv1.weight"));
    if let Some(entry) = claims.find(&format!("{name}.{MAX_STAGES}.block.0.conv1.weight")) {
        return Err(claims.wrong_shape(entry, format!("at most {MAX_STAGES} stages")));
    }
    let stage = |i: usize| {
        let blocks = claims.count(|j| format!("{name}.{i}.block.{j}.conv1.weight"));
        let channels = (0..blocks).map(|j| {
            let [channels, _, _, _] = claims.dims(&format!("{name}.{i}.block.{j}.conv1.weight"))?;
            Ok(channels)
        });
        let resizes = claims.find(&format!("{name}.{i}.{resize}.conv.weight")).is_some();
        Ok(Stage { channels: channels.collect::<Result<_>>()?, resizes })
    };
    (0..count).map(stage).collect()
}
