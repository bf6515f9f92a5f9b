//! What the fuzz targets share with the tests of `checkpoint`: opening a file and using all that it has.

#[path = "../../crates/checkpoint/tests/campaign/mod.rs"]
mod campaign;
#[path = "../../crates/checkpoint/tests/writer/mod.rs"]
mod writer;

pub use campaign::seeds::Parser;
