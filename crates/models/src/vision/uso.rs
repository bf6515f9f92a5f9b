//! USO's projector: what a SigLIP tower sees of a picture, deep and less deep, turned into tokens that stand before those of
//! a text in FLUX.1's width. For each of three layers the tower's tokens are mixed into a few, normalised and projected.
//! Names are those of the published file (`feature_embedder.high_embedding_linear.0`).
//!
//! ```text
//! Features: penultimate ── high ─┐
//!           middle      ── mid  ─┼── tokens [batch, 3 · few, width]
//!           early       ── low  ─┘
//! ```

use std::any::Any;
use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session};
use tensor::{Activation, Tensor};

use super::{VisionFamily, VisionModel};
use crate::claims::Claims;
use crate::clip_layers::norm;
use crate::detect::{Detected, Part, Reader, Role, Sign};
use crate::rehearsal::{arrived, read_back};
use crate::{Error, Module, Result};

/// What errors call a file that should have this model.
const WANTED: &str = "a style projector";
/// Layers that it looks at, by their names, the deepest first.
const LEVELS: [&str; 3] = ["high", "mid", "low"];

/// The family.
pub const FAMILY: VisionFamily = VisionFamily {
    name: "USO style projector",
    signs: &[Sign::native("feature_embedder.mid_layer_norm.bias", |_| {
        Some(Cow::Borrowed("USO style projector"))
    })],
    read: |checkpoint, part| Ok(Box::new(StyleProjector::read(checkpoint, part)?)),
};

/// A projector: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct StyleProjector {
    /// Tokens that the tower sees.
    pub seen: usize,
    /// Values per token of what the tower sees.
    pub features: usize,
    /// Tokens that each layer becomes.
    few: usize,
    /// Values per token of what it gives.
    pub width: usize,
    prefix: String,
}

/// What a tower saw, `[batch, tokens, features]` each.
#[derive(Clone, Copy, Debug)]
pub struct SeenAtLevels<'a> {
    /// Behind the last layer but one.
    pub penultimate: &'a Tensor,
    /// Behind the eleventh from the end.
    pub middle: &'a Tensor,
    /// Behind the twentieth from the end.
    pub early: &'a Tensor,
}

impl StyleProjector {
    /// Reads the projector's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<StyleProjector> {
        let claims = Claims::new(checkpoint, &part.prefix, FAMILY.name);
        let [few, seen] = claims.dims(&mixing("high", "weight"))?;
        let [width, features] = claims.dims("feature_embedder.high_projection.weight")?;
        Ok(StyleProjector { seen, features, few, width, prefix: part.prefix.clone() })
    }

    /// The part of a file that is such a projector, or an error that says what the file is instead.
    pub fn part(detected: &Detected) -> Result<&Part> {
        let mut parts = detected.parts_for(Role::Vision);
        let found = parts.find(|part| part.reader == Some(Reader::Vision(&FAMILY)));
        found.ok_or_else(|| detected.wrong_kind(WANTED))
    }

    /// Tokens `[batch, tokens, width]` for what a tower saw.
    pub fn tokens(&self, session: &Session, seen: SeenAtLevels<'_>) -> Result<Tensor> {
        let lease = session.lease(0)?;
        let levels = [seen.penultimate, seen.middle, seen.early];
        let level = |(level, seen): (&str, &Tensor)| self.level(&lease, level, seen);
        let all: Vec<Tensor> = LEVELS.into_iter().zip(levels).map(level).collect::<Result<_>>()?;
        Ok(Tensor::concat(&all.iter().collect::<Vec<_>>(), 1)?)
    }

    /// One layer's tokens as a few of the model's.
    fn level(&self, lease: &Lease<'_>, level: &str, seen: &Tensor) -> Result<Tensor> {
        if seen.rank() != 3 || seen.dims()[1..] != [self.seen, self.features] {
            return Err(Error::Input {
                what: "what the style projector is to read",
                expected: format!(
                    "[batch, {}, {}], as the vision model gives it that it was trained with (SigLIP 384)",
                    self.seen, self.features
                ),
                got: format!("of shape {}", seen.shape()),
            });
        }
        let across = lease.bring(seen)?.permute(&[0, 2, 1])?.contiguous()?;
        let mixed = lease.linear_then(&mixing_layer(level), &across, Some(Activation::Silu))?;
        let few = mixed.permute(&[0, 2, 1])?.contiguous()?;
        let few = norm(lease, &format!("feature_embedder.{level}_layer_norm"), &few)?;
        Ok(lease.linear(&format!("feature_embedder.{level}_projection"), &few)?)
    }
}

/// The layer that mixes a level's tokens into a few.
fn mixing_layer(level: &str) -> String {
    format!("feature_embedder.{level}_embedding_linear.0")
}

fn mixing(level: &str, what: &str) -> String {
    format!("{}.{what}", mixing_layer(level))
}

impl Module for StyleProjector {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, FAMILY.name);
        let mut weights = Vec::new();
        for level in LEVELS {
            weights.extend(claims.layer(&mixing_layer(level), &[self.few, self.seen])?);
            let norm = format!("feature_embedder.{level}_layer_norm");
            weights.push(claims.weight(&format!("{norm}.weight"), &[self.features])?);
            weights.push(claims.weight(&format!("{norm}.bias"), &[self.features])?);
            let projection = format!("feature_embedder.{level}_projection");
            weights.extend(claims.layer(&projection, &[self.width, self.features])?);
        }
        Ok(Manifest::builder(claims.file(), FAMILY.name).block("projector", false, weights).finish()?)
    }

    /// It was published in bf16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F16, DType::F32]
    }
}

impl VisionModel for StyleProjector {
    fn rehearse(&self, session: &Session) -> Result<()> {
        let seen = arrived(session.lane()?, [1, self.seen, self.features])?;
        let levels = SeenAtLevels { penultimate: &seen, middle: &seen, early: &seen };
        read_back(&self.tokens(session, levels)?)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
