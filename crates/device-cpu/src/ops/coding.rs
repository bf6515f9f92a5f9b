//! Losslessly coded weights: tiles are shared out among the threads.

use codec::{Coded, Layout, Table, TileMut, checksum};
use device::op;
use device::{Error, Operand, Result};
use rayon::prelude::*;

use super::layout::Place;
use crate::access::Access;
use crate::stop::Tasks;
use crate::tiles;

/// Tiles that one task works on.
const TILES: usize = 16;

/// Floats to coded bytes: the windows of all tiles first, since they say where each goes.
pub(crate) fn encode(call: &op::Encode, access: &Access<'_>) -> Result<()> {
    let (values, coder) = (access.bytes(&call.values)?, tiles::encoder());
    let refused = |error: codec::Error| refusal("encode", "output", &error);
    let layout = layout("encode", &call.values)?;
    let place = Place::of(&call.out)?;
    // SAFETY: the only part of the output that is in use.
    let out = unsafe { place.part(0, place.len()) };
    let tasks = Tasks::of_this_job();
    let tile_values = |tile: usize| &values[layout.tile_place(tile)];
    let mut windows = vec![codec::Window { base: 0, escapes: 0 }; layout.tiles()];
    windows.par_chunks_mut(TILES).enumerate().for_each(|(task, windows)| {
        tasks.run(|| {
            for (index, window) in windows.iter_mut().enumerate() {
                *window = coder.survey(layout.format(), tile_values(task * TILES + index));
            }
        });
    });
    let table = Table::new(layout, windows);
    let mut work: Vec<(TileMut<'_>, u64)> =
        table.parts(out).map_err(refused)?.into_iter().map(|part| (part, 0)).collect();
    work.par_chunks_mut(TILES).enumerate().for_each(|(task, parts)| {
        tasks.run(|| {
            for (index, (part, sum)) in parts.iter_mut().enumerate() {
                let tile = task * TILES + index;
                let to = TileMut { fixed: &mut *part.fixed, variable: &mut *part.variable };
                table.encode_tile(coder, tile, tile_values(tile), to);
                *sum = checksum(tile_values(tile));
            }
        });
    });
    let sums: Vec<u64> = work.into_iter().map(|(_, sum)| sum).collect();
    table.finish(out, &sums).map_err(refused)
}

/// Coded bytes to floats.
pub(crate) fn decode(call: &op::Decode, access: &Access<'_>) -> Result<()> {
    let refused = |error: &codec::Error| refusal("decode", "input", error);
    let coded = Coded::parse(access.bytes(&call.coded)?).map_err(|error| refused(&error))?;
    let (layout, coder) = (layout("decode", &call.out)?, tiles::decoder());
    if *coded.layout() != layout {
        return Err(Error::Operand {
            op: "decode",
            operand: "input",
            expected: format!("{:?}", call.out),
            got: format!("{} values of {}", coded.layout().elements(), coded.layout().format().dtype()),
        });
    }
    let (place, tasks) = (Place::of(&call.out)?, Tasks::of_this_job());
    (0..layout.tiles().div_ceil(TILES)).into_par_iter().try_for_each(|task| {
        let mut outcome = Ok(());
        tasks.run(|| {
            let tiles = task * TILES..layout.tiles().min((task + 1) * TILES);
            outcome = tiles.into_iter().try_for_each(|tile| {
                let own = layout.tile_place(tile);
                // SAFETY: tiles are distinct parts of the output.
                let out = unsafe { place.part(own.start, own.len()) };
                coded.decode_tile(coder, tile, out).map_err(|error| refused(&error))
            });
        });
        outcome
    })
}

fn layout(op: &'static str, values: &Operand) -> Result<Layout> {
    let dtype = values.dtype().unwrap_or(meta::DType::U8);
    Layout::new(dtype, values.count()).map_err(|error| refusal(op, "values", &error))
}

fn refusal(op: &'static str, operand: &'static str, error: &codec::Error) -> Error {
    Error::Operand { op, operand, expected: "losslessly coded weights".into(), got: error.to_string() }
}
