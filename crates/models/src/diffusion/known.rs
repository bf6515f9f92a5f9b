//! What is made once for each kind of evaluation, and found again by its key.

use std::sync::{Mutex, PoisonError};

use crate::Result;

/// Values by their keys.
pub(super) struct Known<K, V>(Mutex<Vec<(K, V)>>);

impl<K, V> Default for Known<K, V> {
    fn default() -> Known<K, V> {
        Known(Mutex::default())
    }
}

impl<K: PartialEq + Clone, V: Clone> Known<K, V> {
    /// The value of a key, made if it is asked for the first time.
    pub(super) fn of(&self, key: &K, make: impl FnOnce() -> Result<V>) -> Result<V> {
        // Values are put in whole, so what another thread left is good.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, value)) = known.iter().find(|(of, _)| of == key) {
            return Ok(value.clone());
        }
        let value = make()?;
        known.push((key.clone(), value.clone()));
        Ok(value)
    }
}
