//! What files call the weights: as later releases do, which are the names that the model knows, or as the first one did.

use checkpoint::Checkpoint;
use meta::Shape;
use patch::KeyMap;

use super::config::FAMILY;
use crate::claims::Claims;

/// From the names of later releases to those of the first, in this order.
const FIRST_RELEASE: &[(&str, &str)] = &[
    ("_mod.lin.", "_mod.linear."),
    (".modulation.lin.", ".modulation.linear."),
    ("_attn.qkv.", "_attn_qkv."),
    ("_attn.proj.", "_attn_proj."),
    ("_attn.norm.query_norm.scale", "_attn_q_norm.weight"),
    ("_attn.norm.key_norm.scale", "_attn_k_norm.weight"),
    (".norm.query_norm.scale", ".q_norm.weight"),
    (".norm.key_norm.scale", ".k_norm.weight"),
    ("mlp.0.", "mlp.fc1."),
    ("mlp.2.", "mlp.fc2."),
    ("c_embedder.in_layer.", "c_embedder.linear_1."),
    ("c_embedder.out_layer.", "c_embedder.linear_2."),
    ("t_embedder.in_layer.", "t_embedder.mlp.0."),
    ("t_embedder.out_layer.", "t_embedder.mlp.2."),
    ("time_in.in_layer.", "time_in.mlp.0."),
    ("time_in.out_layer.", "time_in.mlp.2."),
    ("time_r_in.in_layer.", "time_r_in.mlp.0."),
    ("time_r_in.out_layer.", "time_r_in.mlp.2."),
    ("guidance_in.in_layer.", "guidance_in.mlp.0."),
    ("guidance_in.out_layer.", "guidance_in.mlp.2."),
];

/// The tensors of a part of a file, by the names that the model knows.
pub(super) fn claims<'a>(checkpoint: &'a Checkpoint, prefix: &'a str) -> Claims<'a> {
    let claims = Claims::new(checkpoint, prefix, FAMILY);
    let is_first = claims.find("double_blocks.0.img_attn_qkv.weight").is_some();
    if is_first { claims.named_by(|name| vec![of_first_release(name)]) } else { claims }
}

/// What patch files call the layers: the model's own names, and those of the first release, which most trainers use.
pub(super) fn patch_keys(weights: &[(String, Shape)]) -> KeyMap {
    let mut map = KeyMap::native(weights.iter().map(|(name, shape)| (name.as_str(), shape)));
    for (name, _) in weights {
        let first = of_first_release(name);
        if let (Some(layer), Some(first)) = (name.strip_suffix(".weight"), first.strip_suffix(".weight")) {
            map.alias(first, layer);
        }
    }
    map
}

fn of_first_release(name: &str) -> String {
    FIRST_RELEASE.iter().fold(name.to_owned(), |name, (later, first)| name.replace(later, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_may_have_the_names_of_either_release() {
        let weights: Vec<(String, Shape)> = [
            ("double_blocks.0.img_attn.qkv.weight", Shape::from([24, 8])),
            ("single_blocks.0.modulation.lin.weight", Shape::from([24, 8])),
            ("double_blocks.0.txt_mlp.2.weight", Shape::from([8, 8])),
        ]
        .map(|(name, shape)| (name.to_owned(), shape))
        .to_vec();
        let map = patch_keys(&weights);
        for (key, weight) in [
            ("transformer.double_blocks.0.img_attn_qkv", 0),
            ("transformer.single_blocks.0.modulation.linear", 1),
            ("diffusion_model.double_blocks.0.txt_mlp.fc2", 2),
            ("lora_unet_double_blocks_0_img_attn_qkv", 0),
            ("lora_unet_double_blocks_0_txt_mlp_2", 2),
        ] {
            assert_eq!(map.find(key).map(|target| &target.weight), Some(&weights[weight].0), "{key}");
        }
    }

    #[test]
    fn names_of_the_first_release() {
        for (later, first) in [
            ("double_blocks.0.txt_attn.norm.key_norm.scale", "double_blocks.0.txt_attn_k_norm.weight"),
            ("single_blocks.3.norm.query_norm.scale", "single_blocks.3.q_norm.weight"),
            ("double_blocks.0.img_mlp.2.bias", "double_blocks.0.img_mlp.fc2.bias"),
            ("time_in.in_layer.weight", "time_in.mlp.0.weight"),
            ("txt_in.t_embedder.out_layer.bias", "txt_in.t_embedder.mlp.2.bias"),
            ("txt_in.c_embedder.in_layer.weight", "txt_in.c_embedder.linear_1.weight"),
            ("vector_in.in_layer.weight", "vector_in.in_layer.weight"),
            (
                "txt_in.individual_token_refiner.blocks.1.self_attn.qkv.weight",
                "txt_in.individual_token_refiner.blocks.1.self_attn_qkv.weight",
            ),
        ] {
            assert_eq!(of_first_release(later), first);
        }
    }
}
