//! What the rest of the program asks of Chroma Radiance: how its files are recognised, its texts, its workflow and its
//! released sizes.

use std::borrow::Cow;

use crate::detect::{Neighbours, Role, Sign};
use crate::diffusion::chroma::{Chroma, RELEASED, SMALL, TEXT, paints_pixels, tensors_of_pixels};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Chroma Radiance.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: "Chroma Radiance",
    variants: "Chroma1-Radiance and its x0 variant",
    key: "chroma_radiance",
    signs: &[
        Sign::native("distilled_guidance_layer.norms.0.scale", named),
        Sign::native("distilled_guidance_layer.layers.0.in_layer.weight", named),
    ],
    read: |checkpoint, part| Ok(Box::new(Chroma::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Chroma1-Radiance",
        tensors: |most_blocks| tensors_of_pixels(&RELEASED, most_blocks),
        pixels: 1024,
        encoders: &[("t5xxl", 4096)],
        tokens: 256,
        cfg: 4.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Chroma Radiance",
        tensors: |most_blocks| tensors_of_pixels(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("t5xxl", 128)],
        tokens: 64,
        cfg: 4.0,
    },
};

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile {
            what: "the diffusion model",
            is_it: |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            flag: "--model",
            names: "Chroma1-Radiance-v0.4.safetensors or a .gguf of it",
            folder: "diffusion_models",
            is_needed: true,
        },
        WorkflowFile {
            what: "the T5 text encoder",
            is_it: |part| part.role == Role::Text && part.name.starts_with("T5"),
            flag: "--t5",
            names: "t5xxl_fp16.safetensors, t5xxl_fp8_e4m3fn.safetensors or a .gguf",
            folder: "text_encoders",
            is_needed: true,
        },
    ],
    text: &TEXT,
    guidance: None,
    latent: "EmptyChromaRadianceLatentImage",
    cfg: 4.0,
    sampler: "euler",
    scheduler: "beta",
    multiple: 16,
};

/// Files of Chroma with networks that paint pixels.
fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    paints_pixels(found).then_some(Cow::Borrowed("Chroma Radiance"))
}
