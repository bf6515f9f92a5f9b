//! Models that are recognised by name only: they cannot be read yet. A family that can is in the lists of its kind.

use std::borrow::Cow;

use super::Role;
use super::signs::{Neighbours, Sign};
use crate::diffusion;

/// The most characters that are repeated of a name that a file gives itself.
const MOST_SAID: usize = 64;

/// What is recognised, by its role. These are tried before the families that can be read, whose names some share.
pub(super) const NAMED: &[(Role, Sign)] = &[
    (Role::Control, Sign::native("controlnet_blocks.0.weight", |_| named("ControlNet"))),
    (Role::Control, Sign::native("controlnet_blocks.0.linear.weight", |_| named("ControlNet"))),
    (Role::Control, Sign::native("input_hint_block.0.weight", |_| named("ControlNet"))),
    (
        Role::Diffusion,
        Sign::native("txt_in.individual_token_refiner.blocks.0.norm1.weight", other_refined_transformer),
    ),
    (Role::Diffusion, Sign::native("nerf_final_layer.norm.scale", other_painter)),
    (Role::Diffusion, Sign::native("nerf_final_layer_conv.norm.scale", other_painter)),
    (
        Role::Diffusion,
        Sign::native("label_emb.weight", |_| named("a UNet with classes, such as the x4 upscaler")),
    ),
    (Role::Diffusion, Sign::native("audio_patchify_proj.weight", |_| named("LTX-2"))),
    (Role::Diffusion, Sign::native("clip_text_pooled_proj.0.weight", |_| named("NewBie"))),
    (Role::Autoencoder, Sign::native("decoder.conv_in.weight", other_autoencoder)),
    (Role::Autoencoder, Sign::native("decoder.conv_in.conv.weight", other_video_autoencoder)),
    (Role::Other, Sign::native("style_embedding", |_| named("a T2I style adapter"))),
    (Role::Embedding, Sign::native("emb_params", |_| named("a textual inversion embedding"))),
    (Role::Embedding, Sign::native("string_to_param.*", |_| named("a textual inversion embedding"))),
];

/// What converters call the architectures of files that they write, where that is neither the key of a family nor its
/// name in the field.
const ARCHITECTURES: &[(&str, &str)] = &[
    ("sd1", "SD1.5"),
    ("aura", "AuraFlow"),
    ("hyvid", "HunyuanVideo"),
    ("lumina2", "Lumina or Z-Image"),
    ("t5", "T5"),
    ("t5encoder", "T5"),
];

/// What the field calls a model whose file says that it is of this architecture.
pub(super) fn by_architecture(said: &str) -> Cow<'static, str> {
    let family = diffusion::FAMILIES.iter().find(|family| family.key == said).map(|family| family.name);
    let known = || ARCHITECTURES.iter().find(|(key, _)| *key == said).map(|(_, name)| *name);
    match family.or_else(known) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("\"{}\"", said.chars().take(MOST_SAID).collect::<String>())),
    }
}

pub(super) fn named(name: &'static str) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(name))
}

/// Models that paint pixels behind other blocks than the one that can be read.
fn other_painter(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let is_known = found.has("distilled_guidance_layer.layers.0.in_layer.weight");
    if is_known { None } else { named("a model that paints pixels") }
}

/// Transformers with a refined text that share their names with those that can be read: for pictures, or told two times.
fn other_refined_transformer(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    match found.dims("img_in.proj.weight") {
        Some([_, _, _, _]) => named("HunyuanImage"),
        // Later ones, whose patches are single values, are read.
        Some([.., 1]) => None,
        _ if found.has("time_r_in.in_layer.weight") => named("a model distilled with two times (MeanFlow)"),
        _ => None,
    }
}

/// Autoencoders of videos whose latents have other channels than those which can be read.
fn other_video_autoencoder(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    match found.own_dims() {
        [_, 16, _, _, _] if found.has("decoder.mid.attn_1.q.weight") => None,
        [_, 32, _, _, _] if found.has("decoder.norm_out.gamma") => None,
        _ if found.has("decoder.up_blocks.0.res_blocks.0.conv1.conv.weight") => None,
        _ => named("for video"),
    }
}

/// Autoencoders that share a name with those that can be read: a kernel of three dimensions is for video.
fn other_autoencoder(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    match found.own_dims() {
        [_, _, _, _] if found.has("decoder.mid_block.resnets.0.conv1.weight") => {
            named("KL with the tensor names of diffusers")
        }
        [_, _, _, _] => None,
        _ => named("for video"),
    }
}
