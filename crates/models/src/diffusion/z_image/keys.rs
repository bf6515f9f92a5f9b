//! What patch files call the layers: the names of diffusers and of those that follow it.

use meta::Shape;
use patch::{Blocks, KeyMap, Rows};

const LAYERS: &[(&str, &str)] = &[
    ("all_x_embedder.2-1", "x_embedder"),
    ("all_final_layer.2-1.linear", "final_layer.linear"),
    ("all_final_layer.2-1.adaLN_modulation.1", "final_layer.adaLN_modulation.1"),
];

/// The stacks of blocks; all are alike.
const STACKS: [&str; 3] = ["layers", "context_refiner", "noise_refiner"];

/// The names of a model's layers.
pub fn key_map<'a>(names: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> KeyMap {
    let mut map = KeyMap::native(names);
    map.add_layers(LAYERS);
    for stack in STACKS {
        map.add_blocks(&Blocks {
            file: stack,
            model: stack,
            layers: &[
                ("attention.to_out.0", "attention.out"),
                ("attention.norm_q", "attention.q_norm"),
                ("attention.norm_k", "attention.k_norm"),
            ],
            fused: &[],
        });
        let mut index = 0;
        while add_heads(&mut map, &format!("{stack}.{index}.attention")) {
            index += 1;
        }
    }
    map
}

/// Queries, keys and values, which one layer gives; keys and values may be fewer than queries.
fn add_heads(map: &mut KeyMap, attention: &str) -> bool {
    let layer = format!("{attention}.qkv");
    let Some((rows, width)) = map.matrix(&layer) else { return false };
    let queries = map.matrix(&format!("{attention}.out")).map_or(width, |(_, queries)| queries);
    let keys = rows.saturating_sub(queries) / 2;
    let parts = [("to_q", 0, queries), ("to_k", queries, keys), ("to_v", queries + keys, keys)];
    for (name, start, len) in parts {
        map.alias_rows(&format!("{attention}.{name}"), &layer, Rows { start, len });
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_keys_and_values_are_rows() {
        let shapes = [
            ("layers.0.attention.qkv.weight", Shape::from([24, 8])),
            ("layers.0.attention.out.weight", Shape::from([8, 8])),
            ("noise_refiner.0.attention.qkv.weight", Shape::from([16, 8])),
            ("noise_refiner.0.attention.out.weight", Shape::from([8, 8])),
        ];
        let map = key_map(shapes.iter().map(|(name, shape)| (*name, shape)));
        let rows =
            |key: &str| map.find(key).and_then(|target| target.rows).map(|rows| (rows.start, rows.len));
        assert_eq!(rows("diffusion_model.layers.0.attention.to_k"), Some((8, 8)));
        assert_eq!(rows("lora_unet_noise_refiner_0_attention_to_k"), Some((8, 4)));
        assert_eq!(rows("transformer.noise_refiner.0.attention.to_v"), Some((12, 4)));
        let out = map.find("transformer.noise_refiner.0.attention.to_out.0").unwrap();
        assert_eq!(out.weight, "noise_refiner.0.attention.out.weight");
    }
}
