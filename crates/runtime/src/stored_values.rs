//! Values of stored tensors on the host.

use checkpoint::{Checkpoint, Entry};

/// The values of a tensor of 16 or 32 bits; none for other encodings.
pub fn decode_values(file: &Checkpoint, entry: &Entry) -> Option<Vec<f32>> {
    file.values(entry)
}
