//! One file's bytes: mapped from disk, or memory that the program already holds. What of this crate is `unsafe` is here,
//! in `damage` and in `direct`.

use std::borrow::Cow;
use std::fmt;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use memmap2::Mmap;

use crate::damage::Watch;
use crate::direct::Direct;
use crate::{Error, HeaderFault, Refusal, TensorFault, ValueFault};

/// How a range of a mapped file will be used next. It changes speed and memory, never what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// From front to back, once: read far ahead, forget soon.
    Sequential,
    /// Soon: start reading it from disk now.
    WillNeed,
    /// Not for a while: give its pages back. They are read again from the file when touched.
    DontNeed,
}

/// One file's bytes and where they came from.
pub(crate) struct Source {
    path: PathBuf,
    bytes: Bytes,
}

enum Bytes {
    Mapped {
        /// Goes before the map, as it must.
        watch: Watch,
        map: Mmap,
        /// Stays open so that it can be asked for its length even when its name is gone.
        file: File,
        /// When it had last been changed as it was opened.
        modified: Option<SystemTime>,
        /// Opened when something is first read past the page cache.
        direct: OnceLock<Direct>,
    },
    Memory(Cow<'static, [u8]>),
}

impl Source {
    /// Maps the file at `path`.
    pub(crate) fn open(path: &Path) -> Result<Source, Error> {
        let failed = |action| move |source| Error::Io { file: path.to_owned(), action, source };
        let refused = |reason| Error::Refused { file: path.to_owned(), reason };
        // Opening a pipe would wait for a writer, so the kind of file is asked for first.
        let kind = fs::metadata(path).map_err(failed("open the file"))?.file_type();
        if kind.is_dir() {
            return Err(refused(Refusal::Folder));
        } else if !kind.is_file() {
            return Err(refused(Refusal::NotAFile));
        }
        let file = File::open(path).map_err(failed("open the file"))?;
        let about = file.metadata().map_err(failed("read the file's length"))?;
        if about.len() == 0 {
            return Err(refused(Refusal::Empty));
        }
        // SAFETY: the map is read-only and lives as long as `Source`. Another program may change the
        // file meanwhile; the crate's page says what happens then, nothing here relies on bytes staying
        // the same between two reads, and every type that is made from them accepts any bytes.
        let map = unsafe { Mmap::map(&file) }.map_err(failed("map the file into memory"))?;
        let (watch, modified) = (Watch::new(&map), about.modified().ok());
        let direct = OnceLock::new();
        Ok(Source { path: path.to_owned(), bytes: Bytes::Mapped { watch, map, file, modified, direct } })
    }

    /// Bytes that are in memory already; `name` stands for the path in errors.
    pub(crate) fn memory(name: &str, bytes: Cow<'static, [u8]>) -> Source {
        Source { path: PathBuf::from(name), bytes: Bytes::Memory(bytes) }
    }

    /// The file's path, or the name given to the memory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file's name without its folder.
    pub(crate) fn file_name(&self) -> String {
        self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned()
    }

