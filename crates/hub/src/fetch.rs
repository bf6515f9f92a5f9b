//! Bringing a file: several pieces at a time, each asked for again where it breaks off.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use disk::Unfinished;
use sha2::{Digest, Sha256};

use crate::notes::Notes;
use crate::patience::Patience;
use crate::remote::Remote;
use crate::{Address, Error, Hub, Result};

/// Pieces that are under way at a time.
const CONNECTIONS: usize = 4;
/// Bytes that are read at a time.
const BUFFER: usize = 256 << 10;

/// Bytes whose sum is taken at a time.
const SUM_BUFFER: usize = 4 << 20;

/// Who watches a file come.
pub trait Watch: Sync {
    /// So many bytes of the file are there.
    fn at(&self, bytes: u64);

    /// Whether it is still wanted.
    fn is_wanted(&self) -> bool;

    /// Bytes that the disk of a folder still takes, if that is known.
    fn free_space(&self, folder: &Path) -> Option<u64>;
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// It came.
    New,
    /// It was there already, with the right size.
    There,
}

/// A file on its way.
struct Transfer<'a> {
    hub: &'a Hub,
    address: &'a Address,
    remote: &'a Remote,
    part: &'a Unfinished,
    watch: &'a dyn Watch,
    notes: Mutex<Notes>,
    there: AtomicU64,
    /// Where the bytes are now.
    location: Mutex<String>,
}

impl Hub {
    /// Brings a file to a path, unless one of its size is there. What came before it broke off is used.
    ///
    /// # Errors
    /// It is not there, refused, too large for the disk, broken off too often, or not what was promised. Nothing is under
    /// the file's name then.
    pub fn fetch(
        &self,
        address: &Address,
        remote: &Remote,
        path: &Path,
        watch: &dyn Watch,
    ) -> Result<Fetched> {
        if let (Some(bytes), Ok(there)) = (remote.bytes, std::fs::metadata(path))
            && there.len() == bytes
        {
            watch.at(bytes);
            return Ok(Fetched::There);
        }
        let disk = |source| Error::Disk { path: path.to_owned(), source };
        let part = Unfinished::of(path).map_err(disk)?;
        match remote.bytes.filter(|_| remote.has_ranges) {
            Some(bytes) => self.in_pieces(address, remote, &part, (bytes, watch))?,
            None => self.in_one(address, remote, &part, watch)?,
        }
        if let Some(expected) = &remote.sha256 {
            let got = sum(&part, watch).map_err(disk)?.ok_or_else(|| stopped(remote))?;
            if got != *expected {
                part.discard().map_err(disk)?;
                return Err(Error::WrongSum { what: remote.what.clone(), expected: expected.clone(), got });
            }
        }
        part.finish().map_err(disk)?;
        Ok(Fetched::New)
    }

    fn in_pieces(
        &self,
        address: &Address,
        remote: &Remote,
        part: &Unfinished,
        (bytes, watch): (u64, &dyn Watch),
    ) -> Result<()> {
        let notes = Notes::new(bytes, self.piece_bytes, remote.tag.as_deref().unwrap_or_default());
        let notes = Notes::read(&part.notes(), notes);
        let missing = notes.missing();
        let wanted: u64 =
            missing.iter().map(|piece| notes.bounds(*piece)).map(|(first, end)| end - first).sum();
        self.check_room(part, wanted, watch)?;
        // What is there of another file must not stand behind the end of this one.
        let disk = |source| Error::Disk { path: part.notes(), source };
        part.open().and_then(|file| file.set_len(bytes)).map_err(disk)?;
        let transfer = Transfer {
            hub: self,
            address,
            remote,
            part,
            watch,
            notes: Mutex::new(notes),
            there: AtomicU64::new(bytes - wanted),
            location: Mutex::new(remote.location.clone()),
        };
        watch.at(bytes - wanted);
        let queue = Mutex::new(missing.into_iter());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some(piece) = next() {
                transfer.piece(piece).inspect_err(|_| {
                    // The others end with their pieces.
                    *queue.lock().unwrap_or_else(PoisonError::into_inner) = Vec::new().into_iter();
                })?;
            }
            Ok(())
        };
        let results: Vec<Result<()>> = thread::scope(|scope| {
            let workers: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(work)).collect();
            let ended = |worker: thread::ScopedJoinHandle<'_, _>| {
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            workers.into_iter().map(ended).collect()
        });
        transfer.keep_notes()?;
        results.into_iter().collect()
    }

    /// A file whose server knows no ranges: from its first byte to the last, in one go.
    fn in_one(&self, address: &Address, remote: &Remote, part: &Unfinished, watch: &dyn Watch) -> Result<()> {
        let disk = |source| Error::Disk { path: part.notes(), source };
        self.check_room(part, remote.bytes.unwrap_or(0), watch)?;
        let answer = self.request(&remote.what, &remote.location, None, address.is_on_hub())?;
        if answer.response.status().as_u16() != 200 {
            return Err(Error::of_answer(&remote.what, &answer.response));
        }
        let mut file = part.open().map_err(disk)?;
        file.set_len(0).map_err(disk)?;
        let (mut reader, mut buffer, mut there) =
            (answer.response.into_body().into_reader(), vec![0; BUFFER], 0);
        loop {
            if !watch.is_wanted() {
                return Err(stopped(remote));
            }
            let count = reader.read(&mut buffer).map_err(|error| broken(remote, error))?;
            if count == 0 {
                break;
            }
            file.write_all(&buffer[..count]).map_err(disk)?;
            there += count as u64;
            watch.at(there);
        }
        match remote.bytes.filter(|bytes| *bytes != there) {
            Some(_) => Err(broken(remote, io::ErrorKind::UnexpectedEof.into())),
            None => Ok(()),
        }
    }

    fn check_room(&self, part: &Unfinished, wanted: u64, watch: &dyn Watch) -> Result<()> {
        let notes = part.notes();
        let folder = notes.parent().unwrap_or(Path::new("."));
        match watch.free_space(folder).filter(|free| *free < wanted) {
            Some(free) => Err(Error::NoRoom { path: folder.to_owned(), wanted, free }),
            None => Ok(()),
        }
    }
}

