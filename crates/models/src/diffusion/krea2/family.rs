//! What the rest of the program asks of Krea 2: how its files are recognised, its texts, its workflow and its released
//! sizes.

use std::borrow::Cow;

use meta::Shape;

use super::Krea2;
use super::text::TEXT;
use crate::detect::{Role, Sign};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Krea 2.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: super::config::FAMILY,
    variants: "Krea 2 Raw and Turbo, with reference pictures",
    key: "krea2",
    // Raw and Turbo have the same tensors.
    signs: &[Sign::native("txtfusion.projector.weight", |found| {
        found.has("blocks.0.mod.lin").then_some(Cow::Borrowed("Krea 2"))
    })],
    read: |checkpoint, part| Ok(Box::new(Krea2::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Krea 2",
        tensors: |most_blocks| tensors(&RELEASED, most_blocks),
        pixels: 1024,
        encoders: &[("qwen3vl_4b", 2560)],
        tokens: 128,
        cfg: 1.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Krea 2",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("qwen3vl_4b", 128)],
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
            names: "krea2_turbo_fp8_scaled.safetensors, krea2_turbo_bf16.safetensors or the same of krea2_raw",
            folder: "diffusion_models",
            is_needed: true,
        },
        WorkflowFile {
            what: "the Qwen3-VL text encoder",
            is_it: |part| part.role == Role::Text && part.name.starts_with("Qwen3-VL"),
            flag: "--qwen3vl",
            names: "qwen3vl_4b_fp8_scaled.safetensors or qwen3vl_4b_bf16.safetensors",
            folder: "text_encoders",
            is_needed: true,
        },
        WorkflowFile {
            what: "the autoencoder",
            is_it: |part| part.role == Role::Autoencoder && part.name.contains("2.1"),
            flag: "--vae",
            names: "qwen_image_vae.safetensors",
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
    multiple: 16,
};

/// The sizes of a released model.
struct Sizes {
    hidden: usize,
    /// Heads of queries, and of keys and values.
    heads: [usize; 2],
    mlp: usize,
    text: usize,
    text_mlp: usize,
    blocks: usize,
}

const RELEASED: Sizes =
    Sizes { hidden: 6144, heads: [48, 12], mlp: 16_384, text: 2560, text_mlp: 6912, blocks: 28 };
const SMALL: Sizes = Sizes { hidden: 256, heads: [2, 1], mlp: 768, text: 128, text_mlp: 384, blocks: 4 };

/// Values per head, states of the text encoder, and blocks of each kind on the text's side, in every released model.
const HEAD: usize = 128;
const TAPS: usize = 12;
const TEXT_BLOCKS: usize = 2;

/// The tensors of a model; of each kind at most so many blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { hidden, heads: [heads, groups], mlp, text, text_mlp, blocks } = *sizes;
    let mut all = vec![
        ("txtfusion.projector.weight".to_owned(), Shape::from([1, TAPS])),
        ("txtmlp.0.scale".to_owned(), Shape::from([text])),
        ("last.norm.scale".to_owned(), Shape::from([hidden])),
        ("last.modulation.lin".to_owned(), Shape::from([2, hidden])),
    ];
    for (name, out, from) in [
        ("first", hidden, 64),
        ("tmlp.0", hidden, 256),
        ("tmlp.2", hidden, hidden),
        ("tproj.1", 6 * hidden, hidden),
        ("txtmlp.1", hidden, text),
        ("txtmlp.3", hidden, hidden),
        ("last.linear", 64, hidden),
    ] {
        all.push((format!("{name}.weight"), Shape::from([out, from])));
        all.push((format!("{name}.bias"), Shape::from([out])));
    }
    for stack in ["layerwise_blocks", "refiner_blocks"] {
        for i in 0..TEXT_BLOCKS.min(most_blocks) {
            let count = text / HEAD;
            add_block(&mut all, &format!("txtfusion.{stack}.{i}"), [text, count, count, text_mlp]);
        }
    }
    for i in 0..blocks.min(most_blocks) {
        all.push((format!("blocks.{i}.mod.lin"), Shape::from([6 * hidden])));
        add_block(&mut all, &format!("blocks.{i}"), [hidden, heads, groups, mlp]);
    }
    all
}

/// The tensors that blocks of both kinds have.
fn add_block(all: &mut Vec<(String, Shape)>, block: &str, [hidden, heads, groups, mlp]: [usize; 4]) {
    for (norm, width) in
        [("prenorm", hidden), ("postnorm", hidden), ("attn.qknorm.qnorm", HEAD), ("attn.qknorm.knorm", HEAD)]
    {
        all.push((format!("{block}.{norm}.scale"), Shape::from([width])));
    }
    let (queries, keys) = (heads * HEAD, groups * HEAD);
    for (layer, out, from) in [
        ("attn.wq", queries, hidden),
        ("attn.wk", keys, hidden),
        ("attn.wv", keys, hidden),
        ("attn.gate", queries, hidden),
        ("attn.wo", hidden, queries),
        ("mlp.gate", mlp, hidden),
        ("mlp.up", mlp, hidden),
        ("mlp.down", hidden, mlp),
    ] {
        all.push((format!("{block}.{layer}.weight"), Shape::from([out, from])));
    }
}
