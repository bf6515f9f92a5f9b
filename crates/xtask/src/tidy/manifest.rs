//! Where in a `Cargo.toml` a dependency is named, so that a finding can point at its line.

use crate::workspace::{Dependency, DependencyKind};

/// One entry of a dependency table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// The line, counted from 1.
    pub(crate) line: usize,
    /// The name before the `=` or the dot.
    pub(crate) key: &'a str,
    /// The rest: what the entry says about the dependency.
    pub(crate) value: &'a str,
    kind: DependencyKind,
}

/// The entries of every dependency table, in order. Tables for one platform count like the others.
pub(crate) fn entries(text: &str) -> Vec<Entry<'_>> {
    let mut entries = Vec::new();
    let mut table: Option<DependencyKind> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            table = table_kind(header);
            if let Some((kind, key)) = single_table(header) {
                entries.push(Entry { line: index + 1, key, value: "", kind });
            }
            continue;
        }
        let Some(kind) = table else { continue };
        if let Some((key, value)) = split_entry(line) {
            entries.push(Entry { line: index + 1, key, value, kind });
        }
    }
    entries
}

/// The line (counted from 1) that names `dependency`, or 1 when none does.
pub(crate) fn line_of(text: &str, dependency: &Dependency) -> usize {
    entries(text)
        .iter()
        .find(|entry| entry.key == dependency.key && entry.kind == dependency.kind)
        .map_or(1, |entry| entry.line)
}

fn table_kind(header: &str) -> Option<DependencyKind> {
    match header.rsplit('.').next()? {
        "dependencies" => Some(DependencyKind::Normal),
        "dev-dependencies" => Some(DependencyKind::Dev),
        "build-dependencies" => Some(DependencyKind::Build),
        _ => None,
    }
}

/// `[dependencies.name]`: a table that is one entry.
fn single_table(header: &str) -> Option<(DependencyKind, &str)> {
    let (table, key) = header.rsplit_once('.')?;
    table_kind(table).map(|kind| (kind, key))
}

fn split_entry(line: &str) -> Option<(&str, &str)> {
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(|c: char| c == '=' || c == '.' || c.is_whitespace())?;
    Some((line[..end].trim_matches('"'), &line[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::fixtures::{ours, theirs};

    const MANIFEST: &str = "[package]\nname = \"x\"\n\n[dependencies]\n# half is for bytes\nhalf.workspace = true\n\
         meta = { workspace = true }\n\n[dev-dependencies]\nmeta.workspace = true\n\n\
         [target.'cfg(unix)'.dependencies]\nlibc = \"1\"\n\n[dependencies.serde]\nversion = \"1\"\n";

    #[test]
    fn finds_entries_in_every_kind_of_table() {
        let keys: Vec<(usize, &str)> =
            entries(MANIFEST).iter().map(|entry| (entry.line, entry.key)).collect();
        assert_eq!(keys, [(6, "half"), (7, "meta"), (10, "meta"), (13, "libc"), (15, "serde")]);
    }

    #[test]
    fn the_line_depends_on_the_kind() {
        assert_eq!(line_of(MANIFEST, &ours("meta", DependencyKind::Normal)), 7);
        assert_eq!(line_of(MANIFEST, &ours("meta", DependencyKind::Dev)), 10);
        assert_eq!(line_of(MANIFEST, &theirs("absent", DependencyKind::Normal)), 1);
    }
}
