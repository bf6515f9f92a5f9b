//! What can be wrong with an allocation text, where, and what would work instead.

use std::fmt;

use meta::{ByteSize, DeviceId};

use crate::language::MAX_TEXT_BYTES;

/// A stretch of a text, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl Span {
    /// From here to there.
    pub const fn new(start: usize, end: usize) -> Span {
        Span { start, end }
    }

    /// From the start of this to the end of that.
    pub const fn to(self, last: Span) -> Span {
        Span { start: self.start, end: last.end }
    }
}

/// The three ways to write amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `2gb`
    Bytes,
    /// `25%`
    Percent,
    /// `0.25`
    Fraction,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Bytes => "bytes (2gb)",
            Mode::Percent => "percent (25%)",
            Mode::Fraction => "fractions of a device (0.25)",
        })
    }
}

/// An allocation text that cannot be used: the text, the place and the problem.
///
/// It prints the text with the place marked under it.
#[derive(Clone, Debug, PartialEq)]
pub struct AllocationError {
    /// What was written.
    pub text: String,
    /// Where the problem is.
    pub span: Span,
    /// What the problem is.
    pub problem: AllocationProblem,
}

impl std::error::Error for AllocationError {}

/// What can be wrong with an allocation text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant says what it is, with its fields in it")]
pub enum AllocationProblem {
    #[error("an allocation has at most {MAX_TEXT_BYTES} bytes and this one has {bytes}")]
    TooLong { bytes: usize },
    #[error("'{found}' means nothing here")]
    UnexpectedCharacter { found: char },
    #[error("nothing is written here")]
    EmptyEntry,
    #[error("a device should be here")]
    MissingDevice,
    #[error("'{name}' is not a device")]
    NotADevice { name: String, available: Vec<DeviceId> },
    #[error("there is no device {device} here")]
    UnknownDevice { device: DeviceId, available: Vec<DeviceId> },
    #[error("{device} comes twice")]
    RepeatedDevice { device: DeviceId },
    #[error("{device} has no amount")]
    MissingAmount { device: DeviceId },
    #[error("an amount begins with a number")]
    MissingNumber,
    #[error("'{found}' is not a number")]
    NotANumber { found: String },
    #[error("an amount cannot be negative")]
    Negative,
    #[error("'{found}' is not a unit")]
    UnknownUnit { found: String },
    #[error("this is more than any memory holds")]
    TooLarge,
    #[error("this is in {found}, and what comes before is in {first}")]
    MixedModes { first: Mode, found: Mode },
    #[error("only one device can take the remainder")]
    TwoRemainders,
    #[error("only an amount in bytes can be followed by *")]
    RemainderOfShare,
    #[error("a share of the model is at most 100%")]
    PercentTooLarge,
    #[error("a bare number is a share of the device's memory and is at most 1")]
    FractionTooLarge,
    #[error("all shares are 0")]
    NothingShared,
    #[error("'{found}' does not belong here")]
    Trailing { found: String },
    #[error("there is no option '{found}'")]
    UnknownOption { found: String },
    #[error("this option comes twice")]
    RepeatedOption,
    #[error("'auto' says that nothing else is given")]
    AutoWithEntries,
    #[error("virtual_vram_gb, the gigabytes to move off the compute device, should be here")]
    MissingVirtualVram,
    #[error("{device} is the compute device: it cannot take over its own weights")]
    DonorIsCompute { device: DeviceId },
    #[error("the allocation computes on {written}, and the model is to compute on {requested}")]
    OtherCompute { written: DeviceId, requested: DeviceId },
    #[error("{device} has {} in all, and {} is asked of it", ByteSize(*total), ByteSize(*wanted))]
    DeviceOverfull { device: DeviceId, wanted: u64, total: u64 },
    #[error("the model has {}, and {} is given out up to here", ByteSize(*model), ByteSize(*wanted))]
    ModelOverfull { model: u64, wanted: u64, left: u64 },
    #[error("the shares come to {sum}%")]
    PercentOverfull { sum: f64 },
    #[error("the remainder goes to cpu, which is not here")]
    NowhereForRemainder,
}

