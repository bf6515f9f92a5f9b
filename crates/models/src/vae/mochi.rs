//! The autoencoder of Mochi, its decoder: residual blocks whose convolutions look back in time only, so that a video passes
//! two frames of the latent at a time. Formulas and names are those of the authors' code (genmoai/mochi,
//! `genmo/mochi_preview/vae`).

mod layers;

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use residency::{Manifest, Session, WeightSpec};
use tensor::Tensor;

use super::AutoencoderFamily;
use super::causal::Past;
use super::video::{GiveFrames, TakeParts, VideoCoder, VideoSizes};
use crate::claims::Claims;
use crate::detect::{Part, Sign};
use crate::{Error, Module, Probe, Result};
use layers::Layers;

/// What errors call the family.
const NAME: &str = "the autoencoder of Mochi";
/// Frames of a latent that pass at a time.
const AT_ONCE: usize = 2;
/// Pixels along a side that a place becomes in a stage that enlarges.
const SIDE: usize = 2;

/// The family.
pub const FAMILY: AutoencoderFamily = AutoencoderFamily {
    name: NAME,
    signs: &[Sign::native("blocks.2.blocks.3.stack.5.weight", |found| {
        found.has("output_proj.weight").then_some("Mochi".into())
    })],
    read: |checkpoint, part| Ok(Box::new(Mochi::read(checkpoint, part)?)),
};

/// An autoencoder of Mochi: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Mochi {
    latent_channels: usize,
    channels: usize,
    stages: Vec<Stage>,
    prefix: String,
}

/// One stage of the decoder: residual blocks, then larger or not.
#[derive(Clone, Debug, PartialEq)]
struct Stage {
    name: String,
    /// The names of its residual blocks.
    residuals: Vec<String>,
    width: usize,
    /// Frames that one becomes, and channels then, of a stage that enlarges.
    enlarges: Option<(usize, usize)>,
}

impl Mochi {
    /// Reads the autoencoder's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Mochi> {
        let claims = Claims::new(checkpoint, &part.prefix, NAME);
        let [first, latent_channels, _, _, _] = claims.dims("blocks.0.0.weight")?;
        let [channels, last] = claims.dims("output_proj.weight")?;
        let count = claims.count(|i| format!("blocks.{}.proj.weight", i + 1));
        let listed = |name: &dyn Fn(usize) -> String| {
            let found = claims.count(|i| format!("{}.stack.2.weight", name(i)));
            (0..found).map(name).collect::<Vec<_>>()
        };
        let mut stages = vec![Stage {
            name: "blocks.0".to_owned(),
            residuals: listed(&|i| format!("blocks.0.{}", i + 1)),
            width: first,
            enlarges: None,
        }];
        for i in 1..=count {
            let [rows, width] = claims.dims(&format!("blocks.{i}.proj.weight"))?;
            let to = match claims.find(&format!("blocks.{}.proj.weight", i + 1)) {
                None => last,
                Some(_) => claims.dims::<2>(&format!("blocks.{}.proj.weight", i + 1))?[1],
            };
            let frames = rows / (to * SIDE * SIDE);
            if frames == 0 {
                return Err(
                    claims.misfit(&format!("blocks.{i}.proj.weight"), format!("[{to} · places, {width}]"))
                );
            }
            stages.push(Stage {
                name: format!("blocks.{i}"),
                residuals: listed(&|j| format!("blocks.{i}.blocks.{j}")),
                width,
                enlarges: Some((frames, to)),
            });
        }
        let name = format!("blocks.{}", count + 1);
        let residuals = listed(&|i| format!("{name}.{i}"));
        stages.push(Stage { name, residuals, width: last, enlarges: None });
        Ok(Mochi { latent_channels, channels, stages, prefix: part.prefix.clone() })
    }

    /// Decodes one latent with a look at what its stages compute of the first part.
    pub fn decode_probed(
        &self,
        session: &Session,
        latent: &Tensor,
        probe: &mut Probe<'_>,
        take: &mut dyn FnMut(&Tensor) -> Result<()>,
    ) -> Result<()> {
        let (mut past, frames) = (Past::default(), latent.dim(2));
        for start in (0..frames).step_by(AT_ONCE) {
            let mut x = latent.slice(2, start, AT_ONCE.min(frames - start))?.contiguous()?;
            for (block, stage) in self.stages.iter().enumerate() {
                let lease = session.lease(block)?;
                x = lease.bring(&x)?;
                let mut layers = Layers { lease: &lease, past: &mut past, is_first: start == 0 };
                if block == 0 {
                    x = layers.product("blocks.0.0", &x)?;
                }
                x = layers.stage(stage, x)?;
                probe.show(format_args!("{}", stage.name), &x);
                if block + 1 == self.stages.len() {
                    x = layers.output("output_proj", &x)?;
                }
            }
            take(&x)?;
        }
        Ok(())
    }
}

impl VideoCoder for Mochi {
    fn sizes(&self) -> VideoSizes {
        let enlarging = || self.stages.iter().filter_map(|stage| stage.enlarges);
        VideoSizes {
            latent_channels: self.latent_channels,
            channels: self.channels,
            factor: enlarging().map(|_| SIDE).product(),
            frames: enlarging().map(|(frames, _)| frames).product(),
        }
    }

    fn decode_parts(&self, session: &Session, latent: &Tensor, take: &mut TakeParts<'_>) -> Result<()> {
        self.decode_probed(session, latent, &mut Probe::none(), take)
    }

    fn encode_parts(&self, session: &Session, _: usize, _: &GiveFrames<'_>) -> Result<Tensor> {
        Err(Error::Input {
            what: "what is to be encoded",
            expected: format!("nothing: of {NAME} only the decoder is read"),
            got: format!("pictures for {}", session.manifest().name()),
        })
    }
}

impl Module for Mochi {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, NAME);
        let mut builder = Manifest::builder(claims.file(), NAME);
        for (i, stage) in self.stages.iter().enumerate() {
            let mut weights = Vec::new();
            if i == 0 {
                weights.extend(claims.layer("blocks.0.0", &[stage.width, self.latent_channels, 1, 1, 1])?);
            }
            for name in &stage.residuals {
                for (norm, kernel) in [(0, 2), (3, 5)] {
                    weights.extend(claims.layer(&format!("{name}.stack.{norm}"), &[stage.width])?);
                    let shape = [stage.width, stage.width, 3, 3, 3];
                    weights.extend(claims.layer(&format!("{name}.stack.{kernel}"), &shape)?);
                }
            }
            if let Some((frames, to)) = stage.enlarges {
                let rows = frames * to * SIDE * SIDE;
                weights.extend(product(&claims, &format!("{}.proj", stage.name), rows, stage.width)?);
            }
            if i + 1 == self.stages.len() {
                weights.extend(product(&claims, "output_proj", self.channels, stage.width)?);
            }
            builder = builder.block(stage.name.clone(), false, weights);
        }
        Ok(builder.finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F16, DType::F32]
    }
}

/// A product over channels, as a convolution over one place.
fn product(claims: &Claims<'_>, name: &str, to: usize, from: usize) -> Result<Vec<WeightSpec>> {
    let mut weights = claims.layer(name, &[to, from])?;
    weights[0].shape = Shape::from([to, from, 1, 1, 1]);
    Ok(weights)
}
