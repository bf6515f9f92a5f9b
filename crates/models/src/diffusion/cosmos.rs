//! Cosmos: how its texts are encoded.

pub(crate) mod text;