impl AllocationProblem {
    /// What would work, where that can be said.
    pub fn hint(&self) -> Option<String> {
        use AllocationProblem as P;
        Some(match self {
            P::NotADevice { available, .. } if available.is_empty() => {
                "write cpu, cuda:0 or sim:0".to_owned()
            }
            P::NotADevice { available, .. } | P::UnknownDevice { available, .. } => {
                format!("available: {}", device_list(available))
            }
            P::MissingDevice => "such as cuda:0,2gb".to_owned(),
            P::EmptyEntry => "remove this ;".to_owned(),
            P::RepeatedDevice { device } => format!("write all of it in one entry for {device}"),
            P::MissingAmount { device } => format!("write {device},2gb or {device},*"),
            P::MissingNumber => "such as 2gb, 25% or 0.25, or * for the remainder".to_owned(),
            P::UnknownUnit { .. } => "units are b, k, kb, m, mb, g and gb, or % for a share".to_owned(),
            P::MixedModes { .. } => "write all amounts the same way".to_owned(),
            P::TwoRemainders => "remove one of the *".to_owned(),
            P::RemainderOfShare => "write * alone, or bytes such as 2gb*".to_owned(),
            P::FractionTooLarge => "write 2gb for bytes or 25% for a share of the model".to_owned(),
            P::UnknownOption { .. } => {
                "write order=interleaved, order=contiguous, remote=stream or remote=inplace".to_owned()
            }
            P::MissingVirtualVram => "such as #cuda:0;4;cpu".to_owned(),
            P::DonorIsCompute { .. } => "name another device".to_owned(),
            P::ModelOverfull { left, .. } => {
                format!("at most {} is left for this one; * takes what is left", ByteSize(*left))
            }
            P::PercentOverfull { .. } => "with a *, they must stay under 100%".to_owned(),
            P::NowhereForRemainder => "give one device a *".to_owned(),
            _ => return None,
        })
    }
}

pub(crate) fn device_list(devices: &[DeviceId]) -> String {
    let names: Vec<String> = devices.iter().map(DeviceId::to_string).collect();
    names.join(", ")
}

/// A part of a text as a message quotes it: on one line and not too long.
pub(super) fn quotable(part: &str) -> String {
    const LONGEST: usize = 40;
    let shown = part.chars().take(LONGEST).map(printable);
    shown.chain(part.chars().nth(LONGEST).map(|_| '…')).collect()
}

/// A line break or a tab would move the marks away from what they mark.
fn printable(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

/// How many characters of a long text are shown before and after the place of the problem.
const SHOWN_AROUND: usize = 60;

impl fmt::Display for AllocationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before: Vec<char> = self.text[..self.span.start].chars().collect();
        let marked: Vec<char> = self.text[self.span.start..self.span.end].chars().collect();
        let after: Vec<char> = self.text[self.span.end..].chars().collect();

        let cut_front = before.len().saturating_sub(SHOWN_AROUND);
        let shown_marked = marked.len().min(SHOWN_AROUND);
        let shown_after = if shown_marked < marked.len() { 0 } else { after.len().min(SHOWN_AROUND) };
        let cut_back = marked.len() + after.len() > shown_marked + shown_after;
        let front = if cut_front > 0 { "…" } else { "" };

        let shown = before[cut_front..].iter().chain(&marked[..shown_marked]).chain(&after[..shown_after]);
        let line: String = shown.copied().map(printable).collect();
        writeln!(f, "{front}{line}{}", if cut_back { "…" } else { "" })?;

        let indent = " ".repeat(front.chars().count() + before.len() - cut_front);
        let carets = "^".repeat(shown_marked.max(1));
        write!(f, "{indent}{carets} {}", self.problem)?;
        match self.problem.hint() {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}
