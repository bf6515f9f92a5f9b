//! Stable Diffusion XL: a UNet with deep transformers at its lower levels, told CLIP-L's and CLIP-G's texts and the sizes of
//! the picture; its refiner, told CLIP-G's text, sizes and how good the picture is to be; SSD-1B and Segmind Vega, which are
//! the same with fewer layers.

mod control;
mod downloads;
mod family;
mod vector;

pub use control::{ADAPTER, CONTROL};
pub use family::{FAMILY, LATENT, read};
