//! Model families: what a file is, what it needs, and how it computes. Nothing here names a kind of
//! device, a storage type or a file format: weights come as leases of blocks, whatever they are stored as.
#![forbid(unsafe_code)]

pub mod diffusion;
mod error;
pub mod text;
pub mod vae;

pub use error::{Error, Result};
