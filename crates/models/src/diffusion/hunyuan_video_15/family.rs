//! What the rest of the program asks of HunyuanVideo 1.5: how its files are recognised, its texts, its workflow and its
//! released sizes.

use std::borrow::Cow;

use super::text::TEXT;
use crate::detect::{Role, Sign};
use crate::diffusion::hunyuan_video::{HunyuanVideo, ReleasedVideo, is_later, tensors};
use crate::diffusion::stream_weights::ReleasedStreams;
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// HunyuanVideo 1.5.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: "HunyuanVideo 1.5",
    variants: "HunyuanVideo 1.5 (text and image to video, super-resolution)",
    key: "hunyuan_video_15",
    signs: &[Sign::native("txt_in.individual_token_refiner.blocks.0.norm1.weight", |found| {
        let enlarges = found.dims("img_in.proj.weight").is_some_and(|dims| dims.get(1) == Some(&ENLARGING));
        let name = if enlarges { "HunyuanVideo 1.5 super-resolution" } else { "HunyuanVideo 1.5" };
        is_later(found).then_some(Cow::Borrowed(name))
    })],
    read: |checkpoint, part| Ok(Box::new(HunyuanVideo::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "HunyuanVideo 1.5",
        tensors: |most_blocks| tensors(&LARGE, most_blocks),
        pixels: 640,
        encoders: &[("qwen25_7b", 3584)],
        tokens: TEXT_TOKENS,
        cfg: 6.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of HunyuanVideo 1.5",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("qwen25_7b", 256)],
        tokens: TEXT_TOKENS,
        cfg: 6.0,
    },
};

/// Channels that go into a model that makes videos larger: the latent, a picture and the video with a mask each.
const ENLARGING: usize = 98;
/// Tokens of a long prompt.
const TEXT_TOKENS: usize = 256;

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "diffusion_models",
            "hunyuanvideo1.5_720p_t2v_fp16.safetensors or a .gguf of it",
        ),
        WorkflowFile::text(
            "the Qwen2.5-VL text encoder",
            "--qwen",
            |part| part.role == Role::Text && part.name.starts_with("Qwen2.5"),
            "qwen_2.5_vl_7b_fp8_scaled.safetensors or qwen_2.5_vl_7b.safetensors",
        ),
        WorkflowFile::text(
            "the ByT5 text encoder",
            "--byt5",
            |part| part.role == Role::Text && part.name == "ByT5",
            "byt5_small_glyphxl_fp16.safetensors",
        ),
        WorkflowFile::autoencoder(
            |part| part.role == Role::Autoencoder && part.name == "HunyuanVideo 1.5",
            "hunyuanvideo15_vae_fp16.safetensors",
        ),
    ],
    text: &TEXT,
    guidance: None,
    // A picture is a video of one frame.
    latent: "EmptyHunyuanVideo15Latent",
    cfg: 6.0,
    sampler: "euler",
    scheduler: "simple",
    multiple: 16,
};

const LARGE: ReleasedVideo = ReleasedVideo {
    streams: ReleasedStreams {
        hidden: 2048,
        head: 128,
        mlp: 8192,
        mlp_rows: 8192,
        blocks: [54, 0],
        has_bias: true,
        is_modulated: true,
    },
    channels: [65, 32],
    patch: 1,
    context: 3584,
    pooled: None,
    more: Some([1472, 1152]),
};

const SMALL: ReleasedVideo = ReleasedVideo {
    streams: ReleasedStreams { hidden: 256, mlp: 512, mlp_rows: 512, blocks: [4, 0], ..LARGE.streams },
    context: 256,
    ..LARGE
};
