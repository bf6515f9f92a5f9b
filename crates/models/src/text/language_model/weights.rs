//! What a language model needs of its file, under the names of the transformers library or under llama.cpp's.

use residency::{Manifest, WeightSpec};

use super::LanguageModelConfig;
use crate::Result;
use crate::claims::Claims;
use crate::detect::Layout;

/// What errors call the family.
pub(super) const FAMILY: &str = "a language model";
/// The table of tokens, under the name that the model uses.
pub(super) const TABLE: &str = "model.embed_tokens.weight";
/// The table of the logits, of models that have one of their own.
pub(super) const OUTPUT: &str = "lm_head.weight";
/// The normalisation behind the last layer.
pub(super) const LAST_NORM: &str = "model.norm.weight";

/// The modules of a layer, and what llama.cpp calls them. Behind attention it has a name of its own for Gemma's
/// normalisation, whose name is that of another one elsewhere.
const MODULES: &[(&str, &str)] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// How a file names tensors.
pub(super) struct Names {
    layout: Layout,
    pub(super) table: &'static str,
    pub(super) last_norm: &'static str,
}

/// The names of a layout, below the part's prefix.
pub(super) fn names(layout: Layout) -> Names {
    match layout {
        Layout::LlamaCpp => Names { layout, table: "token_embd.weight", last_norm: "output_norm.weight" },
        _ => Names { layout, table: "embed_tokens.weight", last_norm: "norm.weight" },
    }
}

impl Names {
    /// A tensor of a layer, such as `self_attn.q_proj.weight`.
    pub(super) fn of(&self, layer: usize, tensor: &str) -> String {
        if self.layout != Layout::LlamaCpp {
            return format!("layers.{layer}.{tensor}");
        }
        let (module, kind) = tensor.rsplit_once('.').unwrap_or((tensor, ""));
        let theirs = MODULES.iter().find(|(ours, _)| *ours == module).map_or(module, |(_, theirs)| *theirs);
        format!("blk.{layer}.{theirs}.{kind}")
    }

    /// The stored name of a normalisation in front of the feed-forward half.
    fn middle_norm(&self, layer: usize) -> String {
        match self.layout {
            Layout::LlamaCpp => format!("blk.{layer}.ffn_norm.weight"),
            _ => self.of(layer, "post_attention_layernorm.weight"),
        }
    }
}

pub(super) fn manifest(
    claims: &Claims<'_>,
    config: &LanguageModelConfig,
    layout: Layout,
) -> Result<Manifest> {
    let names = names(layout);
    let table = claims.weight(names.table, &[config.vocabulary, config.width])?;
    let mut builder =
        Manifest::builder(claims.file(), FAMILY).table(WeightSpec { name: TABLE.to_owned(), ..table });
    if let Some(output) = output(claims, config, layout)? {
        builder = builder.table(WeightSpec { name: OUTPUT.to_owned(), ..output });
    }
    for i in 0..config.layers {
        builder = builder.block(format!("layers.{i}"), false, layer(claims, config, &names, i)?);
    }
    if config.has_last_norm {
        let norm = claims.weight(names.last_norm, &[config.width])?;
        builder = builder.block("head", true, vec![WeightSpec { name: LAST_NORM.to_owned(), ..norm }]);
    }
    Ok(builder.finish()?)
}

/// The table of the logits, which stands beside the model and not in it; models without one use that of the tokens.
fn output(claims: &Claims<'_>, config: &LanguageModelConfig, layout: Layout) -> Result<Option<WeightSpec>> {
    let (beside, name) = match layout {
        Layout::LlamaCpp => (claims.above(""), "output.weight"),
        _ => (claims.above("model."), "lm_head.weight"),
    };
    if !config.has_last_norm || beside.find(name).is_none() {
        return Ok(None);
    }
    beside.weight(name, &[config.vocabulary, config.width]).map(Some)
}

fn layer(
    claims: &Claims<'_>,
    config: &LanguageModelConfig,
    names: &Names,
    i: usize,
) -> Result<Vec<WeightSpec>> {
    let LanguageModelConfig { width, heads, groups, head, mlp, kind, .. } = *config;
    let mut weights = Vec::new();
    let mut add = |stored: String, ours: &str, shape: &[usize]| -> Result<()> {
        let spec = claims.weight(&stored, shape)?;
        weights.push(WeightSpec { name: format!("model.layers.{i}.{ours}"), ..spec });
        Ok(())
    };
    let norms: &[&str] = match kind.has_outer_norms() {
        true => &[
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ],
        false => &["input_layernorm"],
    };
    for norm in norms {
        add(names.of(i, &format!("{norm}.weight")), &format!("{norm}.weight"), &[width])?;
    }
    if !kind.has_outer_norms() {
        add(names.middle_norm(i), "post_attention_layernorm.weight", &[width])?;
    }
    let (queries, keys) = (heads * head, groups * head);
    for (module, [rows, columns]) in [
        ("self_attn.q_proj", [queries, width]),
        ("self_attn.k_proj", [keys, width]),
        ("self_attn.v_proj", [keys, width]),
        ("self_attn.o_proj", [width, queries]),
        ("mlp.gate_proj", [mlp, width]),
        ("mlp.up_proj", [mlp, width]),
        ("mlp.down_proj", [width, mlp]),
    ] {
        let weight = format!("{module}.weight");
        add(names.of(i, &weight), &weight, &[rows, columns])?;
        let bias = format!("{module}.bias");
        if claims.find(&names.of(i, &bias)).is_some() {
            add(names.of(i, &bias), &bias, &[rows])?;
        }
    }
    if kind.norms_heads() {
        for norm in ["self_attn.q_norm.weight", "self_attn.k_norm.weight"] {
            add(names.of(i, norm), norm, &[head])?;
        }
    }
    Ok(weights)
}
