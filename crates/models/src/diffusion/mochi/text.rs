//! Texts for Mochi: T5, whose filling neither the words nor the video see.

use crate::text::{EncoderUse, PaddingUse, TextRecipe, all};

/// How texts are encoded.
pub(crate) const TEXT: TextRecipe = TextRecipe {
    name: "mochi",
    encoders: &[EncoderUse { padding: PaddingUse::Hidden, ..EncoderUse::of_length("t5xxl", 256) }],
    has_mask: true,
    join: |encoded| {
        let [text] = all(encoded)?;
        Ok(text)
    },
};
