//! Key maps: which of a model's weights a layer's name in a patch file means.
//!
//! A map is made from the model's own weight names and shapes, so it knows every block that is there and nothing
//! that is not. Names are kept without the prefixes that programs put in front (`lora_unet_`, `transformer.`, …),
//! once with dots and once with underscores.

#[cfg(test)]
mod coverage;
mod table;
mod text;
mod unet;

use std::collections::HashMap;

use meta::Shape;

pub use table::Blocks;

/// What stands in front of a diffusion model's names with dots; the longer before the shorter.
const DOTTED: &[&str] = &[
    "unet.base_model.model.",
    "base_model.model.",
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer.",
    "unet.",
    "",
];

/// What stands in front of a diffusion model's names with underscores.
const UNDERSCORED: &[&str] = &["lora_unet__", "lora_unet_", "lora_transformer_", "lycoris_"];

/// Some of a weight's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    /// The first.
    pub start: usize,
    /// How many.
    pub len: usize,
}

/// The weight that a layer's name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The weight's name in the model.
    pub weight: String,
    /// The rows that are meant, where several layers are fused into one weight.
    pub rows: Option<Rows>,
    /// Whether the file has the two halves of the rows in the other order (shift and scale).
    pub halves_swapped: bool,
}

/// From layer names in patch files to the weights of one model.
#[derive(Clone, Debug, Default)]
pub struct KeyMap {
    shapes: HashMap<String, Shape>,
    dotted: HashMap<String, Target>,
    underscored: HashMap<String, Target>,
    dotted_prefixes: Vec<String>,
    underscored_prefixes: Vec<String>,
}

