//! What can be wrong with values to be coded, and with coded bytes.

use meta::DType;

use crate::Damage;

/// Why nothing was coded or decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The format has no place for this type.
    #[error("values of type {dtype} are not coded; bf16, f16 and f8_e4m3 are")]
    Type {
        /// The type.
        dtype: DType,
    },
    /// More values than one coded tensor may have.
    #[error("{elements} values are more than the {limit} of one coded tensor")]
    TooLarge {
        /// How many there are.
        elements: u64,
        /// How many there may be.
        limit: u64,
    },
    /// The values have another number of bytes than they should.
    #[error("{elements} values of type {dtype} take {expected} bytes, not {got}")]
    Length {
        /// Their number.
        elements: u64,
        /// Their type.
        dtype: DType,
        /// Bytes that they take.
        expected: u64,
        /// Bytes that were given.
        got: u64,
    },
    /// The coded bytes do not fit where they should go.
    #[error("{wanted} coded bytes do not fit into {room}")]
    Room {
        /// Bytes that there are.
        wanted: u64,
        /// Bytes that there is room for.
        room: u64,
    },
    /// The bytes do not start with the format's mark.
    #[error("these are no coded weights: they do not start with the mark of the format")]
    Mark,
    /// A field of the header says what it must not.
    #[error("the header of coded weights is damaged or newer than this program: {field} is {got}")]
    Header {
        /// Which field.
        field: &'static str,
        /// What it says.
        got: u64,
    },
    /// There are fewer bytes than the header says.
    #[error("coded weights of {wanted} bytes have been cut to {got}")]
    Truncated {
        /// Bytes that there should be.
        wanted: u64,
        /// Bytes that there are.
        got: u64,
    },
    /// A tile contradicts itself or the header.
    #[error("tile {tile} of coded weights is damaged: {damage}")]
    Tile {
        /// Which one.
        tile: usize,
        /// How.
        damage: Damage,
    },
    /// The tensor has no such tile.
    #[error("there is no tile {tile} of {tiles}")]
    NoTile {
        /// The tile that was asked for.
        tile: usize,
        /// How many there are.
        tiles: usize,
    },
    /// What came out is not what was coded.
    #[error("coded weights are damaged: the values have the checksum {got:016x}, not {expected:016x}")]
    Checksum {
        /// The one of the original.
        expected: u64,
        /// The one of what was decoded.
        got: u64,
    },
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
