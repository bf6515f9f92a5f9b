//! What inputs are, in words, for those whose class does not say it itself.

use std::collections::HashMap;
use std::sync::LazyLock;

/// `name = words`, by line.
const TABLE: &str = include_str!("tooltips.txt");

static WORDS: LazyLock<HashMap<&'static str, &'static str>> = LazyLock::new(|| {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(" = ")).collect()
});

/// The words for an input of a class.
pub(crate) fn of(class: &str, input: &str) -> Option<&'static str> {
    let own = WORDS.get(format!("{class}.{input}").as_str()).or_else(|| WORDS.get(input));
    // Mergers have an input for every part of a model, hundreds in all.
    let of_part = || WORDS.get("ModelMerge*.*").filter(|_| class.starts_with("ModelMerge"));
    own.or_else(of_part).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_has_every_name_once() {
        let names: Vec<&str> = TABLE
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_once(" = ").unwrap_or_else(|| panic!("no words: {line}")).0)
            .collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(names, sorted);
    }

    #[test]
    fn a_class_goes_before_a_bare_name() {
        assert_eq!(of("ModelMergeSubtract", "model2"), Some("The model that is subtracted."));
        assert_eq!(of("ModelMergeSimple", "model2"), Some("The second model."));
        assert!(of("ModelMergeSimple", "blocks.7.").unwrap().contains("this part"));
        assert_eq!(of("Other", "blocks.7."), None);
    }
}
