//! Texts for Lumina 2, which Gemma 2 reads as they are, and for its kin: Gemma 3, or Qwen3 in a conversation (Z-Image).

use crate::Result;
use crate::text::{ChatTemplate, Encoded, EncoderUse, Layer, PaddingUse, TextRecipe, all};

const TEMPLATE: ChatTemplate = ChatTemplate::new("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n");

const GEMMA: EncoderUse = EncoderUse {
    layer: Layer::SkipRaw(2),
    padding: PaddingUse::Hidden,
    ..EncoderUse::of_length("gemma2_2b", 1)
};

/// How texts are encoded.
pub(crate) const TEXT: TextRecipe =
    TextRecipe { name: "lumina2", encoders: &[GEMMA], has_mask: true, join: alone };

/// The same with the larger Gemma 3, to which parentheses are plain text.
pub(crate) const GEMMA3_TEXT: TextRecipe =
    TextRecipe { encoders: &[EncoderUse { key: "gemma3_4b", is_literal: true, ..GEMMA }], ..TEXT };

/// The same with Qwen3.
pub(crate) const QWEN_TEXT: TextRecipe =
    TextRecipe { encoders: &[EncoderUse::chat("qwen3_4b", Layer::SkipRaw(2), &TEMPLATE)], ..TEXT };

fn alone(encoded: Vec<Option<Encoded>>) -> Result<Encoded> {
    let [text] = all(encoded)?;
    Ok(text)
}
