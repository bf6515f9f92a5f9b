//! The names of diffusers: it counts levels and layers within them, the authors count all blocks.

use checkpoint::{Checkpoint, Entry};

use crate::claims::StoredNames;

/// Layers outside of blocks, and what the authors call them.
const LAYERS: &[(&str, &str)] = &[
    ("conv_in.", "input_blocks.0.0."),
    ("conv_norm_out.", "out.0."),
    ("conv_out.", "out.2."),
    ("time_embedding.linear_1.", "time_embed.0."),
    ("time_embedding.linear_2.", "time_embed.2."),
    ("add_embedding.linear_1.", "label_emb.0.0."),
    ("add_embedding.linear_2.", "label_emb.0.2."),
    ("class_embedding.linear_1.", "label_emb.0.0."),
    ("class_embedding.linear_2.", "label_emb.0.2."),
];

/// Layers of a residual unit.
const RESIDUAL: &[(&str, &str)] = &[
    ("norm1.", "in_layers.0."),
    ("conv1.", "in_layers.2."),
    ("time_emb_proj.", "emb_layers.1."),
    ("norm2.", "out_layers.0."),
    ("conv2.", "out_layers.3."),
    ("conv_shortcut.", "skip_connection."),
];

/// What a file with diffusers' names calls the tensors, by the authors' names.
pub(super) fn of_diffusers(checkpoint: &Checkpoint, prefix: &str) -> StoredNames {
    let names: Vec<&str> =
        checkpoint.entries().iter().map(Entry::name).filter_map(|name| name.strip_prefix(prefix)).collect();
    let (down, up) = (levels(&names, "down_blocks"), levels(&names, "up_blocks"));
    let named = |name: &&str| Some((native(name, &down, &up)?, (*name).to_owned()));
    names.iter().filter_map(named).collect()
}

/// The same for a control network, which has more layers beside those of the way in.
pub(super) fn of_diffusers_control(checkpoint: &Checkpoint, prefix: &str) -> StoredNames {
    let mut names = of_diffusers(checkpoint, prefix);
    let own = checkpoint.entries().iter().filter_map(|entry| entry.name().strip_prefix(prefix));
    names.extend(own.filter_map(|name| Some((native_control(name)?, name.to_owned()))));
    names
}

/// What the authors call a tensor that control networks have.
fn native_control(name: &str) -> Option<String> {
    if let Some((block, rest)) = numbered(name, "controlnet_down_blocks.") {
        return Some(format!("zero_convs.{block}.0.{rest}"));
    }
    if let Some((block, rest)) = numbered(name, "controlnet_cond_embedding.blocks.") {
        return Some(format!("input_hint_block.{}.{rest}", 2 * block + 2));
    }
    let table = [
        ("controlnet_mid_block.", "middle_block_out.0."),
        ("controlnet_cond_embedding.conv_in.", "input_hint_block.0."),
        ("controlnet_cond_embedding.conv_out.", "input_hint_block.14."),
        ("transformer_layes.0.attn.in_proj_", "transformer_layes.0.attn.in_proj."),
        ("transformer_layes.", "transformer_layes."),
        ("task_embedding", "task_embedding"),
        ("spatial_ch_projs.", "spatial_ch_projs."),
        ("control_add_embedding.", "control_add_embedding."),
    ];
    renamed(name, &table)
}

/// One level of a file.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    /// The authors' number of its first block.
    first: usize,
    /// Its residual units.
    residuals: usize,
    /// Whether they have transformers.
    attends: bool,
}

/// The levels of one way.
fn levels(names: &[&str], way: &str) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    // On the way in, block 0 is the first convolution and halving is a block of its own.
    let is_way_in = way == "down_blocks";
    let mut first = usize::from(is_way_in);
    loop {
        let level = format!("{way}.{}.", levels.len());
        let mut found = Level { first, ..Level::default() };
        let mut halves = false;
        for rest in names.iter().filter_map(|name| name.strip_prefix(level.as_str())) {
            if let Some((number, _)) = numbered(rest, "resnets.") {
                found.residuals = found.residuals.max(number + 1);
            }
            found.attends |= rest.starts_with("attentions.");
            halves |= is_way_in && rest.starts_with("downsamplers.");
        }
        if found.residuals == 0 {
            return levels;
        }
        first += found.residuals + usize::from(halves);
        levels.push(found);
    }
}

