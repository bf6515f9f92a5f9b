//! Model files: safetensors, GGUF and PyTorch's pickles, opened by mapping them, with every tensor named and nothing
//! copied. This is the only crate that knows a file format.
//!
//! [`Checkpoint::open`] recognises a file by its content, checks its header against fixed limits and
//! lists its tensors as [`Entry`] values. A sharded safetensors index and the first file of a split
//! GGUF open all their parts. What cannot be opened, and why, is an [`Error`] that names the file, the
//! tensor where there is one, the reason, and what to do. Pickles are read by a machine that calls nothing, and those
//! that call anything but what describes tensors are refused.
//!
//! ```no_run
//! let checkpoint = checkpoint::Checkpoint::open("flux1-dev-Q4_K_S.gguf")?;
//! for entry in checkpoint.entries() {
//!     println!("{} {} {}", entry.name(), entry.encoding(), entry.shape());
//! }
//! # Ok::<(), checkpoint::Error>(())
//! ```
//!
//! # Memory
//!
//! Opening takes memory in proportion to the header, whatever the header claims: nothing is reserved
//! from a count in the file, and long GGUF arrays stay in the map until they are asked for.
//!
//! # When a mapped file changes
//!
//! The bytes of an entry are the file's own pages. If another program shortens the file while it is open, or the disk
//! fails, pages are gone: on Linux and macOS the reader then gets zeros, and the file counts as damaged from that moment
//! on. So whoever used bytes asks [`EntryBytes::verify`] before trusting what came of them: it sees missing pages, and
//! by length and date also a file that was overwritten in place. A damaged file is opened anew to be read again. A file
//! that is deleted or replaced by renaming another over it is safe: the map keeps the old one alive.
#![allow(
    unsafe_code,
    reason = "mapping a file is unsafe; such blocks are in source.rs, damage.rs and direct.rs"
)]

mod checkpoint;
mod companions;
mod damage;
mod direct;
mod entry;
mod entry_bytes;
mod error;
mod gguf;
mod index;
mod layout;
mod marks;
mod metadata;
mod name_index;
mod pickle;
mod precision;
mod quantisation;
mod refusal;
mod safetensors;
mod shard_name;
mod siblings;
mod source;
mod tokenizer;
mod values;
mod writing;

pub use checkpoint::{Checkpoint, Format, MAX_ENTRIES, MAX_SHARDS, Shard};
pub use direct::DIRECT_ALIGN;
pub use entry::{Entry, MAX_NAME_BYTES, ProductMark};
pub use entry_bytes::EntryBytes;
pub use error::{Error, HeaderFault, MarkFault, ShardFault, TensorFault, ValueFault};
pub use gguf::{
    Array, ElementType, Elements, MAX_GGUF_ALIGNMENT, MAX_GGUF_HEADER_BYTES, MAX_GGUF_KEYS,
    MAX_GGUF_STRING_BYTES,
};
pub use index::MAX_INDEX_BYTES;
pub use marks::{MAX_HEADER_MARKS_BYTES, MAX_MARK_BYTES};
pub use metadata::{Metadata, Value};
pub use pickle::{MAX_PICKLE_BYTES, PickleFault};
pub use precision::Precision;
pub use refusal::Refusal;
pub use safetensors::{MAX_SAFETENSORS_HEADER_BYTES, safetensors_header_end};
pub use source::Advice;
pub use tokenizer::{EmbeddedTokenizer, TokenizerPiece};
pub use writing::{NewTensor, SafetensorsHead};
