//! Reading a file past the page cache: bytes that are read again and again and are more than memory holds would push
//! everything else out of it, themselves included.
//!
//! Where the file system refuses direct reads, as those in memory and some of networks do, bytes are read in the usual way
//! and the system is told to forget them.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where direct reads may begin, in the file and in memory, and what their lengths are multiples of: a page, which suits
/// all disks.
pub const DIRECT_ALIGN: usize = 4096;

/// The same opened file, for direct reads.
pub(crate) struct Direct {
    /// None where there are no direct reads.
    file: Option<File>,
    /// Whether the file system said at a read that it has none.
    is_refused: AtomicBool,
}

impl Direct {
    /// Opens what is open already once more.
    pub(crate) fn new(file: &File, path: &Path) -> Direct {
        Direct { file: platform::reopened(file, path), is_refused: AtomicBool::new(false) }
    }

    /// Reads so many bytes from a place of the file into the beginning of memory that may be longer; how many there were.
    /// What lies behind them in memory may be overwritten.
    pub(crate) fn read(&self, plain: &File, start: u64, len: usize, into: &mut [u8]) -> io::Result<usize> {
        let done = match self.aligned(start, len, into) {
            Some((file, into)) => match read_whole(file, start, len, into) {
                Ok(done) => done,
                Err(error) if is_refusal(&error) => {
                    self.is_refused.store(true, Ordering::Relaxed);
                    0
                }
                Err(error) => return Err(error),
            },
            None => 0,
        };
        if done >= len {
            return Ok(len);
        }
        let rest = start + done as u64;
        let read = read_whole(plain, rest, len - done, &mut into[done..len])?;
        platform::forget(plain, rest, read as u64);
        Ok(done + read)
    }

    /// What a direct read may use; none if it may not be one.
    fn aligned<'a>(&self, start: u64, len: usize, into: &'a mut [u8]) -> Option<(&File, &'a mut [u8])> {
        let file = self.file.as_ref().filter(|_| !self.is_refused.load(Ordering::Relaxed))?;
        let fits =
            start.is_multiple_of(DIRECT_ALIGN as u64) && into.as_ptr().addr().is_multiple_of(DIRECT_ALIGN);
        let into = into.get_mut(..len.checked_next_multiple_of(DIRECT_ALIGN)?)?;
        fits.then_some((file, into))
    }

    /// Whether the next read will be direct if it can.
    #[cfg(test)]
    pub(crate) fn is_direct(&self) -> bool {
        self.file.is_some() && !self.is_refused.load(Ordering::Relaxed)
    }
}

/// Whether an error says that the file system has no direct reads, or none like this one.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported)
}

