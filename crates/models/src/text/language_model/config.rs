//! The kinds and sizes of language models, from the names and shapes of their tensors.

use checkpoint::Checkpoint;
use tensor::{Activation, RopeLayout};

use super::weights::names;
use crate::Result;
use crate::claims::Claims;
use crate::detect::Layout;

/// The tensor that holds the vocabulary of Mistral's models.
pub(crate) const TEKKEN: &str = "tekken_model";
/// Values per head of all models but Gemma, unless the file says otherwise.
const USUAL_HEAD: usize = 128;
/// Rows of the table and width of Mistral's models of 24 billion weights.
const MISTRAL_TABLE: usize = 131_072;
const MISTRAL_WIDTH: usize = 5120;
/// Values of all keys of Qwen2.5 with 3 billion weights.
const SMALL_QWEN_KEYS: usize = 256;
/// What only a tower of Qwen3-VL has, and what llama.cpp calls the architecture of its language model.
pub(super) const DEEP_TOWER: &str = "visual.deepstack_merger_list.0.norm.weight";
pub(super) const QWEN3_VL: &str = "qwen3vl";
/// A layer that only the larger towers of Qwen3-VL have.
const LARGE_TOWER: &str = "visual.blocks.26.attn.qkv.weight";

/// What sets one language model apart from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LanguageKind {
    /// Qwen2.5 and Qwen2.5-VL: the projections of attention have biases.
    Qwen25,
    /// Qwen3: queries and keys are normalised.
    Qwen3,
    /// Qwen3-VL: the same, with positions of pictures that are spread over all frequencies.
    Qwen3Vl,
    /// Gemma 2: normalisations before and behind both halves of a layer.
    Gemma2,
    /// Gemma 3: both, and most layers look back a little way only.
    Gemma3,
    /// Mistral Small 3.
    Mistral3,
    /// Llama 3, and LLaVA's language model.
    Llama3,
}

impl LanguageKind {
    /// The kind by what the first layer has, by the table of words, and by what else the file holds.
    pub(super) fn of(has: impl Fn(&str) -> bool, table: &[usize], beside: Beside) -> LanguageKind {
        let norms_heads = has("self_attn.q_norm.weight");
        if has("post_feedforward_layernorm.weight") {
            return if norms_heads { LanguageKind::Gemma3 } else { LanguageKind::Gemma2 };
        }
        if norms_heads {
            return if beside.is_qwen3_vl { LanguageKind::Qwen3Vl } else { LanguageKind::Qwen3 };
        }
        if has("self_attn.k_proj.bias") {
            return LanguageKind::Qwen25;
        }
        match *table {
            [MISTRAL_TABLE, _] | [_, MISTRAL_WIDTH] => LanguageKind::Mistral3,
            _ if beside.has_tekken => LanguageKind::Mistral3,
            _ => LanguageKind::Llama3,
        }
    }

    /// Its name in the field.
    pub fn name(self) -> &'static str {
        match self {
            LanguageKind::Qwen25 => "Qwen2.5",
            LanguageKind::Qwen3 => "Qwen3",
            LanguageKind::Qwen3Vl => "Qwen3-VL",
            LanguageKind::Gemma2 => "Gemma 2",
            LanguageKind::Gemma3 => "Gemma 3",
            LanguageKind::Mistral3 => "Mistral 3",
            LanguageKind::Llama3 => "Llama 3",
        }
    }

    fn is_gemma(self) -> bool {
        matches!(self, LanguageKind::Gemma2 | LanguageKind::Gemma3)
    }

    /// Whether there are normalisations behind the halves of a layer, too.
    pub(super) fn has_outer_norms(self) -> bool {
        self.is_gemma()
    }

    /// Whether words are scaled by the root of the width.
    pub(super) fn scales_table(self) -> bool {
        self.is_gemma()
    }

    /// Whether queries and keys are normalised.
    pub(super) fn norms_heads(self) -> bool {
        matches!(self, LanguageKind::Qwen3 | LanguageKind::Qwen3Vl | LanguageKind::Gemma3)
    }

    pub(super) fn activation(self) -> Activation {
        if self.is_gemma() { Activation::GeluTanh } else { Activation::Silu }
    }

    /// How far back a layer looks, if not all the way: five of six layers of Gemma 3 look at 1024 tokens.
    pub(super) fn window(self, layer: usize) -> Option<usize> {
        (self == LanguageKind::Gemma3 && layer % 6 != 5).then_some(1024)
    }

    /// The lowest frequency of positions, and what divides positions; of layers that look all the way back first.
    pub(super) fn frequencies(self) -> &'static [Frequency] {
        match self {
            LanguageKind::Qwen25 | LanguageKind::Qwen3 => &[Frequency { base: 1e6, divisor: 1.0 }],
            LanguageKind::Qwen3Vl => &[Frequency { base: 5e6, divisor: 1.0 }],
            LanguageKind::Gemma2 => &[Frequency { base: 1e4, divisor: 1.0 }],
            LanguageKind::Gemma3 => {
                &[Frequency { base: 1e6, divisor: 8.0 }, Frequency { base: 1e4, divisor: 1.0 }]
            }
            LanguageKind::Mistral3 => &[Frequency { base: 1e9, divisor: 1.0 }],
            LanguageKind::Llama3 => &[Frequency { base: 5e5, divisor: 1.0 }],
        }
    }
}

