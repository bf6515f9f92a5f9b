//! What the rest of the program asks of Chroma: how its files are recognised, its texts, its workflow and its released
//! sizes.

use std::borrow::Cow;

use meta::Shape;

use super::{Chroma, Pixels};
use crate::detect::{Neighbours, Role, Sign};
use crate::diffusion::stream_weights::{ReleasedStreams, linear};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::text::{EncoderUse, TextRecipe, all};
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// Chroma.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: super::config::FAMILY,
    variants: "Chroma, Chroma1-HD and its relatives",
    key: "chroma",
    signs: &[
        Sign::native("distilled_guidance_layer.norms.0.scale", named),
        Sign::native("distilled_guidance_layer.layers.0.in_layer.weight", named),
    ],
    read: |checkpoint, part| Ok(Box::new(Chroma::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Chroma1-HD",
        tensors: |most_blocks| tensors(&RELEASED, most_blocks),
        pixels: 1024,
        encoders: &[("t5xxl", 4096)],
        tokens: 256,
        cfg: 4.0,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Chroma",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("t5xxl", 128)],
        tokens: 64,
        cfg: 4.0,
    },
};

/// T5's tokens, not filled up.
pub(in crate::diffusion) const TEXT: TextRecipe = TextRecipe {
    name: "chroma",
    encoders: &[EncoderUse { empty_is_padding: true, ..EncoderUse::of_length("t5xxl", 1) }],
    has_mask: false,
    join: |encoded| {
        let [text] = all(encoded)?;
        Ok(text)
    },
};

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "diffusion_models",
            "Chroma1-HD.safetensors, chroma-unlocked-v48.safetensors or a .gguf of them",
        ),
        WorkflowFile::text(
            "the T5 text encoder",
            "--t5",
            |part| part.role == Role::Text && part.name.starts_with("T5"),
            "t5xxl_fp16.safetensors, t5xxl_fp8_e4m3fn.safetensors or a .gguf",
        ),
        WorkflowFile::autoencoder(
            |part| part.role == Role::Autoencoder && part.name == "KL, 16 channels",
            "ae.safetensors",
        ),
    ],
    text: &TEXT,
    guidance: None,
    latent: "EmptySD3LatentImage",
    cfg: 4.0,
    sampler: "euler",
    scheduler: "beta",
    multiple: 16,
};

/// Radiance paints pixels with another network behind the same blocks, and is another family.
fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    (!paints_pixels(found)).then_some(Cow::Borrowed("Chroma"))
}

/// Whether a file has the networks that paint pixels.
pub(in crate::diffusion) fn paints_pixels(found: &Neighbours<'_>) -> bool {
    found.has("nerf_final_layer.norm.scale") || found.has("nerf_final_layer_conv.norm.scale")
}

/// The sizes of a released model.
pub(in crate::diffusion) struct Sizes {
    streams: ReleasedStreams,
    context: usize,
    width: usize,
}

pub(in crate::diffusion) const RELEASED: Sizes = Sizes {
    streams: ReleasedStreams { is_modulated: false, ..ReleasedStreams::FIRST },
    context: 4096,
    width: 5120,
};

pub(in crate::diffusion) const SMALL: Sizes = Sizes {
    streams: ReleasedStreams { is_modulated: false, ..ReleasedStreams::SMALL },
    context: 128,
    width: 320,
};

/// The tensors of a model; of each kind at most so many blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let mut all = shared_tensors(sizes, most_blocks);
    let hidden = sizes.streams.hidden;
    linear(&mut all, "img_in", [hidden, 64], true);
    linear(&mut all, "final_layer.linear", [64, hidden], true);
    all
}

/// The tensors of a model that paints pixels.
pub(in crate::diffusion) fn tensors_of_pixels(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Pixels { side, width, mlp, waves, blocks, .. } = super::pixels::RELEASED;
    let mut all = shared_tensors(sizes, most_blocks);
    let hidden = sizes.streams.hidden;
    all.push(("img_in_patch.weight".to_owned(), Shape::from([hidden, 3, side, side])));
    all.push(("img_in_patch.bias".to_owned(), Shape::from([hidden])));
    linear(&mut all, "nerf_image_embedder.embedder.0", [width, 3 + waves * waves], true);
    for i in 0..blocks.min(most_blocks) {
        linear(&mut all, &format!("nerf_blocks.{i}.param_generator"), [3 * width * mlp, hidden], true);
        all.push((format!("nerf_blocks.{i}.norm.scale"), Shape::from([width])));
    }
    all.push(("nerf_final_layer_conv.norm.scale".to_owned(), Shape::from([width])));
    all.push(("nerf_final_layer_conv.conv.weight".to_owned(), Shape::from([3, width, 3, 3])));
    all.push(("nerf_final_layer_conv.conv.bias".to_owned(), Shape::from([3])));
    all
}

/// What both kinds have: the text's way in, the network that gives modulations, and the blocks.
fn shared_tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { streams, context, width } = sizes;
    let hidden = streams.hidden;
    let mut all = Vec::new();
    linear(&mut all, "txt_in", [hidden, *context], true);
    let name = |layer: &str| format!("distilled_guidance_layer.{layer}");
    linear(&mut all, &name("in_proj"), [*width, super::approximator::INPUTS], true);
    for i in 0..5 {
        linear(&mut all, &name(&format!("layers.{i}.in_layer")), [*width, *width], true);
        linear(&mut all, &name(&format!("layers.{i}.out_layer")), [*width, *width], true);
        all.push((name(&format!("norms.{i}.scale")), Shape::from([*width])));
    }
    linear(&mut all, &name("out_proj"), [hidden, *width], true);
    streams.add_blocks(&mut all, most_blocks);
    all
}
