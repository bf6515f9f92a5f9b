//! HunyuanVideo 1.5: the network of HunyuanVideo without single blocks and pooled text, over latents whose values are tokens
//! as they are, with letters that are to be seen and features of a picture beside the text.

mod downloads;
mod family;
pub(crate) mod text;

pub use family::FAMILY;
