//! What the files of other libraries call the weights of a model, from the tables that say what patches call its layers.

use patch::Blocks;

/// The names that such a file has for a weight: one, or those of the pieces that the model has as one. A weight that the
/// tables do not have is called as the model calls it.
pub(super) fn of_weight(name: &str, layers: &[(&str, &str)], blocks: &[&Blocks]) -> Vec<String> {
    let (layer, end) = match [".weight", ".bias"].into_iter().find(|end| name.ends_with(end)) {
        Some(end) => (name.strip_suffix(end).unwrap_or(name), end),
        // Norms have a scale of their own name.
        None => (name, ".weight"),
    };
    if let Some((file, _)) = layers.iter().find(|(_, model)| *model == layer) {
        return vec![format!("{file}{end}")];
    }
    let in_blocks = blocks.iter().find_map(|blocks| {
        let (index, rest) = layer.strip_prefix(blocks.model)?.strip_prefix('.')?.split_once('.')?;
        let named = |part: &str| format!("{}.{index}.{part}{end}", blocks.file);
        let one = blocks.layers.iter().find(|(_, model)| *model == rest).map(|(file, _)| vec![named(file)]);
        let fused = blocks.fused.iter().find(|(model, _)| *model == rest);
        one.or_else(|| fused.map(|(_, parts)| parts.iter().map(|part| named(part)).collect()))
    });
    in_blocks.unwrap_or_else(|| vec![name.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: Blocks = Blocks {
        file: "transformer_blocks",
        model: "blocks",
        layers: &[("attn.norm_q", "attn.q_norm.scale"), ("ff.2", "mlp.2")],
        fused: &[("attn.qkv", &["attn.to_q", "attn.to_k"])],
    };

    #[test]
    fn weights_have_the_names_of_the_tables() {
        let names = |name: &str| of_weight(name, &[("x_embedder", "img_in")], &[&BLOCKS]);
        assert_eq!(names("img_in.bias"), ["x_embedder.bias"]);
        assert_eq!(names("blocks.11.mlp.2.weight"), ["transformer_blocks.11.ff.2.weight"]);
        assert_eq!(names("blocks.0.attn.q_norm.scale"), ["transformer_blocks.0.attn.norm_q.weight"]);
        let pieces = ["transformer_blocks.3.attn.to_q.bias", "transformer_blocks.3.attn.to_k.bias"];
        assert_eq!(names("blocks.3.attn.qkv.bias"), pieces);
        assert_eq!(names("controlnet_blocks.0.weight"), ["controlnet_blocks.0.weight"]);
    }
}
