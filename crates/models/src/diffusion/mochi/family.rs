//! What the rest of the program asks of Mochi: how its files are recognised, its texts, its workflow and its released
//! sizes.

use meta::Shape;

use super::Mochi;
use super::text::TEXT;
use crate::detect::{Role, Sign};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Mochi.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: super::config::FAMILY,
    variants: "Mochi 1 (text to video)",
    key: "mochi",
    signs: &[Sign::native("t5_yproj.weight", |_| Some("Mochi".into()))],
    read: |checkpoint, part| Ok(Box::new(Mochi::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Mochi 1 preview",
        tensors: |most_blocks| tensors(&LARGE, most_blocks),
        pixels: 512,
        encoders: &[("t5xxl", TEXT_WIDTH)],
        tokens: TEXT_TOKENS,
        cfg: 4.5,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Mochi",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("t5xxl", TEXT_WIDTH)],
        tokens: TEXT_TOKENS,
        cfg: 4.5,
    },
};

/// The text's width, which is T5's.
const TEXT_WIDTH: usize = 4096;
/// Tokens that a prompt is filled up to.
const TEXT_TOKENS: usize = 256;

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "diffusion_models",
            "mochi_preview_fp8_scaled.safetensors, mochi_preview_bf16.safetensors or a .gguf of them",
        ),
        WorkflowFile::text(
            "the T5 text encoder",
            "--t5",
            |part| part.role == Role::Text && part.name.starts_with("T5"),
            "t5xxl_fp16.safetensors, t5xxl_fp8_e4m3fn_scaled.safetensors or a .gguf",
        ),
        WorkflowFile::autoencoder(
            |part| part.role == Role::Autoencoder && part.name == FAMILY.name,
            "mochi_vae.safetensors",
        ),
    ],
    text: &TEXT,
    guidance: None,
    // A picture is a video of one frame.
    latent: "EmptyMochiLatentVideo",
    cfg: 4.5,
    sampler: "euler",
    scheduler: "simple",
    multiple: 16,
};

/// The sizes of a released model.
struct Sizes {
    hidden: usize,
    text: usize,
    head: usize,
    mlp: [usize; 2],
    blocks: usize,
}

const LARGE: Sizes = Sizes { hidden: 3072, text: 1536, head: 128, mlp: [8192, 4096], blocks: 48 };
const SMALL: Sizes = Sizes { hidden: 256, text: 128, head: 64, mlp: [512, 256], blocks: 8 };

/// The tensors of a model; at most so many blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { hidden, text, head, mlp, blocks } = *sizes;
    let mut all = vec![
        ("pos_frequencies".to_owned(), Shape::from([3, hidden / head, head / 2])),
        ("x_embedder.proj.weight".to_owned(), Shape::from([hidden, 12, 2, 2])),
        ("x_embedder.proj.bias".to_owned(), Shape::from([hidden])),
    ];
    let mut linear = |name: String, out: usize, from: usize, has_bias: bool| {
        all.push((format!("{name}.weight"), Shape::from([out, from])));
        if has_bias {
            all.push((format!("{name}.bias"), Shape::from([out])));
        }
    };
    linear("t_embedder.mlp.0".to_owned(), hidden, 256, true);
    linear("t_embedder.mlp.2".to_owned(), hidden, hidden, true);
    linear("t5_y_embedder.to_kv".to_owned(), 2 * TEXT_WIDTH, TEXT_WIDTH, true);
    linear("t5_y_embedder.to_q".to_owned(), TEXT_WIDTH, TEXT_WIDTH, true);
    linear("t5_y_embedder.to_out".to_owned(), hidden, TEXT_WIDTH, true);
    linear("t5_yproj".to_owned(), text, TEXT_WIDTH, true);
    linear("final_layer.mod".to_owned(), 2 * hidden, hidden, true);
    linear("final_layer.linear".to_owned(), 48, hidden, true);
    let blocks = blocks.min(most_blocks);
    for block in 0..blocks {
        let is_last = block + 1 == blocks;
        let name = |part: &str| format!("blocks.{block}.{part}");
        linear(name("mod_x"), 4 * hidden, hidden, true);
        linear(name("mod_y"), if is_last { text } else { 4 * text }, hidden, true);
        linear(name("attn.qkv_x"), 3 * hidden, hidden, false);
        linear(name("attn.qkv_y"), 3 * hidden, text, false);
        linear(name("attn.proj_x"), hidden, hidden, true);
        linear(name("mlp_x.w1"), 2 * mlp[0], hidden, false);
        linear(name("mlp_x.w2"), hidden, mlp[0], false);
        if !is_last {
            linear(name("attn.proj_y"), text, hidden, true);
            linear(name("mlp_y.w1"), 2 * mlp[1], text, false);
            linear(name("mlp_y.w2"), text, mlp[1], false);
        }
    }
    for block in 0..blocks {
        for norm in ["q_norm_x", "k_norm_x", "q_norm_y", "k_norm_y"] {
            all.push((format!("blocks.{block}.attn.{norm}.weight"), Shape::from([head])));
        }
    }
    all
}
