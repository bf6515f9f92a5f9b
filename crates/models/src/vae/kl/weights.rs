//! What a KL autoencoder needs of its file: one block for each stage, for the middle and for both ends.

use residency::{Manifest, WeightSpec};

use super::Config;
use super::config::{FAMILY, Stage};
use crate::Result;
use crate::claims::Claims;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut half = Half { claims, has_frames: config.has_frames, blocks: Vec::new() };
    if !config.up.is_empty() {
        half.decoder(config)?;
    }
    if !config.down.is_empty() {
        half.encoder(config)?;
    }
    let mut builder = Manifest::builder(claims.file(), FAMILY);
    for Block { name, fixed, weights } in half.blocks {
        builder = builder.block(name, fixed, weights);
    }
    Ok(builder.finish()?)
}

struct Block {
    name: String,
    fixed: bool,
    weights: Vec<WeightSpec>,
}

/// Collects blocks.
struct Half<'a> {
    claims: &'a Claims<'a>,
    has_frames: bool,
    blocks: Vec<Block>,
}

impl Half<'_> {
    fn decoder(&mut self, config: &Config) -> Result<()> {
        let (z, middle) = (config.inner_channels, config.middle);
        let mut entrance = self.patch_norm(config, "decoder")?;
        if let Some([product, _]) = config.products() {
            entrance.extend(self.claims.layer(product, &[z, z, 1, 1])?);
        }
        entrance.extend(self.kernel("decoder.conv_in", middle, z)?);
        self.push("decoder.in", true, entrance);
        let weights = self.middle("decoder", middle)?;
        self.push("decoder.mid", false, weights);
        let mut channels = middle;
        for (i, stage) in config.up.iter().enumerate().rev() {
            let name = format!("decoder.up.{i}");
            let weights = self.stage(&name, stage, channels, "upsample")?;
            channels = stage.channels.last().copied().unwrap_or(channels);
            self.push(&name, false, weights);
        }
        let mut exit = self.norm("decoder.norm_out", channels)?;
        exit.extend(self.kernel("decoder.conv_out", config.out_channels, channels)?);
        if config.has_frames {
            let (name, out) = ("decoder.conv_out.time_mix_conv", config.out_channels);
            exit.extend(self.claims.layer(name, &[out, out, 3, 1, 1])?);
        }
        self.push("decoder.out", true, exit);
        Ok(())
    }

    fn encoder(&mut self, config: &Config) -> Result<()> {
        let [mut channels, _, _, _] = self.claims.dims("encoder.conv_in.weight")?;
        let entrance = self.kernel("encoder.conv_in", channels, config.in_channels)?;
        self.push("encoder.in", true, entrance);
        for (i, stage) in config.down.iter().enumerate() {
            let name = format!("encoder.down.{i}");
            let weights = self.stage(&name, stage, channels, "downsample")?;
            channels = stage.channels.last().copied().unwrap_or(channels);
            self.push(&name, false, weights);
        }
        let weights = self.middle("encoder", channels)?;
        self.push("encoder.mid", false, weights);
        let moments = 2 * config.inner_channels;
        let mut exit = self.norm("encoder.norm_out", channels)?;
        exit.extend(self.kernel("encoder.conv_out", moments, channels)?);
        if let Some([_, product]) = config.products() {
            exit.extend(self.claims.layer(product, &[moments, moments, 1, 1])?);
        }
        exit.extend(self.patch_norm(config, "encoder")?);
        self.push("encoder.out", true, exit);
        Ok(())
    }

    /// Mean and variance of the values of patches, for one half.
    fn patch_norm(&self, config: &Config, half: &str) -> Result<Vec<WeightSpec>> {
        if !config.is_patched {
            return Ok(Vec::new());
        }
        let weight = |name: &str| -> Result<WeightSpec> {
            let weight = self.claims.weight(&format!("bn.{name}"), &[config.latent_channels])?;
            // Both halves read them, and a weight belongs to one block.
            Ok(WeightSpec { name: format!("{half}.{name}"), ..weight })
        };
        Ok(vec![weight("running_mean")?, weight("running_var")?])
    }

    fn push(&mut self, name: &str, fixed: bool, weights: Vec<WeightSpec>) {
        self.blocks.push(Block { name: name.to_owned(), fixed, weights });
    }

    fn stage(&self, name: &str, stage: &Stage, channels: usize, resize: &str) -> Result<Vec<WeightSpec>> {
        let mut weights = Vec::new();
        let mut from = channels;
        for (i, &to) in stage.channels.iter().enumerate() {
            weights.extend(self.residual(&format!("{name}.block.{i}"), from, to)?);
            from = to;
        }
        if stage.resizes {
            weights.extend(self.kernel(&format!("{name}.{resize}.conv"), from, from)?);
        }
        Ok(weights)
    }

    /// Two convolutions over frames behind a unit of the decoder, and how much of them counts.
    fn over_frames(&self, name: &str, channels: usize) -> Result<Vec<WeightSpec>> {
        let layer = |part: &str| format!("{name}.time_stack.{part}");
        let mut weights = self.norm(&layer("in_layers.0"), channels)?;
        weights.extend(self.claims.layer(&layer("in_layers.2"), &[channels, channels, 3, 1, 1])?);
        weights.extend(self.norm(&layer("out_layers.0"), channels)?);
        weights.extend(self.claims.layer(&layer("out_layers.3"), &[channels, channels, 3, 1, 1])?);
        weights.push(self.claims.weight(&format!("{name}.mix_factor"), &[1])?);
        Ok(weights)
    }

    fn middle(&self, half: &str, channels: usize) -> Result<Vec<WeightSpec>> {
        let mut weights = self.residual(&format!("{half}.mid.block_1"), channels, channels)?;
        let attention = format!("{half}.mid.attn_1");
        weights.extend(self.norm(&format!("{attention}.norm"), channels)?);
        for layer in ["q", "k", "v", "proj_out"] {
            weights.extend(self.claims.layer(&format!("{attention}.{layer}"), &[channels, channels, 1, 1])?);
        }
        weights.extend(self.residual(&format!("{half}.mid.block_2"), channels, channels)?);
        Ok(weights)
    }

    fn residual(&self, name: &str, from: usize, to: usize) -> Result<Vec<WeightSpec>> {
        let mut weights = Vec::new();
        if self.has_frames && name.starts_with("decoder.") {
            weights.extend(self.over_frames(name, to)?);
        }
        weights.extend(self.norm(&format!("{name}.norm1"), from)?);
        weights.extend(self.kernel(&format!("{name}.conv1"), to, from)?);
        weights.extend(self.norm(&format!("{name}.norm2"), to)?);
        weights.extend(self.kernel(&format!("{name}.conv2"), to, to)?);
        if from != to {
            weights.extend(self.claims.layer(&format!("{name}.nin_shortcut"), &[to, from, 1, 1])?);
        }
        Ok(weights)
    }

    fn kernel(&self, name: &str, to: usize, from: usize) -> Result<Vec<WeightSpec>> {
        self.claims.layer(name, &[to, from, 3, 3])
    }

    fn norm(&self, name: &str, channels: usize) -> Result<Vec<WeightSpec>> {
        self.claims.layer(name, &[channels])
    }
}
