//! Coded bytes, checked before they are read.

use crate::checksum::{checksum, of_tiles};
use crate::encode::check_length;
use crate::layout::Header;
use crate::tile::TileEntry;
use crate::{
    CODE_BITS, Damage, Error, Exponents, GROUP, Layout, PLANE_BYTES, Portable, RANK_BYTES, Result,
    TABLE_ENTRY_BYTES, Tile, TileCoder, Window,
};

/// A coded tensor whose header fits its bytes. Its tiles are checked when they are read.
#[derive(Clone, Copy, Debug)]
pub struct Coded<'a> {
    header: Header,
    bytes: &'a [u8],
}

impl<'a> Coded<'a> {
    /// Reads the header. There may be more bytes than the tensor has, which are left alone.
    ///
    /// # Errors
    /// The bytes are no coded tensor, or a part of one.
    pub fn parse(bytes: &'a [u8]) -> Result<Coded<'a>> {
        let header = Header::parse(bytes)?;
        Ok(Coded { header, bytes: &bytes[..header.coded_bytes as usize] })
    }

    /// Where everything is.
    pub fn layout(&self) -> &Layout {
        &self.header.layout
    }

    /// Bytes of the coded tensor.
    pub fn coded_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The checksum of the original.
    pub fn checksum(&self) -> u64 {
        self.header.checksum
    }

    /// One tile.
    ///
    /// # Errors
    /// There is none, or its entry is damaged.
    pub fn tile(&self, tile: usize) -> Result<Tile<'a>> {
        let layout = self.layout();
        if tile >= layout.tiles() {
            return Err(Error::NoTile { tile, tiles: layout.tiles() });
        }
        self.read_entry(tile).map_err(|damage| Error::Tile { tile, damage })
    }

    fn read_entry(&self, tile: usize) -> Result<Tile<'a>, Damage> {
        let (layout, format) = (self.layout(), self.layout().format());
        let elements = layout.tile_elements(tile);
        let groups = elements.div_ceil(GROUP);
        let at = layout.table().start + tile * TABLE_ENTRY_BYTES;
        let entry = self.bytes[at..].first_chunk().ok_or(Damage::Place)?;
        let entry = TileEntry::parse(format, elements, *entry)?;
        let variable = &self.bytes[layout.variable_start()..];
        let start = usize::try_from(entry.place).map_err(|_| Damage::Place)?;
        let own = variable.get(start..).and_then(|rest| rest.get(..layout.variable_bytes(&entry, tile)));
        let own = own.ok_or(Damage::Place)?;
        let fixed = &self.bytes[layout.tile_fixed(tile)];
        let exponents = match entry.window {
            None => Exponents::Raw(&own[..groups * format.raw_group_bytes()]),
            Some(Window { base, escapes }) => {
                let (ranks, rest) = own.split_first_chunk::<RANK_BYTES>().ok_or(Damage::Place)?;
                let (codes, rest) = rest.split_at(groups * CODE_BITS * PLANE_BYTES);
                Exponents::Coded { base, ranks, codes, escapes: &rest[..usize::from(escapes)] }
            }
        };
        Ok(Tile { elements, fixed, exponents })
    }

    /// Decodes one tile into as many bytes as its values take.
    ///
    /// # Errors
    /// There is no such tile, it is damaged, or `values` has another length.
    pub fn decode_tile(&self, coder: &dyn TileCoder, tile: usize, values: &mut [u8]) -> Result<()> {
        let read = self.tile(tile)?;
        let format = self.layout().format();
        if values.len() != read.elements * format.element_bytes() {
            return check_length(&Layout::new(format.dtype(), read.elements)?, values.len());
        }
        coder.decode(format, &read, values).map_err(|damage| Error::Tile { tile, damage })
    }

    /// Decodes everything and compares the checksum.
    ///
    /// # Errors
    /// A tile is damaged, what comes out is not what was coded, or `values` has another length than the original.
    pub fn decode(&self, values: &mut [u8]) -> Result<()> {
        self.decode_with(&Portable, values)
    }

    /// The same by another coder.
    ///
    /// # Errors
    /// As [`Coded::decode`].
    pub fn decode_with(&self, coder: &dyn TileCoder, values: &mut [u8]) -> Result<()> {
        check_length(self.layout(), values.len())?;
        let mut sums = Vec::with_capacity(self.layout().tiles());
        for tile in 0..self.layout().tiles() {
            let values = &mut values[self.layout().tile_place(tile)];
            self.decode_tile(coder, tile, values)?;
            sums.push(checksum(values));
        }
        self.verify(&sums)
    }

    /// Whether decoded tiles with these checksums are the original.
    ///
    /// # Errors
    /// They are not.
    pub fn verify(&self, sums: &[u64]) -> Result<()> {
        let (expected, got) = (self.checksum(), of_tiles(sums));
        if expected == got { Ok(()) } else { Err(Error::Checksum { expected, got }) }
    }
}
