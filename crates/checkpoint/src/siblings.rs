//! Where the other parts of a checkpoint are: in the first one's folder, or in memory beside it.

use std::io;
use std::path::{Path, PathBuf};

use crate::source::Source;
use crate::{Error, ShardFault};

/// The files among which a part is looked for.
pub(crate) enum Siblings {
    Folder(PathBuf),
    Memory(Vec<Source>),
}

impl Siblings {
    /// The files in the folder of `path`.
    pub(crate) fn of(path: &Path) -> Siblings {
        Siblings::Folder(path.parent().unwrap_or(Path::new("")).to_owned())
    }

    /// Opens the part called `name`, which `asked_by` names.
    pub(crate) fn open(&mut self, name: &str, asked_by: &Path) -> Result<Source, Error> {
        let missing = || Error::Shards {
            file: asked_by.to_owned(),
            fault: ShardFault::MissingPart { name: name.to_owned() },
        };
        match self {
            Siblings::Folder(folder) => Source::open(&folder.join(name)).map_err(|error| match error {
                Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => missing(),
                other => other,
            }),
            Siblings::Memory(sources) => {
                let at =
                    sources.iter().position(|source| source.path() == Path::new(name)).ok_or_else(missing)?;
                Ok(sources.swap_remove(at))
            }
        }
    }

    /// The path at which the part called `name` is looked for.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match self {
            Siblings::Folder(folder) => folder.join(name),
            Siblings::Memory(_) => PathBuf::from(name),
        }
    }
}
