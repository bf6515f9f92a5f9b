//! What patch files call the layers: the names of diffusers and of those that follow it.

use meta::Shape;
use patch::{Blocks, KeyMap};

const LAYERS: &[(&str, &str)] = &[
    ("img_in", "first"),
    ("time_embed.linear_1", "tmlp.0"),
    ("time_embed.linear_2", "tmlp.2"),
    ("time_mod_proj", "tproj.1"),
    ("txt_in.norm", "txtmlp.0.scale"),
    ("txt_in.linear_1", "txtmlp.1"),
    ("txt_in.linear_2", "txtmlp.3"),
    ("text_fusion.projector", "txtfusion.projector"),
    ("final_layer.linear", "last.linear"),
    ("final_layer.norm", "last.norm.scale"),
];

/// The layers of a block.
const BLOCK: &[(&str, &str)] = &[
    ("attn.to_q", "attn.wq"),
    ("attn.to_k", "attn.wk"),
    ("attn.to_v", "attn.wv"),
    ("attn.to_gate", "attn.gate"),
    ("attn.to_out.0", "attn.wo"),
    ("attn.norm_q", "attn.qknorm.qnorm.scale"),
    ("attn.norm_k", "attn.qknorm.knorm.scale"),
    ("ff.gate", "mlp.gate"),
    ("ff.up", "mlp.up"),
    ("ff.down", "mlp.down"),
    ("norm1", "prenorm.scale"),
    ("norm2", "postnorm.scale"),
];

/// The stacks of blocks: what files call them, and the model.
const STACKS: [(&str, &str); 3] = [
    ("transformer_blocks", "blocks"),
    ("text_fusion.layerwise_blocks", "txtfusion.layerwise_blocks"),
    ("text_fusion.refiner_blocks", "txtfusion.refiner_blocks"),
];

/// The names of a model's layers.
pub fn key_map<'a>(names: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> KeyMap {
    let mut map = KeyMap::native(names);
    map.add_layers(LAYERS);
    for (file, model) in STACKS {
        map.add_blocks(&Blocks { file, model, layers: BLOCK, fused: &[] });
    }
    map
}
