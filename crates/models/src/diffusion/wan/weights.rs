//! What a Wan model needs of its file, block by block in order of use, with the shape that every tensor must have.

use meta::Shape;
use residency::{Manifest, WeightSpec};

use super::Config;
use super::config::{Audio, CAMERA_PIXELS, Camera, FAMILY, Vision};
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::modulation::TIME_VALUES;
use crate::diffusion::patches::PATCH;

pub(super) fn manifest(claims: &Claims<'_>, config: &Config) -> Result<Manifest> {
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("in", true, entrance(claims, config)?);
    for i in 0..config.blocks {
        let name = format!("blocks.{i}");
        let mut weights = block(claims, config, &name)?;
        if config.vision.is_some() {
            weights.extend(image_attention(claims, config, &name)?);
        }
        if let Some(audio) = config.audio {
            weights.extend(audio_attention(claims, (config, audio), &name)?);
        }
        if let Some(speech) = config.speech {
            weights.extend(speech.block(claims, config.hidden, i)?);
        }
        if let Some(face) = &config.face {
            weights.extend(face.block(claims, config.hidden, i)?);
        }
        builder = builder.block(name, false, weights);
        if let Some(beside) = config.control_after(i) {
            let name = format!("vace_blocks.{beside}");
            builder = builder.block(name.clone(), false, control_block(claims, config, &name, beside)?);
        }
    }
    Ok(builder.block("head", true, exit(claims, config)?).finish()?)
}

fn entrance(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = patches(claims, "patch_embedding", hidden, &[config.in_channels, 1, PATCH, PATCH])?;
    weights.extend(claims.layer("text_embedding.0", &[hidden, config.context_width])?);
    weights.extend(claims.layer("text_embedding.2", &[hidden, hidden])?);
    weights.extend(claims.layer("time_embedding.0", &[hidden, TIME_VALUES])?);
    weights.extend(claims.layer("time_embedding.2", &[hidden, hidden])?);
    weights.extend(claims.layer("time_projection.1", &[6 * hidden, hidden])?);
    if let Some(Vision { width, positions }) = config.vision {
        if let Some(tokens) = positions {
            weights.push(claims.weight("img_emb.emb_pos", &[1, tokens, width])?);
        }
        weights.extend(claims.layer("img_emb.proj.0", &[width])?);
        weights.extend(claims.layer("img_emb.proj.1", &[width, width])?);
        weights.extend(claims.layer("img_emb.proj.3", &[hidden, width])?);
        weights.extend(claims.layer("img_emb.proj.4", &[hidden])?);
    }
    if let Some(Audio { heard, inner, tokens, width }) = config.audio {
        let name = |part: &str| format!("audio_proj.audio_proj_glob_{part}.layer");
        weights.extend(claims.layer(&name("1"), &[inner, heard])?);
        weights.extend(claims.layer(&name("2"), &[inner, inner])?);
        weights.extend(claims.layer(&name("3"), &[tokens * width, inner])?);
        weights.extend(claims.layer(&name("norm"), &[width])?);
    }
    if let Some(channels) = config.reference_channels {
        weights.extend(patches(claims, "ref_conv", hidden, &[channels, PATCH, PATCH])?);
    }
    if let Some(control) = config.control {
        weights.extend(patches(
            claims,
            "vace_patch_embedding",
            hidden,
            &[control.channels, 1, PATCH, PATCH],
        )?);
    }
    if let Some(speech) = config.speech {
        weights.extend(patches(claims, "cond_encoder", hidden, &[config.channels, 1, PATCH, PATCH])?);
        weights.extend(speech.entrance(claims, config)?);
    }
    if let Some(face) = &config.face {
        weights.extend(patches(claims, "pose_patch_embedding", hidden, &[config.channels, 1, PATCH, PATCH])?);
        weights.extend(face.entrance(claims, hidden)?);
    }
    if let Some(Camera { channels, blocks }) = config.camera {
        let folded = channels * CAMERA_PIXELS * CAMERA_PIXELS;
        weights.extend(claims.layer("control_adapter.conv", &[hidden, folded, PATCH, PATCH])?);
        for i in 0..blocks {
            for part in ["conv1", "conv2"] {
                let name = format!("control_adapter.residual_blocks.{i}.{part}");
                weights.extend(claims.layer(&name, &[hidden, hidden, 3, 3])?);
            }
        }
    }
    Ok(weights)
}

