//! What the fuzz targets share with the tests of `checkpoint` and `codec`: opening a file and using all that it has.

#[path = "../../crates/checkpoint/tests/campaign/mod.rs"]
mod campaign;
/// Coded weights: valid ones, and reading what there is.
#[path = "../../crates/codec/tests/campaign/mod.rs"]
pub mod coded;
#[path = "../../crates/checkpoint/tests/writer/mod.rs"]
mod writer;

pub use campaign::seeds::Parser;
