//! One process per database: a locked file beside it, which the system unlocks when the process ends.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::Error;

/// How long a process that was just ended may take to go: one that takes its place starts at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// Locks the database at `path` for this process until the file is closed.
pub(super) fn take(path: &Path) -> Result<File, Error> {
    let name = super::beside(path, ".lock");
    let open = File::options().create(true).truncate(false).write(true).open(&name);
    let file = open.map_err(|source| Error::io(&name, source))?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {
                tracing::warn!(
                    "{}: this file system has no locks; see that only one process uses it",
                    name.display()
                );
                return Ok(file);
            }
            Err(TryLockError::Error(source)) => return Err(Error::io(&name, source)),
        }
    }
}
