//! Stable Video Diffusion: the UNet of Stable Diffusion 2 with a layer over frames behind each layer over pictures. It is told
//! what CLIP sees in the first picture, which also stands beside the latent, and how the video is to move.

mod downloads;
mod family;

pub use family::{FAMILY, read};
