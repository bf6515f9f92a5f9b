//! Listings of folders, kept until the date of one of them changes.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Folders that one listing may visit. Links that lead in circles end at the first repetition, but links among
/// many folders could still be combined endlessly.
const MAX_FOLDERS: usize = 100_000;

/// A folder that changed this shortly before it was read may change again without a new date.
const DATE_RESOLUTION: Duration = Duration::from_millis(20);

/// Endings of picture files.
const PICTURE_EXTENSIONS: &[&str] =
    &["png", "jpg", "jpeg", "jpe", "jfif", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "ico", "svg"];

/// Endings of video files.
const VIDEO_EXTENSIONS: &[&str] = &[
    "mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "wmv", "flv", "ogv", "3gp", "ts", "mts", "m2ts",
];

/// Endings of sound files.
const SOUND_EXTENSIONS: &[&str] =
    &["wav", "flac", "mp3", "ogg", "oga", "opus", "m4a", "aac", "aif", "aiff", "wma", "weba"];

/// What was found, by key. A copy starts empty, since its folders may become others.
#[derive(Default)]
pub(super) struct Listings {
    kept: Mutex<HashMap<String, Listing>>,
}

struct Listing {
    names: Arc<[String]>,
    /// Every folder that was read, with its date; `None` for one that was not there.
    dates: Vec<(PathBuf, Option<SystemTime>)>,
    /// Whether the dates can be trusted to show the next change.
    is_settled: bool,
}

impl Listings {
    /// The files under some folders that have one of the endings, and the names added to them.
    pub(super) fn files(
        &self,
        key: &str,
        places: &[PathBuf],
        extensions: Option<&[&str]>,
        added: &[(String, PathBuf)],
    ) -> Arc<[String]> {
        self.kept_or(key, || {
            let mut walk = Walk::default();
            for place in places {
                walk.visit(place, "", &mut Vec::new());
            }
            let has_extension =
                |name: &String| extensions.is_none_or(|wanted| wanted.contains(&&*extension(name)));
            walk.names.retain(has_extension);
            walk.names.extend(added.iter().map(|(name, _)| name.clone()));
            walk
        })
    }

    /// The pictures that lie directly in a folder.
    pub(super) fn pictures(&self, key: &str, place: &Path) -> Arc<[String]> {
        self.ending_in(&format!("pictures in {key}"), place, &[PICTURE_EXTENSIONS])
    }

    /// The videos that lie directly in a folder.
    pub(super) fn videos(&self, key: &str, place: &Path) -> Arc<[String]> {
        self.ending_in(&format!("videos in {key}"), place, &[VIDEO_EXTENSIONS])
    }

    /// The files with sound that lie directly in a folder, videos among them.
    pub(super) fn sounds(&self, key: &str, place: &Path) -> Arc<[String]> {
        self.ending_in(&format!("sounds in {key}"), place, &[SOUND_EXTENSIONS, VIDEO_EXTENSIONS])
    }

    fn ending_in(&self, key: &str, place: &Path, endings: &[&[&str]]) -> Arc<[String]> {
        self.kept_or(key, || {
            let mut walk = Walk::default();
            walk.read(place, "");
            walk.names.retain(|name| endings.iter().any(|endings| endings.contains(&&*extension(name))));
            walk
        })
    }

    fn kept_or(&self, key: &str, walk: impl FnOnce() -> Walk) -> Arc<[String]> {
        if let Some(listing) = self.lock().get(key)
            && listing.is_current()
        {
            return Arc::clone(&listing.names);
        }
        let started = SystemTime::now();
        let listing = walk().into_listing(started);
        let names = Arc::clone(&listing.names);
        self.lock().insert(key.to_owned(), listing);
        names
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Listing>> {
        // A listing is put in whole, so one that another thread left is good.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for Listings {
    fn clone(&self) -> Listings {
        Listings::default()
    }
}

impl std::fmt::Debug for Listings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listings").finish_non_exhaustive()
    }
}

impl Listing {
    fn is_current(&self) -> bool {
        self.is_settled && self.dates.iter().all(|(path, date)| date_of(path) == *date)
    }
}

/// A walk through folders.
#[derive(Default)]
struct Walk {
    names: Vec<String>,
    dates: Vec<(PathBuf, Option<SystemTime>)>,
}

impl Walk {
    /// Reads a folder and those below it. `above` are the real paths of the folders that led here.
    fn visit(&mut self, folder: &Path, prefix: &str, above: &mut Vec<PathBuf>) {
        let real = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        if above.contains(&real) || self.dates.len() >= MAX_FOLDERS {
            return;
        }
        above.push(real);
        for (name, path) in self.read(folder, prefix) {
            self.visit(&path, &format!("{prefix}{name}/"), above);
        }
        above.pop();
    }

    /// Takes the files of one folder, and gives the folders in it.
    fn read(&mut self, folder: &Path, prefix: &str) -> Vec<(String, PathBuf)> {
        self.dates.push((folder.to_owned(), date_of(folder)));
        let mut folders = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            // A name that is no text cannot be written in a workflow.
            let Ok(name) = entry.file_name().into_string() else { continue };
            if disk::is_draft(name.as_ref()) {
                continue;
            }
            let path = entry.path();
            let kind = match entry.file_type() {
                Ok(kind) if !kind.is_symlink() => kind,
                _ => match fs::metadata(&path) {
                    Ok(target) => target.file_type(),
                    Err(_) => continue,
                },
            };
            if kind.is_file() {
                self.names.push(format!("{prefix}{name}"));
            } else if kind.is_dir() && name != ".git" {
                folders.push((name, path));
            }
        }
        folders
    }

    fn into_listing(mut self, started: SystemTime) -> Listing {
        self.names.sort_unstable();
        self.names.dedup();
        let is_settled = self.dates.iter().all(|(_, date)| {
            date.is_none_or(|date| started.duration_since(date).is_ok_and(|age| age > DATE_RESOLUTION))
        });
        Listing { names: self.names.into(), dates: self.dates, is_settled }
    }
}

fn date_of(folder: &Path) -> Option<SystemTime> {
    fs::metadata(folder).and_then(|data| data.modified()).ok()
}

/// The ending in small letters. A name that only has one dot, at its start, has none.
fn extension(name: &str) -> String {
    Path::new(name)
        .extension()
        .map_or_else(String::new, |extension| extension.to_string_lossy().to_lowercase())
}
