//! What a Florence-2 model needs of its file, under the names of the transformers library or of the first publication.

use residency::{Manifest, WeightSpec};

use super::config::{FIRST_POSITION, Florence2Config, Stack, Stage};
use crate::Result;
use crate::claims::Claims;
use crate::detect::Layout;

/// What errors call the family.
pub(super) const FAMILY: &str = "Florence-2";
/// The table of words, which also rates the next one.
pub(super) const WORDS: &str = "language_model.shared.weight";
/// Other names of the same table.
const WORDS_ALSO: [&str; 2] =
    ["language_model.encoder.embed_tokens.weight", "language_model.decoder.embed_tokens.weight"];
/// Another name of it in files of the first publication.
const RATING: &str = "language_model.lm_head.weight";
/// Added to the ratings, if it is there.
pub(super) const RATING_BIAS: &str = "language_model.final_logits_bias";
/// The matrix from the width of vision to that of language, and its transpose as it was first published.
pub(super) const PROJECTION: &str = "multi_modal_projector.image_projection.weight";
pub(super) const FIRST_PROJECTION: &str = "image_projection";
/// The two halves of the language model.
pub(super) const ENCODER: &str = "encoder";
pub(super) const DECODER: &str = "decoder";
/// Where in time a picture stands, which is always the first place.
pub(super) const TIMES: &str = "multi_modal_projector.visual_temporal_embed.pos_idx_to_embed";

/// The stored name of one of the model's tensors.
pub(super) fn stored(layout: Layout, name: &str) -> String {
    if layout == Layout::Transformers {
        return name.to_owned();
    }
    if let Some(rest) = name.strip_prefix("language_model.") {
        return format!("language_model.model.{rest}");
    }
    if let Some(rest) = name.strip_prefix("multi_modal_projector.") {
        return rest.replacen("image_position_embed", "image_pos_embed", 1);
    }
    if name.starts_with("vision_tower.convs.") {
        return name.replacen(".conv.", ".proj.", 1);
    }
    let attention = if name.contains(".spatial_block.") { "window_attn" } else { "channel_attn" };
    let first = [
        (".conv1.", ".conv1.fn.dw.".to_owned()),
        (".conv2.", ".conv2.fn.dw.".to_owned()),
        (".norm1.", format!(".{attention}.norm.")),
        (".norm2.", ".ffn.norm.".to_owned()),
        ("_attn.qkv.", "_attn.fn.qkv.".to_owned()),
        ("_attn.proj.", "_attn.fn.proj.".to_owned()),
        (".ffn.fc", ".ffn.fn.net.fc".to_owned()),
    ];
    let found = first.iter().find(|(ours, _)| name.contains(ours));
    found.map_or_else(|| name.to_owned(), |(ours, theirs)| name.replacen(ours, theirs, 1))
}

/// The stored name of the table of words. Files keep one copy of it under one of its names.
pub(super) fn words(claims: &Claims<'_>, layout: Layout) -> String {
    let mut names: Vec<String> =
        [WORDS].into_iter().chain(WORDS_ALSO).map(|name| stored(layout, name)).collect();
    names.push(RATING.to_owned());
    let found = names.iter().find(|name| claims.find(name).is_some());
    found.unwrap_or(&names[0]).clone()
}

/// The tensors of a model's file, under the model's own names.
struct Names<'a> {
    claims: &'a Claims<'a>,
    layout: Layout,
}

impl Names<'_> {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<WeightSpec> {
        let spec = self.claims.weight(&stored(self.layout, name), shape)?;
        Ok(WeightSpec { name: name.to_owned(), ..spec })
    }

    /// The weight of a module, and its bias if there is one.
    fn module(&self, name: &str, shape: &[usize]) -> Result<Vec<WeightSpec>> {
        let mut specs = vec![self.weight(&format!("{name}.weight"), shape)?];
        let bias = format!("{name}.bias");
        if self.claims.find(&stored(self.layout, &bias)).is_some() {
            specs.push(self.weight(&bias, &shape[..1])?);
        }
        Ok(specs)
    }

    fn modules(&self, modules: &[(String, Vec<usize>)]) -> Result<Vec<WeightSpec>> {
        let specs = modules.iter().map(|(name, shape)| self.module(name, shape));
        Ok(specs.collect::<Result<Vec<_>>>()?.concat())
    }
}

pub(super) fn manifest(claims: &Claims<'_>, config: &Florence2Config, layout: Layout) -> Result<Manifest> {
    let names = Names { claims, layout };
    let mut builder = Manifest::builder(claims.file(), FAMILY);
    for (number, stage) in config.stages.iter().enumerate() {
        builder = builder.block(format!("stage.{number}"), false, entrance(&names, number, stage)?);
        for layer in 0..stage.depth {
            let weights = blocks(&names, (number, layer), stage)?;
            builder = builder.block(format!("stage.{number}.{layer}"), false, weights);
        }
    }
    builder = builder.block("projector", true, projector(&names, config)?);
    builder = builder.block("words", true, word_tables(&names, config)?);
    for (half, stack) in [(ENCODER, &config.encoder), (DECODER, &config.decoder)] {
        for layer in 0..stack.layers {
            let weights = text_layer(&names, config.width, half, stack, layer)?;
            builder = builder.block(format!("{half}.{layer}"), false, weights);
        }
    }
    Ok(builder.finish()?)
}

fn entrance(names: &Names<'_>, number: usize, stage: &Stage) -> Result<Vec<WeightSpec>> {
    let module = |rest: &str| format!("vision_tower.convs.{number}.{rest}");
    let normalised = if stage.norm_first { stage.channels_in } else { stage.channels };
    names.modules(&[
        (module("conv"), vec![stage.channels, stage.channels_in, stage.kernel, stage.kernel]),
        (module("norm"), vec![normalised]),
    ])
}

