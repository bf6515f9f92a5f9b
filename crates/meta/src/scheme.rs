//! Schemes: codes that become numbers by scales that stand beside them.

use std::fmt;

/// Rows of scales in a tile.
const TILE_ROWS: usize = 128;
/// Columns of scales in a tile.
const TILE_COLUMNS: usize = 4;
/// Scales in a tile, one byte each.
const TILE_BYTES: usize = TILE_ROWS * TILE_COLUMNS;

/// How a matrix of codes is stored that needs scales beside it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// Signed bytes times an f32, one for all or one for each row; where there is a rotation, runs of columns were
    /// rotated before they were rounded, and are rotated back.
    Int8 {
        /// What turns the columns.
        rotation: Option<Rotation>,
    },
    /// e4m3 codes in blocks of 32 columns, each times a power of two.
    Mxfp8,
    /// e2m1 codes, two in a byte with the even column in the high half, in blocks of 16 columns, each times an e4m3 scale
    /// and one f32 for all.
    Nvfp4,
}

/// The rotation of runs of columns by the regular Hadamard matrix of that order, divided by the root of the order. It is
/// its own inverse. The matrix is a Kronecker power of one of order 4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rotation(u16);

impl Rotation {
    /// The longest run that is rotated.
    pub const LONGEST: usize = 1024;

    /// The rotation of runs of `group` columns, which is a power of four from 4 to [`Rotation::LONGEST`].
    pub const fn new(group: usize) -> Option<Rotation> {
        let power_of_four = group.is_power_of_two() && group.trailing_zeros().is_multiple_of(2);
        if power_of_four && group >= 4 && group <= Rotation::LONGEST {
            Some(Rotation(group as u16))
        } else {
            None
        }
    }

    /// Columns of a run.
    pub const fn group(self) -> usize {
        self.0 as usize
    }
}

impl Scheme {
    /// Columns of the smallest part of a row that can be unpacked by itself.
    pub const fn block_len(self) -> usize {
        match self {
            Scheme::Int8 { rotation: None } => 1,
            Scheme::Int8 { rotation: Some(rotation) } => rotation.group(),
            Scheme::Mxfp8 => 32,
            Scheme::Nvfp4 => 16,
        }
    }

    /// Bytes of its codes.
    pub const fn block_bytes(self) -> usize {
        match self {
            Scheme::Nvfp4 => self.block_len() / 2,
            _ => self.block_len(),
        }
    }

    /// Rows and columns are stored as multiples of this, filled up with zeros.
    pub const fn padding(self) -> usize {
        match self {
            Scheme::Int8 { .. } => 1,
            Scheme::Mxfp8 | Scheme::Nvfp4 => self.block_len(),
        }
    }

    /// How the scales of its blocks lie for rows of `columns` stored columns; none where rows have scales, not blocks.
    pub const fn tiles(self, columns: usize) -> Option<ScaleTiles> {
        match self {
            Scheme::Int8 { .. } => None,
            Scheme::Mxfp8 | Scheme::Nvfp4 => {
                Some(ScaleTiles { across: columns.div_ceil(self.block_len()).div_ceil(TILE_COLUMNS) })
            }
        }
    }

    /// The name used in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Int8 { rotation: None } => "int8",
            Scheme::Int8 { rotation: Some(_) } => "int8_convrot",
            Scheme::Mxfp8 => "mxfp8",
            Scheme::Nvfp4 => "nvfp4",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for Rotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The order in which files have the scales of blocks: in tiles of 128 rows and 4 columns, the tiles of a row of tiles one
/// after the other, and within a tile the rows 0, 32, 64, 96, then 1, 33 and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleTiles {
    /// Tiles side by side.
    across: usize,
}

impl ScaleTiles {
    /// Tiles side by side.
    pub const fn across(self) -> usize {
        self.across
    }

    /// The shape of the grid that is stored for so many rows: rows and columns filled up to whole tiles.
    pub const fn grid(self, rows: usize) -> [usize; 2] {
        [rows.div_ceil(TILE_ROWS).saturating_mul(TILE_ROWS), self.across.saturating_mul(TILE_COLUMNS)]
    }

    /// Where the scale of a block is.
    pub const fn offset(self, row: usize, block: usize) -> usize {
        let tile = row / TILE_ROWS * self.across + block / TILE_COLUMNS;
        tile * TILE_BYTES + row % 32 * 16 + row % TILE_ROWS / 32 * TILE_COLUMNS + block % TILE_COLUMNS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_powers_of_four() {
        let accepted: Vec<usize> = (0..5000).filter(|group| Rotation::new(*group).is_some()).collect();
        assert_eq!(accepted, [4, 16, 64, 256, 1024]);
    }

    #[test]
    fn every_scale_has_a_place_of_its_own() {
        let tiles = Scheme::Nvfp4.tiles(16 * 9).unwrap();
        assert_eq!((tiles.across(), tiles.grid(130)), (3, [256, 12]));
        let mut seen = vec![false; 256 * 12];
        for (row, block) in (0..256).flat_map(|row| (0..12).map(move |block| (row, block))) {
            assert!(!std::mem::replace(&mut seen[tiles.offset(row, block)], true), "{row} {block}");
        }
        assert!(seen.into_iter().all(|seen| seen));
        assert_eq!(
            [(0, 1), (1, 0), (32, 0), (0, 4), (128, 0)].map(|(r, b)| tiles.offset(r, b)),
            [1, 16, 4, 512, 1536]
        );
    }

    #[test]
    fn rows_have_scales_and_blocks_have_tiles() {
        assert!(Scheme::Int8 { rotation: Rotation::new(64) }.tiles(256).is_none());
        assert_eq!(Scheme::Mxfp8.tiles(96).unwrap().grid(96), [128, 4]);
        assert_eq!(
            (Scheme::Nvfp4.block_len(), Scheme::Nvfp4.block_bytes(), Scheme::Nvfp4.padding()),
            (16, 8, 16)
        );
    }
}
