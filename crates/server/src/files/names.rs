//! Names that come from requests, and where they may lead.
//!
//! A name is read as text before the disk is asked: `..` is taken back, and what would leave its folder is
//! refused. Links on the disk are the owner's: they are followed for reading, as ComfyUI does, while writing
//! goes only where the folder really is ([`place_to_write`]).

use std::io;
use std::path::{Component, Path, PathBuf};

use percent_encoding::percent_decode_str;

use super::reply::{Answer, Refusal};

/// The longest name with its sub-folders, in bytes.
const MAX_NAME_BYTES: usize = 1024;

/// Folders within each other that a name may lead through. Every one of them is looked at on the disk.
pub(crate) const MAX_PARTS: usize = 32;

/// The longest name of one file or folder, in bytes: what common file systems take.
const MAX_PART_BYTES: usize = 255;

/// Names that are devices on Windows, whatever follows the first dot.
const WINDOWS_DEVICES: &[&str] = &["con", "prn", "aux", "nul", "conin$", "conout$", "clock$"];

/// Why a name is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameFault {
    /// No file may have this name, on one system or another.
    Unusable,
    /// It leads out of its folder.
    Escapes,
}

/// The path below a folder that a name of a request stands for; empty for the folder itself.
pub(crate) fn relative(name: &str) -> Result<PathBuf, NameFault> {
    if name.len() > MAX_NAME_BYTES || name.contains('\\') || name.chars().any(char::is_control) {
        return Err(NameFault::Unusable);
    }
    if name.starts_with('/') {
        return Err(NameFault::Escapes);
    }
    let mut path = PathBuf::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if !path.pop() {
                    return Err(NameFault::Escapes);
                }
            }
            part if is_usable(part) => path.push(part),
            _ => return Err(NameFault::Unusable),
        }
    }
    if path.components().count() > MAX_PARTS {
        return Err(NameFault::Unusable);
    }
    Ok(path)
}

/// Decodes a path segment once more if it still holds a `%`: clients encode names that the transport
/// encodes again.
pub(crate) fn decoded_again(segment: &str) -> Result<String, NameFault> {
    let decoded = percent_decode_str(segment).decode_utf8().map_err(|_| NameFault::Unusable)?;
    Ok(decoded.into_owned())
}

/// A relative path with `/` between its parts, as clients write it.
pub(crate) fn wire_path(path: &Path) -> String {
    let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    parts.join("/")
}

fn is_usable(part: &str) -> bool {
    // Windows reads `.. ` and `...` as `..`.
    let is_only_dots = part.trim_matches([' ', '.']).is_empty();
    let is_one_part = matches!(
        Path::new(part).components().collect::<Vec<_>>().as_slice(),
        [Component::Normal(only)] if *only == part
    );
    let is_refused_by_windows = cfg!(windows) && part.contains(['<', '>', ':', '"', '|', '?', '*']);
    part.len() <= MAX_PART_BYTES
        && is_one_part
        && !is_only_dots
        && !is_refused_by_windows
        && !is_windows_device(part)
        && !disk::is_draft(part.as_ref())
}

fn is_windows_device(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or(part).trim_end().to_lowercase();
    let numbered = |prefix: &str| {
        let mut rest = stem.strip_prefix(prefix).unwrap_or_default().chars();
        matches!((rest.next(), rest.next()), (Some('0'..='9' | '¹' | '²' | '³'), None))
    };
    WINDOWS_DEVICES.contains(&stem.as_str()) || numbered("com") || numbered("lpt")
}

