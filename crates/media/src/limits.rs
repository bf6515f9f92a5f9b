//! What is read at most: headers that say more are taken for lies.

use crate::{Error, Result};

/// The longest side of a frame.
const LONGEST_SIDE: usize = 16_384;
/// The most pixels of a frame: 201 MB in red, green and blue.
pub(crate) const MOST_PIXELS: usize = 8192 * 8192;
/// The most frames of a file: 46 hours at 60 frames a second.
pub(crate) const MOST_FRAMES: u64 = 10_000_000;

/// Refuses frames that are too large, or that have no pixels.
pub(crate) fn check_size(file: &str, width: usize, height: usize) -> Result<()> {
    let most = width.max(height) <= LONGEST_SIDE && width.saturating_mul(height) <= MOST_PIXELS;
    if most && width > 0 && height > 0 {
        return Ok(());
    }
    let reason = format!(
        "its frames have {width}x{height} pixels, where at most {LONGEST_SIDE} a side and {} million in all are read; \
         scale it down, or look whether the file is damaged",
        MOST_PIXELS / 1_000_000
    );
    Err(Error::Unreadable { file: file.to_owned(), reason })
}
