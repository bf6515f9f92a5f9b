//! Other diffusion transformers whose patch files use names of their own: SD3, Z-Image and Lumina 2, HunyuanVideo.

use meta::Shape;

use super::KeyMap;
use super::table::Blocks;

const SD3_LAYERS: &[(&str, &str)] = &[
    ("pos_embed.proj", "x_embedder.proj"),
    ("time_text_embed.timestep_embedder.linear_1", "t_embedder.mlp.0"),
    ("time_text_embed.timestep_embedder.linear_2", "t_embedder.mlp.2"),
    ("time_text_embed.text_embedder.linear_1", "y_embedder.mlp.0"),
    ("time_text_embed.text_embedder.linear_2", "y_embedder.mlp.2"),
    ("proj_out", "final_layer.linear"),
];

const SD3_BLOCKS: Blocks = Blocks {
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

const Z_IMAGE_LAYERS: &[(&str, &str)] = &[
    ("all_x_embedder.2-1", "x_embedder"),
    ("all_final_layer.2-1.linear", "final_layer.linear"),
    ("all_final_layer.2-1.adaLN_modulation.1", "final_layer.adaLN_modulation.1"),
];

/// The stacks of a Z-Image or Lumina 2 model; all are alike.
const Z_IMAGE_STACKS: [&str; 3] = ["layers", "context_refiner", "noise_refiner"];

impl KeyMap {
    /// The names of an SD3 model's layers.
    pub fn for_sd3<'a>(names: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> KeyMap {
        let mut map = KeyMap::native(names);
        map.add_layers(SD3_LAYERS);
        map.alias_swapped("norm_out.linear", "final_layer.adaLN_modulation.1");
        map.add_blocks(&SD3_BLOCKS);
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

    /// The names of a Z-Image or Lumina 2 model's layers.
    pub fn for_z_image<'a>(names: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> KeyMap {
        let mut map = KeyMap::native(names);
        map.add_layers(Z_IMAGE_LAYERS);
        for stack in Z_IMAGE_STACKS {
            map.add_blocks(&Blocks {
                file: stack,
                model: stack,
                layers: &[
                    ("attention.to_out.0", "attention.out"),
                    ("attention.norm_q", "attention.q_norm"),
                    ("attention.norm_k", "attention.k_norm"),
                ],
                fused: &[("attention.qkv", &["attention.to_q", "attention.to_k", "attention.to_v"])],
            });
        }
        map
    }

    /// The names of a HunyuanVideo model's layers: its own, and those of the model's first release.
    pub fn for_hunyuan_video<'a>(names: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> KeyMap {
        let mut map = KeyMap::native(names);
        let layers: Vec<String> =
            map.shapes.keys().filter_map(|name| name.strip_suffix(".weight").map(str::to_owned)).collect();
        for layer in layers {
            let released = format!("{layer}.")
                .replace("_mod.lin.", "_mod.linear.")
                .replace(".modulation.lin.", ".modulation.linear.")
                .replace("_attn.qkv.", "_attn_qkv.")
                .replace("_attn.proj.", "_attn_proj.")
                .replace("mlp.0.", "mlp.fc1.")
                .replace("mlp.2.", "mlp.fc2.");
            map.alias(released.trim_end_matches('.'), &layer);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rows;

    fn map<'a>(shapes: &'a [(&'a str, Shape)], make: fn(Vec<(&'a str, &'a Shape)>) -> KeyMap) -> KeyMap {
        make(shapes.iter().map(|(n, s)| (*n, s)).collect())
    }

    #[test]
    fn sd3_swaps_only_the_last_context() {
        let shapes = [
            ("joint_blocks.0.context_block.adaLN_modulation.1.weight", Shape::from([48, 8])),
            ("joint_blocks.0.x_block.attn.qkv.weight", Shape::from([24, 8])),
            ("joint_blocks.1.context_block.adaLN_modulation.1.weight", Shape::from([16, 8])),
            ("joint_blocks.1.x_block.attn2.qkv.weight", Shape::from([24, 8])),
        ];
        let map = map(&shapes, KeyMap::for_sd3);
        let swapped = |i: usize| {
            map.find(&format!("transformer.transformer_blocks.{i}.norm1_context.linear"))
                .unwrap()
                .halves_swapped
        };
        assert_eq!((swapped(0), swapped(1)), (false, true));
        let rows = map.find("lora_transformer_transformer_blocks_1_attn2_to_v").unwrap().rows;
        assert_eq!(rows, Some(Rows { start: 16, len: 8 }));
    }

    #[test]
    fn z_image_and_hunyuan_video() {
        let shapes = [
            ("layers.0.attention.qkv.weight", Shape::from([24, 8])),
            ("noise_refiner.0.attention.out.weight", Shape::from([8, 8])),
        ];
        let z_image = map(&shapes, KeyMap::for_z_image);
        let target = z_image.find("diffusion_model.layers.0.attention.to_k").unwrap();
        assert_eq!(target.rows, Some(Rows { start: 8, len: 8 }));
        let out = z_image.find("transformer.noise_refiner.0.attention.to_out.0").unwrap();
        assert_eq!(out.weight, "noise_refiner.0.attention.out.weight");

        let shapes = [
            ("double_blocks.0.img_attn.qkv.weight", Shape::from([24, 8])),
            ("single_blocks.0.modulation.lin.weight", Shape::from([24, 8])),
            ("double_blocks.0.txt_mlp.2.weight", Shape::from([8, 8])),
        ];
        let video = map(&shapes, KeyMap::for_hunyuan_video);
        for (key, weight) in [
            ("transformer.double_blocks.0.img_attn_qkv", shapes[0].0),
            ("transformer.single_blocks.0.modulation.linear", shapes[1].0),
            ("diffusion_model.double_blocks.0.txt_mlp.fc2", shapes[2].0),
            ("lora_unet_double_blocks_0_img_attn_qkv", shapes[0].0),
        ] {
            assert_eq!(video.find(key).map(|t| t.weight.as_str()), Some(weight), "{key}");
        }
    }
}
