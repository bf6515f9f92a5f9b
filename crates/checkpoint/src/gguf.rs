//! GGUF versions 2 and 3, little endian: a count of tensors and of keys, the keys with typed values, a
//! list of tensors, padding to the alignment, then the tensors' bytes.
//!
//! Offsets must be multiples of the alignment and may not overlap. Gaps and bytes after the last tensor
//! are accepted: the Python reader that most tools use accepts them, so such files are about.

mod array;
mod cursor;
mod tensor_types;
mod values;

use std::sync::Arc;

use meta::{MAX_RANK, Shape};

use crate::checkpoint::{MAX_ENTRIES, Parsed};
use crate::layout::{check_layout, check_reaches};
use crate::metadata::{Metadata, Value};
use crate::name_index::NameIndex;
use crate::source::Source;
use crate::{Entry, Error, HeaderFault, TensorFault};

pub use array::{Array, ElementType, Elements};
use cursor::Cursor;

/// The most bytes of keys, values and tensor list together. A tokenizer takes some ten million.
pub const MAX_GGUF_HEADER_BYTES: u64 = 256 << 20;
/// The most metadata keys.
pub const MAX_GGUF_KEYS: u64 = 65_536;
/// The longest string in a metadata value, in bytes.
pub const MAX_GGUF_STRING_BYTES: u64 = 128 << 20;
/// The largest `general.alignment`.
pub const MAX_GGUF_ALIGNMENT: u64 = 1 << 24;

/// What a GGUF file begins with.
pub(crate) const MAGIC: &[u8] = b"GGUF";

/// The alignment of a file that does not say one.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The key that says another.
const ALIGNMENT_KEY: &str = "general.alignment";
/// Keys that begin so hold the shape that a tensor had before its rows were regrouped into whole blocks.
const ORIGINAL_SHAPE_PREFIX: &str = "comfy.gguf.orig_shape.";

/// Reads the header of a file that was recognised as GGUF.
pub(crate) fn parse(source: &Arc<Source>, file: u32) -> Result<Parsed, Error> {
    let mut cursor = Cursor::new(source, MAX_GGUF_HEADER_BYTES);
    cursor.take(MAGIC.len() as u64)?;
    check_version(source, cursor.u32()?)?;
    let (tensors, keys) = (cursor.u64()?, cursor.u64()?);
    if tensors > MAX_ENTRIES {
        return Err(source.header_error(HeaderFault::TooManyTensors { count: tensors, limit: MAX_ENTRIES }));
    }
    if keys > MAX_GGUF_KEYS {
        return Err(source.header_error(HeaderFault::TooManyKeys { count: keys, limit: MAX_GGUF_KEYS }));
    }
    let metadata = Metadata::new(Arc::clone(source), values::read_pairs(&mut cursor, keys)?)?;
    let alignment = alignment(source, &metadata)?;
    let mut entries = read_tensors(&mut cursor, tensors, file, alignment)?;
    // Now that the header's end is known, offsets can count from the start of the file.
    let data_start = cursor.at().next_multiple_of(alignment);
    for entry in &mut entries {
        let (offset, len) = (entry.offset(), entry.len());
        let beyond = || source.tensor_error(entry.name(), TensorFault::Beyond { offset, len });
        let begin = data_start.checked_add(offset).ok_or_else(beyond)?;
        begin.checked_add(len).ok_or_else(beyond)?;
        // An empty last tensor may begin after padding that the file does not have.
        entry.move_to(if len == 0 { begin.min(source.len()) } else { begin });
    }
    let end = check_layout(source, &entries, None)?;
    check_reaches(source, end)?;
    Ok(Parsed { entries, metadata })
}

fn check_version(source: &Source, version: u32) -> Result<(), Error> {
    match version {
        2 | 3 => Ok(()),
        // A small number written the other way round has its two low bytes empty.
        _ if version != 0 && version & 0xFFFF == 0 => {
            Err(source.header_error(HeaderFault::BigEndian { version: version.swap_bytes() }))
        }
        _ => Err(source.header_error(HeaderFault::GgufVersion { version })),
    }
}

