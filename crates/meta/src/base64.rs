//! Reading base64 (RFC 4648, standard alphabet, with padding), in which JSON files embed bytes.

/// The bytes that `text` stands for.
///
/// # Errors
/// The index of the first character that cannot be read.
pub fn decode(text: &str) -> Result<Vec<u8>, usize> {
    let symbols = text.trim_end_matches('=');
    let padding = text.len() - symbols.len();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return Err(symbols.len());
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0u32, 0);
    for (at, symbol) in symbols.bytes().enumerate() {
        bits = bits << 6 | u32::from(sextet(symbol).ok_or(at)?);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    // The bits that fill up the last symbol must be zero, or two texts would stand for the same bytes.
    if bits & ((1 << held) - 1) != 0 { Err(symbols.len() - 1) } else { Ok(bytes) }
}

fn sextet(symbol: u8) -> Option<u8> {
    Some(match symbol {
        b'A'..=b'Z' => symbol - b'A',
        b'a'..=b'z' => symbol - b'a' + 26,
        b'0'..=b'9' => symbol - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_test_vectors_of_the_standard() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(decode(text).unwrap(), bytes.as_bytes(), "{text}");
        }
        assert_eq!(decode("+/+/").unwrap(), [0xFB, 0xFF, 0xBF]);
    }

    #[test]
    fn refuses_what_is_no_base64() {
        for (text, at) in
            [("Zg", 2), ("Zg=", 2), ("Z===", 1), ("Zm9*", 3), ("Zh==", 1), ("=Zg=", 0), ("Zmé", 2)]
        {
            assert_eq!(decode(text), Err(at), "{text}");
        }
    }
}
