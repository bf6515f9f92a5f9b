//! What the rest of the program asks of Z-Image and Lumina 2: how their files are recognised, their texts, their workflow
//! and their released sizes.

use std::borrow::Cow;

use meta::Shape;

use super::ZImage;
use super::text::{GEMMA3_TEXT, QWEN_TEXT, TEXT};
use crate::detect::{Layout, Neighbours, Role, Sign};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Z-Image and Lumina 2.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: super::config::FAMILY,
    variants: "Z-Image and Z-Image turbo, Lumina Image 2",
    key: "z_image",
    signs: &[
        Sign::native("noise_refiner.0.attention.qkv.weight", named),
        Sign {
            tensor: "noise_refiner.0.attention.to_q.weight",
            layout: Layout::Diffusers,
            name: |found| found.has("all_x_embedder.2-1.weight").then_some(Cow::Borrowed("Z-Image")),
        },
    ],
    read: |checkpoint, part| Ok(Box::new(ZImage::read(checkpoint, part)?)),
    text: &[&QWEN_TEXT, &TEXT, &GEMMA3_TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Z-Image",
        tensors: |most_blocks| tensors(&RELEASED, most_blocks),
        pixels: 1024,
        encoders: &[("qwen3_4b", 2560)],
        tokens: 128,
        cfg: 1.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Z-Image",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("qwen3_4b", 128)],
        tokens: 64,
        cfg: 1.0,
    },
};

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "diffusion_models",
            "z_image_turbo_bf16.safetensors, z_image_bf16.safetensors or a .gguf of them",
        ),
        WorkflowFile::text(
            "the Qwen3 text encoder",
            "--qwen3",
            |part| part.role == Role::Text && part.name.starts_with("Qwen3"),
            "qwen_3_4b.safetensors",
        ),
        WorkflowFile::autoencoder(
            |part| part.role == Role::Autoencoder && part.name == "KL, 16 channels",
            "ae.safetensors",
        ),
    ],
    text: &QWEN_TEXT,
    guidance: None,
    latent: "EmptySD3LatentImage",
    cfg: 1.0,
    sampler: "euler",
    scheduler: "simple",
    multiple: 16,
};

/// The generation by its modulation.
fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let is_z_image = found.has("layers.0.adaLN_modulation.0.weight");
    Some(Cow::Borrowed(if is_z_image { "Z-Image" } else { "Lumina 2" }))
}

/// The sizes of a released model.
struct Sizes {
    hidden: usize,
    head: usize,
    mlp: usize,
    context: usize,
    layers: usize,
}

const RELEASED: Sizes = Sizes { hidden: 3840, head: 128, mlp: 10_240, context: 2560, layers: 30 };
const SMALL: Sizes = Sizes { hidden: 256, head: 64, mlp: 704, context: 128, layers: 4 };

/// Blocks of each kind of refiner in every released model.
const REFINERS: usize = 2;
/// Values of the embedded time.
const TIME: usize = 256;

/// The tensors of a model; of each kind at most so many blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { hidden, head, mlp, context, layers } = *sizes;
    let mut all = vec![
        ("x_pad_token".to_owned(), Shape::from([1, hidden])),
        ("cap_pad_token".to_owned(), Shape::from([1, hidden])),
        ("cap_embedder.0.weight".to_owned(), Shape::from([context])),
    ];
    let mut linear = |name: String, out: usize, from: usize, has_bias: bool| {
        all.push((format!("{name}.weight"), Shape::from([out, from])));
        if has_bias {
            all.push((format!("{name}.bias"), Shape::from([out])));
        }
    };
    linear("x_embedder".to_owned(), hidden, 64, true);
    linear("cap_embedder.1".to_owned(), hidden, context, true);
    linear("t_embedder.mlp.0".to_owned(), 1024.min(hidden), 256, true);
    linear("t_embedder.mlp.2".to_owned(), TIME, 1024.min(hidden), true);
    let stacks = [("context_refiner", REFINERS), ("noise_refiner", REFINERS), ("layers", layers)];
    let blocks = || {
        let numbers = |(stack, count): (&'static str, usize)| {
            (0..count.min(most_blocks)).map(move |i| format!("{stack}.{i}"))
        };
        stacks.into_iter().flat_map(numbers)
    };
    for block in blocks() {
        if !block.starts_with("context") {
            linear(format!("{block}.adaLN_modulation.0"), 4 * hidden, TIME, true);
        }
        linear(format!("{block}.attention.qkv"), 3 * hidden, hidden, false);
        linear(format!("{block}.attention.out"), hidden, hidden, false);
        linear(format!("{block}.feed_forward.w1"), mlp, hidden, false);
        linear(format!("{block}.feed_forward.w2"), hidden, mlp, false);
        linear(format!("{block}.feed_forward.w3"), mlp, hidden, false);
    }
    linear("final_layer.adaLN_modulation.1".to_owned(), hidden, TIME, true);
    linear("final_layer.linear".to_owned(), 64, hidden, true);
    let norms = blocks().flat_map(|block| {
        [
            ("attention.q_norm", head),
            ("attention.k_norm", head),
            ("attention_norm1", hidden),
            ("attention_norm2", hidden),
            ("ffn_norm1", hidden),
            ("ffn_norm2", hidden),
        ]
        .map(|(norm, width)| (format!("{block}.{norm}.weight"), Shape::from([width])))
    });
    all.extend(norms);
    all
}
