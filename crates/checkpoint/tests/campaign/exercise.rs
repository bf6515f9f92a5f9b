//! Uses everything that an opened checkpoint offers, so that nothing in it can point outside its file.

use checkpoint::{Checkpoint, Value};

/// Reads every entry's ends, every companion and every metadata value. Returns a sum so that no read is
/// optimised away.
pub fn exercise(checkpoint: &Checkpoint) -> u64 {
    let mut sum = 0;
    for entry in checkpoint.entries() {
        let bytes = checkpoint.bytes(entry);
        assert_eq!(bytes.len() as u64, entry.len(), "{entry:?}");
        let size = entry.encoding().bytes(entry.stored_shape()).expect("checked when the file was opened");
        assert_eq!(size, entry.len(), "{entry:?}");
        assert_eq!(entry.shape().checked_count(), entry.stored_shape().checked_count());
        sum += bytes.first().map_or(0, |&byte| u64::from(byte))
            + bytes.last().map_or(0, |&byte| u64::from(byte));
        let found = checkpoint.entry(entry.name()).expect("an entry is found by its own name");
        assert!(std::ptr::eq(found, entry), "two entries are called {}", entry.name());
        sum += checkpoint.scale_of(entry).map_or(0, |scale| checkpoint.bytes(scale).len() as u64);
        sum += u64::from(checkpoint.is_companion(entry));
    }
    for (key, value) in checkpoint.metadata().iter() {
        sum += key.len() as u64;
        match value {
            Value::Array(array) => sum += array.iter().filter(Result::is_ok).count() as u64,
            Value::Str(text) => sum += text.len() as u64,
            other => sum += other.to_u64().unwrap_or(1) & 1,
        }
    }
    sum + checkpoint.shard().map_or(0, |shard| shard.number)
}
