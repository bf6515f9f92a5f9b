//! Text encoders: files number them, and the number depends on which others the model has.

use meta::Shape;

use super::KeyMap;

/// A kind of text encoder, as far as patch files tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextEncoder {
    /// CLIP-L.
    ClipL,
    /// CLIP-G.
    ClipG,
    /// CLIP-H.
    ClipH,
    /// T5-XXL.
    T5,
}

impl TextEncoder {
    /// The name in files that name the encoder.
    const fn name(self) -> &'static str {
        match self {
            TextEncoder::ClipL => "clip_l",
            TextEncoder::ClipG => "clip_g",
            TextEncoder::ClipH => "clip_h",
            TextEncoder::T5 => "t5xxl",
        }
    }

    /// The numbers by which files mean this encoder in a model that has `all` of these.
    fn numbers(self, all: &[TextEncoder]) -> &'static [usize] {
        let with = |other: TextEncoder| self != other && all.contains(&other);
        match self {
            TextEncoder::ClipL | TextEncoder::ClipH => &[1],
            TextEncoder::ClipG if with(TextEncoder::ClipL) => &[2],
            TextEncoder::ClipG => &[1],
            TextEncoder::T5 => match (with(TextEncoder::ClipL), with(TextEncoder::ClipG)) {
                (true, true) => &[3],
                // FLUX has no CLIP-G, and some programs leave its number free.
                (true, false) => &[2, 3],
                (false, true) => &[2],
                (false, false) => &[1],
            },
        }
    }
}

impl KeyMap {
    /// The names of a text encoder's layers in a model that has `all` of these encoders.
    pub fn for_text_encoder<'a>(
        names: impl IntoIterator<Item = (&'a str, &'a Shape)>,
        encoder: TextEncoder,
        all: &[TextEncoder],
    ) -> KeyMap {
        let mut map = KeyMap::of(names);
        let name = encoder.name();
        map.dotted_prefixes.push(format!("text_encoders.{name}.transformer."));
        for &number in encoder.numbers(all) {
            map.underscored_prefixes.push(format!("lora_te{number}_"));
            let place =
                if number == 1 { "text_encoder".to_owned() } else { format!("text_encoder_{number}") };
            map.dotted_prefixes.push(format!("{place}.base_model.model."));
            map.dotted_prefixes.push(format!("{place}."));
            if number == 1 {
                map.underscored_prefixes.push("lora_te_".to_owned());
                map.underscored_prefixes.push("lora_prior_te_".to_owned());
            }
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TextEncoder::{ClipG, ClipL, T5};

    fn finds(encoder: TextEncoder, all: &[TextEncoder], key: &str) -> bool {
        let shape = Shape::from([4, 4]);
        let name = match encoder {
            T5 => "encoder.block.0.layer.0.SelfAttention.q.weight",
            _ => "text_model.encoder.layers.0.self_attn.q_proj.weight",
        };
        let map = KeyMap::for_text_encoder([(name, &shape)], encoder, all);
        map.find(key).is_some_and(|target| target.weight == name)
    }

    #[test]
    fn numbers_depend_on_the_company() {
        let clip = |prefix: &str| format!("{prefix}text_model_encoder_layers_0_self_attn_q_proj");
        let t5 = |number: usize| format!("lora_te{number}_encoder_block_0_layer_0_SelfAttention_q");
        for (encoder, all, key, expected) in [
            (ClipL, &[ClipL][..], clip("lora_te_"), true),
            (ClipL, &[ClipL, ClipG], clip("lora_te1_"), true),
            (ClipL, &[ClipL, ClipG], clip("lora_te2_"), false),
            (ClipG, &[ClipL, ClipG], clip("lora_te2_"), true),
            (ClipG, &[ClipL, ClipG], clip("lora_te1_"), false),
            (ClipG, &[ClipG], clip("lora_te_"), true),
            (T5, &[ClipL, T5], t5(2), true),
            (T5, &[ClipL, T5], t5(3), true),
            (T5, &[ClipL, ClipG, T5], t5(2), false),
            (T5, &[ClipL, ClipG, T5], t5(3), true),
        ] {
            assert_eq!(finds(encoder, all, &key), expected, "{encoder:?} in {all:?}: {key}");
        }
        let dotted = "text_model.encoder.layers.0.self_attn.q_proj";
        assert!(finds(ClipL, &[ClipL], &format!("text_encoder.{dotted}")));
        assert!(finds(ClipG, &[ClipL, ClipG], &format!("text_encoder_2.{dotted}")));
        assert!(finds(ClipG, &[ClipL, ClipG], &format!("text_encoders.clip_g.transformer.{dotted}")));
        assert!(!finds(ClipL, &[ClipL], dotted));
    }
}
