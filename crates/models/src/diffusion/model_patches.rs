//! Patches of diffusion models: networks that look at a picture, or are told what is to be where, and change the image's
//! tokens behind the blocks of a model, while it runs. One line in [`FAMILIES`] for each kind; each stands in the folder of the family that it is for.
//!
//! ```text
//! Checkpoint ── detect ──> Part ── PatchFamily::read ──> dyn PatchNetwork ── manifest ──> plan, load, open
//!                                                            │                              │
//!      the image's tokens <── behind (every block) <── pass ─┴─ start (once a run) <── Session
//! ```

use std::fmt;
use std::sync::Arc;

use checkpoint::Checkpoint;
use residency::Session;
use sampling::LatentSpec;
use tensor::{Lane, Tensor};

use super::positions::Positions;
use super::{qwen_image, sd15, z_image};
use crate::conditioning::{Array, Grounding};
use crate::detect::{Part, Sign};
use crate::{Error, Module, Result};

/// Every kind of patches, in the order in which files are tried.
pub const FAMILIES: &[&PatchFamily] = &[&qwen_image::PATCH, &z_image::PATCH, &sd15::GROUNDING];

/// What the rest of the program asks of a kind before one of its files is read.
pub struct PatchFamily {
    /// Its name in the field.
    pub name: &'static str,
    /// What gives its files away.
    pub signs: &'static [Sign],
    /// Reads the sizes of one of its networks.
    pub read: fn(&Checkpoint, &Part) -> Result<Box<dyn PatchNetwork>>,
}

/// A patch that was read from a file.
pub trait PatchNetwork: Module {
    /// The families of diffusion models that it is for, by name.
    fn patches(&self) -> &'static [&'static str];

    /// What it looks at; none for one that is told what is to be where instead.
    fn picture(&self) -> Option<PatchPicture>;

    /// Values of each text that it is told, if it is told any.
    fn text_width(&self) -> Option<usize> {
        None
    }

    /// Where it looks at a model or changes it, in order.
    fn points(&self) -> Vec<PatchPoint>;

    /// What it sees of a model at a point for a latent of so many items, rows and columns, empty, as a rehearsal needs it.
    fn blank(&self, lane: &Lane, latent: [usize; 3], point: PatchPoint) -> Result<Seen>;

    /// Starts a run: what it is given goes through its layers once.
    fn start<'a>(&'a self, session: &'a Session, given: &PatchGiven<'_>) -> Result<Box<dyn PatchRun + 'a>>;
}

/// What a patch is given for a run.
#[derive(Clone, Copy, Debug)]
pub struct PatchGiven<'a> {
    /// Pictures, one for each size of latents.
    pub pictures: &'a [Array],
    /// What is to be where, for each conditioning of the run, by its place; nothing for one that says nothing of it.
    pub grounded: &'a [Grounding],
    /// What is added is multiplied with this.
    pub strength: f32,
}

/// What a patch looks at.
#[derive(Clone, Copy, Debug)]
pub struct PatchPicture {
    /// The latents of pictures, by the autoencoder of the diffusion model, scaled as such latents are.
    pub latent: &'static LatentSpec,
    /// What stands behind them.
    pub beside: BesidePicture,
}

/// What stands behind the latent of a picture, as further channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BesidePicture {
    /// Nothing.
    Nothing,
    /// Where the picture stays.
    Mask,
    /// Where the picture stays, and a latent of what does.
    MaskAndRest,
}

impl PatchPicture {
    /// How many channels there are.
    #[must_use]
    pub fn channels(&self) -> usize {
        let channels = self.latent.channels;
        match self.beside {
            BesidePicture::Nothing => channels,
            BesidePicture::Mask => channels + 1,
            BesidePicture::MaskAndRest => 2 * channels + 1,
        }
    }

    /// What stands behind the picture in a network with so many channels.
    pub(super) fn beside(latent: &LatentSpec, channels: usize) -> Option<BesidePicture> {
        let all = [BesidePicture::Nothing, BesidePicture::Mask, BesidePicture::MaskAndRest];
        let latent_channels = latent.channels;
        let of = |beside: &BesidePicture| match beside {
            BesidePicture::Nothing => latent_channels,
            BesidePicture::Mask => latent_channels + 1,
            BesidePicture::MaskAndRest => 2 * latent_channels + 1,
        };
        all.into_iter().find(|beside| of(beside) == channels)
    }
}

/// A place behind a block of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchPoint {
    /// A block over the image alone, before those that count as the model's.
    Refiner(usize),
    /// A block of the model.
    Block(usize),
}

impl PatchPoint {
    /// Whether the block is the first of its stack.
    pub(super) fn is_first(self) -> bool {
        matches!(self, PatchPoint::Refiner(0) | PatchPoint::Block(0))
    }
}

/// A patch with its pictures.
pub trait PatchRun {
    /// Begins a pass over the model's blocks.
    fn pass(&self) -> Box<dyn PatchPass + '_>;
}

/// A patch during one pass over the model's blocks.
pub trait PatchPass {
    /// Adds to the image's tokens behind a block; evaluations that run as one batch are one of `seen`, which are as many
    /// and in the same order for all blocks.
    fn behind(&mut self, point: PatchPoint, seen: &[Seen]) -> Result<()>;
}