/// The number after a word at the beginning of a name, and what follows.
fn numbered<'a>(name: &'a str, word: &str) -> Option<(usize, &'a str)> {
    let (number, rest) = name.strip_prefix(word)?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// A name by a table of beginnings.
fn renamed(name: &str, table: &[(&str, &str)]) -> Option<String> {
    table.iter().find_map(|(theirs, ours)| Some(format!("{ours}{}", name.strip_prefix(theirs)?)))
}

/// What the authors call a tensor.
fn native(name: &str, down: &[Level], up: &[Level]) -> Option<String> {
    if let Some((level, rest)) = numbered(name, "down_blocks.") {
        let level = down.get(level)?;
        if let Some(rest) = rest.strip_prefix("downsamplers.0.conv.") {
            return Some(format!("input_blocks.{}.0.op.{rest}", level.first + level.residuals));
        }
        return in_block("input_blocks", level, rest);
    }
    if let Some((level, rest)) = numbered(name, "up_blocks.") {
        let level = up.get(level)?;
        if let Some(rest) = rest.strip_prefix("upsamplers.0.conv.") {
            let (last, layer) = (level.first + level.residuals - 1, if level.attends { 2 } else { 1 });
            return Some(format!("output_blocks.{last}.{layer}.conv.{rest}"));
        }
        return in_block("output_blocks", level, rest);
    }
    if let Some(rest) = name.strip_prefix("mid_block.") {
        if let Some((number, rest)) = numbered(rest, "resnets.") {
            return Some(format!("middle_block.{}.{}", 2 * number, renamed(rest, RESIDUAL)?));
        }
        return Some(format!("middle_block.1.{}", rest.strip_prefix("attentions.0.")?));
    }
    renamed(name, LAYERS)
}

/// A tensor of a residual unit or of the transformer behind it.
fn in_block(side: &str, level: &Level, rest: &str) -> Option<String> {
    if let Some((number, rest)) = numbered(rest, "resnets.") {
        return Some(format!("{side}.{}.0.{}", level.first + number, renamed(rest, RESIDUAL)?));
    }
    let (number, rest) = numbered(rest, "attentions.")?;
    Some(format!("{side}.{}.1.{rest}", level.first + number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_become_blocks() {
        let names = [
            "down_blocks.0.resnets.0.norm1.weight",
            "down_blocks.0.resnets.1.norm1.weight",
            "down_blocks.0.downsamplers.0.conv.weight",
            "down_blocks.1.resnets.0.conv_shortcut.weight",
            "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q.weight",
            "up_blocks.0.resnets.0.conv1.weight",
            "up_blocks.0.resnets.1.conv1.weight",
            "up_blocks.0.attentions.1.proj_in.weight",
            "up_blocks.0.upsamplers.0.conv.bias",
            "up_blocks.1.resnets.2.time_emb_proj.bias",
            "mid_block.resnets.1.conv2.weight",
            "mid_block.attentions.0.norm.weight",
            "add_embedding.linear_2.bias",
        ];
        let (down, up) = (levels(&names, "down_blocks"), levels(&names, "up_blocks"));
        let native: Vec<String> = names.iter().map(|name| native(name, &down, &up).unwrap()).collect();
        assert_eq!(
            native,
            [
                "input_blocks.1.0.in_layers.0.weight",
                "input_blocks.2.0.in_layers.0.weight",
                "input_blocks.3.0.op.weight",
                "input_blocks.4.0.skip_connection.weight",
                "input_blocks.4.1.transformer_blocks.0.attn1.to_q.weight",
                "output_blocks.0.0.in_layers.2.weight",
                "output_blocks.1.0.in_layers.2.weight",
                "output_blocks.1.1.proj_in.weight",
                "output_blocks.1.2.conv.bias",
                "output_blocks.4.0.emb_layers.1.bias",
                "middle_block.2.out_layers.3.weight",
                "middle_block.1.norm.weight",
                "label_emb.0.2.bias",
            ]
        );
        let control = |name: &str| native_control(name).unwrap();
        assert_eq!(control("controlnet_down_blocks.11.bias"), "zero_convs.11.0.bias");
        assert_eq!(control("controlnet_cond_embedding.blocks.5.weight"), "input_hint_block.12.weight");
        assert_eq!(control("transformer_layes.0.attn.in_proj_bias"), "transformer_layes.0.attn.in_proj.bias");
        assert_eq!(super::native("down_blocks.7.resnets.0.norm1.weight", &down, &up), None);
    }
}
