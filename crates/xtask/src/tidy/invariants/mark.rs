//! What a rule looks for in a file.

use std::fmt;

use crate::scan::{Scan, Word};

/// Something that a crate may not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// A name in the code.
    Name(&'static str),
    /// A name of another: `Pool::allocate`, `pool.allocate`, `driver().allocate`.
    Of(&'static str, &'static str),
    /// A call that can fail, with its question mark: `.to_vec()?` reads a device, `.to_vec()` copies a list.
    Fallible(&'static str),
    /// A part of a text.
    Text(&'static str),
    /// A whole text.
    Exactly(&'static str),
    /// Bytes, such as those that a file begins with.
    Bytes(&'static str),
    /// A text that is an object of JSON, written by hand.
    JsonObject,
    /// A type that serialises itself and cannot be read again: a shape of an answer, and no format of a file.
    WrittenOnly,
}

impl Mark {
    /// Where a file has it.
    pub(super) fn places(self, scan: &Scan) -> Vec<usize> {
        match self {
            Mark::Name(name) => words(scan, name).map(|word| word.start).collect(),
            Mark::Of(owner, name) => {
                let of_owner = |word: &Word| owner_of(scan, word).as_deref() == Some(owner);
                words(scan, name).filter(of_owner).map(|word| word.start).collect()
            }
            Mark::Fallible(name) => {
                words(scan, name).filter(|word| is_tried(scan, word)).map(|word| word.start).collect()
            }
            Mark::Text(part) => texts(scan, |text| text.contains(part)),
            Mark::Exactly(whole) => texts(scan, |text| text == whole),
            Mark::Bytes(whole) => {
                let literals = texts(scan, |text| text == whole);
                literals.into_iter().filter(|at| scan.code_between(at - 2, at - 1) == "b").collect()
            }
            Mark::JsonObject => texts(scan, is_json_object),
            Mark::WrittenOnly => words(scan, "Serialize")
                .filter(|word| is_written_only(scan, word))
                .map(|word| word.start)
                .collect(),
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mark::Name(name) => write!(f, "`{name}`"),
            Mark::Of(owner, name) => write!(f, "`{name}` of `{owner}`"),
            Mark::Fallible(name) => write!(f, "`{name}()?`"),
            Mark::Text(text) | Mark::Exactly(text) => write!(f, "the text \"{text}\""),
            Mark::Bytes(text) => write!(f, "the bytes \"{text}\""),
            Mark::JsonObject => f.write_str("JSON written by hand"),
            Mark::WrittenOnly => f.write_str("a type that says how it looks as JSON"),
        }
    }
}

fn words(scan: &Scan, name: &str) -> impl Iterator<Item = Word> {
    scan.words().into_iter().filter(move |word| word.text == name)
}

/// What stands before the `.` or `::` in front of a word, the brackets of a call stepped over.
fn owner_of(scan: &Scan, word: &Word) -> Option<String> {
    let (mut at, first) = scan.code_before(word.start)?;
    if first == ':' {
        at = scan.code_before(at).filter(|(_, c)| *c == ':')?.0;
    } else if first != '.' {
        return None;
    }
    let (last, c) = scan.code_before(at)?;
    let last = if c == ')' { scan.code_before(scan.opening(last))?.0 } else { last };
    scan.word_ending_at(last)
}

/// Whether a method is called and its failure passed on.
fn is_tried(scan: &Scan, word: &Word) -> bool {
    let is_method = scan.code_before(word.start).is_some_and(|(_, c)| c == '.');
    let Some((open, '(')) = scan.next_code(word.end) else { return false };
    is_method && scan.next_code(scan.closing(open) + 1).is_some_and(|(_, c)| c == '?')
}

/// Whether `Serialize` is implemented, or derived without `Deserialize`.
fn is_written_only(scan: &Scan, word: &Word) -> bool {
    if scan.next_word(word.end).is_some_and(|next| next.text == "for") {
        return true;
    }
    let derives = words(scan, "derive").filter_map(|derive| {
        let (open, bracket) = scan.next_code(derive.end)?;
        (bracket == '(').then(|| (open, scan.closing(open)))
    });
    let mut around = derives.filter(|(open, close)| (*open..*close).contains(&word.start));
    around.next().is_some_and(|(open, close)| !scan.code_between(open, close).contains("Deserialize"))
}

fn texts(scan: &Scan, wanted: impl Fn(&str) -> bool) -> Vec<usize> {
    scan.literals().into_iter().filter(|(_, text)| wanted(text)).map(|(at, _)| at).collect()
}

/// `{"key":`, with the brace doubled as formats have it, and with or without escapes.
fn is_json_object(text: &str) -> bool {
    let plain = text.replace("\\\"", "\"").replace("{{", "{");
    let Some((_, after)) = plain.split_once("{\"") else { return false };
    after.split_once('"').is_some_and(|(_, after)| after.trim_start().starts_with(':'))
}
