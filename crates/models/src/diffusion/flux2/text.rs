//! Texts for FLUX.2: three states of Mistral 3 side by side, or of Qwen3 for the smaller models.

use crate::Result;
use crate::text::{ChatTemplate, Encoded, EncoderUse, Layer, TextRecipe, all};

const TEMPLATE: ChatTemplate = ChatTemplate::new(
    "[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured responses focusing on object \
     relationships, object\nattribution and actions without speculation.[/SYSTEM_PROMPT][INST]{}[/INST]",
);

const KLEIN_TEMPLATE: ChatTemplate =
    ChatTemplate::new("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");

/// Qwen3 as the smaller models use it, filled up.
const QWEN: EncoderUse =
    EncoderUse { tokens: 512, ..EncoderUse::chat("qwen3_4b", Layer::After(&[9, 18, 27]), &KLEIN_TEMPLATE) };

/// How texts are encoded.
pub(crate) const TEXT: TextRecipe = TextRecipe {
    name: "flux2",
    encoders: &[EncoderUse::chat("mistral3_24b", Layer::After(&[10, 20, 30]), &TEMPLATE)],
    has_mask: true,
    join: alone,
};

/// The same for the smaller models, by Qwen3 with 4 billion weights.
pub(crate) const KLEIN_TEXT: TextRecipe = TextRecipe { encoders: &[QWEN], ..TEXT };

/// The same with 8 billion.
pub(crate) const KLEIN_8B_TEXT: TextRecipe =
    TextRecipe { encoders: &[EncoderUse { key: "qwen3_8b", ..QWEN }], ..TEXT };

fn alone(encoded: Vec<Option<Encoded>>) -> Result<Encoded> {
    let [text] = all(encoded)?;
    Ok(text)
}
