//! A check of link types that is stricter than the executor's: every type that the source may give must be taken.

use graph::{Given, Schema, Validates, Verdict};

/// What a class with the stricter check asks of validation.
pub(crate) fn validates() -> Validates {
    Validates { types: true, ..Validates::default() }
}

/// Judges the types behind the links of a class.
pub(crate) fn judge(schema: &Schema, given: &Given<'_>) -> Verdict {
    for (name, source) in given.types {
        let Some(input) = schema.find(name) else { continue };
        let target = input.type_name();
        if !fits(source, target) {
            return Verdict::Because(format!("{name} takes {target}, but is linked to {source}"));
        }
    }
    Verdict::Good
}

/// Whether every type of the source is one of the target's.
fn fits(source: &str, target: &str) -> bool {
    let taken: Vec<_> = target.split(',').collect();
    source == "*" || target == "*" || source.split(',').all(|kind| taken.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_source_fits_only_with_all_its_types() {
        assert!(fits("FLOAT", "IMAGE,FLOAT"));
        assert!(fits("*", "IMAGE"));
        assert!(fits("INT", "*"));
        assert!(!fits("INT", "IMAGE,FLOAT"));
        assert!(!fits("IMAGE,FLOAT", "IMAGE"));
    }
}
