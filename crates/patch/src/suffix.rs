//! The endings of tensor names in patch files: what part of which kind of patch a tensor is.

use std::fmt;

/// Who would write a file with such names; for people to read, nothing depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Naming {
    /// Dots became underscores: `lora_unet_…`, `lora_te1_…`, `lycoris_…`.
    Underscored,
    /// `….lora_A.weight` and `….lora_B.weight`.
    Peft,
    /// `….lora.down.weight`, `…_lora.down.weight`, `….lora_linear_layer.down.weight`.
    Diffusers,
    /// The model's own names with a known ending.
    Native,
}

impl fmt::Display for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Naming::Underscored => "kohya",
            Naming::Peft => "PEFT",
            Naming::Diffusers => "diffusers",
            Naming::Native => "native",
        })
    }
}

/// What a tensor is within its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Down,
    Up,
    Mid,
    Alpha,
    DoraScale,
    Magnitude,
    HadaW1A,
    HadaW1B,
    HadaW2A,
    HadaW2B,
    HadaT1,
    HadaT2,
    KronW1,
    KronW1A,
    KronW1B,
    KronW2,
    KronW2A,
    KronW2B,
    KronT2,
    GloraA1,
    GloraA2,
    GloraB1,
    GloraB2,
    Diff,
    DiffBias,
    Set,
    OftBlocks,
    /// Recognised, so that its file is refused with a reason.
    Refused(&'static str),
}

/// A tensor's name, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split<'a> {
    pub(crate) key: &'a str,
    pub(crate) part: Part,
    pub(crate) naming: Naming,
}

/// Endings, the longer before the shorter where one ends the other.
const SUFFIXES: &[(&str, Part, Naming)] = &[
    (".lora_down.weight", Part::Down, Naming::Native),
    (".lora_up.weight", Part::Up, Naming::Native),
    (".lora_mid.weight", Part::Mid, Naming::Native),
    (".lora_A.default.weight", Part::Down, Naming::Peft),
    (".lora_B.default.weight", Part::Up, Naming::Peft),
    (".lora_A.weight", Part::Down, Naming::Peft),
    (".lora_B.weight", Part::Up, Naming::Peft),
    (".lora_B.bias", Part::DiffBias, Naming::Peft),
    (".lora_A", Part::Down, Naming::Peft),
    (".lora_B", Part::Up, Naming::Peft),
    (".lora_magnitude_vector.default.weight", Part::Magnitude, Naming::Peft),
    (".lora_magnitude_vector.weight", Part::Magnitude, Naming::Peft),
    (".lora_magnitude_vector", Part::Magnitude, Naming::Peft),
    (".lora_linear_layer.down.weight", Part::Down, Naming::Diffusers),
    (".lora_linear_layer.up.weight", Part::Up, Naming::Diffusers),
    (".lora.down.weight", Part::Down, Naming::Diffusers),
    (".lora.up.weight", Part::Up, Naming::Diffusers),
    ("_lora.down.weight", Part::Down, Naming::Diffusers),
    ("_lora.up.weight", Part::Up, Naming::Diffusers),
    (".alpha", Part::Alpha, Naming::Native),
    (".dora_scale", Part::DoraScale, Naming::Native),
    (".hada_w1_a", Part::HadaW1A, Naming::Native),
    (".hada_w1_b", Part::HadaW1B, Naming::Native),
    (".hada_w2_a", Part::HadaW2A, Naming::Native),
    (".hada_w2_b", Part::HadaW2B, Naming::Native),
    (".hada_t1", Part::HadaT1, Naming::Native),
    (".hada_t2", Part::HadaT2, Naming::Native),
    (".lokr_w1", Part::KronW1, Naming::Native),
    (".lokr_w1_a", Part::KronW1A, Naming::Native),
    (".lokr_w1_b", Part::KronW1B, Naming::Native),
    (".lokr_w2", Part::KronW2, Naming::Native),
    (".lokr_w2_a", Part::KronW2A, Naming::Native),
    (".lokr_w2_b", Part::KronW2B, Naming::Native),
    (".lokr_t2", Part::KronT2, Naming::Native),
    (".a1.weight", Part::GloraA1, Naming::Native),
    (".a2.weight", Part::GloraA2, Naming::Native),
    (".b1.weight", Part::GloraB1, Naming::Native),
    (".b2.weight", Part::GloraB2, Naming::Native),
    (".diff", Part::Diff, Naming::Native),
    (".w_norm", Part::Diff, Naming::Native),
    (".diff_b", Part::DiffBias, Naming::Native),
    (".b_norm", Part::DiffBias, Naming::Native),
    (".set_weight", Part::Set, Naming::Native),
    (".reshape_weight", Part::Refused("a change of the weight's size"), Naming::Native),
    (".oft_blocks", Part::OftBlocks, Naming::Native),
    // Files for FLUX name the processor and the layer together: `….processor.qkv_lora1.down.weight`.
    (".down.weight", Part::Down, Naming::Diffusers),
    (".up.weight", Part::Up, Naming::Diffusers),
    // Control networks that are changes of a model.
    (".down", Part::Down, Naming::Native),
    (".up", Part::Up, Naming::Native),
];

/// What a tensor is that is added to the model's one of the same name.
pub(crate) fn split_difference(name: &str) -> Option<Split<'_>> {
    let split = |ending, part| {
        let key = name.strip_suffix(ending)?;
        Some(Split { key, part, naming: Naming::Native })
    };
    split(".weight", Part::Diff).or_else(|| split(".bias", Part::DiffBias))
}

/// Takes a name apart; `None` if its ending is not a patch's.
pub(crate) fn split(name: &str) -> Option<Split<'_>> {
    SUFFIXES.iter().find_map(|(suffix, part, naming)| {
        let key = name.strip_suffix(suffix).filter(|key| !key.is_empty())?;
        let naming = if key.contains('.') { *naming } else { Naming::Underscored };
        Some(Split { key, part: *part, naming })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_gives_its_layer() {
        for (name, key, part) in [
            ("lora_unet_a_b.lora_down.weight", "lora_unet_a_b", Part::Down),
            ("transformer.a.b.lora_A.weight", "transformer.a.b", Part::Down),
            ("a.b.lora_B.default.weight", "a.b", Part::Up),
            ("unet.a.processor.to_q_lora.up.weight", "unet.a.processor.to_q", Part::Up),
            ("unet.a.to_q.lora.down.weight", "unet.a.to_q", Part::Down),
            ("text_encoder.a.lora_linear_layer.up.weight", "text_encoder.a", Part::Up),
            ("a.b.lora_A", "a.b", Part::Down),
            ("a.b.lokr_w1", "a.b", Part::KronW1),
            ("a.b.lokr_w1_a", "a.b", Part::KronW1A),
            ("a.b.w_norm", "a.b", Part::Diff),
            ("a.lora_B.bias", "a", Part::DiffBias),
            (
                "double_blocks.0.processor.qkv_lora1.down.weight",
                "double_blocks.0.processor.qkv_lora1",
                Part::Down,
            ),
        ] {
            let split = split(name).unwrap();
            assert_eq!((split.key, split.part), (key, part), "{name}");
        }
        for name in ["a.weight", "alpha", ".alpha", "lora_down", "a.bias"] {
            assert_eq!(split(name), None, "{name}");
        }
    }

    #[test]
    fn every_ending_is_reachable() {
        for (suffix, part, _) in SUFFIXES {
            let name = format!("layer{suffix}");
            assert_eq!(split(&name).map(|s| (s.key, s.part)), Some(("layer", *part)), "{suffix}");
        }
    }
}
