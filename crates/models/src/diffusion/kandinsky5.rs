//! Kandinsky 5: how its texts are encoded.

pub(crate) mod text;
