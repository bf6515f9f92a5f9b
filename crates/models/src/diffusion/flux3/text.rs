//! Texts for FLUX.3: eight states of Qwen3-VL side by side. The model looks at what fills a text up, too.

use crate::text::{ChatTemplate, EncoderUse, Layer, TextRecipe, all};

const TEMPLATE: ChatTemplate = ChatTemplate::new("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n");

/// The layers whose inputs are taken.
const TAPS: &[usize] = &[4, 8, 12, 16, 20, 24, 28, 32];
/// Tokens of which a text is a multiple, and the most that it has.
const WINDOW: usize = 80;
const MOST_TOKENS: usize = 8192;

/// How texts are encoded.
pub(crate) const TEXT: TextRecipe = TextRecipe {
    name: "flux3",
    encoders: &[EncoderUse {
        multiple: WINDOW,
        most: Some(MOST_TOKENS),
        ..EncoderUse::chat("qwen3vl_4b", Layer::After(TAPS), &TEMPLATE)
    }],
    has_mask: false,
    join: |encoded| {
        let [text] = all(encoded)?;
        Ok(text)
    },
};
