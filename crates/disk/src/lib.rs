//! Files that appear under their names only when they are whole.
//!
//! Bytes go into a [`Draft`], a hidden file in the folder where they belong, which then gets its name in one step. A
//! disk that is full, a program that is killed and a client that hangs up leave nothing under a name that somebody
//! could take for a result. A draft that is given up removes itself; one of a program that was killed is told by
//! [`is_draft`] and goes with [`remove_stale`].
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::NamedTempFile;

/// How the names of drafts begin. The dot hides them in listings.
const PREFIX: &str = ".gantry-";
/// How they end: in nothing that is taken for a picture or a model.
const SUFFIX: &str = ".part";

/// A draft that nobody has written to for this long belongs to a program that is gone.
const STALE_AFTER: Duration = Duration::from_secs(60 * 60);

/// Writes a file, in the place of whatever has its name, and waits until it is on the disk. A link is followed. What is
/// no file, such as a pipe or a device, is written to directly.
///
/// # Errors
/// Nothing has changed, if it is a file.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Ok(there) = fs::metadata(path) {
        // A file that may not be written must not be replaced either.
        let mut opened = OpenOptions::new().write(true).open(path)?;
        if !there.is_file() {
            return opened.write_all(bytes);
        }
    }
    let draft = Draft::of(folder_of(path), bytes)?;
    draft.sync()?;
    draft.replace(path)
}

/// A file that has no name yet. Dropping it removes it.
#[derive(Debug)]
pub struct Draft {
    file: NamedTempFile,
}

/// What became of a draft that was to get a name.
#[derive(Debug)]
pub enum Kept {
    /// It has the name.
    New,
    /// Something else has it.
    Taken(Draft),
}

impl Draft {
    /// An empty draft in a folder that exists.
    ///
    /// # Errors
    /// Nothing can be written there.
    pub fn new(folder: &Path) -> io::Result<Draft> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX).suffix(SUFFIX);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As any new file: the process's mask takes away what others may not do.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        Ok(Draft { file: builder.tempfile_in(folder)? })
    }

    /// A draft with these bytes, in a folder that exists.
    ///
    /// # Errors
    /// They cannot be written there; then nothing of them is left.
    pub fn of(folder: &Path, bytes: &[u8]) -> io::Result<Draft> {
        let mut draft = Draft::new(folder)?;
        draft.write_all(bytes)?;
        Ok(draft)
    }

    /// An empty draft in the folder of a file.
    ///
    /// # Errors
    /// Nothing can be written there.
    pub fn beside(path: &Path) -> io::Result<Draft> {
        Draft::new(folder_of(path))
    }

    /// Where it lies for now.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Waits until the bytes are on the disk, so that after a loss of power no name stands for half a file. Some disks
    /// say only now that they are full.
    ///
    /// # Errors
    /// They are not.
    pub fn sync(&self) -> io::Result<()> {
        self.file().sync_all()
    }

    /// Gives it its name, in the place of whatever has it, and with its rights.
    ///
    /// # Errors
    /// What has the name still has it.
    pub fn replace(self, path: &Path) -> io::Result<()> {
        if let Ok(there) = fs::symlink_metadata(path)
            && there.is_file()
        {
            // Whoever narrowed the rights of a file wants them on the next one, too. A disk without rights refuses.
            let _ = self.file().set_permissions(there.permissions());
        }
        match self.file.persist(path) {
            Err(failed) if failed.error.kind() == ErrorKind::CrossesDevices => {
                Draft { file: failed.file }.copied_beside(path)?.replace(path)
            }
            named => named.map(drop).map_err(|failed| failed.error),
        }
    }

    /// Gives it its name unless something has it.
    ///
    /// # Errors
    /// It can have no name there.
    pub fn keep(self, path: &Path) -> io::Result<Kept> {
        let failed = match self.file.persist_noclobber(path) {
            Ok(_) => return Ok(Kept::New),
            Err(failed) => failed,
        };
        let draft = Draft { file: failed.file };
        match failed.error.kind() {
            ErrorKind::AlreadyExists => Ok(Kept::Taken(draft)),
            ErrorKind::CrossesDevices => draft.copied_beside(path)?.keep(path),
            // Some network disks can only replace: there, two programs may still take one name at one moment.
            ErrorKind::Unsupported | ErrorKind::PermissionDenied | ErrorKind::InvalidInput => {
                if fs::symlink_metadata(path).is_ok() {
                    return Ok(Kept::Taken(draft));
                }
                draft.replace(path).map(|()| Kept::New)
            }
            _ => Err(failed.error),
        }
    }

    /// A name can only be given within one file system; for another the bytes are copied there first.
    fn copied_beside(&self, path: &Path) -> io::Result<Draft> {
        let mut copy = Draft::beside(path)?;
        io::copy(&mut File::open(self.path())?, &mut copy)?;
        copy.sync()?;
        Ok(copy)
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A file that is written over several runs of a program, in any order, and gets its name at the end. What there is of it
/// waits under a hidden name that is always the same for the same file.
#[derive(Debug)]
pub struct Unfinished {
    part: PathBuf,
    path: PathBuf,
}

impl Unfinished {
    /// What there is of a file, or an empty beginning of it. Its folder is made.
    ///
    /// # Errors
    /// Nothing can be written there.
    pub fn of(path: &Path) -> io::Result<Unfinished> {
        fs::create_dir_all(folder_of(path))?;
        let name = path.file_name().unwrap_or(OsStr::new("file")).to_string_lossy();
        let part = folder_of(path).join(format!("{PREFIX}{name}{SUFFIX}"));
        let unfinished = Unfinished { part, path: path.to_owned() };
        unfinished.open()?;
        Ok(unfinished)
    }

    /// The bytes, to read and to write at any place. Each call has a place of its own in them.
    ///
    /// # Errors
    /// The system does not open them.
    pub fn open(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.part)
    }

    /// Where notes about what is there already can be kept, with [`write()`]. They go when the file gets its name.
    #[must_use]
    pub fn notes(&self) -> PathBuf {
        let name = self.part.file_name().unwrap_or_default().to_string_lossy();
        self.part.with_file_name(format!("{}.notes{SUFFIX}", name.trim_end_matches(SUFFIX)))
    }

    /// Gives the file its name, in the place of whatever has it, once its bytes are on the disk.
    ///
    /// # Errors
    /// What has the name still has it.
    pub fn finish(self) -> io::Result<()> {
        self.open()?.sync_all()?;
        fs::rename(&self.part, &self.path)?;
        forget(&self.notes())
    }

    /// Forgets what there is.
    ///
    /// # Errors
    /// It is still there.
    pub fn discard(self) -> io::Result<()> {
        forget(&self.notes())?;
        forget(&self.part)
    }
}

