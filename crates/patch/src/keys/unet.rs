//! The UNet of SD1.5, SD2 and SDXL: diffusers counts levels and blocks within them, the model counts all blocks.

use meta::Shape;

use super::KeyMap;

/// Layers outside of blocks.
const LAYERS: &[(&str, &str)] = &[
    ("conv_in", "input_blocks.0.0"),
    ("conv_norm_out", "out.0"),
    ("conv_out", "out.2"),
    ("time_embedding.linear_1", "time_embed.0"),
    ("time_embedding.linear_2", "time_embed.2"),
    ("add_embedding.linear_1", "label_emb.0.0"),
    ("add_embedding.linear_2", "label_emb.0.2"),
    ("class_embedding.linear_1", "label_emb.0.0"),
    ("class_embedding.linear_2", "label_emb.0.2"),
];

/// Layers of a residual block.
const RESIDUAL: &[(&str, &str)] = &[
    ("norm1", "in_layers.0"),
    ("conv1", "in_layers.2"),
    ("time_emb_proj", "emb_layers.1"),
    ("norm2", "out_layers.0"),
    ("conv2", "out_layers.3"),
    ("conv_shortcut", "skip_connection"),
];

/// Layers of an attention block, which both sides call the same.
const ATTENTION: &[&str] = &["norm", "proj_in", "proj_out"];

/// Layers of a transformer block, which both sides call the same.
const TRANSFORMER: &[&str] = &["norm1", "norm2", "norm3", "ff.net.0.proj", "ff.net.2"];

