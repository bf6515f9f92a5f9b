//! What the rest of the program asks of Stable Video Diffusion: how its files are recognised, what it is told, and its
//! released sizes.

use std::borrow::Cow;

use checkpoint::Checkpoint;
use sampling::{ModelSampling, Parameterization};

use crate::Result;
use crate::conditioning::{CondInput, Conditioned, Scene};
use crate::detect::{Neighbours, Part, Role, Sign};
use crate::diffusion::modulation::{TIME_VALUES, waves};
use crate::diffusion::unet::{self, FOUR_CHANNELS, Heads, Kind, Sizes, Traits, Unet};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::text::{TextRecipe, all};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Stable Video Diffusion.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: "Stable Video Diffusion",
    variants: "Stable Video Diffusion, 14 and 25 frames",
    key: "svd",
    signs: &[Sign::native(unet::NATIVE, named)],
    read: |checkpoint, part| Ok(Box::new(read(checkpoint, part)?)),
    text: &[],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Stable Video Diffusion",
        tensors: |most_blocks| unet::tensors(&RELEASED, most_blocks),
        pixels: 576,
        encoders: &[],
        tokens: 1,
        cfg: 2.5,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Stable Video Diffusion",
        tensors: |most_blocks| unet::tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[],
        tokens: 1,
        cfg: 2.5,
    },
};

/// Reads the sizes of a model from a part of a file.
pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Unet> {
    Unet::read(checkpoint, part, &KIND)
}

const KIND: Kind = Kind {
    family: "Stable Video Diffusion",
    latent: &FOUR_CHANNELS,
    heads: Heads::Size(64),
    sampling: |_, _| ModelSampling::continuous_edm(Parameterization::V, (0.002, 700.0), 1.0),
    vector,
    takes: [&[CondInput::Motion], &[CondInput::ConcatLatent, CondInput::Motion], &[CondInput::Motion]],
};

/// Three numbers as waves: frames of a second, which are counted from zero, how much moves, and the noise of the picture.
fn vector(conditioned: &Conditioned<'_>, _: &Scene<'_>, width: usize) -> Result<Vec<f32>> {
    let motion = conditioned.cond.motion.unwrap_or_default();
    let numbers = [motion.frames_per_second - 1.0, motion.amount, motion.augmentation];
    let mut told: Vec<f32> = numbers.iter().flat_map(|number| waves(*number, TIME_VALUES)).collect();
    told.resize(width, 0.0);
    Ok(told)
}

/// It is told no text.
const TEXT: TextRecipe = TextRecipe {
    name: "svd",
    encoders: &[],
    has_mask: false,
    join: |encoded| {
        let [only] = all(encoded)?;
        Ok(only)
    },
};

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[WorkflowFile {
        what: "the diffusion model",
        is_it: |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
        flag: "--model",
        names: "svd.safetensors or svd_xt.safetensors",
        folder: "checkpoints",
        is_needed: true,
    }],
    text: &TEXT,
    guidance: None,
    latent: "EmptyLatentImage",
    cfg: 2.5,
    sampler: "euler",
    scheduler: "karras",
    multiple: 8,
};

fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let traits = Traits::of(found)?;
    let told = 3 * TIME_VALUES;
    let is_it = traits.has_frames && (traits.channels, traits.vector) == (8, Some(told));
    is_it.then_some(Cow::Borrowed("SVD"))
}

const RELEASED: Sizes = Sizes {
    channels: 320,
    levels: &[1, 2, 4, 4],
    depths: &[1, 1, 1, 0],
    middle_depth: 1,
    context: 1024,
    vector: 768,
    convolved: false,
    taken: 8,
    has_frames: true,
};

const SMALL: Sizes = Sizes { channels: 64, ..RELEASED };
