//! What a check has to say about one line of one file.

use std::fmt;

/// Whether a finding fails the run or is only reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// Something that must be mended before the change goes in.
    Error,
    /// Something to look at; the run still succeeds.
    Warning,
}

/// One thing that is wrong, where it is, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The file, relative to the workspace root.
    pub(crate) path: String,
    /// The line, counted from 1.
    pub(crate) line: usize,
    /// What is wrong and what to do, as one sentence without a full stop.
    pub(crate) text: String,
    /// Whether it fails the run.
    pub(crate) severity: Severity,
}

impl Finding {
    /// A finding that fails the run.
    pub(crate) fn error(path: &str, line: usize, text: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, text: text.into(), severity: Severity::Error }
    }

    /// A finding that is only reported.
    pub(crate) fn warning(path: &str, line: usize, text: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, text: text.into(), severity: Severity::Warning }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = match self.severity {
            Severity::Error => "",
            Severity::Warning => "warning: ",
        };
        write!(f, "{}:{}: {label}{}", self.path, self.line, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_file_line_text() {
        assert_eq!(Finding::error("a/b.rs", 3, "x, do y").to_string(), "a/b.rs:3: x, do y");
        assert_eq!(Finding::warning("a.rs", 1, "long").to_string(), "a.rs:1: warning: long");
    }
}
