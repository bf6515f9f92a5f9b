//! What the rest of the program asks of FLUX.1: how its files are recognised, its latents, its texts, its workflow and its
//! released sizes.

use std::borrow::Cow;

use meta::Shape;

use super::Flux;
use crate::detect::{Layout, Neighbours, Part, Role, Sign};
use crate::diffusion::stream_weights::{ReleasedStreams, linear};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::text::{Encoded, EncoderUse, Layer, TextRecipe, all};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// FLUX.1.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: "FLUX.1",
    variants: "FLUX.1 dev, schnell, Fill, Canny, Depth and Kontext",
    key: "flux",
    signs: &[
        Sign::native("double_blocks.0.img_attn.norm.key_norm.scale", native),
        Sign::native("double_blocks.0.img_attn.qkv.weight", native),
        Sign::native("double_blocks.0.img_attn.norm.key_norm.weight", native),
        Sign {
            tensor: "transformer_blocks.0.attn.norm_added_k.weight",
            layout: Layout::Diffusers,
            name: of_diffusers,
        },
    ],
    read: |checkpoint, part| Ok(Box::new(Flux::of_part(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "FLUX.1 dev",
        tensors: |most_blocks| tensors(&DEV, most_blocks),
        pixels: 1024,
        encoders: &[("clip_l", 768), ("t5xxl", 4096)],
        tokens: 512,
        cfg: 1.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of FLUX.1",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("clip_l", 128), ("t5xxl", 128)],
        tokens: 256,
        cfg: 1.0,
    },
};

/// T5's tokens, and CLIP-L's pooled result (unprojected).
const TEXT: TextRecipe = TextRecipe {
    name: "flux",
    encoders: &[
        EncoderUse { unprojected: true, ..EncoderUse::clip("clip_l", Layer::Last) },
        EncoderUse::of_length("t5xxl", 256),
    ],
    has_mask: false,
    join: |encoded| {
        let [clip_l, t5] = all(encoded)?;
        Ok(Encoded { pooled: clip_l.pooled, ..t5 })
    },
};

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile {
            what: "the diffusion model",
            is_it: is_ours,
            flag: "--model",
            names: "flux1-dev.safetensors, flux1-schnell.safetensors or a .gguf of them",
            folder: "diffusion_models",
            is_needed: true,
        },
        WorkflowFile::text(
            "the CLIP-L text encoder",
            "--clip-l",
            |part| part.role == Role::Text && part.is_read_by("CLIP"),
            "clip_l.safetensors",
        ),
        WorkflowFile::text(
            "the T5 text encoder",
            "--t5",
            |part| part.role == Role::Text && part.name.starts_with("T5"),
            "t5xxl_fp16.safetensors, t5xxl_fp8_e4m3fn.safetensors or a .gguf",
        ),
        WorkflowFile::autoencoder(
            |part| part.role == Role::Autoencoder && part.name == "KL, 16 channels",
            "ae.safetensors",
        ),
    ],
    text: &TEXT,
    guidance: Some(("FluxGuidance", 3.5)),
    latent: "EmptySD3LatentImage",
    cfg: 1.0,
    sampler: "euler",
    scheduler: "simple",
    multiple: 16,
};

/// The variant by the columns of the first layer: a latent has 16 channels in patches of 2 x 2; further columns are images
/// beside it.
fn variant(columns: Option<usize>, has_guidance: bool) -> Cow<'static, str> {
    Cow::Borrowed(match columns {
        Some(128) => "FLUX.1 Canny or Depth",
        Some(384) => "FLUX.1 Fill",
        _ if has_guidance => "FLUX.1 dev",
        _ => "FLUX.1 schnell",
    })
}

/// Others that have the same blocks have their modulations elsewhere, or refine their texts.
fn native(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    if !found.has("double_blocks.0.img_mod.lin.weight") || found.has("txt_in.input_embedder.weight") {
        return None;
    }
    let columns = found.dims("img_in.weight").and_then(|dims| dims.get(1)).copied();
    Some(variant(columns, found.has("guidance_in.in_layer.weight")))
}

fn of_diffusers(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    if !found.has("single_transformer_blocks.0.attn.norm_k.weight") {
        return None;
    }
    let columns = found.dims("x_embedder.weight").and_then(|dims| dims.get(1)).copied();
    Some(variant(columns, found.has("time_text_embed.guidance_embedder.linear_1.weight")))
}

impl Flux {
    /// Whether it was distilled without guidance.
    pub(super) fn is_schnell(&self) -> bool {
        !self.config.guidance && !matches!(self.config.in_channels, 32 | 96)
    }
}

/// The sizes of a released model.
struct Sizes {
    streams: ReleasedStreams,
    context: usize,
    pooled: usize,
}

const DEV: Sizes = Sizes { streams: ReleasedStreams::FIRST, context: 4096, pooled: 768 };

const SMALL: Sizes = Sizes { streams: ReleasedStreams::SMALL, context: 128, pooled: 128 };

/// The tensors of a model with guidance, blocks one after the other as in published files; of each kind at most so many
/// blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let hidden = sizes.streams.hidden;
    let mut all = Vec::new();
    linear(&mut all, "img_in", [hidden, 64], true);
    for (name, width) in [("time_in", 256), ("vector_in", sizes.pooled), ("guidance_in", 256)] {
        linear(&mut all, &format!("{name}.in_layer"), [hidden, width], true);
        linear(&mut all, &format!("{name}.out_layer"), [hidden, hidden], true);
    }
    linear(&mut all, "txt_in", [hidden, sizes.context], true);
    sizes.streams.add_blocks(&mut all, most_blocks);
    linear(&mut all, "final_layer.linear", [64, hidden], true);
    linear(&mut all, "final_layer.adaLN_modulation.1", [2 * hidden, hidden], true);
    all
}

/// Whether a part is a diffusion model of this family.
fn is_ours(part: &Part) -> bool {
    part.role == Role::Diffusion && part.is_read_by(FAMILY.name)
}
