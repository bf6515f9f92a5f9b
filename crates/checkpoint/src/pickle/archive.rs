//! The zip archive that PyTorch writes: entries that are stored as they are, so that they can be used where they lie.

use std::ops::Range;

use crate::checkpoint::MAX_ENTRIES;
use crate::source::Source;
use crate::{Error, HeaderFault};

/// Signatures and fixed lengths of the records.
const END: &[u8] = b"PK\x05\x06";
const END_BYTES: usize = 22;
const LARGE_END_PLACE: &[u8] = b"PK\x06\x07";
const LARGE_END_PLACE_BYTES: usize = 20;
const LARGE_END: &[u8] = b"PK\x06\x06";
const LISTED: &[u8] = b"PK\x01\x02";
const LISTED_BYTES: usize = 46;
const LOCAL: &[u8] = b"PK\x03\x04";
const LOCAL_BYTES: u64 = 30;
/// The longest comment at the end of an archive.
const MAX_COMMENT_BYTES: usize = 65_535;
/// What stands where a number needs 64 bits, which are in an extra field.
const IS_LARGE: u64 = 0xFFFF_FFFF;
/// The extra field with them.
const LARGE_FIELD: u64 = 1;
/// What the pickle is called, in a folder.
const PICKLE: &str = "data.pkl";

/// The list of an archive.
pub(super) struct Archive<'a> {
    source: &'a Source,
    /// By name.
    listed: Vec<Listed<'a>>,
}

/// One entry: where it begins, and how long it is.
struct Listed<'a> {
    name: &'a [u8],
    local: u64,
    len: u64,
    is_stored: bool,
}

