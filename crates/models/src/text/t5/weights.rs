//! What a T5 encoder needs of its file, under the published names or under those of language model converters.

use residency::{Manifest, WeightSpec};

use super::T5Config;
use crate::Result;
use crate::claims::Claims;
use crate::detect::Layout;

/// What errors call the family.
pub(super) const FAMILY: &str = "T5";
/// The table of tokens, under the name that the encoder uses.
pub(super) const TOKENS: &str = "shared.weight";
/// Other names of the same table.
const TOKENS_ALSO: [&str; 2] = ["encoder.embed_tokens.weight", "token_embd.weight"];
/// The normalisation behind the last layer.
pub(super) const LAST_NORM: &str = "encoder.final_layer_norm.weight";

/// A tensor of a layer: as the encoder names it, and as converters do.
type Name = (&'static str, &'static str);

const QUERY: Name = ("0.SelfAttention.q", "attn_q");
const KEY: Name = ("0.SelfAttention.k", "attn_k");
const VALUE: Name = ("0.SelfAttention.v", "attn_v");
const OUT: Name = ("0.SelfAttention.o", "attn_o");
const DISTANCE: Name = ("0.SelfAttention.relative_attention_bias", "attn_rel_b");
const NORM: Name = ("0.layer_norm", "attn_norm");
const GATE: Name = ("1.DenseReluDense.wi_0", "ffn_gate");
const UP: Name = ("1.DenseReluDense.wi_1", "ffn_up");
/// The only way in of the first T5.
const IN: Name = ("1.DenseReluDense.wi", "ffn_up");
const DOWN: Name = ("1.DenseReluDense.wo", "ffn_down");
const MLP_NORM: Name = ("1.layer_norm", "ffn_norm");

/// The name of a layer's tensor in a layout.
fn named(layout: Layout, layer: usize, (ours, theirs): Name) -> String {
    match layout {
        Layout::LlamaCpp => format!("enc.blk.{layer}.{theirs}.weight"),
        _ => format!("encoder.block.{layer}.layer.{ours}.weight"),
    }
}

/// The stored name of the table of tokens.
fn tokens_name(claims: &Claims<'_>) -> &'static str {
    TOKENS_ALSO
        .into_iter()
        .find(|name| claims.find(name).is_some() && claims.find(TOKENS).is_none())
        .unwrap_or(TOKENS)
}

pub(super) fn read_config(claims: &Claims<'_>, layout: Layout) -> Result<T5Config> {
    let [vocabulary, width] = claims.dims(tokens_name(claims))?;
    let table = named(layout, 0, DISTANCE);
    let [buckets, heads] = claims.dims(&table)?;
    let [inner, _] = claims.dims(&named(layout, 0, QUERY))?;
    let is_gated =
        claims.find(&named(layout, 0, GATE)).is_some() || claims.find(&named(layout, 0, IN)).is_none();
    let [mlp, _] = claims.dims(&named(layout, 0, if is_gated { GATE } else { IN }))?;
    let fits = heads > 0 && inner > 0 && inner % heads == 0 && buckets >= 4 && buckets % 4 == 0;
    if let Some(entry) = claims.find(&table).filter(|_| !fits) {
        return Err(claims.wrong_shape(entry, format!("[a multiple of 4, a divisor of {inner}]")));
    }
    let layers = claims.count(|i| named(layout, i, QUERY));
    let own_positions = layers > 1 && claims.find(&named(layout, 1, DISTANCE)).is_some();
    Ok(T5Config { vocabulary, width, heads, inner, mlp, layers, buckets, own_positions, is_gated })
}

pub(super) fn manifest(claims: &Claims<'_>, config: &T5Config, layout: Layout) -> Result<Manifest> {
    let table = claims.weight(tokens_name(claims), &[config.vocabulary, config.width])?;
    let table = WeightSpec { name: TOKENS.to_owned(), ..table };
    let mut builder = Manifest::builder(claims.file(), FAMILY).block("embeddings", true, vec![table]);
    for i in 0..config.layers {
        builder = builder.block(format!("block.{i}"), false, layer(claims, config, layout, i)?);
    }
    let last = if layout == Layout::LlamaCpp { "enc.output_norm.weight" } else { LAST_NORM };
    let last = WeightSpec { name: LAST_NORM.to_owned(), ..claims.weight(last, &[config.width])? };
    Ok(builder.block("head", true, vec![last]).finish()?)
}

fn layer(claims: &Claims<'_>, config: &T5Config, layout: Layout, i: usize) -> Result<Vec<WeightSpec>> {
    let T5Config { width, inner, mlp, heads, buckets, .. } = *config;
    let spec = |name: Name, shape: &[usize]| -> Result<WeightSpec> {
        let spec = claims.weight(&named(layout, i, name), shape)?;
        Ok(WeightSpec { name: named(Layout::Native, i, name), ..spec })
    };
    let mut weights = vec![
        spec(NORM, &[width])?,
        spec(QUERY, &[inner, width])?,
        spec(KEY, &[inner, width])?,
        spec(VALUE, &[inner, width])?,
        spec(OUT, &[width, inner])?,
        spec(MLP_NORM, &[width])?,
        spec(DOWN, &[width, mlp])?,
    ];
    for name in if config.is_gated { &[GATE, UP][..] } else { &[IN][..] } {
        weights.push(spec(*name, &[mlp, width])?);
    }
    if i == 0 || config.own_positions {
        weights.push(spec(DISTANCE, &[buckets, heads])?);
    }
    Ok(weights)
}
