//! How fast the disk with the models is: the largest model file is read for at most a second.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::Place;
use super::check::Check;
use super::folders::{Scratch, existing_above};
use super::models::Found;
use crate::host;

/// How long is read.
const LONGEST: Duration = Duration::from_secs(1);
/// How much of a file is read at most, and forgotten by the page cache before.
const WINDOW: u64 = 512 << 20;
/// How much is written where there is no model to read.
const TRIAL: usize = 32 << 20;
/// How much one read asks for.
const PIECE: usize = 8 << 20;
/// A file this small says nothing about a disk.
const SMALLEST: u64 = 8 << 20;
/// A disk slower than this makes the first load of a model a long wait.
const SLOW: f64 = 300e6;
/// A model of 12 billion parameters in 16 bits, to say what a rate means.
const LARGE_MODEL_BYTES: f64 = 23.8e9;

/// What was measured.
struct Rate {
    bytes: u64,
    seconds: f64,
    /// Which share of it was in memory before, where the system tells.
    cached: Option<f64>,
}

/// Nothing is measured where the folder that was named is not there.
pub(super) fn check(found: &Found, place: &Place) -> Option<Check> {
    if !place.base.is_dir() {
        return None;
    }
    let largest = found.models.iter().filter(|model| model.bytes >= SMALLEST).max_by_key(|model| model.bytes);
    let (what, measured) = match largest {
        Some(model) => {
            (model.path.clone(), File::open(&model.path).and_then(|file| read(&file, model.bytes)))
        }
        None => {
            let folder = existing_above(&place.base.join("models"));
            let measured = trial(&folder);
            (folder, measured)
        }
    };
    Some(match measured {
        Ok(rate) => told(&what, largest.is_some(), &rate),
        Err(error) => Check::attention(
            "disk",
            format!("The speed of the disk at {} cannot be measured: {error}.", what.display()),
            "Nothing: it is measured once there is a model here that this user can read.",
        ),
    })
}

/// Writes a file, reads it back and deletes it.
fn trial(folder: &Path) -> std::io::Result<Rate> {
    let mut scratch = Scratch::new(folder)?;
    scratch.file.write_all(&vec![0x5a; TRIAL])?;
    scratch.file.sync_all()?;
    scratch.file.seek(SeekFrom::Start(0))?;
    read(&scratch.file, TRIAL as u64)
}

/// Reads the beginning of a file, from the disk if the system lets go of what it has in memory.
fn read(mut file: &File, bytes: u64) -> std::io::Result<Rate> {
    let window = bytes.min(WINDOW);
    host::forget_pages(file, 0, window);
    let cached = host::cached_share(file, 0, window);
    let mut piece = vec![0; PIECE];
    let (mut read, start) = (0, Instant::now());
    while read < window && start.elapsed() < LONGEST {
        match file.read(&mut piece)? {
            0 => break,
            count => read += count as u64,
        }
    }
    Ok(Rate { bytes: read, seconds: start.elapsed().as_secs_f64(), cached })
}

fn told(what: &Path, is_model: bool, rate: &Rate) -> Check {
    let per_second = rate.bytes as f64 / rate.seconds.max(1e-9);
    // More than a few pages in memory would be measured as a disk that is too fast.
    let from_cache = rate.cached.map(|share| share > 0.1);
    let facts = json!({
        "path": what,
        "is_model": is_model,
        "bytes_read": rate.bytes,
        "bytes_per_s": per_second,
        "from_page_cache": from_cache,
    });
    let source = match from_cache {
        Some(true) => " from the page cache, so this is the speed of memory and not of the disk",
        Some(false) => " from the disk",
        None => "; the system does not tell whether that came from the disk or from memory",
    };
    let file =
        if is_model { what.display().to_string() } else { format!("a trial file in {}", what.display()) };
    let says = format!(
        "{file} is read at {:.2} GB/s{source}. 12 billion parameters in 16 bits take {:.0} s at that rate.",
        per_second / 1e9,
        LARGE_MODEL_BYTES / per_second,
    );
    let check = if per_second < SLOW {
        Check::attention(
            "disk",
            says,
            "Move the models to a faster disk: the first load of each waits for it. Later loads come from memory.",
        )
    } else {
        Check::works("disk", says)
    };
    check.with_facts(facts)
}
