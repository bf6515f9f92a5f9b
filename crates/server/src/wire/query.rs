//! What stands behind the `?` of a request.

use serde::Deserialize;

/// The query of a request. Of a key that is there twice, the first counts.
#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct Asked(pub(crate) Vec<(String, String)>);

impl Asked {
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    pub(crate) fn is(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// A whole number, if the key is there.
    pub(crate) fn whole(&self, key: &'static str) -> Result<Option<u64>, NoNumber> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| NoNumber { key, value: value.to_owned() })
    }
}

/// A value that should be a whole number and is not; answered with 400.
#[derive(Debug, thiserror::Error)]
#[error("\"{key}\" must be a whole number that is not negative, not {value:?}")]
pub(crate) struct NoNumber {
    key: &'static str,
    value: String,
}
