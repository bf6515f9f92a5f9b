//! What the rest of the program asks of HunyuanVideo: how its files are recognised, its texts, its workflow and its released
//! sizes.

use std::borrow::Cow;

use meta::Shape;

use super::HunyuanVideo;
use super::text::TEXT;
use crate::detect::{Neighbours, Role, Sign};
use crate::diffusion::stream_weights::{ReleasedStreams, linear};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// HunyuanVideo.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: super::config::FAMILY,
    variants: "HunyuanVideo (text to video; image to video beside the latent, in place of the first frame and custom)",
    key: "hunyuan_video",
    signs: &[Sign::native("txt_in.individual_token_refiner.blocks.0.norm1.weight", named)],
    read: |checkpoint, part| Ok(Box::new(HunyuanVideo::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "HunyuanVideo",
        tensors: |most_blocks| tensors(&LARGE, most_blocks),
        pixels: 640,
        encoders: &[("clip_l", 768), ("llama", 4096)],
        tokens: TEXT_TOKENS,
        cfg: 1.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of HunyuanVideo",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("clip_l", 768), ("llama", 256)],
        tokens: TEXT_TOKENS,
        cfg: 1.0,
    },
};

/// Tokens of a long prompt.
const TEXT_TOKENS: usize = 256;

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "diffusion_models",
            "hunyuan_video_t2v_720p_bf16.safetensors or a .gguf of it",
        ),
        WorkflowFile::text(
            "the CLIP-L text encoder",
            "--clip-l",
            |part| part.role == Role::Text && part.name == "CLIP-L",
            "clip_l.safetensors",
        ),
        WorkflowFile::text(
            "the Llama 3 text encoder",
            "--llama",
            |part| part.role == Role::Text && part.name.starts_with("Llama"),
            "llava_llama3_fp8_scaled.safetensors, llava_llama3_fp16.safetensors or a .gguf",
        ),
        WorkflowFile::autoencoder(
            |part| part.role == Role::Autoencoder && part.name == "HunyuanVideo",
            "hunyuan_video_vae_bf16.safetensors",
        ),
    ],
    text: &TEXT,
    guidance: Some(("FluxGuidance", 6.0)),
    // A picture is a video of one frame.
    latent: "EmptyHunyuanLatentVideo",
    cfg: 1.0,
    sampler: "euler",
    scheduler: "simple",
    multiple: 16,
};

/// Whether a file is of a later generation than the first.
pub(in crate::diffusion) fn is_later(found: &Neighbours<'_>) -> bool {
    found.dims("img_in.proj.weight").is_some_and(|dims| dims.last() == Some(&1))
}

/// The variant by what its file has.
fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    if is_later(found) {
        return None;
    }
    let channels = found.dims("img_in.proj.weight").and_then(|dims| dims.get(1)).copied();
    Some(Cow::Borrowed(if channels > Some(16) { "HunyuanVideo image to video" } else { "HunyuanVideo" }))
}

/// The sizes of a released model.
pub(in crate::diffusion) struct ReleasedVideo {
    pub(in crate::diffusion) streams: ReleasedStreams,
    /// Channels that go in and that come out.
    pub(in crate::diffusion) channels: [usize; 2],
    pub(in crate::diffusion) patch: usize,
    pub(in crate::diffusion) context: usize,
    /// Width of the pooled text, of a model that takes one and a guidance.
    pub(in crate::diffusion) pooled: Option<usize>,
    /// Widths of letters and of features of pictures, of a model that takes them.
    pub(in crate::diffusion) more: Option<[usize; 2]>,
}

const LARGE: ReleasedVideo = ReleasedVideo {
    streams: ReleasedStreams {
        hidden: 3072,
        head: 128,
        mlp: 12_288,
        mlp_rows: 12_288,
        blocks: [20, 40],
        has_bias: true,
        is_modulated: true,
    },
    channels: [16, 16],
    patch: 2,
    context: 4096,
    pooled: Some(768),
    more: None,
};

const SMALL: ReleasedVideo = ReleasedVideo {
    streams: ReleasedStreams { hidden: 256, mlp: 512, mlp_rows: 512, blocks: [2, 4], ..LARGE.streams },
    context: 256,
    ..LARGE
};

/// Blocks that refine the text.
const REFINER_BLOCKS: usize = 2;

/// The tensors of a model; of each kind at most so many blocks.
pub(in crate::diffusion) fn tensors(sizes: &ReleasedVideo, most_blocks: usize) -> Vec<(String, Shape)> {
    let ReleasedVideo { streams, channels: [taken, given], patch, context, pooled, more } = sizes;
    let hidden = streams.hidden;
    let mut all = vec![
        ("img_in.proj.weight".to_owned(), Shape::from([hidden, *taken, 1, *patch, *patch])),
        ("img_in.proj.bias".to_owned(), Shape::from([hidden])),
    ];
    let mut embedders = vec![("time_in", 256), ("txt_in.t_embedder", 256), ("txt_in.c_embedder", *context)];
    if let Some(pooled) = pooled {
        embedders.extend([("vector_in", *pooled), ("guidance_in", 256)]);
    }
    for (name, width) in embedders {
        linear(&mut all, &format!("{name}.in_layer"), [hidden, width], true);
        linear(&mut all, &format!("{name}.out_layer"), [hidden, hidden], true);
    }
    linear(&mut all, "txt_in.input_embedder", [hidden, *context], true);
    linear(&mut all, "final_layer.linear", [given * patch * patch, hidden], true);
    linear(&mut all, "final_layer.adaLN_modulation.1", [2 * hidden, hidden], true);
    if let Some([letters, features]) = more {
        norm(&mut all, "byt5_in.layernorm", *letters);
        linear(&mut all, "byt5_in.fc1", [2048, *letters], true);
        linear(&mut all, "byt5_in.fc2", [2048, 2048], true);
        linear(&mut all, "byt5_in.fc3", [hidden, 2048], true);
        norm(&mut all, "vision_in.proj.0", *features);
        linear(&mut all, "vision_in.proj.1", [*features, *features], true);
        linear(&mut all, "vision_in.proj.3", [hidden, *features], true);
        norm(&mut all, "vision_in.proj.4", hidden);
        all.push(("cond_type_embedding.weight".to_owned(), Shape::from([3, hidden])));
    }
    for i in 0..REFINER_BLOCKS.min(most_blocks) {
        let name = |part: &str| format!("{}.{part}", super::refiner::block_name(i));
        linear(&mut all, &name("adaLN_modulation.1"), [2 * hidden, hidden], true);
        norm(&mut all, &name("norm1"), hidden);
        linear(&mut all, &name("self_attn.qkv"), [3 * hidden, hidden], true);
        linear(&mut all, &name("self_attn.proj"), [hidden, hidden], true);
        norm(&mut all, &name("norm2"), hidden);
        linear(&mut all, &name("mlp.0"), [4 * hidden, hidden], true);
        linear(&mut all, &name("mlp.2"), [hidden, 4 * hidden], true);
    }
    streams.add_blocks(&mut all, most_blocks);
    all
}

fn norm(all: &mut Vec<(String, Shape)>, name: &str, width: usize) {
    for part in ["weight", "bias"] {
        all.push((format!("{name}.{part}"), Shape::from([width])));
    }
}
