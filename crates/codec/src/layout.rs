//! Where the areas of a coded tensor lie, and its header.

use std::ops::Range;

use meta::DType;

use crate::tile::{GROUP, RANK_BYTES, TILE, TileEntry, Window};
use crate::{CODE_BITS, Error, Format, PLANE_BYTES, Result};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a tile in the table.
pub const TABLE_ENTRY_BYTES: usize = 8;
/// The most values of one coded tensor. Places in the variable area are counted in 32 bits.
pub const MAX_ELEMENTS: u64 = 1 << 34;

/// What areas, and tiles in the variable one, are aligned to.
pub(crate) const ALIGNMENT: usize = 8;
/// What the fixed and the variable area are aligned to: the widest access of a device.
const AREA_ALIGNMENT: usize = 16;

const MARK: [u8; 8] = *b"GantryE3";
const VERSION: u64 = 1;

/// The places of a coded tensor of some type and number of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    format: Format,
    elements: usize,
}

impl Layout {
    /// The layout of so many values.
    ///
    /// # Errors
    /// The type is not coded, or there are too many.
    pub fn new(dtype: DType, elements: usize) -> Result<Layout> {
        let format = Format::of(dtype)?;
        if elements as u64 > MAX_ELEMENTS {
            return Err(Error::TooLarge { elements: elements as u64, limit: MAX_ELEMENTS });
        }
        Ok(Layout { format, elements })
    }

    /// The element type.
    pub fn format(&self) -> Format {
        self.format
    }

    /// How many values there are.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Bytes of the values.
    pub fn original_bytes(&self) -> usize {
        self.elements * self.format.element_bytes()
    }

    /// How many tiles there are.
    pub fn tiles(&self) -> usize {
        self.elements.div_ceil(TILE)
    }

    /// Values of a tile.
    pub fn tile_elements(&self, tile: usize) -> usize {
        (self.elements - (tile * TILE).min(self.elements)).min(TILE)
    }

    /// The place of a tile among the bytes of the values.
    pub fn tile_place(&self, tile: usize) -> Range<usize> {
        let bytes = self.format.element_bytes();
        let start = (tile * TILE).min(self.elements);
        start * bytes..(start + self.tile_elements(tile)) * bytes
    }

    /// The place of the table.
    pub fn table(&self) -> Range<usize> {
        HEADER_BYTES..HEADER_BYTES + self.tiles() * TABLE_ENTRY_BYTES
    }

    /// The place of the fixed area.
    pub fn fixed(&self) -> Range<usize> {
        let start = self.table().end.next_multiple_of(AREA_ALIGNMENT);
        start..start + self.elements.div_ceil(GROUP) * self.format.fixed_group_bytes()
    }

    /// The place of a tile in the fixed area.
    pub(crate) fn tile_fixed(&self, tile: usize) -> Range<usize> {
        let groups = |elements: usize| elements.div_ceil(GROUP) * self.format.fixed_group_bytes();
        let start = self.fixed().start + groups(tile * TILE);
        start..start + groups(self.tile_elements(tile))
    }

    /// Where the variable area starts; it goes on to the end.
    pub fn variable_start(&self) -> usize {
        self.fixed().end.next_multiple_of(AREA_ALIGNMENT)
    }

    /// Bytes of a tile in the variable area, with what aligns the next.
    pub(crate) fn variable_bytes(&self, entry: &TileEntry, tile: usize) -> usize {
        let groups = self.tile_elements(tile).div_ceil(GROUP);
        let bytes = match entry.window {
            Some(Window { escapes, .. }) => {
                RANK_BYTES + groups * CODE_BITS * PLANE_BYTES + usize::from(escapes)
            }
            None => groups * self.format.raw_group_bytes(),
        };
        bytes.next_multiple_of(ALIGNMENT)
    }

    /// The most bytes that coding can take: those of raw tiles.
    pub fn max_coded_bytes(&self) -> usize {
        self.variable_start() + self.elements.div_ceil(GROUP) * self.format.raw_group_bytes()
    }
}

