//! Where a picture goes: a file that is there only when it is whole, or a pipe.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::host;

/// Where the picture goes.
pub(crate) enum Target {
    File(PathBuf),
    Pipe,
}

impl Target {
    /// A file, or a pipe if there is no name; a terminal is not a place for a picture.
    pub(crate) fn new(file: Option<&Path>) -> Result<Target> {
        match file {
            Some(path) => {
                // Nobody should wait for a picture that has no place to go.
                let folder = folder_of(path);
                ensure!(
                    folder.is_dir(),
                    "-o {}: there is no folder {}; make it, or name another file",
                    path.display(),
                    folder.display()
                );
                ensure!(!path.is_dir(), "-o {}: this is a folder; name a file in it", path.display());
                let refused = host::refuses_writing(folder).filter(|_| !path.exists());
                if let Some(why) = refused {
                    bail!(
                        "-o {}: nothing can be written in {}: {why}; name a file in another folder",
                        path.display(),
                        folder.display()
                    );
                }
                Ok(Target::File(path.to_owned()))
            }
            None if io::stdout().is_terminal() => bail!("say where the picture goes: -o FILE, or a pipe"),
            None => Ok(Target::Pipe),
        }
    }

    /// Writes the picture's file.
    pub(crate) fn write(&self, png: &[u8]) -> Result<()> {
        match self {
            Target::File(path) => {
                write_whole(path, png).with_context(|| format!("{} cannot be written", path.display()))
            }
            Target::Pipe => Ok(io::stdout().lock().write_all(png)?),
        }
    }
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a file that appears under its name only when it is whole: beside it first, then by a change of name.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let known = fs::metadata(path).ok();
    if known.as_ref().is_some_and(|about| !about.is_file()) {
        // A pipe or a device is written to, and never replaced.
        return fs::write(path, bytes);
    }
    // A link stays, and the file that it leads to is replaced.
    let path = if known.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
    match replace(&path, bytes, known.as_ref()) {
        // Its folder takes no new files: what is there can only be overwritten.
        Err(error) if known.is_some() && error.kind() == io::ErrorKind::PermissionDenied => {
            fs::write(&path, bytes)
        }
        done => done,
    }
}

/// Writes a file beside another and gives it that one's name and rights.
fn replace(path: &Path, bytes: &[u8], known: Option<&fs::Metadata>) -> io::Result<()> {
    let (beside, file) = create_beside(path)?;
    let renamed = fill(file, bytes, known).and_then(|()| fs::rename(&beside, path));
    renamed.inspect_err(|_| {
        // What is not whole is nobody's; if it cannot be removed either, the first error tells more.
        let _ = fs::remove_file(&beside);
    })
}

/// Makes a new, empty file beside another.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let mut number = 0;
    loop {
        let beside = folder_of(path).join(format!(".gantry-{}-{number}.part", std::process::id()));
        match File::create_new(&beside) {
            Ok(file) => return Ok((beside, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 100 => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Writes all bytes to the disk, with the rights of the file that this one replaces.
fn fill(mut file: File, bytes: &[u8], replaced: Option<&fs::Metadata>) -> io::Result<()> {
    file.write_all(bytes)?;
    if let Some(replaced) = replaced {
        file.set_permissions(replaced.permissions())?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use testkit::ScratchDir;

    use super::*;

    /// The names in a folder, sorted.
    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let dir = ScratchDir::new().unwrap();
        let path = dir.path().join("x.png");
        write_whole(&path, b"first").unwrap();
        write_whole(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(names(dir.path()), ["x.png"]);
    }

    #[test]
    fn what_fails_leaves_what_was_there() {
        let dir = ScratchDir::new().unwrap();
        // A folder cannot be replaced by a file, so the last step fails.
        let path = dir.path().join("x.png");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"new", None).is_err());
        assert_eq!(names(dir.path()), ["x.png"]);
        assert!(write_whole(&dir.path().join("none/x.png"), b"new").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_and_devices_are_written_to() {
        use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
        let dir = ScratchDir::new().unwrap();
        let (real, link) = (dir.path().join("real.png"), dir.path().join("link.png"));
        fs::write(&real, b"old").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("real.png", &link).unwrap();
        write_whole(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"new");
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
        write_whole(Path::new("/dev/null"), b"new").unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }
}
