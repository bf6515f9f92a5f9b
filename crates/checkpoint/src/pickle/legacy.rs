//! The form before archives: a pickle with a number that says what it is, one with a version, one about the machine, one with
//! the tensors, one with the names of storages in order, then each storage with its length in front.

use std::collections::HashMap;
use std::ops::Range;

use super::PickleFault;
use super::machine::Machine;
use super::nodes::{Node, Slot};

/// The first pickle.
pub(crate) const MAGIC: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";

/// Bytes of the length of a storage.
const LENGTH_BYTES: u64 = 8;

/// Reads what stands behind the number: what the pickle with the tensors made, and where each storage lies in `file`.
pub(super) fn read(
    machine: &mut Machine<'_>,
    file: &[u8],
) -> Result<(Slot, HashMap<String, Range<u64>>), PickleFault> {
    machine.run()?;
    let about = machine.run()?;
    if machine.nodes().value(about, "little_endian") == Some(Slot::Bool(false)) {
        return Err(PickleFault::Arguments { of: "numbers of a big-endian machine to" });
    }
    let root = machine.run()?;
    let names = machine.run()?;
    let sizes = element_sizes(machine);
    let mut at = machine.at() as u64;
    let mut places = HashMap::new();
    for name in machine.nodes().items(names).unwrap_or_default() {
        let broken = PickleFault::Broken { at };
        let Some(name) = machine.nodes().text(*name) else { return Err(broken) };
        let Some(length) = length_at(file, at) else { return Err(broken) };
        let start = at + LENGTH_BYTES;
        // A storage that no tensor lies in has no known type, so what stands behind it cannot be found.
        let Some(size) = sizes.get(name) else { break };
        let end = length.checked_mul(*size).and_then(|bytes| start.checked_add(bytes));
        let Some(end) = end.filter(|end| *end <= file.len() as u64) else { return Err(broken) };
        places.insert(name.to_owned(), start..end);
        at = end;
    }
    Ok((root, places))
}

/// The bytes of one value of each storage.
fn element_sizes(machine: &Machine<'_>) -> HashMap<String, u64> {
    let nodes = machine.nodes();
    let storage = |node: &Node| match node {
        Node::Storage(storage) => {
            Some((nodes.text_at(&storage.key)?.to_owned(), storage.dtype?.bytes() as u64))
        }
        _ => None,
    };
    nodes.iter().filter_map(storage).collect()
}

fn length_at(file: &[u8], at: u64) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let bytes: [u8; 8] = file.get(at..at.checked_add(8)?)?.try_into().ok()?;
    Some(u64::from_le_bytes(bytes))
}
