//! Tensors: what models compute with. A [`Tensor`] is a view on a device together with the
//! [`Lane`] it computes on; a [`Weight`] is a stored parameter in whatever encoding its file has.
//!
//! Every operation allocates its result through the device's ledger and queues one call. Views
//! (`slice`, `permute`, `reshape`, …) move no bytes. Nothing here names a kind of device or a format.
#![forbid(unsafe_code)]

mod elementwise;
mod image;
mod lane;
mod layer_input;
mod norm;
mod product;
mod quantised;
mod reduction;
mod value;
mod weight;

pub use device::op::{Activation, Padding, ResizeMode, RopeLayout, Window};
pub use device::{Error, Result};
pub use image::{ConvolutionShape, TransposedShape};
pub use lane::Lane;
pub use layer_input::{AsLayerInput, FEW_ROWS, LayerInput};
pub use product::Mask;
pub use quantised::Quantised;
pub use value::{Tensor, Unread};
pub use weight::Weight;
