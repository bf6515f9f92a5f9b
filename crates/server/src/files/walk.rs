//! What lies below a folder, in the order of its names.

use std::collections::HashSet;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::names::MAX_PARTS;

/// A file or folder that was found.
pub(crate) struct Found {
    /// Relative to where the walk began.
    pub path: PathBuf,
    /// Of what a link points at.
    pub metadata: Metadata,
}

/// How far a walk goes.
#[derive(Clone, Copy)]
pub(crate) struct Walk {
    /// Into folders, too.
    pub recurse: bool,
    /// Also what begins with a dot.
    pub hidden: bool,
}

impl Walk {
    /// Everything below a folder, folders before what is in them. Links are followed; a folder is entered once,
    /// however many links lead there. What cannot be read or lies deeper than names may lead is left out.
    pub(crate) fn below(self, root: &Path) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        let mut entered = HashSet::from([root.canonicalize()?]);
        let mut waiting = vec![PathBuf::new()];
        while let Some(folder) = waiting.pop() {
            let Ok(entries) = std::fs::read_dir(root.join(&folder)) else { continue };
            let mut names: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
            names.sort();
            let mut folders = Vec::new();
            for name in names {
                if disk::is_draft(&name) {
                    continue;
                }
                let is_hidden = name.as_encoded_bytes().starts_with(b".");
                let path = folder.join(&name);
                let Ok(metadata) = root.join(&path).metadata() else { continue };
                if is_hidden && !self.hidden {
                    continue;
                }
                if metadata.is_dir() && self.recurse && path.components().count() < MAX_PARTS {
                    let real = root.join(&path).canonicalize();
                    if real.is_ok_and(|real| entered.insert(real)) {
                        folders.push(path.clone());
                    }
                }
                found.push(Found { path, metadata });
            }
            waiting.extend(folders.into_iter().rev());
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }
}

/// When the bytes changed, in seconds.
pub(crate) fn modified_seconds(metadata: &Metadata) -> f64 {
    metadata.modified().map_or(0.0, seconds)
}

/// When the file was made. On Unix it is, as ComfyUI has it, when its entry changed.
#[cfg(unix)]
pub(crate) fn created_seconds(metadata: &Metadata) -> f64 {
    use std::os::unix::fs::MetadataExt;
    metadata.ctime() as f64 + metadata.ctime_nsec() as f64 / 1e9
}

#[cfg(not(unix))]
pub(crate) fn created_seconds(metadata: &Metadata) -> f64 {
    metadata.created().map_or(0.0, seconds)
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}
