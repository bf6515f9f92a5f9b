//! From values to coded bytes: a window for each tile, the table that follows from them, then the tiles.

use crate::checksum::{checksum, of_tiles};
use crate::layout::Header;
use crate::tile::TileEntry;
use crate::{Error, HEADER_BYTES, Layout, Portable, Result, TABLE_ENTRY_BYTES, TileCoder, TileMut, Window};
use meta::DType;

/// The coded bytes of values of a type.
///
/// # Errors
/// The type is not coded, or the bytes are not whole values.
pub fn encode(dtype: DType, values: &[u8]) -> Result<Vec<u8>> {
    encode_with(&Portable, dtype, values)
}

/// The same by another coder.
///
/// # Errors
/// As [`encode`].
pub fn encode_with(coder: &dyn TileCoder, dtype: DType, values: &[u8]) -> Result<Vec<u8>> {
    let layout = Layout::new(dtype, values.len() / dtype.bytes())?;
    let tiles = |tile: usize| &values[layout.tile_place(tile)];
    let windows = (0..layout.tiles()).map(|tile| coder.survey(layout.format(), tiles(tile)));
    let table = Table::new(layout, windows);
    table.check_values(values)?;
    let mut coded = vec![0; table.coded_bytes()];
    let mut sums = Vec::with_capacity(layout.tiles());
    for (tile, part) in table.parts(&mut coded)?.into_iter().enumerate() {
        table.encode_tile(coder, tile, tiles(tile), part);
        sums.push(checksum(tiles(tile)));
    }
    table.finish(&mut coded, &sums)?;
    Ok(coded)
}

/// The table of a tensor that is being coded.
#[derive(Clone, Debug)]
pub struct Table {
    layout: Layout,
    entries: Vec<TileEntry>,
    coded_bytes: usize,
}

impl Table {
    /// The table of tiles with these windows, in order. A tile that coding would not make smaller is raw.
    pub fn new(layout: Layout, windows: impl IntoIterator<Item = Window>) -> Table {
        let mut place = 0;
        let mut entries = Vec::with_capacity(layout.tiles());
        for (tile, window) in windows.into_iter().take(layout.tiles()).enumerate() {
            let raw = TileEntry { window: None, place: place as u64 };
            let coded = TileEntry { window: Some(window), ..raw };
            let sizes = [&raw, &coded].map(|entry| layout.variable_bytes(entry, tile));
            entries.push(if sizes[1] < sizes[0] { coded } else { raw });
            place += sizes[0].min(sizes[1]);
        }
        Table { layout, entries, coded_bytes: layout.variable_start() + place }
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of the whole coded tensor.
    pub fn coded_bytes(&self) -> usize {
        self.coded_bytes
    }

    /// How many tiles are raw.
    pub fn raw_tiles(&self) -> usize {
        self.entries.iter().filter(|entry| entry.window.is_none()).count()
    }

    /// Whether these are the bytes of as many values as the layout has.
    pub(crate) fn check_values(&self, values: &[u8]) -> Result<()> {
        check_length(&self.layout, values.len())
    }

    /// Writes the table into coded bytes that start with it, and gives the places of the tiles.
    ///
    /// # Errors
    /// There is not enough room. There may be more, which is left alone.
    pub fn parts<'a>(&self, coded: &'a mut [u8]) -> Result<Vec<TileMut<'a>>> {
        let room = coded.len() as u64;
        let fail = Error::Room { wanted: self.coded_bytes as u64, room };
        let coded = coded.get_mut(..self.coded_bytes).ok_or(fail)?;
        let (head, variable) = coded.split_at_mut(self.layout.variable_start());
        let (head, fixed) = head.split_at_mut(self.layout.fixed().start);
        let table = &mut head[HEADER_BYTES..];
        table.fill(0);
        for (place, entry) in table.as_chunks_mut::<TABLE_ENTRY_BYTES>().0.iter_mut().zip(&self.entries) {
            *place = entry.to_bytes();
        }
        let (mut fixed, mut variable) = (fixed, variable);
        let parts = self.entries.iter().enumerate().map(|(tile, entry)| {
            let fixed_part = fixed.split_off_mut(..self.layout.tile_fixed(tile).len());
            let variable_part = variable.split_off_mut(..self.layout.variable_bytes(entry, tile));
            // Both areas have the lengths of all their tiles together.
            let (fixed_part, variable_part) =
                (fixed_part.unwrap_or_default(), variable_part.unwrap_or_default());
            TileMut { fixed: fixed_part, variable: variable_part }
        });
        let parts = parts.collect();
        fixed.fill(0);
        Ok(parts)
    }

    /// Writes one tile into its place.
    pub fn encode_tile(&self, coder: &dyn TileCoder, tile: usize, values: &[u8], to: TileMut<'_>) {
        to.variable.fill(0);
        coder.encode(self.layout.format(), values, self.entries[tile].window, to);
    }

    /// Writes the header, last: `sums` are the checksums of the tiles' values, in order.
    ///
    /// # Errors
    /// There is no room.
    pub fn finish(&self, coded: &mut [u8], sums: &[u64]) -> Result<()> {
        let header =
            Header { layout: self.layout, coded_bytes: self.coded_bytes as u64, checksum: of_tiles(sums) };
        let room = coded.len() as u64;
        let fail = Error::Room { wanted: self.coded_bytes as u64, room };
        *coded.first_chunk_mut().ok_or(fail)? = header.to_bytes();
        Ok(())
    }
}

/// Whether so many bytes are those of a layout's values.
pub(crate) fn check_length(layout: &Layout, got: usize) -> Result<()> {
    let expected = layout.original_bytes();
    if expected == got {
        return Ok(());
    }
    Err(Error::Length {
        elements: layout.elements() as u64,
        dtype: layout.format().dtype(),
        expected: expected as u64,
        got: got as u64,
    })
}