/// Removes a file that may be gone already.
fn forget(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether a name is that of a draft: no listing shows it, and no request may name it.
#[must_use]
pub fn is_draft(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(PREFIX.as_bytes()) && name.ends_with(SUFFIX.as_bytes())
}

/// Removes the drafts in a folder that a program which was killed left behind.
pub fn remove_stale(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_draft(&entry.file_name())) {
        let changed = entry.metadata().and_then(|data| data.modified());
        let age = changed.ok().and_then(|changed| changed.elapsed().ok());
        if age.is_some_and(|age| age > STALE_AFTER) {
            // One that cannot be removed is hidden all the same.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use testkit::ScratchDir;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let dir = ScratchDir::new().unwrap();
        let path = dir.path().join("a.txt");
        write(&path, b"one").unwrap();
        let mut draft = Draft::beside(&path).unwrap();
        draft.write_all(b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one", "what is written is not there yet");
        assert!(names(dir.path()).iter().any(|name| is_draft(OsStr::new(name))));
        draft.replace(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        let mut given_up = Draft::beside(&path).unwrap();
        given_up.write_all(b"half").unwrap();
        drop(given_up);
        assert_eq!(names(dir.path()), ["a.txt"]);
        assert!(write(&dir.path().join("no such folder/a.txt"), b"x").is_err());
        assert!(write(dir.path(), b"x").is_err(), "a folder is not replaced");
        assert_eq!(names(dir.path()), ["a.txt"]);
    }

    #[test]
    fn a_name_that_is_taken_is_not_taken_again() {
        let dir = ScratchDir::new().unwrap();
        let path = dir.path().join("a.txt");
        let draft = |bytes: &[u8]| {
            let mut draft = Draft::beside(&path).unwrap();
            draft.write_all(bytes).unwrap();
            draft
        };
        assert!(matches!(draft(b"first").keep(&path).unwrap(), Kept::New));
        let Kept::Taken(second) = draft(b"second").keep(&path).unwrap() else { panic!("the name is taken") };
        assert!(matches!(second.keep(&dir.path().join("b.txt")).unwrap(), Kept::New));
        assert_eq!(names(dir.path()), ["a.txt", "b.txt"]);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read(dir.path().join("b.txt")).unwrap(), b"second");
    }

    #[cfg(unix)]
    #[test]
    fn rights_links_and_devices_stay_what_they_are() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = ScratchDir::new().unwrap();
        let path = dir.path().join("a.txt");
        fs::write(&path, "old").unwrap();
        let fresh = fs::metadata(&path).unwrap().permissions().mode();
        write(&dir.path().join("b.txt"), b"x").unwrap();
        assert_eq!(fs::metadata(dir.path().join("b.txt")).unwrap().permissions().mode(), fresh);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        write(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        write(Path::new("/dev/null"), b"x").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert_eq!(names(dir.path()), ["a.txt", "b.txt", "link"]);
    }

    #[test]
    fn only_old_drafts_go() {
        let dir = ScratchDir::new().unwrap();
        let [old, new] = [".gantry-old.part", ".gantry-new.part"].map(|name| dir.path().join(name));
        for path in [&old, &new, &dir.path().join("a.part")] {
            fs::write(path, "x").unwrap();
        }
        let long_ago = SystemTime::now() - 2 * STALE_AFTER;
        for path in [&old, &dir.path().join("a.part")] {
            File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
        remove_stale(dir.path());
        assert_eq!(names(dir.path()), [".gantry-new.part", "a.part"]);
    }
}
