//! What can be wrong with a patch file or its use.

use meta::{Encoding, Shape};

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a patch could not be read, matched or applied.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// One tensor of a group is there without another that it needs.
    #[error(
        "{file}: '{key}' has {present} but no {missing}: the file is incomplete, so get it again from its source"
    )]
    MissingPart {
        /// The file.
        file: String,
        /// The layer's name in the file.
        key: String,
        /// A tensor that is there.
        present: String,
        /// What it needs.
        missing: &'static str,
    },
    /// Two tensors of a file say the same thing about one layer.
    #[error("{file}: '{first}' and '{second}' both give the same part of one layer: remove one of them")]
    Duplicate {
        /// The file.
        file: String,
        /// The tensor that came first.
        first: String,
        /// The other.
        second: String,
    },
    /// A tensor whose own contents make no sense.
    #[error("{file}: '{name}' should be {expected}, but it is {got}")]
    Value {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        got: String,
    },
    /// A kind of patch that is recognised but not supported.
    #[error("{file}: '{name}' is {what}, which is not supported: use the file without it, or another file")]
    Unsupported {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// What kind of patch it belongs to.
        what: &'static str,
    },
    /// The patch was made for a weight of another size.
    #[error(
        "{file}: '{key}' does not fit '{weight}': expected a change of {expected}, got {got}; the file was made for \
         another model"
    )]
    Shape {
        /// The file.
        file: String,
        /// The layer's name in the file.
        key: String,
        /// The model's weight.
        weight: String,
        /// What the weight needs.
        expected: Box<str>,
        /// What the file has.
        got: Box<str>,
    },
    /// A strength that is not a number.
    #[error("a patch's strength must be a finite number, not {strength}")]
    Strength {
        /// What was asked for.
        strength: f64,
    },
    /// A patch that depends on the weight's values was to run without them.
    #[error("'{key}' depends on the weight's own values: give the weight when staging it beside a layer")]
    NeedsWeight {
        /// The layer's name in the file.
        key: String,
    },
    /// A patch was to run beside something else than a linear layer.
    #[error(
        "'{key}' changes a weight of shape {shape}: only a matrix can keep its patch beside it, so apply it to the \
         unpacked weight"
    )]
    NotAMatrix {
        /// The layer's name in the file.
        key: String,
        /// The weight's shape.
        shape: Box<Shape>,
    },
    /// A quantised or integer weight was to be changed in its stored form.
    #[error("a weight stored in {encoding} cannot be patched in place: run the patch beside it")]
    NotPlain {
        /// How the weight is stored.
        encoding: Encoding,
    },
    /// A weight that is not the one the patch was made for.
    #[error("'{key}' changes a weight of shape {expected}, but was given one of shape {got}")]
    OtherWeight {
        /// The layer's name in the file.
        key: String,
        /// The shape of the weight that was matched.
        expected: Box<Shape>,
        /// The shape of the one that was given.
        got: Box<Shape>,
    },
    /// The device could not compute it.
    #[error(transparent)]
    Device(#[from] device::Error),
}
