//! What patch files call the layers of blocks of two kinds ([`super::streams`]): the names that diffusers, OneTrainer and
//! SimpleTuner use for FLUX, and those of adapters that name processors.

use meta::Shape;
use patch::{Blocks, KeyMap, Rows};

use crate::diffusion::file_names;

/// Layers outside of blocks.
const LAYERS: &[(&str, &str)] = &[
    ("x_embedder", "img_in"),
    ("context_embedder", "txt_in"),
    ("time_text_embed.timestep_embedder.linear_1", "time_in.in_layer"),
    ("time_text_embed.timestep_embedder.linear_2", "time_in.out_layer"),
    ("time_text_embed.text_embedder.linear_1", "vector_in.in_layer"),
    ("time_text_embed.text_embedder.linear_2", "vector_in.out_layer"),
    ("time_text_embed.guidance_embedder.linear_1", "guidance_in.in_layer"),
    ("time_text_embed.guidance_embedder.linear_2", "guidance_in.out_layer"),
    ("proj_out", "final_layer.linear"),
];

const DOUBLE: Blocks = Blocks {
    file: "transformer_blocks",
    model: "double_blocks",
    layers: &[
        ("norm1.linear", "img_mod.lin"),
        ("norm1_context.linear", "txt_mod.lin"),
        ("attn.to_out.0", "img_attn.proj"),
        ("attn.to_add_out", "txt_attn.proj"),
        ("attn.norm_q", "img_attn.norm.query_norm.scale"),
        ("attn.norm_k", "img_attn.norm.key_norm.scale"),
        ("attn.norm_added_q", "txt_attn.norm.query_norm.scale"),
        ("attn.norm_added_k", "txt_attn.norm.key_norm.scale"),
        ("ff.net.0.proj", "img_mlp.0"),
        ("ff.net.2", "img_mlp.2"),
        ("ff_context.net.0.proj", "txt_mlp.0"),
        ("ff_context.net.2", "txt_mlp.2"),
    ],
    fused: &[
        ("img_attn.qkv", &["attn.to_q", "attn.to_k", "attn.to_v"]),
        ("txt_attn.qkv", &["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"]),
    ],
};

const SINGLE: Blocks = Blocks {
    file: "single_transformer_blocks",
    model: "single_blocks",
    layers: &[
        ("norm.linear", "modulation.lin"),
        ("proj_out", "linear2"),
        ("attn.norm_q", "norm.query_norm.scale"),
        ("attn.norm_k", "norm.key_norm.scale"),
    ],
    fused: &[],
};

/// Adapters that name the attention processor of a block: 1 is the image's side, 2 the text's.
const DOUBLE_PROCESSORS: Blocks = Blocks {
    file: "double_blocks",
    model: "double_blocks",
    layers: &[
        ("processor.qkv_lora1", "img_attn.qkv"),
        ("processor.qkv_lora2", "txt_attn.qkv"),
        ("processor.proj_lora1", "img_attn.proj"),
        ("processor.proj_lora2", "txt_attn.proj"),
    ],
    fused: &[],
};

const SINGLE_PROCESSORS: Blocks = Blocks {
    file: "single_blocks",
    model: "single_blocks",
    layers: &[("processor.proj", "linear2")],
    fused: &[],
};

/// The first layer of a single block, which files of diffusers have in pieces.
const SINGLE_FIRST: Blocks = Blocks {
    file: "single_transformer_blocks",
    model: "single_blocks",
    layers: &[],
    fused: &[("linear1", &["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"])],
};

/// What a control network's file in the layout of diffusers calls a weight.
pub(super) fn diffusers_names(name: &str) -> Vec<String> {
    match name.strip_prefix("pos_embed_input.") {
        Some(end) => vec![format!("controlnet_x_embedder.{end}")],
        None => file_names::of_weight(name, LAYERS, &[&DOUBLE, &SINGLE, &SINGLE_FIRST]),
    }
}

/// The names of a model's layers.
pub fn key_map<'a>(names: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> KeyMap {
    let mut map = KeyMap::native(names);
    map.add_layers(LAYERS);
    // Diffusers has scale before shift here.
    map.alias_swapped("norm_out.linear", "final_layer.adaLN_modulation.1");
    for blocks in [DOUBLE, SINGLE, DOUBLE_PROCESSORS, SINGLE_PROCESSORS] {
        map.add_blocks(&blocks);
    }
    let mut index = 0;
    while add_first_linear(&mut map, index) {
        index += 1;
    }
    map
}