/// What a file holds beside the layers of a language model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beside {
    /// Mistral's vocabulary.
    pub(super) has_tekken: bool,
    /// A tower of Qwen3-VL, or the word that this is its language model.
    pub(super) is_qwen3_vl: bool,
}

/// How fast positions turn queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Frequency {
    pub(super) base: f64,
    pub(super) divisor: f64,
}

/// The sizes of a language model.
#[derive(Clone, Debug, PartialEq)]
pub struct LanguageModelConfig {
    /// Which model it is.
    pub kind: LanguageKind,
    /// Entries of the token table.
    pub vocabulary: usize,
    /// Values per token.
    pub width: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub groups: usize,
    /// Values per head.
    pub head: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Layers.
    pub layers: usize,
    /// Below every square root of a mean square.
    pub eps: f32,
    /// Which values of a head are turned together.
    pub rope: RopeLayout,
    /// Whether normalisations multiply by one more than their weights (Gemma's own files).
    pub adds_one: bool,
    /// Whether the file has one of the larger towers of Qwen3-VL.
    pub has_large_tower: bool,
    /// Whether the file has the last normalisation; files that end at a middle layer have not.
    pub has_last_norm: bool,
}

impl LanguageModelConfig {
    /// What recipes call it.
    pub(super) fn key(&self) -> &'static str {
        match (self.kind, self.width) {
            (LanguageKind::Qwen25, _) if self.groups * self.head == SMALL_QWEN_KEYS => "qwen25_3b",
            (LanguageKind::Qwen25, _) => "qwen25_7b",
            (LanguageKind::Qwen3, 2048) => "qwen3_2b",
            (LanguageKind::Qwen3, 4096) => "qwen3_8b",
            (LanguageKind::Qwen3, _) => "qwen3_4b",
            (LanguageKind::Qwen3Vl, 2560) => "qwen3vl_4b",
            (LanguageKind::Qwen3Vl, 4096) => "qwen3vl_8b",
            (LanguageKind::Qwen3Vl, _) if self.has_large_tower => "qwen3vl_8b",
            (LanguageKind::Qwen3Vl, _) => "qwen3vl_4b",
            (LanguageKind::Gemma2, _) => "gemma2_2b",
            (LanguageKind::Gemma3, _) => "gemma3_4b",
            (LanguageKind::Mistral3, _) => "mistral3_24b",
            (LanguageKind::Llama3, _) => "llama",
        }
    }
}

/// Reads the sizes.
pub(super) fn read(
    claims: &Claims<'_>,
    checkpoint: &Checkpoint,
    layout: Layout,
) -> Result<LanguageModelConfig> {
    let names = names(layout);
    let [vocabulary, width] = claims.dims(names.table)?;
    let has = |name: &str| claims.find(&names.of(0, name)).is_some();
    let metadata = checkpoint.metadata();
    let architecture = metadata.architecture().filter(|_| layout == Layout::LlamaCpp).unwrap_or_default();
    let has_ending = |end: &str| checkpoint.entries().iter().any(|entry| entry.name().ends_with(end));
    let beside = Beside {
        has_tekken: checkpoint.entry(TEKKEN).is_some(),
        is_qwen3_vl: architecture == QWEN3_VL || has_ending(DEEP_TOWER),
    };
    let kind = LanguageKind::of(has, &[vocabulary, width], beside);
    let head = match kind.norms_heads() {
        true => claims.dims::<1>(&names.of(0, "self_attn.q_norm.weight"))?[0],
        false => {
            let said = metadata.u64(&format!("{architecture}.attention.key_length"));
            let usual = if kind.is_gemma() { 2 * USUAL_HEAD } else { USUAL_HEAD };
            said.and_then(|said| usize::try_from(said).ok()).filter(|said| *said > 0).unwrap_or(usual)
        }
    };
    let query = names.of(0, "self_attn.q_proj.weight");
    let ([queries, _], [keys, _]) =
        (claims.dims::<2>(&query)?, claims.dims::<2>(&names.of(0, "self_attn.k_proj.weight"))?);
    let (heads, groups) = (queries / head, keys / head);
    let fits = queries % head == 0 && keys % head == 0 && groups > 0 && heads % groups == 0 && head % 2 == 0;
    if let Some(entry) = claims.find(&query).filter(|_| !fits) {
        return Err(
            claims.wrong_shape(entry, format!("[a multiple of {keys}, which is one of {head}; {width}]"))
        );
    }
    let [mlp, _] = claims.dims(&names.of(0, "mlp.gate_proj.weight"))?;
    let layers = claims.count(|i| names.of(i, "self_attn.q_proj.weight"));
    let usual_eps = if matches!(kind, LanguageKind::Llama3 | LanguageKind::Mistral3) { 1e-5 } else { 1e-6 };
    // Converters of models with llama's names reorder queries and keys so that neighbours are turned together.
    let is_reordered = matches!(architecture, "llama" | "mistral3");
    Ok(LanguageModelConfig {
        kind,
        vocabulary,
        width,
        heads,
        groups,
        head,
        mlp,
        layers,
        eps: usual_eps,
        rope: if is_reordered { RopeLayout::Interleaved } else { RopeLayout::HalfSplit },
        adds_one: kind.is_gemma() && layout != Layout::LlamaCpp,
        has_large_tower: kind == LanguageKind::Qwen3Vl && has_ending(LARGE_TOWER),
        has_last_norm: claims.find(names.last_norm).is_some(),
    })
}
