//! Tables that stay where they lie: a vocabulary of a hundred thousand words is larger than many a block, and a text needs
//! a few rows of it, so only those travel.

use device::Operand;
use meta::Shape;
use tensor::Tensor;

use crate::companion::Companion;
use crate::manifest::{Manifest, WeightSpec};
use crate::{Error, Result, Session};

impl Manifest {
    /// The tables that stay in their files.
    pub fn tables(&self) -> &[WeightSpec] {
        &self.tables
    }

    /// A table that stays in its file.
    pub fn table(&self, name: &str) -> Option<&WeightSpec> {
        self.tables.iter().find(|table| table.name == name)
    }
}

impl Session {
    /// Rows of a table that stays in its file, one for each id, on the lane of the first block: `[ids, width]`. An id
    /// that the table does not have is an error.
    pub fn rows(&self, table: &str, ids: &[u32]) -> Result<Tensor> {
        let manifest = self.manifest();
        let fault = |reason: String| Error::Manifest { name: manifest.name().to_owned(), reason };
        let spec = manifest.table(table).ok_or_else(|| fault(format!("there is no table {table}")))?;
        self.check_intact()?;
        let &[entries, width] = spec.shape.dims() else {
            return Err(fault(format!("{table} is no table: it has the shape {}", spec.shape)));
        };
        if let Some(id) = ids.iter().find(|id| **id as usize >= entries) {
            return Err(fault(format!("{table} has {entries} rows; there is no row {id}")));
        }
        let stored = spec.stored_shape().with(0, 1);
        let row = spec.encoding.bytes(&stored).map_err(device::Error::from)? as usize;
        let bytes = gathered(&spec.bytes, row, ids);
        let lane = self.lane()?;
        let rows = Operand::new(lane.device().upload(&bytes)?, spec.encoding, stored.with(0, ids.len()), 0)?;
        let rows_of = WeightSpec { shape: Shape::from([ids.len(), width]), ..spec.clone() };
        let weight = rows_of.assemble(rows, |index, companion| {
            let own = if index == 0 { scales_of_rows(spec, companion, ids) } else { None };
            let (shape, bytes) = own.unwrap_or_else(|| (companion.shape, companion.bytes.to_vec()));
            Ok::<_, Error>(Operand::new(lane.device().upload(&bytes)?, companion.encoding, shape, 0)?)
        })?;
        Ok(lane.unpack(&weight)?)
    }
}

/// Some rows of a table, each of so many bytes.
fn gathered(bytes: &[u8], row: usize, ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| &bytes[*id as usize * row..][..row]).copied().collect()
}

/// The scales of some rows, in the form of those of the whole table; none if one scale serves all rows.
fn scales_of_rows(spec: &WeightSpec, scale: &Companion, ids: &[u32]) -> Option<(Shape, Vec<u8>)> {
    let columns = spec.stored_shape().last();
    let Some(tiles) = spec.encoding.scheme()?.tiles(columns) else {
        let each =
            (scale.shape.count() > 1).then(|| gathered(&scale.bytes, scale.encoding.block_bytes(), ids))?;
        return Some((Shape::from([ids.len(), 1]), each));
    };
    let grid @ [rows, blocks] = tiles.grid(ids.len());
    let mut own = vec![0; rows * blocks];
    for (row, id) in ids.iter().enumerate() {
        for block in 0..blocks {
            own[tiles.offset(row, block)] = scale.bytes[tiles.offset(*id as usize, block)];
        }
    }
    Some((Shape::from(grid), own))
}
