//! The compact networks of RealESRGAN (SRVGG): convolutions with a learned bend behind each, and what they find added to
//! the picture with its pixels repeated.

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Manifest, Session};
use tensor::{ResizeMode, Tensor};

use super::layers::{Layers, pixel_shuffle};
use super::{Sides, Upscaler, UpscalerFamily};
use crate::claims::Claims;
use crate::detect::{Neighbours, Part, Sign};
use crate::{Module, Result};

/// What errors call the family.
const NAME: &str = "RealESRGAN compact";

/// The family.
pub const FAMILY: UpscalerFamily = UpscalerFamily {
    name: "RealESRGAN compact (SRVGG)",
    signs: &[Sign::native("body.0.weight", sign)],
    read: |checkpoint, part| Ok(Box::new(Compact::read(checkpoint, part)?)),
};

fn sign(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let is_kernel = matches!(found.own_dims(), [_, _, 3, 3]);
    let has_slopes = matches!(found.dims("body.1.weight"), Some([_]));
    (is_kernel && has_slopes).then_some(Cow::Borrowed(NAME))
}

/// A compact network: its sizes and how it computes.
#[derive(Clone, Debug)]
pub struct Compact {
    prefix: String,
    /// Channels of a picture.
    channels: usize,
    /// Channels between.
    width: usize,
    /// Convolutions with a bend behind them.
    bends: usize,
    scale: usize,
}

impl Compact {
    fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Compact> {
        let claims = Claims::new(checkpoint, &part.prefix, NAME);
        let [width, channels, _, _] = claims.dims("body.0.weight")?;
        let bends = claims.count(|i| format!("body.{}.weight", 2 * i + 1));
        let last = format!("body.{}.weight", 2 * bends);
        let [out, _, _, _] = claims.dims(&last)?;
        let squared = out / channels;
        let scale = squared.isqrt();
        if scale * scale * channels != out {
            return Err(claims.misfit(&last, format!("{channels} times a square as its first dimension")));
        }
        Ok(Compact { prefix: part.prefix.clone(), channels, width, bends, scale })
    }
}

impl Module for Compact {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, NAME);
        let mut builder = Manifest::builder(claims.file(), NAME);
        for i in 0..self.bends {
            let from = if i == 0 { self.channels } else { self.width };
            let mut weights = claims.layer(&format!("body.{}", 2 * i), &[self.width, from, 3, 3])?;
            weights.push(claims.weight(&format!("body.{}.weight", 2 * i + 1), &[self.width])?);
            builder = builder.block(format!("body.{}", 2 * i), i == 0, weights);
        }
        let last = format!("body.{}", 2 * self.bends);
        let out = self.channels * self.scale * self.scale;
        let weights = claims.layer(&last, &[out, self.width, 3, 3])?;
        Ok(builder.block(last, true, weights).finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::F16, DType::F32]
    }
}

impl Upscaler for Compact {
    fn scale(&self) -> usize {
        self.scale
    }

    fn channels(&self) -> [usize; 2] {
        [self.channels; 2]
    }

    fn sides(&self) -> Sides {
        Sides { least: 1, multiple: 1 }
    }

    fn upscale(&self, session: &Session, pixels: &Tensor) -> Result<Tensor> {
        let mut x = pixels.clone();
        for i in 0..self.bends {
            let lease = session.lease(i)?;
            let layers = Layers { lease: &lease };
            let inner = layers.convolution(&format!("body.{}", 2 * i), &lease.bring(&x)?)?;
            x = layers.prelu(&format!("body.{}", 2 * i + 1), &inner)?;
        }
        let lease = session.lease(self.bends)?;
        let layers = Layers { lease: &lease };
        let x = layers.convolution(&format!("body.{}", 2 * self.bends), &lease.bring(&x)?)?;
        let found = pixel_shuffle(&x, self.scale)?;
        let pixels = lease.bring(pixels)?;
        let base = pixels.resize(found.dim(2), found.dim(3), ResizeMode::Nearest)?;
        Ok(found.add(&base)?)
    }
}
