//! CLIP's vision towers and SigLIP: a picture in patches, a transformer over them, and what it sees as one vector or one per
//! patch. Names are those of the published checkpoints (`vision_model.encoder.layers.0.self_attn.q_proj`); OpenCLIP's names
//! (`visual.transformer.resblocks.0.attn.in_proj_weight`) are read, too, alone and inside of all-in-one checkpoints.
//!
//! ```text
//! pixels ── look ──> Features: last, penultimate, embeds, projected (towers of language models)
//! ```

mod weights;

use std::any::Any;
use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session};
use tensor::{Activation, ConvolutionShape, Mask, Tensor};

use super::{VisionFamily, VisionModel};
use crate::claims::Claims;
use crate::clip_layers::{Names, Stack, norm};
use crate::detect::{Detected, Neighbours, Part, Reader, Role, Sign};
use crate::rehearsal::{arrived, read_back};
use crate::{Error, Module, Probe, Result};

/// What errors call a file that should have a tower.
const WANTED: &str = "a CLIP vision model";
/// The layers of a SigLIP tower, counted from its end, whose results style projectors look at beside the last but one.
const EARLIER: [usize; 2] = [11, 20];
/// Colours in a picture.
const COLOURS: usize = 3;

/// The family.
pub const FAMILY: VisionFamily = VisionFamily {
    name: "CLIP vision",
    signs: &[
        Sign::native("vision_model.embeddings.patch_embedding.weight", |found| {
            let positions = found.dims("vision_model.embeddings.position_embedding.weight")?;
            let has_class = found.has("vision_model.embeddings.class_embedding");
            let has_projector = found.has("multi_modal_projector.linear_1.weight");
            Some(named(found.dim(0)?, *positions.first()?, has_class, has_projector))
        }),
        Sign::native("transformer.resblocks.0.ln_1.weight", of_open_clip),
    ],
    read: |checkpoint, part| Ok(Box::new(ClipVision::read(checkpoint, part)?)),
};

fn of_open_clip(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let [width, ..] = *found.dims("conv1.weight")? else { return None };
    let positions = found.dims("positional_embedding")?;
    found.has("class_embedding").then_some(())?;
    Some(named(width, *positions.first()?, true, false))
}

/// The name of a tower by its sizes.
fn named(width: usize, positions: usize, has_class: bool, has_projector: bool) -> Cow<'static, str> {
    Cow::Borrowed(match (width, positions) {
        (_, 729) if !has_class => "SigLIP 384",
        (_, 1024) if !has_class => "SigLIP 512",
        _ if !has_class => "SigLIP",
        _ if has_projector => "CLIP ViT-L 336 with LLaVA's projector",
        (1024, 577) => "CLIP ViT-L 336",
        (1024, _) => "CLIP ViT-L",
        (1280, _) => "CLIP ViT-H",
        (1664, _) => "CLIP ViT-bigG",
        (width, _) => return Cow::Owned(format!("CLIP ViT of width {width}")),
    })
}

/// A vision tower: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct ClipVision {
    config: ClipVisionConfig,
    names: Names,
    prefix: String,
}

/// The sizes of a vision tower.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipVisionConfig {
    /// Pixels along one side of the square that it looks at.
    pub side: usize,
    /// Pixels along one side of a patch.
    pub patch: usize,
    /// Tokens: one for each patch, and in CLIP one in front of them for the whole picture.
    pub tokens: usize,
    /// Values per token.
    pub width: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of attention.
    pub heads: usize,
    /// The non-linearity of the feed-forward layers.
    pub activation: Activation,
    /// Who trained it, and so how its tokens begin and end.
    pub kind: TowerKind,
    /// Values of the vector that stands for a whole picture, of a tower that has a projection.
    pub projection: Option<usize>,
    /// Values per token for a language model, of a tower that has a projector.
    pub projector: Option<usize>,
}

/// Who trained a tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TowerKind {
    /// OpenAI and OpenCLIP: a token for the whole picture in front.
    Clip,
    /// Google: patches alone.
    SigLip,
}

