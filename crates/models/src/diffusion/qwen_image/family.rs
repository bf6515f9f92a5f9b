//! What the rest of the program asks of Qwen-Image: how its files are recognised, its texts, its workflow and its released
//! sizes.

use std::borrow::Cow;

use meta::Shape;

use super::QwenImage;
use super::text::TEXT;
use crate::detect::{Neighbours, Role, Sign};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Qwen-Image.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: super::config::FAMILY,
    variants: "Qwen-Image, Qwen-Image-Edit (2509 and 2511), Qwen-Image-Layered",
    key: "qwen_image",
    signs: &[Sign::native("txt_norm.weight", named)],
    read: |checkpoint, part| Ok(Box::new(QwenImage::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Qwen-Image",
        tensors: |most_blocks| tensors(&RELEASED, most_blocks),
        pixels: 1024,
        encoders: &[("qwen25_7b", 3584)],
        tokens: 128,
        cfg: 2.5,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Qwen-Image",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("qwen25_7b", 128)],
        tokens: 64,
        cfg: 2.5,
    },
};

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "diffusion_models",
            "qwen_image_bf16.safetensors, qwen_image_fp8_e4m3fn.safetensors or a .gguf of them",
        ),
        WorkflowFile::text(
            "the Qwen2.5-VL text encoder",
            "--qwen25",
            |part| part.role == Role::Text && part.name.starts_with("Qwen2.5"),
            "qwen_2.5_vl_7b.safetensors, qwen_2.5_vl_7b_fp8_scaled.safetensors or a .gguf",
        ),
        WorkflowFile::autoencoder(
            |part| part.role == Role::Autoencoder && part.name.contains("2.1"),
            "qwen_image_vae.safetensors",
        ),
    ],
    text: &TEXT,
    guidance: None,
    latent: "EmptySD3LatentImage",
    cfg: 2.5,
    sampler: "euler",
    scheduler: "simple",
    multiple: 16,
};

/// The variant by the marks of its file. A control network has the same layers and its own behind them.
fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let has_blocks = found.has("transformer_blocks.0.attn.norm_added_k.weight");
    if !has_blocks || !found.has("proj_out.weight") || found.has("controlnet_blocks.0.weight") {
        return None;
    }
    let is_layered = found.has("time_text_embed.addition_t_embedding.weight");
    Some(Cow::Borrowed(match (is_layered, found.has("__index_timestep_zero__")) {
        (true, _) => "Qwen-Image-Layered",
        (false, true) => "Qwen-Image-Edit 2511",
        (false, false) => "Qwen-Image",
    }))
}

/// The sizes of a released model.
struct Sizes {
    hidden: usize,
    head: usize,
    context: usize,
    blocks: usize,
}

const RELEASED: Sizes = Sizes { hidden: 3072, head: 128, context: 3584, blocks: 60 };
const SMALL: Sizes = Sizes { hidden: 256, head: 64, context: 128, blocks: 6 };

/// The tensors of a model; at most so many blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { hidden, head, context, blocks } = *sizes;
    let mut all = vec![("txt_norm.weight".to_owned(), Shape::from([context]))];
    let mut linear = |name: String, out: usize, from: usize| {
        all.push((format!("{name}.weight"), Shape::from([out, from])));
        all.push((format!("{name}.bias"), Shape::from([out])));
    };
    linear("img_in".to_owned(), hidden, 64);
    linear("txt_in".to_owned(), hidden, context);
    linear("time_text_embed.timestep_embedder.linear_1".to_owned(), hidden, 256);
    linear("time_text_embed.timestep_embedder.linear_2".to_owned(), hidden, hidden);
    for block in 0..blocks.min(most_blocks) {
        let name = |part: &str| format!("transformer_blocks.{block}.{part}");
        for side in ["img", "txt"] {
            linear(name(&format!("{side}_mod.1")), 6 * hidden, hidden);
            linear(name(&format!("{side}_mlp.net.0.proj")), 4 * hidden, hidden);
            linear(name(&format!("{side}_mlp.net.2")), hidden, 4 * hidden);
        }
        let layers =
            ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"];
        for layer in layers {
            linear(name(&format!("attn.{layer}")), hidden, hidden);
        }
    }
    linear("norm_out.linear".to_owned(), 2 * hidden, hidden);
    linear("proj_out".to_owned(), 64, hidden);
    let norms = (0..blocks.min(most_blocks)).flat_map(|block| {
        ["norm_q", "norm_k", "norm_added_q", "norm_added_k"]
            .map(|norm| (format!("transformer_blocks.{block}.attn.{norm}.weight"), Shape::from([head])))
    });
    all.extend(norms);
    all
}
