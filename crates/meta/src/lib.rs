//! What weights are, without their bytes: element types, quantisation formats, shapes, byte sizes
//! and device ids. Nothing here does I/O, allocates device memory or knows a file format.
#![forbid(unsafe_code)]

mod byte_size;
mod device_id;
mod dtype;
mod encoding;
mod quant;
mod shape;

pub use byte_size::{ByteSize, ParseByteSizeError};
pub use device_id::{DeviceId, DeviceKind, ParseDeviceIdError};
pub use dtype::DType;
pub use encoding::{Encoding, SizeError};
pub use quant::QuantFormat;
pub use shape::{MAX_RANK, Shape, ShapeError};