/// What a tower sees.
#[derive(Clone, Debug)]
pub struct Features {
    /// What the last layer gives, `[batch, tokens, width]`; SigLIP's is normalised.
    pub last: Tensor,
    /// What the layer before the last gives, `[batch, tokens, width]`.
    pub penultimate: Tensor,
    /// The picture in the space that CLIP shares with text, `[batch, projection]`; SigLIP has none, so it is its last state
    /// once more.
    pub embeds: Tensor,
    /// The patches as a language model's tokens, `[batch, patches, projector]`, of a tower that has the way there.
    pub projected: Option<Tensor>,
    /// What the eleventh and the twentieth layer from the end give, `[batch, tokens, width]`, of a SigLIP tower that has so
    /// many.
    pub earlier: Option<[Tensor; 2]>,
}

impl TowerKind {
    /// Mean and deviation of the colours that it was trained with.
    #[must_use]
    pub fn colours(self) -> ([f32; COLOURS], [f32; COLOURS]) {
        match self {
            TowerKind::Clip => {
                ([0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1])
            }
            TowerKind::SigLip => ([0.5; COLOURS], [0.5; COLOURS]),
        }
    }
}

impl ClipVisionConfig {
    /// The layers.
    fn stack(&self) -> Stack {
        Stack {
            name: weights::STACK,
            width: self.width,
            mlp: self.mlp,
            heads: self.heads,
            activation: self.activation,
            mask: Mask::None,
        }
    }
}

