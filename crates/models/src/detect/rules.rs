//! The rules of detection: which tensors give a family away. Each rule is the end of one tensor's name that no
//! other family has; what stands in front of it is the part's prefix.

use checkpoint::{Checkpoint, Entry};

use super::{Family, FluxVariant, Layout, Role};

/// A part that was found.
pub(super) struct Found {
    pub(super) role: Role,
    pub(super) family: Family,
    pub(super) layout: Layout,
    pub(super) prefix: String,
}

/// One way to recognise a part.
struct Rule {
    /// The end of a name that gives the family away.
    sign: &'static str,
    /// The role of the part.
    role: Role,
    /// How its tensors are named.
    layout: Layout,
    /// The family, from the tensor that was found and its neighbours; none if it is not one after all.
    family: fn(&Neighbours<'_>) -> Option<Family>,
}

/// A tensor that a rule found, and those with the same prefix.
struct Neighbours<'a> {
    checkpoint: &'a Checkpoint,
    entry: &'a Entry,
    prefix: &'a str,
}

impl Neighbours<'_> {
    fn has(&self, name: &str) -> bool {
        self.dims(name).is_some()
    }

    fn dims(&self, name: &str) -> Option<&[usize]> {
        self.checkpoint.entry(&format!("{}{name}", self.prefix)).map(|entry| entry.shape().dims())
    }

    /// A dimension of the tensor that was found.
    fn dim(&self, axis: usize) -> Option<usize> {
        self.entry.shape().dims().get(axis).copied()
    }
}

/// The rules, tried in this order; a prefix has one part of each role at most.
const RULES: &[Rule] = &[
    native(Role::Diffusion, "txt_in.individual_token_refiner.blocks.0.norm1.weight", |_| {
        named("HunyuanVideo")
    }),
    native(Role::Diffusion, "double_blocks.0.img_attn.norm.key_norm.scale", flux),
    native(Role::Diffusion, "double_blocks.0.img_attn.qkv.weight", flux),
    native(Role::Diffusion, "double_blocks.0.img_attn.norm.key_norm.weight", flux),
    native(Role::Diffusion, "txt_norm.weight", |found| {
        found.has("transformer_blocks.0.attn.norm_added_k.weight").then_some(Family::Named("Qwen-Image"))
    }),
    Rule {
        layout: Layout::Diffusers,
        ..native(Role::Diffusion, "transformer_blocks.0.attn.norm_added_k.weight", joint_transformer)
    },
    native(Role::Diffusion, "input_blocks.0.0.weight", unet),
    native(Role::Diffusion, "joint_blocks.0.context_block.attn.qkv.weight", |_| named("SD3")),
    native(Role::Diffusion, "blocks.0.cross_attn.norm_q.weight", |_| named("Wan")),
    native(Role::Diffusion, "patchify_proj.weight", |_| named("LTX-Video")),
    native(Role::Diffusion, "t5_yproj.weight", |_| named("Mochi")),
    native(Role::Diffusion, "noise_refiner.0.attention.qkv.weight", |_| named("Lumina or Z-Image")),
    Rule {
        layout: Layout::Diffusers,
        ..native(Role::Diffusion, "down_blocks.0.resnets.0.conv1.weight", |_| named("SD UNet"))
    },
    native(Role::Text, "text_model.embeddings.token_embedding.weight", clip),
    native(Role::Text, "transformer.resblocks.0.ln_1.weight", |found| {
        let width = found.dim(0)?;
        found.has("token_embedding.weight").then_some(Family::Clip { width })
    }),
    native(Role::Text, "encoder.block.0.layer.0.SelfAttention.q.weight", t5),
    Rule { layout: Layout::LlamaCpp, ..native(Role::Text, "enc.blk.0.attn_q.weight", t5_of_llama_cpp) },
    native(Role::Text, "model.layers.0.self_attn.q_proj.weight", |_| named("a language model")),
    Rule { layout: Layout::LlamaCpp, ..native(Role::Text, "blk.0.attn_q.weight", language_model) },
    native(Role::Autoencoder, "decoder.conv_in.weight", kl),
    native(Role::Autoencoder, "encoder.conv_in.weight", kl_encoder),
    native(Role::Autoencoder, "decoder.conv_in.conv.weight", |_| named("for video")),
    native(Role::Autoencoder, "decoder.upsamples.0.residual.2.weight", |_| named("Wan")),
    native(Role::Vision, "vision_tower.convs.0.proj.weight", |found| {
        let [_, width] = found.dims("image_projection")? else { return None };
        Some(Family::Florence2 { width: *width })
    }),
    Rule {
        layout: Layout::Transformers,
        ..native(Role::Vision, "vision_tower.convs.0.conv.weight", |found| {
            let [width, _] = found.dims("multi_modal_projector.image_projection.weight")? else {
                return None;
            };
            Some(Family::Florence2 { width: *width })
        })
    },
    native(Role::Other, "vision_model.embeddings.patch_embedding.weight", |_| named("a CLIP vision encoder")),
    native(Role::Other, "redux_up.weight", |_| named("a FLUX Redux image embedder")),
    native(Role::Other, "controlnet_blocks.0.weight", |_| named("a ControlNet")),
    native(Role::Other, "input_hint_block.0.weight", |_| named("a ControlNet")),
    native(Role::Other, "emb_params", |_| named("a textual inversion embedding")),
];

/// Ends and middles of names that only patches have.
const PATCH_MARKS: [&str; 8] = [
    ".lora_down.",
    ".lora_up.",
    ".lora_A.",
    ".lora_B.",
    ".lora.down.",
    ".hada_w1_",
    ".lokr_w1",
    ".dora_scale",
];