impl KeyMap {
    /// The names of an SD1.5, SD2 or SDXL UNet's layers.
    pub fn for_unet<'a>(names: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> KeyMap {
        let mut map = KeyMap::native(names);
        map.add_layers(LAYERS);
        map.add_down_blocks();
        map.add_residual("mid_block.resnets.0", "middle_block.0");
        map.add_attention("mid_block.attentions.0", "middle_block.1");
        map.add_residual("mid_block.resnets.1", "middle_block.2");
        map.add_up_blocks();
        map
    }

    /// Block 0 is the first convolution. A level ends with a block that only shrinks the image.
    fn add_down_blocks(&mut self) {
        let (mut level, mut position) = (0, 0);
        for block in 1.. {
            let model = format!("input_blocks.{block}");
            if self.alias(&format!("down_blocks.{level}.downsamplers.0.conv"), &format!("{model}.0.op")) {
                (level, position) = (level + 1, 0);
                continue;
            }
            if !self.add_residual(&format!("down_blocks.{level}.resnets.{position}"), &format!("{model}.0")) {
                return;
            }
            self.add_attention(&format!("down_blocks.{level}.attentions.{position}"), &format!("{model}.1"));
            position += 1;
        }
    }

    /// A level ends with a block that also enlarges the image, after its attention if it has one.
    fn add_up_blocks(&mut self) {
        let (mut level, mut position) = (0, 0);
        for block in 0.. {
            let model = format!("output_blocks.{block}");
            if !self.add_residual(&format!("up_blocks.{level}.resnets.{position}"), &format!("{model}.0")) {
                return;
            }
            let attention = format!("up_blocks.{level}.attentions.{position}");
            let place = if self.add_attention(&attention, &format!("{model}.1")) { 2 } else { 1 };
            let upsampler = format!("up_blocks.{level}.upsamplers.0.conv");
            if self.alias(&upsampler, &format!("{model}.{place}.conv")) {
                (level, position) = (level + 1, 0);
            } else {
                position += 1;
            }
        }
    }

    fn add_residual(&mut self, file: &str, model: &str) -> bool {
        let mut found = false;
        for (name, layer) in RESIDUAL {
            found |= self.alias(&format!("{file}.{name}"), &format!("{model}.{layer}"));
        }
        found
    }

    fn add_attention(&mut self, file: &str, model: &str) -> bool {
        let mut found = false;
        for layer in ATTENTION {
            found |= self.alias(&format!("{file}.{layer}"), &format!("{model}.{layer}"));
        }
        for index in 0.. {
            let (file, model) =
                (format!("{file}.transformer_blocks.{index}"), format!("{model}.transformer_blocks.{index}"));
            if !self.add_transformer(&file, &model) {
                break;
            }
        }
        found
    }

    fn add_transformer(&mut self, file: &str, model: &str) -> bool {
        let mut found = false;
        for layer in TRANSFORMER {
            found |= self.alias(&format!("{file}.{layer}"), &format!("{model}.{layer}"));
        }
        for attention in ["attn1", "attn2"] {
            for (layer, processor) in
                [("to_q", "to_q"), ("to_k", "to_k"), ("to_v", "to_v"), ("to_out.0", "to_out")]
            {
                let weight = format!("{model}.{attention}.{layer}");
                found |= self.alias(&format!("{file}.{attention}.{layer}"), &weight);
                // Older diffusers files name the attention processor, and the output without its index.
                self.alias(&format!("{file}.{attention}.processor.{processor}"), &weight);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two levels, attention only in the second, as in the first levels of SDXL.
    fn map() -> KeyMap {
        let names = [
            "input_blocks.0.0.weight",
            "input_blocks.1.0.in_layers.2.weight",
            "input_blocks.2.0.in_layers.2.weight",
            "input_blocks.3.0.op.weight",
            "input_blocks.4.0.in_layers.2.weight",
            "input_blocks.4.1.proj_in.weight",
            "input_blocks.4.1.transformer_blocks.0.attn1.to_out.0.weight",
            "input_blocks.4.1.transformer_blocks.1.attn2.to_k.weight",
            "middle_block.0.in_layers.2.weight",
            "middle_block.2.out_layers.3.weight",
            "output_blocks.0.0.in_layers.2.weight",
            "output_blocks.0.1.proj_in.weight",
            "output_blocks.0.2.conv.weight",
            "output_blocks.1.0.in_layers.2.weight",
            "output_blocks.1.1.conv.weight",
            "output_blocks.2.0.emb_layers.1.weight",
        ];
        let shape = Shape::from([8, 8]);
        KeyMap::for_unet(names.map(|name| (name, &shape)))
    }

    #[test]
    fn blocks_are_counted_by_level() {
        let map = map();
        for (key, weight) in [
            ("lora_unet_conv_in", "input_blocks.0.0.weight"),
            ("lora_unet_down_blocks_0_resnets_1_conv1", "input_blocks.2.0.in_layers.2.weight"),
            ("lora_unet_down_blocks_0_downsamplers_0_conv", "input_blocks.3.0.op.weight"),
            ("lora_unet_down_blocks_1_attentions_0_proj_in", "input_blocks.4.1.proj_in.weight"),
            ("lora_unet_mid_block_resnets_1_conv2", "middle_block.2.out_layers.3.weight"),
            ("lora_unet_up_blocks_0_upsamplers_0_conv", "output_blocks.0.2.conv.weight"),
            ("lora_unet_up_blocks_1_upsamplers_0_conv", "output_blocks.1.1.conv.weight"),
            ("lora_unet_up_blocks_2_resnets_0_time_emb_proj", "output_blocks.2.0.emb_layers.1.weight"),
            ("lora_unet_input_blocks_4_1_proj_in", "input_blocks.4.1.proj_in.weight"),
            (
                "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn1.processor.to_out",
                "input_blocks.4.1.transformer_blocks.0.attn1.to_out.0.weight",
            ),
            (
                "unet.down_blocks.1.attentions.0.transformer_blocks.1.attn2.to_k",
                "input_blocks.4.1.transformer_blocks.1.attn2.to_k.weight",
            ),
        ] {
            assert_eq!(map.find(key).map(|t| t.weight.as_str()), Some(weight), "{key}");
        }
        assert_eq!(map.find("lora_unet_down_blocks_0_attentions_0_proj_in"), None);
    }
}
