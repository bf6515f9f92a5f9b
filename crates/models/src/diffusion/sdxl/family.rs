//! What the rest of the program asks of Stable Diffusion XL: how its files are recognised, its latents, its texts, its
//! workflow and its released sizes.

use std::borrow::Cow;

use checkpoint::Checkpoint;
use sampling::{LatentSpec, ModelSampling, Parameterization, Scaling};

use super::vector::{self, BASE_WIDTH, REFINER_WIDTH};
use crate::Result;
use crate::claims::Claims;
use crate::conditioning::CondInput::{self, ConcatLatent, ConcatMask};
use crate::detect::{Layout, Neighbours, Part, Role, Sign};
use crate::diffusion::unet::{self, Heads, Kind, Sizes, Traits, Unet};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::text::{Encoded, EncoderUse, Layer, TextRecipe, all, side_by_side};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Stable Diffusion XL.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: "Stable Diffusion XL",
    variants: "SDXL base, refiner, inpainting and InstructPix2Pix, SSD-1B, Segmind Vega",
    key: "sdxl",
    signs: &[
        Sign::native(unet::NATIVE, named),
        Sign { tensor: unet::DIFFUSERS, layout: Layout::Diffusers, name: named },
    ],
    read: |checkpoint, part| Ok(Box::new(read(checkpoint, part)?)),
    text: &[&TEXT, &REFINER_TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Stable Diffusion XL",
        tensors: |most_blocks| unet::tensors(&RELEASED, most_blocks),
        pixels: 1024,
        encoders: &[("clip_l", 768), ("clip_g", 1280)],
        tokens: 77,
        cfg: 7.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Stable Diffusion XL",
        tensors: |most_blocks| unet::tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("clip_l", 768), ("clip_g", 1280)],
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
    family: "Stable Diffusion XL",
    latent: &LATENT,
    heads: Heads::Size(64),
    sampling: |claims, _| sampling(claims),
    vector: vector::of,
    takes: [
        &[CondInput::Sizes],
        &[ConcatLatent, CondInput::Sizes],
        &[ConcatLatent, ConcatMask, CondInput::Sizes],
    ],
};

/// How a model reads noise. Tensors that no layer has tell that it was trained in another way.
fn sampling(claims: &Claims<'_>) -> ModelSampling {
    if let Some(high) = claims.number("edm_vpred.sigma_max") {
        let low = claims.number("edm_vpred.sigma_min").unwrap_or(0.002);
        return ModelSampling::continuous_edm(Parameterization::V, (low, high), 1.0);
    }
    if claims.is_marked("v_pred") {
        return ModelSampling::discrete(Parameterization::V, claims.is_marked("ztsnr"));
    }
    ModelSampling::discrete(Parameterization::Eps, false)
}

/// Its latents. Colours are fitted by the community to decoded pictures.
pub const LATENT: LatentSpec = LatentSpec {
    name: "SDXL",
    channels: 4,
    scaling: Scaling::Uniform { scale: 0.13025, shift: 0.0 },
    pixels_per_value: 8,
    frames_per_value: None,
    colours: &[
        [0.3651, 0.4232, 0.4341],
        [-0.2533, -0.0042, 0.1068],
        [0.1076, 0.1111, -0.0362],
        [-0.3165, -0.2492, -0.2188],
    ],
    background: [0.1084, -0.0175, -0.0011],
};

/// CLIP-L's and CLIP-G's tokens side by side, and CLIP-G's pooled result.
const TEXT: TextRecipe = TextRecipe {
    name: "sdxl",
    encoders: &[
        EncoderUse { unprojected: true, ..EncoderUse::clip("clip_l", Layer::SkipRaw(2)) },
        EncoderUse::clip("clip_g", Layer::SkipRaw(2)),
    ],
    has_mask: false,
    join: |encoded| {
        let [clip_l, clip_g] = all(encoded)?;
        let cond = side_by_side(&clip_l, &clip_g)?;
        let attention_mask = clip_l.attention_mask[..cond.dim(1)].to_vec();
        Ok(Encoded { cond, pooled: clip_g.pooled, attention_mask, second: None, slots: Vec::new() })
    },
};

/// The refiner is told CLIP-G's alone.
const REFINER_TEXT: TextRecipe = TextRecipe {
    name: "stable_diffusion",
    encoders: &[EncoderUse::clip("clip_g", Layer::SkipRaw(2))],
    has_mask: false,
    join: |encoded| {
        let [clip_g] = all(encoded)?;
        Ok(clip_g)
    },
};

const WORKFLOW: StandardWorkflow = unet::workflow(
    &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "checkpoints",
            "sd_xl_base_1.0.safetensors",
        ),
        unet::clip_l("clip_l.safetensors"),
        WorkflowFile::text(
            "the CLIP-G text encoder",
            "--clip-g",
            |part| part.role == Role::Text && part.name == "CLIP-G",
            "clip_g.safetensors",
        ),
        unet::autoencoder("sdxl_vae.safetensors"),
    ],
    &TEXT,
);

/// The variant by the vector beside the time, by the depth of its transformers and by what stands beside the latent.
fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let traits = Traits::of(found)?;
    if traits.has_frames {
        return None;
    }
    match (traits.context, traits.vector) {
        (1280, Some(REFINER_WIDTH)) => {
            traits.variant(["SDXL refiner", "SDXL refiner with a picture", "SDXL refiner inpainting"])
        }
        (2048, Some(BASE_WIDTH)) => traits.variant(match depth(found) {
            4 => ["SSD-1B", "SSD-1B InstructPix2Pix", "SSD-1B inpainting"],
            2 => ["Segmind Vega", "Segmind Vega InstructPix2Pix", "Segmind Vega inpainting"],
            _ => ["SDXL", "SDXL InstructPix2Pix", "SDXL inpainting"],
        }),
        _ => None,
    }
}

/// Blocks of the transformers at the lowest level.
fn depth(found: &Neighbours<'_>) -> usize {
    let has = |block: usize| {
        ["input_blocks.7.1", "down_blocks.2.attentions.0"]
            .iter()
            .any(|layer| found.has(&format!("{layer}.transformer_blocks.{block}.norm1.weight")))
    };
    (0..).take_while(|block| has(*block)).count()
}

const RELEASED: Sizes = Sizes {
    channels: 320,
    levels: &[1, 2, 4],
    depths: &[0, 2, 10],
    middle_depth: 10,
    context: 2048,
    vector: BASE_WIDTH,
    convolved: false,
    taken: 4,
    has_frames: false,
};

const SMALL: Sizes = Sizes { channels: 64, depths: &[0, 1, 2], middle_depth: 2, ..RELEASED };
