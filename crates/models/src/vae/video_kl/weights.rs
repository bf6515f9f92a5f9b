//! What a KL autoencoder of videos needs of its file: one block for each stage, for the middle and for both ends.

use meta::Shape;
use residency::{Manifest, WeightSpec};

use super::Config;
use super::config::{FAMILY, Stage};
use crate::Result;
use crate::claims::Claims;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let layers = Layers { claims, folds: config.folds };
    let mut builder = Manifest::builder(claims.file(), FAMILY);
    let (z, middle) = (config.latent_channels, config.middle);
    let mut entrance = layers.optional_product("post_quant_conv", z)?;
    entrance.extend(layers.kernel("decoder.conv_in", middle, z)?);
    builder = builder.block("decoder.in", true, entrance);
    builder = builder.block("decoder.mid", false, layers.middle("decoder", middle)?);
    let mut channels = middle;
    for i in config.up_order() {
        let (name, stage) = (format!("decoder.up.{i}"), &config.up[i]);
        let weights = layers.stage(&name, stage, channels, "upsample")?;
        channels = config.behind(stage, channels, true);
        builder = builder.block(name, false, weights);
    }
    let mut exit = layers.norm("decoder.norm_out", channels)?;
    exit.extend(layers.kernel("decoder.conv_out", config.channels, channels)?);
    builder = builder.block("decoder.out", true, exit);
    if config.down.is_empty() {
        return Ok(builder.finish()?);
    }
    let mut channels = config.encoder_width;
    builder = builder.block("encoder.in", true, layers.kernel("encoder.conv_in", channels, config.channels)?);
    for (i, stage) in config.down.iter().enumerate() {
        let name = format!("encoder.down.{i}");
        let weights = layers.stage(&name, stage, channels, "downsample")?;
        channels = config.behind(stage, channels, false);
        builder = builder.block(name, false, weights);
    }
    builder = builder.block("encoder.mid", false, layers.middle("encoder", channels)?);
    let mut exit = layers.norm("encoder.norm_out", channels)?;
    exit.extend(layers.kernel("encoder.conv_out", 2 * z, channels)?);
    exit.extend(layers.optional_product("quant_conv", 2 * z)?);
    Ok(builder.block("encoder.out", true, exit).finish()?)
}

struct Layers<'a> {
    claims: &'a Claims<'a>,
    folds: bool,
}

impl Layers<'_> {
    fn stage(&self, name: &str, stage: &Stage, channels: usize, resize: &str) -> Result<Vec<WeightSpec>> {
        let mut weights = Vec::new();
        let mut from = channels;
        for (i, &to) in stage.channels.iter().enumerate() {
            weights.extend(self.residual(&format!("{name}.block.{i}"), from, to)?);
            from = to;
        }
        if let Some(given) = stage.resize {
            let to = if self.folds { given } else { from };
            weights.extend(self.kernel(&format!("{name}.{resize}.conv"), to, from)?);
        }
        Ok(weights)
    }

    fn middle(&self, half: &str, channels: usize) -> Result<Vec<WeightSpec>> {
        let mut weights = self.residual(&format!("{half}.mid.block_1"), channels, channels)?;
        let attention = format!("{half}.mid.attn_1");
        weights.extend(self.norm(&format!("{attention}.norm"), channels)?);
        for layer in ["q", "k", "v", "proj_out"] {
            let name = format!("{attention}.{layer}");
            weights.extend(self.claims.layer(&name, &[channels, channels, 1, 1, 1])?);
        }
        weights.extend(self.residual(&format!("{half}.mid.block_2"), channels, channels)?);
        Ok(weights)
    }

    fn residual(&self, name: &str, from: usize, to: usize) -> Result<Vec<WeightSpec>> {
        let mut weights = self.norm(&format!("{name}.norm1"), from)?;
        weights.extend(self.kernel(&format!("{name}.conv1"), to, from)?);
        weights.extend(self.norm(&format!("{name}.norm2"), to)?);
        weights.extend(self.kernel(&format!("{name}.conv2"), to, to)?);
        if from != to {
            let shortcut = format!("{name}.nin_shortcut.conv");
            weights.extend(self.claims.layer(&shortcut, &[to, from, 1, 1, 1])?);
        }
        Ok(weights)
    }

    fn norm(&self, name: &str, channels: usize) -> Result<Vec<WeightSpec>> {
        if !self.folds {
            return self.claims.layer(name, &[channels]);
        }
        // One factor for each channel.
        let mut weight = self.claims.weight(&format!("{name}.gamma"), &[channels, 1, 1, 1])?;
        weight.shape = Shape::from([channels]);
        Ok(vec![weight])
    }

    fn kernel(&self, name: &str, to: usize, from: usize) -> Result<Vec<WeightSpec>> {
        self.claims.layer(&format!("{name}.conv"), &[to, from, 3, 3, 3])
    }

    fn optional_product(&self, name: &str, channels: usize) -> Result<Vec<WeightSpec>> {
        match self.claims.find(&format!("{name}.weight")) {
            None => Ok(Vec::new()),
            Some(_) => self.claims.layer(name, &[channels, channels, 1, 1, 1]),
        }
    }
}
