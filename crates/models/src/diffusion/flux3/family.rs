//! What the rest of the program asks of FLUX.3: how its files are recognised, its texts, its workflow and its released
//! sizes.

use std::borrow::Cow;

use meta::Shape;

use super::text::TEXT;
use super::{Flux3, LATENT};
use crate::detect::{Role, Sign};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// FLUX.3.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: super::config::FAMILY,
    variants: "FLUX.3 klein and klein base, with reference pictures",
    key: "flux3",
    signs: &[Sign::native("early_stream_modulations.image.lin.weight", |found| {
        let jumps = found.has("ref_time_in.in_layer.weight");
        Some(Cow::Borrowed(if jumps { "FLUX.3 klein" } else { "FLUX.3 klein base" }))
    })],
    read: |checkpoint, part| Ok(Box::new(Flux3::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    // The names of the published files are not known for certain.
    downloads: &[],
    released: ReleasedModel {
        name: "FLUX.3 klein",
        tensors: |most_blocks| tensors(&KLEIN, most_blocks),
        pixels: 1024,
        encoders: &[("qwen3vl_4b", 2560)],
        tokens: 80,
        cfg: 1.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of FLUX.3",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 256,
        encoders: &[("qwen3vl_4b", 128)],
        tokens: 80,
        cfg: 1.0,
    },
};

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile {
            what: "the diffusion model",
            is_it: |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            flag: "--model",
            names: "the transformer of flux-3-image-klein or of its base, as one file",
            folder: "diffusion_models",
            is_needed: true,
        },
        WorkflowFile {
            what: "the Qwen3-VL text encoder",
            is_it: |part| part.role == Role::Text && part.name.starts_with("Qwen3-VL"),
            flag: "--qwen3vl",
            names: "qwen3vl_4b_bf16.safetensors or qwen3vl_4b_fp8_scaled.safetensors",
            folder: "text_encoders",
            is_needed: true,
        },
        WorkflowFile {
            what: "the autoencoder",
            is_it: |part| part.role == Role::Autoencoder && part.name == "KL, 32 channels in patches",
            flag: "--vae",
            names: "flux2-vae.safetensors",
            folder: "vae",
            is_needed: true,
        },
    ],
    text: &TEXT,
    guidance: None,
    latent: "EmptyFlux2LatentImage",
    cfg: 1.0,
    sampler: "euler",
    scheduler: "simple",
    multiple: 16,
};

/// The sizes of a released model.
struct Sizes {
    hidden: usize,
    head: usize,
    context: usize,
    mode_blocks: usize,
    joint_blocks: usize,
}

const KLEIN: Sizes = Sizes { hidden: 3072, head: 128, context: 20_480, mode_blocks: 5, joint_blocks: 28 };
const SMALL: Sizes = Sizes { hidden: 256, head: 64, context: 1024, mode_blocks: 1, joint_blocks: 4 };

/// The tensors of a distilled model; of each kind at most so many blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { hidden, head, context, mode_blocks, joint_blocks } = *sizes;
    let mlp = 3 * hidden;
    let mut all = Vec::new();
    let mut linear = |name: String, out: usize, from: usize| {
        all.push((format!("{name}.weight"), Shape::from([out, from])));
    };
    for (name, out, from) in [
        ("emb_in.image", hidden, LATENT.channels),
        ("emb_in.image_cond", hidden, LATENT.channels),
        ("txt_in", hidden, context),
        ("time_in.in_layer", hidden, 256),
        ("time_in.out_layer", hidden, hidden),
        ("ref_time_in.in_layer", hidden, 256),
        ("ref_time_in.out_layer", hidden, hidden),
        ("final_layer.image.linear", LATENT.channels, hidden),
        ("final_layer.image.adaLN_modulation.1", 2 * hidden, hidden),
    ] {
        linear(name.to_owned(), out, from);
    }
    for stage in ["early_stream_modulations", "single_stream_modulations"] {
        for mode in ["image", "image_cond", "txt"] {
            linear(format!("{stage}.{mode}.lin"), 3 * hidden, hidden);
        }
    }
    let stacks = [
        ("content_mode_blocks.image", mode_blocks),
        ("content_mode_blocks.image_cond", mode_blocks),
        ("txt_mode_blocks", mode_blocks),
        ("single_blocks", joint_blocks),
    ];
    for (stack, count) in stacks {
        for block in (0..count.min(most_blocks)).map(|i| format!("{stack}.{i}")) {
            for layer in ["q_proj", "k_proj", "v_proj", "attn_out"] {
                all.push((format!("{block}.{layer}.weight"), Shape::from([hidden, hidden])));
            }
            all.push((format!("{block}.mlp_in.weight"), Shape::from([2 * mlp, hidden])));
            all.push((format!("{block}.mlp_out.weight"), Shape::from([hidden, mlp])));
            for norm in ["query_norm", "key_norm"] {
                all.push((format!("{block}.norm.{norm}.scale"), Shape::from([head])));
            }
        }
    }
    all
}