/// What a header says beside the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) layout: Layout,
    pub(crate) coded_bytes: u64,
    pub(crate) checksum: u64,
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let kind = VERSION | u64::from(self.layout.format.mark()) << 16;
        let words =
            [u64::from_le_bytes(MARK), kind, self.layout.elements as u64, self.coded_bytes, self.checksum];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// Reads a header and holds it against the number of bytes there are.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Header> {
        let got = bytes.len() as u64;
        let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Error::Truncated { wanted: HEADER_BYTES as u64, got });
        };
        let mut words = [0; HEADER_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(header.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [mark, kind, elements, coded_bytes, checksum, rest @ ..] = words;
        if mark != u64::from_le_bytes(MARK) {
            return Err(Error::Mark);
        }
        if kind & 0xffff != VERSION {
            return Err(Error::Header { field: "the version", got: kind & 0xffff });
        }
        let format = Format::ALL.into_iter().find(|format| u64::from(format.mark()) == kind >> 16);
        let format = format.ok_or(Error::Header { field: "the element type", got: kind >> 16 })?;
        if let Some(got) = rest.into_iter().find(|word| *word != 0) {
            return Err(Error::Header { field: "a field that must be 0", got });
        }
        if elements > MAX_ELEMENTS {
            return Err(Error::TooLarge { elements, limit: MAX_ELEMENTS });
        }
        let layout = Layout { format, elements: elements as usize };
        if coded_bytes > got {
            return Err(Error::Truncated { wanted: coded_bytes, got });
        }
        let (least, most) = (layout.variable_start() as u64, layout.max_coded_bytes() as u64);
        if !(least..=most).contains(&coded_bytes) {
            return Err(Error::Header { field: "the number of coded bytes", got: coded_bytes });
        }
        Ok(Header { layout, coded_bytes, checksum })
    }
}

/// The bytes of a coded tensor, by its header, which is all that is looked at.
///
/// # Errors
/// It is no header of coded weights.
pub fn stated_bytes(header: &[u8; HEADER_BYTES]) -> Result<usize> {
    match Header::parse(header) {
        Ok(header) => Ok(header.coded_bytes as usize),
        // Of all that is wrong with a header without what follows it, that this is missing is what is expected.
        Err(Error::Truncated { wanted, .. }) if wanted > HEADER_BYTES as u64 => Ok(wanted as usize),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_follow_each_other_and_are_aligned() {
        for format in Format::ALL {
            for elements in [0, 1, 255, 256, 257, 2047, 2048, 2049, 10_000] {
                let layout = Layout::new(format.dtype(), elements).unwrap();
                let (fixed, tiles) = (layout.fixed(), layout.tiles());
                assert!(layout.table().end <= fixed.start && fixed.start.is_multiple_of(16));
                assert!(fixed.end <= layout.variable_start() && layout.variable_start().is_multiple_of(16));
                let mut end = fixed.start;
                for tile in 0..tiles {
                    assert_eq!(layout.tile_fixed(tile).start, end);
                    end = layout.tile_fixed(tile).end;
                }
                assert_eq!(end, fixed.end);
                let values: usize = (0..tiles).map(|tile| layout.tile_elements(tile)).sum();
                assert_eq!(values, elements);
            }
        }
    }

    #[test]
    fn types_and_sizes_outside_the_format_are_refused() {
        assert_eq!(Layout::new(DType::F32, 1), Err(Error::Type { dtype: DType::F32 }));
        let elements = MAX_ELEMENTS + 1;
        assert_eq!(
            Layout::new(DType::BF16, elements as usize),
            Err(Error::TooLarge { elements, limit: MAX_ELEMENTS })
        );
        let most = Layout::new(DType::BF16, MAX_ELEMENTS as usize).unwrap();
        let variable = most.max_coded_bytes() - most.variable_start();
        assert!(variable / ALIGNMENT <= u32::MAX as usize, "every place can be written");
    }
}
