//! Stable Diffusion 1.x: a UNet that is told CLIP-L's text; with a picture beside the latent it follows instructions
//! (InstructPix2Pix), with a mask, too, it fills in what is missing.

mod control;
mod downloads;
mod family;
mod grounding;

pub use control::{ADAPTER, CONTROL};
pub use family::{FAMILY, read};
pub use grounding::GROUNDING;
