//! Text encoders: files number them, and the number depends on which others the model has.

use meta::Shape;

use super::KeyMap;

/// The numbers by which files mean an encoder in a model that has `all` of these. Encoders go by the names that files
/// have for them: `clip_l`, `clip_g`, `clip_h`, `t5xxl`; others stand behind these.
fn numbers(encoder: &str, all: &[&str]) -> &'static [usize] {
    let with = |other: &str| encoder != other && all.contains(&other);
    match encoder {
        "clip_l" | "clip_h" => &[1],
        "clip_g" if with("clip_l") => &[2],
        "clip_g" => &[1],
        _ => match (with("clip_l"), with("clip_g")) {
            (true, true) => &[3],
            // Without a CLIP-G, some programs leave its number free.
            (true, false) => &[2, 3],
            (false, true) => &[2],
            (false, false) => &[1],
        },
    }
}

impl KeyMap {
    /// The names of a text encoder's layers in a model that has `all` of these encoders, by the names that files have
    /// for them (`clip_l`, `clip_g`, `clip_h`, `t5xxl`).
    pub fn for_text_encoder<'a>(
        names: impl IntoIterator<Item = (&'a str, &'a Shape)>,
        encoder: &str,
        all: &[&str],
    ) -> KeyMap {
        let mut map = KeyMap::of(names);
        map.dotted_prefixes.push(format!("text_encoders.{encoder}.transformer."));
        for &number in numbers(encoder, all) {
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

    const CLIP_L: &str = "clip_l";
    const CLIP_G: &str = "clip_g";
    const T5: &str = "t5xxl";

    fn finds(encoder: &str, all: &[&str], key: &str) -> bool {
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
            (CLIP_L, &[CLIP_L][..], clip("lora_te_"), true),
            (CLIP_L, &[CLIP_L, CLIP_G], clip("lora_te1_"), true),
            (CLIP_L, &[CLIP_L, CLIP_G], clip("lora_te2_"), false),
            (CLIP_G, &[CLIP_L, CLIP_G], clip("lora_te2_"), true),
            (CLIP_G, &[CLIP_L, CLIP_G], clip("lora_te1_"), false),
            (CLIP_G, &[CLIP_G], clip("lora_te_"), true),
            (T5, &[CLIP_L, T5], t5(2), true),
            (T5, &[CLIP_L, T5], t5(3), true),
            (T5, &[CLIP_L, CLIP_G, T5], t5(2), false),
            (T5, &[CLIP_L, CLIP_G, T5], t5(3), true),
        ] {
            assert_eq!(finds(encoder, all, &key), expected, "{encoder} in {all:?}: {key}");
        }
        let dotted = "text_model.encoder.layers.0.self_attn.q_proj";
        assert!(finds(CLIP_L, &[CLIP_L], &format!("text_encoder.{dotted}")));
        assert!(finds(CLIP_G, &[CLIP_L, CLIP_G], &format!("text_encoder_2.{dotted}")));
        assert!(finds(CLIP_G, &[CLIP_L, CLIP_G], &format!("text_encoders.clip_g.transformer.{dotted}")));
        assert!(!finds(CLIP_L, &[CLIP_L], dotted));
    }
}
