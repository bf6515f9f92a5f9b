//! What the rest of the program asks of Qwen-Image 2.1: how its files are recognised, its texts, its workflow and its
//! released sizes.

use std::borrow::Cow;

use meta::Shape;

use super::text::TEXT;
use super::{LATENT, QwenImage21};
use crate::detect::{Role, Sign};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Qwen-Image 2.1.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: super::config::FAMILY,
    variants: "Qwen-Image 2.1 and Turbo, with reference pictures",
    key: "qwen_image21",
    signs: &[Sign::native("txt_in.text_norm.weight", |found| {
        found.has("modulation.1.weight").then_some(Cow::Borrowed("Qwen-Image 2.1"))
    })],
    read: |checkpoint, part| Ok(Box::new(QwenImage21::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Qwen-Image 2.1",
        tensors: |most_blocks| tensors(&RELEASED, most_blocks),
        pixels: 1024,
        encoders: &[("qwen3vl_8b", 4096)],
        tokens: 128,
        cfg: 1.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Qwen-Image 2.1",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 256,
        encoders: &[("qwen3vl_8b", 128)],
        tokens: 64,
        cfg: 1.0,
    },
};

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile {
            what: "the diffusion model",
            is_it: |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            flag: "--model",
            names: "qwen_image_2.1_bf16.safetensors or qwen_image_2.1_int8_convrot.safetensors",
            folder: "diffusion_models",
            is_needed: true,
        },
        WorkflowFile {
            what: "the Qwen3-VL text encoder",
            is_it: |part| part.role == Role::Text && part.name.starts_with("Qwen3-VL"),
            flag: "--qwen3vl",
            names: "qwen3vl_8b_bf16.safetensors or qwen3vl_8b_int8_convrot.safetensors",
            folder: "text_encoders",
            is_needed: true,
        },
        WorkflowFile {
            what: "the autoencoder",
            is_it: |part| part.role == Role::Autoencoder && part.name == "RGBA, 64 channels",
            flag: "--vae",
            names: "qwen_image_2.1_vae_bf16.safetensors",
            folder: "vae",
            is_needed: true,
        },
    ],
    text: &TEXT,
    guidance: None,
    latent: "EmptyLatentImage",
    cfg: 1.0,
    sampler: "euler",
    scheduler: "simple",
    multiple: 32,
};

/// The sizes of a released model.
struct Sizes {
    hidden: usize,
    head: usize,
    context: usize,
    blocks: usize,
}

const RELEASED: Sizes = Sizes { hidden: 4096, head: 128, context: 4096, blocks: 32 };
const SMALL: Sizes = Sizes { hidden: 256, head: 64, context: 128, blocks: 4 };

/// The tensors of a model; at most so many blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { hidden, head, context, blocks } = *sizes;
    let mlp = 3 * hidden;
    let mut all = vec![("txt_in.text_norm.weight".to_owned(), Shape::from([context]))];
    let mut linear = |name: String, out: usize, from: usize| {
        all.push((format!("{name}.weight"), Shape::from([out, from])));
    };
    for (name, out, from) in [
        ("txt_in.in_layer", hidden, context),
        ("txt_in.out_layer", hidden, hidden),
        ("img_in", hidden, LATENT.channels),
        ("time_text_embed.timestep_embedder.linear_1", hidden, 256),
        ("time_text_embed.timestep_embedder.linear_2", hidden, hidden),
        ("modulation.1", 4 * hidden, hidden),
        ("norm_out.linear", hidden, hidden),
        ("proj_out", LATENT.channels, hidden),
    ] {
        linear(name.to_owned(), out, from);
    }
    for block in (0..blocks.min(most_blocks)).map(|i| format!("transformer_blocks.{i}")) {
        for layer in ["attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"] {
            linear(format!("{block}.{layer}"), hidden, hidden);
        }
        linear(format!("{block}.img_mlp.gate_up"), 2 * mlp, hidden);
        linear(format!("{block}.img_mlp.out"), hidden, mlp);
    }
    let norms = (0..blocks.min(most_blocks)).flat_map(|block| {
        ["norm_q", "norm_k"]
            .map(|norm| (format!("transformer_blocks.{block}.attn.{norm}.weight"), Shape::from([head])))
    });
    all.extend(norms);
    all
}
