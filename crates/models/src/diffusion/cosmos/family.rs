//! What the rest of the program asks of Cosmos Predict 2: how its files are recognised, its texts, its workflow and its
//! released sizes.

use std::borrow::Cow;

use meta::Shape;

use super::Cosmos;
use super::text::TEXT;
use crate::detect::{Neighbours, Role, Sign};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Cosmos Predict 2.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: super::config::FAMILY,
    variants: "Cosmos Predict 2 (text to image, image and video to video)",
    key: "cosmos",
    signs: &[Sign::native("blocks.0.mlp.layer1.weight", named)],
    read: |checkpoint, part| Ok(Box::new(Cosmos::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Cosmos Predict 2 2B text to image",
        tensors: |most_blocks| tensors(&SMALLER, most_blocks),
        pixels: 1024,
        encoders: &[("t5xxl_old", TEXT_WIDTH)],
        tokens: TEXT_TOKENS,
        cfg: 4.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Cosmos Predict 2",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("t5xxl_old", TEXT_WIDTH)],
        tokens: TEXT_TOKENS,
        cfg: 4.0,
    },
};

/// The text's width, which is that of the first T5-XXL.
const TEXT_WIDTH: usize = 1024;
/// Tokens that a prompt is filled up to.
const TEXT_TOKENS: usize = 512;

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile {
            what: "the diffusion model",
            is_it: |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            flag: "--model",
            names: "cosmos_predict2_2B_t2i.safetensors, cosmos_predict2_14B_t2i.safetensors or a .gguf of them",
            folder: "diffusion_models",
            is_needed: true,
        },
        WorkflowFile {
            what: "the first T5 text encoder",
            is_it: |part| part.role == Role::Text && part.name.starts_with("T5 of width 1024"),
            flag: "--t5",
            names: "oldt5_xxl_fp8_e4m3fn_scaled.safetensors or oldt5_xxl_fp16.safetensors",
            folder: "text_encoders",
            is_needed: true,
        },
        WorkflowFile {
            what: "the autoencoder",
            is_it: |part| part.role == Role::Autoencoder && part.name == "Wan 2.1",
            flag: "--vae",
            names: "wan_2.1_vae.safetensors",
            folder: "vae",
            is_needed: true,
        },
    ],
    text: &TEXT,
    guidance: None,
    latent: "EmptySD3LatentImage",
    cfg: 4.0,
    sampler: "euler",
    scheduler: "simple",
    multiple: 16,
};

/// The variant by what its file has; none of those that read texts by a model inside of it, which cannot be read yet.
fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let width = |name: &str, axis: usize| found.dims(name).and_then(|dims| dims.get(axis)).copied();
    let shown = width("x_embedder.proj.1.weight", 1)?;
    let made = width("final_layer.linear.weight", 0)?;
    if found.has("llm_adapter.blocks.0.cross_attn.q_proj.weight") {
        return None;
    }
    let is_of_pictures = shown == made + 4;
    Some(Cow::Borrowed(if is_of_pictures {
        "Cosmos Predict 2 text to image"
    } else {
        "Cosmos Predict 2 video"
    }))
}

/// The sizes of a released model.
struct Sizes {
    hidden: usize,
    narrow: usize,
    blocks: usize,
}

const SMALLER: Sizes = Sizes { hidden: 2048, narrow: 256, blocks: 28 };
const SMALL: Sizes = Sizes { hidden: 256, narrow: 64, blocks: 8 };
/// Values per head of all models.
const HEAD: usize = 128;

/// The tensors of a model for pictures; at most so many blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { hidden, narrow, blocks } = *sizes;
    let mut all = vec![("t_embedding_norm.weight".to_owned(), Shape::from([hidden]))];
    let mut linear = |name: String, out: usize, from: usize| {
        all.push((format!("{name}.weight"), Shape::from([out, from])));
    };
    linear("x_embedder.proj.1".to_owned(), hidden, 4 * 17);
    linear("t_embedder.1.linear_1".to_owned(), hidden, hidden);
    linear("t_embedder.1.linear_2".to_owned(), 3 * hidden, hidden);
    linear("final_layer.linear".to_owned(), 4 * 16, hidden);
    linear("final_layer.adaln_modulation.1".to_owned(), narrow, hidden);
    linear("final_layer.adaln_modulation.2".to_owned(), 2 * hidden, narrow);
    let blocks = blocks.min(most_blocks);
    for block in 0..blocks {
        let name = |part: &str| format!("blocks.{block}.{part}");
        for (attention, width) in [("self_attn", hidden), ("cross_attn", TEXT_WIDTH)] {
            linear(name(&format!("{attention}.q_proj")), hidden, hidden);
            linear(name(&format!("{attention}.k_proj")), hidden, width);
            linear(name(&format!("{attention}.v_proj")), hidden, width);
            linear(name(&format!("{attention}.output_proj")), hidden, hidden);
        }
        for part in ["self_attn", "cross_attn", "mlp"] {
            linear(name(&format!("adaln_modulation_{part}.1")), narrow, hidden);
            linear(name(&format!("adaln_modulation_{part}.2")), 3 * hidden, narrow);
        }
        linear(name("mlp.layer1"), 4 * hidden, hidden);
        linear(name("mlp.layer2"), hidden, 4 * hidden);
    }
    for block in 0..blocks {
        for norm in ["self_attn.q_norm", "self_attn.k_norm", "cross_attn.q_norm", "cross_attn.k_norm"] {
            all.push((format!("blocks.{block}.{norm}.weight"), Shape::from([HEAD])));
        }
    }
    all
}
