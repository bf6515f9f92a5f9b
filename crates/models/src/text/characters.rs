//! Kinds of characters, by which byte-pair tokenizers cut text into words.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// What a character is to a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// White space.
    Space,
    /// A letter of any script.
    Letter,
    /// A digit or another number.
    Number,
    /// Anything else.
    Other,
}

/// The kind of a character.
pub(crate) fn kind(c: char) -> Kind {
    match c.general_category_group() {
        _ if c.is_whitespace() => Kind::Space,
        GeneralCategoryGroup::Letter => Kind::Letter,
        GeneralCategoryGroup::Number => Kind::Number,
        _ => Kind::Other,
    }
}