const fn native(role: Role, sign: &'static str, family: fn(&Neighbours<'_>) -> Option<Family>) -> Rule {
    Rule { sign, role, layout: Layout::Native, family }
}

fn named(name: &'static str) -> Option<Family> {
    Some(Family::Named(name))
}

/// Every part of a file.
pub(super) fn find(checkpoint: &Checkpoint) -> Vec<Found> {
    // A patch has the names of the layers it is for, so it would look like them.
    let patch = |entry: &Entry| PATCH_MARKS.iter().any(|mark| entry.name().contains(mark));
    if checkpoint.entries().iter().any(patch) {
        let (role, family, layout) = (Role::Patch, Family::Lora, Layout::Native);
        return vec![Found { role, family, layout, prefix: String::new() }];
    }
    let mut parts: Vec<Found> = Vec::new();
    for rule in RULES {
        for entry in checkpoint.entries() {
            let Some(prefix) = prefix_before(entry.name(), rule.sign) else { continue };
            let known = |part: &Found| part.role == rule.role && part.prefix == prefix;
            let inside = |part: &Found| part.role == rule.role && prefix.starts_with(&part.prefix);
            if parts.iter().any(|part| known(part) || (rule.role == Role::Diffusion && inside(part))) {
                continue;
            }
            if let Some(family) = (rule.family)(&Neighbours { checkpoint, entry, prefix }) {
                let (role, layout) = (rule.role, rule.layout);
                parts.push(Found { role, family, layout, prefix: prefix.to_owned() });
            }
        }
    }
    parts
}

/// What stands in front of `sign` at the end of a name, if it ends there at a dot.
fn prefix_before<'a>(name: &'a str, sign: &str) -> Option<&'a str> {
    let prefix = name.strip_suffix(sign)?;
    (prefix.is_empty() || prefix.ends_with('.')).then_some(prefix)
}

/// FLUX, and others that share the names of its blocks.
fn flux(found: &Neighbours<'_>) -> Option<Family> {
    if found.has("distilled_guidance_layer.norms.0.scale") {
        return named("Chroma");
    }
    if found.has("double_stream_modulation_img.lin.weight") {
        return named("FLUX.2");
    }
    // A latent has 16 channels in patches of 2 x 2; further columns are images beside it.
    let columns = found.dims("img_in.weight").and_then(|dims| dims.get(1)).copied();
    Some(Family::Flux(match columns {
        Some(128) => FluxVariant::Control,
        Some(384) => FluxVariant::Fill,
        _ if found.has("guidance_in.in_layer.weight") => FluxVariant::Dev,
        _ => FluxVariant::Schnell,
    }))
}

/// Transformers that diffusers writes with an image and a text side.
fn joint_transformer(found: &Neighbours<'_>) -> Option<Family> {
    if found.has("single_transformer_blocks.0.attn.norm_k.weight") {
        let columns = found.dims("x_embedder.weight").and_then(|dims| dims.get(1)).copied();
        return Some(Family::Flux(match columns {
            Some(128) => FluxVariant::Control,
            Some(384) => FluxVariant::Fill,
            _ if found.has("time_text_embed.guidance_embedder.linear_1.weight") => FluxVariant::Dev,
            _ => FluxVariant::Schnell,
        }));
    }
    named("SD3")
}

fn unet(found: &Neighbours<'_>) -> Option<Family> {
    let context = "input_blocks.4.1.transformer_blocks.0.attn2.to_k.weight";
    let deep = "input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight";
    let width = found.dims(deep).or_else(|| found.dims(context)).and_then(|dims| dims.get(1)).copied();
    match width {
        _ if found.has("label_emb.0.0.weight") => named("SDXL"),
        Some(1024) => named("SD2"),
        _ => named("SD1.5"),
    }
}

fn clip(found: &Neighbours<'_>) -> Option<Family> {
    Some(Family::Clip { width: found.dim(1)? })
}

fn t5(found: &Neighbours<'_>) -> Option<Family> {
    let width = found.dim(1)?;
    let table = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight";
    Some(if found.has(table) { Family::Umt5 { width } } else { Family::T5 { width } })
}

fn t5_of_llama_cpp(found: &Neighbours<'_>) -> Option<Family> {
    let width = found.dim(1)?;
    let umt5 = found.has("enc.blk.1.attn_rel_b.weight");
    Some(if umt5 { Family::Umt5 { width } } else { Family::T5 { width } })
}

/// A language model as converters name it; `enc.` and `dec.` in front are the halves of a T5.
fn language_model(found: &Neighbours<'_>) -> Option<Family> {
    let half = found.prefix.ends_with("enc.") || found.prefix.ends_with("dec.");
    if half { None } else { named("a language model") }
}

/// The image autoencoder; a kernel of three dimensions is for video.
fn kl(found: &Neighbours<'_>) -> Option<Family> {
    match found.entry.shape().dims() {
        [_, _, _, _] if found.has("decoder.mid_block.resnets.0.conv1.weight") => {
            named("KL with the tensor names of diffusers")
        }
        [_, channels, _, _] => Some(Family::Kl { channels: *channels }),
        _ => named("for video"),
    }
}

/// An autoencoder that only encodes.
fn kl_encoder(found: &Neighbours<'_>) -> Option<Family> {
    let moments = found.dims("encoder.conv_out.weight")?;
    let mid = found.has("encoder.mid.block_1.norm1.weight");
    (mid && moments.len() == 4).then_some(Family::Kl { channels: moments[0] / 2 })
}
