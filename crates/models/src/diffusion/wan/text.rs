//! Texts for Wan: UMT5, with zeros behind the words.

use crate::text::{EncoderUse, PaddingUse, TextRecipe, all};

/// How texts are encoded.
pub(crate) const TEXT: TextRecipe = TextRecipe {
    name: "wan",
    encoders: &[EncoderUse { padding: PaddingUse::Zeroed, ..EncoderUse::of_length("umt5xxl", 512) }],
    has_mask: false,
    join: |encoded| {
        let [text] = all(encoded)?;
        Ok(text)
    },
};
