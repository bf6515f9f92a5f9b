//! What an autoencoder of Wan needs of its file: one block for each stage, for the middle and for both ends.

use meta::Shape;
use residency::{Manifest, WeightSpec};

use super::Config;
use super::config::{FAMILY, Layer, LayerKind, Stage};
use crate::Result;
use crate::claims::Claims;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let layers = Layers { claims, kernel: config.kernel };
    let mut builder = Manifest::builder(claims.file(), FAMILY);
    let [decoder, encoder] = config.middle;
    let (z, colours) = (config.latent_channels, config.channels * config.patch * config.patch);
    let mut entrance = layers.product("conv2", z, z)?;
    entrance.extend(layers.kernel("decoder.conv1", decoder, z)?);
    builder = builder.block("decoder.in", true, entrance);
    builder = builder.block("decoder.middle", false, layers.middle("decoder.middle", decoder)?);
    for stage in &config.up {
        builder = builder.block(stage.name.clone(), false, layers.stage(&stage.layers)?);
    }
    let width = config.up.last().map_or(decoder, Stage::to);
    builder = builder.block("decoder.head", true, layers.head("decoder.head", width, colours)?);
    if config.down.is_empty() {
        return Ok(builder.finish()?);
    }
    let entrance = layers.kernel("encoder.conv1", config.encoder_width, colours)?;
    builder = builder.block("encoder.in", true, entrance);
    for stage in &config.down {
        builder = builder.block(stage.name.clone(), false, layers.stage(&stage.layers)?);
    }
    builder = builder.block("encoder.middle", false, layers.middle("encoder.middle", encoder)?);
    let mut exit = layers.head("encoder.head", encoder, 2 * z)?;
    exit.extend(layers.product("conv1", 2 * z, 2 * z)?);
    Ok(builder.block("encoder.head", true, exit).finish()?)
}

struct Layers<'a> {
    claims: &'a Claims<'a>,
    /// Frames that a convolution looks at.
    kernel: usize,
}

impl Layers<'_> {
    fn stage(&self, layers: &[Layer]) -> Result<Vec<WeightSpec>> {
        let mut weights = Vec::new();
        for Layer { name, from, to, kind } in layers {
            weights.extend(match kind {
                LayerKind::Residual => self.residual(name, *from, *to)?,
                LayerKind::Resample { in_time } => self.resample(name, (*from, *to), *in_time)?,
            });
        }
        Ok(weights)
    }

    fn resample(&self, name: &str, (from, to): (usize, usize), in_time: bool) -> Result<Vec<WeightSpec>> {
        // A convolution over pictures is one over videos that looks at one frame.
        let mut weights = self.claims.layer(&format!("{name}.resample.1"), &[to, from, 3, 3])?;
        weights[0].shape = Shape::from([to, from, 1, 3, 3]);
        if in_time {
            let time = format!("{name}.time_conv");
            let rows = if name.starts_with("decoder") { 2 * from } else { to };
            weights.extend(self.claims.layer(&time, &[rows, from, self.kernel, 1, 1])?);
        }
        Ok(weights)
    }

    fn middle(&self, name: &str, channels: usize) -> Result<Vec<WeightSpec>> {
        let mut weights = self.residual(&format!("{name}.0"), channels, channels)?;
        weights.push(self.norm(&format!("{name}.1.norm"), &[channels, 1, 1])?);
        weights.extend(self.claims.layer(&format!("{name}.1.to_qkv"), &[3 * channels, channels, 1, 1])?);
        weights.extend(self.claims.layer(&format!("{name}.1.proj"), &[channels, channels, 1, 1])?);
        weights.extend(self.residual(&format!("{name}.2"), channels, channels)?);
        Ok(weights)
    }

    fn residual(&self, name: &str, from: usize, to: usize) -> Result<Vec<WeightSpec>> {
        let mut weights = vec![self.norm(&format!("{name}.residual.0"), &[from, 1, 1, 1])?];
        weights.extend(self.kernel(&format!("{name}.residual.2"), to, from)?);
        weights.push(self.norm(&format!("{name}.residual.3"), &[to, 1, 1, 1])?);
        weights.extend(self.kernel(&format!("{name}.residual.6"), to, to)?);
        if from != to {
            weights.extend(self.product(&format!("{name}.shortcut"), to, from)?);
        }
        Ok(weights)
    }

    fn head(&self, name: &str, from: usize, to: usize) -> Result<Vec<WeightSpec>> {
        let mut weights = vec![self.norm(&format!("{name}.0"), &[from, 1, 1, 1])?];
        weights.extend(self.kernel(&format!("{name}.2"), to, from)?);
        Ok(weights)
    }

    fn kernel(&self, name: &str, to: usize, from: usize) -> Result<Vec<WeightSpec>> {
        self.claims.layer(name, &[to, from, self.kernel, 3, 3])
    }

    fn product(&self, name: &str, to: usize, from: usize) -> Result<Vec<WeightSpec>> {
        self.claims.layer(name, &[to, from, 1, 1, 1])
    }

    /// One factor for each channel.
    fn norm(&self, name: &str, shape: &[usize]) -> Result<WeightSpec> {
        let mut weight = self.claims.weight(&format!("{name}.gamma"), shape)?;
        weight.shape = Shape::from([shape[0]]);
        Ok(weight)
    }
}