/// The parts of a single block's first layer: queries, keys and values of the model's width, then the rest.
fn add_first_linear(map: &mut KeyMap, index: usize) -> bool {
    let layer = format!("single_blocks.{index}.linear1");
    let Some((rows, width)) = map.matrix(&layer) else { return false };
    let Some(rest) = width.checked_mul(3).and_then(|attention| rows.checked_sub(attention)) else {
        return false;
    };
    let file = format!("single_transformer_blocks.{index}");
    for (i, part) in ["to_q", "to_k", "to_v"].into_iter().enumerate() {
        map.alias_rows(&format!("{file}.attn.{part}"), &layer, Rows { start: i * width, len: width });
    }
    let attention = Rows { start: 0, len: 3 * width };
    map.alias_rows(&format!("{layer}_qkv"), &layer, attention);
    map.alias_rows(&format!("single_blocks.{index}.processor.qkv"), &layer, attention);
    map.alias_rows(&format!("{file}.proj_mlp"), &layer, Rows { start: 3 * width, len: rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> KeyMap {
        let shapes = [
            ("double_blocks.0.img_attn.qkv.weight", vec![24, 8]),
            ("double_blocks.0.img_attn.qkv.bias", vec![24]),
            ("double_blocks.0.img_attn.norm.query_norm.scale", vec![4]),
            ("double_blocks.1.txt_attn.qkv.weight", vec![24, 8]),
            ("single_blocks.0.linear1.weight", vec![44, 8]),
            ("single_blocks.0.linear2.weight", vec![8, 28]),
            ("final_layer.adaLN_modulation.1.weight", vec![16, 8]),
            ("final_layer.linear.weight", vec![4, 8]),
        ];
        let shapes: Vec<(&str, Shape)> = shapes.iter().map(|(n, d)| (*n, Shape::new(d).unwrap())).collect();
        key_map(shapes.iter().map(|(n, s)| (*n, s)))
    }

    #[test]
    fn fused_layers_are_rows() {
        let map = map();
        for (key, weight, rows) in [
            ("transformer.transformer_blocks.0.attn.to_q", "double_blocks.0.img_attn.qkv.weight", (0, 8)),
            ("transformer.transformer_blocks.0.attn.to_v", "double_blocks.0.img_attn.qkv.weight", (16, 8)),
            (
                "lora_transformer_transformer_blocks_1_attn_add_k_proj",
                "double_blocks.1.txt_attn.qkv.weight",
                (8, 8),
            ),
            ("lycoris_single_transformer_blocks_0_attn_to_k", "single_blocks.0.linear1.weight", (8, 8)),
            ("transformer.single_transformer_blocks.0.proj_mlp", "single_blocks.0.linear1.weight", (24, 20)),
            ("diffusion_model.single_blocks.0.linear1_qkv", "single_blocks.0.linear1.weight", (0, 24)),
        ] {
            let target = map.find(key).unwrap_or_else(|| panic!("{key}"));
            let (start, len) = rows;
            assert_eq!((target.weight.as_str(), target.rows), (weight, Some(Rows { start, len })), "{key}");
        }
        let bias = map.bias_of(map.find("transformer.transformer_blocks.0.attn.to_k").unwrap()).unwrap();
        assert_eq!(
            (bias.weight.as_str(), bias.rows.unwrap().start),
            ("double_blocks.0.img_attn.qkv.bias", 8)
        );
    }

    #[test]
    fn other_layers_are_whole() {
        let map = map();
        let found = |key: &str| map.find(key).map(|t| (t.weight.as_str(), t.halves_swapped));
        assert_eq!(found("transformer.proj_out"), Some(("final_layer.linear.weight", false)));
        assert_eq!(
            found("transformer.norm_out.linear"),
            Some(("final_layer.adaLN_modulation.1.weight", true))
        );
        let norm = "double_blocks.0.img_attn.norm.query_norm.scale";
        assert_eq!(found("transformer.transformer_blocks.0.attn.norm_q"), Some((norm, false)));
        assert_eq!(found("single_blocks.0.processor.proj"), Some(("single_blocks.0.linear2.weight", false)));
        assert_eq!(found("transformer.transformer_blocks.2.attn.to_q"), None);
        assert_eq!(found("transformer.x_embedder"), None);
    }
}
