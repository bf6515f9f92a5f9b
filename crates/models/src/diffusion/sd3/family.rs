//! What the rest of the program asks of Stable Diffusion 3: how its files are recognised, its latents, its texts, its
//! workflow and its released sizes.

use std::borrow::Cow;

use meta::Shape;
use sampling::{LatentSpec, Scaling};
use tensor::{Padding, Tensor};

use super::Sd3;
use crate::detect::{Layout, Neighbours, Part, Role, Sign};
use crate::diffusion::{DiffusionFamily, ReleasedModel};
use crate::text::{Encoded, EncoderUse, Layer, TextRecipe, side_by_side};
use crate::workflow::{StandardWorkflow, WorkflowFile};
use crate::{Error, Result};

/// Stable Diffusion 3 and 3.5.
pub const FAMILY: DiffusionFamily = DiffusionFamily {
    name: "Stable Diffusion 3",
    variants: "Stable Diffusion 3 medium, 3.5 medium, large and turbo",
    key: "sd3",
    signs: &[
        Sign::native("joint_blocks.0.context_block.attn.qkv.weight", named),
        Sign {
            tensor: "transformer_blocks.0.attn.add_k_proj.weight",
            layout: Layout::Diffusers,
            name: of_diffusers,
        },
    ],
    read: |checkpoint, part| Ok(Box::new(Sd3::read(checkpoint, part)?)),
    text: &[&TEXT],
    workflow: WORKFLOW,
    downloads: super::downloads::DOWNLOADS,
    released: ReleasedModel {
        name: "Stable Diffusion 3.5 large",
        tensors: |most_blocks| tensors(&LARGE, most_blocks),
        pixels: 1024,
        encoders: &[("clip_l", 768), ("clip_g", 1280), ("t5xxl", 4096)],
        tokens: 154,
        cfg: 4.5,
    },
    small: ReleasedModel {
        name: "a small model of the kind of Stable Diffusion 3.5",
        tensors: |most_blocks| tensors(&SMALL, most_blocks),
        pixels: 128,
        encoders: &[("clip_l", 768), ("clip_g", 1280), ("t5xxl", 4096)],
        tokens: 154,
        cfg: 4.5,
    },
};

/// Its latents. Colours are fitted by the community to decoded pictures.
pub const LATENT: LatentSpec = LatentSpec {
    name: "SD3",
    channels: 16,
    scaling: Scaling::Uniform { scale: 1.5305, shift: 0.0609 },
    pixels_per_value: 8,
    frames_per_value: None,
    colours: &[
        [-0.0922, -0.0175, 0.0749],
        [0.0311, 0.0633, 0.0954],
        [0.1994, 0.0927, 0.0458],
        [0.0856, 0.0339, 0.0902],
        [0.0587, 0.0272, -0.0496],
        [-0.0006, 0.1104, 0.0309],
        [0.0978, 0.0306, 0.0427],
        [-0.0042, 0.1038, 0.1358],
        [-0.0194, 0.002, 0.0669],
        [-0.0488, 0.013, -0.0268],
        [0.0922, 0.0988, 0.0951],
        [-0.0278, 0.0524, -0.0542],
        [0.0332, 0.0456, 0.0895],
        [-0.0069, -0.003, -0.081],
        [-0.0596, -0.0465, -0.0293],
        [-0.1448, -0.1463, -0.1189],
    ],
    background: [0.2394, 0.2135, 0.1925],
};

/// The text's width that the model was trained with, which is T5's.
const TEXT_WIDTH: usize = 4096;
/// Widths of CLIP-L's and CLIP-G's pooled results.
const POOLED_WIDTHS: [usize; 2] = [768, 1280];

/// CLIP-L's and CLIP-G's tokens side by side, as wide as T5's, in front of those; and both pooled results in a row. Any of
/// the three may be missing.
const TEXT: TextRecipe = TextRecipe {
    name: "sd3",
    encoders: &[
        EncoderUse { unprojected: true, is_optional: true, ..EncoderUse::clip("clip_l", Layer::SkipRaw(2)) },
        EncoderUse { is_optional: true, ..EncoderUse::clip("clip_g", Layer::SkipRaw(2)) },
        EncoderUse { is_optional: true, ..EncoderUse::of_length("t5xxl", 77) },
    ],
    has_mask: false,
    join,
};

