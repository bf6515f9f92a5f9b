//! Where a file is, and its container opened.

use std::fs::File;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader};
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::core::meta::MetadataOptions;

use crate::mp4::Marks;
use crate::{Error, Result};

/// A file to read.
#[derive(Clone, Debug)]
pub enum Source {
    /// On the disk.
    Path(PathBuf),
    /// In memory, with a name for messages.
    Bytes(String, Vec<u8>),
}

impl Source {
    /// The file's name, for people.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Source::Path(path) => path
                .file_name()
                .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned()),
            Source::Bytes(name, _) => name.clone(),
        }
    }

    /// Where it is, if it is on the disk.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Source::Path(path) => Some(path),
            Source::Bytes(..) => None,
        }
    }

    /// What it says of a track beside its packets, if it is an MP4 file.
    pub(crate) fn marks(&self, track: u32) -> Marks {
        let marks = match self {
            Source::Path(path) => File::open(path).ok().and_then(|mut file| Marks::read(&mut file, track)),
            Source::Bytes(_, bytes) => Marks::read(&mut Cursor::new(bytes), track),
        };
        marks.unwrap_or_default()
    }

    /// Its container, with the tracks in it.
    pub(crate) fn open(&self) -> Result<Box<dyn FormatReader>> {
        let (name, bytes): (String, Box<dyn MediaSource>) = match self {
            Source::Path(path) => {
                let told = |error: std::io::Error| self.unreadable(error.to_string());
                let file = File::open(path).map_err(told)?;
                if file.metadata().map_err(told)?.len() == 0 {
                    return Err(self.unreadable("it is empty".to_owned()));
                }
                (self.name(), Box::new(file))
            }
            Source::Bytes(name, bytes) => (name.clone(), Box::new(Cursor::new(bytes.clone()))),
        };
        let mut hint = Hint::new();
        if let Some((_, ending)) = name.rsplit_once('.') {
            hint.with_extension(ending);
        }
        let stream = MediaSourceStream::new(bytes, Default::default());
        symphonia::default::get_probe()
            .probe(&hint, stream, FormatOptions::default(), MetadataOptions::default())
            .map_err(|error| self.unreadable(error.to_string()))
    }

    /// The error for a file that is damaged, or none that is known.
    pub(crate) fn unreadable(&self, reason: String) -> Error {
        Error::Unreadable { file: self.name(), reason }
    }
}
