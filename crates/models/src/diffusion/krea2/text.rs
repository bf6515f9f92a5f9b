//! Texts for Krea 2: twelve states of Qwen3-VL side by side, of a conversation about the prompt.

use crate::text::{ChatTemplate, EncoderUse, Layer, TextRecipe, all, from_second_turn};

/// Qwen's token in whose place a picture is put.
const PICTURE: u32 = 151_655;

const TEMPLATE: ChatTemplate = ChatTemplate {
    yields_to: &["<|im_start|>"],
    ..ChatTemplate::new(
        "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial \
         relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    )
};

/// The layers whose inputs are taken.
const TAPS: &[usize] = &[2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35];

/// How texts are encoded.
pub(crate) const TEXT: TextRecipe = TextRecipe {
    name: "krea2",
    encoders: &[EncoderUse {
        keep: Some(from_second_turn),
        picture: Some(PICTURE),
        ..EncoderUse::chat("qwen3vl_4b", Layer::After(TAPS), &TEMPLATE)
    }],
    has_mask: false,
    join: |encoded| {
        let [text] = all(encoded)?;
        Ok(text)
    },
};
