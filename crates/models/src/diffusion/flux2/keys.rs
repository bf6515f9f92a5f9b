//! What patch files call the layers: the names of diffusers and of those that follow it.

use meta::Shape;
use patch::{Blocks, KeyMap, Rows};

const LAYERS: &[(&str, &str)] = &[
    ("x_embedder", "img_in"),
    ("context_embedder", "txt_in"),
    ("time_guidance_embed.timestep_embedder.linear_1", "time_in.in_layer"),
    ("time_guidance_embed.timestep_embedder.linear_2", "time_in.out_layer"),
    ("time_guidance_embed.guidance_embedder.linear_1", "guidance_in.in_layer"),
    ("time_guidance_embed.guidance_embedder.linear_2", "guidance_in.out_layer"),
    ("double_stream_modulation_img.linear", "double_stream_modulation_img.lin"),
    ("double_stream_modulation_txt.linear", "double_stream_modulation_txt.lin"),
    ("single_stream_modulation.linear", "single_stream_modulation.lin"),
    ("proj_out", "final_layer.linear"),
];

const DOUBLE: Blocks = Blocks {
    file: "transformer_blocks",
    model: "double_blocks",
    layers: &[
        ("attn.to_out.0", "img_attn.proj"),
        ("attn.to_add_out", "txt_attn.proj"),
        ("attn.norm_q", "img_attn.norm.query_norm.scale"),
        ("attn.norm_k", "img_attn.norm.key_norm.scale"),
        ("attn.norm_added_q", "txt_attn.norm.query_norm.scale"),
        ("attn.norm_added_k", "txt_attn.norm.key_norm.scale"),
        ("ff.linear_in", "img_mlp.0"),
        ("ff.linear_out", "img_mlp.2"),
        ("ff_context.linear_in", "txt_mlp.0"),
        ("ff_context.linear_out", "txt_mlp.2"),
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
        ("attn.to_qkv_mlp_proj", "linear1"),
        ("attn.to_out", "linear2"),
        ("attn.norm_q", "norm.query_norm.scale"),
        ("attn.norm_k", "norm.key_norm.scale"),
    ],
    fused: &[],
};

/// The names of a model's layers.
pub fn key_map<'a>(names: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> KeyMap {
    let mut map = KeyMap::native(names);
    map.add_layers(LAYERS);
    // Diffusers has scale before shift here.
    map.alias_swapped("norm_out.linear", "final_layer.adaLN_modulation.1");
    map.add_blocks(&DOUBLE);
    map.add_blocks(&SINGLE);
    let mut index = 0;
    while add_first_linear(&mut map, index) {
        index += 1;
    }
    map
}

/// The parts of a single block's first layer, where a file has them apart.
fn add_first_linear(map: &mut KeyMap, index: usize) -> bool {
    let layer = format!("single_blocks.{index}.linear1");
    let Some((rows, width)) = map.matrix(&layer) else { return false };
    let Some(rest) = rows.checked_sub(3 * width) else { return false };
    let file = format!("single_transformer_blocks.{index}");
    for (i, part) in ["to_q", "to_k", "to_v"].into_iter().enumerate() {
        map.alias_rows(&format!("{file}.attn.{part}"), &layer, Rows { start: i * width, len: width });
    }
    map.alias_rows(&format!("{file}.proj_mlp"), &layer, Rows { start: 3 * width, len: rest })
}