impl Transfer<'_> {
    /// Brings one piece, however often its connection breaks, as long as bytes come.
    fn piece(&self, piece: usize) -> Result<()> {
        let (mut at, end) = self.notes.lock().unwrap_or_else(PoisonError::into_inner).bounds(piece);
        let disk = |source| Error::Disk { path: self.part.notes(), source };
        let mut file = self.part.open().map_err(disk)?;
        let mut patience = Patience::new();
        while at < end {
            if !self.watch.is_wanted() {
                return Err(stopped(self.remote));
            }
            let before = at;
            let Err(error) = self.range(&mut at, end, &mut file) else { continue };
            // A connection that brought something is made again at once.
            if at > before && error.may_pass() {
                patience = Patience::new();
                continue;
            }
            patience.wait_after(error, || self.watch.is_wanted())?;
        }
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).mark(piece);
        self.keep_notes()
    }

    /// Asks for bytes from `at` on, and writes what comes.
    fn range(&self, at: &mut u64, end: u64, file: &mut File) -> Result<()> {
        let disk = |source| Error::Disk { path: self.part.notes(), source };
        let location = self.location.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let answer =
            self.hub.request(&self.remote.what, &location, Some((*at, end - 1)), self.address.is_on_hub())?;
        match answer.response.status().as_u16() {
            206 => {}
            // Signed addresses end after a while; the file's own gives a new one.
            401 | 403 if location != self.address.url(&self.hub.endpoint) => return self.locate_again(),
            _ => return Err(Error::of_answer(&self.remote.what, &answer.response)),
        }
        file.seek(SeekFrom::Start(*at)).map_err(disk)?;
        let (mut reader, mut buffer) = (answer.response.into_body().into_reader(), vec![0; BUFFER]);
        while *at < end {
            if !self.watch.is_wanted() {
                return Err(stopped(self.remote));
            }
            let most = usize::try_from(end - *at).unwrap_or(BUFFER).min(BUFFER);
            let count = reader.read(&mut buffer[..most]).map_err(|error| broken(self.remote, error))?;
            if count == 0 {
                return Err(broken(self.remote, io::ErrorKind::UnexpectedEof.into()));
            }
            file.write_all(&buffer[..count]).map_err(disk)?;
            *at += count as u64;
            self.watch.at(self.there.fetch_add(count as u64, Ordering::Relaxed) + count as u64);
        }
        Ok(())
    }

    /// Finds out where the bytes are now. A file that is another one meanwhile is not the one that was begun.
    fn locate_again(&self) -> Result<()> {
        let now = self.hub.look(self.address)?;
        if now.tag != self.remote.tag || now.bytes != self.remote.bytes {
            return Err(Error::Status { what: self.remote.what.clone(), status: 412, wait: None });
        }
        *self.location.lock().unwrap_or_else(PoisonError::into_inner) = now.location;
        Ok(())
    }

    fn keep_notes(&self) -> Result<()> {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.part.notes();
        disk::write(&path, notes.to_text().as_bytes()).map_err(|source| Error::Disk { path, source })
    }
}

/// The SHA-256 of what there is, in hexadecimal; nothing if it is not wanted any more.
fn sum(part: &Unfinished, watch: &dyn Watch) -> io::Result<Option<String>> {
    let (mut file, mut buffer, mut hash) = (part.open()?, vec![0; SUM_BUFFER], Sha256::new());
    loop {
        if !watch.is_wanted() {
            return Ok(None);
        }
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(Some(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()));
        }
        hash.update(&buffer[..count]);
    }
}

fn stopped(remote: &Remote) -> Error {
    Error::Stopped { what: remote.what.clone() }
}

fn broken(remote: &Remote, error: io::Error) -> Error {
    Error::Connection { what: remote.what.clone(), source: Box::new(ureq::Error::Io(error)) }
}
