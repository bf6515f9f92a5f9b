//! Redux: what a SigLIP tower sees of a picture, turned into tokens that stand behind those of a text. Two layers; names are
//! those of the published file (`redux_up`, `redux_down`).

use std::any::Any;
use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Manifest, Session};
use tensor::{Activation, Tensor};

use super::{VisionFamily, VisionModel};
use crate::claims::Claims;
use crate::detect::{Detected, Part, Reader, Role, Sign};
use crate::rehearsal::{arrived, read_back};
use crate::{Error, Module, Result};

/// What errors call a file that should have this model.
const WANTED: &str = "a style model";
/// Tokens of the tower that it was trained with.
const USUAL_TOKENS: usize = 729;

/// The family.
pub const FAMILY: VisionFamily = VisionFamily {
    name: "Redux",
    signs: &[Sign::native("redux_up.weight", |_| Some(Cow::Borrowed("Redux")))],
    read: |checkpoint, part| Ok(Box::new(Redux::read(checkpoint, part)?)),
};

/// A Redux model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Redux {
    /// Values per token of what it reads.
    pub features: usize,
    inner: usize,
    /// Values per token of what it gives.
    pub width: usize,
    prefix: String,
}

impl Redux {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Redux> {
        let claims = Claims::new(checkpoint, &part.prefix, FAMILY.name);
        let [inner, features] = claims.dims("redux_up.weight")?;
        let [width, _] = claims.dims("redux_down.weight")?;
        Ok(Redux { features, inner, width, prefix: part.prefix.clone() })
    }

    /// The part of a file that is such a model, or an error that says what the file is instead.
    pub fn part(detected: &Detected) -> Result<&Part> {
        let mut parts = detected.parts_for(Role::Vision);
        let found = parts.find(|part| part.reader == Some(Reader::Vision(&FAMILY)));
        found.ok_or_else(|| detected.wrong_kind(WANTED))
    }

    /// Tokens `[batch, tokens, width]` for what a tower saw, `[batch, tokens, features]`.
    pub fn tokens(&self, session: &Session, seen: &Tensor) -> Result<Tensor> {
        if seen.rank() != 3 || seen.dim(2) != self.features {
            return Err(Error::Input {
                what: "what the style model is to read",
                expected: format!(
                    "[batch, tokens, {}], as the vision model gives it that it was trained with",
                    self.features
                ),
                got: format!("of shape {}", seen.shape()),
            });
        }
        let lease = session.lease(0)?;
        let inner = lease.linear_then("redux_up", &lease.bring(seen)?, Some(Activation::Silu))?;
        Ok(lease.linear("redux_down", &inner)?)
    }
}

impl Module for Redux {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, FAMILY.name);
        let mut weights = claims.layer("redux_up", &[self.inner, self.features])?;
        weights.extend(claims.layer("redux_down", &[self.width, self.inner])?);
        Ok(Manifest::builder(claims.file(), FAMILY.name).block("redux", false, weights).finish()?)
    }

    /// It was published in bf16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F16, DType::F32]
    }
}

impl VisionModel for Redux {
    fn rehearse(&self, session: &Session) -> Result<()> {
        let seen = arrived(session.lane()?, [1, USUAL_TOKENS, self.features])?;
        read_back(&self.tokens(session, &seen)?)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
