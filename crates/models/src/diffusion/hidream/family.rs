//! What the rest of the program asks of HiDream: how its files are recognised, its texts, its workflow and its released
//! sizes.

use std::borrow::Cow;

use meta::Shape;

use super::HiDream;
use super::experts::EXPERTS;
use super::text::TEXT;
use crate::detect::{Role, Sign};
use crate::diffusion::stream_weights::linear;
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// HiDream-I1.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: super::config::FAMILY,
    variants: "HiDream-I1 full, dev and fast",
    key: "hidream",
    signs: &[Sign::native("caption_projection.0.linear.weight", |found| {
        found.has("double_stream_blocks.0.block.ff_i.gate.weight").then_some(Cow::Borrowed("HiDream-I1"))
    })],
    read: |checkpoint, part| Ok(Box::new(HiDream::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "HiDream-I1",
        tensors: |most_blocks| tensors(&RELEASED, most_blocks),
        pixels: 1024,
        encoders: &[("clip_l", 768), ("clip_g", 1280), ("t5xxl", 4096), ("llama", 4096)],
        tokens: 128,
        cfg: 5.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of HiDream-I1",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("clip_l", 768), ("clip_g", 1280), ("t5xxl", 128), ("llama", 128)],
        tokens: 64,
        cfg: 5.0,
    },
};

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "diffusion_models",
            "hidream_i1_dev_bf16.safetensors, hidream_i1_full_fp16.safetensors or a .gguf of them",
        ),
        WorkflowFile::text(
            "the CLIP-L text encoder",
            "--clip-l",
            |part| part.role == Role::Text && part.name == "CLIP-L",
            "clip_l_hidream.safetensors",
        ),
        WorkflowFile::text(
            "the CLIP-G text encoder",
            "--clip-g",
            |part| part.role == Role::Text && part.name == "CLIP-G",
            "clip_g_hidream.safetensors",
        ),
        WorkflowFile::text(
            "the T5 text encoder",
            "--t5",
            |part| part.role == Role::Text && part.name.starts_with("T5"),
            "t5xxl_fp8_e4m3fn_scaled.safetensors or a .gguf",
        ),
        WorkflowFile::text(
            "the Llama text encoder",
            "--llama",
            |part| part.role == Role::Text && part.name.starts_with("Llama"),
            "llama_3.1_8b_instruct_fp8_scaled.safetensors or a .gguf",
        ),
        WorkflowFile::autoencoder(
            |part| part.role == Role::Autoencoder && part.name == "KL, 16 channels",
            "ae.safetensors",
        ),
    ],
    text: &TEXT,
    guidance: None,
    latent: "EmptySD3LatentImage",
    cfg: 5.0,
    sampler: "euler",
    scheduler: "simple",
    multiple: 16,
};

/// The sizes of a released model.
struct Sizes {
    hidden: usize,
    expert: usize,
    shared: usize,
    widths: [usize; 2],
    blocks: [usize; 2],
}

const RELEASED: Sizes =
    Sizes { hidden: 2560, expert: 6912, shared: 3584, widths: [4096, 4096], blocks: [16, 32] };
const SMALL: Sizes = Sizes { hidden: 256, expert: 768, shared: 512, widths: [128, 128], blocks: [2, 4] };

/// The tensors of a model; of each kind at most so many blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { hidden, widths: [states, t5], .. } = *sizes;
    let [doubles, singles] = sizes.blocks.map(|blocks| blocks.min(most_blocks));
    let mut all = Vec::new();
    linear(&mut all, "x_embedder.proj", [hidden, 64], true);
    for (name, width) in [("t_embedder.timestep_embedder", 256), ("p_embedder.pooled_embedder", 2048)] {
        linear(&mut all, &format!("{name}.linear_1"), [hidden, width], true);
        linear(&mut all, &format!("{name}.linear_2"), [hidden, hidden], true);
    }
    for i in 0..=doubles + singles {
        let width = if i == doubles + singles { t5 } else { states };
        linear(&mut all, &format!("caption_projection.{i}.linear"), [hidden, width], false);
    }
    for i in 0..doubles {
        add_block(&mut all, sizes, &format!("double_stream_blocks.{i}.block"), &["", "_t"]);
    }
    for i in 0..singles {
        add_block(&mut all, sizes, &format!("single_stream_blocks.{i}.block"), &[""]);
    }
    linear(&mut all, "final_layer.adaLN_modulation.1", [2 * hidden, hidden], true);
    linear(&mut all, "final_layer.linear", [64, hidden], true);
    all
}

/// Adds the tensors of a block whose sides have these ends to their names.
fn add_block(all: &mut Vec<(String, Shape)>, sizes: &Sizes, block: &str, sides: &[&str]) {
    let hidden = sizes.hidden;
    linear(all, &format!("{block}.adaLN_modulation.1"), [6 * sides.len() * hidden, hidden], true);
    for side in sides {
        for layer in ["to_q", "to_k", "to_v", "to_out"] {
            linear(all, &format!("{block}.attn1.{layer}{side}"), [hidden, hidden], true);
        }
        for norm in ["q_rms_norm", "k_rms_norm"] {
            all.push((format!("{block}.attn1.{norm}{side}.weight"), Shape::from([hidden])));
        }
    }
    linear(all, &format!("{block}.ff_i.gate"), [EXPERTS, hidden], false);
    let mut feed_forward = |name: String, inner: usize| {
        linear(all, &format!("{block}.{name}.w1"), [inner, hidden], false);
        linear(all, &format!("{block}.{name}.w2"), [hidden, inner], false);
        linear(all, &format!("{block}.{name}.w3"), [inner, hidden], false);
    };
    feed_forward("ff_i.shared_experts".to_owned(), sizes.shared);
    for i in 0..EXPERTS {
        feed_forward(format!("ff_i.experts.{i}"), sizes.expert);
    }
    if sides.len() > 1 {
        feed_forward("ff_t".to_owned(), sizes.expert);
    }
}
