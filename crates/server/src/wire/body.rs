//! Request bodies. They are read as JSON whatever their `Content-Type` says: half of all clients send another one.

use graph::{Literal, Map};

/// Values in one body. A value of two bytes takes eighty in memory, so a body that is nothing but
/// values could take gigabytes; the largest workflows have some hundred thousand.
const MAX_VALUES: usize = 2_000_000;

/// Why a body is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadBody {
    /// It is no JSON, or JSON of more than 128 levels.
    #[error("the body is no JSON: {0}")]
    NoJson(#[from] serde_json::Error),
    /// It would take too much memory.
    #[error("the body has more than {MAX_VALUES} values")]
    TooManyValues,
    /// It is JSON, but something else is wanted.
    #[error("{0}")]
    Unexpected(String),
}

/// Reads a body.
pub(crate) fn literal(body: &[u8]) -> Result<Literal, BadBody> {
    if body.len() > MAX_VALUES && !has_few_values(body) {
        return Err(BadBody::TooManyValues);
    }
    Ok(serde_json::from_slice(body)?)
}

/// Reads a body that must be an object.
pub(crate) fn object(body: &[u8]) -> Result<Map, BadBody> {
    match literal(body)? {
        Literal::Map(map) => Ok(map),
        _ => Err(BadBody::Unexpected("the body must be a JSON object".to_owned())),
    }
}

/// Reads a body that must be an object, or nothing.
pub(crate) fn object_or_nothing(body: &[u8]) -> Result<Map, BadBody> {
    if body.trim_ascii().is_empty() { Ok(Map::new()) } else { object(body) }
}

/// The ids under a key; none if the key is absent.
pub(crate) fn ids(map: &Map, key: &str) -> Result<Option<Vec<String>>, BadBody> {
    match map.get(key) {
        None | Some(Literal::Null) => Ok(None),
        Some(Literal::List(list)) => Ok(Some(list.iter().map(as_id).collect::<Result<_, _>>()?)),
        Some(_) => Err(BadBody::Unexpected(format!("\"{key}\" must be a list of ids"))),
    }
}

/// An id as text; some clients send numbers.
pub(crate) fn as_id(literal: &Literal) -> Result<String, BadBody> {
    match literal {
        Literal::Text(text) => Ok(text.clone()),
        Literal::Int(number) => Ok(number.to_string()),
        _ => Err(BadBody::Unexpected("an id must be text".to_owned())),
    }
}

/// Counts what can start a value, outside of strings.
fn has_few_values(body: &[u8]) -> bool {
    let (mut values, mut in_text, mut escaped) = (0, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    values <= MAX_VALUES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_and_wide_bodies_are_refused() {
        let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
        assert!(matches!(literal(&deep), Err(BadBody::NoJson(_))));
        let wide = format!("[0{}]", ",0".repeat(MAX_VALUES + 1));
        assert!(matches!(literal(wide.as_bytes()), Err(BadBody::TooManyValues)));
        let long = format!("[\"{}\\\",,,,,\"]", ",".repeat(3 * MAX_VALUES));
        assert!(literal(long.as_bytes()).is_ok(), "text is one value");
    }

    #[test]
    fn whole_numbers_stay_whole() {
        let seed = literal(b"18446744073709551615").unwrap();
        assert_eq!(seed, Literal::Int(u64::MAX.into()));
    }

    #[test]
    fn nothing_is_an_empty_object_where_that_is_allowed() {
        assert!(object_or_nothing(b" \n").unwrap().is_empty());
        assert!(object(b"").is_err());
        assert!(object(b"[1]").is_err());
        assert!(object_or_nothing(b"{").is_err());
    }

    #[test]
    fn ids_may_be_numbers() {
        let map = object(br#"{"delete": ["a", 7], "other": 3}"#).unwrap();
        assert_eq!(ids(&map, "delete").unwrap().unwrap(), ["a", "7"]);
        assert!(ids(&map, "absent").unwrap().is_none());
        assert!(ids(&map, "other").is_err());
    }
}
