//! Chroma Radiance: the network of Chroma, whose tokens are patches of pixels and paint them, so that there is no
//! autoencoder.

mod downloads;
mod family;

pub use family::FAMILY;
