//! Signs: which tensors give a family away. A sign is the end of one tensor's name that no other family has; what stands
//! in front of it is the part's prefix.

use std::borrow::Cow;

use checkpoint::{Checkpoint, Entry};

use super::Layout;

/// One way to recognise a model.
pub struct Sign {
    /// The end of a name that gives the family away.
    pub tensor: &'static str,
    /// How the tensors of such a file are named.
    pub layout: Layout,
    /// What the field calls the model, from the tensor that was found and its neighbours; none if it is not one after
    /// all.
    pub name: fn(&Neighbours<'_>) -> Option<Cow<'static, str>>,
}

impl Sign {
    /// A sign in files that are named as the authors named them.
    pub const fn native(
        tensor: &'static str,
        name: fn(&Neighbours<'_>) -> Option<Cow<'static, str>>,
    ) -> Sign {
        Sign { tensor, layout: Layout::Native, name }
    }
}

/// A tensor that a sign found, and those with the same prefix.
pub struct Neighbours<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) entry: &'a Entry,
    pub(super) prefix: &'a str,
}

impl Neighbours<'_> {
    /// Whether there is a tensor of a name.
    pub fn has(&self, name: &str) -> bool {
        self.dims(name).is_some()
    }

    /// Whether the file has a tensor of this name, whatever the prefix.
    pub fn has_anywhere(&self, name: &str) -> bool {
        self.checkpoint.entry(name).is_some()
    }

    /// Whether the file has a tensor whose name ends so, whatever stands in front.
    pub fn has_ending(&self, end: &str) -> bool {
        self.checkpoint.entries().iter().any(|entry| prefix_before(entry.name(), end).is_some())
    }

    /// What the file says that its architecture is, of formats that say so.
    pub fn architecture(&self) -> Option<&str> {
        self.checkpoint.metadata().architecture()
    }

    /// The dimensions of a tensor.
    pub fn dims(&self, name: &str) -> Option<&[usize]> {
        self.checkpoint.entry(&format!("{}{name}", self.prefix)).map(|entry| entry.shape().dims())
    }

    /// The dimensions of the tensor that was found.
    pub fn own_dims(&self) -> &[usize] {
        self.entry.shape().dims()
    }

    /// A dimension of the tensor that was found.
    pub fn dim(&self, axis: usize) -> Option<usize> {
        self.own_dims().get(axis).copied()
    }

    /// What stands in front of the names.
    pub fn prefix(&self) -> &str {
        self.prefix
    }
}

/// What stands in front of `sign` at the end of a name, if it ends there at a dot.
pub(super) fn prefix_before<'a>(name: &'a str, sign: &str) -> Option<&'a str> {
    let prefix = name.strip_suffix(sign)?;
    (prefix.is_empty() || prefix.ends_with('.')).then_some(prefix)
}
