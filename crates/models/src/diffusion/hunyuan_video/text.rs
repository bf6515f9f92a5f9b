//! Texts for HunyuanVideo: LLaVA's Llama 3 reads a conversation, CLIP-L gives the whole in one vector.

use crate::text::{ChatTemplate, Encoded, EncoderUse, Layer, PaddingUse, Reads, TextRecipe, all, user_turn};

/// LLaVA's token in whose place a picture is put.
const PICTURE: u32 = 128_257;

const TEMPLATE: ChatTemplate = ChatTemplate::new(
    "<|start_header_id|>system<|end_header_id|>\n\nDescribe the video by detailing the following aspects: 1. The main \
     content and theme of the video.2. The color, shape, size, texture, quantity, text, and spatial relationships of the \
     objects.3. Actions, events, behaviors temporal relationships, physical movement changes of the objects.4. background \
     environment, light, style and atmosphere.5. camera angles, movements, and transitions used in the video:<|eot_id|>\
     <|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>",
);

/// How texts are encoded.
pub(crate) const TEXT: TextRecipe = TextRecipe {
    name: "hunyuan_video",
    encoders: &[
        EncoderUse { unprojected: true, ..EncoderUse::clip("clip_l", Layer::Last) },
        EncoderUse {
            layer: Layer::SkipRaw(3),
            reads: Reads::Chat(&TEMPLATE),
            padding: PaddingUse::Hidden,
            keep: Some(user_turn),
            picture: Some(PICTURE),
            ..EncoderUse::of_length("llama", 1)
        },
    ],
    has_mask: false,
    join: |encoded| {
        let [clip, llama] = all(encoded)?;
        Ok(Encoded { pooled: clip.pooled, ..llama })
    },
};
