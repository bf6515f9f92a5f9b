//! Folders that the server writes to, the database among them.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use meta::ByteSize;
use serde_json::json;

use super::Place;
use super::check::Check;
use crate::{environment, host};

/// Less than this is soon full of pictures.
const LITTLE_SPACE: u64 = 2 << 30;
/// How a SQLite file begins.
const SQLITE: &[u8] = b"SQLite format 3\0";
/// Where in it a program puts its mark, and ours.
const MARK: (usize, &[u8]) = (68, b"GANT");

pub(super) fn checks(place: &Place) -> Vec<Check> {
    let folders = &place.folders;
    vec![
        writing("output_folder", "Pictures are saved in", &folders.output, "--output-directory"),
        writing("user_folder", "Settings and workflows are kept in", &folders.user, "--user-directory"),
        writing("temp_folder", "Previews go to", &folders.temp, "--temp-directory"),
        database(&place.database),
        kernel_cache(),
    ]
}

/// What came of the question whether a folder can be written to.
pub(super) enum Writing {
    Works,
    /// The folder is not there yet, and can be made.
    WillBeMade,
    Fails(String),
}

/// Writes one small file and deletes it; where the folder is not there yet, asks whether it may be made.
pub(super) fn try_writing(folder: &Path) -> Writing {
    if folder.exists() {
        return match Scratch::new(folder).and_then(|mut scratch| scratch.file.write_all(b"x")) {
            Ok(()) => Writing::Works,
            Err(_) if !folder.is_dir() => Writing::Fails("it is a file, not a folder".to_owned()),
            Err(error) => Writing::Fails(error.to_string()),
        };
    }
    let above = existing_above(folder);
    if !above.is_dir() {
        return Writing::Fails(format!("{} is a file, not a folder", above.display()));
    }
    match host::refuses_writing(&above) {
        None => Writing::WillBeMade,
        Some(why) => {
            Writing::Fails(format!("it is not there, and cannot be made in {}: {why}", above.display()))
        }
    }
}

/// The nearest folder above a path that exists.
pub(super) fn existing_above(path: &Path) -> PathBuf {
    path.ancestors().find(|above| above.exists()).unwrap_or(Path::new("/")).to_owned()
}

/// A file that is deleted when this value goes away.
pub(super) struct Scratch {
    pub(super) path: PathBuf,
    pub(super) file: File,
}

impl Scratch {
    pub(super) fn new(folder: &Path) -> std::io::Result<Scratch> {
        let path = folder.join(format!(".gantry-doctor-{}", std::process::id()));
        let file = File::options().create_new(true).read(true).write(true).open(&path)?;
        Ok(Scratch { path, file })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that lets files be made but not deleted is rare, and there is nothing more to do.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn writing(name: &'static str, what: &str, folder: &Path, flag: &str) -> Check {
    let free = host::free_space(&existing_above(folder));
    let shown = folder.display();
    let (writable, exists) = (try_writing(folder), folder.is_dir());
    let facts = json!({
        "path": folder,
        "exists": exists,
        "writable": !matches!(writable, Writing::Fails(_)),
        "free_bytes": free,
    });
    let space = free.map_or(String::new(), |free| format!("; {} are free", ByteSize(free)));
    let check = match writable {
        Writing::Fails(why) => Check::broken(
            name,
            format!("{what} {shown}, but nothing can be written there: {why}."),
            format!("Give this user the right to write there, or name another folder with {flag}."),
        ),
        _ if free.is_some_and(|free| free < LITTLE_SPACE) => Check::attention(
            name,
            format!("{what} {shown}, and the disk is nearly full{space}."),
            format!("Make room, or name a folder on another disk with {flag}."),
        ),
        Writing::WillBeMade => Check::works(name, format!("{what} {shown}, which will be made{space}.")),
        Writing::Works => Check::works(name, format!("{what} {shown}{space}.")),
    };
    check.with_facts(facts)
}

/// The state of the file that the queue and the history are in.
enum Database {
    Absent,
    Ours,
    /// A server has it open.
    InUse,
    Damaged,
    Foreign,
    Unreadable(String),
}

fn database(path: &Path) -> Check {
    let (shown, state) = (path.display(), database_state(path));
    let word = match &state {
        Database::Absent => "absent",
        Database::Ours => "ours",
        Database::InUse => "in use",
        Database::Damaged => "damaged",
        Database::Foreign => "foreign",
        Database::Unreadable(_) => "unreadable",
    };
    let check = match state {
        Database::Absent => {
            Check::works("database", format!("{shown} will be made for the queue and the history."))
        }
        Database::Ours => {
            Check::works("database", format!("{shown} has the queue and the history, and can be opened."))
        }
        Database::InUse => Check::works("database", format!("{shown} is in use by a server that runs.")),
        Database::Damaged => Check::attention(
            "database",
            format!("{shown} is no database or a damaged one."),
            "`gantry serve` sets it aside under another name and begins a new one; what was in its history is lost.",
        ),
        Database::Foreign => Check::broken(
            "database",
            format!("{shown} is the database of another program."),
            "Name another file with --database.",
        ),
        Database::Unreadable(why) => Check::broken(
            "database",
            format!("{shown} cannot be opened: {why}."),
            "Give this user the right to read and write it, or name another file with --database.",
        ),
    };
    check.with_facts(json!({ "path": path, "state": word }))
}

fn database_state(path: &Path) -> Database {
    if !path.exists() {
        return match path.parent().map(try_writing) {
            Some(Writing::Fails(why)) => Database::Unreadable(why),
            _ => Database::Absent,
        };
    }
    let opened = File::options().read(true).write(true).open(path);
    let mut start = Vec::new();
    let read = opened.and_then(|file| file.take(128).read_to_end(&mut start));
    if let Err(error) = read {
        return Database::Unreadable(error.to_string());
    }
    if start.is_empty() {
        return Database::Absent;
    }
    if !start.starts_with(SQLITE) || start.len() < 100 {
        return Database::Damaged;
    }
    let (at, mark) = MARK;
    match start.get(at..at + mark.len()) {
        Some(found) if found == mark || found == [0; 4] => {}
        _ => return Database::Foreign,
    }
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    let held = File::open(PathBuf::from(lock))
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock)));
    if held { Database::InUse } else { Database::Ours }
}

