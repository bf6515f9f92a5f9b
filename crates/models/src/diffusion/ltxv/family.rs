//! What the rest of the program asks of LTX-Video: how its files are recognised, its texts, its workflow and its released
//! sizes.

use std::borrow::Cow;

use meta::Shape;

use super::Ltxv;
use super::text::TEXT;
use crate::detect::{Neighbours, Role, Sign};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// LTX-Video 0.9.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: super::config::FAMILY,
    variants: "LTX-Video 0.9 (2B and 13B: text and image to video, guides and keyframes)",
    key: "ltxv",
    signs: &[Sign::native("patchify_proj.weight", named)],
    read: |checkpoint, part| Ok(Box::new(Ltxv::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "LTX-Video 13B 0.9.7",
        tensors: |most_blocks| tensors(&LARGE, most_blocks),
        pixels: 1024,
        encoders: &[("t5xxl", TEXT_WIDTH)],
        tokens: TEXT_TOKENS,
        cfg: 3.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of LTX-Video",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 512,
        encoders: &[("t5xxl", TEXT_WIDTH)],
        tokens: TEXT_TOKENS,
        cfg: 3.0,
    },
};

/// The text's width, which is T5's.
const TEXT_WIDTH: usize = 4096;
/// Tokens that a prompt is filled up to.
const TEXT_TOKENS: usize = 128;

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "checkpoints",
            "ltx-video-2b-v0.9.5.safetensors, ltxv-13b-0.9.7-dev.safetensors or a .gguf of them",
        ),
        WorkflowFile::text(
            "the T5 text encoder",
            "--t5",
            |part| part.role == Role::Text && part.name.starts_with("T5"),
            "t5xxl_fp16.safetensors, t5xxl_fp8_e4m3fn_scaled.safetensors or a .gguf",
        ),
        WorkflowFile::autoencoder(
            |part| part.role == Role::Autoencoder && part.name == FAMILY.name,
            "the checkpoint itself, which has it inside",
        ),
    ],
    text: &TEXT,
    guidance: None,
    // A picture is a video of one frame.
    latent: "EmptyLTXVLatentVideo",
    cfg: 3.0,
    sampler: "euler",
    scheduler: "normal",
    multiple: 32,
};

fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    // Later models make sound, too.
    let is_it = found.has("adaln_single.linear.weight") && !found.has("audio_patchify_proj.weight");
    is_it.then_some(Cow::Borrowed(FAMILY.name))
}

/// The sizes of a released model.
struct Sizes {
    hidden: usize,
    blocks: usize,
}

const LARGE: Sizes = Sizes { hidden: 4096, blocks: 48 };
const SMALL: Sizes = Sizes { hidden: 512, blocks: 8 };

/// The tensors of a model; at most so many blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { hidden, blocks } = *sizes;
    let mut all = vec![("scale_shift_table".to_owned(), Shape::from([2, hidden]))];
    let mut linear = |name: String, out: usize, from: usize| {
        all.push((format!("{name}.weight"), Shape::from([out, from])));
        all.push((format!("{name}.bias"), Shape::from([out])));
    };
    linear("patchify_proj".to_owned(), hidden, 128);
    linear("proj_out".to_owned(), 128, hidden);
    for (name, width) in [("adaln_single.emb.timestep_embedder", 256), ("caption_projection", TEXT_WIDTH)] {
        linear(format!("{name}.linear_1"), hidden, width);
        linear(format!("{name}.linear_2"), hidden, hidden);
    }
    linear("adaln_single.linear".to_owned(), 6 * hidden, hidden);
    let blocks = blocks.min(most_blocks);
    for block in 0..blocks {
        for part in ["attn1", "attn2"] {
            for layer in ["to_q", "to_k", "to_v", "to_out.0"] {
                linear(format!("transformer_blocks.{block}.{part}.{layer}"), hidden, hidden);
            }
        }
        linear(format!("transformer_blocks.{block}.ff.net.0.proj"), 4 * hidden, hidden);
        linear(format!("transformer_blocks.{block}.ff.net.2"), hidden, 4 * hidden);
    }
    for block in 0..blocks {
        let name = |part: &str| format!("transformer_blocks.{block}.{part}");
        all.push((name("scale_shift_table"), Shape::from([6, hidden])));
        for norm in ["attn1.q_norm", "attn1.k_norm", "attn2.q_norm", "attn2.k_norm"] {
            all.push((name(&format!("{norm}.weight")), Shape::from([hidden])));
        }
    }
    all
}
