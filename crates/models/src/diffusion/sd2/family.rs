//! What the rest of the program asks of Stable Diffusion 2.x: how its files are recognised, its texts, its workflow and its
//! released sizes.

use std::borrow::Cow;

use checkpoint::Checkpoint;
use sampling::{ModelSampling, Parameterization};

use super::unclip;
use crate::Result;
use crate::claims::Claims;
use crate::conditioning::CondInput;
use crate::detect::{Layout, Neighbours, Part, Role, Sign};
use crate::diffusion::unet::{self, Config, FOUR_CHANNELS, Heads, Kind, Sizes, Traits, Unet};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::text::{EncoderUse, Layer, TextRecipe, all};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Stable Diffusion 2.x.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: "Stable Diffusion 2",
    variants: "Stable Diffusion 2.0 and 2.1, base, 768, inpainting and unCLIP",
    key: "sd2",
    signs: &[
        Sign::native(unet::NATIVE, named),
        Sign { tensor: unet::DIFFUSERS, layout: Layout::Diffusers, name: named },
    ],
    read: |checkpoint, part| Ok(Box::new(read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: &[],
    released: ReleasedModel {
        name: "Stable Diffusion 2.1",
        tensors: |most_blocks| unet::tensors(&RELEASED, most_blocks),
        pixels: 768,
        encoders: &[("clip_h", 1024)],
        tokens: 77,
        cfg: 7.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Stable Diffusion 2.1",
        tensors: |most_blocks| unet::tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("clip_h", 1024)],
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
    family: "Stable Diffusion 2",
    latent: &FOUR_CHANNELS,
    heads: Heads::Size(64),
    sampling: |claims, config| ModelSampling::discrete(parameterization(claims, config), false),
    vector: unclip::vector,
    takes: [
        &[CondInput::SeenPictures],
        &[CondInput::ConcatLatent],
        &[CondInput::ConcatLatent, CondInput::ConcatMask],
    ],
};

/// A weight that tells what a model was trained to predict, which no name and no shape does, and the spread of its values
/// above which that is the velocity.
const TELLING: &str = "output_blocks.11.1.transformer_blocks.0.norm1.bias";
const SPREAD: f64 = 0.09;

/// What a model predicts. Inpainting models predict the noise.
fn parameterization(claims: &Claims<'_>, config: &Config) -> Parameterization {
    let values = claims.values(TELLING).filter(|values| !values.is_empty());
    match values {
        Some(values) if config.in_channels == FOUR_CHANNELS.channels && spread(&values) > SPREAD => {
            Parameterization::V
        }
        _ => Parameterization::Eps,
    }
}

/// The standard deviation of values.
fn spread(values: &[f32]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
    (values.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum::<f64>() / count).sqrt()
}

/// OpenCLIP-H's last layer but one, normalised.
const TEXT: TextRecipe = TextRecipe {
    name: "stable_diffusion",
    encoders: &[EncoderUse::clip("clip_h", Layer::Skip(2))],
    has_mask: false,
    join: |encoded| {
        let [clip_h] = all(encoded)?;
        Ok(clip_h)
    },
};

const WORKFLOW: StandardWorkflow = unet::workflow(
    &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "checkpoints",
            "v2-1_768-ema-pruned.safetensors or v2-1_512-ema-pruned.safetensors",
        ),
        WorkflowFile::text(
            "the OpenCLIP-H text encoder",
            "--clip-h",
            |part| part.role == Role::Text && part.name == "CLIP-H",
            "text_encoder/model.safetensors of a Stable Diffusion 2 repository",
        ),
        unet::autoencoder("vae-ft-mse-840000-ema-pruned.safetensors"),
    ],
    &TEXT,
);

/// The variant by what stands beside the latent.
fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let traits = Traits::of(found)?;
    if traits.context != 1024 || traits.has_frames {
        return None;
    }
    match traits.vector {
        None => traits.variant(["SD2", "SD2 InstructPix2Pix", "SD2 inpainting"]),
        Some(width) if unclip::WIDTHS.contains(&width) && traits.channels == 4 => {
            Some(Cow::Borrowed("SD2.1 unCLIP"))
        }
        Some(_) => None,
    }
}

const RELEASED: Sizes = Sizes { context: 1024, convolved: false, ..Sizes::FOUR_LEVELS };

const SMALL: Sizes = Sizes { channels: 64, ..RELEASED };
