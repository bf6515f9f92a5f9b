//! Where a picture goes: a file that is there only when it is whole, or a pipe.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use nodes::picture::{self, PreviewFormat};

use crate::host;

/// How good a JPEG is, of 100: no difference is seen, at a tenth of the PNG's size.
const JPEG_QUALITY: u8 = 92;

/// Where the picture goes.
pub(crate) enum Target {
    File(PathBuf, Kind),
    Pipe,
}

/// What kind of picture file it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It carries its workflow.
    Png,
    /// It is small.
    Jpeg,
}

impl Kind {
    /// The kind that a file's name says; a name without an ending is a PNG's.
    fn of(path: &Path) -> Result<Kind> {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        match ending.as_deref() {
            None | Some("png") => Ok(Kind::Png),
            Some("jpg" | "jpeg") => Ok(Kind::Jpeg),
            Some(other) => bail!(
                "-o {}: pictures are written as PNG or JPEG, not as {other}; let the name end with .png or .jpg",
                path.display()
            ),
        }
    }
}

impl Target {
    /// A file, or a pipe if there is no name; a terminal is not a place for a picture.
    pub(crate) fn new(file: Option<&Path>) -> Result<Target> {
        match file {
            Some(path) => {
                let kind = Kind::of(path)?;
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
                Ok(Target::File(path.to_owned(), kind))
            }
            None if io::stdout().is_terminal() => bail!("say where the picture goes: -o FILE, or a pipe"),
            None => Ok(Target::Pipe),
        }
    }

    /// Writes the picture's file.
    pub(crate) fn write(&self, png: &[u8]) -> Result<()> {
        match self {
            Target::File(path, kind) => {
                let jpeg = || picture::preview(png, PreviewFormat::Jpeg(JPEG_QUALITY), true);
                let bytes = match kind {
                    Kind::Png => Cow::Borrowed(png),
                    Kind::Jpeg => Cow::Owned(jpeg().with_context(|| format!("{}", path.display()))?),
                };
                disk::write(path, &bytes).with_context(|| format!("{} cannot be written", path.display()))
            }
            Target::Pipe => Ok(io::stdout().lock().write_all(png)?),
        }
    }
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_says_the_kind() {
        for (name, kind) in
            [("a.png", Kind::Png), ("a", Kind::Png), ("a.JPG", Kind::Jpeg), ("b.jpeg", Kind::Jpeg)]
        {
            assert_eq!(Kind::of(Path::new(name)).unwrap(), kind, "{name}");
        }
        let error = Kind::of(Path::new("a.gif")).unwrap_err().to_string();
        assert_eq!(
            error,
            "-o a.gif: pictures are written as PNG or JPEG, not as gif; let the name end with .png or .jpg"
        );
    }
}
