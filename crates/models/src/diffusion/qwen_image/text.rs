//! Texts for Qwen-Image and Qwen-Image-Edit: Qwen2.5-VL reads a conversation, about pictures, too.

use crate::text::{ChatTemplate, EncoderUse, Layer, TextRecipe, all, from_second_turn};

/// Qwen's token in whose place a picture is put.
const PICTURE: u32 = 151_655;

/// What begins a conversation that a prompt writes itself: a turn of Qwen's, or of Llama's.
const OWN_CONVERSATION: &[&str] = &["<|im_start|>", "<|start_header_id|>"];

const TEMPLATE: ChatTemplate = ChatTemplate {
    with_pictures: Some(
        "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, \
         background), then explain how the user's text instruction should alter or modify the image. Generate a new image \
         that meets the user's requirements while maintaining consistency with the original input where appropriate.\
         <|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{}<|im_end|>\n<|im_start|>assistant\n",
    ),
    yields_to: OWN_CONVERSATION,
    ..ChatTemplate::new(
        "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial \
         relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    )
};

/// How texts are encoded.
pub(crate) const TEXT: TextRecipe = TextRecipe {
    name: "qwen_image",
    encoders: &[EncoderUse {
        keep: Some(from_second_turn),
        picture: Some(PICTURE),
        ..EncoderUse::chat("qwen25_7b", Layer::Last, &TEMPLATE)
    }],
    has_mask: false,
    join: |encoded| {
        let [text] = all(encoded)?;
        Ok(text)
    },
};
