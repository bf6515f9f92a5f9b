//! Choices inside a text: `a {red|green} apple` is one of two, drawn anew for each prompt.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// A text with its comments left out and one of each group of choices taken.
pub(crate) fn draw(text: &str) -> String {
    draw_with(text, |count| {
        // A fresh hasher is seeded by the operating system, which is random enough for a choice.
        let random = RandomState::new().build_hasher().finish();
        usize::try_from(random % count as u64).unwrap_or_default()
    })
}

/// A group of choices that is being read: those that ended, and the one that has not.
#[derive(Default)]
struct Group {
    ended: Vec<String>,
    current: String,
}

fn draw_with(text: &str, mut choose: impl FnMut(usize) -> usize) -> String {
    let text = without_comments(text);
    // The first is the text itself and never closes.
    let mut open = vec![];
    let mut here = Group::default();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(escaped @ ('{' | '}' | '|')) => here.current.push(escaped),
                Some(other) => here.current.extend(['\\', other]),
                None => here.current.push('\\'),
            },
            '{' => open.push(std::mem::take(&mut here)),
            '|' if !open.is_empty() => here.ended.push(std::mem::take(&mut here.current)),
            '}' if !open.is_empty() => close(&mut here, &mut open, &mut choose),
            other => here.current.push(other),
        }
    }
    while !open.is_empty() {
        close(&mut here, &mut open, &mut choose);
    }
    here.current
}

/// Ends the innermost group and puts one of its choices where it stood.
fn close(here: &mut Group, open: &mut Vec<Group>, choose: &mut impl FnMut(usize) -> usize) {
    let Some(around) = open.pop() else { return };
    let mut group = std::mem::replace(here, around);
    group.ended.push(group.current);
    let at = choose(group.ended.len()).min(group.ended.len() - 1);
    here.current.push_str(&group.ended[at]);
}

/// A text without `/* … */` and without what follows `//` on a line.
fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        let block_end = rest.strip_prefix("/*").and_then(|inside| inside.find("*/")).map(|end| end + 4);
        let line_end = rest.starts_with("//").then(|| rest.find(['\n', '\r']).unwrap_or(rest.len()));
        match block_end.or(line_end) {
            Some(end) => rest = &rest[end..],
            None => {
                kept.push('/');
                rest = &rest[1..];
            }
        }
    }
    kept.push_str(rest);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(text: &str) -> String {
        draw_with(text, |_| 0)
    }

    fn last(text: &str) -> String {
        draw_with(text, |count| count - 1)
    }

    #[test]
    fn one_of_each_group_is_taken() {
        assert_eq!(first("a {red|green} {cat|dog}"), "a red cat");
        assert_eq!(last("a {red|green} {cat|dog}"), "a green dog");
        assert_eq!(last("{a|{b|c {d|e}}} f"), "c e f");
        assert_eq!(first("{only}"), "only");
    }

    #[test]
    fn escaped_and_unclosed_groups_are_kept_as_the_editor_keeps_them() {
        assert_eq!(first(r"\{a\|b\} c|d }e \(f\)"), r"{a|b} c|d }e \(f\)");
        assert_eq!(last("a {b|c"), "a c");
        assert_eq!(first("a\\"), "a\\");
    }

    #[test]
    fn comments_are_left_out() {
        assert_eq!(first("a /* b\n c */d // e\nf / g"), "a d \nf / g");
        assert_eq!(first("/* open"), "/* open");
    }

    #[test]
    fn a_draw_is_one_of_the_choices() {
        let seen: std::collections::HashSet<String> = (0..64).map(|_| draw("{a|b}")).collect();
        assert!(seen.iter().all(|choice| choice == "a" || choice == "b"));
        assert_eq!(seen.len(), 2, "64 draws of two gave only {seen:?}");
    }
}
