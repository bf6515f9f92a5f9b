//! All checks together: as JSON for programs, as text for people.

use std::fmt::Write as _;
use std::io::IsTerminal;

use serde::Serialize;

use super::check::{Check, Status};
use crate::{environment, host};

/// The widest text; longer lines are hard to read.
const WIDEST: usize = 100;
/// The narrowest text: on a terminal of fewer columns the terminal breaks the lines.
const NARROWEST: usize = 30;
/// What a check's further lines are set in by.
const INDENT: &str = "    ";

/// What `gantry doctor` found.
#[derive(Serialize)]
pub(super) struct Report {
    version: &'static str,
    /// The worst of all.
    status: Status,
    counts: Counts,
    summary: String,
    /// The command to type next.
    next: String,
    #[serde(skip)]
    next_does: &'static str,
    checks: Vec<Check>,
}

#[derive(Serialize)]
struct Counts {
    works: usize,
    attention: usize,
    does_not_work: usize,
}

/// How text is written.
pub(super) struct Style {
    pub(super) colour: bool,
    /// Columns; none for lines of any length.
    pub(super) width: Option<usize>,
}

impl Style {
    /// Colour and breaks on a terminal; neither in a pipe or a file.
    pub(super) fn of_output() -> Style {
        if !std::io::stdout().is_terminal() {
            return Style { colour: false, width: None };
        }
        let columns = host::terminal_width().unwrap_or(80);
        let plain = environment::variable("NO_COLOR").is_some_and(|value| !value.is_empty())
            || environment::variable("TERM").is_some_and(|value| value == "dumb");
        Style { colour: !plain, width: Some(columns.clamp(NARROWEST, WIDEST)) }
    }

    fn painted(&self, status: Status, text: &str) -> String {
        let colour = match status {
            Status::Works => 32,
            Status::Attention => 33,
            Status::DoesNotWork => 31,
        };
        if self.colour { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn bold(&self, text: &str) -> String {
        if self.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Breaks text at spaces and sets the lines after the first in.
    fn broken(&self, text: &str, first: usize, indent: &str) -> String {
        let Some(width) = self.width else { return text.to_owned() };
        let (mut out, mut column) = (String::new(), first);
        for word in text.split(' ') {
            let length = word.chars().count();
            if !out.is_empty() && column + 1 + length > width {
                let _ = write!(out, "\n{indent}");
                column = indent.len();
            } else if !out.is_empty() {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += length;
        }
        out
    }
}

impl Report {
    pub(super) fn new(checks: Vec<Check>, (next, next_does): (String, &'static str)) -> Report {
        let count = |status: Status| checks.iter().filter(|check| check.status == status).count();
        let counts = Counts {
            works: count(Status::Works),
            attention: count(Status::Attention),
            does_not_work: count(Status::DoesNotWork),
        };
        let status = match (counts.does_not_work, counts.attention) {
            (0, 0) => Status::Works,
            (0, _) => Status::Attention,
            _ => Status::DoesNotWork,
        };
        let verb = |count: usize| if count == 1 { "wants" } else { "want" };
        let works = counts.works;
        let summary = match (counts.does_not_work, counts.attention) {
            (0, 0) => format!("All {works} checks are well."),
            (0, some) => {
                format!("Nothing is broken: {works} checks are well, {some} {} attention.", verb(some))
            }
            (bad, some) => {
                let not = if bad == 1 { "does" } else { "do" };
                format!("{bad} of {} checks {not} not work, {some} {} attention.", checks.len(), verb(some))
            }
        };
        Report { version: env!("CARGO_PKG_VERSION"), status, counts, summary, next, next_does, checks }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.status == Status::DoesNotWork
    }

    pub(super) fn to_text(&self, style: &Style) -> String {
        let longest = Status::DoesNotWork.word().len();
        let mut text = String::new();
        for check in &self.checks {
            let word = style.painted(check.status, &format!("{:longest$}", check.status.word()));
            let title = check.name.replace('_', " ");
            let says = style.broken(&check.says, longest + 4 + title.chars().count(), INDENT);
            let _ = writeln!(text, "{word}  {}: {says}", style.bold(&title));
            for line in &check.lines {
                let line = style.broken(line, INDENT.len(), &format!("{INDENT}  "));
                let _ = writeln!(text, "{INDENT}{line}");
            }
            if let Some(what) = &check.what_to_do {
                let what = style.broken(&format!("-> {what}"), INDENT.len(), &format!("{INDENT}   "));
                let _ = writeln!(text, "{INDENT}{what}");
            }
        }
        let summary = style.broken(&self.summary, 0, "");
        let _ = writeln!(text, "\n{}", style.painted(self.status, &summary));
        let _ = writeln!(text, "Next: {}   ({})", style.bold(&self.next), self.next_does);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let checks = vec![
            Check::works("cpu", "Two cores."),
            Check::attention("gpu", "There is none, and this is a longer sentence.", "Buy one."),
        ];
        Report::new(checks, ("gantry demo".into(), "draws"))
    }

    #[test]
    fn a_pipe_gets_plain_lines() {
        let text = report().to_text(&Style { colour: false, width: None });
        assert_eq!(
            text,
            "works          cpu: Two cores.\nattention      gpu: There is none, and this is a longer sentence.\n\
             \x20   -> Buy one.\n\nNothing is broken: 1 checks are well, 1 wants attention.\nNext: gantry demo   (draws)\n"
        );
    }

    #[test]
    fn a_terminal_gets_colour_and_short_lines() {
        let text = report().to_text(&Style { colour: true, width: Some(NARROWEST) });
        assert!(text.contains("\x1b[33mattention"), "{text:?}");
        assert!(text.contains("There is\n    none"), "{text:?}");
    }

    #[test]
    fn the_worst_counts() {
        assert!(!report().is_broken());
        let broken = Report::new(vec![Check::broken("port", "No.", "Yes.")], (String::new(), ""));
        assert!(broken.is_broken());
        assert_eq!(broken.summary, "1 of 1 checks does not work, 0 want attention.");
    }
}
