//! The sizes of a KL autoencoder, read from the shapes of its tensors.

use crate::Result;
use crate::claims::Claims;

/// What errors call the family.
pub(super) const FAMILY: &str = "the KL autoencoder";

/// Values along one side of a patch.
pub(super) const PATCH: usize = 2;

/// The most stages of one half; three double the size in every autoencoder there is.
const MAX_STAGES: usize = 10;

/// The sizes of a KL autoencoder. A half that the file does not have has no stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of a latent.
    pub latent_channels: usize,
    /// Channels that the decoder takes and the encoder gives: those of a latent, or of the values of its patches.
    pub inner_channels: usize,
    /// Whether latents are patches of two by two values, normalised by what the file knows of them.
    pub is_patched: bool,
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
    /// Whether each unit of the decoder has one over the frames of a video behind it.
    pub has_frames: bool,
    /// Whether there is a product between the encoder and the latent (`quant_conv`).
    pub quantised: bool,
    /// Whether that product is called a part of the encoder, and the other one a part of the decoder.
    pub inner_products: bool,
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
        let is_patched = claims.find("bn.running_mean").is_some();
        let has_product = |names: [&str; 2]| names.iter().any(|name| claims.find(name).is_some());
        Ok(Config {
            latent_channels: if is_patched { latent_channels * PATCH * PATCH } else { latent_channels },
            inner_channels: latent_channels,
            is_patched,
            in_channels,
            out_channels,
            up: stages(claims, "decoder.up", "upsample")?,
            down: stages(claims, "encoder.down", "downsample")?,
            middle,
            has_frames: claims.find("decoder.conv_out.time_mix_conv.weight").is_some(),
            quantised: has_product(["quant_conv.weight", "post_quant_conv.weight"]),
            inner_products: has_product(["encoder.quant_conv.weight", "decoder.post_quant_conv.weight"]),
        })
    }

    /// The names of the products before the decoder and behind the encoder, if there are any.
    pub(super) fn products(&self) -> Option<[&'static str; 2]> {
        match (self.quantised, self.inner_products) {
            (true, _) => Some(["post_quant_conv", "quant_conv"]),
            (false, true) => Some(["decoder.post_quant_conv", "encoder.quant_conv"]),
            (false, false) => None,
        }
    }

    /// Pixels per latent value along one dimension.
    pub fn factor(&self) -> usize {
        let stages = if self.up.is_empty() { &self.down } else { &self.up };
        let values = 1 << stages.iter().filter(|stage| stage.resizes).count();
        if self.is_patched { values * PATCH } else { values }
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