/// What a patch sees of evaluations that run as one batch, between blocks.
pub struct Seen {
    /// Rows and columns of the latent.
    pub(super) size: [usize; 2],
    /// The image's tokens `[batch, tokens, hidden]`, which are added to in place.
    pub(super) image: Tensor,
    /// The tokens before the block, behind the first block of a stack.
    pub(super) before: Option<Tensor>,
    /// The embedded time, one row for each evaluation, in models whose patches have blocks of the same kind.
    pub(super) time: Option<Tensor>,
    /// Where all tokens stand, and the place of the image's first, likewise.
    pub(super) places: Option<(Arc<Positions>, usize)>,
    /// The conditionings of the evaluations, by their places among those of the run, for patches that are told of them.
    pub(super) conds: Vec<usize>,
}

impl Seen {
    /// Tokens without times and places.
    pub(super) fn tokens(size: [usize; 2], image: Tensor) -> Seen {
        Seen { size, image, before: None, time: None, places: None, conds: Vec::new() }
    }

    /// Adds `added · strength` to the first tokens of the image.
    pub(super) fn add(&self, added: &Tensor, strength: f32) -> Result<()> {
        let added = if strength == 1.0 { added.clone() } else { added.affine(strength, 0.0)? };
        let tokens = self.image.slice(1, 0, added.dim(1))?;
        Ok(tokens.add_in_place(&added.to_lane(tokens.lane())?)?)
    }
}

/// A picture through the first layer of a patch, `[items or 1, tokens, hidden]`, by its rows and columns.
pub(super) struct KnownPicture {
    size: [usize; 2],
    tokens: Tensor,
}

/// Pictures through the first layer of a patch, by their sizes.
pub(super) struct KnownPictures(Vec<KnownPicture>);

impl KnownPictures {
    /// All pictures through a layer.
    pub(super) fn new(
        pictures: &[Array],
        channels: usize,
        mut layer: impl FnMut(&Array, [usize; 4]) -> Result<Tensor>,
    ) -> Result<KnownPictures> {
        let known = |picture: &Array| -> Result<KnownPicture> {
            let axes: [usize; 4] = picture.axes("the picture", "items, channels, height and width")?;
            if axes[1] != channels {
                return Err(Error::Input {
                    what: "the picture of a model patch",
                    expected: format!("of {channels} channels"),
                    got: format!("of {}", axes[1]),
                });
            }
            Ok(KnownPicture { size: [axes[2], axes[3]], tokens: layer(picture, axes)? })
        };
        Ok(KnownPictures(pictures.iter().map(known).collect::<Result<_>>()?))
    }

    /// The picture for a batch, one for each of its items or one for all.
    pub(super) fn of(&self, seen: &Seen) -> Result<Tensor> {
        let Some(KnownPicture { tokens, .. }) = self.0.iter().find(|known| known.size == seen.size) else {
            return Err(Error::Input {
                what: "the picture of a model patch",
                expected: format!("for a latent of {} rows and {} columns", seen.size[0], seen.size[1]),
                got: "none of that size".into(),
            });
        };
        let (items, batch) = (tokens.dim(0), seen.image.dim(0));
        if items == 1 || items == batch {
            return Ok(tokens.clone());
        }
        let (count, width) = (tokens.dim(1), tokens.dim(2));
        let all =
            tokens.reshape([1, items, count, width])?.broadcast([batch / items, items, count, width])?;
        Ok(all.reshape([batch, count, width])?)
    }
}

/// Does what a patch does in one step of a model with evaluations of these sizes, with empty values. Gives the bytes that
/// it goes on holding between blocks.
pub fn rehearse(
    patch: &dyn PatchNetwork,
    session: &Session,
    batch: usize,
    sizes: &[[usize; 2]],
) -> Result<u64> {
    let lane = session.lane()?;
    let used = || lane.device().ledger().report().used;
    let before = used();
    let channels = patch.picture().map_or(0, |picture| picture.channels());
    let picture = |[height, width]: &[usize; 2]| Array::zeros(&[batch, channels, *height, *width]);
    let pictures: Vec<Array> = sizes.iter().map(picture).collect();
    let grounding = |size: &[usize; 2]| Grounding::blank(*size, patch.text_width().unwrap_or(0));
    let grounded: Vec<Grounding> = sizes.iter().map(grounding).collect();
    let given = PatchGiven { pictures: &pictures, grounded: &grounded, strength: 0.5 };
    let run = patch.start(session, &given)?;
    let held = used().saturating_sub(before);
    let mut pass = run.pass();
    for point in patch.points() {
        let seen = |(place, [height, width]): (usize, &[usize; 2])| -> Result<Seen> {
            Ok(Seen { conds: vec![place], ..patch.blank(lane, [batch, *height, *width], point)? })
        };
        let seen: Vec<Seen> = sizes.iter().enumerate().map(seen).collect::<Result<_>>()?;
        pass.behind(point, &seen)?;
    }
    Ok(held)
}

impl fmt::Debug for PatchFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
