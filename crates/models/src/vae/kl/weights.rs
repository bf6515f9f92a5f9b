//! What a KL autoencoder needs of its file: one block for each stage, for the middle and for both ends.

use residency::{Manifest, WeightSpec};

use super::Config;
use super::config::{FAMILY, Stage};
use super::layers::SCORES;
use crate::Result;
use crate::claims::Claims;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config, pixels: usize) -> Result<Manifest> {
    let mut half = Half { claims, pixels, blocks: Vec::new() };
    if !config.up.is_empty() {
        half.decoder(config)?;
    }
    if !config.down.is_empty() {
        half.encoder(config)?;
    }
    let mut builder = Manifest::builder(claims.file(), FAMILY);
    for Block { name, fixed, flops, weights } in half.blocks {
        builder = builder.block(name, fixed, flops, weights);
    }
    Ok(builder.finish()?)
}

/// The most values that are alive at a time beside the weights, for one image.
pub(super) fn working_values(config: &Config, pixels: usize) -> usize {
    let latent_area = pixels / config.factor().pow(2);
    // Attention: tokens, their norm, queries, keys, values, the result and a part of it, and two sets of scores.
    let attention = 7 * latent_area * config.middle + 2 * SCORES.min(latent_area.saturating_mul(latent_area));
    attention.max(stage_values(config, pixels))
}

/// The most values that the residual blocks and changes of size have alive at a time, for one image.
pub(super) fn stage_values(config: &Config, pixels: usize) -> usize {
    let latent_area = pixels / config.factor().pow(2);
    let mut most = 0;
    // Both halves are walked from the latent to the image; the encoder is as large as the decoder.
    for stages in [&config.up, &config.down] {
        let (mut area, mut from) = (latent_area, config.middle);
        for stage in stages.iter().rev() {
            for &to in &stage.channels {
                most = most.max(area * (2 * from + to).max(from + 3 * to));
                from = to;
            }
            if stage.resizes {
                // The image at its old size, enlarged, and convolved.
                most = most.max(area * from * 9);
                area *= 4;
            }
        }
    }
    most
}

struct Block {
    name: String,
    fixed: bool,
    flops: u64,
    weights: Vec<WeightSpec>,
}

/// Collects blocks.
struct Half<'a> {
    claims: &'a Claims<'a>,
    pixels: usize,
    blocks: Vec<Block>,
}

impl Half<'_> {
    fn decoder(&mut self, config: &Config) -> Result<()> {
        let (z, middle) = (config.latent_channels, config.middle);
        let mut entrance = Vec::new();
        if config.quantised {
            entrance.extend(self.claims.layer("post_quant_conv", &[z, z, 1, 1])?);
        }
        entrance.extend(self.kernel("decoder.conv_in", middle, z)?);
        let mut area = self.pixels / config.factor().pow(2);
        self.push("decoder.in", true, area, entrance);
        let weights = self.middle("decoder", middle)?;
        self.push("decoder.mid", false, area, weights);
        let mut channels = middle;
        for (i, stage) in config.up.iter().enumerate().rev() {
            let name = format!("decoder.up.{i}");
            let weights = self.stage(&name, stage, channels, "upsample")?;
            channels = stage.channels.last().copied().unwrap_or(channels);
            self.push(&name, false, area, weights);
            area *= if stage.resizes { 4 } else { 1 };
        }
        let mut exit = self.norm("decoder.norm_out", channels)?;
        exit.extend(self.kernel("decoder.conv_out", config.out_channels, channels)?);
        self.push("decoder.out", true, area, exit);
        Ok(())
    }

    fn encoder(&mut self, config: &Config) -> Result<()> {
        let mut area = self.pixels;
        let [mut channels, _, _, _] = self.claims.dims("encoder.conv_in.weight")?;
        let entrance = self.kernel("encoder.conv_in", channels, config.in_channels)?;
        self.push("encoder.in", true, area, entrance);
        for (i, stage) in config.down.iter().enumerate() {
            let name = format!("encoder.down.{i}");
            let weights = self.stage(&name, stage, channels, "downsample")?;
            channels = stage.channels.last().copied().unwrap_or(channels);
            self.push(&name, false, area, weights);
            area /= if stage.resizes { 4 } else { 1 };
        }
        let weights = self.middle("encoder", channels)?;
        self.push("encoder.mid", false, area, weights);
        let moments = 2 * config.latent_channels;
        let mut exit = self.norm("encoder.norm_out", channels)?;
        exit.extend(self.kernel("encoder.conv_out", moments, channels)?);
        if config.quantised {
            exit.extend(self.claims.layer("quant_conv", &[moments, moments, 1, 1])?);
        }
        self.push("encoder.out", true, area, exit);
        Ok(())
    }

    /// Adds a block whose kernels run over `area` values.
    fn push(&mut self, name: &str, fixed: bool, area: usize, weights: Vec<WeightSpec>) {
        let products: u64 = weights.iter().map(|weight| weight.shape.count() as u64).sum();
        self.blocks.push(Block { name: name.to_owned(), fixed, flops: 2 * products * area as u64, weights });
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
        let mut weights = self.norm(&format!("{name}.norm1"), from)?;
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
