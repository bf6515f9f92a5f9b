//! What patch files call the layers: the names of diffusers and of those that follow it.

use meta::Shape;
use patch::{Blocks, KeyMap};

const LAYERS: &[(&str, &str)] = &[
    ("x_embedders.image", "emb_in.image"),
    ("x_embedders.image_cond", "emb_in.image_cond"),
    ("context_embedder", "txt_in"),
    ("timestep_embedder.linear_1", "time_in.in_layer"),
    ("timestep_embedder.linear_2", "time_in.out_layer"),
    ("target_timestep_embedder.linear_1", "ref_time_in.in_layer"),
    ("target_timestep_embedder.linear_2", "ref_time_in.out_layer"),
    ("early_stream_modulations.image.linear", "early_stream_modulations.image.lin"),
    ("early_stream_modulations.image_cond.linear", "early_stream_modulations.image_cond.lin"),
    ("early_stream_modulations.txt.linear", "early_stream_modulations.txt.lin"),
    ("single_stream_modulations.image.linear", "single_stream_modulations.image.lin"),
    ("single_stream_modulations.image_cond.linear", "single_stream_modulations.image_cond.lin"),
    ("single_stream_modulations.txt.linear", "single_stream_modulations.txt.lin"),
    ("proj_out", "final_layer.image.linear"),
];

/// The layers of a block.
const BLOCK: &[(&str, &str)] = &[
    ("attn.to_q", "q_proj"),
    ("attn.to_k", "k_proj"),
    ("attn.to_v", "v_proj"),
    ("attn.to_out.0", "attn_out"),
    ("attn.norm_q", "norm.query_norm.scale"),
    ("attn.norm_k", "norm.key_norm.scale"),
    ("ff.linear_in", "mlp_in"),
    ("ff.linear_out", "mlp_out"),
];

/// The stacks of blocks: what files call them, and the model.
const STACKS: [(&str, &str); 4] = [
    ("mode_blocks.image", "content_mode_blocks.image"),
    ("mode_blocks.image_cond", "content_mode_blocks.image_cond"),
    ("txt_mode_blocks", "txt_mode_blocks"),
    ("single_transformer_blocks", "single_blocks"),
];

/// The names of a model's layers.
pub fn key_map<'a>(names: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> KeyMap {
    let mut map = KeyMap::native(names);
    map.add_layers(LAYERS);
    // Diffusers has scale before shift here.
    map.alias_swapped("norm_out.linear", "final_layer.image.adaLN_modulation.1");
    for (file, model) in STACKS {
        map.add_blocks(&Blocks { file, model, layers: BLOCK, fused: &[] });
    }
    map
}
