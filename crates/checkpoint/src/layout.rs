//! Where entries lie in their file: no byte may belong to two, and in safetensors none may belong to
//! none.

use crate::name_index::positions;
use crate::source::Source;
use crate::{Entry, Error, TensorFault};

/// Checks that no two entries share a byte. Where `packed_from` is given, the first must begin there
/// and each must begin where the one before it ends. Returns the end of the last.
pub(crate) fn check_layout(
    source: &Source,
    entries: &[Entry],
    packed_from: Option<u64>,
) -> Result<u64, Error> {
    let mut order = positions(entries);
    order.sort_unstable_by_key(|&at| {
        let entry = &entries[at as usize];
        (entry.offset(), entry.len(), at)
    });
    let mut end = packed_from.unwrap_or(0);
    let mut last: Option<&Entry> = None;
    for &at in &order {
        let entry = &entries[at as usize];
        if packed_from.is_none() && entry.is_empty() {
            continue;
        }
        if let (true, Some(last)) = (entry.offset() < end, last) {
            let with = last.name().to_owned();
            return Err(source.tensor_error(entry.name(), TensorFault::Overlap { with }));
        }
        if packed_from.is_some() && entry.offset() > end {
            let bytes = entry.offset() - end;
            return Err(source.tensor_error(entry.name(), TensorFault::Hole { bytes }));
        }
        end = entry.end();
        last = Some(entry);
    }
    Ok(end)
}

/// Checks that the file reaches to `end`, the end of its last tensor.
pub(crate) fn check_reaches(source: &Source, end: u64) -> Result<(), Error> {
    let got = source.len();
    match end.checked_sub(got) {
        None | Some(0) => Ok(()),
        Some(missing) => {
            Err(Error::Truncated { file: source.path().to_owned(), expected: end, got, missing })
        }
    }
}
