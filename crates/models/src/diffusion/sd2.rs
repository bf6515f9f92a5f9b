//! Stable Diffusion 2.x: the UNet of 1.x with heads of one size, told OpenCLIP-H's text. The larger models predict the
//! velocity between noise and picture.

mod control;
mod family;
mod unclip;

pub use control::CONTROL;
pub use family::{FAMILY, read};
