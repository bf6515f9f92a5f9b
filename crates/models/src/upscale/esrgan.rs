//! ESRGAN and RealESRGAN: dense blocks of convolutions in blocks of three, around which residuals go, and convolutions
//! behind each doubling of the size.

mod config;

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session, WeightSpec};
use tensor::{ResizeMode, Tensor};

use super::layers::{Layers, pixel_unshuffle};
use super::{Sides, Upscaler, UpscalerFamily};
use crate::claims::Claims;
use crate::detect::{Neighbours, Part, Sign};
use crate::{Module, Result};
pub use config::Config;
use config::NAME;

/// Factor of what is negative.
const SLOPE: f32 = 0.2;
/// How much of what a block finds is added to what it was given.
const RESIDUAL: f32 = 0.2;
/// Dense blocks of one block, and convolutions of a dense block.
const DENSE: usize = 3;
const STEPS: usize = 5;

/// The family.
pub const FAMILY: UpscalerFamily = UpscalerFamily {
    name: "ESRGAN and RealESRGAN",
    signs: &[
        Sign::native("model.1.sub.0.RDB1.conv1.0.weight", |_| named("ESRGAN")),
        Sign::native("body.0.rdb1.conv1.weight", unshuffled),
        Sign::native("RRDB_trunk.0.RDB1.conv1.weight", |_| named("ESRGAN")),
    ],
    read: |checkpoint, part| Ok(Box::new(Esrgan::read(checkpoint, part)?)),
};

fn named(name: &'static str) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(name))
}

fn unshuffled(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    found.dims("conv_first.weight").and_then(|_| named("RealESRGAN"))
}

/// An ESRGAN: its sizes and how it computes.
#[derive(Clone, Debug)]
pub struct Esrgan {
    config: Config,
    prefix: String,
}

impl Esrgan {
    fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Esrgan> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, NAME))?;
        Ok(Esrgan { config, prefix: part.prefix.clone() })
    }

    /// Three dense blocks, and the residual around them.
    fn block(&self, lease: &Lease<'_>, block: usize, x: &Tensor) -> Result<Tensor> {
        let part = lease.lane().full([1, 1, 1, 1], RESIDUAL)?;
        let mut inner = x.clone();
        for dense in 0..DENSE {
            let found = self.dense(lease, (block, dense), &inner)?;
            inner = inner.gated_add(&part, &found)?;
        }
        Ok(x.gated_add(&part, &inner)?)
    }

    /// Convolutions each of which sees what all before it gave. They write into one tensor, so that nothing is joined.
    fn dense(&self, lease: &Lease<'_>, (block, dense): (usize, usize), x: &Tensor) -> Result<Tensor> {
        let Config { names, width, growth, is_plus, .. } = &self.config;
        let layers = Layers { lease };
        let seen = lease.lane().empty([1, width + (STEPS - 1) * growth, x.dim(2), x.dim(3)])?;
        x.copy_into(&seen.slice(1, 0, *width)?)?;
        let found = |step: usize| seen.slice(1, width + (step - 1) * growth, *growth);
        for step in 1..STEPS {
            let before = seen.slice(1, 0, width + (step - 1) * growth)?;
            let y = layers.convolution(&names.dense(block, dense, step), &before)?;
            match (is_plus, step) {
                (true, 2) => {
                    let around = layers.convolution(&names.around(block, dense), x)?;
                    y.leaky_relu(SLOPE)?.add(&around)?.copy_into(&found(step)?)?;
                }
                (true, 4) => y.leaky_relu(SLOPE)?.add(&found(2)?)?.copy_into(&found(step)?)?,
                _ => y.leaky_relu_into(SLOPE, &found(step)?)?,
            }
        }
        layers.convolution(&names.dense(block, dense, STEPS), &seen)
    }

    /// The weights of one block.
    fn block_weights(&self, claims: &Claims<'_>, block: usize) -> Result<Vec<WeightSpec>> {
        let Config { names, width, growth, is_plus, .. } = &self.config;
        let mut weights = Vec::new();
        for dense in 0..DENSE {
            for step in 1..=STEPS {
                let to = if step == STEPS { *width } else { *growth };
                let from = width + (step - 1) * growth;
                weights.extend(claims.layer(&names.dense(block, dense, step), &[to, from, 3, 3])?);
            }
            if *is_plus {
                weights.extend(claims.layer(&names.around(block, dense), &[*growth, *width, 1, 1])?);
            }
        }
        Ok(weights)
    }
}

impl Module for Esrgan {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, NAME);
        let config = &self.config;
        let (names, width) = (&config.names, config.width);
        let first = claims.layer(&names.first(), &[width, config.in_channels, 3, 3])?;
        let mut builder = Manifest::builder(claims.file(), NAME).block("in", true, first);
        for block in 0..config.blocks {
            builder = builder.block(format!("body.{block}"), false, self.block_weights(&claims, block)?);
        }
        let mut exit = claims.layer(&names.trunk(config.blocks), &[width, width, 3, 3])?;
        for double in 0..config.doublings {
            exit.extend(claims.layer(&names.up(double), &[width, width, 3, 3])?);
        }
        exit.extend(claims.layer(&names.large(config.doublings), &[width, width, 3, 3])?);
        exit.extend(claims.layer(&names.last(config.doublings), &[config.out_channels, width, 3, 3])?);
        Ok(builder.block("out", true, exit).finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::F16, DType::F32]
    }
}

impl Upscaler for Esrgan {
    fn scale(&self) -> usize {
        self.config.scale()
    }

    fn channels(&self) -> [usize; 2] {
        let of_picture = self.config.in_channels / (self.config.unshuffle * self.config.unshuffle);
        [of_picture, self.config.out_channels]
    }

    fn sides(&self) -> Sides {
        Sides { least: 2, multiple: if self.config.unshuffle > 1 { 4 } else { 1 } }
    }

    fn upscale(&self, session: &Session, pixels: &Tensor) -> Result<Tensor> {
        let Config { names, blocks, doublings, unshuffle, .. } = &self.config;
        let first = {
            let lease = session.lease(0)?;
            let pixels = lease.bring(pixels)?;
            let pixels = if *unshuffle > 1 { pixel_unshuffle(&pixels, *unshuffle)? } else { pixels };
            Layers { lease: &lease }.convolution(&names.first(), &pixels)?
        };
        let mut x = first.clone();
        for block in 0..*blocks {
            let lease = session.lease(block + 1)?;
            x = self.block(&lease, block, &lease.bring(&x)?)?;
        }
        let lease = session.lease(blocks + 1)?;
        let layers = Layers { lease: &lease };
        x = layers.convolution(&names.trunk(*blocks), &lease.bring(&x)?)?;
        x = lease.bring(&first)?.add(&x)?;
        drop(first);
        for double in 0..*doublings {
            x = x.resize(x.dim(2) * 2, x.dim(3) * 2, ResizeMode::Nearest)?;
            x = layers.convolution(&names.up(double), &x)?.leaky_relu(SLOPE)?;
        }
        x = layers.convolution(&names.large(*doublings), &x)?.leaky_relu(SLOPE)?;
        layers.convolution(&names.last(*doublings), &x)
    }
}
