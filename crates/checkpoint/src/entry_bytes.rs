//! A share in a mapped file: an entry's bytes as an owned value, so that a device buffer can be built
//! over them without copying and can outlive the [`Checkpoint`](crate::Checkpoint).

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::SystemTime;

use crate::source::Source;
use crate::{Advice, DIRECT_ALIGN, Error};

/// Bytes of an entry that keep their file mapped for as long as they live. Cloning copies no bytes.
#[derive(Clone)]
pub struct EntryBytes {
    source: Arc<Source>,
    range: Range<usize>,
}

impl EntryBytes {
    pub(crate) fn new(source: Arc<Source>, range: Range<usize>) -> EntryBytes {
        EntryBytes { source, range }
    }

    /// Bytes that were computed from those of a file, under a name for people.
    #[must_use]
    pub fn computed(name: &str, bytes: Vec<u8>) -> EntryBytes {
        let range = 0..bytes.len();
        EntryBytes { source: Arc::new(Source::memory(name, bytes.into())), range }
    }

    /// A share in a part of these bytes. Panics if `range` is not inside them.
    pub fn slice(&self, range: Range<usize>) -> EntryBytes {
        assert!(range.start <= range.end && range.end <= self.range.len(), "{range:?} of {self:?}");
        let start = self.range.start + range.start;
        EntryBytes { source: Arc::clone(&self.source), range: start..start + range.len() }
    }

    /// Where these bytes lie in their file.
    pub fn place(&self) -> Range<usize> {
        self.range.clone()
    }

    /// A share in everything from the start of these bytes to the end of others; none if those lie in another file
    /// or begin before these.
    pub fn through(&self, last: &EntryBytes) -> Option<EntryBytes> {
        let forward = Arc::ptr_eq(&self.source, &last.source) && self.range.start <= last.range.start;
        let end = self.range.end.max(last.range.end);
        forward.then(|| EntryBytes { source: Arc::clone(&self.source), range: self.range.start..end })
    }

    /// These bytes with what else lies on their pages.
    pub fn whole_pages(&self) -> EntryBytes {
        let end = self.range.end.next_multiple_of(DIRECT_ALIGN).min(self.source.bytes().len());
        let start = self.range.start / DIRECT_ALIGN * DIRECT_ALIGN;
        EntryBytes { source: Arc::clone(&self.source), range: start..end }
    }

    /// Reads these bytes from the disk into the beginning of `into`, which must be at least as long, past the page cache
    /// where the file system can: if they are [whole pages](EntryBytes::whole_pages), `into` begins at a multiple of
    /// [`DIRECT_ALIGN`] and is a multiple of it long. Nothing else of `into` is kept.
    ///
    /// # Errors
    /// The disk has not got them any more, or cannot read them. The file counts as damaged from then on.
    pub fn read_past_cache(&self, into: &mut [u8]) -> Result<(), Error> {
        assert!(into.len() >= self.range.len(), "{} bytes for {self:?}", into.len());
        self.source.read_past_cache(self.range.clone(), into)
    }

    /// A number of the disk that the file is on; none for what is in memory, and where the system tells none.
    pub fn disk(&self) -> Option<u64> {
        self.source.disk()
    }

    /// Whether the first of other bytes is one of these.
    pub fn holds_start_of(&self, other: &EntryBytes) -> bool {
        Arc::ptr_eq(&self.source, &other.source) && self.range.contains(&other.range.start)
    }

    /// Whether these bytes reach to where others begin, or further, in the same file.
    pub fn reaches(&self, next: &EntryBytes) -> bool {
        Arc::ptr_eq(&self.source, &next.source)
            && (self.range.start..=self.range.end).contains(&next.range.start)
    }

    /// Tells the operating system how these bytes will be used. It works on whole pages, so advice
    /// reaches up to a page into the neighbours; that costs them a page fault, never a value.
    pub fn advise(&self, advice: Advice) -> Result<(), Error> {
        self.source.advise(self.range.clone(), advice)
    }

    /// An error if the file is not as it was when it was opened; see the crate's page. It costs one question to the
    /// operating system.
    pub fn verify(&self) -> Result<(), Error> {
        self.source.verify()
    }

    /// The file's length and when it had last been changed as it was opened; none where there is no file, or the system does
    /// not say.
    pub fn file_stamp(&self) -> Option<(u64, SystemTime)> {
        self.source.stamp()
    }

    /// An error if the file was found changed or damaged already. It costs nothing, so it can be asked often; what it
    /// does not see, [`EntryBytes::verify`] does.
    pub fn check_intact(&self) -> Result<(), Error> {
        self.source.check_intact()
    }

    /// Whether other bytes are of the same opened file.
    pub fn same_file(&self, other: &EntryBytes) -> bool {
        Arc::ptr_eq(&self.source, &other.source)
    }

    /// Of each opened file that some of these bytes are of, the first.
    pub fn one_of_each_file<'a>(all: impl IntoIterator<Item = &'a EntryBytes>) -> Vec<EntryBytes> {
        let mut files: Vec<EntryBytes> = Vec::new();
        for bytes in all {
            if !files.iter().any(|known| known.same_file(bytes)) {
                files.push(bytes.clone());
            }
        }
        files
    }
}

impl AsRef<[u8]> for EntryBytes {
    fn as_ref(&self) -> &[u8] {
        &self.source.bytes()[self.range.clone()]
    }
}

impl Deref for EntryBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

impl fmt::Debug for EntryBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntryBytes({}, {:?})", self.source.path().display(), self.range)
    }
}
