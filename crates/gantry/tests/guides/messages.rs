//! The error messages of the troubleshooting guide, against the sources: each that it quotes is made by the crate
//! that it names, and each that those crates declare is quoted.

use std::collections::BTreeSet;
use std::path::Path;

use crate::demo_files;
use crate::markdown::{Document, spans};

/// Crates whose declared errors people meet. The others' reach people inside of one of these, or never.
const DECLARED: [&str; 11] = [
    "checkpoint",
    "device",
    "engine",
    "meta",
    "models",
    "patch",
    "placement",
    "residency",
    "sampling",
    "server",
    "workflow",
];

fn guide() -> Document {
    let path = "docs/guides/troubleshooting.md";
    Document::parse(path, &std::fs::read_to_string(demo_files::root().join(path)).unwrap())
}

/// The rows that quote a message: the line, the message, the crate.
fn quoted(document: &Document) -> Vec<(usize, String, String)> {
    let row = |(line, cells): &(usize, Vec<String>)| {
        let [message, maker, meaning] = cells.as_slice() else { return None };
        let first = |cell: &str| spans(cell).first().copied().map(str::to_owned);
        let (message, maker) = (first(message)?, first(maker)?);
        assert!(!meaning.is_empty(), "line {line} does not say what to do");
        Some((*line, message, maker))
    };
    document.rows.iter().filter_map(row).collect()
}

/// The sources of a crate, with the lines of each text joined.
fn sources(name: &str) -> String {
    let mut all = String::new();
    let folder = demo_files::root().join("crates").join(name).join("src");
    assert!(folder.is_dir(), "there is no crate {name}");
    add_sources(&folder, &mut all);
    all
}

fn add_sources(folder: &Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_sources(&path, all);
        } else if path.extension().is_some_and(|end| end == "rs") {
            *all += &joined(&std::fs::read_to_string(path).unwrap());
        }
    }
}

/// A text in a source may go on in the next line after a backslash.
fn joined(source: &str) -> String {
    let mut parts = source.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.trim_start())
}

/// The parts of a message between what varies.
fn parts(message: &str) -> Vec<&str> {
    message.split('…').map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// The first part of a message that a source does not have.
fn unknown_part<'a>(message: &'a str, source: &str) -> Option<&'a str> {
    // Inside of a Rust text quotes have a backslash.
    parts(message)
        .into_iter()
        .find(|part| !source.contains(*part) && !source.contains(&part.replace('"', "\\\"")))
}

/// The texts of `#[error("…")]`, with a mark of omission for what varies.
fn declared(source: &str) -> BTreeSet<String> {
    let texts = source.split("#[error(").skip(1).filter_map(|rest| {
        let text = rest.trim_start().strip_prefix('"')?;
        let mut message = String::new();
        let (mut depth, mut escaped) = (0, false);
        for c in text.chars() {
            match c {
                '"' if !escaped => return Some(message),
                '\\' if !escaped => {
                    escaped = true;
                    continue;
                }
                '{' => {
                    depth += 1;
                    message.push('…');
                }
                '}' => depth -= 1,
                // A code span cannot quote its own marks.
                '`' => message.push('…'),
                _ if depth == 0 => message.push(c),
                _ => {}
            }
            escaped = false;
        }
        None
    });
    // A message of nothing but other messages says nothing by itself.
    texts.filter(|message| parts(message).iter().any(|part| part.chars().any(char::is_alphabetic))).collect()
}

#[test]
fn messages_are_read_from_sources() {
    let source = joined(
        "#[error(\"{file}: \\\n    has no \\\"{x:?}\\\"; get it\", file.display())]\n#[error(transparent)]\n#[error(\"{0}: {1}\")]",
    );
    assert_eq!(declared(&source).into_iter().collect::<Vec<_>>(), ["…: has no \"…\"; get it"]);
    assert_eq!(unknown_part("…: has no \"…\"; get it", &source), None);
    assert_eq!(unknown_part("…: has no …; take it", &source), Some("; take it"));
}

#[test]
fn every_quoted_message_is_made_by_the_crate_that_is_named() {
    let rows = quoted(&guide());
    assert!(rows.len() > 100, "{} messages", rows.len());
    let mut faults = Vec::new();
    for (line, message, maker) in &rows {
        assert!(!parts(message).is_empty(), "line {line} quotes nothing");
        if let Some(part) = unknown_part(message, &sources(maker)) {
            faults.push(format!("line {line}: {maker} does not say '{part}'"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_declared_message_is_quoted() {
    let rows = quoted(&guide());
    let mut faults = Vec::new();
    for name in DECLARED {
        let known: BTreeSet<&str> =
            rows.iter().filter(|row| row.2 == name).map(|row| row.1.as_str()).collect();
        let missing =
            declared(&sources(name)).into_iter().filter(|message| !known.contains(message.as_str()));
        faults.extend(missing.map(|message| format!("{name}: {message}")));
    }
    assert!(faults.is_empty(), "the troubleshooting guide does not have\n{}", faults.join("\n"));
}
