//! Reading a GGUF header front to back without ever reaching past the file or the header limit.

use std::ops::Range;

use crate::source::Source;
use crate::{Error, HeaderFault, MAX_NAME_BYTES};

/// A place in a header.
pub(super) struct Cursor<'a> {
    source: &'a Source,
    /// The file, or as much of it as a header may have.
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The start of a file whose header may have `limit` bytes.
    pub(super) fn new(source: &'a Source, limit: u64) -> Cursor<'a> {
        let all = source.bytes();
        let len = usize::try_from(limit).unwrap_or(usize::MAX).min(all.len());
        Cursor { source, bytes: &all[..len], at: 0 }
    }

    /// The file that is read.
    pub(super) fn source(&self) -> &'a Source {
        self.source
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], Error> {
        let range = self.skip(len)?;
        Ok(&self.bytes[range])
    }

    /// Passes over the next `len` bytes and says where they are.
    pub(super) fn skip(&mut self, len: u64) -> Result<Range<usize>, Error> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        match end.filter(|&end| end <= self.bytes.len()) {
            Some(end) => {
                let start = std::mem::replace(&mut self.at, end);
                Ok(start..end)
            }
            None => Err(self.ended(len)),
        }
    }

    /// The error for `len` more bytes than there are.
    fn ended(&self, len: u64) -> Error {
        let (got, limit) = (self.source.len(), self.bytes.len() as u64);
        let expected = self.at().saturating_add(len);
        if limit < got {
            self.source.header_error(HeaderFault::TooLarge { bytes: expected, limit })
        } else {
            Error::TruncatedHeader { file: self.source.path().to_owned(), expected: Some(expected), got }
        }
    }

    /// The next `N` bytes as an array.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    /// The next four bytes as a number.
    pub(super) fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// The next eight bytes as a number.
    pub(super) fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// The name of a tensor or key; `what` and `number` say which, for errors.
    pub(super) fn name(&mut self, what: &'static str, number: u64) -> Result<&'a str, Error> {
        let bytes = self.u64()?;
        if bytes > MAX_NAME_BYTES {
            let limit = MAX_NAME_BYTES;
            return Err(self.source.header_error(HeaderFault::NameTooLong { what, number, bytes, limit }));
        }
        str::from_utf8(self.take(bytes)?)
            .map_err(|_| self.source.header_error(HeaderFault::NameNotText { what, number }))
    }
}
