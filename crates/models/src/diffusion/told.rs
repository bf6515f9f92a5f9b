//! Sizes that no tensor's shape shows, as small models say them in their files' metadata.

use checkpoint::Metadata;

/// The metadata key with such sizes, as a flat JSON object.
const METADATA_KEY: &str = "gantry_unet_config";

/// The number, or the list of numbers, that a file says for a key; none if it says nothing.
pub(super) fn numbers(metadata: &Metadata, key: &str) -> Vec<f64> {
    numbers_in(metadata.str(METADATA_KEY).unwrap_or_default(), key)
}

/// The number, or the list of numbers, that follows a key in a flat JSON object.
fn numbers_in(json: &str, key: &str) -> Vec<f64> {
    let quoted = format!("\"{key}\"");
    let Some(after) = json.split_once(&quoted).and_then(|(_, after)| after.trim_start().strip_prefix(':'))
    else {
        return Vec::new();
    };
    let after = after.trim_start();
    let list = match after.strip_prefix('[') {
        Some(list) => list.split(']').next().unwrap_or_default(),
        None => after.split([',', '}']).next().unwrap_or_default(),
    };
    list.split(',').map_while(|number| number.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_flat_object() {
        let json = r#"{"num_heads": 2, "axes_dim" : [16, 24,24], "theta": 2000.5}"#;
        assert_eq!(numbers_in(json, "axes_dim"), [16.0, 24.0, 24.0]);
        assert_eq!(numbers_in(json, "theta"), [2000.5]);
        assert_eq!(numbers_in(json, "num_heads"), [2.0]);
        for broken in ["", "{", r#"{"axes_dim""#, r#"{"axes_dim": "#, r#"{"axes_dim": ["a"]}"#] {
            assert_eq!(numbers_in(broken, "axes_dim"), [0.0; 0], "{broken}");
        }
    }
}
