//! Names for new files: a prefix with variables, and a counter that goes on from the files that are there.

use std::fs;
use std::io;
use std::path::PathBuf;

use disk::{Draft, Kept};
use meta::Moment;

use super::{Folders, Place, normalized};
use crate::{Error, Result};

/// Where the next files of a prefix go. The folder exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavePlace {
    /// The folder.
    pub folder: PathBuf,
    /// The folder's path under the output folder, with `/`; empty for that itself.
    pub subfolder: String,
    /// The start of the names. It may still have `%batch_num%` in it.
    pub stem: String,
    /// The number of the next file.
    pub counter: u64,
    /// Whether files are still wanted after a loss of power.
    is_lasting: bool,
}

/// Folders within each other that a prefix may lead through.
const MAX_PARTS: usize = 32;

/// Names that are tried for one file. More programs do not save under one prefix at the same moment.
const MAX_TRIES: usize = 10_000;

impl Folders {
    /// Where files of a prefix such as `project/%year%-%month%/cat` go, and makes the folder. `size` is the
    /// width and height of the picture, for `%width%` and `%height%`.
    ///
    /// # Errors
    /// The prefix leaves the folder, or the folder cannot be made or read.
    pub fn save_place(&self, place: Place, prefix: &str, size: (usize, usize)) -> Result<SavePlace> {
        let base = self.directory(place);
        let path = normalized(&base.join(with_variables(prefix, size)));
        let Ok(relative) = path.strip_prefix(base) else {
            let text = format!(
                "\"{prefix}\" would be saved outside the {} folder ({}); choose a prefix without \"..\" and \
                 without a leading \"/\"",
                place.name(),
                base.display()
            );
            return Err(Error::Told(text));
        };
        if relative.components().count() > MAX_PARTS {
            let text = format!(
                "\"{prefix}\" has more than {MAX_PARTS} folders within each other; choose a shorter one"
            );
            return Err(Error::Told(text));
        }
        let stem = relative.file_name().map_or_else(|| "ComfyUI".into(), |name| name.to_string_lossy());
        let above = relative.parent().map_or_else(String::new, |above| above.to_string_lossy().into_owned());
        let folder = base.join(&above);
        let told = |source| Error::Io { path: folder.clone(), source };
        fs::create_dir_all(&folder).map_err(told)?;
        disk::remove_stale(&folder);
        let names = fs::read_dir(&folder).map_err(told)?.flatten();
        let numbers = names.filter_map(|entry| number_of(&entry.file_name().to_string_lossy(), &stem));
        let counter = numbers.max().unwrap_or(0).saturating_add(1);
        let subfolder = above.replace('\\', "/");
        let is_lasting = place != Place::Temp;
        Ok(SavePlace { folder, subfolder, stem: stem.into_owned(), counter, is_lasting })
    }
}

impl SavePlace {
    /// Saves a file, the `batch`th of this call, whole and under the next name that nobody has taken meanwhile; the
    /// name.
    ///
    /// # Errors
    /// It cannot be written; then nothing of it is left.
    pub fn save(&mut self, batch: usize, extension: &str, bytes: &[u8]) -> Result<String> {
        let name = self.next_name(batch, extension);
        let draft = Draft::of(&self.folder, bytes);
        let draft = draft.map_err(|source| Error::Io { path: self.folder.join(&name), source })?;
        self.keep(draft, name, batch, extension)
    }

    /// The same for a file that is written piece by piece into a draft.
    ///
    /// # Errors
    /// `write` failed, or the file cannot be written; then nothing of it is left.
    pub fn save_draft(
        &mut self,
        batch: usize,
        extension: &str,
        write: &mut dyn FnMut(&mut Draft) -> Result<()>,
    ) -> Result<String> {
        let name = self.next_name(batch, extension);
        let draft = Draft::new(&self.folder);
        let mut draft = draft.map_err(|source| Error::Io { path: self.folder.join(&name), source })?;
        write(&mut draft)?;
        self.keep(draft, name, batch, extension)
    }

    /// Gives a draft that is whole its name, or the next one that nobody has taken meanwhile.
    fn keep(&mut self, mut draft: Draft, mut name: String, batch: usize, extension: &str) -> Result<String> {
        if self.is_lasting {
            draft.sync().map_err(|source| Error::Io { path: self.folder.join(&name), source })?;
        }
        for _ in 0..MAX_TRIES {
            let path = self.folder.join(&name);
            match draft.keep(&path) {
                Ok(Kept::New) => return Ok(name),
                Ok(Kept::Taken(back)) => draft = back,
                Err(source) => return Err(Error::Io { path, source }),
            }
            name = self.next_name(batch, extension);
        }
        Err(Error::Io { path: self.folder.clone(), source: io::ErrorKind::AlreadyExists.into() })
    }

    /// The name of the next file, the `batch`th of this call, and counts on.
    pub fn next_name(&mut self, batch: usize, extension: &str) -> String {
        let stem = self.stem.replace("%batch_num%", &batch.to_string());
        let name = format!("{stem}_{:05}_.{extension}", self.counter);
        self.counter = self.counter.saturating_add(1);
        name
    }
}

/// The number in `<stem>_<number>_…`; 0 if there is something else in its place.
fn number_of(name: &str, stem: &str) -> Option<u64> {
    let rest = name.strip_prefix(stem)?.strip_prefix('_')?;
    Some(rest.split('_').next().and_then(|digits| digits.parse().ok()).unwrap_or(0))
}

fn with_variables(prefix: &str, (width, height): (usize, usize)) -> String {
    if !prefix.contains('%') {
        return prefix.to_owned();
    }
    let now = Moment::local_now();
    let two = |number: u8| format!("{number:02}");
    let variables = [
        ("%width%", width.to_string()),
        ("%height%", height.to_string()),
        ("%year%", now.year().to_string()),
        ("%month%", two(now.month())),
        ("%day%", two(now.day())),
        ("%hour%", two(now.hour())),
        ("%minute%", two(now.minute())),
        ("%second%", two(now.second())),
    ];
    variables.iter().fold(prefix.to_owned(), |text, (name, value)| text.replace(name, value))
}
