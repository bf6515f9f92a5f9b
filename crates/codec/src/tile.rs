//! Tiles: the unit that is coded by itself, and what codes one.

use std::fmt;

use crate::layout::{ALIGNMENT, TABLE_ENTRY_BYTES};
use crate::{Format, Result};

/// Values of a tile.
pub const TILE: usize = 2048;
/// Values of a group, whose bit-planes stand together.
pub const GROUP: usize = 256;
/// Groups of a whole tile.
pub const GROUPS_PER_TILE: usize = TILE / GROUP;
/// Bytes of a bit-plane of a group.
pub const PLANE_BYTES: usize = GROUP / 8;
/// Bits of a code.
pub const CODE_BITS: usize = 3;
/// Exponents of a window: one for each code but that of escapes.
pub const WINDOW: usize = (1 << CODE_BITS) - 1;
/// Bytes of the escapes before each group.
pub const RANK_BYTES: usize = GROUPS_PER_TILE * 2;

/// The window of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its lowest exponent.
    pub base: u8,
    /// How many values of the tile have an exponent outside of it.
    pub escapes: u16,
}

/// The window that the fewest of these exponents are outside of; the lowest of several. `counts` has one number for each
/// exponent that the format has, and nothing but zeros behind those.
pub fn best_window(format: Format, counts: &[u16; 256]) -> Window {
    let total: u32 = counts.iter().map(|count| u32::from(*count)).sum();
    let mut inside: u32 = counts[..WINDOW].iter().map(|count| u32::from(*count)).sum();
    let (mut base, mut most) = (0, inside);
    for start in 1..=format.max_base() {
        let first = usize::from(start);
        inside += u32::from(counts[first + WINDOW - 1]);
        inside -= u32::from(counts[first - 1]);
        if inside > most {
            (base, most) = (start, inside);
        }
    }
    Window { base, escapes: (total - most) as u16 }
}

/// What codes and decodes tiles. All give the same bytes.
pub trait TileCoder: Sync {
    /// What it is called in tables.
    fn name(&self) -> &'static str;

    /// The best window of a tile's values.
    fn survey(&self, format: Format, values: &[u8]) -> Window;

    /// Writes a tile; raw where it has no window.
    fn encode(&self, format: Format, values: &[u8], window: Option<Window>, to: TileMut<'_>);

    /// Reads a tile into exactly as many bytes as its values take.
    ///
    /// # Errors
    /// It contradicts itself. What has been written by then means nothing.
    fn decode(&self, format: Format, tile: &Tile<'_>, values: &mut [u8]) -> Result<(), Damage>;
}

/// The places of a tile that is being written.
#[derive(Debug)]
pub struct TileMut<'a> {
    /// Its part of the fixed area.
    pub fixed: &'a mut [u8],
    /// Its part of the variable area, filled with zeros.
    pub variable: &'a mut [u8],
}

/// A tile to be read. All parts have the lengths that the number of values asks for.
#[derive(Clone, Copy, Debug)]
pub struct Tile<'a> {
    /// How many values it has.
    pub elements: usize,
    /// Its part of the fixed area.
    pub fixed: &'a [u8],
    /// Its exponents.
    pub exponents: Exponents<'a>,
}

/// The exponents of a tile.
#[derive(Clone, Copy, Debug)]
pub enum Exponents<'a> {
    /// As they are: for each group bytes, or as many bit-planes as they have bits.
    Raw(&'a [u8]),
    /// By their place in a window.
    Coded {
        /// The lowest exponent of the window.
        base: u8,
        /// Escapes before each group, as u16.
        ranks: &'a [u8; RANK_BYTES],
        /// For each group its three bit-planes.
        codes: &'a [u8],
        /// The exponents outside of the window, in the order of the values.
        escapes: &'a [u8],
    },
}

/// How a tile contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Its entry in the table says what none can.
    Entry,
    /// It reaches past the end.
    Place,
    /// Its codes ask for another number of escapes than it has, in one of the groups or in all.
    Escapes,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Damage::Entry => "its entry in the table is none",
            Damage::Place => "it reaches past the end",
            Damage::Escapes => "its codes do not fit its escapes",
        })
    }
}

/// A tile in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileEntry {
    /// None if it is raw.
    pub(crate) window: Option<Window>,
    /// First byte in the variable area.
    pub(crate) place: u64,
}

impl TileEntry {
    pub(crate) fn to_bytes(self) -> [u8; TABLE_ENTRY_BYTES] {
        let (base, raw, escapes) = match self.window {
            Some(Window { base, escapes }) => (base, 0, escapes.to_le_bytes()),
            None => (0, 1, [0; 2]),
        };
        let place = (self.place / ALIGNMENT as u64) as u32;
        let [a, b, c, d] = place.to_le_bytes();
        [base, raw, escapes[0], escapes[1], a, b, c, d]
    }

    pub(crate) fn parse(format: Format, elements: usize, bytes: [u8; 8]) -> Result<TileEntry, Damage> {
        let [base, raw, e0, e1, a, b, c, d] = bytes;
        let escapes = u16::from_le_bytes([e0, e1]);
        let window = match raw {
            0 if base <= format.max_base() && usize::from(escapes) <= elements => {
                Some(Window { base, escapes })
            }
            1 if base == 0 && escapes == 0 => None,
            _ => return Err(Damage::Entry),
        };
        Ok(TileEntry { window, place: u64::from(u32::from_le_bytes([a, b, c, d])) * ALIGNMENT as u64 })
    }
}