fn join(encoded: Vec<Option<Encoded>>) -> Result<Encoded> {
    let [clip_l, clip_g, t5] = <[Option<Encoded>; 3]>::try_from(encoded).map_err(|all| Error::Input {
        what: "the text",
        expected: "encoded by up to three encoders".into(),
        got: format!("{} results", all.len()),
    })?;
    let pooled = pooled(clip_l.as_ref(), clip_g.as_ref())?;
    let clips = match (&clip_l, &clip_g) {
        (Some(l), Some(g)) => Some((side_by_side(l, g)?, 0, &l.attention_mask)),
        (Some(l), None) => Some((l.cond.clone(), 0, &l.attention_mask)),
        (None, Some(g)) => Some((g.cond.clone(), POOLED_WIDTHS[0], &g.attention_mask)),
        (None, None) => None,
    };
    let Some((clips, before, mask)) = clips else {
        let t5 = t5.ok_or_else(|| Error::Input {
            what: "the text",
            expected: "encoded by at least one encoder".into(),
            got: "by none".into(),
        })?;
        return Ok(Encoded { pooled, ..t5 });
    };
    let after = TEXT_WIDTH.checked_sub(before + clips.dim(2)).ok_or_else(|| Error::Input {
        what: "the text of CLIP-L and CLIP-G",
        expected: format!("at most {TEXT_WIDTH} wide"),
        got: (before + clips.dim(2)).to_string(),
    })?;
    let clips = clips.pad(&[(0, 0), (0, 0), (before, after)], Padding::Constant(0.0))?;
    let mask = mask[..clips.dim(1)].to_vec();
    match t5 {
        None => Ok(Encoded { cond: clips, pooled, attention_mask: mask, second: None, slots: Vec::new() }),
        Some(t5) => {
            let cond = Tensor::concat(&[&clips, &t5.cond.to_lane(clips.lane())?], 1)?;
            Ok(Encoded {
                cond,
                pooled,
                attention_mask: [mask, t5.attention_mask].concat(),
                second: None,
                slots: Vec::new(),
            })
        }
    }
}

/// Both pooled results in a row, zeros for one that is missing; nothing without both.
fn pooled(clip_l: Option<&Encoded>, clip_g: Option<&Encoded>) -> Result<Option<Tensor>> {
    let of = |encoded: Option<&Encoded>| encoded.and_then(|encoded| encoded.pooled.clone());
    let (l, g) = (of(clip_l), of(clip_g));
    let Some(lane) = l.as_ref().or(g.as_ref()).map(|pooled| pooled.lane().clone()) else { return Ok(None) };
    let part = |pooled: Option<Tensor>, width: usize| match pooled {
        Some(pooled) => pooled.to_lane(&lane),
        None => lane.full([1, width], 0.0),
    };
    let (l, g) = (part(l, POOLED_WIDTHS[0])?, part(g, POOLED_WIDTHS[1])?);
    Ok(Some(Tensor::concat(&[&l, &g], 1)?))
}

const WORKFLOW: StandardWorkflow = StandardWorkflow {
    files: &[
        WorkflowFile::diffusion(
            |part| part.role == Role::Diffusion && part.is_read_by(FAMILY.name),
            "diffusion_models",
            "sd3.5_large.safetensors, sd3.5_medium.safetensors or a .gguf of them",
        ),
        WorkflowFile::text(
            "the CLIP-L text encoder",
            "--clip-l",
            |part| is_clip(part, "CLIP-L"),
            "clip_l.safetensors",
        ),
        WorkflowFile::text(
            "the CLIP-G text encoder",
            "--clip-g",
            |part| is_clip(part, "CLIP-G"),
            "clip_g.safetensors",
        ),
        WorkflowFile {
            what: "the T5 text encoder",
            is_it: |part| part.role == Role::Text && part.name.starts_with("T5"),
            flag: "--t5",
            names: "t5xxl_fp16.safetensors, t5xxl_fp8_e4m3fn.safetensors or a .gguf",
            folder: "text_encoders",
            is_needed: false,
        },
        WorkflowFile::autoencoder(
            |part| part.role == Role::Autoencoder && part.name == "KL, 16 channels",
            "sd3_vae.safetensors",
        ),
    ],
    text: &TEXT,
    guidance: None,
    latent: "EmptySD3LatentImage",
    cfg: 4.5,
    sampler: "dpmpp_2m",
    scheduler: "sgm_uniform",
    multiple: 16,
};

