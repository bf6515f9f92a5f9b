//! What the rest of the program asks of Stable Diffusion 1.x: how its files are recognised, its latents, its texts, its
//! workflow and its released sizes.

use std::borrow::Cow;

use checkpoint::Checkpoint;
use sampling::{ModelSampling, Parameterization};

use crate::Result;
use crate::conditioning::CondInput;
use crate::detect::{Layout, Neighbours, Part, Role, Sign};
use crate::diffusion::unet::{self, FOUR_CHANNELS, Heads, Kind, Sizes, Traits, Unet};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::text::{EncoderUse, Layer, TextRecipe, all};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Stable Diffusion 1.x.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: "Stable Diffusion 1.5",
    variants: "Stable Diffusion 1.x, inpainting and InstructPix2Pix",
    key: "sd15",
    signs: &[
        Sign::native(unet::NATIVE, named),
        Sign { tensor: unet::DIFFUSERS, layout: Layout::Diffusers, name: named },
    ],
    read: |checkpoint, part| Ok(Box::new(read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Stable Diffusion 1.5",
        tensors: |most_blocks| unet::tensors(&RELEASED, most_blocks),
        pixels: 512,
        encoders: &[("clip_l", 768)],
        tokens: 77,
        cfg: 7.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Stable Diffusion 1.5",
        tensors: |most_blocks| unet::tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("clip_l", 768)],
        tokens: 77,
        cfg: 7.0,
    },
};

/// Reads the sizes of a model from a part of a file.
pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Unet> {
    Unet::read(checkpoint, part, &KIND)
}

/// What it has of its own.
pub(super) const KIND: Kind = Kind {
    family: "Stable Diffusion 1.5",
    latent: &FOUR_CHANNELS,
    heads: Heads::Count(8),
    sampling: |_, _| ModelSampling::discrete(Parameterization::Eps, false),
    vector: |_, _, width| Ok(vec![0.0; width]),
    takes: [&[], &[CondInput::ConcatLatent], &[CondInput::ConcatLatent, CondInput::ConcatMask]],
};

/// CLIP-L's last layer.
const TEXT: TextRecipe = TextRecipe {
    name: "stable_diffusion",
    encoders: &[EncoderUse { unprojected: true, ..EncoderUse::clip("clip_l", Layer::Last) }],
    has_mask: false,
    join: |encoded| {
        let [clip_l] = all(encoded)?;
        Ok(clip_l)
    },
};

const WORKFLOW: StandardWorkflow = unet::workflow(
    &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "checkpoints",
            "v1-5-pruned-emaonly.safetensors",
        ),
        unet::clip_l("clip_l.safetensors"),
        unet::autoencoder("vae-ft-mse-840000-ema-pruned.safetensors"),
    ],
    &TEXT,
);

/// The variant by what stands beside the latent.
fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let traits = Traits::of(found)?;
    if traits.context != 768 || traits.vector.is_some() || traits.has_frames {
        return None;
    }
    traits.variant(["SD1.5", "SD1.5 InstructPix2Pix", "SD1.5 inpainting"])
}

const RELEASED: Sizes = Sizes::FOUR_LEVELS;

const SMALL: Sizes = Sizes { channels: 64, ..RELEASED };
