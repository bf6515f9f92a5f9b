//! What a file says of its model in words: the JSON object in its metadata, as some authors write it into their files.

use checkpoint::Metadata;
use serde_json::Value;

/// The metadata key.
const KEY: &str = "config";

/// What a file says of one of its parts, such as `transformer`; nothing if it says nothing that can be read.
pub(crate) fn of_part(metadata: &Metadata, part: &str) -> Option<Value> {
    let mut whole: Value = serde_json::from_str(metadata.str(KEY)?).ok()?;
    let part = whole.get_mut(part)?.take();
    part.is_object().then_some(part)
}
