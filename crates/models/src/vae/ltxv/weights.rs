//! What an autoencoder of LTX-Video needs of its file: one block for each of its own, and for the ends of both halves.

use meta::Shape;
use residency::{Manifest, WeightSpec};

use super::Config;
use super::config::{FAMILY, Stage, StageKind};
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::modulation::TIME_VALUES;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let layers = Layers { claims, has_time: config.time_scale.is_some() };
    let mut builder = Manifest::builder(claims.file(), FAMILY);
    let (z, folded) = (config.latent_channels, config.channels * config.patch * config.patch);
    let statistic = |name: &str| claims.weight(&format!("per_channel_statistics.{name}"), &[z]);
    builder =
        builder.block("statistics", true, vec![statistic("mean-of-means")?, statistic("std-of-means")?]);
    let first = config.up.first().map_or(z, |stage| stage.from);
    builder = builder.block("decoder.in", true, layers.kernel("decoder.conv_in.conv", first, z)?);
    for stage in &config.up {
        builder = builder.block(stage.name.clone(), false, layers.stage(stage, true)?);
    }
    let last = config.up.last().map_or(first, |stage| stage.to);
    let mut exit = layers.kernel("decoder.conv_out.conv", folded, last)?;
    if layers.has_time {
        exit.extend(layers.time("decoder.last_time_embedder", 2 * last)?);
        exit.push(layers.table("decoder.last_scale_shift_table", 2, last)?);
    }
    builder = builder.block("decoder.out", true, exit);
    let Some(stage) = config.down.first() else { return Ok(builder.finish()?) };
    builder = builder.block("encoder.in", true, layers.kernel("encoder.conv_in.conv", stage.from, folded)?);
    for stage in &config.down {
        builder = builder.block(stage.name.clone(), false, layers.stage(stage, false)?);
    }
    let last = config.down.last().map_or(stage.from, |stage| stage.to);
    let [rows, _, _, _, _] = claims.dims("encoder.conv_out.conv.weight")?;
    if rows < z {
        return Err(claims.misfit("encoder.conv_out.conv.weight", format!("at least {z} rows")));
    }
    let exit = layers.kernel("encoder.conv_out.conv", rows, last)?;
    Ok(builder.block("encoder.out", true, exit).finish()?)
}

struct Layers<'a> {
    claims: &'a Claims<'a>,
    has_time: bool,
}

impl Layers<'_> {
    fn stage(&self, Stage { name, from, to, kind }: &Stage, is_decoder: bool) -> Result<Vec<WeightSpec>> {
        let mut weights = Vec::new();
        match *kind {
            StageKind::Residuals(count, has_noise) => {
                let has_time = is_decoder && self.has_time;
                if has_time {
                    weights.extend(self.time(&format!("{name}.time_embedder"), 4 * from)?);
                }
                for i in 0..count {
                    let name = format!("{name}.res_blocks.{i}");
                    weights.extend(self.residual(&name, (*from, *to), has_noise)?);
                    if has_time {
                        weights.push(self.table(&format!("{name}.scale_shift_table"), 4, *from)?);
                    }
                }
            }
            StageKind::Widening(has_noise) => weights.extend(self.residual(name, (*from, *to), has_noise)?),
            StageKind::Strided(_) => weights.extend(self.kernel(&format!("{name}.conv"), *to, *from)?),
            StageKind::Folding([time, side], _) => {
                let places = time * side * side;
                let rows = if is_decoder { to * places } else { to / places };
                weights.extend(self.kernel(&format!("{name}.conv.conv"), rows, *from)?);
            }
        }
        Ok(weights)
    }

    fn residual(&self, name: &str, (from, to): (usize, usize), has_noise: bool) -> Result<Vec<WeightSpec>> {
        let mut weights = self.kernel(&format!("{name}.conv1.conv"), to, from)?;
        weights.extend(self.kernel(&format!("{name}.conv2.conv"), to, to)?);
        if from != to {
            weights.extend(self.claims.layer(&format!("{name}.norm3.norm"), &[from])?);
            weights.extend(self.claims.layer(&format!("{name}.conv_shortcut"), &[to, from, 1, 1, 1])?);
        }
        if has_noise {
            for part in ["per_channel_scale1", "per_channel_scale2"] {
                weights.push(self.claims.weight(&format!("{name}.{part}"), &[from, 1, 1])?);
            }
        }
        Ok(weights)
    }

    fn time(&self, name: &str, width: usize) -> Result<Vec<WeightSpec>> {
        let name = format!("{name}.timestep_embedder");
        let mut weights = self.claims.layer(&format!("{name}.linear_1"), &[width, TIME_VALUES])?;
        weights.extend(self.claims.layer(&format!("{name}.linear_2"), &[width, width])?);
        Ok(weights)
    }

    /// What is added to a time's modulations, in a row.
    fn table(&self, name: &str, parts: usize, channels: usize) -> Result<WeightSpec> {
        let mut weight = self.claims.weight(name, &[parts, channels])?;
        weight.shape = Shape::from([parts * channels]);
        Ok(weight)
    }

    fn kernel(&self, name: &str, to: usize, from: usize) -> Result<Vec<WeightSpec>> {
        self.claims.layer(name, &[to, from, 3, 3, 3])
    }
}
