//! Texts for Qwen-Image 2.1: Qwen3-VL reads a conversation, about pictures, too. The model gets the user's turn.

use crate::text::{ChatTemplate, EncoderUse, Layer, TextRecipe, all, whole_second_turn};

/// Qwen's token in whose place a picture is put.
const PICTURE: u32 = 151_655;

const TEMPLATE: ChatTemplate = ChatTemplate {
    fills_empty: true,
    ..ChatTemplate::new(
        "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n\
         <|im_start|>assistant\n",
    )
};

/// How texts are encoded. Loaders know it by the name of the generation before it.
pub(crate) const TEXT: TextRecipe = TextRecipe {
    name: "qwen_image",
    encoders: &[EncoderUse {
        keep: Some(whole_second_turn),
        picture: Some(PICTURE),
        ..EncoderUse::chat("qwen3vl_8b", Layer::SkipRaw(1), &TEMPLATE)
    }],
    has_mask: false,
    join: |encoded| {
        let [text] = all(encoded)?;
        Ok(text)
    },
};
