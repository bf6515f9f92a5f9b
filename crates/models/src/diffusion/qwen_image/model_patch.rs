//! Block-wise control of Qwen-Image as a patch of the model (DiffSynth-Studio, `QwenImageBlockWiseControlNet`): behind every
//! block the image's tokens and those of a picture go through two layers, and what comes out is added.

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Manifest, Session};
use tensor::{Activation, Lane, Tensor};

use super::blocks::NORM_EPS;
use super::{FAMILY, LATENT};
use crate::claims::Claims;
use crate::conditioning::Array;
use crate::detect::{Part, Sign};
use crate::diffusion::model_patches::{
    BesidePicture, KnownPictures, PatchFamily, PatchGiven, PatchNetwork, PatchPass, PatchPicture, PatchPoint,
    PatchRun, Seen,
};
use crate::diffusion::patches::{Grid, PATCH as SIDE, patchify};
use crate::{Error, Module, Result};

/// Block-wise control of Qwen-Image.
pub const PATCH: PatchFamily = PatchFamily {
    name: "block-wise control of Qwen-Image",
    signs: &[Sign::native("controlnet_blocks.0.y_rms.weight", |_| {
        Some(Cow::Borrowed("block-wise control of Qwen-Image"))
    })],
    read: |checkpoint, part| Ok(Box::new(BlockwiseControl::read(checkpoint, part)?)),
};

/// The network: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
struct BlockwiseControl {
    prefix: String,
    hidden: usize,
    blocks: usize,
    beside: BesidePicture,
}

impl BlockwiseControl {
    fn read(checkpoint: &Checkpoint, part: &Part) -> Result<BlockwiseControl> {
        let claims = Claims::new(checkpoint, &part.prefix, PATCH.name);
        let [hidden, columns] = claims.dims("img_in.weight")?;
        let channels = columns / (SIDE * SIDE);
        let whole = channels * SIDE * SIDE == columns;
        let Some(beside) = PatchPicture::beside(&LATENT, channels).filter(|_| whole) else {
            let expected = format!("[{hidden}, {} or with a mask {}]", 16 * SIDE * SIDE, 17 * SIDE * SIDE);
            return Err(claims.misfit("img_in.weight", expected));
        };
        let blocks = claims.count(|i| format!("controlnet_blocks.{i}.y_rms.weight"));
        Ok(BlockwiseControl { prefix: part.prefix.clone(), hidden, blocks, beside })
    }

    fn looks_at(&self) -> PatchPicture {
        PatchPicture { latent: &LATENT, beside: self.beside }
    }
}

impl Module for BlockwiseControl {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, PATCH.name);
        let (hidden, channels) = (self.hidden, self.looks_at().channels());
        let entrance = claims.layer("img_in", &[hidden, channels * SIDE * SIDE])?;
        let mut builder = Manifest::builder(claims.file(), PATCH.name).block("in", true, entrance);
        for index in 0..self.blocks {
            let block = format!("controlnet_blocks.{index}");
            let mut weights = vec![
                claims.weight(&format!("{block}.x_rms.weight"), &[hidden])?,
                claims.weight(&format!("{block}.y_rms.weight"), &[hidden])?,
            ];
            weights.extend(claims.layer(&format!("{block}.input_proj"), &[hidden, hidden])?);
            weights.extend(claims.layer(&format!("{block}.output_proj"), &[hidden, hidden])?);
            builder = builder.block(block, false, weights);
        }
        Ok(builder.finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}

impl PatchNetwork for BlockwiseControl {
    fn patches(&self) -> &'static [&'static str] {
        &[FAMILY.name]
    }

    fn picture(&self) -> Option<PatchPicture> {
        Some(self.looks_at())
    }

    fn points(&self) -> Vec<PatchPoint> {
        (0..self.blocks).map(PatchPoint::Block).collect()
    }

    fn blank(&self, lane: &Lane, [batch, height, width]: [usize; 3], _: PatchPoint) -> Result<Seen> {
        let tokens = Grid::of_size(height, width).patches();
        let image = lane.empty_as(lane.dtype(), [batch, tokens, self.hidden])?;
        Ok(Seen::tokens([height, width], image))
    }

    fn start<'a>(&'a self, session: &'a Session, given: &PatchGiven<'_>) -> Result<Box<dyn PatchRun + 'a>> {
        let lease = session.lease(0)?;
        let layer = |picture: &Array, axes: [usize; 4]| -> Result<Tensor> {
            let latent = lease.lane().tensor(axes, &picture.values)?;
            Ok(lease.linear("img_in", &patchify(&latent)?)?)
        };
        let pictures = KnownPictures::new(given.pictures, self.looks_at().channels(), layer)?;
        Ok(Box::new(Run { network: self, session, pictures, strength: given.strength }))
    }
}

/// A network with its pictures.
struct Run<'a> {
    network: &'a BlockwiseControl,
    session: &'a Session,
    pictures: KnownPictures,
    strength: f32,
}

impl PatchRun for Run<'_> {
    fn pass(&self) -> Box<dyn PatchPass + '_> {
        Box::new(Pass(self))
    }
}

/// One pass: nothing goes on from block to block.
struct Pass<'a>(&'a Run<'a>);

impl PatchPass for Pass<'_> {
    fn behind(&mut self, point: PatchPoint, seen: &[Seen]) -> Result<()> {
        let PatchPoint::Block(index) = point else { return Ok(()) };
        let Run { network, session, pictures, strength } = self.0;
        if index >= network.blocks {
            return Err(Error::Input {
                what: "a model patch",
                expected: format!("for a model of more than {index} blocks"),
                got: format!("one with {} blocks", network.blocks),
            });
        }
        let lease = session.lease(1 + index)?;
        let block = format!("controlnet_blocks.{index}");
        let normed = |norm: &str, x: &Tensor| -> Result<Tensor> {
            Ok(x.rms_norm(Some(&lease.weight(&format!("{block}.{norm}.weight"))?), NORM_EPS)?)
        };
        for seen in seen {
            let picture = pictures.of(seen)?;
            let image = lease.bring(&seen.image.slice(1, 0, picture.dim(1))?)?;
            let both = normed("x_rms", &image)?.add(&normed("y_rms", &lease.bring(&picture)?)?)?;
            let inner = lease.linear_then(&format!("{block}.input_proj"), &both, Some(Activation::Gelu))?;
            seen.add(&lease.linear(&format!("{block}.output_proj"), &inner)?, *strength)?;
        }
        Ok(())
    }
}