impl<'a> Archive<'a> {
    /// Reads the list at the end of the file.
    pub(super) fn open(source: &'a Source) -> Result<Archive<'a>, Error> {
        let (count, at) = list_place(source.bytes()).ok_or_else(|| truncated(source))?;
        if count > MAX_ENTRIES {
            return Err(source.header_error(HeaderFault::TooManyTensors { count, limit: MAX_ENTRIES }));
        }
        let mut rest = usize::try_from(at).ok().and_then(|at| source.bytes().get(at..));
        let mut listed = Vec::new();
        for number in 0..count {
            let next = rest.and_then(listed_entry);
            let Some((entry, after)) = next else {
                return Err(source.header_error(HeaderFault::ArchiveList { number }));
            };
            listed.push(entry);
            rest = Some(after);
        }
        listed.sort_by(|a, b| a.name.cmp(b.name));
        Ok(Archive { source, listed })
    }

    /// The pickle, and the folder that it and the storages are in, with its slash.
    pub(super) fn pickle(&self) -> Result<(String, Range<u64>), Error> {
        let name = self.listed.iter().find_map(|entry| {
            let folder = str::from_utf8(entry.name).ok()?.strip_suffix(PICKLE)?;
            (folder.is_empty() || folder.ends_with('/')).then(|| folder.to_owned())
        });
        let folder = name.ok_or_else(|| self.source.header_error(HeaderFault::NoPickle))?;
        match self.find(&format!("{folder}{PICKLE}"))? {
            Some(place) => Ok((folder, place)),
            None => Err(self.source.header_error(HeaderFault::NoPickle)),
        }
    }

    /// An error if the numbers are written for a big-endian machine.
    pub(super) fn check_order(&self, folder: &str) -> Result<(), Error> {
        let place = self.find(&format!("{folder}byteorder"))?;
        let order = place.map(|place| &self.source.bytes()[place.start as usize..place.end as usize]);
        match order {
            Some(b"big") => Err(self.source.header_error(HeaderFault::PickleOrder)),
            _ => Ok(()),
        }
    }

    /// Where the bytes of an entry lie; nothing if there is none of this name.
    pub(super) fn find(&self, name: &str) -> Result<Option<Range<u64>>, Error> {
        let found = self.listed.binary_search_by(|entry| entry.name.cmp(name.as_bytes()));
        let Ok(at) = found else { return Ok(None) };
        let entry = &self.listed[at];
        if !entry.is_stored {
            let name = crate::error::excerpt(name);
            return Err(self.source.header_error(HeaderFault::Packed { name }));
        }
        let bytes = self.source.bytes();
        let local = usize::try_from(entry.local).ok().and_then(|at| bytes.get(at..));
        let Some(local) = local.filter(|local| local.starts_with(LOCAL)) else {
            return Err(truncated(self.source));
        };
        let (Some(name_len), Some(extra_len)) = (number(local, 26, 2), number(local, 28, 2)) else {
            return Err(truncated(self.source));
        };
        let start = entry.local + LOCAL_BYTES + name_len + extra_len;
        match start.checked_add(entry.len).filter(|end| *end <= bytes.len() as u64) {
            Some(end) => Ok(Some(start..end)),
            None => Err(truncated(self.source)),
        }
    }
}

/// A file whose list, or something that it lists, is not there.
fn truncated(source: &Source) -> Error {
    Error::TruncatedHeader { file: source.path().to_owned(), expected: None, got: source.len() }
}

/// How many entries the list has, and where it begins.
fn list_place(bytes: &[u8]) -> Option<(u64, u64)> {
    let last = bytes.len().checked_sub(END_BYTES)?;
    let first = last.saturating_sub(MAX_COMMENT_BYTES);
    let end = (first..=last).rev().find(|at| bytes[*at..].starts_with(END))?;
    let (count, at) = (number(bytes, end + 10, 2)?, number(bytes, end + 16, 4)?);
    let large = end.checked_sub(LARGE_END_PLACE_BYTES).filter(|at| bytes[*at..].starts_with(LARGE_END_PLACE));
    let Some(large) = large else { return Some((count, at)) };
    let large = usize::try_from(number(bytes, large + 8, 8)?).ok()?;
    if !bytes.get(large..)?.starts_with(LARGE_END) {
        return None;
    }
    Some((number(bytes, large + 32, 8)?, number(bytes, large + 48, 8)?))
}

/// The first entry of a list, and what stands behind it.
fn listed_entry(list: &[u8]) -> Option<(Listed<'_>, &[u8])> {
    if !list.starts_with(LISTED) {
        return None;
    }
    let field = |at: usize, bytes: usize| number(list, at, bytes);
    let (flags, method) = (field(8, 2)?, field(10, 2)?);
    let (packed, len, local) = (field(20, 4)?, field(24, 4)?, field(42, 4)?);
    let [name, extra, comment] = [field(28, 2)?, field(30, 2)?, field(32, 2)?].map(|len| len as usize);
    let (name, rest) = list.get(LISTED_BYTES..)?.split_at_checked(name)?;
    let (extra, rest) = rest.split_at_checked(extra)?;
    let rest = rest.get(comment..)?;
    let [len, packed, local] = large_numbers(extra, [len, packed, local])?;
    // The lowest flag says that it is encrypted.
    let is_stored = method == 0 && flags & 1 == 0 && packed == len;
    // What is so far away that it cannot be counted is not there.
    local.checked_add(LOCAL_BYTES + 2 * 0xFFFF)?;
    Some((Listed { name, local, len, is_stored }, rest))
}

/// Numbers of an entry, those that need 64 bits taken from the extra field, where they stand in this order.
fn large_numbers(extra: &[u8], small: [u64; 3]) -> Option<[u64; 3]> {
    if !small.contains(&IS_LARGE) {
        return Some(small);
    }
    let mut rest = extra;
    while let (Some(id), Some(len)) = (number(rest, 0, 2), number(rest, 2, 2)) {
        let (field, after) = rest.get(4..)?.split_at_checked(len as usize)?;
        if id == LARGE_FIELD {
            let (mut numbers, mut at) = (small, 0);
            for value in numbers.iter_mut().filter(|value| **value == IS_LARGE) {
                *value = number(field, at, 8)?;
                at += 8;
            }
            return Some(numbers);
        }
        rest = after;
    }
    None
}

/// An unsigned number of so many bytes.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}