    /// The whole file.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped { map, .. } => map,
            Bytes::Memory(bytes) => bytes,
        }
    }

    /// Bytes of the whole file.
    pub(crate) fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Reads a range of the file into the beginning of memory that may be longer, past the page cache where that is
    /// possible. A file that has not got all of it any more counts as damaged from then on.
    pub(crate) fn read_past_cache(&self, range: Range<usize>, into: &mut [u8]) -> Result<(), Error> {
        let (start, len) = (range.start as u64, range.len());
        match &self.bytes {
            Bytes::Memory(bytes) => into[..len].copy_from_slice(&bytes[range]),
            Bytes::Mapped { watch, file, direct, .. } => {
                let direct = direct.get_or_init(|| Direct::new(file, &self.path));
                if direct.read(file, start, len, into).ok() != Some(len) {
                    watch.mark_damaged();
                    return Err(Error::Changed { file: self.path.clone() });
                }
            }
        }
        Ok(())
    }

    /// A number of the disk that the file is on, where the system tells one.
    pub(crate) fn disk(&self) -> Option<u64> {
        match &self.bytes {
            #[cfg(unix)]
            Bytes::Mapped { file, .. } => {
                file.metadata().ok().map(|about| std::os::unix::fs::MetadataExt::dev(&about))
            }
            _ => None,
        }
    }

    /// An error if the file is not as it was when it was mapped: pages were missing when they were read, or it has
    /// another length or date. From then on it counts as damaged.
    pub(crate) fn verify(&self) -> Result<(), Error> {
        let Bytes::Mapped { watch, file, modified, .. } = &self.bytes else { return Ok(()) };
        let failed = |source| Error::Io { file: self.path.clone(), action: "read the file's length", source };
        let about = file.metadata().map_err(failed)?;
        if about.len() != self.len() {
            watch.mark_damaged();
            return Err(Error::LengthChanged {
                file: self.path.clone(),
                opened: self.len(),
                now: about.len(),
            });
        }
        if watch.is_damaged() || about.modified().ok() != *modified {
            watch.mark_damaged();
            return Err(Error::Changed { file: self.path.clone() });
        }
        Ok(())
    }

    /// Its length and when it had last been changed as it was opened; none of bytes in memory, or where the system does not
    /// say.
    pub(crate) fn stamp(&self) -> Option<(u64, SystemTime)> {
        match &self.bytes {
            Bytes::Mapped { modified, .. } => Some((self.len(), (*modified)?)),
            Bytes::Memory(_) => None,
        }
    }

    /// Whether nobody found the file changed or damaged so far. Asks no system, so it costs nothing.
    pub(crate) fn is_intact(&self) -> bool {
        match &self.bytes {
            Bytes::Mapped { watch, .. } => !watch.is_damaged(),
            Bytes::Memory(_) => true,
        }
    }

    /// The error of a file that is not intact.
    pub(crate) fn check_intact(&self) -> Result<(), Error> {
        if self.is_intact() { Ok(()) } else { Err(Error::Changed { file: self.path.clone() }) }
    }

    /// Passes advice about a range to the operating system. Without effect on bytes in memory and on
    /// systems without such advice.
    pub(crate) fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Error> {
        match &self.bytes {
            Bytes::Mapped { map, .. } if !range.is_empty() => {
                advise(map, range, advice).map_err(|source| Error::Io {
                    file: self.path.clone(),
                    action: "advise the operating system about the mapped file",
                    source,
                })
            }
            _ => Ok(()),
        }
    }

    /// An error about this file's header.
    pub(crate) fn header_error(&self, fault: HeaderFault) -> Error {
        Error::Header { file: self.path.clone(), fault }
    }

    /// An error about one of this file's tensors.
    pub(crate) fn tensor_error(&self, tensor: &str, fault: TensorFault) -> Error {
        Error::Tensor { file: self.path.clone(), tensor: tensor.to_owned(), fault: Box::new(fault) }
    }

    /// An error about one of this file's metadata values.
    pub(crate) fn value_error(&self, key: &str, fault: ValueFault) -> Error {
        Error::Value { file: self.path.clone(), key: key.to_owned(), fault }
    }
}

#[cfg(unix)]
fn advise(map: &Mmap, range: Range<usize>, advice: Advice) -> std::io::Result<()> {
    use memmap2::UncheckedAdvice;
    match advice {
        Advice::Sequential => map.advise_range(memmap2::Advice::Sequential, range.start, range.len()),
        Advice::WillNeed => map.advise_range(memmap2::Advice::WillNeed, range.start, range.len()),
        Advice::DontNeed => {
            // SAFETY: the map is shared and read-only, so dropping its pages loses nothing: the next
            // read of them gives the file's bytes again, and live borrows see no other value.
            unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) }
        }
    }
}

#[cfg(not(unix))]
fn advise(_map: &Mmap, _range: Range<usize>, _advice: Advice) -> std::io::Result<()> {
    Ok(())
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("path", &self.path).field("len", &self.len()).finish()
    }
}
