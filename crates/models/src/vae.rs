//! Autoencoders.

pub mod kl;
mod tiles;

pub use tiles::Tiling;