/// The path at which a file of a folder may be written. Folders on the way are made; one that is a link out
/// of `root` is refused, so that nothing is ever written elsewhere.
pub(crate) fn place_to_write(root: &Path, relative: &Path) -> Answer<PathBuf> {
    let Some(name) = relative.file_name() else {
        return Err(Refusal::Malformed("the name of the file is missing"));
    };
    std::fs::create_dir_all(root)?;
    let root = root.canonicalize()?;
    let mut folder = root.clone();
    for part in relative.parent().into_iter().flat_map(Path::components) {
        folder.push(part);
        folder = match real_folder(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_folder(&folder)?;
                real_folder(&folder)?
            }
            real => real?,
        };
        if !folder.starts_with(&root) {
            return Err(Refusal::Outside);
        }
    }
    let path = folder.join(name);
    if path.is_dir() {
        return Err(Refusal::Malformed("a folder has that name"));
    }
    Ok(path)
}

/// Where an existing thing of a folder really is, for changing it: the folders on the way must lie in `root`.
/// The last part may be a link; it is then the link that is changed.
pub(crate) fn place_to_change(root: &Path, relative: &Path) -> Answer<PathBuf> {
    let Some(name) = relative.file_name() else {
        return Err(Refusal::Malformed("the name of the file is missing"));
    };
    let root = root.canonicalize()?;
    let parent = relative.parent().unwrap_or(Path::new(""));
    let folder = root.join(parent).canonicalize()?;
    if !folder.starts_with(&root) {
        return Err(Refusal::Outside);
    }
    let path = folder.join(name);
    path.symlink_metadata()?;
    Ok(path)
}

fn real_folder(path: &Path) -> io::Result<PathBuf> {
    let real = path.canonicalize()?;
    if real.is_dir() { Ok(real) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

/// Another request may make the same folder at the same time.
fn make_folder(path: &Path) -> io::Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_below_a_folder_are_taken() {
        let cases = [
            ("a.png", "a.png"),
            ("workflows/a b.json", "workflows/a b.json"),
            ("a/../b", "b"),
            ("./a//b/", "a/b"),
            ("", ""),
            ("a/..", ""),
            (".index.json", ".index.json"),
            (".gantry.part", ".gantry.part"),
            ("写真/é.png", "写真/é.png"),
            ("a..b", "a..b"),
            ("console.json", "console.json"),
            ("com10.txt", "com10.txt"),
        ];
        for (name, path) in cases {
            assert_eq!(relative(name).as_deref(), Ok(Path::new(path)), "{name}");
        }
    }

    #[test]
    fn names_lead_through_few_folders() {
        assert!(relative(&"a/".repeat(MAX_PARTS)).is_ok());
        assert_eq!(relative(&"a/".repeat(MAX_PARTS + 1)), Err(NameFault::Unusable));
        assert_eq!(relative(&"a/../".repeat(100)), Ok(PathBuf::new()));
    }

    #[test]
    fn names_that_leave_the_folder_are_told_apart() {
        for name in ["..", "../a", "a/../../b", "/etc/passwd", "/", "./../x"] {
            assert_eq!(relative(name), Err(NameFault::Escapes), "{name}");
        }
    }

    #[test]
    fn names_that_no_file_may_have_are_refused() {
        let long = "a".repeat(256);
        let deep = "a/".repeat(3000);
        let names = [
            "a\0b",
            "a\nb",
            "\u{7f}",
            "..\\a",
            "a\\b",
            "...",
            ".. ",
            " ",
            "con",
            "NUL.txt",
            "com1",
            "Lpt9.png",
            "aux .json",
            "a/prn/b",
            ".gantry-AbC123.part",
            "a/.gantry-.part",
        ];
        for name in names.into_iter().chain([long.as_str(), deep.as_str()]) {
            assert_eq!(relative(name), Err(NameFault::Unusable), "{name:?}");
        }
    }

    #[test]
    fn a_segment_is_decoded_once_more() {
        assert_eq!(decoded_again("a%2Fb.json").as_deref(), Ok("a/b.json"));
        assert_eq!(decoded_again("100%.json").as_deref(), Ok("100%.json"));
        assert_eq!(decoded_again("%2e%2e%2fx").as_deref(), Ok("../x"));
        assert_eq!(decoded_again("%ff"), Err(NameFault::Unusable));
    }
}
