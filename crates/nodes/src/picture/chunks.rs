//! The text chunks of a PNG file.

use std::borrow::Cow;
use std::io::Cursor;

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// The `tEXt` chunk of a key; `None` if the format has no room for the key, and then the log says so.
pub(super) fn text_chunk(key: &str, value: &str) -> Option<Vec<u8>> {
    let latin =
        |text: &str| text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect::<Option<Vec<u8>>>();
    let name = latin(key).filter(|name| (1..=79).contains(&name.len()) && !name.contains(&0));
    match (name, latin(value)) {
        (Some(name), Some(value)) => Some([name, vec![0], value].concat()),
        _ => {
            tracing::warn!(
                key,
                "not written into the picture: the key is no PNG keyword, or the text not Latin-1"
            );
            None
        }
    }
}

/// The texts in a PNG file, in order, of whatever kind their chunks are; none if it is no PNG file.
#[must_use]
pub fn png_text(bytes: &[u8]) -> Vec<(String, String)> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_ignore_text_chunk(false);
    let Ok(mut reader) = decoder.read_info() else { return Vec::new() };
    // Texts may also stand after the pixels; a file that breaks off there still has the first ones.
    let _ = reader.finish();
    let info = reader.info();
    let plain = info.uncompressed_latin1_text.iter().map(|chunk| (chunk.keyword.clone(), chunk.text.clone()));
    let packed = info.compressed_latin1_text.iter().filter_map(|chunk| {
        let text = chunk.get_text().ok()?;
        Some((chunk.keyword.clone(), text))
    });
    let unicode = info.utf8_text.iter().filter_map(|chunk| {
        let text = chunk.get_text().ok()?;
        Some((chunk.keyword.clone(), text))
    });
    plain.chain(packed).chain(unicode).collect()
}

/// A PNG file with the text chunks of another put before its pixels, as they are. If one of them is no PNG file, the
/// first stays as it was.
#[must_use]
pub fn with_text_of(png: &[u8], other: &[u8]) -> Vec<u8> {
    let texts: Vec<&[u8]> = chunks(other)
        .filter(|(kind, _)| matches!(*kind, b"tEXt" | b"zTXt" | b"iTXt"))
        .map(|(_, whole)| whole)
        .collect();
    let mut out = Vec::from(SIGNATURE);
    let mut texts = Cow::from(texts);
    for (kind, whole) in chunks(png) {
        if kind == b"IDAT" {
            out.extend(std::mem::take(&mut texts).concat());
        }
        out.extend_from_slice(whole);
    }
    if out.len() > SIGNATURE.len() { out } else { png.to_vec() }
}

/// The chunks of a PNG file: the kind, and the chunk with its length and checksum. It ends where the file is broken.
fn chunks(png: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    let mut rest = png.strip_prefix(SIGNATURE).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = u32::from_be_bytes(*rest.first_chunk()?);
        let end = usize::try_from(length).ok()?.checked_add(12)?;
        let (whole, after) = rest.split_at_checked(end)?;
        rest = after;
        Some((whole[4..].first_chunk()?, whole))
    })
}