impl KeyMap {
    /// The model's own names, with the prefixes of diffusion models: enough where training programs use them
    /// (Wan, Qwen-Image, LTX-Video, Mochi).
    pub fn native<'a>(names: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> KeyMap {
        let mut map = KeyMap::of(names);
        map.dotted_prefixes.extend(DOTTED.iter().map(|&p| p.to_owned()));
        map.underscored_prefixes.extend(UNDERSCORED.iter().map(|&p| p.to_owned()));
        map
    }

    /// Another prefix of names with dots, such as `my_model.`.
    #[must_use]
    pub fn with_dotted_prefix(mut self, prefix: &str) -> KeyMap {
        self.dotted_prefixes.insert(0, prefix.to_owned());
        self
    }

    /// Another prefix of names with underscores, such as `lora_prior_unet_`.
    #[must_use]
    pub fn with_underscored_prefix(mut self, prefix: &str) -> KeyMap {
        self.underscored_prefixes.insert(0, prefix.to_owned());
        self
    }

    /// The weight that a layer's name means.
    pub fn find(&self, key: &str) -> Option<&Target> {
        let stem = |prefix: &String| key.strip_prefix(prefix.as_str());
        let dotted = self.dotted_prefixes.iter().filter_map(stem).find_map(|stem| self.dotted.get(stem));
        dotted.or_else(|| {
            let mut stems = self.underscored_prefixes.iter().filter_map(stem);
            stems.find_map(|stem| self.underscored.get(stem))
        })
    }

    /// The shape of one of the model's weights.
    pub fn shape(&self, weight: &str) -> Option<&Shape> {
        self.shapes.get(weight)
    }

    /// Every name with dots that layers have, without prefixes, and what it means.
    pub fn names(&self) -> impl Iterator<Item = (&str, &Target)> {
        self.dotted.iter().map(|(name, target)| (name.as_str(), target))
    }

    /// The model's weights.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &Shape)> {
        self.shapes.iter().map(|(name, shape)| (name.as_str(), shape))
    }

    /// The bias beside a weight: the same rows of it.
    pub fn bias_of(&self, target: &Target) -> Option<Target> {
        let weight = format!("{}.bias", target.weight.strip_suffix(".weight")?);
        self.shapes.contains_key(&weight).then(|| Target { weight, ..target.clone() })
    }

    /// The model's own names, without prefixes.
    fn of<'a>(names: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> KeyMap {
        let mut map = KeyMap::default();
        map.shapes.extend(names.into_iter().map(|(name, shape)| (name.to_owned(), *shape)));
        // In order, so that of two names with the same underscored form the same one wins in every run.
        let mut names: Vec<String> = map.shapes.keys().cloned().collect();
        names.sort_unstable();
        for weight in names {
            let target = Target { weight: weight.clone(), rows: None, halves_swapped: false };
            match weight.strip_suffix(".weight") {
                Some(stem) => map.insert(stem, target),
                // A norm's `scale`, a bias or a table goes by its whole name.
                None => map.insert(&weight, target),
            }
        }
        map
    }

    /// Gives a target a name. The model's own names are there first and stay.
    fn insert(&mut self, stem: &str, target: Target) {
        self.underscored.entry(stem.replace('.', "_")).or_insert_with(|| target.clone());
        self.dotted.entry(stem.to_owned()).or_insert(target);
    }

    /// The name of the weight of a layer: `layer.weight`, or the name itself where it is a parameter's.
    fn weight_of(&self, layer: &str) -> Option<String> {
        let weight = format!("{layer}.weight");
        if self.shapes.contains_key(&weight) {
            return Some(weight);
        }
        self.shapes.contains_key(layer).then(|| layer.to_owned())
    }

    /// Calls one of the model's layers by another name. Whether it is there.
    pub fn alias(&mut self, stem: &str, layer: &str) -> bool {
        let Some(weight) = self.weight_of(layer) else { return false };
        self.insert(stem, Target { weight, rows: None, halves_swapped: false });
        true
    }

    /// The same for a layer whose halves stand in the other order in the file.
    pub fn alias_swapped(&mut self, stem: &str, layer: &str) -> bool {
        let Some(weight) = self.weight_of(layer) else { return false };
        let even =
            self.shapes.get(&weight).is_some_and(|s| s.dims().first().is_some_and(|rows| rows % 2 == 0));
        if even {
            self.insert(stem, Target { weight, rows: None, halves_swapped: true });
        }
        even
    }

    /// Calls rows of one of the model's layers by another name.
    pub fn alias_rows(&mut self, stem: &str, layer: &str, rows: Rows) -> bool {
        let Some(weight) = self.weight_of(layer) else { return false };
        let end = rows.start.checked_add(rows.len);
        let inside = self.shapes[&weight].dims().first().is_some_and(|n| end.is_some_and(|end| end <= *n));
        if inside && rows.len > 0 {
            self.insert(stem, Target { weight, rows: Some(rows), halves_swapped: false });
        }
        inside
    }

    /// Rows and columns of a layer's weight, if it is a matrix.
    pub fn matrix(&self, layer: &str) -> Option<(usize, usize)> {
        match self.shapes.get(&format!("{layer}.weight"))?.dims() {
            [rows, columns] => Some((*rows, *columns)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_names_in_every_spelling() {
        let (matrix, vector) = (Shape::from([4, 4]), Shape::from([4]));
        let names = [
            ("blocks.0.self_attn.q.weight", &matrix),
            ("blocks.0.self_attn.q.bias", &vector),
            ("head.scale", &vector),
        ];
        let map = KeyMap::native(names).with_underscored_prefix("lora_mine_");
        for key in [
            "lora_unet_blocks_0_self_attn_q",
            "lora_unet__blocks_0_self_attn_q",
            "lycoris_blocks_0_self_attn_q",
            "lora_mine_blocks_0_self_attn_q",
            "diffusion_model.blocks.0.self_attn.q",
            "model.diffusion_model.blocks.0.self_attn.q",
            "transformer.blocks.0.self_attn.q",
            "base_model.model.blocks.0.self_attn.q",
            "blocks.0.self_attn.q",
        ] {
            assert_eq!(
                map.find(key).map(|t| t.weight.as_str()),
                Some("blocks.0.self_attn.q.weight"),
                "{key}"
            );
        }
        assert_eq!(map.find("diffusion_model.head.scale").map(|t| t.weight.as_str()), Some("head.scale"));
        for key in
            ["blocks_0_self_attn_q", "lora_te_blocks_0_self_attn_q", "blocks.1.self_attn.q", "unet.unet.head"]
        {
            assert_eq!(map.find(key), None, "{key}");
        }
        let bias = map.bias_of(map.find("blocks.0.self_attn.q").unwrap()).unwrap();
        assert_eq!(bias.weight, "blocks.0.self_attn.q.bias");
        assert_eq!(map.bias_of(map.find("head.scale").unwrap()), None);
    }
}
