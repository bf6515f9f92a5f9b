//! What the rest of the program asks of Kandinsky 5: how its files are recognised, its texts, its workflow and its released
//! sizes.

use std::borrow::Cow;

use meta::Shape;

use super::Kandinsky5;
use super::text::{IMAGE_TEXT, TEXT};
use crate::detect::{Neighbours, Role, Sign};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Kandinsky 5.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: super::config::FAMILY,
    variants: "Kandinsky 5 (text and image to video, text to image)",
    key: "kandinsky5",
    signs: &[Sign::native("visual_transformer_blocks.0.cross_attention.key_norm.weight", named)],
    read: |checkpoint, part| Ok(Box::new(Kandinsky5::read(checkpoint, part)?)),
    text: &[&TEXT, &IMAGE_TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Kandinsky 5 Lite",
        tensors: |most_blocks| tensors(&LITE, most_blocks),
        pixels: 512,
        encoders: &[("qwen25_7b", LITE.text), ("clip_l", POOLED_WIDTH)],
        tokens: TEXT_TOKENS,
        cfg: 5.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Kandinsky 5",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("qwen25_7b", SMALL.text), ("clip_l", POOLED_WIDTH)],
        tokens: TEXT_TOKENS,
        cfg: 5.0,
    },
};

/// The pooled text's width, which is that of CLIP-L.
const POOLED_WIDTH: usize = 768;
/// Tokens of a long prompt.
const TEXT_TOKENS: usize = 256;

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile {
            what: "the diffusion model",
            is_it: |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            flag: "--model",
            names: "kandinsky5lite_t2v_sft_5s.safetensors or a .gguf of it",
            folder: "diffusion_models",
            is_needed: true,
        },
        WorkflowFile {
            what: "the Qwen2.5-VL text encoder",
            is_it: |part| part.role == Role::Text && part.name.starts_with("Qwen2.5"),
            flag: "--qwen",
            names: "qwen_2.5_vl_7b.safetensors, qwen_2.5_vl_7b_fp8_scaled.safetensors or a .gguf",
            folder: "text_encoders",
            is_needed: true,
        },
        WorkflowFile {
            what: "the CLIP-L text encoder",
            is_it: |part| part.role == Role::Text && part.name == "CLIP-L",
            flag: "--clip-l",
            names: "clip_l.safetensors",
            folder: "text_encoders",
            is_needed: true,
        },
        WorkflowFile {
            what: "the autoencoder",
            is_it: |part| part.role == Role::Autoencoder && part.name == "HunyuanVideo",
            flag: "--vae",
            names: "hunyuan_video_vae_bf16.safetensors",
            folder: "vae",
            is_needed: true,
        },
    ],
    text: &TEXT,
    guidance: None,
    // A picture is a video of one frame.
    latent: "EmptyHunyuanLatentVideo",
    cfg: 5.0,
    sampler: "euler",
    scheduler: "simple",
    multiple: 16,
};

/// The variant by what its file has: channels of a picture and a mask beside those of the latent are a video's.
fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let width = |name: &str, axis: usize| found.dims(name).and_then(|dims| dims.get(axis)).copied();
    let shown = width("visual_embeddings.in_layer.weight", 1)?;
    let made = width("out_layer.out_layer.weight", 0)?;
    Some(Cow::Borrowed(if shown == made { "Kandinsky 5 image" } else { "Kandinsky 5 video" }))
}

/// The sizes of a released model.
struct Sizes {
    hidden: usize,
    time: usize,
    mlp: usize,
    text: usize,
    text_blocks: usize,
    blocks: usize,
}

const LITE: Sizes = Sizes { hidden: 1792, time: 512, mlp: 7168, text: 3584, text_blocks: 2, blocks: 32 };
const SMALL: Sizes = Sizes { hidden: 256, time: 128, mlp: 512, text: 256, text_blocks: 2, blocks: 8 };
/// Values per head of these models.
const HEAD: usize = 64;

/// The tensors of a model for videos; at most so many blocks of each kind.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { hidden, time, mlp, text, text_blocks, blocks } = *sizes;
    let mut all = Vec::new();
    let mut linear = |name: String, out: usize, from: usize, has_bias: bool| {
        all.push((format!("{name}.weight"), Shape::from([out, from])));
        if has_bias {
            all.push((format!("{name}.bias"), Shape::from([out])));
        }
    };
    linear("visual_embeddings.in_layer".to_owned(), hidden, 4 * 33, true);
    linear("time_embeddings.in_layer".to_owned(), time, hidden, true);
    linear("time_embeddings.out_layer".to_owned(), time, time, true);
    linear("text_embeddings.in_layer".to_owned(), hidden, text, true);
    linear("pooled_text_embeddings.in_layer".to_owned(), time, POOLED_WIDTH, true);
    linear("out_layer.modulation.out_layer".to_owned(), 2 * hidden, time, true);
    linear("out_layer.out_layer".to_owned(), 4 * 16, hidden, true);
    let kinds = [("text", text_blocks, &["self_attention"][..]), ("visual", blocks, &ATTENTIONS[..])];
    let named = |kind: &str, i: usize, part: &str| format!("{kind}_transformer_blocks.{i}.{part}");
    for (kind, count, attentions) in kinds {
        for i in 0..count.min(most_blocks) {
            let parts = 3 * (attentions.len() + 1);
            linear(named(kind, i, &format!("{kind}_modulation.out_layer")), parts * hidden, time, true);
            for attention in attentions {
                for layer in ["to_query", "to_key", "to_value", "out_layer"] {
                    linear(named(kind, i, &format!("{attention}.{layer}")), hidden, hidden, true);
                }
            }
            linear(named(kind, i, "feed_forward.in_layer"), mlp, hidden, false);
            linear(named(kind, i, "feed_forward.out_layer"), hidden, mlp, false);
        }
    }
    for (name, width) in [("text_embeddings", hidden), ("pooled_text_embeddings", time)] {
        all.extend(["weight", "bias"].map(|part| (format!("{name}.norm.{part}"), Shape::from([width]))));
    }
    for (kind, count, attentions) in kinds {
        for (i, attention) in (0..count.min(most_blocks)).flat_map(|i| attentions.iter().map(move |a| (i, a)))
        {
            let norms = ["query_norm", "key_norm"];
            let norms = norms.map(|norm| named(kind, i, &format!("{attention}.{norm}.weight")));
            all.extend(norms.map(|name| (name, Shape::from([HEAD]))));
        }
    }
    all
}

/// The attentions of a block of the video.
const ATTENTIONS: [&str; 2] = ["self_attention", "cross_attention"];
