//! Where a picture goes: a file that is there only when it is whole, or a pipe.

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
                disk::write(path, png).with_context(|| format!("{} cannot be written", path.display()))
            }
            Target::Pipe => Ok(io::stdout().lock().write_all(png)?),
        }
    }
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