fn alignment(source: &Source, metadata: &Metadata) -> Result<u64, Error> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::Unsigned(value)) if value.is_power_of_two() && value <= MAX_GGUF_ALIGNMENT => Ok(value),
        Some(value) => {
            let value = crate::error::excerpt(&value.to_string());
            Err(source.header_error(HeaderFault::Alignment { value, limit: MAX_GGUF_ALIGNMENT }))
        }
    }
}

/// Reads the tensor list. The entries' offsets still count from the start of the data.
fn read_tensors(cursor: &mut Cursor<'_>, count: u64, file: u32, alignment: u64) -> Result<Vec<Entry>, Error> {
    // The count is the file's own claim, so nothing is reserved for it.
    let mut entries = Vec::new();
    for number in 0..count {
        entries.push(read_tensor(cursor, number, file, alignment)?);
    }
    entries.shrink_to_fit();
    Ok(entries)
}

fn read_tensor(cursor: &mut Cursor<'_>, number: u64, file: u32, alignment: u64) -> Result<Entry, Error> {
    let source = cursor.source();
    let name = cursor.name("tensor", number)?;
    let fault = |fault| source.tensor_error(name, fault);
    let rank = u64::from(cursor.u32()?);
    if rank > MAX_RANK as u64 {
        return Err(fault(TensorFault::Rank { rank }));
    }
    let mut dims = [0; MAX_RANK];
    let dims = &mut dims[..rank as usize];
    // The file lists the dimension that varies fastest first.
    for dim in dims.iter_mut().rev() {
        let size = cursor.u64()?;
        *dim = usize::try_from(size).map_err(|_| fault(TensorFault::Dimension { size }))?;
    }
    let shape = Shape::new(dims).map_err(|error| fault(TensorFault::Rank { rank: error.rank as u64 }))?;
    let encoding = tensor_types::encoding(cursor.u32()?).map_err(fault)?;
    let offset = cursor.u64()?;
    if !offset.is_multiple_of(alignment) {
        return Err(fault(TensorFault::Unaligned { offset, alignment }));
    }
    let len = encoding.bytes(&shape).map_err(|error| fault(error.into()))?;
    let end = offset.checked_add(len).ok_or_else(|| fault(TensorFault::Beyond { offset, len }))?;
    Ok(Entry::new(name.into(), encoding, shape, file, offset..end))
}

/// Gives tensors back the shapes that they had before their rows were regrouped into whole blocks.
pub(crate) fn restore_shapes(
    source: &Source,
    metadata: &Metadata,
    entries: &mut [Entry],
    names: &NameIndex,
) -> Result<(), Error> {
    for key in metadata.keys() {
        let Some(name) = key.strip_prefix(ORIGINAL_SHAPE_PREFIX) else { continue };
        let (Some(at), Some(array)) = (names.find(entries, name), metadata.array(key)) else { continue };
        // One more than a shape may have is enough to see that there are too many.
        let sizes: Vec<Value<'_>> = array.iter().take(MAX_RANK + 1).collect::<Result<_, _>>()?;
        let entry = &mut entries[at];
        match original_shape(&sizes, entry.shape()) {
            Some(shape) => entry.reshape(shape),
            None => {
                let original = sizes.iter().map(|size| size.to_i64().unwrap_or(-1)).collect();
                let fault = TensorFault::OriginalShape { stored: *entry.shape(), original };
                return Err(source.tensor_error(name, fault));
            }
        }
    }
    Ok(())
}

/// The shape that `sizes` describe, if it has as many values as `stored`.
fn original_shape(sizes: &[Value<'_>], stored: &Shape) -> Option<Shape> {
    let dims =
        sizes.iter().map(|size| usize::try_from(size.to_u64()?).ok()).collect::<Option<Vec<usize>>>()?;
    let shape = Shape::new(&dims).ok()?;
    (shape.checked_count()? == stored.checked_count()?).then_some(shape)
}
