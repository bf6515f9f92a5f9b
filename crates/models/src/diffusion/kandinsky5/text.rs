//! Texts for Kandinsky 5: Qwen2.5-VL reads a conversation, CLIP-L gives the whole in one vector.

use crate::Result;
use crate::text::{ChatTemplate, Encoded, EncoderUse, Layer, TextRecipe, all, from_second_turn};

/// What begins a conversation that a prompt writes itself.
const OWN_CONVERSATION: &[&str] = &["<|im_start|>", "<|start_header_id|>"];

const TEMPLATE: ChatTemplate = ChatTemplate {
    yields_to: OWN_CONVERSATION,
    ..ChatTemplate::new(
        "<|im_start|>system\nYou are a prompt engineer. Describe the video in detail.\nDescribe how the camera moves or \
         shakes, describe the zoom and view angle, whether it follows the objects.\nDescribe the location of the video, \
         main characters or objects and their action.\nDescribe the dynamism of the video and presented actions.\nName the \
         visual style of the video: whether it is a professional footage, user generated content, some kind of animation, \
         video game or screen content.\nDescribe the visual effects, postprocessing and transitions if they are presented \
         in the video.\nPay attention to the order of key actions shown in the scene.<|im_end|>\n<|im_start|>user\n{}\
         <|im_end|>",
    )
};

/// The misspelling is the one that the models were trained with.
const IMAGE_TEMPLATE: ChatTemplate = ChatTemplate {
    yields_to: OWN_CONVERSATION,
    ..ChatTemplate::new(
        "<|im_start|>system\nYou are a promt engineer. Describe the image by detailing the color, shape, size, texture, \
         quantity, text, spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>",
    )
};

const QWEN: &str = "qwen25_7b";

const POOLED: EncoderUse =
    EncoderUse { unprojected: true, rounded_like: Some(QWEN), ..EncoderUse::clip("clip_l", Layer::Last) };

const fn qwen(template: &'static ChatTemplate) -> EncoderUse {
    EncoderUse { keep: Some(from_second_turn), ..EncoderUse::chat(QWEN, Layer::SkipRaw(1), template) }
}

/// How texts are encoded.
pub(crate) const TEXT: TextRecipe =
    TextRecipe { name: "kandinsky5", encoders: &[qwen(&TEMPLATE), POOLED], has_mask: false, join };

/// The same for pictures.
pub(crate) const IMAGE_TEXT: TextRecipe =
    TextRecipe { name: "kandinsky5_image", encoders: &[qwen(&IMAGE_TEMPLATE), POOLED], ..TEXT };

fn join(encoded: Vec<Option<Encoded>>) -> Result<Encoded> {
    let [text, clip] = all(encoded)?;
    Ok(Encoded { pooled: clip.pooled, ..text })
}
