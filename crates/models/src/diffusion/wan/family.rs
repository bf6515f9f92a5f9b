//! What the rest of the program asks of Wan: how its files are recognised, its texts, its workflow and its released sizes.

use std::borrow::Cow;

use meta::Shape;

use super::Wan;
use super::text::TEXT;
use crate::detect::{Neighbours, Role, Sign};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Wan 2.1 and 2.2.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: "Wan",
    variants: "Wan 2.1 and 2.2 (text and image to video, first and last frame, VACE, HuMo, S2V, Animate, Fun control, inpaint and \
         camera)",
    key: "wan",
    signs: &[Sign::native("blocks.0.cross_attn.norm_q.weight", named)],
    read: |checkpoint, part| Ok(Box::new(Wan::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Wan 2.1 14B",
        tensors: |most_blocks| tensors(&LARGE, most_blocks),
        pixels: 1024,
        encoders: &[("umt5xxl", TEXT_WIDTH)],
        tokens: TEXT_TOKENS,
        cfg: 5.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Wan 2.1",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("umt5xxl", TEXT_WIDTH)],
        tokens: TEXT_TOKENS,
        cfg: 5.0,
    },
};

/// The text's width, which is UMT5's.
const TEXT_WIDTH: usize = 4096;
/// Tokens that a prompt is filled up to.
const TEXT_TOKENS: usize = 512;

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "diffusion_models",
            "wan2.1_t2v_14B_fp16.safetensors, wan2.1_t2v_1.3B_fp16.safetensors or a .gguf of them",
        ),
        WorkflowFile::text(
            "the UMT5 text encoder",
            "--t5",
            |part| part.role == Role::Text && part.name.starts_with("UMT5"),
            "umt5_xxl_fp16.safetensors, umt5_xxl_fp8_e4m3fn_scaled.safetensors or a .gguf",
        ),
        WorkflowFile::autoencoder(
            |part| part.role == Role::Autoencoder && part.name == "Wan 2.1",
            "wan_2.1_vae.safetensors",
        ),
    ],
    text: &TEXT,
    guidance: None,
    // A picture is a video of one frame.
    latent: "EmptySD3LatentImage",
    cfg: 5.0,
    sampler: "uni_pc",
    scheduler: "simple",
    multiple: 16,
};

/// The variant by what its file has; none of those that cannot be read yet.
fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let width = |name: &str, axis: usize| found.dims(name).and_then(|dims| dims.get(axis)).copied();
    let (channels, rows) = (width("patch_embedding.weight", 1)?, width("head.head.weight", 0)?);
    Some(Cow::Borrowed(match (found.has("img_emb.proj.0.bias"), channels) {
        _ if found.has("vace_patch_embedding.weight") => "Wan 2.1 VACE",
        _ if found.has("control_adapter.conv.weight") => "Wan Fun camera",
        _ if found.has("img_emb.emb_pos") => "Wan 2.1 first and last frame",
        _ if found.has("audio_proj.audio_proj_glob_1.layer.bias") => "Wan 2.1 HuMo",
        _ if found.has("face_adapter.fuser_blocks.0.k_norm.weight") => "Wan 2.2 Animate",
        _ if found.has("casual_audio_encoder.encoder.final_linear.weight") => "Wan 2.2 S2V",
        _ if found.has("ref_conv.weight") => "Wan 2.2 Fun control",
        _ if rows == 4 * 48 => "Wan 2.2 TI2V 5B",
        (true, 48) => "Wan 2.1 Fun control",
        (true, _) => "Wan 2.1 image to video",
        (false, 36) => "Wan 2.2 image to video",
        (false, _) => "Wan text to video",
    }))
}

/// The sizes of a released model.
struct Sizes {
    hidden: usize,
    mlp: usize,
    blocks: usize,
}

const LARGE: Sizes = Sizes { hidden: 5120, mlp: 13_824, blocks: 40 };
const SMALL: Sizes = Sizes { hidden: 256, mlp: 512, blocks: 8 };

/// The tensors of a model for text to video; at most so many blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { hidden, mlp, blocks } = *sizes;
    let mut all = vec![
        ("patch_embedding.weight".to_owned(), Shape::from([hidden, 16, 1, 2, 2])),
        ("patch_embedding.bias".to_owned(), Shape::from([hidden])),
        ("head.modulation".to_owned(), Shape::from([1, 2, hidden])),
    ];
    let mut linear = |name: String, out: usize, from: usize| {
        all.push((format!("{name}.weight"), Shape::from([out, from])));
        all.push((format!("{name}.bias"), Shape::from([out])));
    };
    for (name, width) in [("text_embedding", TEXT_WIDTH), ("time_embedding", 256)] {
        linear(format!("{name}.0"), hidden, width);
        linear(format!("{name}.2"), hidden, hidden);
    }
    linear("time_projection.1".to_owned(), 6 * hidden, hidden);
    linear("head.head".to_owned(), 64, hidden);
    let blocks = blocks.min(most_blocks);
    for block in 0..blocks {
        for part in ["self_attn", "cross_attn"] {
            for layer in ["q", "k", "v", "o"] {
                linear(format!("blocks.{block}.{part}.{layer}"), hidden, hidden);
            }
        }
        linear(format!("blocks.{block}.ffn.0"), mlp, hidden);
        linear(format!("blocks.{block}.ffn.2"), hidden, mlp);
    }
    for block in 0..blocks {
        let name = |part: &str| format!("blocks.{block}.{part}");
        all.push((name("modulation"), Shape::from([1, 6, hidden])));
        let norms = ["self_attn.norm_q.weight", "self_attn.norm_k.weight", "cross_attn.norm_q.weight"];
        let more = ["cross_attn.norm_k.weight", "norm3.weight", "norm3.bias"];
        all.extend(norms.into_iter().chain(more).map(|norm| (name(norm), Shape::from([hidden]))));
    }
    all
}