fn kernel_cache() -> Check {
    const NAME: &str = "kernel_cache";
    const FLAG: &str = "Set GANTRY_CACHE_DIR to a folder that this user can write to.";
    let Some(folder) = environment::kernel_cache_dir() else {
        return Check::attention(
            NAME,
            "There is no home folder, so kernels for GPUs are compiled again at every start.",
            FLAG,
        );
    };
    let facts = |writable: bool| json!({ "path": folder, "writable": writable });
    match try_writing(&folder) {
        Writing::Fails(why) => {
            let says = format!(
                "Kernels for GPUs cannot be kept in {}: {why}. They are compiled again at every start.",
                folder.display()
            );
            Check::attention(NAME, says, FLAG).with_facts(facts(false))
        }
        _ => Check::works(NAME, format!("Kernels for GPUs are kept in {}.", folder.display()))
            .with_facts(facts(true)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Status;
    use super::*;

    #[test]
    fn databases_are_told_apart() {
        let dir = testkit::ScratchDir::new().unwrap();
        let path = dir.path().join("gantry.db");
        let state = || database(&path).facts["state"].clone();
        assert_eq!(state(), "absent");
        let below_a_file = dir.path().join("file").join("gantry.db");
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(database(&below_a_file).facts["state"], "unreadable");
        std::fs::write(&path, "no database").unwrap();
        assert_eq!((state(), database(&path).status), (json!("damaged"), Status::Attention));
        let mut bytes = vec![0; 100];
        bytes[..SQLITE.len()].copy_from_slice(SQLITE);
        bytes[MARK.0..MARK.0 + 4].copy_from_slice(b"else");
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!((state(), database(&path).status), (json!("foreign"), Status::DoesNotWork));
        bytes[MARK.0..MARK.0 + 4].copy_from_slice(MARK.1);
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(state(), "ours");
        let lock = File::create(dir.path().join("gantry.db.lock")).unwrap();
        lock.lock().unwrap();
        assert_eq!(state(), "in use");
    }

    #[test]
    fn nothing_is_left_behind() {
        let dir = testkit::ScratchDir::new().unwrap();
        assert!(matches!(try_writing(dir.path()), Writing::Works));
        let later = dir.path().join("a").join("b");
        assert!(matches!(try_writing(&later), Writing::WillBeMade));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        std::fs::write(dir.path().join("a"), "").unwrap();
        assert!(matches!(try_writing(&later), Writing::Fails(_)));
        assert!(matches!(try_writing(&dir.path().join("a")), Writing::Fails(_)));
    }
}