/// Reads until so many bytes are there, the file ends, or it gives parts of pages; how many are there.
fn read_whole(file: &File, start: u64, len: usize, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < len {
        match platform::read_at(file, &mut into[done..], start + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        if into.len() > len && !done.is_multiple_of(DIRECT_ALIGN) {
            break;
        }
    }
    Ok(done.min(len))
}

#[cfg(unix)]
mod platform {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    pub(super) fn read_at(file: &File, into: &mut [u8], start: u64) -> io::Result<usize> {
        file.read_at(into, start)
    }

    /// By its number and not by its name, which may be another file's by now.
    #[cfg(target_os = "linux")]
    pub(super) fn reopened(file: &File, _path: &Path) -> Option<File> {
        use std::fs::OpenOptions;
        use std::os::unix::fs::OpenOptionsExt;
        let number = format!("/proc/self/fd/{}", file.as_raw_fd());
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(number).ok()
    }

    #[cfg(target_os = "macos")]
    pub(super) fn reopened(file: &File, path: &Path) -> Option<File> {
        use std::os::unix::fs::MetadataExt;
        let again = File::open(path).ok()?;
        let (known, found) = (file.metadata().ok()?, again.metadata().ok()?);
        if (known.dev(), known.ino()) != (found.dev(), found.ino()) {
            return None;
        }
        // SAFETY: it sets a flag of a file that is open; no memory is passed.
        let set = unsafe { libc::fcntl(again.as_raw_fd(), libc::F_NOCACHE, 1) };
        (set != -1).then_some(again)
    }

    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    pub(super) fn reopened(_file: &File, _path: &Path) -> Option<File> {
        None
    }

    /// Asks the system to keep nothing of a range in memory. It need not do so.
    #[cfg(target_os = "linux")]
    pub(super) fn forget(file: &File, start: u64, len: u64) {
        let (Ok(start), Ok(len)) = (libc::off_t::try_from(start), libc::off_t::try_from(len)) else { return };
        // SAFETY: it only gives advice about a file that is open; no memory is passed.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), start, len, libc::POSIX_FADV_DONTNEED) };
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn forget(_file: &File, _start: u64, _len: u64) {}
}

#[cfg(windows)]
mod platform {
    use std::fs::File;
    use std::io;
    use std::os::windows::fs::FileExt;
    use std::path::Path;

    pub(super) fn read_at(file: &File, into: &mut [u8], start: u64) -> io::Result<usize> {
        file.seek_read(into, start)
    }

    /// Files are read through the cache here.
    pub(super) fn reopened(_file: &File, _path: &Path) -> Option<File> {
        None
    }

    pub(super) fn forget(_file: &File, _start: u64, _len: u64) {}
}

#[cfg(test)]
mod tests {
    use testkit::ScratchDir;

    use super::*;

    /// Memory of whole pages that begins at one.
    fn aligned(room: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
        room.resize(bytes.next_multiple_of(DIRECT_ALIGN) + DIRECT_ALIGN, 0);
        let start = room.as_ptr().align_offset(DIRECT_ALIGN);
        &mut room[start..start + bytes.next_multiple_of(DIRECT_ALIGN)]
    }

    #[test]
    fn all_ways_read_the_same() {
        let dir = ScratchDir::new().unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..70_001u32).map(|i| (i * 7 % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        let direct = Direct::new(&file, &path);
        let plain = Direct { file: None, is_refused: AtomicBool::new(false) };
        let mut room = Vec::new();
        // The last place reaches the end of the file, which is no whole page; the one before begins in the middle of one.
        for (start, len) in [(0, 4096), (4096, 9000), (8192, 1), (123, 4567), (65_536, 4465)] {
            for way in [&direct, &plain] {
                let into = aligned(&mut room, len);
                assert_eq!(way.read(&file, start as u64, len, into).unwrap(), len);
                assert_eq!(into[..len], bytes[start..start + len], "{start} {len}");
            }
            // Memory that begins anywhere.
            let mut odd = vec![0; len + 1];
            assert_eq!(direct.read(&file, start as u64, len, &mut odd[1..]).unwrap(), len);
            assert_eq!(odd[1..], bytes[start..start + len]);
        }
        // What a file does not have is told.
        let into = aligned(&mut room, 8192);
        assert_eq!(direct.read(&file, 65_536, 8192, into).unwrap(), 4465);
        assert_eq!(plain.read(&file, 65_536, 8192, into).unwrap(), 4465);
        assert_eq!(direct.read(&file, 131_072, 8192, into).unwrap(), 0);
    }

    /// A file system without direct reads: opening may be refused, or reading.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_system_that_refuses_is_read_in_the_usual_way() {
        // Files of this one have no direct reads, and say so when they are opened or read.
        let (path, mut into) = (Path::new("/proc/self/cmdline"), vec![0; 2 * DIRECT_ALIGN]);
        let file = File::open(path).unwrap();
        let expected = std::fs::read(path).unwrap();
        let direct = Direct::new(&file, path);
        let start = into.as_ptr().align_offset(DIRECT_ALIGN);
        let read = direct.read(&file, 0, DIRECT_ALIGN, &mut into[start..start + DIRECT_ALIGN]).unwrap();
        assert_eq!(into[start..start + read], expected[..read]);
        assert!(read > 0 && !direct.is_direct());
    }
}
