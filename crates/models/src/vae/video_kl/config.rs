//! The sizes of a KL autoencoder of videos, read from the shapes of its tensors.

use crate::Result;
use crate::claims::Claims;

/// What errors call the family.
pub(super) const FAMILY: &str = "the KL autoencoder of videos";
/// Stages that double or halve the number of frames: the innermost ones.
const IN_TIME: usize = 2;
/// The most stages of one half.
const MAX_STAGES: usize = 10;

/// The sizes of a KL autoencoder of videos. A half that the file does not have has no stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of a latent.
    pub latent_channels: usize,
    /// Channels of a picture.
    pub channels: usize,
    /// The decoder's stages, by their number in the file.
    pub up: Vec<Stage>,
    /// The encoder's stages in order of use.
    pub down: Vec<Stage>,
    /// Channels in the middle.
    pub middle: usize,
    /// Channels between the encoder's entrance and its first stage.
    pub encoder_width: usize,
    /// Whether sizes change by folding frames and pixels into channels, as later ones do, and not by steps.
    pub folds: bool,
}

/// One stage: residual blocks at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Channels of each block's result.
    pub channels: Vec<usize>,
    /// Channels of what the convolution gives by which the size doubles or halves at its end, if it does.
    pub resize: Option<usize>,
    /// Whether the number of frames does, too.
    pub in_time: bool,
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let [middle, latent_channels, _, _, _] = claims.dims("decoder.conv_in.conv.weight")?;
        let [channels, _, _, _, _] = claims.dims("decoder.conv_out.conv.weight")?;
        let mut encoder_width = 0;
        if claims.find("encoder.conv_in.conv.weight").is_some() {
            [encoder_width, _, _, _, _] = claims.dims("encoder.conv_in.conv.weight")?;
        }
        let mut up = stages(claims, "decoder.up", "upsample")?;
        let mut down = stages(claims, "encoder.down", "downsample")?;
        let folds = claims.find("decoder.norm_out.gamma").is_some();
        // Frames change where pictures are smallest: in the decoder that is above the first stages, in the encoder before
        // the last ones.
        let last = down.len().saturating_sub(1);
        for (i, stage) in down.iter_mut().enumerate() {
            stage.in_time = stage.resize.is_some() && last - i <= IN_TIME;
        }
        let most = if folds { IN_TIME - 1 } else { IN_TIME };
        for (i, stage) in up.iter_mut().enumerate() {
            stage.in_time = stage.resize.is_some() && i <= most;
        }
        Ok(Config { latent_channels, channels, up, down, middle, encoder_width, folds })
    }

    /// The numbers of the decoder's stages in the order of their use.
    pub(super) fn up_order(&self) -> Vec<usize> {
        let numbers = 0..self.up.len();
        if self.folds { numbers.collect() } else { numbers.rev().collect() }
    }

    /// Channels behind a stage that gets so many.
    pub(super) fn behind(&self, stage: &Stage, channels: usize, is_up: bool) -> usize {
        let own = stage.channels.last().copied().unwrap_or(channels);
        let folded = if stage.in_time { 8 } else { 4 };
        match stage.resize.filter(|_| self.folds) {
            None => own,
            Some(given) if is_up => given / folded,
            Some(given) => given * folded,
        }
    }

    /// Pixels per latent value along one dimension.
    pub fn factor(&self) -> usize {
        1 << self.up.iter().filter(|stage| stage.resize.is_some()).count()
    }

    /// Frames of a video behind the first that one frame of a latent stands for.
    pub fn frames_per_value(&self) -> usize {
        1 << self.up.iter().filter(|stage| stage.in_time).count()
    }
}

/// The stages called `name.0`, `name.1`, …
fn stages(claims: &Claims<'_>, name: &str, resize: &str) -> Result<Vec<Stage>> {
    let count = claims.count(|i| format!("{name}.{i}.block.0.conv1.conv.weight")).min(MAX_STAGES);
    let stage = |i: usize| {
        let blocks = claims.count(|j| format!("{name}.{i}.block.{j}.conv1.conv.weight"));
        let channels = (0..blocks).map(|j| {
            let [channels, _, _, _, _] = claims.dims(&format!("{name}.{i}.block.{j}.conv1.conv.weight"))?;
            Ok(channels)
        });
        let kernel = format!("{name}.{i}.{resize}.conv.conv.weight");
        let resize = claims.find(&kernel).map(|_| claims.dims::<5>(&kernel).map(|[rows, ..]| rows));
        Ok(Stage { channels: channels.collect::<Result<_>>()?, resize: resize.transpose()?, in_time: false })
    };
    (0..count).map(stage).collect()
}
