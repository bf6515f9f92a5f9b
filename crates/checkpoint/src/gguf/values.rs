//! The metadata section of a GGUF file. Single values are read; strings and arrays are checked for
//! length and left where they are.

use super::array::ElementType;
use super::cursor::Cursor;
use crate::metadata::{Pair, Stored};
use crate::{Error, MAX_GGUF_STRING_BYTES, ValueFault};

/// The value type of an array.
const ARRAY: u32 = 9;

/// Reads `count` keys with their values.
pub(super) fn read_pairs(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Pair>, Error> {
    // The count is the file's own claim, so nothing is reserved for it.
    let mut pairs = Vec::new();
    for number in 0..count {
        let key = cursor.name("metadata key", number)?;
        let value = match cursor.u32()? {
            ARRAY => read_array(cursor, key)?,
            id => read_single(cursor, key, id)?,
        };
        pairs.push(Pair { key: key.into(), value });
    }
    Ok(pairs)
}

fn read_single(cursor: &mut Cursor<'_>, key: &str, id: u32) -> Result<Stored, Error> {
    let source = cursor.source();
    let fault = |fault| source.value_error(key, fault);
    let element = ElementType::from_id(id).ok_or_else(|| fault(ValueFault::UnknownType { id }))?;
    Ok(match element {
        ElementType::U8 => Stored::Unsigned(u8::from_le_bytes(cursor.array()?).into()),
        ElementType::U16 => Stored::Unsigned(u16::from_le_bytes(cursor.array()?).into()),
        ElementType::U32 => Stored::Unsigned(cursor.u32()?.into()),
        ElementType::U64 => Stored::Unsigned(cursor.u64()?),
        ElementType::I8 => Stored::Signed(i8::from_le_bytes(cursor.array()?).into()),
        ElementType::I16 => Stored::Signed(i16::from_le_bytes(cursor.array()?).into()),
        ElementType::I32 => Stored::Signed(i32::from_le_bytes(cursor.array()?).into()),
        ElementType::I64 => Stored::Signed(i64::from_le_bytes(cursor.array()?)),
        ElementType::F32 => Stored::Float(f32::from_le_bytes(cursor.array()?).into()),
        ElementType::F64 => Stored::Float(f64::from_le_bytes(cursor.array()?)),
        ElementType::Bool => match cursor.array::<1>()? {
            [0] => Stored::Bool(false),
            [1] => Stored::Bool(true),
            [value] => return Err(fault(ValueFault::NotBoolean { index: 0, value })),
        },
        ElementType::Str => {
            let len = string_len(cursor, key)?;
            let range = cursor.skip(len)?;
            if str::from_utf8(&source.bytes()[range.clone()]).is_err() {
                return Err(fault(ValueFault::NotText { index: 0 }));
            }
            Stored::TextAt(range)
        }
    })
}

/// Passes over an array, checking that all of it is there.
fn read_array(cursor: &mut Cursor<'_>, key: &str) -> Result<Stored, Error> {
    let source = cursor.source();
    let id = cursor.u32()?;
    if id == ARRAY {
        return Err(source.value_error(key, ValueFault::NestedArray));
    }
    let element =
        ElementType::from_id(id).ok_or_else(|| source.value_error(key, ValueFault::UnknownType { id }))?;
    let len = cursor.u64()?;
    let bytes = match element.bytes() {
        // A product too large to count is larger than any file, too.
        Some(size) => cursor.skip(len.saturating_mul(size as u64))?,
        None => {
            let start = cursor.skip(0)?.start;
            for _ in 0..len {
                let len = string_len(cursor, key)?;
                cursor.skip(len)?;
            }
            start..cursor.skip(0)?.end
        }
    };
    // Each element takes at least a byte of the file, so their number fits `usize`.
    Ok(Stored::ArrayAt { element, len: len as usize, bytes })
}

fn string_len(cursor: &mut Cursor<'_>, key: &str) -> Result<u64, Error> {
    let (bytes, limit) = (cursor.u64()?, MAX_GGUF_STRING_BYTES);
    if bytes > limit {
        return Err(cursor.source().value_error(key, ValueFault::StringTooLong { bytes, limit }));
    }
    Ok(bytes)
}