/// A pair of blocks: one that attends in windows, and one that attends over channels.
fn blocks(names: &Names<'_>, (stage, layer): (usize, usize), sizes: &Stage) -> Result<Vec<WeightSpec>> {
    let (channels, mlp) = (sizes.channels, sizes.mlp);
    let mut modules = Vec::new();
    for (block, attention) in [("spatial_block", "window_attn"), ("channel_block", "channel_attn")] {
        let module = |rest: &str| format!("vision_tower.blocks.{stage}.{layer}.{block}.{rest}");
        modules.extend([
            (module("conv1"), vec![channels, 1, 3, 3]),
            (module("norm1"), vec![channels]),
            (module(&format!("{attention}.qkv")), vec![3 * channels, channels]),
            (module(&format!("{attention}.proj")), vec![channels, channels]),
            (module("conv2"), vec![channels, 1, 3, 3]),
            (module("norm2"), vec![channels]),
            (module("ffn.fc1"), vec![mlp, channels]),
            (module("ffn.fc2"), vec![channels, mlp]),
        ]);
    }
    names.modules(&modules)
}

fn projector(names: &Names<'_>, config: &Florence2Config) -> Result<Vec<WeightSpec>> {
    let (width, vision) = (config.width, config.stages.last().map_or(0, |stage| stage.channels));
    let places = "multi_modal_projector.image_position_embed";
    let mut weights = match names.layout {
        Layout::Transformers => vec![names.weight(PROJECTION, &[width, vision])?],
        _ => vec![names.claims.weight(FIRST_PROJECTION, &[vision, width])?],
    };
    weights.extend(names.module("multi_modal_projector.image_proj_norm", &[width])?);
    weights.push(names.weight(&format!("{places}.row_embeddings.weight"), &[config.grid.0, vision / 2])?);
    let rest = vision - vision / 2;
    weights.push(names.weight(&format!("{places}.column_embeddings.weight"), &[config.grid.1, rest])?);
    if let Some(times) = names.claims.find(&stored(names.layout, TIMES)) {
        let rows = times.shape().dims().first().copied().unwrap_or(0);
        weights.push(names.weight(TIMES, &[rows, vision])?);
    }
    Ok(weights)
}

fn word_tables(names: &Names<'_>, config: &Florence2Config) -> Result<Vec<WeightSpec>> {
    let width = config.width;
    let table = names.claims.weight(&words(names.claims, names.layout), &[config.vocabulary, width])?;
    let mut weights = vec![WeightSpec { name: WORDS.to_owned(), ..table }];
    for (half, stack) in [(ENCODER, &config.encoder), (DECODER, &config.decoder)] {
        let rows = stack.positions + FIRST_POSITION;
        weights.push(names.weight(&format!("language_model.{half}.embed_positions.weight"), &[rows, width])?);
        weights.extend(names.module(&format!("language_model.{half}.layernorm_embedding"), &[width])?);
    }
    if names.layout != Layout::Transformers && names.claims.find(RATING_BIAS).is_some() {
        weights.push(names.claims.weight(RATING_BIAS, &[1, config.vocabulary])?);
    }
    Ok(weights)
}

fn text_layer(
    names: &Names<'_>,
    width: usize,
    half: &str,
    stack: &Stack,
    layer: usize,
) -> Result<Vec<WeightSpec>> {
    let module = |rest: &str| format!("language_model.{half}.layers.{layer}.{rest}");
    let mut modules = vec![
        (module("self_attn_layer_norm"), vec![width]),
        (module("final_layer_norm"), vec![width]),
        (module("fc1"), vec![stack.mlp, width]),
        (module("fc2"), vec![width, stack.mlp]),
    ];
    let mut attentions = vec!["self_attn"];
    if half == DECODER {
        attentions.push("encoder_attn");
        modules.push((module("encoder_attn_layer_norm"), vec![width]));
    }
    for attention in attentions {
        for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            modules.push((module(&format!("{attention}.{part}")), vec![width, width]));
        }
    }
    names.modules(&modules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_first_publication() {
        let block = "vision_tower.blocks.2.1";
        for (ours, theirs) in [
            ("vision_tower.convs.0.conv.bias".to_owned(), "vision_tower.convs.0.proj.bias".to_owned()),
            (
                format!("{block}.spatial_block.conv1.weight"),
                format!("{block}.spatial_block.conv1.fn.dw.weight"),
            ),
            (
                format!("{block}.spatial_block.norm1.bias"),
                format!("{block}.spatial_block.window_attn.norm.bias"),
            ),
            (
                format!("{block}.channel_block.norm1.bias"),
                format!("{block}.channel_block.channel_attn.norm.bias"),
            ),
            (
                format!("{block}.channel_block.channel_attn.qkv.weight"),
                format!("{block}.channel_block.channel_attn.fn.qkv.weight"),
            ),
            (format!("{block}.channel_block.norm2.weight"), format!("{block}.channel_block.ffn.norm.weight")),
            (
                format!("{block}.spatial_block.ffn.fc2.weight"),
                format!("{block}.spatial_block.ffn.fn.net.fc2.weight"),
            ),
            (
                "multi_modal_projector.image_position_embed.row_embeddings.weight".to_owned(),
                "image_pos_embed.row_embeddings.weight".to_owned(),
            ),
            (WORDS.to_owned(), "language_model.model.shared.weight".to_owned()),
        ] {
            assert_eq!(stored(Layout::Native, &ours), theirs);
            assert_eq!(stored(Layout::Transformers, &ours), ours);
        }
    }
}
