//! Texts for Cosmos: the first T5-XXL, with zeros behind the words.

use crate::text::{EncoderUse, PaddingUse, TextRecipe, all};

/// How texts are encoded.
pub(crate) const TEXT: TextRecipe = TextRecipe {
    name: "cosmos",
    encoders: &[EncoderUse { padding: PaddingUse::Zeroed, ..EncoderUse::of_length("t5xxl_old", 512) }],
    has_mask: true,
    join: |encoded| {
        let [text] = all(encoded)?;
        Ok(text)
    },
};
