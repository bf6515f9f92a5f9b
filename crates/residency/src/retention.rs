//! What the user said about a model's staying.

use std::fmt;

/// Whether a model stays when models are asked to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Retention {
    /// Its loader said `keep_loaded = false`: it goes first.
    Eject,
    /// Its loader has no such input: it goes when no model is marked to go first.
    #[default]
    Default,
    /// Its loader said `keep_loaded = true`: it goes only when forced.
    Keep,
}

impl Retention {
    /// From a loader's `keep_loaded`, which it may not have.
    pub fn from_keep_loaded(keep_loaded: Option<bool>) -> Retention {
        match keep_loaded {
            None => Retention::Default,
            Some(true) => Retention::Keep,
            Some(false) => Retention::Eject,
        }
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Retention::Eject => "eject",
            Retention::Default => "default",
            Retention::Keep => "keep",
        }
    }

    /// Who gives way first when memory is short: the smaller.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Retention::Eject => 0,
            Retention::Default => 1,
            Retention::Keep => 2,
        }
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
