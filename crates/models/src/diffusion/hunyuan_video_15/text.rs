//! Texts for HunyuanVideo 1.5: Qwen2.5-VL reads a conversation, and ByT5 the letters that are to be seen.

use crate::Error;
use crate::text::{
    ChatTemplate, Encoded, EncoderUse, Layer, PaddingUse, Reads, TextRecipe, from_second_turn,
};

const TEMPLATE: ChatTemplate = ChatTemplate {
    yields_to: &["<|im_start|>", "<|start_header_id|>"],
    fills_empty: true,
    ..ChatTemplate::new(
        "<|im_start|>system\nYou are a helpful assistant. Describe the video by detailing the following aspects:\n1. The \
         main content and theme of the video.\n2. The color, shape, size, texture, quantity, text, and spatial \
         relationships of the objects.\n3. Actions, events, behaviors temporal relationships, physical movement changes of \
         the objects.\n4. background environment, light, style and atmosphere.\n5. camera angles, movements, and \
         transitions used in the video.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    )
};

const QWEN: &str = "qwen25_7b";

/// The quotation marks around letters that are to be seen, in the order in which they are looked for.
const QUOTES: [[char; 2]; 3] = [['"', '"'], ['‘', '’'], ['“', '”']];

/// How texts are encoded.
pub(crate) const TEXT: TextRecipe = TextRecipe {
    name: "hunyuan_video_15",
    encoders: &[
        EncoderUse { keep: Some(from_second_turn), ..EncoderUse::chat(QWEN, Layer::SkipRaw(3), &TEMPLATE) },
        EncoderUse {
            is_optional: true,
            rounded_like: Some(QWEN),
            reads: Reads::Part(quoted),
            padding: PaddingUse::Zeroed,
            ..EncoderUse::of_length("byt5", 1)
        },
    ],
    has_mask: false,
    join: |encoded| {
        let mut encoded = encoded.into_iter();
        let (text, letters) = (encoded.next().flatten(), encoded.next().flatten());
        let text = text.ok_or_else(|| Error::Input {
            what: "the text",
            expected: "encoded by Qwen2.5".into(),
            got: "no such result".into(),
        })?;
        Ok(Encoded { second: letters.map(|letters| letters.cond), ..text })
    },
};

/// What stands between quotation marks, as ByT5 was trained to read it; nothing if there is nothing.
fn quoted(prompt: &str) -> Option<String> {
    let texts = QUOTES.into_iter().flat_map(|quotes| between(prompt, quotes));
    let text: String = texts.map(|text| format!("Text \"{text}\". ")).collect();
    (!text.is_empty()).then_some(text)
}

/// The texts between marks, each on one line.
fn between(text: &str, [open, close]: [char; 2]) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(open) {
        let inside = &rest[at + open.len_utf8()..];
        match inside.find([close, '\n']).filter(|end| inside[*end..].starts_with(close)) {
            Some(end) => {
                found.push(&inside[..end]);
                rest = &inside[end + close.len_utf8()..];
            }
            None => rest = inside,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn letters_between_quotation_marks() {
        assert_eq!(quoted("a sign"), None);
        assert_eq!(quoted("\"OPEN 24h\" and “closed”").unwrap(), "Text \"OPEN 24h\". Text \"closed\". ");
        assert_eq!(quoted("“a” \"b\" ‘c’").unwrap(), "Text \"b\". Text \"c\". Text \"a\". ");
        assert_eq!(quoted("\"a\nb\" c\"").unwrap(), "Text \" c\". ");
        assert_eq!(quoted("\"alone"), None);
    }
}
