//! The sizes of an autoencoder of Wan, read from the shapes of its tensors.

use crate::Result;
use crate::claims::Claims;

/// What errors call the family.
pub(super) const FAMILY: &str = "the Wan autoencoder";
/// The most stages of a half, and the most layers of a stage: far more than any file has.
const MOST_LAYERS: usize = 64;

/// The sizes of an autoencoder of Wan. A half that the file does not have has no stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of a latent.
    pub latent_channels: usize,
    /// Channels of a picture.
    pub channels: usize,
    /// Pixels along one side that are folded into channels.
    pub patch: usize,
    /// Frames that a convolution looks at: three, or one in an autoencoder of pictures.
    pub kernel: usize,
    /// Channels between the encoder's entrance and its first stage.
    pub encoder_width: usize,
    /// Channels in the middle of the decoder and of the encoder.
    pub middle: [usize; 2],
    /// The decoder's stages in order of use.
    pub up: Vec<Stage>,
    /// The encoder's stages in order of use.
    pub down: Vec<Stage>,
}

/// Layers at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// What its layers' names begin with.
    pub name: String,
    /// Its layers.
    pub layers: Vec<Layer>,
    /// Whether what comes in is added to what leaves.
    pub is_bridged: bool,
}

/// One layer of a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// What the names of its weights begin with.
    pub name: String,
    /// Channels that come in.
    pub from: usize,
    /// Channels that leave.
    pub to: usize,
    /// What it does.
    pub kind: LayerKind,
}

/// What a layer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Two convolutions, added to what comes in.
    Residual,
    /// Another size.
    Resample {
        /// Whether frames double or halve, too.
        in_time: bool,
    },
}

impl Stage {
    /// Channels that leave.
    pub(super) fn to(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.to)
    }

    /// By how much time and each side of a picture change.
    pub(super) fn factors(&self) -> [usize; 2] {
        let resample = self.layers.iter().find_map(|layer| match layer.kind {
            LayerKind::Resample { in_time } => Some([if in_time { 2 } else { 1 }, 2]),
            LayerKind::Residual => None,
        });
        resample.unwrap_or([1, 1])
    }
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let is_later = claims.find("decoder.upsamples.0.upsamples.0.residual.2.weight").is_some()
            || claims.find("encoder.downsamples.0.downsamples.0.residual.2.weight").is_some();
        let [decoder, latent_channels, kernel, _, _] = claims.dims("decoder.conv1.weight")?;
        if !matches!(kernel, 1 | 3) {
            let expected = format!("[{decoder}, {latent_channels}, 1 or 3, 3, 3]");
            return Err(claims.misfit("decoder.conv1.weight", expected));
        }
        let patch = if is_later && kernel > 1 { 2 } else { 1 };
        let [colours, _, _, _, _] = claims.dims("decoder.head.2.weight")?;
        let (mut encoder_width, mut encoder) = (0, 0);
        if claims.find("encoder.conv1.weight").is_some() {
            [encoder_width, _, _, _, _] = claims.dims("encoder.conv1.weight")?;
            [_, encoder, _, _, _] = claims.dims("encoder.head.2.weight")?;
        }
        Ok(Config {
            latent_channels,
            channels: colours / (patch * patch),
            patch,
            kernel,
            encoder_width,
            middle: [decoder, encoder],
            up: stages(claims, "decoder.upsamples", "upsamples", is_later)?,
            down: stages(claims, "encoder.downsamples", "downsamples", is_later)?,
        })
    }

    /// Pixels per latent value along one dimension.
    pub fn factor(&self) -> usize {
        self.patch * self.up.iter().map(|stage| stage.factors()[1]).product::<usize>()
    }

    /// Whether it is for pictures alone: no convolution looks at another frame.
    pub fn is_for_pictures(&self) -> bool {
        self.kernel == 1
    }

    /// Frames of a video behind the first that one frame of a latent stands for.
    pub fn frames_per_value(&self) -> usize {
        if self.is_for_pictures() {
            return 1;
        }
        self.up.iter().map(|stage| stage.factors()[0]).product()
    }
}

/// The stages of one half: each with layers of its own in the later version, in the earlier one all in a row, where
/// another size ends a stage.
fn stages(claims: &Claims<'_>, name: &str, inner: &str, is_later: bool) -> Result<Vec<Stage>> {
    let mut stages = Vec::new();
    if is_later {
        for index in 0..MOST_LAYERS {
            let layers = layers(claims, &format!("{name}.{index}.{inner}"))?;
            if layers.is_empty() {
                break;
            }
            let is_bridged =
                name.starts_with("encoder") || layers.iter().any(|layer| layer.kind != LayerKind::Residual);
            stages.push(Stage { name: format!("{name}.{index}"), layers, is_bridged });
        }
        return Ok(stages);
    }
    let mut pending = Vec::new();
    let push = |stages: &mut Vec<Stage>, layers: Vec<Layer>| {
        if !layers.is_empty() {
            stages.push(Stage { name: format!("{name}.{}", stages.len()), layers, is_bridged: false });
        }
    };
    for layer in layers(claims, name)? {
        let ends = layer.kind != LayerKind::Residual;
        pending.push(layer);
        if ends {
            push(&mut stages, std::mem::take(&mut pending));
        }
    }
    push(&mut stages, pending);
    Ok(stages)
}

/// The layers called `name.0`, `name.1`, …
fn layers(claims: &Claims<'_>, name: &str) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    for index in 0..MOST_LAYERS {
        let name = format!("{name}.{index}");
        if claims.find(&format!("{name}.residual.2.weight")).is_some() {
            let [to, from, _, _, _] = claims.dims(&format!("{name}.residual.2.weight"))?;
            layers.push(Layer { name, from, to, kind: LayerKind::Residual });
        } else if claims.find(&format!("{name}.resample.1.weight")).is_some() {
            let [to, from, _, _] = claims.dims(&format!("{name}.resample.1.weight"))?;
            let in_time = claims.find(&format!("{name}.time_conv.weight")).is_some();
            layers.push(Layer { name, from, to, kind: LayerKind::Resample { in_time } });
        } else {
            break;
        }
    }
    Ok(layers)
}
