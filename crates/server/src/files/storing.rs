//! Files that requests bring: received piece by piece into a draft, then given their name at once, so that nobody
//! ever sees half of one.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use axum::body::{Body, Bytes};
use disk::Draft;
use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;

use super::reply::{Answer, Refusal, blocking, is_over_limit};

/// A file that has its bytes and no name yet. Dropping it removes it.
pub(crate) struct Received {
    draft: Draft,
}

/// A file that is being received.
pub(crate) struct Receiving {
    draft: Draft,
    writer: tokio::io::BufWriter<tokio::fs::File>,
    left_bytes: u64,
}

impl Receiving {
    /// Starts a file in a folder, which is made if it is not there.
    pub(crate) async fn start(folder: PathBuf, max_bytes: u64) -> Answer<Receiving> {
        let (draft, handle) = blocking(move || {
            std::fs::create_dir_all(&folder)?;
            let draft = Draft::new(&folder)?;
            let handle = draft.file().try_clone()?;
            Ok((draft, handle))
        })
        .await?;
        let writer = tokio::io::BufWriter::new(tokio::fs::File::from_std(handle));
        Ok(Receiving { draft, writer, left_bytes: max_bytes })
    }

    /// Adds bytes.
    pub(crate) async fn add(&mut self, bytes: &Bytes) -> Answer<()> {
        self.left_bytes = self.left_bytes.checked_sub(bytes.len() as u64).ok_or(Refusal::TooLarge)?;
        self.writer.write_all(bytes).await?;
        Ok(())
    }

    /// Ends it.
    pub(crate) async fn finish(mut self) -> Answer<Received> {
        self.writer.flush().await?;
        Ok(Received { draft: self.draft })
    }
}

/// Receives a whole body into a hidden file of a folder.
pub(crate) async fn receive(mut body: Body, folder: PathBuf, max_bytes: u64) -> Answer<Received> {
    let mut receiving = Receiving::start(folder, max_bytes).await?;
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.map_err(|error| broken_off(&error))?.into_data() {
            receiving.add(&bytes).await?;
        }
    }
    receiving.finish().await
}

/// Why a body stopped: a limit on its length, or the client.
fn broken_off(error: &axum::Error) -> Refusal {
    if is_over_limit(error) { Refusal::TooLarge } else { Refusal::Malformed("the body was broken off") }
}

impl Received {
    /// A file with these bytes, in a folder that exists.
    pub(crate) fn of(bytes: &[u8], folder: &Path) -> io::Result<Received> {
        Ok(Received { draft: Draft::of(folder, bytes)? })
    }

    /// A file with the bytes of another, in a folder that exists.
    pub(crate) fn copy_of(path: &Path, folder: &Path) -> io::Result<Received> {
        let draft = Draft::new(folder)?;
        io::copy(&mut File::open(path)?, &mut draft.file())?;
        Ok(Received { draft })
    }

    /// Where its bytes are until it has a name.
    pub(crate) fn path(&self) -> &Path {
        self.draft.path()
    }

    /// All its bytes.
    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        std::fs::read(self.draft.path())
    }

    /// Gives it its name, in the place of whatever has it, once its bytes are on the disk.
    pub(crate) fn replace(self, path: &Path) -> io::Result<()> {
        self.draft.sync()?;
        self.draft.replace(path)
    }

    /// Gives it its name unless something has it, once its bytes are on the disk.
    pub(crate) fn keep(self, path: &Path) -> io::Result<Kept> {
        self.draft.sync()?;
        Ok(match self.draft.keep(path)? {
            disk::Kept::New => Kept::New,
            disk::Kept::Taken(draft) => Kept::Taken(Received { draft }),
        })
    }

    /// Whether a file holds exactly these bytes.
    pub(crate) fn equals(&self, path: &Path) -> io::Result<bool> {
        // A link that leads nowhere has a name and no bytes.
        let Ok(metadata) = path.metadata() else { return Ok(false) };
        if !metadata.is_file() || metadata.len() != self.draft.path().metadata()?.len() {
            return Ok(false);
        }
        same_bytes(File::open(self.draft.path())?, File::open(path)?)
    }
}

/// What became of a file that was to get a name.
pub(crate) enum Kept {
    /// It has the name.
    New,
    /// Something else has it.
    Taken(Received),
}

fn same_bytes(mut left: File, mut right: File) -> io::Result<bool> {
    let (mut a, mut b) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        let count = left.read(&mut a)?;
        if count == 0 {
            return Ok(right.read(&mut b)? == 0);
        }
        match right.read_exact(&mut b[..count]) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        if a[..count] != b[..count] {
            return Ok(false);
        }
    }
}
