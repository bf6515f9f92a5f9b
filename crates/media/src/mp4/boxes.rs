//! The boxes that an MP4 file is made of: a size, a kind of four letters, and what is in it.

/// A box.
pub(super) fn boxed(kind: &[u8; 4], parts: &[&[u8]]) -> Vec<u8> {
    let length = 8 + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_be_bytes());
    bytes.extend(kind);
    parts.iter().for_each(|part| bytes.extend(*part));
    bytes
}

/// A box with a version and flags.
pub(super) fn full(kind: &[u8; 4], flags: u32, parts: &[&[u8]]) -> Vec<u8> {
    let flags = flags.to_be_bytes();
    let mut all: Vec<&[u8]> = vec![&flags];
    all.extend(parts);
    boxed(kind, &all)
}

/// Numbers of 32 bits.
pub(super) fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_be_bytes).collect()
}

/// Numbers of 16 bits.
pub(super) fn halves(values: impl IntoIterator<Item = u16>) -> Vec<u8> {
    values.into_iter().flat_map(u16::to_be_bytes).collect()
}

/// What a file begins with.
pub(super) fn file_type() -> Vec<u8> {
    boxed(b"ftyp", &[b"isom", &0x200u32.to_be_bytes(), b"isom", b"iso2", b"avc1", b"mp41"])
}

/// Upright, unscaled.
pub(super) const MATRIX: [u32; 9] = [0x1_0000, 0, 0, 0, 0x1_0000, 0, 0, 0, 0x4000_0000];

/// What kind of track it is.
pub(super) fn handler(kind: &[u8; 4], name: &str) -> Vec<u8> {
    full(b"hdlr", 0, &[&[0; 4], kind, &[0; 12], name.as_bytes(), &[0]])
}

/// Texts by keys, as QuickTime has them and as front ends look for them: names first, then values by the numbers of names.
pub(super) fn texts(texts: &[(String, String)]) -> Vec<u8> {
    if texts.is_empty() {
        return Vec::new();
    }
    let mut keys = (texts.len() as u32).to_be_bytes().to_vec();
    let mut values = Vec::new();
    for (number, (key, value)) in (1u32..).zip(texts) {
        keys.extend((8 + key.len() as u32).to_be_bytes());
        keys.extend(b"mdta");
        keys.extend(key.as_bytes());
        // 1 is UTF-8, without a language.
        let data = boxed(b"data", &[&words([1, 0]), value.as_bytes()]);
        values.extend(boxed(&number.to_be_bytes(), &[&data]));
    }
    let meta =
        full(b"meta", 0, &[&handler(b"mdta", ""), &full(b"keys", 0, &[&keys]), &boxed(b"ilst", &[&values])]);
    boxed(b"udta", &[&meta])
}
