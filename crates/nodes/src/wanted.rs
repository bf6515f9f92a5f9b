//! Long work on the host asks whether its job goes on.

use graph::Wanted;

use crate::{Error, Result};

/// Fails if the job that this thread works for is to end: for loops whose time grows with a picture, for every row or so.
///
/// # Errors
/// The job is to end.
pub(crate) fn still_wanted() -> Result<()> {
    graph::still_wanted().map_err(|_| Error::Device(device::Error::Cancelled))
}

/// The same in a thread that helps the one that the job was taken from.
///
/// # Errors
/// The job is to end.
pub(crate) fn still_wanted_by(job: &Wanted) -> Result<()> {
    job.check().map_err(|_| Error::Device(device::Error::Cancelled))
}

/// What an iterator gives, for as long as it is wanted.
///
/// # Errors
/// The job is to end.
pub(crate) fn collect_while_wanted<T>(mut from: impl Iterator<Item = T>) -> Result<Vec<T>> {
    /// Items between two questions: some milliseconds.
    const PIECE: usize = 1 << 18;
    let mut items = Vec::with_capacity(from.size_hint().0);
    loop {
        still_wanted()?;
        let before = items.len();
        items.extend(from.by_ref().take(PIECE));
        if items.len() - before < PIECE {
            return Ok(items);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_items_arrive() {
        for count in [0, 1, 1 << 18, 1_000_000] {
            let items = collect_while_wanted(0..count).unwrap();
            assert!(items.iter().copied().eq(0..count), "{count}");
        }
    }
}
