//! Lossless coding of float weights: the format "E3". Trained weights use few exponents, so a tile of 2,048 values has a
//! window of seven neighbouring ones that three bits choose from; sign and mantissa stay as they are, and the exponents
//! outside the window (two to three of a hundred) stand in a list of their own. bf16 shrinks to about 0.71.
//!
//! ```text
//! header      64 bytes: mark, version, element type, elements, coded bytes, checksum of the original
//! table        8 bytes per tile: base of the window, whether it is raw, escapes, place in the variable area
//! fixed area  per group of 256 values: the low 8 bits of sign and mantissa as bytes, their other bits as bit-planes
//! variable    per tile, coded: escapes before each group (8 × u16), three bit-planes of codes per group, escapes
//!             per tile, raw: the exponents as they are, as bit-planes where they have fewer than 8 bits
//! ```
//!
//! A code from 1 to 7 stands for the exponent `base + code - 1`, a code of 0 for the next escape. Bit `i % 8` of byte
//! `i / 8` of a bit-plane belongs to value `i` of its group. Groups are always whole: what fills up the last one is not
//! read. Every area has its place by the number of elements alone and the table says where a tile lies in the last one,
//! so any tile can be read by itself and by any number of threads.
//!
//! | to get | use |
//! |---|---|
//! | coded bytes of values | [`encode`]; [`encode_with`] for another [`TileCoder`] than [`Portable`] |
//! | values of coded bytes | [`Coded::parse`], then [`Coded::decode`] or [`Coded::decode_tile`] |
//! | the pieces, to share them out among threads | [`Layout`], [`Table`], [`Coded::tile`] |
//!
//! The code here is portable and the reference. Vector instructions and kernels are the devices' own.
#![forbid(unsafe_code)]

mod checksum;
mod coded;
mod encode;
mod error;
mod format;
mod layout;
mod portable;
mod tile;

pub use checksum::checksum;
pub use coded::Coded;
pub use encode::{Table, encode, encode_with};
pub use error::{Error, Result};
pub use format::Format;
pub use layout::{HEADER_BYTES, Layout, MAX_ELEMENTS, TABLE_ENTRY_BYTES, stated_bytes};
pub use portable::Portable;
pub use tile::{
    CODE_BITS, Damage, Exponents, GROUP, GROUPS_PER_TILE, PLANE_BYTES, RANK_BYTES, TILE, Tile, TileCoder,
    TileMut, WINDOW, Window, best_window,
};