fn is_clip(part: &Part, name: &str) -> bool {
    part.role == Role::Text && part.name == name
}

/// The variant by its width and by what its blocks have.
fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let is_normed = found.has("joint_blocks.0.x_block.attn.ln_q.weight");
    let is_dual = found.has("joint_blocks.0.x_block.attn2.qkv.weight");
    Some(Cow::Borrowed(match (is_normed, is_dual) {
        (false, _) => "Stable Diffusion 3",
        (true, true) => "Stable Diffusion 3.5 medium",
        (true, false) => "Stable Diffusion 3.5 large",
    }))
}

/// Diffusers' names, which families with other blocks behind or beside share.
fn of_diffusers(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let is_other =
        found.has("single_transformer_blocks.0.attn.norm_k.weight") || found.has("txt_norm.weight");
    (!is_other && found.has("pos_embed.proj.weight")).then_some(Cow::Borrowed("Stable Diffusion 3"))
}

/// The sizes of a released model.
struct Sizes {
    hidden: usize,
    blocks: usize,
    positions_side: usize,
}

const LARGE: Sizes = Sizes { hidden: 2432, blocks: 38, positions_side: 192 };
const SMALL: Sizes = Sizes { hidden: 256, blocks: 8, positions_side: 32 };

/// The tensors of a model with normalised heads and one attention per block; at most so many blocks.
fn tensors(sizes: &Sizes, most_blocks: usize) -> Vec<(String, Shape)> {
    let Sizes { hidden, blocks, positions_side } = *sizes;
    let mut all = vec![
        ("pos_embed".to_owned(), Shape::from([1, positions_side * positions_side, hidden])),
        ("x_embedder.proj.weight".to_owned(), Shape::from([hidden, 16, 2, 2])),
        ("x_embedder.proj.bias".to_owned(), Shape::from([hidden])),
    ];
    let mut linear = |name: String, out: usize, from: usize| {
        all.push((format!("{name}.weight"), Shape::from([out, from])));
        all.push((format!("{name}.bias"), Shape::from([out])));
    };
    for (name, width) in [("t_embedder", 256), ("y_embedder", 2048)] {
        linear(format!("{name}.mlp.0"), hidden, width);
        linear(format!("{name}.mlp.2"), hidden, hidden);
    }
    linear("context_embedder".to_owned(), hidden, TEXT_WIDTH);
    let blocks = blocks.min(most_blocks);
    for (block, side) in (0..blocks).flat_map(|block| [(block, "context_block"), (block, "x_block")]) {
        let name = |part: &str| format!("joint_blocks.{block}.{side}.{part}");
        let ends = side == "context_block" && block + 1 == blocks;
        linear(name("adaLN_modulation.1"), if ends { 2 * hidden } else { 6 * hidden }, hidden);
        linear(name("attn.qkv"), 3 * hidden, hidden);
        if !ends {
            linear(name("attn.proj"), hidden, hidden);
            linear(name("mlp.fc1"), 4 * hidden, hidden);
            linear(name("mlp.fc2"), hidden, 4 * hidden);
        }
    }
    linear("final_layer.adaLN_modulation.1".to_owned(), 2 * hidden, hidden);
    linear("final_layer.linear".to_owned(), 64, hidden);
    let norms = (0..blocks).flat_map(|block| {
        ["context_block.attn.ln_q", "context_block.attn.ln_k", "x_block.attn.ln_q", "x_block.attn.ln_k"]
            .map(|name| (format!("joint_blocks.{block}.{name}.weight"), Shape::from([64])))
    });
    all.extend(norms);
    all
}