impl ClipVision {
    /// Reads the sizes of a tower from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<ClipVision> {
        let claims = Claims::new(checkpoint, &part.prefix, weights::FAMILY);
        let names = weights::names_of(&claims);
        let config = weights::read_config(&claims, names)?;
        Ok(ClipVision { config, names, prefix: part.prefix.clone() })
    }

    /// The part of a file that is a tower, or an error that says what the file is instead.
    pub fn part(detected: &Detected) -> Result<&Part> {
        let mut parts = detected.parts_for(Role::Vision);
        let found = parts.find(|part| part.reader == Some(Reader::Vision(&FAMILY)));
        found.ok_or_else(|| detected.wrong_kind(WANTED))
    }

    /// The tower's sizes.
    pub fn config(&self) -> &ClipVisionConfig {
        &self.config
    }

    /// What the tower sees in normalised pixels `[batch, 3, side, side]`.
    pub fn look(&self, session: &Session, pixels: &Tensor) -> Result<Features> {
        self.look_probed(session, pixels, &mut Probe::none())
    }

    /// As [`ClipVision::look`], with a look at what the modules compute.
    pub fn look_probed(&self, session: &Session, pixels: &Tensor, probe: &mut Probe<'_>) -> Result<Features> {
        let side = self.config.side;
        if pixels.rank() != 4 || pixels.dims()[1..] != [COLOURS, side, side] {
            return Err(Error::Input {
                what: "the picture",
                expected: format!("[batch, {COLOURS}, {side}, {side}]"),
                got: format!("of shape {}", pixels.shape()),
            });
        }
        let mut x = self.enter(&session.lease(0)?, pixels)?;
        probe.show(format_args!("embeddings"), &x);
        let stack = self.config.stack();
        let (mut penultimate, mut earlier) = (None, [None, None]);
        for i in 0..self.config.layers {
            let lease = session.lease(1 + i)?;
            x = stack.layer(&lease, i, &lease.bring(&x)?, probe)?;
            probe.show(format_args!("layers.{i}"), &x);
            if i + 2 == self.config.layers {
                penultimate = Some(x.clone());
            }
            for (kept, from_end) in earlier.iter_mut().zip(self.earlier()) {
                if i + from_end == self.config.layers {
                    *kept = Some(x.clone());
                }
            }
        }
        // Towers of a single layer have nothing in between.
        let penultimate = penultimate.unwrap_or_else(|| x.clone());
        let seen = self.leave(&session.lease(1 + self.config.layers)?, &x, &penultimate)?;
        let [middle, early] = earlier;
        Ok(Features { earlier: middle.zip(early).map(|(middle, early)| [middle, early]), ..seen })
    }

    /// The layers, counted from the end, whose results are kept beside those of the last two.
    fn earlier(&self) -> impl Iterator<Item = usize> + use<> {
        let is_kept = self.config.kind == TowerKind::SigLip && self.config.layers >= EARLIER[1];
        EARLIER.into_iter().filter(move |_| is_kept)
    }

    /// From pixels to tokens: the first block of the manifest.
    fn enter(&self, lease: &Lease<'_>, pixels: &Tensor) -> Result<Tensor> {
        let ClipVisionConfig { patch, tokens, width, kind, .. } = self.config;
        let pixels = lease.bring(pixels)?;
        let batch = pixels.dim(0);
        let bias = lease.find(&format!("{}.bias", weights::PATCHES))?;
        let weight = lease.weight(&format!("{}.weight", weights::PATCHES))?;
        let grid = pixels.convolution(&weight, bias.as_ref(), &ConvolutionShape::uniform(2, patch, 0))?;
        let patches = grid.dim(2) * grid.dim(3);
        let patches = grid.permute(&[0, 2, 3, 1])?.reshape([batch, patches, width])?;
        let positions = lease.lane().unpack(&lease.weight(weights::POSITIONS)?)?;
        if kind == TowerKind::SigLip {
            return Ok(patches.add(&positions)?);
        }
        let whole = lease.lane().unpack(&lease.weight(weights::CLASS)?)?;
        let whole = whole.reshape([1, 1, width])?.broadcast([batch, 1, width])?;
        let x = Tensor::concat(&[&whole, &patches], 1)?;
        debug_assert_eq!(x.dim(1), tokens, "the sizes were read from the table of positions");
        norm(lease, weights::FIRST_NORM, &x.add(&positions)?)
    }

    /// From tokens to what is asked for: the last block of the manifest.
    fn leave(&self, lease: &Lease<'_>, last: &Tensor, penultimate: &Tensor) -> Result<Features> {
        let (last, penultimate) = (lease.bring(last)?, lease.bring(penultimate)?);
        let projected = match self.config.projector {
            Some(_) => {
                let patches = penultimate.slice(1, 1, penultimate.dim(1) - 1)?;
                let name = |layer: &str| format!("{}.{layer}", weights::PROJECTOR);
                let inner = lease.linear_then(&name("linear_1"), &patches, Some(Activation::Gelu))?;
                Some(lease.linear(&name("linear_2"), &inner)?)
            }
            None => None,
        };
        if self.config.kind == TowerKind::SigLip {
            let last = norm(lease, weights::LAST_NORM, &last)?;
            return Ok(Features { embeds: last.clone(), last, penultimate, projected, earlier: None });
        }
        let whole = last.slice(1, 0, 1)?.reshape([last.dim(0), self.config.width])?;
        let whole = norm(lease, weights::LAST_NORM, &whole)?;
        Ok(Features { embeds: project(lease, &whole)?, last, penultimate, projected, earlier: None })
    }
}

/// Into the space that CLIP shares with text, if the file has the way there. OpenCLIP keeps the matrix with its rows for the
/// inputs.
fn project(lease: &Lease<'_>, whole: &Tensor) -> Result<Tensor> {
    if lease.has(weights::PROJECTION) {
        return Ok(lease.linear("visual_projection", whole)?);
    }
    match lease.find(weights::OPEN_PROJECTION)? {
        Some(matrix) => Ok(whole.matmul(&lease.lane().unpack(&matrix)?, 1.0)?),
        None => Ok(whole.clone()),
    }
}

impl Module for ClipVision {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, weights::FAMILY);
        weights::manifest(&claims, &self.config, self.names)
    }

    /// They were published in f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F16, DType::F32]
    }
}

impl VisionModel for ClipVision {
    fn rehearse(&self, session: &Session) -> Result<()> {
        let side = self.config.side;
        let seen = self.look(session, &arrived(session.lane()?, [1, COLOURS, side, side])?)?;
        let all = [Some(&seen.last), Some(&seen.penultimate), Some(&seen.embeds), seen.projected.as_ref()];
        all.into_iter().flatten().chain(seen.earlier.iter().flatten()).try_for_each(read_back)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
