//! What patch files call the layers.

use meta::Shape;
use patch::{Blocks, KeyMap};

/// Diffusers has the two inputs of a feed-forward layer apart.
const FUSED: Blocks = Blocks {
    file: "transformer_blocks",
    model: "transformer_blocks",
    layers: &[("img_mlp.gate_layer", "img_mlp.gate_up.0"), ("img_mlp.proj", "img_mlp.gate_up.1")],
    fused: &[("img_mlp.gate_up", &["img_mlp.gate_layer", "img_mlp.proj"])],
};

/// The names of a model's layers.
pub fn key_map<'a>(names: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> KeyMap {
    let mut map = KeyMap::native(names);
    map.add_blocks(&FUSED);
    map
}
