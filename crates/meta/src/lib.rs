//! What weights are, without their bytes: element types, quantisation formats, shapes, byte sizes
//! and device ids; and points in time. Nothing here reads more than the clock and its time zone,
//! allocates device memory or knows a file format.
#![forbid(unsafe_code)]

pub mod base64;
mod byte_size;
mod device_id;
mod dtype;
mod encoding;
mod moment;
mod quant;
mod scheme;
mod shape;

pub use byte_size::{ByteSize, ParseByteSizeError};
pub use device_id::{DeviceId, DeviceKind, ParseDeviceIdError};
pub use dtype::DType;
pub use encoding::{Encoding, SizeError};
pub use moment::Moment;
pub use quant::QuantFormat;
pub use scheme::{Rotation, ScaleTiles, Scheme};
pub use shape::{MAX_RANK, Shape, ShapeError};
