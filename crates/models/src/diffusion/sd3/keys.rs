//! What patch files call the layers: the names of diffusers and of those that follow it.

use meta::Shape;
use patch::{Blocks, KeyMap};

use crate::diffusion::file_names;

const LAYERS: &[(&str, &str)] = &[
    ("pos_embed.proj", "x_embedder.proj"),
    ("time_text_embed.timestep_embedder.linear_1", "t_embedder.mlp.0"),
    ("time_text_embed.timestep_embedder.linear_2", "t_embedder.mlp.2"),
    ("time_text_embed.text_embedder.linear_1", "y_embedder.mlp.0"),
    ("time_text_embed.text_embedder.linear_2", "y_embedder.mlp.2"),
    ("proj_out", "final_layer.linear"),
];

const BLOCKS: Blocks = Blocks {
    file: "transformer_blocks",
    model: "joint_blocks",
    layers: &[
        ("norm1.linear", "x_block.adaLN_modulation.1"),
        ("attn.to_out.0", "x_block.attn.proj"),
        ("attn.norm_q", "x_block.attn.ln_q"),
        ("attn.norm_k", "x_block.attn.ln_k"),
        ("attn2.to_out.0", "x_block.attn2.proj"),
        ("attn2.norm_q", "x_block.attn2.ln_q"),
        ("attn2.norm_k", "x_block.attn2.ln_k"),
        ("ff.net.0.proj", "x_block.mlp.fc1"),
        ("ff.net.2", "x_block.mlp.fc2"),
        ("attn.to_add_out", "context_block.attn.proj"),
        ("attn.norm_added_q", "context_block.attn.ln_q"),
        ("attn.norm_added_k", "context_block.attn.ln_k"),
        ("ff_context.net.0.proj", "context_block.mlp.fc1"),
        ("ff_context.net.2", "context_block.mlp.fc2"),
    ],
    fused: &[
        ("x_block.attn.qkv", &["attn.to_q", "attn.to_k", "attn.to_v"]),
        ("x_block.attn2.qkv", &["attn2.to_q", "attn2.to_k", "attn2.to_v"]),
        ("context_block.attn.qkv", &["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"]),
    ],
};

/// What a control network's file in the layout of diffusers calls a weight.
pub(super) fn diffusers_names(name: &str) -> Vec<String> {
    if name == "pos_embed" {
        return vec!["pos_embed.pos_embed".to_owned()];
    }
    let context = "context_block.adaLN_modulation.1.";
    let changed = name.strip_prefix("joint_blocks.").and_then(|rest| rest.split_once('.'));
    match changed.and_then(|(index, rest)| Some((index, rest.strip_prefix(context)?))) {
        Some((index, end)) => vec![format!("transformer_blocks.{index}.norm1_context.linear.{end}")],
        None => file_names::of_weight(name, LAYERS, &[&BLOCKS]),
    }
}

/// The names of a model's layers.
pub fn key_map<'a>(names: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> KeyMap {
    let mut map = KeyMap::native(names);
    map.add_layers(LAYERS);
    map.alias_swapped("norm_out.linear", "final_layer.adaLN_modulation.1");
    map.add_blocks(&BLOCKS);
    let mut index = 0;
    while let Some((rows, width)) =
        map.matrix(&format!("joint_blocks.{index}.context_block.adaLN_modulation.1"))
    {
        let file = format!("transformer_blocks.{index}.norm1_context.linear");
        let layer = format!("joint_blocks.{index}.context_block.adaLN_modulation.1");
        // The last block only shifts and scales its context, which diffusers has the other way round.
        let last = width.checked_mul(2) == Some(rows);
        if last {
            map.alias_swapped(&file, &layer)
        } else {
            map.alias(&file, &layer)
        };
        index += 1;
    }
    map
}

#[cfg(test)]
mod tests {
    use patch::Rows;

    use super::*;

    #[test]
    fn only_the_last_context_is_swapped() {
        let shapes = [
            ("joint_blocks.0.context_block.adaLN_modulation.1.weight", Shape::from([48, 8])),
            ("joint_blocks.0.x_block.attn.qkv.weight", Shape::from([24, 8])),
            ("joint_blocks.1.context_block.adaLN_modulation.1.weight", Shape::from([16, 8])),
            ("joint_blocks.1.x_block.attn2.qkv.weight", Shape::from([24, 8])),
        ];
        let map = key_map(shapes.iter().map(|(name, shape)| (*name, shape)));
        let swapped = |i: usize| {
            map.find(&format!("transformer.transformer_blocks.{i}.norm1_context.linear"))
                .unwrap()
                .halves_swapped
        };
        assert_eq!((swapped(0), swapped(1)), (false, true));
        let rows = map.find("lora_transformer_transformer_blocks_1_attn2_to_v").unwrap().rows;
        assert_eq!(rows, Some(Rows { start: 16, len: 8 }));
    }
}
