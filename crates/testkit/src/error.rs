//! What can go wrong with fixtures: a file that is not as described, or a request that makes no sense.

use std::path::PathBuf;

use meta::{Encoding, Shape, ShapeError, SizeError};

/// Why a fixture could not be read, built or compared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Writing the stream of a checkpoint failed.
    #[error("cannot write the bytes of checkpoint {file}: {source}")]
    Stream {
        /// The checkpoint.
        file: String,
        /// What the receiver said.
        source: std::io::Error,
    },
    /// Text that should have been JSON of a certain form.
    #[error("{what} does not have the expected JSON form: {source}")]
    Json {
        /// Where the text stands.
        what: String,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A checkpoint file could not be opened or read.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// A manifest's file name is absolute or leaves its folder.
    #[error("manifest file '{file}' must be a relative path that stays in its folder")]
    UnsafePath {
        /// The path as written.
        file: String,
    },
    /// A manifest's file is of no kind that can be written.
    #[error("manifest file '{file}' must end in .safetensors or .gguf")]
    UnknownFormat {
        /// The path as written.
        file: String,
    },
    /// A metadata value of a type that the file format cannot hold.
    #[error("metadata '{key}' of {file} must be a string (or, in GGUF, a number below 2^32)")]
    MetadataType {
        /// The checkpoint.
        file: String,
        /// The metadata's name.
        key: String,
    },
    /// A manifest names an element type that is not known.
    #[error(
        "tensor '{tensor}' has the unknown type '{dtype}'; known are F32, F16, BF16, F8_E4M3, F8_E5M2, U8, I64, Q8_0"
    )]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// The type as written.
        dtype: String,
    },
    /// A tensor with too many dimensions.
    #[error("tensor '{tensor}': {source}")]
    Rank {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        source: ShapeError,
    },
    /// A shape that has no size in its encoding.
    #[error("tensor '{tensor}': {source}")]
    Size {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        source: SizeError,
    },
    /// A tensor given neither by `scale` nor by `raw`.
    #[error("tensor '{tensor}' has neither 'scale' nor 'raw'")]
    NoValues {
        /// The tensor.
        tensor: String,
    },
    /// Text that is not base64.
    #[error("tensor '{tensor}': 'raw' is not base64 at character {at}")]
    Base64 {
        /// The tensor.
        tensor: String,
        /// Index of the first character that cannot be read.
        at: usize,
    },
    /// Bytes that do not fit the shape and encoding they are said to have.
    #[error("tensor '{tensor}' needs {expected} bytes for its shape, not {got}")]
    Length {
        /// The tensor.
        tensor: String,
        /// Bytes of its shape and encoding.
        expected: u64,
        /// Bytes given.
        got: u64,
    },
    /// Two tensors of one file share a name.
    #[error("tensor '{tensor}' is given twice")]
    Duplicate {
        /// The tensor.
        tensor: String,
    },
    /// Values cannot be turned into this encoding, or back.
    #[error("f32 values cannot be converted {direction} {encoding} here")]
    Conversion {
        /// `to` or `from`.
        direction: &'static str,
        /// The encoding.
        encoding: Encoding,
    },
    /// Values or bytes that are not whole blocks of an encoding.
    #[error("{count} {unit} are not whole blocks of {encoding}, which have {block}")]
    PartialBlocks {
        /// The encoding.
        encoding: Encoding,
        /// How many were given.
        count: usize,
        /// Of what: `values` or `bytes`.
        unit: &'static str,
        /// How many a block has.
        block: usize,
    },
    /// An encoding that a file format has no name for.
    #[error("tensor '{tensor}': {format} files cannot hold {encoding}")]
    Unstorable {
        /// The tensor.
        tensor: String,
        /// The file format.
        format: &'static str,
        /// The encoding.
        encoding: Encoding,
    },
    /// A GGUF array whose elements have different types.
    #[error("GGUF array '{key}' mixes value types")]
    MixedArray {
        /// The metadata's name.
        key: String,
    },
    /// A line of a sums file that is not `<64 hex digits>  <path>`.
    #[error("line {line} of the sums is not '<sha256>  <path>'")]
    SumsLine {
        /// Line number, from 1.
        line: usize,
    },
    /// A name that the file does not have.
    #[error("{file} has no {what} '{name}'")]
    Missing {
        /// The file.
        file: String,
        /// What was looked for.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The tensor to compare has another shape than the golden one.
    #[error("'{name}' has shape {got}, the golden one has {expected}")]
    ShapeDiffers {
        /// The tensor.
        name: String,
        /// The golden shape.
        expected: Box<Shape>,
        /// The shape at hand.
        got: Box<Shape>,
    },
    /// A value that is not finite in a tensor of which golden data has only samples, all finite.
    #[error("'{name}' has {value} at {index}; every value must be finite")]
    NotFinite {
        /// The tensor.
        name: String,
        /// Flat, row-major index of the first such value.
        index: usize,
        /// The value.
        value: f32,
    },
    /// The description of a sampled tensor does not fit the tensor's shape or its pieces.
    #[error("the sampling of '{name}' does not fit its shape {shape}: {part}")]
    Sampling {
        /// The tensor.
        name: String,
        /// Its full shape.
        shape: Shape,
        /// The part of the description that does not fit.
        part: &'static str,
    },
}