/// A product with patches: a convolution that steps from patch to patch.
fn patches(claims: &Claims<'_>, name: &str, hidden: usize, patch: &[usize]) -> Result<Vec<WeightSpec>> {
    let shape: Vec<usize> = std::iter::once(hidden).chain(patch.iter().copied()).collect();
    let mut weights = claims.layer(name, &shape)?;
    weights[0].shape = Shape::from([hidden, patch.iter().product()]);
    Ok(weights)
}

fn block(claims: &Claims<'_>, config: &Config, name: &str) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = vec![modulation(claims, &format!("{name}.modulation"), 6, hidden)?];
    for part in ["self_attn", "cross_attn"] {
        for layer in ["q", "k", "v", "o"] {
            weights.extend(claims.layer(&format!("{name}.{part}.{layer}"), &[hidden, hidden])?);
        }
        for norm in ["norm_q", "norm_k"] {
            weights.push(claims.weight(&format!("{name}.{part}.{norm}.weight"), &[hidden])?);
        }
    }
    weights.extend(claims.layer(&format!("{name}.norm3"), &[hidden])?);
    weights.extend(claims.layer(&format!("{name}.ffn.0"), &[config.mlp, hidden])?);
    weights.extend(claims.layer(&format!("{name}.ffn.2"), &[hidden, config.mlp])?);
    Ok(weights)
}

fn image_attention(claims: &Claims<'_>, config: &Config, name: &str) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = claims.layer(&format!("{name}.cross_attn.k_img"), &[hidden, hidden])?;
    weights.extend(claims.layer(&format!("{name}.cross_attn.v_img"), &[hidden, hidden])?);
    weights.push(claims.weight(&format!("{name}.cross_attn.norm_k_img.weight"), &[hidden])?);
    Ok(weights)
}

/// Attention over the sound's tokens.
fn audio_attention(
    claims: &Claims<'_>,
    (config, audio): (&Config, Audio),
    name: &str,
) -> Result<Vec<WeightSpec>> {
    let (hidden, name) = (config.hidden, format!("{name}.audio_cross_attn_wrapper"));
    let mut weights = claims.layer(&format!("{name}.norm1_audio"), &[hidden])?;
    for (layer, from) in [("q", hidden), ("k", audio.width), ("v", audio.width), ("o", hidden)] {
        weights.extend(claims.layer(&format!("{name}.audio_cross_attn.{layer}"), &[hidden, from])?);
    }
    for norm in ["norm_q", "norm_k"] {
        weights.push(claims.weight(&format!("{name}.audio_cross_attn.{norm}.weight"), &[hidden])?);
    }
    Ok(weights)
}

fn control_block(claims: &Claims<'_>, config: &Config, name: &str, index: usize) -> Result<Vec<WeightSpec>> {
    let hidden = config.hidden;
    let mut weights = block(claims, config, name)?;
    if index == 0 {
        weights.extend(claims.layer(&format!("{name}.before_proj"), &[hidden, hidden])?);
    }
    weights.extend(claims.layer(&format!("{name}.after_proj"), &[hidden, hidden])?);
    Ok(weights)
}

fn exit(claims: &Claims<'_>, config: &Config) -> Result<Vec<WeightSpec>> {
    let mut weights = vec![modulation(claims, "head.modulation", 2, config.hidden)?];
    weights.extend(claims.layer("head.head", &[config.channels * PATCH * PATCH, config.hidden])?);
    Ok(weights)
}

/// What is added to a block's modulations, in a row.
fn modulation(claims: &Claims<'_>, name: &str, parts: usize, hidden: usize) -> Result<WeightSpec> {
    let mut weight = claims.weight(name, &[1, parts, hidden])?;
    weight.shape = Shape::from([parts * hidden]);
    Ok(weight)
}
