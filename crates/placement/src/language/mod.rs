//! The allocation language: text to a typed [`Allocation`], with errors that point at the character.
//!
//! ```text
//! text       = [ items ] [ "#" [ normal ] ]
//! items      = item *( ";" item )
//! item       = entry | option | "auto"
//! entry      = device "," amount
//! option     = "order=" ( "interleaved" | "contiguous" )
//! amount     = bytes | percent | fraction | "*" | bytes "*"
//! bytes      = number unit       unit = b | k | kb | m | mb | g | gb   (powers of 1024, any case)
//! percent    = number "%"        share of the model; shares are normalised (8%;8%;4% = 40/40/20)
//! fraction   = number            share of that device's total memory, 0 to 1
//! normal     = [ device ] [ ";" number [ ";" device *( "," device ) ] ]
//! number     = digits [ "." [ digits ] ] | "." digits
//! ```
//!
//! - Spaces between words do not matter; neither does the case of letters.
//! - A device is read before any amount, so `mps` or `sim:0` can never be mistaken for a unit.
//! - One mode per text. `*` takes the remainder, at most once; in byte mode `cpu` takes it when nobody
//!   has a `*`, and `5gb*` means at least that much and the remainder.
//! - Without a `*`, percentages are normalised to their sum; with one, they are taken as they are.
//! - Fractions that together hold less than the model leave the rest to the compute device; fractions
//!   that hold more each give in proportion.
//! - What follows `#` is normal mode, in the form that older tools stored: compute device,
//!   `virtual_vram_gb` and donors in the order in which they fill up (`#cuda:0;4;cuda:1,cpu`). Entries
//!   before the `#` win over the number after it. The compute device may be left out, and so may the
//!   donors (`cpu`).
//! - Nothing at all, or `auto`, is automatic mode.

mod error;
mod lexer;
mod parser;

use meta::DeviceId;

pub(crate) use error::device_list;
pub use error::{AllocationError, AllocationProblem, Mode, Span};

use crate::allocation::{Allocation, Amounts};

/// The longest text that is read, in bytes. Every real one is under a hundred.
pub const MAX_TEXT_BYTES: usize = 4096;

/// An allocation together with the text it came from, so that an error found later (this machine has
/// no such device, the model is smaller than that) can still point at what the user wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct AllocationText {
    text: String,
    allocation: Allocation,
    marks: Marks,
}

/// Where in the text the parts of an allocation stand.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Marks {
    /// The compute device after `#`.
    pub(crate) compute: Option<Span>,
    /// Device and amount of each entry; for normal mode, each donor with the number.
    pub(crate) entries: Vec<(Span, Span)>,
}

impl AllocationText {
    /// Automatic mode: nothing was written.
    pub fn automatic() -> AllocationText {
        AllocationText {
            text: String::new(),
            allocation: Allocation::new(Amounts::Automatic),
            marks: Marks::default(),
        }
    }

    /// Reads a text. Which devices this machine has is not known here and is checked by the planner.
    pub fn parse(text: &str) -> Result<AllocationText, AllocationError> {
        parser::parse(text, None)
    }

    /// Reads a text on a machine that has these devices, so that an unknown one is found at once.
    pub fn parse_for(text: &str, devices: &[DeviceId]) -> Result<AllocationText, AllocationError> {
        parser::parse(text, Some(devices))
    }

    /// The text of an allocation built by a program. Fails where the language would: a device that
    /// comes twice, a share above its limit.
    pub fn write(allocation: &Allocation) -> Result<AllocationText, AllocationError> {
        AllocationText::parse(&allocation.to_string())
    }

    /// What was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What it means.
    pub const fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// An error that points into this text.
    pub(crate) fn error(&self, span: Span, problem: AllocationProblem) -> AllocationError {
        AllocationError { text: self.text.clone(), span, problem }
    }

    /// Where the device and the amount of an entry stand.
    pub(crate) fn entry_marks(&self, index: usize) -> (Span, Span) {
        self.marks.entries[index]
    }

    /// Where the compute device stands, if the text names it.
    pub(crate) const fn compute_mark(&self) -> Option<Span> {
        self.marks.compute
    }
}
