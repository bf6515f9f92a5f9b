//! How most of a model is stored, in a word for people.

use std::collections::HashMap;
use std::fmt;

use meta::Encoding;

use crate::{Checkpoint, Entry};

/// How most of some weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Precision {
    /// The encoding of most of their values.
    pub encoding: Encoding,
    /// Whether they have scales beside them.
    pub scaled: bool,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.encoding, if self.scaled { " scaled" } else { "" })
    }
}

impl Checkpoint {
    /// How most of the values of these entries are stored; as f32 if there are none.
    pub fn precision<'a>(&'a self, entries: impl Iterator<Item = &'a Entry>) -> Precision {
        // Packed formats have fewer bytes than what they stand beside, so values are counted instead.
        let mut by_encoding: HashMap<Encoding, u64> = HashMap::new();
        let mut scaled = false;
        for entry in entries {
            *by_encoding.entry(entry.encoding()).or_default() += entry.shape().count() as u64;
            // Codes that need scales have them in their name.
            scaled |= entry.encoding().scheme().is_none() && self.scale_of(entry).is_some();
        }
        let most = by_encoding.iter().max_by_key(|(encoding, values)| (**values, **encoding));
        Precision { encoding: most.map_or(Encoding::F32, |(encoding, _)| *encoding), scaled }
    }
}
