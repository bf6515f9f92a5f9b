//! GLIGEN for Stable Diffusion 1.x: what is to be where.

use std::borrow::Cow;

use super::family::{FAMILY, KIND};
use crate::detect::Sign;
use crate::diffusion::model_patches::PatchFamily;
use crate::diffusion::unet::GroundingNetwork;

/// Values of the texts that it is told.
const TEXT_WIDTH: usize = 768;

/// GLIGEN for texts in boxes.
pub const GROUNDING: PatchFamily = PatchFamily {
    name: "GLIGEN for Stable Diffusion 1.5",
    signs: &[Sign::native("position_net.null_positive_feature", |found| {
        (found.dim(0) == Some(TEXT_WIDTH)).then_some(Cow::Borrowed("GLIGEN for Stable Diffusion 1.5"))
    })],
    read: |checkpoint, part| {
        let grounds = (GROUNDING.name, &[FAMILY.name] as &[&str]);
        Ok(Box::new(GroundingNetwork::read(checkpoint, part, grounds, KIND.heads)?))
    },
};
